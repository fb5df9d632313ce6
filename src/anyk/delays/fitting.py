"""Delay models fitted to measured times; some times may be lower bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anyk.delays.base import DelayModel, Flags, Floats
from anyk.delays.models import HEAVIEST, Bimodal, Exponential, Pareto, ShiftedExponential
from anyk.errors import BadInput

_Law = Exponential | ShiftedExponential | Pareto | Bimodal


@dataclass(frozen=True)
class Fit:
    """A delay model, ``law``, and its ``misfit``: the largest distance between its distribution and the measured one.

    The misfit (Kolmogorov's distance) measures the quality of the fit, not the probability that the model is true,
    because its parameters are fitted to the same times.
    """

    law: DelayModel
    misfit: float


def fit(seconds: ArrayLike, *, censored: ArrayLike | None = None) -> list[Fit]:
    """Fit exponential, shifted exponential and Pareto models by maximum likelihood, and a two-valued one by two means.

    The best fit comes first. ``censored`` marks times that are lower bounds, because a worker was cancelled; the two
    means ignore them. Raises :class:`~anyk.errors.BadInput` for fewer than two different times above 0.

    >>> times = Exponential(mean=0.5).draws(seed=1, worker=0, start=0, count=4000)
    >>> best = fit(times)[0]
    >>> isinstance(best.law, (Exponential, ShiftedExponential)), best.misfit < 0.03
    (True, True)
    """
    times = np.asarray(seconds, dtype=float).ravel()
    cut = np.zeros(times.size, dtype=bool) if censored is None else np.asarray(censored, dtype=bool).ravel()
    if cut.shape != times.shape:
        raise BadInput(f"censored must have one flag for each of the {times.size} times, got {cut.size}")
    if not np.isfinite(times).all() or (times < 0).any():
        raise BadInput("times must be finite and at least 0")
    complete = times[~cut]
    if np.unique(complete).size < 2 or complete.max() <= 0:
        raise BadInput("a law needs at least two different times above 0")
    least, count = float(complete.min()), complete.size
    models: list[_Law | None] = [
        Exponential(mean=float(times.sum() / count)),
        ShiftedExponential(shift=least, mean=float(np.maximum(times - least, 0.0).sum() / count)),
    ]
    if least > 0:
        alpha = count / float(np.log(np.maximum(times, least) / least).sum())
        models.append(Pareto(minimum=least, alpha=alpha) if alpha >= HEAVIEST else None)
    models.append(_two_means(complete))
    fits = [Fit(model, _misfit(model, times, cut)) for model in models if model is not None]
    return sorted(fits, key=lambda fit: fit.misfit)


def _two_means(times: Floats) -> Bimodal | None:
    """Fit two values by two means of logarithms, as slow times are multiples of fast ones; None without two values."""
    logs = np.log(times[times > 0])
    centre = np.array([logs.min(), logs.max()])
    if centre[0] == centre[1]:
        return None
    for _ in range(100):
        slow = np.abs(logs - centre[1]) < np.abs(logs - centre[0])
        if slow.all() or not slow.any():
            return None
        moved = np.array([logs[~slow].mean(), logs[slow].mean()])
        if np.array_equal(moved, centre):
            break
        centre = moved
    return Bimodal(fast=float(np.exp(centre[0])), slow=float(np.exp(centre[1])), probability=(float(slow.mean()),))


def _misfit(law: _Law, times: Floats, cut: Flags) -> float:
    """Return the largest distance to the product-limit distribution of the times."""
    order = np.lexsort((cut, times))
    ordered, ended = times[order], ~cut[order]
    at_risk = np.arange(times.size, 0, -1)
    survival = np.cumprod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0))
    last = np.append(np.diff(ordered[ended]) > 0, True)  # of equal times the last has the whole jump
    at = ordered[ended][last]
    after = (1.0 - survival[ended])[last]
    before = np.concatenate(([0.0], after[:-1]))
    if isinstance(law, Bimodal):  # its distribution is compared at values, not at jumps
        shares = law.cdf(at * (1 + 1e-9), 0)  # fitted values may be off in the last digit
        return float(np.abs(shares - after).max())
    shares = law.cdf(at, 0)
    return float(np.maximum(np.abs(shares - after), np.abs(shares - before)).max())
