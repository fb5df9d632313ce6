"""Expected seconds of an update, in closed form, for the K family under the common delay laws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anyk.codes import Uncoded
from anyk.delays import (
    Bimodal,
    Constant,
    DelayModel,
    Exponential,
    Heterogeneous,
    NoDelay,
    Pareto,
    ShiftedExponential,
)
from anyk.protocol import Strategy
from anyk.strategies import AdaSync, CodedRounds, Count, KFamily


@dataclass(frozen=True)
class Pace:
    """How fast a strategy steps: expected ``seconds`` of an update and mean ``staleness``; None where unknown.

    ``why``: the formula, and what it assumes.
    """

    seconds: float | None
    staleness: float | None
    why: str


def mean_delay(delays: DelayModel) -> float | None:
    """Mean of a delay law in seconds; None without a closed form, inf where there is none.

    >>> mean_delay(Pareto(minimum=1.0, alpha=3.0))
    1.5
    """
    if isinstance(delays, NoDelay):
        return 0.0
    if isinstance(delays, Constant):
        return delays.value
    if isinstance(delays, ShiftedExponential):
        return delays.shift + delays.mean
    if isinstance(delays, Exponential):
        return delays.mean
    if isinstance(delays, Pareto):
        return delays.minimum * delays.alpha / (delays.alpha - 1.0) if delays.alpha > 1.0 else float("inf")
    if isinstance(delays, Bimodal):
        return delays.fast + (delays.slow - delays.fast) * delays.probability
    return None


def order_statistic(delays: DelayModel, k: int, workers: int) -> float | None:
    """Mean of the k-th smallest of ``workers`` independent delays, in seconds; None without a closed form.

    Exponential ``mean (H_n - H_(n-k))``; Pareto ``x Gamma(n+1) Gamma(n-k+1-1/a) / (Gamma(n-k+1) Gamma(n+1-1/a))``;
    two-valued ``slow - (slow - fast) P(Binomial(n, 1 - p) >= k)``; heterogeneous exponentials by integrating the chance
    that fewer than k have replied.

    >>> round(order_statistic(Exponential(mean=1.0), 4, 8) or 0, 7)
    0.6345238
    """
    n = workers
    if isinstance(delays, (NoDelay, Constant)):
        return mean_delay(delays)
    if isinstance(delays, (Exponential, ShiftedExponential)):
        shift = delays.shift if isinstance(delays, ShiftedExponential) else 0.0
        return shift + delays.mean * float((1.0 / np.arange(n - k + 1, n + 1)).sum())
    if isinstance(delays, Pareto):
        from scipy.special import gammaln

        a = delays.alpha
        if (n - k + 1) * a <= 1.0:
            return float("inf")
        log = gammaln(n + 1) + gammaln(n - k + 1 - 1 / a) - gammaln(n - k + 1) - gammaln(n + 1 - 1 / a)
        return float(delays.minimum * np.exp(log))
    if isinstance(delays, Bimodal):
        from scipy.stats import binom

        enough = float(binom.sf(k - 1, n, 1.0 - delays.probability))
        return delays.slow - (delays.slow - delays.fast) * enough
    if isinstance(delays, Heterogeneous):
        from scipy.integrate import quad

        means = np.array([delays.means[i % len(delays.means)] for i in range(n)])

        def fewer(t: float) -> float:
            counts = np.zeros(k)  # chance that exactly j < k have replied by t
            counts[0] = 1.0
            for p in -np.expm1(-t / means):
                counts[1:] = counts[1:] * (1.0 - p) + counts[:-1] * p
                counts[0] *= 1.0 - p
            return float(counts.sum())

        far = float(means.max()) * (np.log(n) + 40.0)
        return float(quad(fewer, 0.0, far, limit=500, epsabs=1e-10, epsrel=1e-9)[0])
    return None


def pace(strategy: Strategy, delays: DelayModel) -> Pace:
    """Expected seconds of an update and mean staleness under a delay law, without computing and communication.

    Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018; preemption is assumed, and delays that do not depend on load.

    >>> import anyk
    >>> pace(anyk.strategy("k-batch-async:k=4", workers=8), Exponential(mean=1.0))
    Pace(seconds=0.5, staleness=1.75, why='k E[X] / n, whatever the law')
    """
    n = strategy.workers
    if isinstance(strategy, AdaSync):
        return Pace(None, None, "k changes with the loss")
    if isinstance(strategy, CodedRounds):
        if strategy.cancel == "discard":
            return Pace(None, 0.0, "no closed form when workers finish in vain")
        if isinstance(strategy.code, Uncoded):
            rules = getattr(strategy.wait, "rules", ())
            k = next((rule.number for rule in rules if isinstance(rule, Count)), n)
            return Pace(order_statistic(delays, k, n), 0.0, f"mean of the {k}-th of {n} delays")
        return Pace(None, 0.0, "see finish_times of the code")
    if not isinstance(strategy, KFamily):
        return Pace(None, 0.0, "no closed form; simulate")
    k, mean = strategy.k, mean_delay(delays)
    exponential = isinstance(delays, Exponential)
    if strategy.kind == "k-batch-sync":
        seconds = k * delays.mean / n if isinstance(delays, Exponential) and strategy.cancel == "preempt" else None
        return Pace(seconds, 0.0, "k E[X] / n for exponential delays, else simulate")
    if strategy.cutoff:
        return Pace(None, None, "no closed form with a cut-off; simulate")
    if strategy.kind == "k-async":
        seconds = order_statistic(delays, k, n) if exponential or k == n else None
        if k == 1 and mean is not None:
            seconds = mean / n
        return Pace(seconds, (n - k) / k, "mean of the k-th of n delays for exponential delays, else simulate")
    if isinstance(delays, Heterogeneous):
        rate = sum(1.0 / delays.means[i % len(delays.means)] for i in range(n))
        return Pace(k / rate, (n - 1) / k, "k over the sum of the workers' rates")
    return Pace(None if mean is None else k * mean / n, (n - 1) / k, "k E[X] / n, whatever the law")
