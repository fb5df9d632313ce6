"""The calendar of the virtual clock: alarms, and the losses and returns of workers."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from anyk.clusters.alarms import Alarms
from anyk.protocol import Alarm, Joined, Leaving, Lost

_LOST, _JOINED, _LEAVING = 0, 1, 2  # at equal times losses come first
_NEVER = float("inf")


class Outage(NamedTuple):
    """A worker is lost at ``time`` and joins again at ``back`` (None: never, it is abandoned).

    ``notice``: the number of seconds before ``time`` at which the loss is announced.
    """

    time: float
    worker: int
    back: float | None = None
    notice: float = 0.0


class Calendar:
    """Future alarms, losses and returns."""

    def __init__(self, outages: Sequence[Outage]) -> None:
        self.alarms = Alarms()
        # (time, kind, worker, time of its return)
        self.outages = [(o.time, _LOST, o.worker, _NEVER if o.back is None else o.back) for o in outages]
        self.outages += [(o.time - o.notice, _LEAVING, o.worker, o.time) for o in outages if o.notice > 0]
        heapify(self.outages)

    def pop(self, before: float, now: float) -> Alarm | Lost | Joined | Leaving | None:
        """Remove and return the first entry if its time is at most ``before``; entries before ``now`` happen now."""
        alarm_time, name = self.alarms.next()
        outage_time = self.outages[0][0] if self.outages else _NEVER
        time = min(alarm_time, outage_time)
        if time > before or time == _NEVER:
            return None
        now = max(now, time)
        if alarm_time <= outage_time:
            del self.alarms[name]
            return Alarm(now, name)
        _, kind, worker, back = heappop(self.outages)
        if kind == _JOINED:
            return Joined(now, worker)
        if kind == _LEAVING:
            return Leaving(now, worker, back)
        if back != _NEVER:
            heappush(self.outages, (max(back, now), _JOINED, worker, _NEVER))
        return Lost(now, worker, "simulated outage", gone=back == _NEVER)

    def state(self) -> dict[str, Any]:
        """Return the future entries, as plain data."""
        outages = [(time, kind, worker, None if back == _NEVER else back) for time, kind, worker, back in self.outages]
        return {"alarms": dict(self.alarms), "outages": outages}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self.alarms |= state["alarms"]
        self.outages[:] = [
            (time, kind, worker, _NEVER if back is None else back) for time, kind, worker, back in state["outages"]
        ]
        heapify(self.outages)
