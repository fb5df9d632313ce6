"""Records of tasks that were dispatched together, and the status of each of their chunks."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from typing import Any

from anyk.base.errors import RunFailed
from anyk.protocol import Chunk, Cut, Failed, Progress, Reply, Task, Timing

# status of a chunk; CANCELLED: cancelled, but its end is not yet known; KEPT: counted, but its message is still stored
OPEN, ARRIVED, ENDED, CANCELLED, KEPT = range(5)


class Batch:
    """Tasks dispatched together: one record for all, so that a round of many workers costs little more than of few.

    ``status`` is a table with a row of ``width`` cells for each task, one for each of its chunks; cells without a chunk
    count as ended. ``left``: chunks that may still be used, or used again. Cancelled chunks are not among them, so a
    batch is closed and its model version released without waiting for workers that do not answer. ``timing`` and
    ``done`` are by cell; ``dispatched``: time in seconds; ``cancelled``: times of cancellation in seconds, by task.
    """

    __slots__ = (
        "cancelled",
        "chunks",
        "closed",
        "dispatched",
        "done",
        "first",
        "left",
        "status",
        "timing",
        "versions",
        "width",
        "workers",
    )

    def __init__(
        self, first: int, workers: Sequence[int], chunks: Sequence[Task], versions: dict[str, int], dispatched: float
    ) -> None:
        self.first, self.workers, self.chunks = first, workers, chunks
        self.versions, self.dispatched = versions, dispatched
        count = len(workers)
        self.width = width = len(chunks[0]) if count == 1 else max(map(len, chunks), default=1)
        self.status = bytearray(count * width)
        self.left = count * width
        if width > 1:
            self.left = sum(map(len, chunks))
            for i, task in enumerate(chunks):
                self.status[i * width + len(task) : (i + 1) * width] = bytes([ENDED]) * (width - len(task))
        self.closed = False
        self.cancelled: dict[int, float] = {}
        self.timing: dict[int, tuple[Timing | None, float]] = {}
        self.done: dict[int, int] = {}  # partitions that workers have reported as finished

    def cell_of(self, event: Reply | Failed | Progress | Cut) -> int:
        """Return the cell of the chunk of an event; raise :class:`~anyk.RunFailed` if there is none."""
        if not 0 <= event.chunk < self.width:
            raise RunFailed(f"worker {event.worker} reports chunk {event.chunk} of a task with {self.width} chunks")
        return (event.task - self.first) * self.width + event.chunk

    def chunk(self, cell: int) -> Chunk:
        """Return the chunk of a cell."""
        return self.chunks[cell // self.width][cell % self.width]

    def cells(self, task: int, status: int) -> list[int]:
        """Return the cells of a task's chunks that have this status."""
        start = (task - self.first) * self.width
        return [cell for cell in range(start, start + self.width) if self.status[cell] == status]

    def slots(self) -> set[str]:
        """Return the slots whose models the chunks use."""
        if self.width == 1 and self.chunks[0][0].slot == self.chunks[-1][0].slot and len(self.versions) == 1:
            return {self.chunks[0][0].slot}
        return {chunk.slot for task in self.chunks for chunk in task}

    def plain(self, among: Container[int]) -> list[Any]:
        """Return the batch as plain data; tasks that are not ``among`` the given ones count as ended."""
        status = list(self.status)
        for task in range(self.first, self.first + len(self.workers)):
            if task not in among:
                start = (task - self.first) * self.width
                status[start : start + self.width] = [ENDED] * self.width
        records = [list(values.items()) for values in (self.timing, self.cancelled, self.done)]
        return [self.first, list(self.workers), self.chunks, self.versions, self.dispatched, status, *records]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Batch:
        """Return the batch that :meth:`plain` described, read from JSON."""
        first, workers, chunks, versions, dispatched, status, timing, cancelled, done = plain
        batch = cls(first, workers, [tuple(map(Chunk.from_plain, task)) for task in chunks], versions, dispatched)
        batch.status, batch.left = bytearray(status), sum(s in (OPEN, ARRIVED, KEPT) for s in status)
        batch.timing = {cell: (None if t is None else Timing(*t), received) for cell, (t, received) in timing}
        batch.cancelled, batch.done = dict(cancelled), dict(done)
        return batch


def plain_weight(weight: Any) -> float | str:
    """Return the weight of a message as the log stores it: JSON if there is one for each block."""
    return weight if isinstance(weight, (int, float)) else json.dumps(list(weight))
