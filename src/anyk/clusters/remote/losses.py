"""Evaluation of the objective by the workers, which compute it from their own data in addition to their tasks.

Each partition's loss is requested from one of the workers that store it, with that worker's next orders. The worker
reads the question between two partitions of its task, reports each loss, and continues. If a loss is late compared with
the others, or its worker dies, other workers that store the partition are asked as well: with replicated partitions, no
slow worker delays the answer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import RunFailed
from anyk.clusters.messages import rows_by_partition
from anyk.clusters.remote.handles import Notice, WorkerHandle
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.remote.worker import ASKED

_SOON, _LATE = 0.1, 3.0  # seconds, and multiples of the expected duration, after which other workers are asked, too
# seconds, and multiples of the other losses' duration, after which missing losses are abandoned
_SILENCE, _NEVER = 60.0, 10.0
_NOTHING = 600.0  # seconds to wait for the first loss
_INTERRUPTED = 5.0  # seconds, instead of all these, while the run is being interrupted
_DEATHS = 2  # deaths during one question after which a worker is excluded from some questions
_ENDED = "the workers have ended"


class LossUnknown(RunFailed):
    """No worker can compute the loss of some partition; ``forever``: all workers that store it are lost."""

    def __init__(self, reason: str, *, forever: bool = False) -> None:
        super().__init__(reason)
        self.forever = forever


class Question:
    """A question about a sum of sample losses, for whose answer another thread may wait.

    ``model``: shape (d,); ``slot``: the model whose objective is evaluated; ``samples``: the number of samples to
    evaluate, None for all.
    """

    def __init__(self, slot: str, model: Vector, samples: int | None) -> None:
        self.slot, self.model, self.samples = slot, model, samples
        self.losses: dict[int, float] = {}  # sum of losses by partition
        self._failure: RunFailed | None = None
        self._over = threading.Event()

    def done(self) -> bool:
        """Return whether the question has been answered or abandoned."""
        return self._over.is_set()

    def end(self, failure: RunFailed | None = None) -> None:
        """Record that the question has been answered, or why it cannot be."""
        self._failure = failure
        self._over.set()

    def result(self) -> float:
        """Wait for the answer and return the sum of the sample losses; raise the failure if it is unknown."""
        self._over.wait()
        if self._failure is not None:
            raise self._failure
        return float(np.sum([self.losses[j] for j in sorted(self.losses)]))


class Losses:
    """The driver's side of evaluation: it asks one question after another."""

    def __init__(
        self,
        handles: Sequence[WorkerHandle],
        store: RemoteStore,
        sizes: Sequence[int],
        assignment: Sequence[Sequence[int]],
        send_orders: Callable[[int], None],
    ) -> None:
        self._handles, self._store, self._sizes, self._send_orders = handles, store, tuple(sizes), send_orders
        self._holders: list[list[int]] = [[] for _ in sizes]
        for worker, assigned in enumerate(assignment):
            for j in dict.fromkeys(assigned):
                self._holders[j].append(worker)
        self._waiting: deque[Question] = deque()  # questions of other threads, not yet asked
        self._lock = threading.Lock()
        self._closed = False
        # number of the first question to ask a worker again, and why it is excluded
        self._excluded: dict[int, tuple[int, str]] = {}
        self._strikes = Counter[int]()  # exclusions of a worker since its last answer
        self._questions = 0
        self._open: Question | None = None
        self._asked = 0  # number of the last order with a question; each order has its own
        self._first = 0  # number of the open question's first such order, under which the model is published
        self._missing: set[int] = set()  # partitions whose losses have not arrived
        self._owed: dict[int, list[int]] = {}  # partitions whose losses a worker still owes
        self._deaths = Counter[int]()  # deaths of workers that owed an answer
        self._put_at = self._answered_at = 0.0  # when the question was asked, and when the last loss arrived
        self._late = 0.0  # time from which missing losses are late; 0: unknown

    # ------------------------------------------------------------------------------------------- asking

    def ask(self, slot: str, model: Vector, samples: int | None) -> Question:
        """Return a question that will be asked after the earlier ones; thread-safe. The model must not change."""
        question = Question(slot, model, samples)
        with self._lock:
            if self._closed:
                question.end(LossUnknown(_ENDED))
            else:
                self._waiting.append(question)
        return question

    def close(self) -> None:
        """Abandon all open questions."""
        with self._lock:
            self._closed = True
            for question in [self._open, *self._waiting]:
                if question is not None:
                    question.end(LossUnknown(_ENDED))
            self._open = None
            self._waiting.clear()

    def go_on(self) -> None:
        """Ask the next question, or further workers for late losses; call this regularly."""
        if self._open is not None:
            if 0.0 < self._late < time.monotonic():
                self._late = 0.0
                self._spread(self._missing, {w for w in range(len(self._handles)) if not self._owed.get(w)})
            return
        if not self._waiting:
            return
        question = self._open = self._waiting.popleft()
        self._questions += 1
        self._missing, self._owed = self._partitions_with(question.samples), {}
        self._deaths.clear()
        self._put_at, self._late = time.monotonic(), 0.0
        self._first = self._asked + 1
        self._store.publish(ASKED, self._first, question.model)
        self._spread(self._missing, set(range(len(self._handles))))
        self._check_held()

    def _partitions_with(self, samples: int | None) -> set[int]:
        """Return the partitions that contain samples to evaluate."""
        chosen_rows = None if samples is None else rows_by_partition(self._sizes, samples)
        return {j for j in range(len(self._sizes)) if chosen_rows is None or len(chosen_rows[j])}

    def _spread(self, partitions: Iterable[int], among: set[int]) -> None:
        """Ask, for each partition, one of these workers that stores it; balance their numbers of partitions."""
        assert self._open is not None
        excluded = {worker for worker, (until, _) in self._excluded.items() if until > self._questions}
        among = {worker for worker in among - excluded if not self._handles[worker].gone}
        chosen_workers: dict[int, None] = {}
        holders = {j: [worker for worker in self._holders[j] if worker in among] for j in partitions}
        for j in sorted(holders, key=lambda j: (len(holders[j]), j)):
            if holders[j]:
                worker = min(holders[j], key=lambda worker: (len(self._owed.get(worker, ())), worker))
                self._owed.setdefault(worker, []).append(j)
                chosen_workers[worker] = None
        location = self._store.place(ASKED, self._first) if chosen_workers else 0
        for worker in chosen_workers:
            self._asked += 1
            owed = self._owed[worker]
            self._handles[worker].question = [self._asked, location, self._open.slot, owed, self._open.samples]
            self._send_orders(worker)

    # ------------------------------------------------------------------------------------------- answers

    def take_in(self, notice: Notice) -> None:
        """Record a partition's loss, or the reason why a worker cannot compute it."""
        question, worker, report = self._open, notice.worker, notice.report
        j = report.chunk
        if question is None or report.task < self._first or j not in self._missing:
            return
        if report.done:
            self._end(RunFailed(f"the loss of partition {j} fails on worker {worker}: {report.text}"))
            return
        self._answered_at = time.monotonic()
        question.losses[j] = float(np.int64(report.bits).view(np.float64))
        self._missing.remove(j)
        for other, owed in self._owed.items():
            if j in owed:
                owed.remove(j)
                if not owed:
                    self._handles[other].question = None
        self._strikes[worker] = self._deaths[worker] = 0
        if not self._missing:
            self._end(None)
        took = self._answered_at - self._put_at
        share = len(question.losses) / (len(question.losses) + len(self._missing))
        self._late = self._put_at + max(_SOON, _LATE * took / share)

    def died(self, worker: int) -> None:
        """Record a death: a worker is asked again after its restart, unless the question seems to have killed it."""
        if self._handles[worker].gone:
            self._exclude(worker, "")
        elif self._owed.get(worker):
            self._deaths[worker] += 1
            if self._deaths[worker] >= _DEATHS:
                self._strikes[worker] += 1
                self._exclude(worker, "died twice while it was asked", 2 ** self._strikes[worker])

    def forgive(self) -> None:
        """Lift all exclusions of workers, at the end of a run."""
        self._excluded.clear()
        self._strikes.clear()

    def exclude_silent(self, *, interrupted: bool) -> None:
        """Exclude, for good, workers that are silent long after the others have answered.

        Before the first loss the wait is longer, as for large partitions; in an interrupted run it is short.
        """
        if self._open is None:
            return
        patience = max(_SILENCE, _NEVER * (self._answered_at - self._put_at)) if self._open.losses else _NOTHING
        if time.monotonic() - max(self._put_at, self._answered_at) < (_INTERRUPTED if interrupted else patience):
            return
        for worker in [worker for worker, owed in self._owed.items() if owed]:
            self._exclude(worker, "did not answer", 1 << 62)

    def _exclude(self, worker: int, reason: str, questions: int = 0) -> None:
        """Ask other workers instead of this one, for this question and the next ``questions``."""
        self._excluded[worker] = self._questions + questions, reason
        owed = self._owed.pop(worker, [])
        self._handles[worker].question = None
        if self._open is not None and owed:
            self._spread(owed, set(range(len(self._handles))))
            self._check_held()

    def _check_held(self) -> None:
        """Abandon the question if no worker can be asked for some partition."""
        unasked = self._missing - {j for owed in self._owed.values() for j in owed}
        if not unasked:
            return
        j = min(unasked)
        holders = self._holders[j]
        gone = {worker for worker in holders if self._handles[worker].gone}
        reasons = [
            f"worker {worker} {'is lost' if worker in gone else self._excluded[worker][1]}" for worker in holders
        ]
        reason = "; ".join(reasons) or "no worker stores it"
        self._end(
            LossUnknown(f"no worker can compute the loss of partition {j}: {reason}", forever=len(gone) == len(holders))
        )

    def _end(self, failure: RunFailed | None) -> None:
        assert self._open is not None
        question, self._open = self._open, None
        self._store.release(ASKED, self._first)
        for worker, handle in enumerate(self._handles):
            handle.question = None
            if self._owed.get(worker):
                self._send_orders(worker)  # the worker need not continue
        question.end(failure)
