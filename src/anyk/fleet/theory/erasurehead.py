"""ErasureHead's theory of approximate gradient coding: bias, convergence and time, as functions.

Wang, Charles and Papailiopoulos, *ErasureHead: distributed gradient descent without delays using approximate gradient
coding* (2019). ``workers`` k store ``partitions`` n (default: k); each worker stores ``load`` c partitions, like all
``k c / n`` workers of its group; a step takes ``replies`` r. Constants of the objective: ``smoothness`` beta,
``convexity`` mu (Polyak-Lojasiewicz), ``gradient`` sigma, a bound on the norm of one partition's gradient. If a printed
formula is wrong the corrected one is computed, and the printed one with ``printed=True``.
"""

from __future__ import annotations

from math import comb, exp, log
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from anyk.base import BadInput, PositiveNumber, check_range, typed
from anyk.codes import harmonic

Scheme = Literal["uncoded", "exact", "approximate"]
Step = Literal["full", "scaled"]  # the step size: 1 / beta, or (1 - p) / beta


class Missing(NamedTuple):
    """Chances that groups are missing: ``one`` (p) given group, ``either`` (q) of two given groups."""

    one: float
    either: float


def missing(workers: int, load: int, replies: int, *, partitions: int | None = None) -> Missing:
    """Return the chances that a step of r replies, all sets being alike, lacks groups (Lemma 2).

    With groups of ``l = k c / n`` workers ``p = C(k-l, r) / C(k, r)`` and ``q = (2 C(k-l, r) - C(k-2l, r)) / C(k, r)``;
    ``p <= q <= 2p`` and ``p <= exp(-c r / n)``.

    >>> missing(30, 3, 15)
    Missing(one=0.11206896551724138, either=0.2157088122605364)
    """
    group = workers * load // _check(workers, load, replies, partitions)
    sets = comb(workers, replies)
    one = comb(workers - group, replies) / sets
    both = comb(max(workers - 2 * group, 0), replies) / sets
    return Missing(one, 2.0 * one - both)


def excess_bound(
    steps: int,
    first: float,
    smoothness: float,
    convexity: float,
    gradient: float,
    workers: int,
    load: int,
    replies: int,
    *,
    step: Step = "full",
    simple: bool = False,
    partitions: int | None = None,
) -> float:
    """Return a bound on the expected excess loss after ``steps`` steps from an excess of ``first`` (Theorem 1).

    With steps of 1 / beta ``(1 - mu/beta)^T first + sigma^2 / (2 (1-p) mu) (p + (q-p) c / ((1-p) n))``, with
    (1-p) / beta ``(1 - (1-p) mu/beta)^T first + (q-p) c sigma^2 / (2 (1-p) mu n)``. ``simple``: Theorem 2, the same
    with ``exp(-cr/n)`` in place of p and q, which holds for ``c >= n log 2 / r``.

    >>> round(excess_bound(1000, 1.0, 4.0, 1.0, 1.0, 12, 3, 5), 4)
    0.1214
    """
    p, q = missing(workers, load, replies, partitions=partitions)
    n = partitions or workers
    if not 0.0 < convexity <= smoothness:
        raise BadInput(f"convexity must be above 0 and at most the smoothness {smoothness:g}, got {convexity:g}")
    noise = gradient**2 / convexity
    if simple:
        if load * replies < n * log(2.0):
            raise BadInput(
                f"Theorem 2 needs load x replies of at least n log 2 = {n * log(2.0):.4g}, got {load * replies}"
            )
        far = exp(-load * replies / n)
        if step == "full":
            rate, floor = convexity / smoothness, far * noise * (1.0 + 4.0 * load / n)
        else:
            rate, floor = (1.0 - far) * convexity / smoothness, 2.0 * load * far * noise / n
    elif step == "full":
        rate = convexity / smoothness
        floor = noise / (2.0 * (1.0 - p)) * (p + (q - p) * load / ((1.0 - p) * n))
    else:
        rate = (1.0 - p) * convexity / smoothness
        floor = (q - p) * load * noise / (2.0 * (1.0 - p) * n)
    return float((1.0 - rate) ** steps * first + floor)


