"""Statistics of a table of times: costs of rounds and workers, and tests of these against chance."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from anyk.base import Flags, Floats

SHUFFLES = 199
_COST_SHUFFLES = 199
_NAMED = 0.98  # quantile that a worker's cost must exceed; the margin keeps false culprits below 5 % of fleets
_NAMED_IN_BLOCKS = 0.99  # the same if slowness lasts, because its duration is only estimated
BLOCKS = 6  # independent blocks of rounds, of which it takes more to name anybody
_OUTLIER = 0.025  # chance that a fleet without culprits has a total that is called an outlier
_DRIFT_CHANCE = 0.03
_FEW = 6  # workers below which totals have too few others to be outliers among
_TAILED = 16  # workers from which on the tail of totals can be judged
_POLISHES = 10
_SMALL = 500  # times of a record in which one worker's costs can hide how long those of the others last
_CAUTION = 0.7  # since so few times show little of how long slowness lasts
_HALF = 0.45  # share of rounds
_WITNESSED = 1000  # times of other workers, at the least
DRIFT = 1.1  # times the first quarter: the least drift that is reported
STRAGGLER = 1.5  # times the round's median
_ROTATIONS = 99
_APART = 0.5  # 1 minus the correlation at which groups are separated
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
    by_rank = np.where(finite, np.cumsum(steps / np.maximum(behind, 1), axis=1), 0.0)
    result = np.zeros_like(table)
    np.put_along_axis(result, order, by_rank, axis=1)
    return result


def relative(times: ArrayLike) -> Floats:
    """Return times over the level of their rounds, which is common to all workers, shape (rounds, workers).

    Without gaps the level is the round's lower median. With gaps it is the lower median of the measured workers' times,
    each divided by the worker's own factor, so that workers that were measured in other rounds can be compared
    (median polish, Tukey 1977). A round of level 0 counts as 1.

    >>> relative([[1.0, 1.0, 2.0], [20.0, np.nan, 40.0]]).tolist()
    [[1.0, 1.0, 2.0], [1.0, nan, 2.0]]
    """
    table = np.asarray(times, dtype=float)
    level = lower_median(table)
    if np.isnan(table).any():
        for _ in range(_POLISHES):
            factors = _factors(table / np.where(level > 0, level, np.nan)[:, None])
            level = lower_median(table / factors)
    usable = np.isfinite(level) & (level > 0)
    return np.where(
        usable[:, None], table / np.where(usable, level, 1.0)[:, None], np.where(np.isnan(table), np.nan, 1.0)
    )


def _factors(ratios: Floats) -> Floats:
    """Return each worker's median ratio over that of the (lower) median worker; 1 for a worker without any."""
    medians = np.ones(ratios.shape[1])
    for i, column in enumerate(ratios.T):
        measured = column[np.isfinite(column) & (column > 0)]
        if len(measured):
            medians[i] = float(np.median(measured))
    return medians / float(np.quantile(medians, 0.5, method="lower"))


def slowness_of(times: ArrayLike) -> Floats:
    """Return each worker's median time over its rounds' levels, shape (workers,); 1 is the median worker's.

    >>> slowness_of([[1.0, 1.0, 2.0], [20.0, np.nan, 40.0]]).tolist()
    [1.0, 1.0, 2.0]
    """
    return _factors(relative(times))


class Persistence(NamedTuple):
    """How long costs last: a block ``length`` in rounds, a ``factor``, and the number of independent ``blocks``."""

    length: int
    factor: float
    blocks: float


