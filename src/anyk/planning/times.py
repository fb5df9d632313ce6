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
    Trace,
    Uniform,
)
from anyk.protocol import Strategy
from anyk.strategies import (
    AdaComm,
    AdaSync,
    CodedRounds,
    Compressed,
    Count,
    FedBuff,
    Gradual,
    KFamily,
    LocalRounds,
)


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
    if isinstance(delays, Uniform):
        return 0.5 * (delays.low + delays.high)
    if isinstance(delays, ShiftedExponential):
        return delays.shift + delays.mean
    if isinstance(delays, Exponential):
        return delays.mean
    if isinstance(delays, Pareto):
        return delays.minimum * delays.alpha / (delays.alpha - 1.0) if delays.alpha > 1.0 else float("inf")
    if isinstance(delays, Bimodal):
        return delays.fast + (delays.slow - delays.fast) * delays.probability
    if isinstance(delays, Trace):
        return float(delays.times.mean())
    return None


def order_statistic(delays: DelayModel, k: int, workers: int) -> float | None:
    """Mean of the k-th smallest of ``workers`` independent delays, in seconds; None without a closed form.

    Exponential ``mean (H_n - H_(n-k))``; Pareto ``x Gamma(n+1) Gamma(n-k+1-1/a) / (Gamma(n-k+1) Gamma(n+1-1/a))``;
    two-valued ``slow - (slow - fast) P(Binomial(n, 1 - p) >= k)``; uniform ``low + (high - low) k / (n + 1)``; of
    a trace the mean of the k-th of each row's first ``workers`` (delays of a row belong together); heterogeneous
    exponentials by integrating the chance that fewer than k have replied.

    >>> round(order_statistic(Exponential(mean=1.0), 4, 8) or 0, 7)
    0.6345238
    """
    n = workers
    delays.check_fleet(n)
    if isinstance(delays, (NoDelay, Constant)):
        return mean_delay(delays)
    if isinstance(delays, (Exponential, ShiftedExponential)):
        shift = delays.shift if isinstance(delays, ShiftedExponential) else 0.0
        return shift + delays.mean * float((1.0 / np.arange(n - k + 1, n + 1)).sum())
    if isinstance(delays, Uniform):
        return delays.low + (delays.high - delays.low) * k / (n + 1)
    if isinstance(delays, Trace):
        return float(np.sort(delays.times[:, :n], axis=1)[:, k - 1].mean())
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


def local_round(delays: DelayModel, tau: int, workers: int) -> float | None:
    """Mean seconds of a round of ``tau`` local steps that all workers end: E max of n sums of tau delays.

    Of exponential delays sums are Erlang, ``integral of 1 - P(tau, t / mean)^n``; None for other laws, but constant.

    >>> round((local_round(Exponential(mean=1.0), 10, 8) or 0) / 10, 7)
    1.4917748
    """
    if isinstance(delays, (NoDelay, Constant)):
        return tau * (mean_delay(delays) or 0.0)
    if not isinstance(delays, (Exponential, ShiftedExponential)):
        return None
    from scipy.integrate import quad
    from scipy.special import gammainc

    top = tau + 12.0 * (tau * np.log(workers + 1.0)) ** 0.5 + 12.0 * np.log(workers + 1.0) + 40.0
    value, _ = quad(lambda t: 1.0 - gammainc(tau, t) ** workers, 0.0, top, limit=500, epsabs=1e-11, points=[tau])
    return (delays.shift * tau if isinstance(delays, ShiftedExponential) else 0.0) + delays.mean * float(value)


def discard_seconds(k: int, workers: int, mean: float, *, batch: bool = False) -> float:
    """Expected seconds of a step when workers finish in vain (``cancel=discard``), exponential delays.

    Of the chain whose state is (workers on the current version, gradients collected): after a step of K-sync the k
    workers that made it begin at once, after one of K-batch-sync (``batch``) the last of them; the others follow as
    they finish.

    >>> round(discard_seconds(4, 8, 1.0), 7), round(discard_seconds(4, 8, 1.0, batch=True), 7)
    (1.0343494, 1.0756072)
    """
    n = workers
    after = np.zeros(n + 2)  # expected time left with c + 1 collected, by workers on the current version
    for c in reversed(range(k)):
        busy = n if batch else n - c
        now = np.zeros(n + 2)
        for f in reversed(range(busy + 1)):
            left = 1.0 / busy + (busy - f) / busy * now[f + 1]
            now[f] = left + f / busy * (after[f] if batch else after[f - 1]) if f else left
        after = now
    return float(mean * after[1 if batch else k])


