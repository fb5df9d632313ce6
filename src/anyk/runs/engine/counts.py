"""Counts of a run's chunks by how they ended, and statistics of the messages that a step used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

ENDINGS = ("counted", "late_counted", "discarded", "cancelled", "lost")


@dataclass(slots=True)
class Counts:
    """Chunks by how they ended.

    ``counted``: used in the step for the version they were computed on; ``late_counted``: in a later step (staleness
    above 0); ``discarded``: the message arrived and was not used; ``cancelled``: before it arrived; ``lost``: its
    worker died or gave no usable message. ``open`` are still under way.
    """

    dispatched: int = 0
    counted: int = 0
    late_counted: int = 0
    discarded: int = 0
    cancelled: int = 0
    lost: int = 0
    unusable: int = 0  # of the lost: messages that were not finite, too short, or errors
    compared: int = 0  # messages that were compared with others before they were used
    differed: int = 0  # messages that contradicted others; they were not used

    def end(self, ending: str) -> None:
        """Count a chunk that has ended in one of :data:`ENDINGS`."""
        setattr(self, ending, getattr(self, ending) + 1)

    @property
    def ended(self) -> int:
        """The number of chunks that have ended."""
        return self.counted + self.late_counted + self.discarded + self.cancelled + self.lost

    @property
    def open(self) -> int:
        """The number of chunks that have not ended."""
        return self.dispatched - self.ended

    def plain(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return asdict(self)


class Used(NamedTuple):
    """The messages of a step: the number used for the first time, the number of their workers, and staleness."""

    replies: int
    workers: int
    staleness: float  # mean
    stalest: int
    by: Collection[int] = ()  # the workers
