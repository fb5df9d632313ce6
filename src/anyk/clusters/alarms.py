"""The alarms that a strategy has set."""

from __future__ import annotations

from anyk.protocol import SetAlarm


class Alarms(dict[str, float]):
    """The times of alarms, by name."""

    def set(self, order: SetAlarm) -> None:
        """Set an alarm, or remove it."""
        if order.time is None:
            self.pop(order.name, None)
        else:
            self[order.name] = order.time

    def next(self) -> tuple[float, str]:
        """Return the time and the name of the next alarm; infinity if there is none."""
        return min(zip(self.values(), self, strict=True), default=(float("inf"), ""))
