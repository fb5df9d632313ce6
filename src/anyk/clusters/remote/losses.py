"""The objective at a model as the workers that hold the data compute it: a question beside their tasks.

A question goes to all workers with their next orders. Each looks at it between two partitions and tells the loss of
those it holds, one by one; whoever is first counts, so that where partitions are replicated no slow worker is waited
for. The task at hand goes on afterwards.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

from anyk.clusters.remote.handles import Notice, WorkerHandle
from anyk.clusters.remote.payload import RemotePayload
from anyk.clusters.remote.worker import ASKED
from anyk.errors import RunFailed
from anyk.problems.base import Vector, rows_within

_SILENCE = 60.0  # seconds at least that those are waited for who tell nothing while others have …
_LATER = 10.0  # … and so many times as long as these took
_DEATHS = 2  # in the course of one question, after which a worker is not asked again
_ENDED = "the workers have ended"


class Unheld(RunFailed):
    """Nobody can tell the loss of some of the data any more."""


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
        payload: RemotePayload,
        sizes: Sequence[int],
        assignment: Sequence[Sequence[int]],
        send_orders: Callable[[int], None],
    ) -> None:
        self._handles, self._payload, self._sizes, self._send_orders = handles, payload, tuple(sizes), send_orders
        self._turns = _turns(assignment)
        self._waiting: deque[Question] = deque()  # asked by another thread
        self._open: Question | None = None
        self._number = 0
        self._left: set[int] = set()  # partitions nobody has told the loss of
        self._deaths: Counter[int] = Counter()  # of workers since the question was put
        self._silent: set[int] = set()  # workers that are not asked any more: lost, dead of it or without an answer
        self._wanted: dict[int | None, list[int]] = {}  # partitions with some of so many samples
        self._put_at = self._told_at = 0.0  # when the question was put, and when the last loss was told
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, slot: str, model: Vector, samples: int | None) -> Question:
        """A question that is put when its turn has come; any thread may ask. The model must stay as it is."""
        question = Question(slot, model, samples)
        with self._lock:
            if self._closed:
                question.end(Unheld(_ENDED))
            else:
                self._waiting.append(question)
        return question

    def put_next(self) -> None:
        """Put the next question, if there is one and none is open."""
        if self._open is not None or not self._waiting:
            return
        question = self._open = self._waiting.popleft()
        self._number += 1
        self._put_at = time.monotonic()
        self._deaths.clear()
        self._payload.publish(ASKED, self._number, question.model)
        place, samples = self._payload.place(ASKED, self._number), question.samples
        if samples not in self._wanted:
            self._wanted[samples] = _wanted(self._sizes, samples)
        self._left = set(self._wanted[samples])
        for worker, handle in enumerate(self._handles):
            own = [j for j in self._turns[worker] if j in self._left]
            if own and worker not in self._silent:
                handle.question = [self._number, place, question.slot, own, samples]
        self._tell_all()
        self._give_up_unheld()

    def take_in(self, notice: Notice) -> None:
        """A worker has told the loss of a partition, or why it cannot."""
        question = self._open
        if question is None or notice.task != self._number or notice.chunk not in self._left:
            return
        if notice.done:
            why = f"the loss of partition {notice.chunk} fails on worker {notice.worker}: {notice.text}"
            self._end(RunFailed(why))
            return
        self._told_at = time.monotonic()
        question.told[notice.chunk] = float(np.int64(notice.bits).view(np.float64))
        self._left.remove(notice.chunk)
        if not self._left:
            self._end(None)

    def died(self, worker: int) -> None:
        """A worker has died; what it holds may be with nobody now."""
        handle = self._handles[worker]
        self._deaths[worker] += handle.question is not None
        if handle.gone or self._deaths[worker] >= _DEATHS:
            self._silent.add(worker)
            handle.question = None
            self._give_up_unheld()

    def give_up_late(self) -> None:
        """Wait no longer for those who tell nothing though others have long since, nor ask them again."""
        if self._open is None or not self._open.told:
            return
        if time.monotonic() - self._told_at < max(_SILENCE, _LATER * (self._told_at - self._put_at)):
            return
        for worker, handle in enumerate(self._handles):
            if handle.question is not None and self._left & set(handle.question[3]):
                self._silent.add(worker)
                handle.question = None
        self._give_up_unheld()

    def close(self) -> None:
        """There will be no answers any more."""
        with self._lock:
            self._closed = True
            for question in [self._open, *self._waiting]:
                if question is not None:
                    question.end(Unheld(_ENDED))
            self._waiting.clear()

    def _give_up_unheld(self) -> None:
        asked = {j for handle in self._handles if handle.question is not None for j in handle.question[3]}
        if self._open is not None and (unheld := self._left - asked):
            silent = {worker for worker in self._silent if unheld & set(self._turns[worker])}
            what = f"workers {_listed(silent)}, which hold partitions {_listed(unheld)},"
            why = f"{what} are lost, died twice when they were asked or did not answer"
            self._end(Unheld(why if silent else f"no worker holds partitions {_listed(unheld)}"))

    def _end(self, failure: RunFailed | None) -> None:
        assert self._open is not None
        question, self._open = self._open, None
        for handle in self._handles:
            handle.question = None
        self._payload.release(ASKED, self._number)
        self._tell_all()
        question.end(failure)

    def _tell_all(self) -> None:
        for worker in range(len(self._handles)):
            self._send_orders(worker)


def _turns(assignment: Sequence[Sequence[int]]) -> list[list[int]]:
    """In which order workers look at the partitions they hold: first those that are theirs alone to begin with."""
    own: list[list[int]] = [[] for _ in assignment]
    holders: dict[int, list[int]] = {}
    for worker, held in enumerate(assignment):
        for j in dict.fromkeys(held):
            holders.setdefault(j, []).append(worker)
    for j, among in sorted(holders.items(), key=lambda item: (len(item[1]), item[0])):
        own[min(among, key=lambda worker: (len(own[worker]), worker))].append(j)
    return [list(dict.fromkeys([*mine, *held])) for mine, held in zip(own, assignment, strict=True)]


def _wanted(sizes: Sequence[int], samples: int | None) -> list[int]:
    """The partitions that have some of so many samples, or of all."""
    if samples is None:
        return list(range(len(sizes)))
    within = [rows_within(sizes, j, samples) for j in range(len(sizes))]
    return [j for j, rows in enumerate(within) if rows is None or len(rows)]


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
