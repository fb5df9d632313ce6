"""Coding over time: gradient codes across workers and rounds, for stragglers that come in bursts.

Job t, a step of model t mod M, begins in round t and is done by the end of round t + T. In a round every worker gets
one task; whoever is not done by ``1 + mu`` times the fastest is a straggler, if the code can do with that.
(Krishnan, Ebrahimi and Khisti, *Sequential gradient coding for straggler mitigation*, ICLR 2023.)
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import nextafter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.codes import Code, code
from anyk.errors import BadInput
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Combine,
    Command,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Joined,
    Layout,
    Lost,
    Reply,
    SetAlarm,
    Stop,
    Task,
    slot_names,
    strategy_text,
)
from anyk.specs import show

Waiting = Literal["all", "minimal", "feasible"]
Late = Literal["drop", "keep"]
Flags = NDArray[np.bool_]
Place = tuple[int, int]  # task and chunk of a message
_ALARM = "cut-off"
_RETRIES = 2  # how often a worker whose message was unusable is asked again in a round


@lru_cache(maxsize=64)
def _inner(name: str, workers: int, tolerates: int) -> Code:
    """The code within a job: any ``tolerates`` workers may be missing, each holds one partition more than that."""
    if name == "auto":
        name = "frc" if workers % (tolerates + 1) == 0 else "cyclic"
    made = code(f"{name}:stragglers={tolerates}", workers=workers)
    if made.tolerates < tolerates or made.partitions != workers or made.messages != 1 or made.blocks != 1:
        raise BadInput(
            f"inner={name} has no code of {workers} partitions that tolerates {tolerates} of {workers} workers"
        )
    return made


class SequentialRounds(ABC):
    """What the sequential codes share: rounds, the waiting rule, and when a job is done.

    ``models``: M, at least T + 1 (the default). ``mu``: the cut-off of a round is at ``1 + mu`` times its first
    completion. Where those who are late then do not fit the straggler model, ``wait`` says for whom to wait: ``all``,
    ``minimal`` (in order of arrival, until the rest fits) or ``feasible`` (whatever the model, until every job could
    still be done if nobody straggled any more). ``jobs``: how many
    there are in all, so that the last rounds carry no new ones (0: no end).

    ``late`` says what becomes of a straggler's task when its round ends. ``drop``: it is cut off, its messages are
    dropped, and the worker takes part in the next round. ``keep``: if a job in it is not done yet, the worker goes on
    with it, and only when it has ended it is given a task again, that of the round then under way: rounds in between
    pass without it, there is never a queue. When the last message of such a task has come, all of them count for jobs
    not done by then, and what came is not tried again. In the straggler model it has straggled in every round that
    ended before it had ended its task of that round, whatever came late.

    A worker that is lost is a straggler; when the others are not enough the round waits until it is back.
    """

    shares: tuple[int, ...] | None = None
    T: int
    load: float
    name: str

    def __repr__(self) -> str:
        return strategy_text(self)

    def __init__(
        self,
        workers: int,
        *,
        delay: int,
        mu: float,
        wait: Waiting,
        models: int | None,
        jobs: int,
        batch: int,
        late: Late = "drop",
    ) -> None:
        if not 0.0 <= mu < float("inf"):
            raise BadInput(f"mu of '{self.name}' must be at least 0, got {mu:g}")
        if wait not in ("all", "minimal", "feasible"):
            raise BadInput(f"wait of '{self.name}' must be all, minimal or feasible, got {wait!r}")
        if late not in ("drop", "keep"):
            raise BadInput(f"late of '{self.name}' must be drop or keep, got {late!r}")
        models = delay + 1 if models is None else models
        if models < delay + 1:
            raise BadInput(
                f"a job of '{self.name}' takes up to {delay + 1} rounds, and a model's next begins after it: train at "
                f"least {delay + 1} models at once, got {models}"
            )
        if jobs < 0 or batch < 0:
            raise BadInput(f"jobs and batch of '{self.name}' must be at least 0, got jobs={jobs}, batch={batch}")
        self.workers, self.T, self.mu, self.wait, self.models = workers, delay, mu, wait, models
        self.jobs, self.batch, self.late = jobs, batch, late
        self._given_jobs = jobs
        self.slots = slot_names(models)
        # what changes:
        self.round = 0
        self.waits = 0  # rounds in which those late at the cut-off did not fit
        self.durations: list[float] = []
        self._next = 0
        self._began = self._now = 0.0
        self._cut = float("inf")  # seconds from a round's beginning to its cut-off, once that is known
        self._present: set[int] = set()
        self._gone: set[int] = set()
        self._task: dict[int, int] = {}  # worker -> its newest task, of this round or one that goes on
        self._worker: dict[int, int] = {}  # and back
        self._work: dict[int, list[tuple[int, int]]] = {}  # task -> (job, piece) of each of its chunks, until used up
        self._left: dict[int, set[int]] = {}  # task under way -> chunks that have not come
        self._behind: set[int] = set()  # those of them that are of earlier rounds
        self._done: list[int] = []  # workers that have completed this round, in order
        self._failures: dict[int, int] = {}
        self._waiting = False  # whether the cut-off of this round has passed without fitting
        self._late: list[list[int]] = []  # stragglers of the last rounds, newest last
        self._kept: dict[int, list[int]] = {}  # round -> completed tasks whose messages may still be used
        self._combined = 0  # jobs done, which is in order
        self._assigned: list[list[tuple[int, int]]] = []  # (job, piece) pairs of this round, by worker
        self._before = 0  # rounds of the run that this one goes on from
        self._blank: dict[str, Any] | None = None  # the state before the first start

    def plan(self, steps: int | None) -> None:
        """Let no job begin that is beyond so many steps of each model, where ``jobs`` says nothing else."""
        if not self._given_jobs:
            self.jobs = 0 if steps is None else steps * self.models

    def check_further(self, planned: int, saved: Mapping[str, Any], begun: int = 0) -> None:
        """Raise where a state, saved in a run planned for other steps, has begun rounds without further jobs."""
        if saved["round"] >= (planned - begun) * self.models:
            raise BadInput(
                f"the run was planned for {planned} steps of each model, and its last rounds began no further jobs; "
                "begin a new one where it stands: anyk train --from FOLDER, or train_many(begin=…)"
            )

    # ------------------------------------------------------------------------------------------- what a scheme is

    @property
    @abstractmethod
    def partitions(self) -> int:
        """m."""

    @property
    @abstractmethod
    def assignment(self) -> Sequence[tuple[int, ...]]:
        """The partitions of each worker."""

    @property
    def layout(self) -> Layout:
        """See :class:`~anyk.protocol.Strategy`."""
        return Layout(self.workers, self.partitions, self.assignment, self.slots, shares=self.shares)

    @property
    @abstractmethod
    def spec(self) -> str:
        """The short form."""

    @abstractmethod
    def _assign(self, t: int) -> list[list[tuple[int, int]]]:
        """For each worker the (job, piece) pairs of round t; decided from what was delivered before it."""

    @abstractmethod
    def _rows(self, worker: int, piece: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Partitions and coefficients of a piece of a worker's."""

    @abstractmethod
    def _deliver(self, worker: int, job: int, piece: int, place: Place) -> None:
        """A worker has completed its round, and with it this piece of a job."""

    @abstractmethod
    def _job_done(self, job: int) -> bool:
        """Whether a job's sum can be had."""

    @abstractmethod
    def _job_sum(self, job: int) -> tuple[list[Place], list[float], float, float]:
        """Messages and weights that give a job's sum, its residual and gain; and forget the job."""

    @abstractmethod
    def _fits(self, late: Flags) -> bool:
        """Whether these stragglers of the current round, after those of the past, are within the straggler model."""

    @abstractmethod
    def _feasible(self, late: Flags) -> bool:
        """Whether every job can still be done in time if these straggle now and nobody later."""

    def _skips(self, t: int) -> bool:
        """Whether nothing is left to do in round t."""
        del t
        return False

    @abstractmethod
    def _end_round(self, late: Flags) -> None:
        """Note what a scheme needs to know of a round that ends."""

    # ------------------------------------------------------------------------------------------- rounds

    def slot(self, job: int) -> str:
        """The model that a job is a step of."""
        return self.slots[job % self.models]

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if self._blank is None:
            self._blank = copy.deepcopy(self.state())
        else:  # used before
            self.restore(copy.deepcopy(self._blank))
        self._present, self._gone, self._now = set(fleet.present), set(), fleet.time
        self._before = fleet.rounds
        return self._begin()

    def _begin(self) -> list[Command]:
        """The next round that has something to do."""
        while True:
            t = self.round
            if self.jobs and t >= self.jobs + self.T:
                return [Stop(f"all {self.jobs} jobs are done")]
            if not self._skips(t):
                break
            self.durations.append(0.0)
            self._finish_round(np.zeros(self.workers, dtype=bool))
        self._began, self._cut = self._now, float("inf")
        self._worker = {task: self._worker[task] for task in sorted(self._behind)}
        self._task = {worker: task for task, worker in self._worker.items()}
        self._left = {task: self._left[task] for task in self._worker}
        self._done, self._failures, self._waiting = [], {}, False
        self._assigned = self._assign(t)
        if len(self._gone) == self.workers:
            return [Stop("every worker has been given up", failed=True)]
        return self._dispatch(sorted(self._present - self._task.keys()))

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        if not workers:
            return []
        first, self._next = self._next, self._next + len(workers)
        tasks: list[Task] = []
        for task, worker in enumerate(workers, first):
            work = self._assigned[worker]
            self._task[worker], self._worker[task] = task, worker
            self._work[task], self._left[task] = list(work), set(range(max(1, len(work))))
            chunks = [Chunk(*self._rows(worker, piece), slot=self.slot(job), batch=self.batch) for job, piece in work]
            tasks.append(tuple(chunks) or (Chunk((), (), slot=self.slot(self.round), batch=self.batch),))
        return [Dispatch(first, tuple(workers), tasks, round=self._before + self.round)]

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self._now = event.time
        if isinstance(event, Reply):
            left = self._left.get(event.task)
            if left is None:
                return ()
            left.discard(event.chunk)
            if left:
                return ()
            del self._left[event.task]
            if event.task in self._behind:
                return self._catch_up(event.worker, event.task)
            self._done.append(event.worker)
            return self._look(first=len(self._done) == 1)
        if isinstance(event, Alarm):
            return self._cut_off()
        if isinstance(event, Failed):
            if self._left.pop(event.task, None) is None:
                return ()
            self._work.pop(event.task, None)
            again: list[Command] = [Cancel((event.task,))]
            if event.task in self._behind:
                self._behind.discard(event.task)
                return again + self._dispatch([event.worker])
            self._failures[event.worker] = self._failures.get(event.worker, 0) + 1
            if self._failures[event.worker] <= _RETRIES:
                return again + self._dispatch([event.worker])
            return again + self._look()
        if isinstance(event, Joined):
            if event.worker in self._present:
                return ()  # told twice that it is here
            self._present.add(event.worker)
            self._gone.discard(event.worker)
            return self._look() if event.worker in self._done else self._dispatch([event.worker])
        if isinstance(event, Lost):
            self._present.discard(event.worker)
            if event.gone:
                self._gone.add(event.worker)
            task = self._task.get(event.worker)
            dropped: list[Command] = []
            if task is not None and task in self._left:
                self._left.pop(task)
                self._work.pop(task, None)
                self._behind.discard(task)
                dropped = [Cancel((task,))]  # what has come of it is not used
            if len(self._gone) == self.workers:
                return [Stop("every worker has been given up", failed=True)]
            return dropped + self._look()
        return ()

    def _catch_up(self, worker: int, task: int) -> list[Command]:
        """A worker has ended its task of an earlier round: what it gives counts, and it joins the round under way."""
        self._behind.discard(task)
        self._take(worker, task)
        if self._waiting and self._enough(self._late_now()):  # it may have been what was missing
            return self._end(self._late_now())
        self._assigned[worker] = self._assign(self.round)[worker]  # which need not try again what has come
        return self._dispatch([worker])

    def _take(self, worker: int, task: int) -> None:
        """The messages of a task that is complete count for the jobs that are not done."""
        self._kept.setdefault(self.round, []).append(task)
        for chunk, (job, piece) in enumerate(self._work.pop(task)):
            if job >= self._combined:
                self._deliver(worker, job, piece, (task, chunk))

    def _look(self, *, first: bool = False) -> list[Command]:
        """After a completion or a loss: has the round ended, or can it never?"""
        if len(self._done) < self.workers and self._left and not self._waiting and not first:
            return []
        late = self._late_now()
        if not late.any() or (self._waiting and self._enough(late)):
            return self._end(late)
        if first:
            self._cut = (1.0 + self.mu) * (self._now - self._began)
            # who completes at the cut-off itself is in time
            return [SetAlarm(_ALARM, nextafter(self._began + self._cut, float("inf")))]
        if self._left or len(self._present) + len(self._gone) < self.workers:
            return []
        # nobody is left to wait for: what fits will have to do, whether or not the cut-off has passed
        if self._feasible(late) if self.wait == "feasible" else self._fits(late):
            return self._end(late)
        names = ", ".join(map(str, np.flatnonzero(late)[:10]))
        why = (
            f"round {self.round} of '{self.spec}' cannot end: workers {names} give nothing, which is more than it bears"
        )
        return [Stop(why, failed=True)]

    def _late_now(self) -> Flags:
        late = np.ones(self.workers, dtype=bool)
        late[self._done] = False
        return late

    def _enough(self, late: Flags) -> bool:
        """Whether a round may end with these stragglers."""
        if self.wait == "feasible":
            return self._feasible(late)
        if self.wait == "minimal" or not self._waiting:
            return self._fits(late)
        return False

    def _cut_off(self) -> list[Command]:
        late = self._late_now()
        if self._enough(late):
            return self._end(late)
        self._waiting = True
        self.waits += 1
        return self._look()

    def _end(self, late: Flags) -> list[Command]:
        if self.jobs:  # of a run without an end they would be too many to keep
            seconds = self._now - self._began
            self.durations.append(seconds if self._waiting else min(seconds, self._cut))
        for worker in sorted(self._done):
            self._take(worker, self._task[worker])
        t = self.round
        done = self._combined
        sums: list[Command] = []
        while (not self.jobs or done < self.jobs) and done <= t and self._job_done(done):
            messages, weights, residual, gain = self._job_sum(done)
            sums.append(Combine(self.slot(done), messages, weights, "all", 1.0, residual, gain))
            done += 1
        under_way = [task for task in self._worker if task in self._left]
        if self.late == "keep":
            self._behind = {task for task in under_way if any(job >= done for job, _ in self._work[task])}
        dropped = [task for task in under_way if task not in self._behind]
        for task in dropped:
            self._work.pop(task)
        commands: list[Command] = [SetAlarm(_ALARM, None)]
        if dropped:
            commands.append(Cancel(tuple(dropped)))
        commands += sums
        if done <= t - self.T and not (self.jobs and done >= self.jobs):
            why = f"job {done} of '{self.spec}' is not done after round {t}: the stragglers were outside of its model"
            return [*commands, Stop(why, failed=True)]
        self._combined = done
        for old in [r for r in self._kept if r <= t - self.T]:
            commands.append(Cancel(tuple(self._kept.pop(old))))  # nobody needs the rest of their messages
        self._finish_round(late)
        return commands + self._begin()

    def _finish_round(self, late: Flags) -> None:
        self._end_round(late)
        self._late.append(np.flatnonzero(late).tolist())
        self.round += 1

    def _in(self, rounds: range) -> Flags:
        """Who straggled in any of these past rounds."""
        flags = np.zeros(self.workers, dtype=bool)
        first = self.round - len(self._late)
        for r in rounds:
            if first <= r < self.round:
                flags[self._late[r - first]] = True
        return flags

    def _forget_late(self, keep: int) -> None:
        del self._late[: max(0, len(self._late) - keep)]

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return {
            "round": self.round, "waits": self.waits, "durations": list(self.durations), "next": self._next,
            "began": self._began, "now": self._now, "cut": self._cut,
            "present": sorted(self._present), "gone": sorted(self._gone),
            "task": list(self._task.items()), "worker": list(self._worker.items()),
            "work": [[task, work] for task, work in self._work.items()],
            "left": [[task, sorted(left)] for task, left in self._left.items()], "behind": sorted(self._behind),
            "done": list(self._done),
            "failures": list(self._failures.items()), "waiting": self._waiting, "late": list(self._late),
            "kept": [[r, tasks] for r, tasks in self._kept.items()], "combined": self._combined,
            "assigned": self._assigned, "before": self._before,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.round, self.waits, self.durations = state["round"], state["waits"], list(state["durations"])
        self._next, self._began, self._now, self._cut = state["next"], state["began"], state["now"], state["cut"]
        self._present, self._gone = set(state["present"]), set(state["gone"])
        self._task, self._worker = dict(state["task"]), dict(state["worker"])
        self._work = {task: [(job, piece) for job, piece in work] for task, work in state["work"]}
        self._left, self._behind = {task: set(left) for task, left in state["left"]}, set(state["behind"])
        self._done, self._failures, self._waiting = list(state["done"]), dict(state["failures"]), state["waiting"]
        self._late, self._kept = [list(late) for late in state["late"]], {r: list(tasks) for r, tasks in state["kept"]}
        self._combined, self._before = state["combined"], state["before"]
        self._assigned = [[(job, piece) for job, piece in work] for work in state["assigned"]]


_DEFAULTS: dict[str, Any] = {
    "mu": 1.0, "wait": "all", "models": None, "jobs": 0, "batch": 0, "inner": "auto", "strict": False,
    "late": "drop",
}  # fmt: skip


class _OneCode(SequentialRounds):
    """Schemes with one code of n partitions for every job, and one message a worker and round."""

    def __init__(self, workers: int, stragglers: int, inner: str, **rest: Any) -> None:
        if not 0 <= stragglers < workers:
            raise BadInput(
                f"'{self.name}' would have to tolerate {stragglers} of {workers} workers; at most all but one"
            )
        self.stragglers, self.within = stragglers, inner
        super().__init__(workers, **rest)
        self.load = (stragglers + 1) / workers
        self._results: dict[int, dict[int, Place]] = {}  # job -> worker -> its message

    @property
    def code(self) -> Code:
        """The code within a job."""
        return _inner(self.within, self.workers, self.stragglers)

    @property
    def partitions(self) -> int:
        """m."""
        return self.workers

    @property
    def assignment(self) -> Sequence[tuple[int, ...]]:
        """The partitions of each worker."""
        return self.code.assignment

    def _rows(self, worker: int, piece: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        del piece
        return self.code.rows[worker]

    def _deliver(self, worker: int, job: int, piece: int, place: Place) -> None:
        del piece
        self._results.setdefault(job, {})[worker] = place

    def _job_done(self, job: int) -> bool:
        return len(self._results.get(job, ())) >= self.workers - self.stragglers

    def _job_sum(self, job: int) -> tuple[list[Place], list[float], float, float]:
        results = self._results.pop(job)
        replies = sorted(results)
        decoding = self.code.decode(replies)
        used = [(results[r], float(decoding.weights[r])) for r in replies if decoding.weights[r]]
        return [place for place, _ in used], [a for _, a in used], decoding.residual, decoding.gain

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        results = [[job, [[w, *place] for w, place in found.items()]] for job, found in self._results.items()]
        return super().state() | {"results": results}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self._results = {job: {w: (task, chunk) for w, task, chunk in found} for job, found in state["results"]}


@typed
class GradientCodingRounds(_OneCode):
    """Gradient coding round by round, T = 0: what the sequential codes are compared with.

    Any ``stragglers`` workers may be late at the cut-off. ``strict``: only fewer than that, as the code published with
    the sequential codes has it. ``inner``: frc, cyclic or binary (auto: frc where it fits, else cyclic).

    >>> GradientCodingRounds(30, stragglers=2).spec
    'gc:stragglers=2'
    """

    name = "gc"

    def __init__(
        self,
        workers: int,
        *,
        stragglers: int,
        mu: float = 1.0,
        wait: Waiting = "all",
        strict: bool = False,
        inner: str = "auto",
        models: int | None = None,
        jobs: int = 0,
        batch: int = 0,
    ) -> None:
        self.strict = strict
        super().__init__(workers, stragglers, inner, delay=0, mu=mu, wait=wait, models=models, jobs=jobs, batch=batch)

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {
            "stragglers": self.stragglers,
            "mu": self.mu,
            "wait": self.wait,
            "strict": self.strict,
        }
        values |= {"inner": self.within, "models": self.models, "jobs": self._given_jobs, "batch": self.batch}
        return show(self.name, values, _DEFAULTS | {"models": 1})

    def _assign(self, t: int) -> list[list[tuple[int, int]]]:
        return [[(t, 0)]] * self.workers

    def _fits(self, late: Flags) -> bool:
        return int(late.sum()) < self.stragglers + (not self.strict)

    def _feasible(self, late: Flags) -> bool:
        return int(late.sum()) <= self.stragglers

    def _end_round(self, late: Flags) -> None:
        self._forget_late(0)


@typed
class SelectiveRepetition(_OneCode):
    """SR-SGC: a job's missing results beyond what the code tolerates are computed again B rounds later.

    For (``B``, ``W``, ``lambda``)-bursty stragglers, W = x B + 1: one code that tolerates
    ``s = ceil(B lambda / (W - 1 + B))`` for every job, of load (s + 1) / n; T = B. Of the workers that did not return
    job t - B in its round, those beyond s repeat it in round t, in order of their numbers; all others do job t.

    >>> SelectiveRepetition(256, B=2, W=3, lambda_=23).stragglers
    12
    """

    name = "sr-sgc"

    def __init__(
        self,
        workers: int,
        *,
        B: int,
        W: int,
        lambda_: int,
        mu: float = 1.0,
        wait: Waiting = "all",
        late: Late = "drop",
        inner: str = "auto",
        models: int | None = None,
        jobs: int = 0,
        batch: int = 0,
    ) -> None:
        _check_burst(self.name, workers, B, W, lambda_)
        if (W - 1) % B:
            raise BadInput(f"W - 1 of 'sr-sgc' must be a multiple of B = {B}, got W = {W}")
        self.B, self.W, self.lambda_ = B, W, lambda_
        tolerates = -(-B * lambda_ // (W - 1 + B))
        rest: dict[str, Any] = {"mu": mu, "wait": wait, "late": late, "models": models, "jobs": jobs, "batch": batch}
        super().__init__(workers, tolerates, inner, delay=B, **rest)
        self._all_on: list[bool] = []  # of the last rounds: whether they count for nothing in the straggler model

    @property
    def spec(self) -> str:
        """The short form."""
        return _spec(self)

    def _repeating(self, t: int) -> list[int]:
        """Of the workers that have not returned job t - B those beyond s; a job that is done needs nobody."""
        if t - self.B < self._combined:
            return []
        miss = [i for i in range(self.workers) if i not in self._results.get(t - self.B, ())]
        return miss[: max(0, len(miss) - self.stragglers)]

    def _skips(self, t: int) -> bool:
        return bool(self.jobs) and t >= self.jobs and t - self.B < self._combined

    def _assign(self, t: int) -> list[list[tuple[int, int]]]:
        again = set(self._repeating(t))
        fresh = [(t, 0)] if not self.jobs or t < self.jobs else []
        return [[(t - self.B, 0)] if worker in again else list(fresh) for worker in range(self.workers)]

    def _fits(self, late: Flags) -> bool:
        r = self.round
        first = r - len(self._all_on)
        counted = [q for q in range(max(0, r + 1 - self.W), r) if q < first or not self._all_on[q - first]]
        union = late.copy()
        before = np.zeros(self.workers, dtype=bool)
        for q in counted:
            straggled = self._in(range(q, q + 1))
            union |= straggled
            if q <= r - self.B:
                before |= straggled
        return int(union.sum()) <= self.lambda_ and not (before & late).any()

    def _feasible(self, late: Flags) -> bool:
        """The job that ends now is done, and each begun can be, all of its missing results being repeated."""
        t = self.round
        n, s = self.workers, self.stragglers
        for job in range(self._combined, t + 1):
            if self.jobs and job >= self.jobs:
                continue
            count = len(self._results.get(job, ()))
            here = sum(not late[i] for i, work in enumerate(self._assigned) if work and work[0][0] == job)
            if job + self.B <= t and count + here < n - s:
                return False
        return True

    def _end_round(self, late: Flags) -> None:
        again = [i for i, work in enumerate(self._assigned) if work and work[0][0] < self.round]
        self._all_on.append(int(late.sum()) <= self.stragglers and all(late[i] for i in again))
        del self._all_on[: max(0, len(self._all_on) - self.W)]
        self._forget_late(self.W)

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return super().state() | {"all_on": list(self._all_on)}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self._all_on = list(state["all_on"])


@typed
class Multiplexed(SequentialRounds):
    """M-SGC: every worker works on W - 1 + B jobs at once, each a small part; a burst is made up for in later rounds.

    For (``B``, ``W``, ``lambda``)-bursty stragglers; T = W - 2 + B. Of a job, worker i has W - 1 pieces of its own that
    are tried again in the last B rounds where they did not come, and a share in B groups of pieces that a code protects
    against lambda stragglers. All pieces cost the same, (lambda + 1) / Q of the data with
    ``Q = n (B + (W - 1) (lambda + 1))``; a worker's load is W - 1 + B pieces. A piece of its own is one
    partition; the partitions of the groups are lambda + 1 times smaller (``shares``).

    >>> round(Multiplexed(256, B=1, W=2, lambda_=27).load, 7)
    0.0075431
    """

    name = "m-sgc"
    shares: tuple[int, ...]

    def __init__(
        self,
        workers: int,
        *,
        B: int,
        W: int,
        lambda_: int,
        mu: float = 1.0,
        wait: Waiting = "all",
        late: Late = "drop",
        inner: str = "auto",
        models: int | None = None,
        jobs: int = 0,
        batch: int = 0,
    ) -> None:
        _check_burst(self.name, workers, B, W, lambda_)
        self.B, self.W, self.lambda_, self.within = B, W, lambda_, inner
        rest: dict[str, Any] = {"mu": mu, "wait": wait, "late": late, "models": models, "jobs": jobs, "batch": batch}
        super().__init__(workers, delay=W - 2 + B, **rest)
        n = workers
        self.coded = lambda_ < n
        each = lambda_ + 1 if self.coded else 1
        self.shares = (each,) * (n * (W - 1)) + (1,) * (n * B if self.coded else 0)
        self.load = (W - 1 + B) * each / sum(self.shares)
        self._own: dict[int, NDArray[np.int64]] = {}  # job -> place of each worker's own pieces: task (or -1), chunk
        self._groups: dict[int, list[dict[int, Place]]] = {}  # job -> group -> worker -> its message
        self._known: dict[tuple[int, int], tuple[tuple[int, ...], tuple[float, ...]]] = {}

    @property
    def spec(self) -> str:
        """The short form."""
        return _spec(self)

    @property
    def code(self) -> Code:
        """The code within a group."""
        return _inner(self.within, self.workers, self.lambda_)

    @property
    def partitions(self) -> int:
        """m, of different sizes."""
        return len(self.shares)

    @property
    def assignment(self) -> Sequence[tuple[int, ...]]:
        """The partitions of each worker."""
        pieces = self.W - 1 + (self.B if self.coded else 0)
        return [
            tuple(sorted({j for piece in range(pieces) for j in self._rows(i, piece)[0]})) for i in range(self.workers)
        ]

    def _rows(self, worker: int, piece: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        key = worker, piece
        if key not in self._known:
            n, own = self.workers, self.W - 1
            if piece < own:
                self._known[key] = (worker * own + piece,), (1.0,)
            else:
                base = n * own + (piece - own) * n
                partitions, coefficients = self.code.rows[worker]
                self._known[key] = tuple(base + j for j in partitions), coefficients
        return self._known[key]

    def _of(self, job: int) -> tuple[NDArray[np.int64], list[dict[int, Place]]]:
        if job not in self._own:
            self._own[job] = np.full((self.workers, self.W - 1, 2), -1, dtype=np.int64)
            self._groups[job] = [{} for _ in range(self.B)]
        return self._own[job], self._groups[job]

    def _assign(self, t: int) -> list[list[tuple[int, int]]]:
        work: list[list[tuple[int, int]]] = [[] for _ in range(self.workers)]
        for m in range(self.T + 1):
            job = t - m
            if job < self._combined or (self.jobs and job >= self.jobs):
                continue
            if m <= self.W - 2:
                for mine in work:
                    mine.append((job, m))
                continue
            missing: Any = self._of(job)[0][:, :, 0] < 0
            retry = missing.any(axis=1)
            lowest = missing.argmax(axis=1)
            for worker, mine in enumerate(work):
                if retry[worker]:
                    mine.append((job, int(lowest[worker])))
                elif self.coded:
                    mine.append((job, m))  # piece W - 1 + l is this worker's part of group l
        return work

    def _deliver(self, worker: int, job: int, piece: int, place: Place) -> None:
        own, groups = self._of(job)
        if piece < self.W - 1:
            own[worker, piece] = place
        else:
            groups[piece - (self.W - 1)][worker] = place

    def _job_done(self, job: int) -> bool:
        if job not in self._own or (self._own[job][:, :, 0] < 0).any():
            return False
        return not self.coded or all(len(group) >= self.workers - self.lambda_ for group in self._groups[job])

    def _job_sum(self, job: int) -> tuple[list[Place], list[float], float, float]:
        own, groups = self._own.pop(job), self._groups.pop(job)
        messages = [(int(task), int(chunk)) for task, chunk in own.reshape(-1, 2)]
        weights = [1.0] * len(messages)
        residual = gain = 0.0
        for group in groups if self.coded else ():
            replies = sorted(group)
            decoding = self.code.decode(replies)
            for reply in replies:
                if decoding.weights[reply]:
                    messages.append(group[reply])
                    weights.append(float(decoding.weights[reply]))
            residual, gain = max(residual, decoding.residual), max(gain, decoding.gain)
        return messages, weights, residual, max(gain, 1.0)

    def _fits(self, late: Flags) -> bool:
        r = self.round
        union = late | self._in(range(r + 1 - self.W, r))
        again = self._in(range(r + 1 - self.W, r - self.B + 1)) & late
        return int(union.sum()) <= self.lambda_ and not again.any()

    def _feasible(self, late: Flags) -> bool:
        t, n = self.round, self.workers
        for m in range(self.T + 1):
            job = t - m
            if job < self._combined or (self.jobs and job >= self.jobs):
                continue
            own, groups = self._of(job)
            missing: Any = own[:, :, 0] < 0
            counts = [len(group) for group in groups]
            for i, work in enumerate(self._assigned):
                if not late[i]:
                    for other, piece in work:
                        if other == job:
                            if piece < self.W - 1:
                                missing[i, piece] = False
                            else:
                                counts[piece - (self.W - 1)] += 1
            short = missing.sum(axis=1)
            if (short > self.T - m).any():
                return False
            # pieces not tried yet come in their own rounds; those that were lost take the first of the last B
            lost = missing[:, : m + 1].sum(axis=1) if m < self.W - 1 else short
            begin = max(m + 1, self.W - 1)
            for group in range(self.B if self.coded else 0):
                slot = self.W - 1 + group
                coming = int((begin + lost <= slot).sum()) if slot > m else 0
                if counts[group] + coming < n - self.lambda_:
                    return False
        return True

    def _end_round(self, late: Flags) -> None:
        self._forget_late(self.W)

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return super().state() | {
            "own": [[job, own.tolist()] for job, own in self._own.items()],
            "groups": [
                [job, [[[w, *place] for w, place in group.items()] for group in groups]]
                for job, groups in self._groups.items()
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self._own = {job: np.array(own, dtype=np.int64) for job, own in state["own"]}
        self._groups = {
            job: [{w: (task, chunk) for w, task, chunk in group} for group in groups] for job, groups in state["groups"]
        }


def _check_burst(name: str, workers: int, B: int, W: int, lambda_: int) -> None:
    if W < 2 or not 1 <= B <= W - 1:
        raise BadInput(f"B of '{name}' must be 1 to W - 1, and W at least 2, got B = {B}, W = {W}")
    if not 0 <= lambda_ <= workers:
        raise BadInput(f"lambda of '{name}' must be 0 to {workers} workers, got {lambda_}")


def _spec(scheme: SelectiveRepetition | Multiplexed) -> str:
    values: dict[str, Any] = {"B": scheme.B, "W": scheme.W, "lambda": scheme.lambda_, "mu": scheme.mu}
    values |= {"wait": scheme.wait, "late": scheme.late, "inner": scheme.within}
    values |= {"models": scheme.models, "jobs": scheme._given_jobs, "batch": scheme.batch}
    return show(scheme.name, values, _DEFAULTS | {"models": scheme.T + 1})
