"""The driver's records of workers, and notices of their reports and deaths."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from anyk.clusters.contract import Report
from anyk.clusters.remote.orders import NO_TASK, pack
from anyk.protocol import Task

# seconds before a worker that has died twice in a row is restarted, and the longest such pause
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class Notice(NamedTuple):
    """A report that has arrived; ``at``, the time of arrival, and the report's times are on the driver's clock."""

    at: float
    worker: int
    incarnation: int
    buffer: Any  # the place of its message
    report: Report


class Died(NamedTuple):
    """A worker has ended; ``blame``: 4 for a crash, 1 if the cause may have been outside the worker."""

    worker: int
    incarnation: int
    reason: str
    blame: int = 1


class Departure(NamedTuple):
    """A worker is to leave within ``seconds``."""

    worker: int
    incarnation: int
    seconds: float


class WorkerHandle:
    """The driver's record of a worker, with its newest orders."""

    def __init__(self) -> None:
        self.incarnation = -1
        self.present = False
        self.blame = 0  # total blame for its deaths since its last message
        self.deaths = 0
        self.due: float | None = None  # time at which it is to be restarted, if it has died
        self.gone = False  # abandoned for good
        self.preempt = False  # whether the worker is to stop its current task
        self.clock = 0.0  # its clock minus the driver's, in seconds
        # question about losses: number, place of the model, slot, partitions, samples
        self.question: list[Any] | None = None
        self.forget()

    def forget(self) -> None:
        """Drop the worker's orders."""
        self.task = NO_TASK
        self.times = 0.0, 0.0, 0.0  # start, delay before, delay each
        self.chunks: Task = ()
        self.packed_chunks = msgspec.Raw(pack(()))
        self.places: list[int] = []  # of the chunks' models
        self.versions: tuple[int, ...] = ()  # of the chunks' models
        self.carried: Sequence[Any] = ()  # values that the chunks' models carry
        self.requests: list[Any] = []  # requests for messages

    def sent_something(self) -> None:
        """Record that a message has arrived: earlier deaths no longer count."""
        self.blame = self.deaths = 0

    def died(self, blame: int, patience: int) -> bool:
        """Record a death; return whether to abandon the worker, which is otherwise restarted after a pause."""
        self.blame += blame
        self.deaths += blame > 0
        if self.blame >= patience:
            return True
        wait = _PAUSE * 2.0 ** (self.deaths - 2) if self.deaths > 1 else 0.0
        self.due = time.monotonic() + min(wait, _LONGEST_PAUSE)
        return False


def is_stopped(pid: int) -> bool:
    """Return whether a process of this machine is stopped (SIGSTOP); False where there is no ``/proc``."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    return False
