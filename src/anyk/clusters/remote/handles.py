"""The driver's knowledge of its workers, and the notices that it gets from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anyk.clusters.contract import Report
from anyk.clusters.remote.worker import NO_TASK
from anyk.protocol import Task

_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before a worker is started again that has died twice in a row; at most


class Notice(NamedTuple):
    """A report as it comes in; ``at`` and the times of the report are those of the driver's clock."""

    at: float
    worker: int
    incarnation: int
    buffer: Any  # where its message lies
    report: Report


class Died(NamedTuple):
    """A worker has ended; ``blame``: how much that speaks against it, 4 for a crash, 1 where it may have been well."""

    worker: int
    incarnation: int
    reason: str
    blame: int = 1


class WorkerHandle:
    """The driver's knowledge of one worker, with the newest orders it has been given."""

    def __init__(self) -> None:
        self.incarnation = -1
        self.present = False
        self.blame = 0  # for its deaths since its last message
        self.deaths = 0
        self.due: float | None = None  # when it is to be started anew, if it is not alive
        self.gone = False  # given up for good
        self.preempt = False  # whether what the worker may still be doing is to be dropped
        self.clock = 0.0  # what its clock shows more than the driver's
        self.question: list[Any] | None = None  # about losses: number, place of the model, slot, partitions, samples
        self.forget()

    def forget(self) -> None:
        """It has nothing to do."""
        self.task = NO_TASK
        self.times = 0.0, 0.0, 0.0  # start, delay before, delay each
        self.chunks: Task = ()
        self.body = b"[]"
        self.positions: list[int] = []
        self.requests: list[Any] = []  # for messages

    def sent_something(self) -> None:
        """A message of it has come: what it died of before no longer counts."""
        self.blame = self.deaths = 0

    def died(self, blame: int, patience: int) -> bool:
        """It has died; True when that was once too often, else it is started anew after a pause."""
        self.blame += blame
        self.deaths += blame > 0
        if self.blame >= patience:
            return True
        wait = _PAUSE * 2.0 ** (self.deaths - 2) if self.deaths > 1 else 0.0
        self.due = time.monotonic() + min(wait, _LONGEST_PAUSE)
        return False


def restart_due(handles: Sequence[WorkerHandle], spawn: Callable[[int], None]) -> float:
    """Start the workers anew whose time has come; returns the seconds until the next one's."""
    now, soonest = time.monotonic(), float("inf")
    for worker, handle in enumerate(handles):
        if handle.due is not None:
            if handle.due <= now:
                handle.due = None
                spawn(worker)
            else:
                soonest = min(soonest, handle.due - now)
    return soonest
