"""Stable learning rates, and a bound on the error of cooperative SGD.

``rate`` is the learning rate, ``smoothness`` L, ``noise`` the variance of one gradient (of a whole mini-batch).
"""

from __future__ import annotations

from math import pi, sin, sqrt


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
