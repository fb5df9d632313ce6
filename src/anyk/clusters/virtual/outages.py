"""Workers that are lost and join again at given times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from anyk.protocol import Joined, Lost

_LOST, _JOINED = 0, 1  # of two at the same time the loss comes first
_NEVER = float("inf")


class Outage(NamedTuple):
    """A worker is lost at ``time`` and joins again at ``back`` (None: never, it is given up)."""

    time: float
    worker: int
    back: float | None = None


class OutageQueue:
    """Losses and returns that are yet to come."""

    def __init__(self, outages: Iterable[Outage]) -> None:
        # (time, kind, worker, when it is back)
        self.heap = [(o.time, _LOST, o.worker, _NEVER if o.back is None else o.back) for o in outages]
        heapify(self.heap)

    @property
    def next(self) -> float:
        """When the first one comes; infinity if none does."""
        return self.heap[0][0] if self.heap else _NEVER

    def pop(self, now: float) -> Lost | Joined:
        """The first one as an event, at its time or at ``now`` where that is later."""
        time, kind, worker, back = heappop(self.heap)
        now = max(now, time)
        if kind == _JOINED:
            return Joined(now, worker)
        if back != _NEVER:
            heappush(self.heap, (max(back, now), _JOINED, worker, _NEVER))
        return Lost(now, worker, "simulated outage", gone=back == _NEVER)

    def state(self) -> list[Any]:
        """What is yet to come, as plain data."""
        return [(time, kind, worker, None if back == _NEVER else back) for time, kind, worker, back in self.heap]

    def restore(self, state: Sequence[Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.heap[:] = [(time, kind, worker, _NEVER if back is None else back) for time, kind, worker, back in state]
        heapify(self.heap)
