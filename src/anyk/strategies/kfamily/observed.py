"""Durations of tasks that a strategy observes, including cancelled tasks, and their order statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Floats

_TAIL = 50  # points that represent the tail beyond the longest time observed


def order_means(seconds: ArrayLike, workers: int, masses: ArrayLike | None = None) -> Floats:
    """Return the mean of the k-th smallest of ``workers`` draws from a sample, for k = 1, …, workers; shape (workers,).

    ``masses``: the probability of each value (default: equal). It is the sum over the sorted sample of
    ``x_i (I(F_i; k, n-k+1) - I(F_(i-1); k, n-k+1))``, with I the regularised incomplete beta function.

    >>> order_means([0.0, 1.0], 2).round(6).tolist()
    [0.25, 0.75]
    """
    from scipy.special import betainc

    values = np.asarray(seconds, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    shares = np.full(values.size, 1.0 / values.size) if masses is None else np.asarray(masses, dtype=np.float64)
    below = np.minimum(np.concatenate(([0.0], np.cumsum(shares[order]))), 1.0)
    below[-1] = 1.0
    k = np.arange(1, workers + 1)[:, None]
    return np.asarray(np.diff(betainc(k, workers - k + 1, below[None, :]), axis=1) @ values[order])


@dataclass(slots=True)
class Durations:
    """The last ``keep`` durations of tasks in seconds; the duration of a cancelled task is only a lower bound.

    Their distribution is the product-limit estimate of Kaplan and Meier (1958). Beyond the longest complete duration it
    is assumed to be exponential, with the mean of the total time on test.

    >>> durations = Durations(keep=100)
    >>> for seconds in (1.0, 2.0, 3.0):
    ...     durations.add(seconds)
    >>> durations.means(3).round(3).tolist()
    [1.333, 2.0, 2.667]
    """

    keep: int
    entries: list[tuple[float, bool]] = field(default_factory=list)  # seconds, and whether the task ended

    def add(self, seconds: float, *, ended: bool = True) -> None:
        """Add a duration; ``ended=False``: the task was cancelled then."""
        self.entries.append((seconds, ended))
        del self.entries[: -self.keep]

    def __len__(self) -> int:
        """Return the number of complete durations."""
        return sum(ended for _, ended in self.entries)

    def law(self) -> tuple[Floats, Floats]:
        """Return durations and the probability of each."""
        rows = sorted((seconds, not ended) for seconds, ended in self.entries)
        seconds = np.array([row[0] for row in rows])
        ended = np.array([not row[1] for row in rows])
        at_risk = np.arange(len(rows), 0, -1)
        survival = np.cumprod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0))
        masses = np.concatenate(([1.0], survival[:-1])) - survival
        values, tail = seconds[ended], float(survival[-1])
        if tail > 1e-12:
            mean = seconds.sum() / max(1, int(ended.sum()))
            quantiles = (np.arange(_TAIL) + 0.5) / _TAIL
            last = seconds[ended].max() if ended.any() else 0.0
            values = np.concatenate((values, last - mean * np.log1p(-quantiles)))
            return values, np.concatenate((masses[ended], np.full(_TAIL, tail / _TAIL)))
        return values, masses[ended]

    def mean(self) -> float:
        """Return the mean duration."""
        values, masses = self.law()
        return float(values @ masses)

    def means(self, workers: int) -> Floats:
        """Return the mean of the k-th smallest of ``workers`` durations, for k = 1, …, workers; shape (workers,)."""
        values, masses = self.law()
        return order_means(values, workers, masses)
