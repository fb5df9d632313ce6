"""Requirements of every delay model."""

from __future__ import annotations

import numpy as np

from anyk.base import Array, Floats
from anyk.delays import DelayModel, parse

_DRAWS = 20_000  # of each worker
_BATCHES = 20  # in succession, whose means show the error of a mean also if draws depend on earlier ones


def check_delays(law: DelayModel, *, workers: int = 4, seed: int = 0) -> None:
    """Check all properties of a registered delay model that clusters and planning rely on.

    Its spec gives the same model; a draw is the same alone, among others and in any order; ``cdf``, ``expected`` and
    ``order_statistic``, unless None, agree with many draws. A mean is not compared if few draws make up much of it.
    Delays that depend on earlier ones are compared less precisely, because their means vary more.
    Raises AssertionError for the first property that fails, and :class:`~anyk.BadInput` for invalid draws.

    >>> import anyk
    >>> check_delays(anyk.delays.Exponential(mean=0.5))
    """
    assert parse(law.spec) == law, f"the spec '{law.spec}' gives another law, {parse(law.spec)!r}"
    law.check_fleet(workers)
    table = np.stack([law.draws(seed, worker, 0, _DRAWS) for worker in range(workers)], axis=1)
    for worker in range(workers):
        for start in (_DRAWS - 3, 5, 254, 511):
            some = law.draws(seed, worker, start, 3)
            same = np.array_equal(some, table[start : start + 3, worker])
            assert same, f"draws {start} to {start + 2} of worker {worker} differ by themselves and among more"
        draws = table[:, worker]
        points = np.quantile(draws, [0.05, 0.5, 0.95]) + 2e-9  # draws are rounded to the nanosecond
        stated = law.cdf(points, worker)
        if stated is not None:
            below = draws[:, None] <= points
            shares = below.mean(axis=0)
            slack = max(0.02, 5.0 * max(map(_batch_error, below.T)))
            assert np.abs(stated - shares).max() <= slack, (
                f"cdf of worker {worker} at {points.round(6).tolist()} is {np.round(stated, 3).tolist()}, "
                f"of its draws {shares.round(3).tolist()}"
            )
        _check_mean(law.expected(worker), draws, f"the mean of worker {worker}")
    ordered = np.sort(table, axis=1)
    for k in {1, (workers + 1) // 2, workers}:
        _check_mean(law.order_statistic(k, workers), ordered[:, k - 1], f"order_statistic({k}, {workers})")


def _check_mean(stated: float | None, draws: Floats, name: str) -> None:
    """Compare a mean with draws, unless a single draw makes up much of their sum."""
    if stated is None or draws.max() > 0.02 * draws.sum():
        return
    slack = 5.0 * max(float(draws.std()) / len(draws) ** 0.5, _batch_error(draws)) + 1e-8
    mean = float(draws.mean())
    assert abs(stated - mean) <= slack, f"{name} is {stated:.6g}, of its draws {mean:.6g}"


def _batch_error(draws: Array) -> float:
    """Return the standard error of the mean of draws, from the means of batches in succession."""
    return float(draws.reshape(_BATCHES, -1).mean(axis=1).std(ddof=1) / _BATCHES**0.5)
