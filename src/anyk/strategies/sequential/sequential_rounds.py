"""The common part of the sequential codes: rounds, the rule that ends them, and the jobs that they complete."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property
from math import nextafter
from typing import Any, ClassVar, Literal

import numpy as np

from anyk.arrays import Floats
from anyk.checks import AtLeastZero, NonnegativeNumber, check_range
from anyk.codes import Code, RepetitionCode, code
from anyk.codes.base import Row
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
from anyk.specs import show
from anyk.strategies.crew import Crew, CrewStrategy
from anyk.strategies.sequential.replay import (
    Decided,
    End,
    KnownRounds,
    Tolerance,
    as_bits,
    replay,
    workers_in,
)

_ALARM = "cut-off"
Waiting = Literal["all", "minimal", "feasible"]
Late = Literal["drop", "keep"]
Place = tuple[int, int]  # task and chunk of a message
Work = list[tuple[int, int]]  # (job, piece) pairs
JobSum = tuple[list[Place], list[float], float, float]  # messages, weights, residual and gain


@dataclass(slots=True)
class SequentialState:
    """The rounds of a run: the assignment of pieces of jobs to workers, and the stragglers."""

    crew: Crew
    now: float
    before: int = 0  # rounds that an earlier run took
    round: int = 0
    waits: int = 0  # number of rounds whose late workers at the cut-off did not fit
    durations: list[float] = field(default_factory=list)  # seconds of each round, if the number of jobs is limited
    began: float = 0.0
    cut: float = float("inf")  # seconds from the start of the round to its cut-off, once known
    task: dict[int, int] = field(default_factory=dict)  # worker -> its newest task, of this round or one that continues
    work: dict[int, Work] = field(default_factory=dict)  # task -> (job, piece) of each chunk, until counted
    missing: dict[int, set[int]] = field(default_factory=dict)  # task under way -> chunks that have not arrived
    behind: set[int] = field(default_factory=set)  # tasks under way of earlier rounds
    done: list[int] = field(default_factory=list)  # workers that have completed this round, in order
    waiting: bool = False  # whether the cut-off of this round has passed without fitting
    late: list[list[int]] = field(default_factory=list)  # stragglers of the last rounds that count, newest last
    # round -> completed tasks whose messages may still be used
    reusable: dict[int, list[int]] = field(default_factory=dict)
    combined: int = 0  # number of jobs done; they are done in order
    assigned: list[Work] = field(default_factory=list)  # (job, piece) pairs of this round, by worker


@dataclass(frozen=True, repr=False)
class SequentialRounds(CrewStrategy[SequentialState]):
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

    State: ClassVar[type[Any]] = SequentialState
    name: ClassVar[str]
    _own_settings: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]  # before and after those of waiting in the spec

    workers: int
    _: KW_ONLY
    end: End = "cutoff"
    mu: NonnegativeNumber = 1.0
    wait: Waiting | None = None
    inner: str = "auto"
    models: int | None = None
    jobs: AtLeastZero = 0
    batch: AtLeastZero = 0
    _planned: int = field(default=0, init=False, compare=False)  # jobs of the run if ``jobs`` is 0

    def __post_init__(self) -> None:
        least = self.T + 1
        if self.trained < least:
            raise BadInput(f"'{self.name}' needs models >= {least} (each job spans {least} rounds), got {self.trained}")

    # ------------------------------------------------------------------------------------------- settings

    @property
    def late(self) -> Late:
        """Fate of a straggler's task when its round ends."""
        return "drop"

    @property
    @abstractmethod
    def T(self) -> int:
        """Number of rounds after its own that a job may take."""

    @property
    @abstractmethod
    def load(self) -> float:
        """Share of the data that a worker computes in a round."""

    @property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(
            exact=True,
            models=self.trained,
            shares_computed=(self.load,) * self.workers,
            vectors_sent=2.0 * self.workers,
            # a job starts after the step before it on its model, so staleness is 0
            pace=lambda delays: Pace(None, 0.0, "no closed form; simulate"),
            durations=self._durations,
            for_jobs=lambda jobs: replace(self, jobs=jobs),
            extra_rounds=self.T,
            round_seconds=lambda state: (state.durations, state.waits),
            check_further=self._check_further,
        )

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """Number of workers that may be missing from a sum, whichever they are."""

    @cached_property
    def spec(self) -> str:
        first, then = ({name.rstrip("_"): vars(self)[name] for name in names} for names in self._own_settings)
        values = {**first, "end": self.end, "mu": self.mu, "wait": self.waits, **then, "inner": self.inner}
        values |= {"models": self.trained, "jobs": self.jobs, "batch": self.batch}
        usual = {f.name: f.default for f in fields(self)} | {"wait": self.usual_wait, "models": self.T + 1}
        return show(self.name, values, usual)

    @property
    def waits(self) -> Waiting:
        """Rule for the workers that are late at the cut-off."""
        return self.wait or self.usual_wait

    @property
    def usual_wait(self) -> Waiting:
        """Default of ``wait``."""
        return "all" if self.end == "cutoff" else "minimal"

    @cached_property
    def code(self) -> Code:
        """The code within a job, from which any ``tolerated`` workers may be missing."""
        n, s, name = self.workers, self.tolerated, self.inner
        if name == "auto":
            name = "cyclic" if n % (s + 1) else "frc"
        inner = code(f"{name}:stragglers={s}", workers=n)
        if inner.tolerates < s or inner.partitions != n or inner.messages != 1 or inner.blocks != 1:
            raise BadInput(f"inner={name} has no code of {n} partitions that tolerates {s} of {n} workers")
        return inner

    @cached_property
    def groups(self) -> list[int]:
        """Groups of workers, as bits, if one worker of each is enough; none if only the number of stragglers counts."""
        if (self.inner == "frc" or self.end == "decodable") and isinstance(self.code, RepetitionCode):
            return list(map(as_bits, self.code.members))
        return []

    def _decodes_without(self, missing: int) -> bool:
        """Return whether the sum under the code is available without these workers."""
        return Tolerance(self.tolerated, self.groups).fits(missing)

    @property
    def trained(self) -> int:
        """Number of models, M."""
        return self.T + 1 if self.models is None else self.models

    @property
    def limit(self) -> int:
        """Total number of jobs; 0: no end."""
        return self.jobs or self._planned

    def _decode(self, results: dict[int, Place]) -> JobSum:
        """Return messages, weights, residual and gain of a sum under the code; ``results``: messages by worker."""
        weights, residual, gain = self.code.decode(results)
        used = np.flatnonzero(weights)
        return [results[worker] for worker in used.tolist()], weights[used].tolist(), residual, gain

    def planned(self, steps: int | None) -> Strategy:
        """Return the rounds of a run that starts no job beyond ``steps`` steps of each model."""
        strategy = copy.copy(self)
        object.__setattr__(strategy, "_planned", 0 if steps is None else steps * self.trained)
        return strategy

    def _durations(self, seconds: Floats, whole: Floats) -> Floats | None:
        """Return the seconds of each round of a run without an end."""
        if self.waits != self.usual_wait or self.late != "drop":
            return None
        decided = self._replay_rounds(KnownRounds(seconds, self.mu))
        return np.array([round_seconds for round_seconds, _ in decided])

    def _replay_rounds(self, known: KnownRounds) -> Decided:
        """Return the decisions of rounds whose times are known."""
        return replay(known, known.count, self._tolerance(), self.end)

    def _check_further(self, state: SequentialState, steps: int, begun: int) -> None:
        """Raise BadInput if the last rounds of a state, planned for ``steps`` steps, have started without new jobs."""
        if state.round >= (steps - begun) * self.trained:
            raise BadInput(
                f"the run was planned for {steps} steps of each model, and its last rounds started no further jobs; "
                "start a new one from it: anyk train --from FOLDER, or train_many(begin=…)"
            )

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the models."""
        return slot_names(self.trained)

    def slot(self, job: int) -> str:
        """Return the name of the model that a job updates."""
        return self.slots[job % self.trained]

    # ------------------------------------------------------------------------------------------- what a scheme defines

    @abstractmethod
    def _tolerance(self) -> Tolerance:
        """Return the sets of workers that may straggle, before any round."""

    @property
    @abstractmethod
    def _piece_rows(self) -> Sequence[Sequence[Row]]:
        """Partitions and coefficients of each piece of each worker."""

    @abstractmethod
    def _assign(self, s: Any, t: int) -> list[Work]:
        """Return the (job, piece) pairs of each worker in round t, given the messages delivered before."""

    @abstractmethod
    def _deliver(self, s: Any, worker: int, job: int, piece: int, place: Place) -> None:
        """Note the message of a piece of a job, from a worker that has completed its task."""

    @abstractmethod
    def _job_done(self, s: Any, job: int) -> bool:
        """Return whether a job's sum is available."""

    @abstractmethod
    def _job_sum(self, s: Any, job: int) -> JobSum:
        """Return messages, weights, residual and gain of a job's sum, and forget the job."""

    def _fits(self, s: Any, late: int) -> bool:
        """Return whether these stragglers of the current round, after the past ones, fit the straggler model."""
        model = self._tolerance()
        for past in s.late:
            model.note(as_bits(past))
        return model.fits(late)

    @abstractmethod
    def _feasible(self, s: Any, late: int) -> bool:
        """Return whether every job can still be done in time if these workers straggle now and none does later."""

    def _skips(self, s: Any, t: int) -> bool:
        """Return whether round t has nothing left to do."""
        return False

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
        tasks: list[Task] = []
        for task, worker in enumerate(workers, first):
            work = s.assigned[worker]
            s.task[worker] = task
            s.work[task], s.missing[task] = list(work), set(range(max(1, len(work))))
            chunks = [
                Chunk(*self._piece_rows[worker][piece], slot=self.slot(job), batch=self.batch) for job, piece in work
            ]
            tasks.append(tuple(chunks) or (Chunk((), (), slot=self.slot(s.round), batch=self.batch),))
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
        s.waits += 1
        return self._look(s)

    def on_failed(self, state: SequentialState, event: Failed) -> Commands:
        s, task, worker = state, event.task, event.worker
        if task not in s.missing:
            return ()
        behind = task in s.behind
        self._drop(s, task)
        if not behind:
            s.crew.fail(worker, task)
        again = self._dispatch(s, [worker]) if behind or s.crew.able(worker) else self._look(s)
        return [Cancel((task,)), *again]

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

    def _take(self, s: SequentialState, worker: int, task: int) -> None:
        """Count the messages of a complete task for the jobs that are not done."""
        s.reusable.setdefault(s.round, []).append(task)
        for chunk, (job, piece) in enumerate(s.work.pop(task)):
            if job >= s.combined:
                self._deliver(s, worker, job, piece, (task, chunk))

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
        why = f"round {s.round} of '{self.spec}' cannot end: workers {names} give nothing, more than it tolerates"
        return [Stop(why, failed=True)]

    def _without(self, workers: Iterable[int]) -> int:
        """Return the set of all other workers."""
        return (1 << self.workers) - 1 - as_bits(workers)

    def _may_end(self, s: SequentialState) -> bool:
        """Return whether a round may now end without all workers."""
        return s.waiting or (self.end == "decodable" and bool(s.done))

    def _enough(self, s: SequentialState, late: int) -> bool:
        """Return whether a round may end with these stragglers."""
        if self.waits == "feasible":
            return self._feasible(s, late)
        return (self.waits == "minimal" or not s.waiting) and self._fits(s, late)

    def _end(self, s: SequentialState, late: int) -> list[Command]:
        if self.limit:  # without an end they would fill the memory
            seconds = s.now - s.began
            s.durations.append(seconds if s.waiting else min(seconds, s.cut))
        for worker in sorted(s.done):
            self._take(s, worker, s.task[worker])
        t, done = s.round, s.combined
        sums: list[Command] = []
        while (not self.limit or done < self.limit) and done <= t and self._job_done(s, done):
            messages, weights, residual, gain = self._job_sum(s, done)
            sums.append(Combine(self.slot(done), messages, weights, "all", 1.0, residual, gain))
            done += 1
        if self.late == "keep":
            s.behind = {task for task in s.missing if any(job >= done for job, _ in s.work[task])}
        dropped = sorted(s.missing.keys() - s.behind)
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
            commands.append(Cancel(tuple(s.reusable.pop(old))))  # no job needs their other messages
        self._finish_round(s, late)
        return commands + self._begin(s)

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