@typed
def step_seconds(
    workers: int,
    load: int = 1,
    replies: int | None = None,
    *,
    rate: PositiveNumber = 1.0,
    printed: bool = False,
    partitions: int | None = None,
) -> float:
    """Return the expected seconds of a step if a worker with c partitions takes ``c/n + Exp(rate n / c)`` (Lemma 8).

    Without ``replies`` a step waits for all groups: ``c/n + H_(n/c) / (rate k)``, the largest of n/c minima of
    ``k c / n`` exponentials; for ``n = k`` and ``c = 1`` this is (12), the time without a code. For n = k the paper
    prints ``c/n + (H_n - H_c) / (rate n)`` (13), which is too small, for c = 1 too.
    With ``replies`` it is the time of the r-th of k workers, ``c/n + c (H_k - H_(k-r)) / (rate n)``: an upper bound,
    since a step also ends when all groups have replied.

    >>> [round(step_seconds(30, c, rate=1 / 3), 4) for c in (1, 3)], round(step_seconds(30, 3, 11, rate=1 / 3), 4)
    ([0.4328, 0.3929], 0.2342)
    >>> [round(step_seconds(30, c, rate=1 / 3, printed=True), 4) for c in (1, 3)]
    [0.3328, 0.3162]
    """
    n = _check(workers, load, replies or workers, partitions)
    if printed and n != workers:
        raise BadInput(f"the formula is printed for as many partitions as workers, {workers}, got {n}")
    if replies is not None:
        beyond = load * (harmonic(workers) - harmonic(workers - replies)) / n
    elif printed:
        beyond = (harmonic(workers) - harmonic(load)) / workers
    else:
        beyond = harmonic(n // load) / workers
    return load / n + beyond / rate


@typed
def seconds_bound(
    scheme: Scheme,
    excess: float,
    first: float,
    smoothness: float,
    convexity: float,
    workers: int,
    load: int,
    *,
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.5,
    printed: bool = False,
) -> float:
    """Return a bound on the expected seconds until the excess loss is ``excess``, at a rate of 1 / c (Theorem 3).

    The steps are ``log(first / excess) / log(1 / (1 - kappa))``, kappa = mu / beta. Each takes at most
    ``(c log n + c + 1) / n`` seconds ``uncoded`` and ``(c log(n/c) + 2c) / n`` ``exact``; the paper prints c + 1 for
    the last term, which the exact time of a step exceeds. ``approximate``, on a ``share`` delta of the replies, they
    are ``log(3 first / excess) / log(1 / (1 - eta kappa))`` with ``eta = 1 - exp(-c delta)``, of
    ``(c^2 log(1 / (1 - delta)) + c^2 + c) / n`` seconds, for an ``excess`` of at least
    ``3 c exp(-c delta) sigma^2 / (mu n)``.

    >>> [round(seconds_bound("exact", 0.01, 1.0, 4.0, 1.0, 30, 3, printed=wrong), 3) for wrong in (False, True)]
    [6.888, 5.82]
    """
    _check(workers, load, workers, None)
    if not 0.0 < excess < first:
        raise BadInput(f"the excess to reach must be above 0 and below the first, {first:g}, got {excess:g}")
    if not 0.0 < convexity < smoothness:
        raise BadInput(f"convexity must be above 0 and below the smoothness {smoothness:g}, got {convexity:g}")
    kappa, c = convexity / smoothness, load
    if scheme == "approximate":
        steps = log(3.0 * first / excess) / -log(1.0 - (1.0 - exp(-c * share)) * kappa)
        return steps * (c**2 * log(1.0 / (1.0 - share)) + c**2 + c) / workers
    steps = log(first / excess) / -log(1.0 - kappa)
    if scheme == "uncoded":
        return steps * (c * log(workers) + c + 1) / workers
    return steps * (c * log(workers / c) + (c + 1 if printed else 2 * c)) / workers


def _check(workers: int, load: int, replies: int, partitions: int | None) -> int:
    n = workers if partitions is None else partitions
    if workers < 1 or not 1 <= load <= n or n % load:
        raise BadInput(
            f"load must divide the number of {'workers' if partitions is None else 'partitions'}, {n}, got {load}"
        )
    if workers % (n // load):
        raise BadInput(f"the {n // load} groups must divide the number of workers, {workers}")
    check_range("replies", replies, 1, workers)
    return n
