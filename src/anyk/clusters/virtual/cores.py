"""The cost of computing on a simulated machine: tasks queue for its cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappush
from typing import Annotated, Any

import msgspec

from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput
from anyk.clusters.injection import InFlight
from anyk.delays.base import MOST

# (time, task, worker, chunk, kind); at equal times the earlier task comes first. A plain tuple, as the heap compares
# millions of entries. A kind of at least 1 is the number of finished partitions.
Entry = tuple[float, int, int, int, int]

DUE = -1  # a chunk's delay is over: its message arrives, or, if computing takes time, it queues for a core
REQUESTED = -2  # a requested message has been sent
COMPUTED = -3  # a chunk leaves its core, and its message arrives

Cost = Annotated[float, msgspec.Meta(ge=0, le=MOST)]  # seconds


@typed
@dataclass(frozen=True)
class Compute:
    """The cost of computing on a simulated machine, in seconds; tasks queue for ``cores``.

    ``task``: fixed cost of a message; ``partition``: cost of each partial gradient, for all workers or for each;
    ``step``: what the driver does between a step's last reply and the next dispatch.
    """

    task: Cost
    partition: Cost | tuple[Cost, ...]
    step: Cost
    cores: AtLeastOne

    def partition_of(self, worker: int) -> float:
        """Return a worker's cost of a partial gradient, in seconds."""
        return self.partition[worker] if isinstance(self.partition, tuple) else self.partition

    def check_fleet(self, workers: int) -> None:
        """Raise :class:`~anyk.BadInput` if costs are given for another number of workers."""
        if isinstance(self.partition, tuple) and len(self.partition) != workers:
            raise BadInput(f"partition costs are given for {len(self.partition)} workers, the fleet has {workers}")


class Cores:
    """Records the chunks that compute or wait for a core, and adds the ends of computing to the heap of entries."""

    def __init__(self, compute: Compute, heap: list[Entry], unit: float) -> None:
        self._compute, self._heap, self._unit = compute, heap, unit
        self._waiting: deque[tuple[int, int]] = deque()
        self._computing: set[tuple[int, int]] = set()

    @property
    def busy(self) -> bool:
        """Whether any chunk is computing."""
        return bool(self._computing)

    def join(self, time: float, task: int, chunk: int, entry: InFlight) -> None:
        """Start computing a chunk at ``time``, or as soon as a core is free."""
        if len(self._computing) >= self._compute.cores:
            self._waiting.append((task, chunk))
            return
        work = entry.chunks[chunk]
        partitions = len(work.partitions) * self._unit * max(1, work.steps)
        cost = self._compute.task + self._compute.partition_of(entry.worker) * partitions
        self._computing.add((task, chunk))
        heappush(self._heap, (time + cost, task, entry.worker, chunk, COMPUTED))

    def leave(self, time: float, task: int, chunk: int, in_flight: Mapping[int, InFlight]) -> None:
        """Record that a chunk is computed; the next waiting chunk gets its core."""
        self._computing.remove((task, chunk))
        while self._waiting:
            task, chunk = self._waiting.popleft()
            entry = in_flight.get(task)
            if entry is not None:
                self.join(time, task, chunk, InFlight._make(entry))
                return

    def clear(self) -> None:
        """Drop the waiting chunks."""
        self._waiting.clear()

    def state(self) -> dict[str, Any]:
        """Return the computing and waiting chunks, as plain data."""
        return {"computing": list(self._computing), "waiting": list(self._waiting)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self._computing = msgspec.convert(state["computing"], set[tuple[int, int]])
        self._waiting.extend(msgspec.convert(state["waiting"], list[tuple[int, int]]))
