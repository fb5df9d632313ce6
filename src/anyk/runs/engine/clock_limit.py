"""The pace of a virtual clock: a limit of seconds that would take too many steps to reach is refused."""

from __future__ import annotations

from anyk.errors import RunFailed

_MOST = 1_000_000  # steps that a limit of seconds may take on a virtual clock; without one of steps
_EVERY = 1000  # steps between two checks


class ClockLimit:
    """Checks the virtual clock at regular steps; ``begun``: the step at which the run began."""

    def __init__(self, seconds: float, begun: int) -> None:
        self._seconds, self._begun = seconds, begun
        self._look = _EVERY

    def check(self, step: int, now: float) -> None:
        """Raise :class:`~anyk.errors.RunFailed` if too little time has passed for the steps taken."""
        steps = step - self._begun
        if steps < self._look:
            return
        if now * _MOST < self._seconds * steps:
            raise RunFailed(
                f"{steps:,} steps took {now:.3g} s of the virtual clock; at this pace a limit of {self._seconds:g} "
                f"seconds takes more than {_MOST:,} steps; give steps as well, or longer delays"
            )
        self._look = steps + _EVERY
