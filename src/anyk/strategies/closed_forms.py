"""Closed forms of the pace of several strategies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from anyk.codes import Code, Method
from anyk.protocol import DelayLaw, Pace
from anyk.strategies.wait import Wait


def discard_seconds(k: int, workers: int, mean: float, *, batch: bool = False) -> float:
    """Return the expected seconds of a step if workers finish in vain (``cancel=discard``), for exponential delays.

    They follow from the Markov chain with states (gradients collected, workers on the current version). After a step of
    K-sync, its k workers start on the new version immediately; after a step of K-batch-sync (``batch``), the last one
    does. The others follow when they finish what they compute in vain.

    >>> round(discard_seconds(4, 8, 1.0), 7), round(discard_seconds(4, 8, 1.0, batch=True), 7)
    (1.0343494, 1.0756072)
    """
    # the expected remaining time, in means of the delay, by the number of workers on the current version
    with_one_more = np.zeros(workers + 2)
    for collected in reversed(range(k)):
        busy = workers if batch else workers - collected  # in K-sync a worker rests once its gradient is collected
        remaining = np.zeros(workers + 2)
        for current in reversed(range(busy + 1)):
            remaining[current] = 1.0 / busy + (busy - current) / busy * remaining[current + 1]
            if current:
                remaining[current] += current / busy * with_one_more[current if batch else current - 1]
        with_one_more = remaining
    return float(mean * with_one_more[1 if batch else k])


def finishing_in_vain(k: int, workers: int, delays: DelayLaw, *, batch: bool) -> Pace:
    """Return the pace of steps whose stragglers finish in vain."""
    mean = delays.expected() if delays.memoryless else None
    seconds = None if mean is None else discard_seconds(k, workers, mean, batch=batch)
    return Pace(seconds, 0.0, "a Markov chain for exponential delays, else simulate; workers finish in vain")


def _ordinal(k: int) -> str:
    """Return a place in an order: 1st, 2nd, …"""
    ending = "th" if k // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return f"{k}{ending}"


def mean_interval(delays: DelayLaw, workers: int) -> float | None:
    """Return the mean seconds between two replies of workers that never wait: 1 over the sum of their rates.

    None if the means are not known, or if a worker's mean depends on how long its delays take.
    """
    if not delays.steady:
        return None
    means = [delays.expected(worker) for worker in range(workers)]
    if None in means:
        return None
    with np.errstate(divide="ignore"):
        return float(1.0 / (1.0 / np.array(means, dtype=np.float64)).sum())


def uncoded_pace(code: Code, rule: Wait, method: Method, delays: DelayLaw, *, in_vain: bool) -> Pace:
    """Return the pace of rounds of an uncoded sum; ``in_vain``: stragglers finish in vain.

    At each moment the rule requires a number of replies, which changes only at its deadlines. A round's mean duration
    is the integral of the probability that fewer have arrived.
    """
    n = code.workers

    def residual_of(count: int) -> float:  # equal for all sets of replies of this size
        return float(code.decode(range(count), decoder=method).residual)

    since = sorted({0.0, *rule.changes()})
    needs = [rule.required_replies(n, seconds, residual_of) for seconds in since]
    if None in needs:
        return Pace(None, 0.0, f"no closed form for wait={rule}; simulate")
    counts = [n if need is None else min(need, n) for need in needs]
    if in_vain:
        if len(set(counts)) == 1:
            return finishing_in_vain(counts[0], n, delays, batch=False)
        return Pace(None, 0.0, "no closed form when workers finish in vain; simulate")
    if delays.uninterruptible and min(counts) < n:
        return Pace(None, 0.0, "no closed form when a delay cannot be interrupted; simulate")
    if len(set(counts)) == 1:
        return Pace(delays.order_statistic(counts[0], n), 0.0, f"mean of the {_ordinal(counts[0])} of {n} delays")
    seconds = _seconds_short_of(counts, since, n, delays)
    if seconds is None:
        return Pace(None, 0.0, f"no closed form for wait={rule} and {delays.spec}; simulate")
    return Pace(seconds, 0.0, f"integral of the chance that wait={rule} is not met yet")


def _seconds_short_of(counts: Sequence[int], since: Sequence[float], workers: int, delays: DelayLaw) -> float | None:
    """Return the mean seconds until enough replies; ``counts[i]`` are enough from ``since[i]`` on.

    None without a closed form.
    """
    pieces = [delays.short_of(k, workers, *piece) for k, piece in zip(counts, pairwise(since), strict=False)]
    # the last piece has no end: all the seconds short of the last count, without those before the piece
    total = delays.order_statistic(counts[-1], workers)
    before = delays.short_of(counts[-1], workers, 0.0, since[-1])
    if total is None or before is None or None in pieces:
        return None
    return total - before + sum(piece or 0.0 for piece in pieces)
