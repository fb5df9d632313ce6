"""Expected seconds of an update, in closed form, for the K family under the common delay laws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anyk.codes import Uncoded
from anyk.delays import DelayModel
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
    >>> pace(anyk.strategy("k-batch-async:k=4", workers=8), anyk.delays.Exponential(mean=1.0))
    Pace(seconds=0.5, staleness=1.75, why="k over the sum of the workers' rates, whatever the law")
    """
    n = strategy.workers
    delays.check_fleet(n)
    if isinstance(strategy, Compressed):
        return pace(strategy.of, delays)
    if isinstance(strategy, AdaComm):
        return Pace(None, 0.0, "tau changes with the loss")
    if isinstance(strategy, LocalRounds):
        whole = strategy.clients is None and str(strategy.wait) == "decodable" and not strategy.speeds
        seconds = delays.longest_sum(strategy.tau, n) if whole else None
        return Pace(seconds, 0.0, "mean of the largest of n sums of tau delays, exponential, else simulate")
    if isinstance(strategy, FedBuff):
        mean = _mean_interval(delays, n)
        why = "k tau over the sum of the workers' rates, whatever the law"
        seconds = None if mean is None or strategy.cutoff else strategy.k * strategy.tau * mean
        return Pace(seconds, (n - 1) / strategy.k if not strategy.cutoff else None, why)
    if isinstance(strategy, (AdaSync, Gradual)):
        return Pace(None, None, "k changes with the loss" if isinstance(strategy, AdaSync) else "k changes by plan")
    if isinstance(strategy, CodedRounds):
        if isinstance(strategy.code, Uncoded):
            rules = getattr(strategy.wait, "rules", ())
            k = next((rule.number for rule in rules if isinstance(rule, Count)), n)
            if strategy.cancel == "discard":
                return _discard(k, n, delays, batch=False)
            return Pace(delays.order_statistic(k, n), 0.0, f"mean of the {k}-th of {n} delays")
        if strategy.cancel == "discard":
            return Pace(None, 0.0, "no closed form when workers finish in vain")
        return Pace(None, 0.0, "see finish_times of the code")
    if not isinstance(strategy, KFamily):
        return Pace(None, 0.0, "no closed form; simulate")
    k, mean = strategy.k, _mean_interval(delays, n)
    if strategy.kind == "k-batch-sync" and strategy.cancel == "discard":
        return _discard(k, n, delays, batch=True)
    if strategy.kind == "k-batch-sync":
        seconds = k * mean if mean is not None and delays.memoryless else None
        return Pace(seconds, 0.0, "k E[X] / n for exponential delays, else simulate")
    if strategy.cutoff:
        return Pace(None, None, "no closed form with a cut-off; simulate")
    if strategy.kind == "k-async" and k > 1:
        seconds = delays.order_statistic(k, n) if delays.memoryless or k == n else None
        return Pace(seconds, (n - k) / k, "mean of the k-th of n delays for exponential delays, else simulate")
    seconds = None if mean is None else k * mean
    return Pace(seconds, (n - 1) / k, "k over the sum of the workers' rates, whatever the law")


def _mean_interval(delays: DelayModel, workers: int) -> float | None:
    """Mean seconds between two replies of workers that never wait: 1 over the sum of their rates."""
    means = [delays.expected(worker) for worker in range(workers)]
    if None in means:
        return None
    with np.errstate(divide="ignore"):
        return float(1.0 / (1.0 / np.array(means, dtype=np.float64)).sum())


def _discard(k: int, workers: int, delays: DelayModel, *, batch: bool) -> Pace:
    """The pace of steps whose stragglers finish in vain."""
    mean = delays.expected() if delays.memoryless else None
    seconds = None if mean is None else discard_seconds(k, workers, mean, batch=batch)
    return Pace(seconds, 0.0, "a Markov chain for exponential delays, else simulate; workers finish in vain")
