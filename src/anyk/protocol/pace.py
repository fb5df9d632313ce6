"""The pace of strategies, and the facts of delay models from which it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Pace:
    """The pace of a strategy: expected ``seconds`` of an update and mean ``staleness``; None if unknown.

    ``why``: the formula and its assumptions.
    """

    seconds: float | None
    staleness: float | None
    why: str


class DelayLaw(Protocol):
    """Facts of a delay model, such as :class:`anyk.delays.DelayModel`."""

    @property
    def spec(self) -> str:
        """The delay model as text."""
        ...

    @property
    def memoryless(self) -> bool:
        """Whether the remaining delay has the same distribution as a new delay."""
        ...

    @property
    def steady(self) -> bool:
        """Whether a worker that never waits has the expected delay on average."""
        ...

    @property
    def uninterruptible(self) -> bool:
        """Whether a worker cannot be preempted during a delay."""
        ...

    def expected(self, worker: int = 0) -> float | None:
        """Return the mean delay of a worker in seconds."""
        ...

    def order_statistic(self, k: int, workers: int) -> float | None:
        """Return the mean of the k-th smallest delay of the workers in seconds."""
        ...

    def longest_sum(self, terms: int, workers: int) -> float | None:
        """Return the mean of the largest of the workers' sums of ``terms`` delays in seconds."""
        ...

    def short_of(self, k: int, workers: int, begin: float, end: float) -> float | None:
        """Return the mean time between ``begin`` and ``end`` with fewer than k delays over, in seconds."""
        ...
