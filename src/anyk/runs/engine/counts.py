"""Counts of a run's chunks by how they ended, and statistics of the messages that a step used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

ENDINGS = ("counted", "late_counted", "discarded", "cancelled", "lost")


@dataclass(slots=True)
class Counts:
    """Numbers of chunks by how they ended.

    ``counted``: used in the step from the version that they were computed on; ``late_counted``: used in a later step
    (staleness above 0); ``discarded``: arrived but not used, as it was late, superfluous or contradicted by another
    message; ``cancelled``: cancelled before the message arrived; ``lost``: the worker died or sent no usable message.
    """

    dispatched: int = 0
    counted: int = 0
    late_counted: int = 0
    discarded: int = 0
    cancelled: int = 0
    lost: int = 0
    # messages that were refused: errors, and those that were not finite, had a wrong length or contradicted another;
    # such a chunk is lost, or discarded if its message had been accepted before
    unusable: int = 0
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


class Usage(NamedTuple):
    """Statistics of the messages that a step used.

    ``replies``: messages used for the first time; ``by``: their senders. ``staleness`` and ``stalest``: mean and
    maximum over all messages, in versions.
    """

    replies: int
    staleness: float
    stalest: int
    by: Collection[int] = ()
