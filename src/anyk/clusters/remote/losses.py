"""The objective at a model as the workers that hold the data compute it: a question beside their tasks.

Each partition is asked of one of its holders, with that worker's next orders. It looks at it between two partitions of
its tasks, tells the loss of each, and goes on. What is owed for long after the others have answered, or by a worker
that dies of it, is asked of other holders as well, so that where partitions are replicated no slow worker is waited
for.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from anyk.clusters.remote.handles import Notice, WorkerHandle
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.remote.worker import ASKED
from anyk.errors import RunFailed
from anyk.problems.base import Vector, rows_within

_SOON, _LATE = 0.1, 3.0  # seconds, and times as long as all should take by what has been told: others are asked, too
_SILENCE, _NEVER = 60.0, 10.0  # seconds, and times as long as the others took, after which nobody waits any more
_NOTHING = 600.0  # seconds after which nobody is waited for who has told nothing, where nobody has
_INTERRUPTED = 5.0  # seconds, in place of all these, where the run is being interrupted
_DEATHS = 2  # in the course of one question, after which a worker is left out of some
_ENDED = "the workers have ended"


class Unheld(RunFailed):
    """Nobody can tell the loss of some of the data; ``forever``: nor will, as its holders are lost."""

    def __init__(self, why: str, *, forever: bool = False) -> None:
        super().__init__(why)
        self.forever = forever


class Question:
    """A question and its answer, which another thread may wait for.

    ``model``: shape (d,); ``slot``: whose objective; ``samples``: of so many of them, or of all.
    """

    def __init__(self, slot: str, model: Vector, samples: int | None) -> None:
        self.slot, self.model, self.samples = slot, model, samples
        self.told: dict[int, float] = {}  # by partition
        self._failure: RunFailed | None = None
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """Whether it has been answered or given up."""
        return self._over.is_set()

    def wait(self) -> None:
        """Until it has."""
        self._over.wait()

    def end(self, failure: RunFailed | None = None) -> None:
        """It is answered, or will not be."""
        self._failure = failure
        self._over.set()

    def answer(self) -> float:
        """The sum of the sample losses; raises :class:`~anyk.errors.RunFailed` where nobody can tell it."""
        if self._failure is not None:
            raise self._failure
        return float(np.sum([self.told[j] for j in sorted(self.told)]))


class Losses:
    """The driver's side: one question after the other."""

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
        for worker, held in enumerate(assignment):
            for j in dict.fromkeys(held):
                self._holders[j].append(worker)
        self._wanted: dict[int | None, list[int]] = {}  # partitions with some of so many samples
        self._waiting: deque[Question] = deque()  # asked by another thread
        self._lock = threading.Lock()
        self._closed = False
        self._left_out: dict[int, tuple[int, str]] = {}  # workers not asked before a question of this number, and why
        self._strikes: Counter[int] = Counter()  # how often a worker has been left out without an answer in between
        self._questions = 0
        self._open: Question | None = None
        self._asked = 0  # the number of what was last asked of a worker; each time it has another
        self._first = 0  # that of the open question's first, which names the model
        self._left: set[int] = set()  # partitions nobody has told the loss of
        self._owed: dict[int, list[int]] = {}  # those that a worker has been asked for and has not told
        self._deaths: Counter[int] = Counter()  # of workers that owed an answer
        self._put_at = self._told_at = 0.0  # when the question was put, and when the last loss was told
        self._late = 0.0  # when what is left is late; 0: not known

    # ------------------------------------------------------------------------------------------- asking

    def ask(self, slot: str, model: Vector, samples: int | None) -> Question:
        """A question that is put when its turn has come; any thread may ask. The model must stay as it is."""
        question = Question(slot, model, samples)
        with self._lock:
            if self._closed:
                question.end(Unheld(_ENDED))
            else:
                self._waiting.append(question)
        return question

    def close(self) -> None:
        """There will be no answers any more."""
        with self._lock:
            self._closed = True
            for question in [self._open, *self._waiting]:
                if question is not None:
                    question.end(Unheld(_ENDED))
            self._waiting.clear()

    def go_on(self) -> None:
        """Put the next question, or ask others as well for what is late; called again and again."""
        if self._open is not None:
            if 0.0 < self._late < time.monotonic():
                self._late = 0.0
                self._spread(self._left, {w for w in range(len(self._handles)) if not self._owed.get(w)})
            return
        if not self._waiting:
            return
        question = self._open = self._waiting.popleft()
        samples = question.samples
        if samples not in self._wanted:
            self._wanted[samples] = _wanted(self._sizes, samples)
        self._questions += 1
        self._left, self._owed = set(self._wanted[samples]), {}
        self._deaths.clear()
        self._put_at, self._late = time.monotonic(), 0.0
        self._first = self._asked + 1
        self._store.publish(ASKED, self._first, question.model)
        self._spread(self._left, set(range(len(self._handles))))
        self._check_held()

    def _spread(self, partitions: Iterable[int], among: set[int]) -> None:
        """Ask for these partitions, each of one of its holders among those workers, evenly."""
        assert self._open is not None
        among = {worker for worker in among if self._may_answer(worker)}
        asked: dict[int, None] = {}
        holders = {j: [worker for worker in self._holders[j] if worker in among] for j in partitions}
        for j in sorted(holders, key=lambda j: (len(holders[j]), j)):
            if holders[j]:
                worker = min(holders[j], key=lambda worker: (len(self._owed.get(worker, ())), worker))
                self._owed.setdefault(worker, []).append(j)
                asked[worker] = None
        place = self._store.place(ASKED, self._first) if asked else 0
        for worker in asked:
            self._asked += 1
            owed = self._owed[worker]
            self._handles[worker].question = [self._asked, place, self._open.slot, owed, self._open.samples]
            self._send_orders(worker)

    def _may_answer(self, worker: int) -> bool:
        return not self._handles[worker].gone and self._left_out.get(worker, (0, ""))[0] <= self._questions

    # ------------------------------------------------------------------------------------------- answers

    def take_in(self, notice: Notice) -> None:
        """A worker has told the loss of a partition, or why it cannot."""
        question, worker, report = self._open, notice.worker, notice.report
        j = report.chunk
        if question is None or report.task < self._first or j not in self._left:
            return
        if report.done:
            self._end(RunFailed(f"the loss of partition {j} fails on worker {worker}: {report.text}"))
            return
        self._told_at = time.monotonic()
        question.told[j] = float(np.int64(report.bits).view(np.float64))
        self._left.remove(j)
        for other, owed in self._owed.items():
            if j in owed:
                owed.remove(j)
                if not owed:
                    self._handles[other].question = None
        self._strikes[worker] = self._deaths[worker] = 0
        if not self._left:
            self._end(None)
        took, share = self._told_at - self._put_at, len(question.told) / (len(question.told) + len(self._left))
        self._late = self._put_at + max(_SOON, _LATE * took / share)

    def died(self, worker: int) -> None:
        """A worker has died; what it owes it is asked again when it is back, unless that has killed it."""
        if self._handles[worker].gone:
            self._leave_out(worker, "")
        elif self._owed.get(worker):
            self._deaths[worker] += 1
            if self._deaths[worker] >= _DEATHS:
                self._strikes[worker] += 1
                self._leave_out(worker, "died twice while it was asked", 2 ** self._strikes[worker])

    def forgive(self) -> None:
        """The run has ended: workers are asked again that have died while they were asked."""
        self._left_out.clear()
        self._strikes.clear()

    def give_up_late(self, *, interrupted: bool = False) -> None:
        """Wait no longer for those who tell nothing though others have long since, nor ask them again.

        Where nobody has told anything the wait is longer, as for large partitions; of an interrupted run it is short.
        """
        if self._open is None:
            return
        told = bool(self._open.told)
        patience = max(_SILENCE, _NEVER * (self._told_at - self._put_at)) if told else _NOTHING
        if time.monotonic() - max(self._put_at, self._told_at) < (_INTERRUPTED if interrupted else patience):
            return
        for worker in [worker for worker, owed in self._owed.items() if owed]:
            self._leave_out(worker, "did not answer", 1 << 62)

    def _leave_out(self, worker: int, why: str, questions: int = 0) -> None:
        """Ask others in the place of a worker, for this question and some more."""
        self._left_out[worker] = self._questions + questions, why
        owed = self._owed.pop(worker, [])
        self._handles[worker].question = None
        if self._open is not None and owed:
            self._spread(owed, set(range(len(self._handles))))
            self._check_held()

    def _check_held(self) -> None:
        """End the question where nobody has been asked for some of the data, as nobody can tell."""
        unasked = self._left - {j for owed in self._owed.values() for j in owed}
        if not unasked:
            return
        j = min(unasked)
        holders = self._holders[j]
        whys = [(worker, "is lost" if self._handles[worker].gone else self._left_out[worker][1]) for worker in holders]
        why = "; ".join(f"worker {worker} {why}" for worker, why in whys) or "no worker holds it"
        forever = all(self._handles[worker].gone for worker in holders)
        self._end(Unheld(f"nobody can tell the loss of partition {j}: {why}", forever=forever))

    def _end(self, failure: RunFailed | None) -> None:
        assert self._open is not None
        question, self._open = self._open, None
        self._store.release(ASKED, self._first)
        for worker, handle in enumerate(self._handles):
            handle.question = None
            if self._owed.get(worker):
                self._send_orders(worker)  # it need not go on
        question.end(failure)


def _wanted(sizes: Sequence[int], samples: int | None) -> list[int]:
    """The partitions that have some of so many samples, or of all."""
    if samples is None:
        return list(range(len(sizes)))
    within = [rows_within(sizes, j, samples) for j in range(len(sizes))]
    return [j for j, rows in enumerate(within) if rows is None or len(rows)]
