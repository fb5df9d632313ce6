"""Statistics of a table of times: costs of rounds and workers, and tests of these against chance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from anyk.arrays import Flags, Floats

SHUFFLES = 199
_COST_SHUFFLES = 499
_NAMED = 0.96  # quantile that a worker's cost must exceed; the margin keeps false culprits below 5 % of fleets
_NAMED_IN_BLOCKS = 0.985  # the same if slowness lasts, because its duration is only estimated
DRIFT = 1.1  # times the first quarter: the least drift that is reported
STRAGGLER = 1.5  # times the round's median
_ENOUGH = 10  # rounds, at the least, to form groups of workers


def lower_median(times: ArrayLike) -> Floats:
    """Return the lower median of each row's values that are not nan, shape (rows,).

    >>> lower_median([[1.0, 2.0, 3.0, 9.0], [5.0, np.nan, 4.0, np.nan]]).tolist()
    [2.0, 4.0]
    """
    ordered = np.sort(np.asarray(times, dtype=float), axis=1)
    counts = np.isfinite(ordered).sum(axis=1)
    return np.asarray(ordered[np.arange(len(ordered)), np.maximum(counts - 1, 0) // 2])


def shares(times: ArrayLike) -> Floats:
    """Return each worker's Shapley share of each round's excess over its lower median, in seconds, same shape.

    The excess of a set of workers is the excess of its slowest worker, as in the airport game (Littlechild and Owen
    1973): with excesses sorted, the r-th of n adds ``(c_r - c_{r-1}) / (n - r + 1)`` to its own share and to the shares
    of all slower workers. Rows add up to ``max - median``. The share of a time that is nan is 0.

    >>> shares([[1.0, 1.0, 3.0, 4.0]]).tolist()
    [[0.0, 0.0, 1.0, 2.0]]
    """
    table = np.asarray(times, dtype=float)
    order = np.argsort(table, axis=1)  # nan last
    ordered = np.take_along_axis(table, order, axis=1)
    finite = np.isfinite(ordered)
    excess = np.where(finite, np.maximum(ordered - lower_median(table)[:, None], 0.0), 0.0)
    steps = np.diff(excess, axis=1, prepend=0.0)
    behind = finite.sum(axis=1)[:, None] - np.arange(table.shape[1])
    part = np.where(finite, np.cumsum(steps / np.maximum(behind, 1), axis=1), 0.0)
    result = np.zeros_like(table)
    np.put_along_axis(result, order, part, axis=1)
    return result


def persistence(costs: ArrayLike) -> tuple[int, float]:
    """Return a block length in rounds and a factor that together account for costs that last several rounds.

    ``costs``: seconds, rounds x workers. Dependence between rounds multiplies the variance of a worker's total by
    ``inflation``, which follows from the autocorrelation about each worker's mean, pooled over workers, up to the first
    lag at which it is not positive and at most a tenth of the rounds. Differences between workers' means count as
    variance without dependence: to be slow throughout is no persistence. A block is twice the inflation, at most a
    sixth of the rounds; the factor is the ratio of the standard deviations of a total and of a sum of independent
    blocks.

    >>> persistence([[1.0, 0.0], [0.0, 1.0]] * 10)
    (1, 1.0)
    >>> length, factor = persistence(np.repeat([[1.0, 0.0], [0.0, 1.0]] * 10, 3, axis=0))
    >>> length, round(factor, 2)
    (3, 1.08)
    """
    table = np.asarray(costs, dtype=float)
    rounds = len(table)
    centred = table - table.mean(axis=0)
    positive: list[float] = []
    for lag in range(rounds // 10 + 1):
        value = float((centred[: rounds - lag] * centred[lag:]).sum() / (rounds - lag))
        if value <= 0.0:
            break
        positive.append(value)
    if len(positive) < 2:
        return 1, 1.0
    lags, covariance = np.arange(len(positive)), np.array(positive)
    weights = np.where(lags, 2.0, 1.0) * (1.0 - lags / rounds)
    # Subtracting a worker's mean lowers each covariance by that mean's variance, which is a sum of covariances itself.
    covariance += weights @ covariance / (rounds - weights.sum())
    correlation = covariance / max(covariance[0], float(((table - table.mean()) ** 2).sum()) / rounds)
    inflation = 1.0 + float(weights[1:] @ correlation[1:])
    length = max(1, min(round(2.0 * inflation), rounds // 6))
    within = 1.0 + float(2.0 * (1.0 - lags[1:length] / length) @ correlation[1:length])
    return length, float(np.sqrt(max(1.0, inflation / within)))


def stands_out(costs: Floats, generator: np.random.Generator) -> Flags:
    """Return which workers cost more in total than chance explains, shape (workers,).

    Totals are compared with the largest totals after shuffling costs among workers within blocks of rounds, which keep
    lasting slowness together (:func:`persistence`). Shuffling within single rounds would treat every burst as evidence
    of a culprit; shifting each worker's rounds would not change its total.
    """
    length, factor = persistence(costs)
    blocks = np.stack([part.sum(axis=0) for part in np.array_split(costs, len(costs) // length)])
    largest = [generator.permuted(blocks, axis=1).sum(axis=0).max() for _ in range(_COST_SHUFFLES)]
    total = costs.sum(axis=0)
    mean = total.mean()
    quantile = _NAMED if length == 1 else _NAMED_IN_BLOCKS
    threshold = mean + factor * (np.sort(largest)[int(quantile * _COST_SHUFFLES)] - mean)
    return np.asarray(total > threshold * (1 + 1e-12))


def exceeds(table: ArrayLike, statistic: Callable[[ArrayLike], float], generator: np.random.Generator) -> bool:
    """Return whether a statistic of ordered rounds exceeds its 95 % quantile over shuffles of the rounds."""
    shuffled = [statistic(generator.permutation(table)) for _ in range(SHUFFLES)]
    return bool(statistic(table) > np.sort(shuffled)[int(0.95 * SHUFFLES)] + 1e-12)


def late(times: Floats) -> Flags:
    """Return which times exceed :data:`STRAGGLER` times the median of their round, shape (rounds, workers)."""
    return np.nan_to_num(times) > STRAGGLER * lower_median(times)[:, None]


def mean_burst(straggling: ArrayLike) -> float:
    """Return the mean number of consecutive rounds in which a worker straggles; 0 if none does."""
    flags = np.asarray(straggling, dtype=bool)
    begins = flags & ~np.vstack([np.zeros(flags.shape[1], bool), flags[:-1]])
    return float(flags.sum() / max(1, begins.sum()))


def gilbert_elliott(straggling: Flags) -> tuple[float, float]:
    """Return the chances that a worker starts, and stops, to straggle in a round; nan if never observed."""
    before, after = straggling[:-1], straggling[1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        begin = np.divide((~before & after).sum(), (~before).sum())
        stop = np.divide((before & ~after).sum(), before.sum())
    return float(begin), float(stop)


def drift(times: ArrayLike) -> float:
    """Return the median round of the last quarter over the median round of the first, by rounds' lower medians."""
    medians = lower_median(times)
    quarter = max(1, len(medians) // 4)
    first, last = float(np.median(medians[:quarter])), float(np.median(medians[-quarter:]))
    return last / first if first > 0 else 1.0


def heaviness(times: Floats) -> float:
    """Return Hill's estimate of the tail exponent from the slowest 5 % of all times; infinite if they are equal."""
    values = np.sort(times[np.isfinite(times) & (times > 0)])
    upper = values[-max(2, len(values) // 20) :]
    spread = float(np.log(upper / upper[0]).mean()) if len(upper) else 0.0
    return 1.0 / spread if spread > 0 else float("inf")


def autocorrelation(times: Floats, lags: int = 10) -> list[float]:
    """Return the autocorrelation of workers' times, pooled over workers, at lags 1 to ``lags``."""
    centred = np.nan_to_num(times - np.nanmean(times, axis=0))
    power = float((centred**2).sum())
    most = min(lags, len(times) - 2)
    return [float((centred[lag:] * centred[:-lag]).sum() / power) if power else 0.0 for lag in range(1, most + 1)]


def groups(times: Floats, generator: np.random.Generator) -> list[tuple[list[int], float]]:
    """Return groups of workers that are slow in the same rounds more than chance explains, and mean correlations.

    ``log(time / round's median)`` is correlated. Groups come from average linkage, cut at 0.5 or at the 95 % quantile
    of the largest correlation over shuffles of each worker's rounds, whichever is larger.
    """
    rounds, workers = times.shape
    if rounds < _ENOUGH or workers < 3 or not np.isfinite(times).all():
        return []
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    with np.errstate(divide="ignore"):
        ratio = np.log(np.maximum(times, 1e-12) / np.maximum(lower_median(times), 1e-12)[:, None])
    ratio -= ratio.mean(axis=0)
    size = np.linalg.norm(ratio, axis=0)
    ratio /= np.where(size > 1e-9, size, np.inf)
    upper = np.triu_indices(workers, 1)
    shuffles = (generator.permuted(ratio, axis=0) for _ in range(39))
    chance = sorted(float((mixed.T @ mixed)[upper].max()) for mixed in shuffles)
    least = max(0.5, chance[int(0.95 * len(chance))])
    correlation = np.clip(ratio.T @ ratio, -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    labels = fcluster(linkage(squareform(1.0 - correlation, checks=False), "average"), 1.0 - least, "distance")
    slow_together = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if 2 <= len(members) < workers:
            inner = correlation[np.ix_(members, members)]
            mean = (inner.sum() - len(members)) / (len(members) * (len(members) - 1))
            slow_together.append((members.tolist(), float(mean)))
    return sorted(slow_together, key=lambda group: -len(group[0]))


def slow_kind(times: Floats) -> tuple[list[int], float] | None:
    """Return the workers of a slow kind and the factor by which they are slower; None if they are under a half.

    The largest gap between the workers' medians, in logarithms, separates the kinds if it is at least 1.3.
    """
    medians = np.nanmedian(times, axis=0)
    order = np.argsort(medians, kind="stable")
    ordered = np.maximum(medians[order], 1e-12)
    if len(ordered) < 2:
        return None
    gaps = np.diff(np.log(ordered))
    at = int(gaps.argmax())
    slow = order[at + 1 :]
    if gaps[at] < np.log(1.3) or 2 * len(slow) < len(order):
        return None
    return sorted(slow.tolist()), float(np.median(ordered[at + 1 :]) / np.median(ordered[: at + 1]))