def persistence(costs: ArrayLike) -> Persistence:
    """Return a block length and a factor that account for costs that last several rounds, and the number of blocks.

    ``costs``: rounds x workers. Dependence between rounds multiplies the variance of a worker's total by an inflation,
    which follows from the autocorrelation about each worker's mean, pooled over workers, up to the first lag at which
    it is not positive and at most a fifth of the rounds. Differences between workers' means count as variance without
    dependence: to be slow throughout is no persistence. Independent blocks have twice the inflation in rounds. The
    ``length`` is at most a sixth of the rounds; the factor is the ratio of the standard deviations of a total and of a
    sum of independent blocks of this length.

    >>> persistence([[1.0, 0.0], [0.0, 1.0]] * 10)
    Persistence(length=1, factor=1.0, blocks=20.0)
    >>> length, factor, blocks = persistence(np.repeat([[1.0, 0.0], [0.0, 1.0]] * 10, 3, axis=0))
    >>> length, round(factor, 2), blocks
    (3, 1.08, 20.0)
    """
    table = np.asarray(costs, dtype=float)
    rounds = len(table)
    centred = table - table.mean(axis=0)
    positive: list[float] = []
    for lag in range(rounds // 5 + 1):
        value = float((centred[: rounds - lag] * centred[lag:]).sum() / (rounds - lag))
        if value <= 0.0:
            break
        positive.append(value)
    if len(positive) < 2:
        return Persistence(1, 1.0, float(rounds))
    lags, covariance = np.arange(len(positive)), np.array(positive)
    weights = np.where(lags, 2.0, 1.0) * (1.0 - lags / rounds)
    # Subtracting a worker's mean lowers each covariance by that mean's variance, which is a sum of covariances itself.
    covariance += weights @ covariance / max(rounds - weights.sum(), 0.2 * rounds)
    correlation = covariance / max(covariance[0], float(((table - table.mean()) ** 2).sum()) / rounds)
    inflation = 1.0 + float(weights[1:] @ correlation[1:])
    independent = max(1, round(2.0 * inflation))
    length = max(1, min(independent, rounds // BLOCKS))
    within = 1.0 + float(2.0 * (1.0 - lags[1:length] / length) @ correlation[1:length])
    return Persistence(length, float(np.sqrt(max(1.0, inflation / within))), rounds / independent)


class Culprits(NamedTuple):
    """Workers that cost more than chance explains, shape (workers,), and the independent blocks of the record."""

    named: Flags
    blocks: float

    @property
    def too_short(self) -> bool:
        """Whether the record is too short to name anybody: it has no more than six independent blocks."""
        return self.blocks <= BLOCKS


def culprits(times: ArrayLike, generator: np.random.Generator) -> Culprits:
    """Return which workers cost more in total than chance explains, in steps down.

    The level of the whole fleet is taken out first (:func:`relative`). A worker is named if two tests agree. Its total
    is an outlier among the workers' totals, which tells a culprit from slowness that lasts, since that spreads all
    totals. And its total exceeds the largest totals after shuffling costs among workers within blocks of rounds, which
    keep lasting slowness together (:func:`persistence`), so that a single burst is no culprit. Then the named workers
    are mended, and the others are tested again (Westfall and Young 1993). Nobody is named if the record has six
    independent blocks or fewer.

    >>> culprits([[1.0, 1.0, 2.0]] * 8, np.random.default_rng(0)).named.tolist()
    [False, False, True]
    """
    ratios = relative(times)
    costs = shares(ratios)
    named = np.zeros(costs.shape[1], dtype=bool)
    suspects = outliers(costs.sum(axis=0))
    witnesses = _witnesses(ratios, suspects)
    blocks = persistence(costs[:, witnesses]).blocks
    if costs.size < _SMALL and 0 < suspects.sum() < len(suspects):  # a suspect that is slow throughout hides bursts
        blocks = min(blocks, _CAUTION * persistence(costs[:, ~suspects]).blocks)
    while blocks > BLOCKS:
        new = suspects & ~named & _exceed_shuffles(costs, persistence(costs[:, witnesses]), generator)
        if not new.any():
            break
        named |= new
        ratios[:, named] = np.minimum(ratios[:, named], 1.0)
        costs = shares(ratios)
    return Culprits(named, blocks)


def _witnesses(ratios: Floats, suspects: Flags) -> Flags:
    """Return the workers that show how long slowness lasts, shape (workers,).

    A suspect that is slow in about half of the rounds or more, as one that becomes slow in the middle, looks like a
    long burst. It is not asked if there are enough others, who would have long bursts, too, if these were usual.
    """
    excess = np.nan_to_num(ratios - 1.0)
    slow = (excess > 0.5 * excess.mean(axis=0)).mean(axis=0)
    others = ~(suspects & (slow >= _HALF))
    return others if others.sum() * len(ratios) >= _WITNESSED else np.ones(len(others), dtype=bool)


def outliers(totals: Floats) -> Flags:
    """Return which totals are too large to belong to the others, shape (workers,); all may be if there are few.

    The square roots are tested from the largest down, each with the mean and standard deviation of those below it, so
    that several culprits do not hide each other (generalised extreme studentised deviate, Rosner 1983). Among 16 totals
    and more, whose tail may be longer than the normal one, the distance to the next must also be too large for an
    exponential tail, by the weighted distances of the upper half below it (Renyi 1953).

    >>> outliers(np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 5.0, 9.0])).tolist()
    [False, False, False, False, False, False, True, True]
    """
    workers = len(totals)
    if workers < _FEW:
        return np.ones(workers, dtype=bool)
    from scipy import stats

    roots = np.sqrt(totals + 0.1 * np.median(totals))
    order = np.argsort(-roots, kind="stable")
    ordered, count = roots[order], 0
    for number in range(1, min((workers - 1) // 2, max(4, workers // 4)) + 1):
        others = ordered[number:]
        size = len(others)
        spread = float(others.std(ddof=1)) * float(np.sqrt(1.0 + 1.0 / size))
        excess = float(ordered[number - 1] - others.mean())
        chance = (size + 1) * float(stats.t.sf(excess / max(spread, 1e-300), size - 1))
        if workers >= _TAILED:
            upper = -np.diff(others[: size // 2 + 1])
            ahead = float(ordered[number - 1] - others[0]) / max(
                float((upper * np.arange(1, len(upper) + 1)).mean()), 1e-300
            )
            chance = max(chance, (1.0 + ahead / len(upper)) ** -len(upper))
        if excess > 1e-12 and chance < _OUTLIER:
            count = number
    flags = np.zeros(workers, dtype=bool)
    flags[order[:count]] = True
    return flags


def _exceed_shuffles(costs: Floats, lasting: Persistence, generator: np.random.Generator) -> Flags:
    """Return which workers' totals exceed the largest totals after shuffling costs among workers within blocks."""
    length, factor, _ = lasting
    blocks = np.stack([block.sum(axis=0) for block in np.array_split(costs, len(costs) // length)])
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


def drifts(times: Floats) -> bool:
    """Return whether the fleet as a whole becomes slower or faster, more than chance explains.

    Two tests must agree. Workers change in the same direction from the first to the last quarter: a t-test of their
    logarithmic changes, to which it does not matter how long the slowness of each worker lasts. And the rounds' medians
    have a slope, with as many independent rounds as the autocorrelation of their residuals leaves.
    """
    from scipy import stats

    rounds, workers = times.shape
    quarter = max(1, rounds // 4)
    if rounds < _ENOUGH or workers < 3:
        return False
    logs = np.log(np.maximum(times, 1e-12))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a worker without times in a quarter
        changes = np.nanmedian(logs[-quarter:], axis=0) - np.nanmedian(logs[:quarter], axis=0)
    changes = changes[np.isfinite(changes)]
    if len(changes) < 3:
        return False
    spread = float(changes.std(ddof=1)) / np.sqrt(len(changes))
    if stats.t.sf(abs(changes.mean()) / max(spread, 1e-300), len(changes) - 1) > _DRIFT_CHANCE / 2:
        return False
    medians = np.log(np.maximum(lower_median(times), 1e-12))
    centred = np.arange(rounds) - (rounds - 1) / 2
    slope = float(centred @ medians) / float(centred @ centred)
    residual = medians - medians.mean() - slope * centred
    power = float(residual @ residual)
    correlation = float(residual[1:] @ residual[:-1]) / power if power > 0 else 0.0
    correlation = min(0.99, max(0.0, correlation + (1.0 + 4.0 * correlation) / rounds))  # its estimate is too low
    independent = rounds * (1.0 - correlation) / (1.0 + correlation)
    if independent < 3:
        return False
    error = np.sqrt(power / (rounds - 2) / float(centred @ centred) * rounds / independent)
    return bool(stats.t.sf(abs(slope) / max(error, 1e-300), independent - 2) < _DRIFT_CHANCE / 2)


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

    ``log(time / round's median)`` is correlated, in the rounds in which all workers were measured. Groups come from
    average linkage, cut at 0.5. A group counts if the correlation of two of its members exceeds the largest that chance
    leads to, in 99 % of cases, after each worker's rounds have been rotated by a number of its own. Rotation keeps
    slowness that lasts together, which shuffling single rounds would tear apart. There are none in a record of six
    independent blocks or fewer (:func:`persistence`).
    """
    times = times[np.isfinite(times).all(axis=1)]
    rounds, workers = times.shape
    if rounds < _ENOUGH or workers < 3 or persistence(shares(relative(times))).blocks <= BLOCKS:
        return []
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    with np.errstate(divide="ignore"):
        ratio = np.log(np.maximum(times, 1e-12) / np.maximum(lower_median(times), 1e-12)[:, None])
    ratio -= ratio.mean(axis=0)
    size = np.linalg.norm(ratio, axis=0)
    ratio /= np.where(size > 1e-9, size, np.inf)
    places = np.arange(rounds)[:, None]

    def by_chance() -> float:
        offsets = np.asarray(generator.integers(0, rounds, size=workers))
        rotated = np.take_along_axis(ratio, (places + offsets) % rounds, axis=0)
        return float((rotated.T @ rotated)[offsets[:, None] != offsets].max(initial=0.0))  # others are as they were

    least = sorted(by_chance() for _ in range(_ROTATIONS))[int(0.99 * _ROTATIONS)]
    correlation = np.clip(ratio.T @ ratio, -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    labels = fcluster(linkage(squareform(1.0 - correlation, checks=False), "average"), _APART, "distance")
    slow_together = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if 2 <= len(members) < workers:
            inner = correlation[np.ix_(members, members)]
            if float(np.triu(inner, 1).max()) < least:
                continue
            mean = (inner.sum() - len(members)) / (len(members) * (len(members) - 1))
            slow_together.append((members.tolist(), float(mean)))
    return sorted(slow_together, key=lambda group: -len(group[0]))


def slow_kind(times: Floats) -> tuple[list[int], float] | None:
    """Return the workers of a slow kind and the factor by which they are slower; None if they are under a half.

    The largest gap between the workers' :func:`slowness_of`, in logarithms, separates the kinds if it is at least 1.3.
    """
    medians = slowness_of(times)
    order = np.argsort(medians, kind="stable")
    ordered = np.maximum(medians[order], 1e-12)
    if len(ordered) < 2:
        return None
    gaps = np.diff(np.log(ordered))
    widest = int(gaps.argmax())
    slow = order[widest + 1 :]
    if gaps[widest] < np.log(1.3) or 2 * len(slow) < len(order):
        return None
    return sorted(slow.tolist()), float(np.median(ordered[widest + 1 :]) / np.median(ordered[: widest + 1]))
