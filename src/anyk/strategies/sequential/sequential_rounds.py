"""The rounds of the sequential codes, and the rule that ends them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import nextafter
from typing import Any

from anyk.base.checks import check_range
from anyk.protocol import (
    Alarm,
    Cancel,
    Command,
    Commands,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Reply,
    SetAlarm,
    Stop,
    StrategyFacts,
)
from anyk.strategies.crew import Crew
from anyk.strategies.sequential.jobs import SequentialJobs
from anyk.strategies.sequential.replay import Tolerance, as_bits, workers_in
from anyk.strategies.sequential.sequential_facts import facts_of
from anyk.strategies.sequential.sequential_settings import Late, SequentialState

_ALARM = "cut-off"


@dataclass(frozen=True, repr=False)
class SequentialRounds(SequentialJobs):
    """The common part of the sequential codes: rounds, the rule that ends them, and the jobs that they complete.

    ``models``: M, at least T + 1 (the default). ``jobs``: their total number, after which none starts (0: no end).

    ``end`` is the earliest end of a round. With ``cutoff`` it is ``1 + mu`` times the first completion. With
    ``decodable`` it is the moment at which the workers that are not done fit the straggler model, so that every job
    that is due has its sum. Each worker that is not done has then straggled, so an early end uses up more of what the
    model allows in the next rounds.

    If the workers that are late at the cut-off do not fit, the round waits. With ``wait=all`` (the default with
    ``cutoff``) it waits for them all; with ``minimal`` (the default with ``decodable``), in order of arrival, until
    the others fit; with ``feasible`` until every job could still be done if no worker straggled any more. ``feasible``
    replaces the straggler model altogether.

    ``inner`` is the code within a job. In the straggler model of ``frc`` groups of workers count: any workers may be
    missing that leave one of each group. With ``auto`` (``frc`` if it exists, else ``cyclic``) groups count with
    ``end=decodable``, while ``end=cutoff`` counts only workers, as published.

    ``late`` is the fate of a straggler's task when its round ends. ``drop``: it is cancelled, its messages are dropped,
    and the worker takes part in the next round. ``keep``: if a job in it is not done yet, the worker continues with it.
    When it has finished, it is given a task of the round that is then under way; the rounds in between pass without
    it, so tasks never queue. When the last message of such a task has arrived, all its messages count for jobs that
    are not done, and their pieces are not computed again. In the straggler model the worker has straggled in every
    round that ended before it had finished its task of that round, even if the messages arrived later.

    A worker that is lost is a straggler; if the others are not enough, the round waits until it is back.
    """

    @property
    def facts(self) -> StrategyFacts:
        return facts_of(self)

    # ------------------------------------------------------------------------------------------- rounds

    def start(self, fleet: Fleet) -> tuple[SequentialState, Commands]:
        s = self.State(Crew.of(fleet), now=fleet.time, before=fleet.rounds)
        return s, self._begin(s)

    def _begin(self, s: SequentialState) -> list[Command]:
        """Start the next round that has something to do."""
        while True:
            t = s.round
            if self.limit and t >= self.limit + self.T:
                return [Stop(f"all {self.limit} jobs are done")]
            if not self._skips(s, t):
                break
            s.durations.append(0.0)
            self._finish_round(s, 0)
        s.began, s.cut = s.now, float("inf")
        s.task = {worker: task for worker, task in s.task.items() if task in s.behind}
        s.missing = {task: s.missing[task] for task in s.behind}
        s.done, s.crew.failures, s.waiting = [], {}, False
        s.assigned = self._assign(s, t)
        return s.crew.stop_if_hopeless() or self._dispatch(s, sorted(s.crew.present - s.task.keys()))

    def _dispatch(self, s: SequentialState, workers: Sequence[int]) -> list[Command]:
        if not workers:
            return []
        first = s.crew.number(len(workers))
        for task, worker in enumerate(workers, first):
            work = s.assigned[worker]
            s.task[worker] = task
            s.work[task], s.missing[task] = list(work), set(range(max(1, len(work))))
        tasks = [self._task(s, worker) for worker in workers]
        return [Dispatch(first, tuple(workers), tasks, round=s.before + s.round)]

    def on(self, state: SequentialState, event: Event) -> Commands:
        state.now = event.time
        return super().on(state, event)

    def on_reply(self, state: SequentialState, event: Reply) -> Commands:
        s, missing = state, state.missing.get(event.task)
        if missing is None:
            return ()
        missing.discard(event.chunk)
        if missing:
            return ()
        del s.missing[event.task]
        if event.task in s.behind:
            return self._catch_up(s, event.worker, event.task)
        s.done.append(event.worker)
        return self._look(s, first=len(s.done) == 1)

    def on_alarm(self, state: SequentialState, event: Alarm) -> Commands:
        s, late = state, self._without(state.done)
        if self._enough(s, late):
            return self._end(s, late)
        s.waiting = True
        s.rounds_waited += 1
        return self._look(s)

    def on_failed(self, state: SequentialState, event: Failed) -> Commands:
        s, task, worker = state, event.task, event.worker
        if task not in s.missing:
            return ()
        behind = task in s.behind
        self._drop(s, task)
        if not behind:
            s.crew.fail(worker, task)
        commands = self._dispatch(s, [worker]) if behind or s.crew.able(worker) else self._look(s)
        return [Cancel((task,)), *commands]

    def worker_returned(self, state: SequentialState, worker: int) -> Commands:
        return self._look(state) if worker in state.done else self._dispatch(state, [worker])

    def worker_left(self, state: SequentialState, worker: int) -> Commands:
        s, task = state, state.task.get(worker, -1)
        dropped: list[Command] = []
        if task in s.missing:
            self._drop(s, task)
            dropped = [Cancel((task,))]  # messages of it that have arrived are not used
        return super().worker_left(s, worker) or dropped + self._look(s)

    def _drop(self, s: SequentialState, task: int) -> None:
        """Forget a task under way."""
        del s.missing[task]
        s.work.pop(task, None)
        s.behind.discard(task)

    def _catch_up(self, s: SequentialState, worker: int, task: int) -> list[Command]:
        """Count the messages of a task of an earlier round, and let its worker join the round under way."""
        s.behind.discard(task)
        self._take(s, worker, task)
        if self._may_end(s) and self._enough(s, self._without(s.done)):  # its messages may have been missing
            return self._end(s, self._without(s.done))
        s.assigned[worker] = self._assign(s, s.round)[worker]  # without the pieces that have arrived
        return self._dispatch(s, [worker])

    # ------------------------------------------------------------------------------------------- the end of a round

    def _fits(self, s: Any, late: int) -> bool:
        """Return whether these stragglers of the current round, after the past ones, fit the straggler model."""
        model = self._tolerance()
        for past in s.late:
            model.note(as_bits(past))
        return model.fits(late)

    @abstractmethod
    def _feasible(self, s: Any, late: int) -> bool:
        """Return whether every job can still be done in time if these workers straggle now and none does later."""

    def _look(self, s: SequentialState, *, first: bool = False) -> list[Command]:
        """End the round after a completion or a loss if it may end, and the run if the round can never end."""
        if len(s.done) < self.workers and s.missing and not self._may_end(s) and not first:
            return []
        late = self._without(s.done)
        if not late or (self._may_end(s) and self._enough(s, late)):
            return self._end(s, late)
        if first:
            s.cut = (1.0 + self.mu) * (s.now - s.began)
            # a worker that completes at the cut-off itself is in time
            return [SetAlarm(_ALARM, nextafter(s.began + s.cut, float("inf")))]
        if s.missing or not s.crew.complete:
            return []
        # no worker is left to wait for: the round ends if the stragglers fit, even before its cut-off
        if self._feasible(s, late) if self.waits == "feasible" else self._fits(s, late):
            return self._end(s, late)
        names = ", ".join(map(str, workers_in(late)[:10]))
        reason = f"round {s.round} of '{self.spec}' cannot end: workers {names} give nothing, more than it tolerates"
        return [Stop(reason, failed=True)]

    def _may_end(self, s: SequentialState) -> bool:
        """Return whether a round may now end without all workers."""
        return s.waiting or (self.end == "decodable" and bool(s.done))

    def _enough(self, s: SequentialState, late: int) -> bool:
        """Return whether a round may end with these stragglers."""
        if self.waits == "feasible":
            return self._feasible(s, late)
        return (self.waits == "minimal" or not s.waiting) and self._fits(s, late)

    def _end(self, s: SequentialState, late: int) -> list[Command]:
        """End the round: take the steps of the jobs that are done, and start the next round."""
        if self.limit:  # without an end they would fill the memory
            seconds = s.now - s.began
            s.durations.append(seconds if s.waiting else min(seconds, s.cut))
        for worker in sorted(s.done):
            self._take(s, worker, s.task[worker])
        steps = self._steps(s)
        commands = [SetAlarm(_ALARM, None), *self._drop_late(s), *steps]
        t, due = s.round, s.combined
        if due <= t - self.T and not (self.limit and due >= self.limit):
            reason = f"job {due} of '{self.spec}' is not done after round {t}: the stragglers were outside of its model"
            return [*commands, Stop(reason, failed=True)]
        for old in [r for r in s.reusable if r <= t - self.T]:
            commands.append(Cancel(tuple(s.reusable.pop(old))))  # no job needs their other messages
        self._finish_round(s, late)
        return commands + self._begin(s)

    def _drop_late(self, s: SequentialState) -> list[Command]:
        """Forget the tasks under way, unless their workers are to continue with them for a job that is not done."""
        if self.late == "keep":
            s.behind = {task for task in s.missing if any(job >= s.combined for job, _ in s.work[task])}
        dropped = sorted(s.missing.keys() - s.behind)
        for task in dropped:
            s.work.pop(task)
        return [Cancel(tuple(dropped))] if dropped else []

    def _finish_round(self, s: SequentialState, late: int) -> None:
        """Note the stragglers of a round that has ended, and forget stragglers too long ago to matter."""
        s.late = [*s.late, workers_in(late)][-self._tolerance().window :]
        s.round += 1


@dataclass(frozen=True, repr=False, kw_only=True)
class ForBursts(SequentialRounds):
    """Schemes for bursty stragglers: in any W rounds at most lambda workers straggle, each for at most B in a row."""

    _own_settings = ("B", "W", "lambda_"), ("late",)

    B: int
    W: int
    lambda_: int
    late: Late = "drop"  # a setting of these schemes only

    def __post_init__(self) -> None:
        check_range(f"B of '{self.name}'", self.B, 1, self.W - 1, f" (W - 1, W = {self.W})")
        check_range(f"lambda of '{self.name}'", self.lambda_, 0, self.workers, " workers")
        super().__post_init__()

    def _tolerance(self) -> Tolerance:
        return Tolerance(self.lambda_, self.groups, self.B, self.W)
