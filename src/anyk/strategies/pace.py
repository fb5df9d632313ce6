"""Closed forms that several strategies share."""

from __future__ import annotations

import numpy as np

from anyk.protocol import DelayLaw, Pace


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


def finishing_in_vain(k: int, workers: int, delays: DelayLaw, *, batch: bool) -> Pace:
    """The pace of steps whose stragglers finish in vain."""
    mean = delays.expected() if delays.memoryless else None
    seconds = None if mean is None else discard_seconds(k, workers, mean, batch=batch)
    return Pace(seconds, 0.0, "a Markov chain for exponential delays, else simulate; workers finish in vain")


def mean_interval(delays: DelayLaw, workers: int) -> float | None:
    """Mean seconds between two replies of workers that never wait: 1 over the sum of their rates."""
    means = [delays.expected(worker) for worker in range(workers)]
    if None in means:
        return None
    with np.errstate(divide="ignore"):
        return float(1.0 / (1.0 / np.array(means, dtype=np.float64)).sum())
