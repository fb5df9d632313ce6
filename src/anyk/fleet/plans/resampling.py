"""Prediction intervals for means of series that depend on themselves: the circular block bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anyk.delays.base import Floats

LEVEL = 0.90
_LEAST = 1e-6  # of the mean: the lower limit of a resample


def block_length(series: ArrayLike) -> float:
    """Return the block length that suits a series' mean best, in rounds.

    Politis and White (2004) with the correction of Patton, Politis and White (2009), for the circular bootstrap. 1 for
    a series that is constant or shorter than 4.

    >>> random = np.random.default_rng(0)
    >>> white = random.normal(size=2000)
    >>> walk = np.zeros(2000)
    >>> for t in range(1, 2000):
    ...     walk[t] = 0.9 * walk[t - 1] + white[t]
    >>> block_length(white) < 5 < 20 < block_length(walk)
    True
    """
    values = np.asarray(series, dtype=np.float64)
    n = len(values)
    centred = values - values.mean()
    if n < 4 or not centred.any():
        return 1.0
    least = max(5, int(np.sqrt(np.log10(n))))
    most = min(n - 1, int(np.ceil(np.sqrt(n))) + least)
    covariance = np.array([float(centred[: n - lag] @ centred[lag:]) / n for lag in range(most + 1)])
    small = np.abs(covariance[1:] / covariance[0]) < 2.0 * np.sqrt(np.log10(n) / n)
    runs = [m for m in range(len(small) - least + 1) if small[m : m + least].all()]
    significant = np.flatnonzero(~small) + 1
    last = runs[0] if runs else int(significant[-1]) if len(significant) else 1
    wide = min(2 * max(last, 1), most)
    lags = np.arange(-wide, wide + 1)
    window = np.clip(2.0 * (1.0 - np.abs(lags) / wide), 0.0, 1.0)
    weighted = window * covariance[np.abs(lags)]
    spread, level = float((weighted * np.abs(lags)).sum()), float(weighted.sum())
    if level <= 0.0:
        return 1.0
    best = (2.0 * spread**2 / (4.0 / 3.0 * level**2)) ** (1.0 / 3.0) * n ** (1.0 / 3.0)
    return float(min(max(1.0, best), np.ceil(min(3.0 * np.sqrt(n), n / 3.0))))


@dataclass(frozen=True)
class Resampled:
    """Weights of rounds in resamples of the record (``past``) and of a future run, each of shape (resamples, rounds).

    ``effective``: the number of independent blocks in the record.
    """

    past: Floats
    future: Floats
    effective: float

    def spread(self, series: Floats) -> tuple[Floats, Floats]:
        """Return logarithms of mean seconds in the record's resamples, and of future runs relative to the record.

        ``series``: seconds, shape (candidates, rounds). Both results have shape (resamples, candidates).
        """
        means = series.mean(axis=1)
        least = _LEAST * means  # simultaneous steps have no logarithm
        past, future = (np.log(np.maximum(weights @ series.T, least)) for weights in (self.past, self.future))
        return past, future - np.log(means)

    def widened(self, deviations: Floats) -> tuple[float, float]:
        """Return the 5 % and 95 % quantiles of deviations, widened as by Student's t for few independent blocks."""
        wider = student_factor(self.effective)
        low, high = np.quantile(deviations, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
        return float(low * wider), float(high * wider)


def student_factor(count: float) -> float:
    """Return the factor by which Student's t widens a 90 % interval for ``count`` independent values."""
    from scipy.stats import t

    return float(np.sqrt(count / (count - 1.0)) * t.ppf(0.5 + LEVEL / 2.0, count - 1.0) / 1.645)


def resample(rounds: int, steps: int, block: int, resamples: int, generator: np.random.Generator) -> Resampled:
    """Sample rounds in circular blocks, for the length of the record and for a future run of ``steps`` steps."""
    return Resampled(
        _weights(rounds, rounds, block, resamples, generator),
        _weights(rounds, steps, block, resamples, generator),
        max(2.0, rounds / block),
    )


def _weights(rounds: int, length: int, block: int, resamples: int, generator: np.random.Generator) -> Floats:
    """Return the share of each round in samples of ``length`` rounds, shape (resamples, rounds)."""
    starts = generator.integers(0, rounds, size=(resamples, -(-length // block)))
    weights = np.zeros((resamples, rounds))
    rows = np.arange(resamples)
    for number in range(length):
        np.add.at(weights, (rows, (starts[:, number // block] + number % block) % rounds), 1.0)
    return weights / length