def pace(strategy: Strategy, delays: DelayModel) -> Pace:
    """Expected seconds of an update and mean staleness under a delay law, without computing and communication.

    Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018; preemption is assumed, and delays that do not depend on load.

    >>> import anyk
    >>> pace(anyk.strategy("k-batch-async:k=4", workers=8), Exponential(mean=1.0))
    Pace(seconds=0.5, staleness=1.75, why='k E[X] / n, whatever the law')
    """
    n = strategy.workers
    delays.check_fleet(n)
    if isinstance(strategy, Compressed):
        return pace(strategy.of, delays)
    if isinstance(strategy, AdaComm):
        return Pace(None, 0.0, "tau changes with the loss")
    if isinstance(strategy, LocalRounds):
        whole = strategy.clients is None and str(strategy.wait) == "decodable" and not strategy.speeds
        seconds = local_round(delays, strategy.tau, n) if whole else None
        return Pace(seconds, 0.0, "mean of the largest of n sums of tau delays, exponential, else simulate")
    if isinstance(strategy, FedBuff):
        mean = mean_delay(delays)
        why = "k tau E[X] / n, whatever the law"
        seconds = None if mean is None or strategy.cutoff else strategy.k * strategy.tau * mean / n
        return Pace(seconds, (n - 1) / strategy.k if not strategy.cutoff else None, why)
    if isinstance(strategy, (AdaSync, Gradual)):
        return Pace(None, None, "k changes with the loss" if isinstance(strategy, AdaSync) else "k changes by plan")
    if isinstance(strategy, CodedRounds):
        if isinstance(strategy.code, Uncoded):
            rules = getattr(strategy.wait, "rules", ())
            k = next((rule.number for rule in rules if isinstance(rule, Count)), n)
            if strategy.cancel == "discard":
                return _discard(k, n, delays, batch=False)
            return Pace(order_statistic(delays, k, n), 0.0, f"mean of the {k}-th of {n} delays")
        if strategy.cancel == "discard":
            return Pace(None, 0.0, "no closed form when workers finish in vain")
        return Pace(None, 0.0, "see finish_times of the code")
    if not isinstance(strategy, KFamily):
        return Pace(None, 0.0, "no closed form; simulate")
    k, mean = strategy.k, mean_delay(delays)
    exponential = isinstance(delays, Exponential)
    if strategy.kind == "k-batch-sync" and strategy.cancel == "discard":
        return _discard(k, n, delays, batch=True)
    if strategy.kind == "k-batch-sync":
        seconds = k * delays.mean / n if isinstance(delays, Exponential) else None
        return Pace(seconds, 0.0, "k E[X] / n for exponential delays, else simulate")
    if strategy.cutoff:
        return Pace(None, None, "no closed form with a cut-off; simulate")
    if strategy.kind == "k-async":
        seconds = order_statistic(delays, k, n) if exponential or k == n else None
        if k == 1 and mean is not None:
            seconds = mean / n
        return Pace(seconds, (n - k) / k, "mean of the k-th of n delays for exponential delays, else simulate")
    if isinstance(delays, (Heterogeneous, Trace)):
        means = delays.times[:, :n].mean(axis=0) if isinstance(delays, Trace) else np.resize(delays.means, n)
        rate = float((1.0 / means).sum())
        return Pace(k / rate, (n - 1) / k, "k over the sum of the workers' rates")
    return Pace(None if mean is None else k * mean / n, (n - 1) / k, "k E[X] / n, whatever the law")


def _discard(k: int, workers: int, delays: DelayModel, *, batch: bool) -> Pace:
    """The pace of steps whose stragglers finish in vain."""
    seconds = discard_seconds(k, workers, delays.mean, batch=batch) if isinstance(delays, Exponential) else None
    return Pace(seconds, 0.0, "a Markov chain for exponential delays, else simulate; workers finish in vain")
