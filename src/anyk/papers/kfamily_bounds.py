"""Bounds on the error of the K family against time (Dutta et al. 2018).

``rate`` is the learning rate, ``smoothness`` L, ``convexity`` c (strong convexity or Polyak-Lojasiewicz), ``noise``
the variance of one gradient (of a whole mini-batch), ``k`` gradients a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyk.errors import BadInput


def error_floor(
    rate: float, smoothness: float, convexity: float, noise: float, k: int, *, slowdown: float = 1.0
) -> float:
    """Return a bound on the remaining excess loss: ``rate L noise / (2 c slowdown k)``.

    ``slowdown`` is 1 for synchronous steps. For asynchronous ones it is ``1 - gamma + fresh / 2``, where ``gamma``
    bounds the squared distance of a stale gradient over its squared norm, and ``fresh`` is the least chance that a
    gradient is not stale. It also divides the rate of decay, ``1 - rate c slowdown`` a step (Dutta et al. 2018,
    Theorems 1 to 3).

    >>> error_floor(0.1, 1.0, 0.2, 0.25, 4)
    0.015625
    """
    return rate * smoothness * noise / (2.0 * convexity * slowdown * k)


def error_after(
    seconds: float,
    step_seconds: float,
    first: float,
    rate: float,
    smoothness: float,
    convexity: float,
    noise: float,
    k: int,
    *,
    slowdown: float = 1.0,
) -> float:
    """Return a bound on the excess loss after ``seconds`` seconds of steps of ``step_seconds`` with k gradients.

    ``e + (1 - rate c slowdown)^(t / E[T]) (first - e)`` with e the :func:`error_floor`: the bounds of Dutta et al. 2018
    with the mean number of steps in place of the number of steps.

    >>> round(error_after(100.0, 0.125, 2.3, 0.1, 1.0, 0.2, 0.25, 1), 4)
    0.0625
    """
    floor = error_floor(rate, smoothness, convexity, noise, k, slowdown=slowdown)
    if not 0.0 < rate * convexity * slowdown < 1.0:
        raise BadInput(f"the bound needs a rate x convexity above 0 and below 1, got {rate * convexity * slowdown:g}")
    return float(floor + (1.0 - rate * convexity * slowdown) ** (seconds / step_seconds) * (first - floor))


def best_k(
    seconds: float,
    step_seconds: Sequence[float],
    first: float,
    rate: float,
    smoothness: float,
    convexity: float,
    noise: float,
    *,
    slowdown: Sequence[float] | None = None,
) -> int:
    """Return the K with the least :func:`error_after`; ``step_seconds[K - 1]`` is the mean time of its step.

    ``slowdown``: for each K (default: 1).

    >>> pace = [k / 8 for k in range(1, 9)]  # K-batch-sync under exponential delays
    >>> [best_k(t, pace, 2.3, 0.2, 1.0, 0.2, 1.0) for t in (10.0, 50.0, 200.0)]
    [1, 4, 8]
    """
    factors = [1.0] * len(step_seconds) if slowdown is None else slowdown
    bounds = [
        error_after(seconds, pace, first, rate, smoothness, convexity, noise, k, slowdown=factor)
        for k, (pace, factor) in enumerate(zip(step_seconds, factors, strict=True), 1)
    ]
    return bounds.index(min(bounds)) + 1
