"""The speed of strategies, and the facts of delay laws that it follows from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Pace:
    """The pace of a strategy: expected ``seconds`` of an update and mean ``staleness``; None where unknown.

    ``why``: the formula, and what it assumes.
    """

    seconds: float | None
    staleness: float | None
    why: str


class DelayLaw(Protocol):
    """Facts of a delay law; see :class:`anyk.delays.DelayModel`."""

    @property
    def spec(self) -> str:
        """The delay model as text."""
        ...

    @property
    def memoryless(self) -> bool:
        """Whether what is left of a delay under way is distributed as a new one."""
        ...

    @property
    def uninterruptible(self) -> bool:
        """Whether a worker cannot be preempted while it is held up."""
        ...

    def expected(self, worker: int = 0) -> float | None:
        """Mean delay of a worker in seconds."""
        ...

    def order_statistic(self, k: int, workers: int) -> float | None:
        """Mean of the k-th smallest delay of the workers, in seconds."""
        ...

    def longest_sum(self, terms: int, workers: int) -> float | None:
        """Mean of the largest of the workers' sums of so many delays, in seconds."""
        ...

    def short_of(self, k: int, workers: int, begin: float, end: float) -> float | None:
        """Mean time between ``begin`` and ``end`` in which fewer than k of the workers' delays are over, in seconds."""
        ...
