"""The driver's record of its workers, and the notices that it gets from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anyk.clusters.contract import Report
from anyk.clusters.remote.worker import NO_TASK
from anyk.protocol import Task

_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before a worker is started again that has died twice in a row; at most


class Notice(NamedTuple):
    """A report as it comes in; ``at`` and the report's times are on the driver's clock."""

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
    """The driver's record of a worker, with its newest orders."""

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
        """Forget its orders."""
        self.task = NO_TASK
        self.times = 0.0, 0.0, 0.0  # start, delay before, delay each
        self.chunks: Task = ()
        self.body = b"[]"
        self.positions: list[int] = []
        self.requests: list[Any] = []  # for messages

    def sent_something(self) -> None:
        """Note that a message has come: earlier deaths no longer count."""
        self.blame = self.deaths = 0

    def died(self, blame: int, patience: int) -> bool:
        """Note a death; return whether that was one too many, else it is restarted after a pause."""
        self.blame += blame
        self.deaths += blame > 0
        if self.blame >= patience:
            return True
        wait = _PAUSE * 2.0 ** (self.deaths - 2) if self.deaths > 1 else 0.0
        self.due = time.monotonic() + min(wait, _LONGEST_PAUSE)
        return False


def restart_due(handles: Sequence[WorkerHandle], spawn: Callable[[int], None]) -> float:
    """Restart the workers that are due; return the seconds until the next restart."""
    now, soonest = time.monotonic(), float("inf")
    for worker, handle in enumerate(handles):
        if handle.due is not None:
            if handle.due <= now:
                handle.due = None
                spawn(worker)
            else:
                soonest = min(soonest, handle.due - now)
    return soonest
