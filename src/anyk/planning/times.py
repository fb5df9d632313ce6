"""Expected seconds of an update, in closed form, for the K family under the common delay laws."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from anyk.codes import Uncoded
from anyk.delays import DelayModel
from anyk.delays.models import mean_within
from anyk.protocol import Strategy
from anyk.strategies import (
    AdaComm,
    AdaSync,
    AllOf,
    AnyOf,
    CodedRounds,
    Compressed,
    Count,
    Deadline,
    Decodable,
    FedBuff,
    Gradual,
    KFamily,
    LocalRounds,
    ResidualBelow,
    Wait,
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
    n = strategy.layout.workers
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
            return _uncoded(strategy, delays)
        if strategy.cancel == "discard":
            return Pace(None, 0.0, "no closed form when workers finish in vain; simulate")
        return Pace(None, 0.0, "no closed form; simulate")
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


def _uncoded(strategy: CodedRounds, delays: DelayModel) -> Pace:
    """The pace of rounds that any replies may end.

    At each moment the rule asks for a number of replies, which changes only at its deadlines. A round's mean duration
    is the integral of the chance that there are fewer.
    """
    n, rule = strategy.workers, strategy.wait
    ends = sorted({0.0, *_deadlines(rule)})
    needs = [_needed(rule, strategy, seconds) for seconds in ends]
    if None in needs:
        return Pace(None, 0.0, f"no closed form for wait={rule}; simulate")
    counts = [n if need is None else min(need, n) for need in needs]
    if strategy.cancel == "discard":
        if len(set(counts)) == 1:
            return _discard(counts[0], n, delays, batch=False)
        return Pace(None, 0.0, "no closed form when workers finish in vain; simulate")
    if delays.uninterruptible and min(counts) < n:
        return Pace(None, 0.0, "no closed form when a delay cannot be interrupted; simulate")
    if len(set(counts)) == 1:
        return Pace(delays.order_statistic(counts[0], n), 0.0, f"mean of the {counts[0]}-th of {n} delays")
    last = delays.order_statistic(counts[-1], n)
    pieces = [mean_within(delays, k, n, *piece) for k, piece in zip(counts, pairwise(ends), strict=False)]
    before = mean_within(delays, counts[-1], n, 0.0, ends[-1])
    if last is None or before is None or None in pieces:
        return Pace(None, 0.0, f"no closed form for wait={rule} and {delays.spec}; simulate")
    seconds = last - before + sum(piece or 0.0 for piece in pieces)
    return Pace(seconds, 0.0, f"integral of the chance that wait={rule} is not met yet")


def _deadlines(rule: Wait) -> list[float]:
    """The seconds at which a rule begins to ask for fewer replies."""
    if isinstance(rule, AnyOf):
        return [seconds for part in rule.rules for seconds in _deadlines(part)]
    return [rule.seconds] if isinstance(rule, Deadline) else []


def _needed(rule: Wait, strategy: CodedRounds, seconds: float) -> int | None:
    """The replies that end an uncoded round so many seconds old, above n where none do; None: not known beforehand."""
    n = strategy.workers
    if isinstance(rule, AnyOf):
        parts = [_needed(part, strategy, seconds) for part in rule.rules]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) else (max if isinstance(rule, AllOf) else min)(known)
    if isinstance(rule, Decodable):
        return n
    if isinstance(rule, Count):
        return rule.number
    if isinstance(rule, Deadline):
        return 1 if seconds >= rule.seconds else n + 1
    if isinstance(rule, ResidualBelow):
        # of an uncoded sum all sets of so many replies are alike
        residuals = (strategy.code.decode(range(k), decoder=strategy.method).residual for k in range(1, n + 1))
        return next((k for k, residual in enumerate(residuals, 1) if residual < rule.bound), n + 1)
    return None


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
