"""Links over which messages are read on a simulated cluster, once their delays are over."""

from __future__ import annotations

from collections.abc import Mapping, Set
from heapq import heappush
from typing import Any, Protocol

from anyk.clusters.injection import InFlight
from anyk.clusters.virtual.cores import COMPUTED, Entry


class LinkReading(Protocol):
    """How long it takes to read messages, which may wait for each other."""

    def arrival(self, time: float, task: int, chunk: int, entry: InFlight) -> float:
        """Return the time at which a message has arrived that can be read from ``time`` on."""
        ...

    def clear(self) -> None:
        """Forget the messages of before, as nobody reads any more."""
        ...


class Links:
    """Passes messages on when they have been read; in the place of cores, on which they would be computed."""

    busy = False  # a read that is not wanted any more ends at once

    def __init__(self, reading: LinkReading, heap: list[Entry], unwanted: Set[int]) -> None:
        self._reading, self._heap, self._unwanted = reading, heap, unwanted

    def join(self, time: float, task: int, chunk: int, entry: InFlight) -> None:
        """Begin to read a message at ``time``."""
        read = task not in self._unwanted  # else it has been cancelled, and finishes in vain
        arrival = self._reading.arrival(time, task, chunk, entry) if read else time
        heappush(self._heap, (arrival, task, entry.worker, chunk, COMPUTED))

    def leave(self, time: float, task: int, chunk: int, in_flight: Mapping[int, InFlight]) -> None:
        """Do nothing: a message that has been read keeps nobody waiting."""

    def clear(self) -> None:
        """Forget all messages."""
        self._reading.clear()

    def state(self) -> dict[str, Any]:
        """Raise: messages that are being read are not saved."""
        raise NotImplementedError("a simulated cluster whose messages are read over links cannot be saved")

    def restore(self, state: dict[str, Any]) -> None:
        """Raise, as :meth:`state` does."""
        raise NotImplementedError("a simulated cluster whose messages are read over links cannot be restored")
