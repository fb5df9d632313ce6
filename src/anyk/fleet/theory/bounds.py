"""Closed forms of the error of the K family, and of stable learning rates.

``rate`` is the learning rate, ``smoothness`` L, ``convexity`` c (strong convexity or Polyak-Lojasiewicz), ``noise``
the variance of one gradient (of a whole mini-batch), ``k`` gradients a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sin, sqrt

from anyk.base import BadInput, Positive, typed


def error_floor(
    rate: float, smoothness: float, convexity: float, noise: float, k: int, *, slowdown: float = 1.0
) -> float:
    """Return a bound on the remaining excess loss: ``rate L noise / (2 c slowdown k)``.

    ``slowdown`` is 1 for synchronous steps and :func:`async_factor` for asynchronous ones; it also divides the rate
    of decay, ``1 - rate c slowdown`` a step (Dutta et al. 2018, Theorems 1 to 3).

    >>> error_floor(0.1, 1.0, 0.2, 0.25, 4)
    0.015625
    """
    return rate * smoothness * noise / (2.0 * convexity * slowdown * k)


def async_factor(gamma: float, fresh: float) -> float:
    """Return ``1 - gamma + fresh / 2``, the factor by which stale gradients slow convergence down in the bounds.

    ``gamma`` bounds the squared distance of a stale gradient over its squared norm, ``fresh`` is the least chance
    that a gradient is not stale (see :func:`fresh_share`).

    >>> async_factor(0.5, 1 / 8)
    0.5625
    """
    return 1.0 - gamma + 0.5 * fresh


def fresh_share(kind: str, k: int, workers: int) -> float:
    """Return the share of gradients that are not stale, under identical exponential delays of all workers.

    For ``async`` it is 1/n, for ``k-async`` k/n. The r-th gradient of a step of ``k-batch-async`` is fresh with
    chance ``1 - (1 - 1/n)^r``; the share is the mean of these chances over r = 1, …, k. Other kinds have no stale ones.

    >>> fresh_share("async", 1, 8), fresh_share("k-batch-async", 4, 8)
    (0.125, 0.27581787109375)
    """
    if kind in ("async", "k-async"):
        return k / workers
    if kind == "k-batch-async":
        return 1.0 - sum((1.0 - 1.0 / workers) ** r for r in range(1, k + 1)) / k
    return 1.0


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
        error_after(
            seconds=seconds,
            step_seconds=pace,
            first=first,
            rate=rate,
            smoothness=smoothness,
            convexity=convexity,
            noise=noise,
            k=k,
            slowdown=factor,
        )
        for k, (pace, factor) in enumerate(zip(step_seconds, factors, strict=True), 1)
    ]
    return bounds.index(min(bounds)) + 1


@typed
def stationary_error(rate: float, curvature: Positive, noise: float, k: int) -> float:
    """Return the final excess loss of synchronous steps on ``(c/2) |w|^2``: ``rate noise / (2 k (2 - rate c))``.

    This is exact, and about half of :func:`error_floor`. Raises :class:`~anyk.BadInput` for rates that diverge.

    >>> round(stationary_error(0.1, 1.0, 1.0, 4), 10)
    0.0065789474
    """
    if not 0.0 < rate * curvature < 2.0:
        raise BadInput(f"steps of {rate:g} diverge at curvature {curvature:g}: it must be below {2.0 / curvature:g}")
    return rate * noise / (2.0 * k * (2.0 - rate * curvature))


def stability_limit(staleness: float) -> float:
    """Return the largest stable learning rate times curvature if every gradient is ``staleness`` versions old.

    ``2 sin(pi / (2 (2 d + 1)))``, exact for a constant integer d; 2 without staleness, about ``pi / (2 d)`` for a
    large one.

    >>> stability_limit(0), round(stability_limit(1), 12), round(stability_limit(7), 10)
    (2.0, 1.0, 0.2090569265)
    """
    return 2.0 * sin(pi / (2.0 * (2.0 * staleness + 1.0)))


def cooperative_bound(
    excess: float,
    rate: float,
    smoothness: float,
    noise: float,
    workers: int,
    steps: int,
    *,
    tau: int = 1,
    zeta: float = 0.0,
    auxiliary: int = 0,
) -> float:
    """Return a bound on the mean squared gradient norm of cooperative SGD (Wang and Joshi 2018, Theorem 1).

    ``2 excess / (r steps) + r L noise / n + rate^2 L^2 noise ((1 + zeta^2) / (1 - zeta^2) tau - 1)`` with r the rate
    times ``n / (n + auxiliary)``: optimisation, noise of mini-batches, and how far models drift apart in ``tau`` local
    steps over a graph of this ``zeta``. ``excess``: of the first loss over the least; ``noise``: variance of one
    worker's gradient; ``auxiliary``: models that take no steps (1 for elastic averaging).

    >>> round(cooperative_bound(1.0, 0.05, 1.0, 1.0, 8, 1000, tau=10), 5)
    0.06875
    """
    effective = rate * workers / (workers + auxiliary)
    drift = (1.0 + zeta**2) / (1.0 - zeta**2) * tau - 1.0
    return (
        2.0 * excess / (effective * steps)
        + effective * smoothness * noise / workers
        + rate**2 * smoothness**2 * noise * drift
    )


def best_tau(
    excess: float, communication: float, rate: float, smoothness: float, noise: float, seconds: float
) -> float:
    """Return the local steps with the least bound after T seconds, ``sqrt(2 excess D / (rate^3 L^2 noise T))``.

    At least 1. ``communication`` D in seconds per averaging (AdaComm, Wang and Joshi 2019). The constants are seldom
    known.

    >>> round(best_tau(1.0, 1.0, 0.1, 1.0, 1.0, 200.0), 6)
    3.162278
    """
    return max(1.0, sqrt(2.0 * excess * communication / (rate**3 * smoothness**2 * noise * seconds)))
