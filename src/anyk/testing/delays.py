"""Requirements of every delay law."""

from __future__ import annotations

import numpy as np

from anyk.delays import DelayModel, parse

_DRAWS = 20_000  # of each worker


def check_delays(law: DelayModel, *, workers: int = 4, seed: int = 0) -> None:
    """Put a registered delay law through everything that clusters and planning rely on.

    Its spec gives the same law; a draw does not depend on those beside it; ``cdf``, ``expected`` and
    ``order_statistic``, where they are not None, agree with many draws. A mean is not compared where a few draws make
    up much of it. Raises :class:`~anyk.errors.BadInput` for draws that are no delays.

    >>> import anyk
    >>> check_delays(anyk.delays.Exponential(mean=0.5))
    """
    assert parse(law.spec) == law, f"the spec '{law.spec}' gives another law, {parse(law.spec)!r}"
    law.check_fleet(workers)
    table = np.stack([law.draws(seed, worker, 0, _DRAWS) for worker in range(workers)], axis=1)
    for worker in range(workers):
        some = law.draws(seed, worker, 5, 3)
        assert np.array_equal(some, table[5:8, worker]), f"draws of worker {worker} differ by themselves and among more"
        draws = table[:, worker]
        at = np.quantile(draws, [0.05, 0.5, 0.95]) + 2e-9  # draws are rounded to the nanosecond
        known = law.cdf(at, worker)
        if known is not None:
            shares = (draws[:, None] <= at).mean(axis=0)
            assert np.abs(known - shares).max() <= 0.02, (
                f"cdf of worker {worker} at {at.round(6).tolist()} is {np.round(known, 3).tolist()}, "
                f"of its draws {shares.round(3).tolist()}"
            )
        _check_mean(law.expected(worker), draws, f"the mean of worker {worker}")
    ordered = np.sort(table, axis=1)
    for k in {1, (workers + 1) // 2, workers}:
        _check_mean(law.order_statistic(k, workers), ordered[:, k - 1], f"order_statistic({k}, {workers})")


def _check_mean(known: float | None, draws: np.ndarray[tuple[int], np.dtype[np.float64]], name: str) -> None:
    heavy = draws.max() > 0.02 * draws.sum()
    if known is None or heavy:
        return
    slack = 5.0 * float(draws.std()) / len(draws) ** 0.5 + 1e-8
    found = float(draws.mean())
    assert abs(known - found) <= slack, f"{name} is {known:.6g}, of its draws {found:.6g}"
