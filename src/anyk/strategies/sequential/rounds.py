"""The common part of the sequential codes: rounds, the waiting rule, and when a job is done."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from math import nextafter
from typing import Any, ClassVar, Literal

import numpy as np

from anyk.checks import AtLeastZero
from anyk.codes import Code
from anyk.codes.decoders import Floats
from anyk.errors import BadInput
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Combine,
    Command,
    Commands,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Pace,
    Reply,
    SetAlarm,
    Stop,
    Strategy,
    StrategyFacts,
    Task,
    slot_names,
)
from anyk.strategies.crew import Crew, CrewStrategy
from anyk.strategies.ranges import FiniteOrZero
from anyk.strategies.sequential.inner import Flags, Inner
from anyk.strategies.sequential.jobs import Place, SequentialState, Work
from anyk.strategies.sequential.replay import Decided, End, KnownRounds, bits_of

_ALARM = "cut-off"
Waiting = Literal["all", "minimal", "feasible"]
Late = Literal["drop", "keep"]
DEFAULTS: dict[str, Any] = {
    "end": "cutoff",
    "mu": 1.0,
    "models": None,
    "jobs": 0,
    "batch": 0,
    "inner": "auto",
    "strict": False,
    "late": "drop",
}


@dataclass(frozen=True, repr=False)
class SequentialRounds(CrewStrategy):
    """The common part of the sequential codes: rounds, the waiting rule, and when a job is done.

    ``models``: M, at least T + 1 (the default). ``jobs``: how many there are in all, so that the last rounds carry no
    new ones (0: no end).

    ``end`` says when a round may end: with ``cutoff`` at ``1 + mu`` times its first completion, with ``decodable`` as
    soon as those who are not done fit the straggler model, and so every job that is due has its sum. Whoever is not
    done then has straggled, so that an early end leaves less of the model for the rounds that follow.

    Where those late at the cut-off do not fit, ``wait`` says for whom to wait: ``all`` (the default with ``cutoff``),
    ``minimal`` (in order of arrival, until the rest fits; the default with ``decodable``) or ``feasible`` (whatever the
    model, until every job could still be done if nobody straggled any more; at any time in place of the model).

    ``inner`` is the code within a job. In the straggler model of ``frc`` groups count as such: any workers may be
    missing that leave one of each group. With ``auto`` (``frc`` where it fits, else ``cyclic``) they do so with
    ``end=decodable``, while ``end=cutoff`` goes by the number of workers only, as published.

    ``late`` says what becomes of a straggler's task when its round ends. ``drop``: it is cut off, its messages are
    dropped, and the worker takes part in the next round. ``keep``: if a job in it is not done yet, the worker goes on
    with it, and only when it has ended it is given a task again, that of the round then under way: rounds in between
    pass without it, there is never a queue. When the last message of such a task has come, all of them count for jobs
    not done by then, and what came is not tried again. In the straggler model it has straggled in every round that
    ended before it had ended its task of that round, whatever came late.

    A worker that is lost is a straggler; when the others are not enough the round waits until it is back.
    """

    State: ClassVar[type[Any]] = SequentialState
    name: ClassVar[str]

    workers: int
    _: KW_ONLY
    end: End = "cutoff"
    mu: FiniteOrZero = 1.0
    wait: Waiting | None = None
    inner: str = "auto"
    models: int | None = None
    jobs: AtLeastZero = 0
    batch: AtLeastZero = 0
    _planned: int = field(default=0, init=False, compare=False)  # jobs of the run, where ``jobs`` says nothing

    def __post_init__(self) -> None:
        least = self.T + 1
        if self.trained < least:
            raise BadInput(f"'{self.name}' needs models >= {least} (each job spans {least} rounds), got {self.trained}")

    # ------------------------------------------------------------------------------------------- settings

    @property
    def late(self) -> Late:
        """The fate of a straggler's task when its round ends."""
        return "drop"

    @property
    @abstractmethod
    def T(self) -> int:
        """Rounds after its own by whose end a job is done."""

    @property
    @abstractmethod
    def load(self) -> float:
        """The share of the data that a worker computes in a round."""

    @property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(
            exact=True,  # a job is done when its sum can be had
            models=self.trained,
            shares_computed=(self.load,) * self.workers,
            vectors_sent=2.0 * self.workers,
            # a job begins when the step before it on its model has been taken: there is no staleness
            pace=lambda delays: Pace(None, 0.0, "no closed form; simulate"),
            durations=self._durations,
            for_jobs=self._for_jobs,
            extra_rounds=self.T,
            round_seconds=lambda state: (state.durations, state.waits),
            check_further=self._check_further,
        )

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """The workers that may be missing from a sum, whoever they are."""

    @property
    def waits(self) -> Waiting:
        """For whom a round waits after its cut-off."""
        return self.wait or self.usual_wait

    @property
    def usual_wait(self) -> Waiting:
        """The value of ``wait`` if it is left out."""
        return "all" if self.end == "cutoff" else "minimal"

    @cached_property
    def within(self) -> Inner:
        """The code within a job, and which workers it bears to miss."""
        return Inner(self.inner, self.workers, self.tolerated, self.inner == "frc" or self.end == "decodable")

    @property
    def code(self) -> Code:
        """The code within a job."""
        return self.within.code

    @property
    def trained(self) -> int:
        """M, the number of models."""
        return self.T + 1 if self.models is None else self.models

    @property
    def limit(self) -> int:
        """The number of jobs in all; 0: no end."""
        return self.jobs or self._planned

    def planned(self, steps: int | None) -> Strategy:
        """The rounds of a run in which no job begins that is beyond so many steps of each model."""
        strategy = copy.copy(self)
        object.__setattr__(strategy, "_planned", 0 if steps is None else steps * self.trained)
        return strategy

    def _for_jobs(self, jobs: int) -> Strategy:
        return replace(self, jobs=jobs)

    def _durations(self, seconds: Floats, whole: Floats) -> Floats | None:
        """Seconds of rounds without an end of jobs."""
        if self.waits != self.usual_wait or self.late != "drop":
            return None
        groups = self.within.group_of
        decided = self._replayed(KnownRounds(seconds, self.mu), [] if groups is None else bits_of(groups.tolist()))
        return np.array([round_seconds for round_seconds, _ in decided])

    @abstractmethod
    def _replayed(self, known: KnownRounds, groups: list[int]) -> Decided:
        """The rounds on known times."""

    def _check_further(self, state: Any, steps: int, begun: int) -> None:
        """Raise if a state, saved in a run planned for ``steps`` steps, has begun rounds without further jobs."""
        if state.round >= (steps - begun) * self.trained:
            raise BadInput(
                f"the run was planned for {steps} steps of each model, and its last rounds started no further jobs; "
                "start a new one from it: anyk train --from FOLDER, or train_many(begin=…)"
            )

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The models."""
        return slot_names(self.trained)

    def slot(self, job: int) -> str:
        """The model that a job is a step of."""
        return self.slots[job % self.trained]

    # ------------------------------------------------------------------------------------------- what a scheme is

    @abstractmethod
    def _assign(self, s: Any, t: int) -> list[Work]:
        """For each worker the (job, piece) pairs of round t; decided from what was delivered before it."""

    @abstractmethod
    def _rows(self, worker: int, piece: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Partitions and coefficients of a piece of a worker's."""

    @abstractmethod
    def _deliver(self, s: Any, worker: int, job: int, piece: int, place: Place) -> None:
        """A worker has completed its round, and with it this piece of a job."""

    @abstractmethod
    def _job_done(self, s: Any, job: int) -> bool:
        """Whether a job's sum can be had."""

    @abstractmethod
    def _job_sum(self, s: Any, job: int) -> tuple[list[Place], list[float], float, float]:
        """Messages and weights that give a job's sum, its residual and gain; and forget the job."""

    @abstractmethod
    def _fits(self, s: Any, late: Flags) -> bool:
        """Whether these stragglers of the current round, after those of the past, are within the straggler model."""

    @abstractmethod
    def _feasible(self, s: Any, late: Flags) -> bool:
        """Whether every job can still be done in time if these straggle now and nobody later."""

    def _skips(self, s: Any, t: int) -> bool:
        """Whether nothing is left to do in round t."""
        return False

    @abstractmethod
    def _end_round(self, s: Any, late: Flags) -> None:
        """Note what a scheme needs to know of a round that ends."""

    # ------------------------------------------------------------------------------------------- rounds

    def start(self, fleet: Fleet) -> tuple[Any, Commands]:
        s = self.State(Crew.of(fleet), now=fleet.time, before=fleet.rounds)
        return s, self._begin(s)

    def _begin(self, s: SequentialState) -> list[Command]:
        """The next round that has something to do."""
        while True:
            t = s.round
            if self.limit and t >= self.limit + self.T:
                return [Stop(f"all {self.limit} jobs are done")]
            if not self._skips(s, t):
                break
            s.durations.append(0.0)
            self._finish_round(s, np.zeros(self.workers, dtype=bool))
        s.began, s.cut = s.now, float("inf")
        s.worker = {task: s.worker[task] for task in sorted(s.behind)}
        s.task = {worker: task for task, worker in s.worker.items()}
        s.missing = {task: s.missing[task] for task in s.worker}
        s.done, s.crew.failures, s.waiting = [], {}, False
        s.assigned = self._assign(s, t)
        if s.crew.hopeless:
            return s.crew.stop_if_hopeless()
        return self._dispatch(s, sorted(s.crew.present - s.task.keys()))

    def _dispatch(self, s: SequentialState, workers: Sequence[int]) -> list[Command]:
        if not workers:
            return []
        first = s.crew.number(len(workers))
        tasks: list[Task] = []
        for task, worker in enumerate(workers, first):
            work = s.assigned[worker]
            s.task[worker], s.worker[task] = task, worker
            s.work[task], s.missing[task] = list(work), set(range(max(1, len(work))))
            chunks = [Chunk(*self._rows(worker, piece), slot=self.slot(job), batch=self.batch) for job, piece in work]
            tasks.append(tuple(chunks) or (Chunk((), (), slot=self.slot(s.round), batch=self.batch),))
        return [Dispatch(first, tuple(workers), tasks, round=s.before + s.round)]

    def on(self, state: Any, event: Event) -> Commands:
        state.now = event.time
        return super().on(state, event)

    def on_reply(self, state: Any, event: Reply) -> Commands:
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

    def on_alarm(self, state: Any, event: Alarm) -> Commands:
        s, late = state, self._late_now(state)
        if self._enough(s, late):
            return self._end(s, late)
        s.waiting = True
        s.waits += 1
        return self._look(s)

    def on_failed(self, state: Any, event: Failed) -> Commands:
        s, task, worker = state, event.task, event.worker
        if s.missing.pop(task, None) is None:
            return ()
        s.work.pop(task, None)
        behind = task in s.behind
        s.behind.discard(task)
        if not behind:
            s.crew.fail(worker, task)
        again = self._dispatch(s, [worker]) if behind or s.crew.able(worker) else self._look(s)
        return [Cancel((task,)), *again]

    def worker_returned(self, state: Any, worker: int) -> Commands:
        return self._look(state) if worker in state.done else self._dispatch(state, [worker])

    def worker_left(self, state: Any, worker: int) -> Commands:
        s, task = state, state.task.get(worker)
        dropped: list[Command] = []
        if task is not None and task in s.missing:
            s.missing.pop(task)
            s.work.pop(task, None)
            s.behind.discard(task)
            dropped = [Cancel((task,))]  # what has come of it is not used
        return super().worker_left(s, worker) or dropped + self._look(s)

    def _catch_up(self, s: SequentialState, worker: int, task: int) -> list[Command]:
        """A worker has ended its task of an earlier round: what it gives counts, and it joins the round under way."""
        s.behind.discard(task)
        self._take(s, worker, task)
        if self._may_end(s) and self._enough(s, self._late_now(s)):  # it may have been what was missing
            return self._end(s, self._late_now(s))
        s.assigned[worker] = self._assign(s, s.round)[worker]  # which need not try again what has come
        return self._dispatch(s, [worker])

    def _take(self, s: SequentialState, worker: int, task: int) -> None:
        """The messages of a task that is complete count for the jobs that are not done."""
        s.reusable.setdefault(s.round, []).append(task)
        for chunk, (job, piece) in enumerate(s.work.pop(task)):
            if job >= s.combined:
                self._deliver(s, worker, job, piece, (task, chunk))

    def _look(self, s: SequentialState, *, first: bool = False) -> list[Command]:
        """After a completion or a loss: has the round ended, or can it never?"""
        if len(s.done) < self.workers and s.missing and not self._may_end(s) and not first:
            return []
        late = self._late_now(s)
        if not late.any() or (self._may_end(s) and self._enough(s, late)):
            return self._end(s, late)
        if first:
            s.cut = (1.0 + self.mu) * (s.now - s.began)
            # who completes at the cut-off itself is in time
            return [SetAlarm(_ALARM, nextafter(s.began + s.cut, float("inf")))]
        if s.missing or not s.crew.complete:
            return []
        # nobody is left to wait for: what fits will have to do, whether or not the cut-off has passed
        if self._feasible(s, late) if self.waits == "feasible" else self._fits(s, late):
            return self._end(s, late)
        names = ", ".join(map(str, np.flatnonzero(late)[:10]))
        why = f"round {s.round} of '{self.spec}' cannot end: workers {names} give nothing, which is more than it bears"
        return [Stop(why, failed=True)]

    def _late_now(self, s: SequentialState) -> Flags:
        return self._without(s.done)

    def _without(self, workers: Iterable[int]) -> Flags:
        """Return flags of all other workers."""
        missing = np.ones(self.workers, dtype=bool)
        missing[list(workers)] = False
        return missing

    def _may_end(self, s: SequentialState) -> bool:
        """Whether a round may end without everybody, now that someone is done."""
        return s.waiting or (self.end == "decodable" and bool(s.done))

    def _enough(self, s: SequentialState, late: Flags) -> bool:
        """Whether a round may end with these stragglers."""
        if self.waits == "feasible":
            return self._feasible(s, late)
        if self.waits == "minimal" or not s.waiting:
            return self._fits(s, late)
        return False

    def _end(self, s: SequentialState, late: Flags) -> list[Command]:
        if self.limit:  # of a run without an end they would be too many to keep
            seconds = s.now - s.began
            s.durations.append(seconds if s.waiting else min(seconds, s.cut))
        for worker in sorted(s.done):
            self._take(s, worker, s.task[worker])
        t = s.round
        done = s.combined
        sums: list[Command] = []
        while (not self.limit or done < self.limit) and done <= t and self._job_done(s, done):
            messages, weights, residual, gain = self._job_sum(s, done)
            sums.append(Combine(self.slot(done), messages, weights, "all", 1.0, residual, gain))
            done += 1
        under_way = [task for task in s.worker if task in s.missing]
        if self.late == "keep":
            s.behind = {task for task in under_way if any(job >= done for job, _ in s.work[task])}
        dropped = [task for task in under_way if task not in s.behind]
        for task in dropped:
            s.work.pop(task)
        commands: list[Command] = [SetAlarm(_ALARM, None)]
        if dropped:
            commands.append(Cancel(tuple(dropped)))
        commands += sums
        if done <= t - self.T and not (self.limit and done >= self.limit):
            why = f"job {done} of '{self.spec}' is not done after round {t}: the stragglers were outside of its model"
            return [*commands, Stop(why, failed=True)]
        s.combined = done
        for old in [r for r in s.reusable if r <= t - self.T]:
            commands.append(Cancel(tuple(s.reusable.pop(old))))  # nobody needs the rest of their messages
        self._finish_round(s, late)
        return commands + self._begin(s)

    def _finish_round(self, s: SequentialState, late: Flags) -> None:
        self._end_round(s, late)
        s.late.append(np.flatnonzero(late).tolist())
        s.round += 1

    def _in(self, s: SequentialState, rounds: range) -> Flags:
        """The workers that straggled in any of these past rounds."""
        flags = np.zeros(self.workers, dtype=bool)
        first = s.round - len(s.late)
        for r in rounds:
            if first <= r < s.round:
                flags[s.late[r - first]] = True
        return flags

    def _forget_late(self, s: SequentialState, keep: int) -> None:
        del s.late[: max(0, len(s.late) - keep)]
