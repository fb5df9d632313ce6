"""Adversarial stragglers: the number of chosen stragglers that does harm, depending on the adversary's knowledge.

An adversary of gradient codes chooses the workers that straggle so that the decoded sum is as wrong as possible. If it
knows the ``code``, it searches for the worst set. If it knows only the ``overlaps``, the number of partitions that any
two workers share, it searches for a community of workers that share many (Charles and Papailiopoulos 2018). If it knows
``nothing``, it chooses at random.
"""

from __future__ import annotations

from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from anyk.base import AtLeastOne, Indices, PositiveShare, keyed_generator, typed
from anyk.codes import (
    Code,
    Decoding,
    Method,
    Own,
    check_count,
    incidence,
    is_exhaustive,
    is_optimal,
    method,
    replies_of,
    second_singular,
    worst_stragglers,
)

Knowledge = Literal["code", "overlaps", "nothing"]
SETS = 101  # random orders of the workers, by default
_ROUNDING = 1e-12


@typed
def chosen_stragglers(
    code: Code, stragglers: int, *, knows: Knowledge = "code", decoder: str | Method = "own", seed: int = 0
) -> tuple[tuple[int, ...], Decoding]:
    """Return the workers that an adversary chooses, and the decoding without them.

    If it knows the code, this is the set of :func:`~anyk.codes.worst_stragglers`, or the set that overlaps suggest if
    that is worse. Unless all sets are compared there, its residual is a lower bound of the worst. ``seed`` is for an
    adversary that knows nothing. Raises :class:`~anyk.BadInput` for a number of stragglers below 0 or not below
    the number of workers.

    >>> import anyk
    >>> code = anyk.code("frc:load=3", workers=9)
    >>> [chosen_stragglers(code, 3, knows=knows)[0] for knows in ("code", "overlaps")]
    [(0, 1, 2), (0, 1, 2)]
    """
    n = code.workers
    check_count(stragglers, n)
    if knows == "nothing":
        lost = np.sort(keyed_generator(seed, "adversary", n, stragglers).permutation(n)[:stragglers])
    else:
        lost = _community(code, stragglers)
    present = np.setdiff1d(np.arange(n), lost)
    decoded = tuple(lost.tolist()), code.decode(replies_of(code, present), decoder=method(decoder))
    if knows == "code":
        searched = worst_stragglers(code, stragglers, decoder=decoder)
        return max(searched, decoded, key=lambda choice: choice[1].residual)
    return decoded


def _community(code: Code, size: int) -> Indices:
    """Return the workers with the largest total overlap, among the sets grown from each worker in turn."""
    assigned = incidence(code.assignment, code.partitions)
    overlap = np.asarray((assigned @ assigned.T).todense())
    np.fill_diagonal(overlap, 0.0)
    best, most = np.empty(0, dtype=np.int64), -1.0
    for first in range(code.workers if size else 0):
        inside = np.zeros(code.workers, dtype=bool)
        inside[first] = True
        shared, total = overlap[first].copy(), 0.0
        for _ in range(size - 1):
            nearest = int(np.argmax(np.where(inside, -1.0, shared)))
            inside[nearest] = True
            total += shared[nearest]
            shared += overlap[nearest]
        if total > most:
            best, most = np.flatnonzero(inside), total
    return best


class Threshold(NamedTuple):
    """The least number of ``stragglers`` that causes an ``error`` (None: no number does), with ``lost`` as an example.

    ``found``: "exact" (fewer are not enough), "search" (an upper bound: a better search may need fewer) or "random"
    (the median over random orders of the workers; ``lost`` is empty).
    """

    stragglers: int | None
    found: Literal["exact", "search", "random"]
    lost: tuple[int, ...] = ()
    error: float | None = None


@typed
def adversarial_threshold(
    code: Code,
    error: PositiveShare,
    *,
    knows: Knowledge = "code",
    decoder: str | Method = "own",
    sets: AtLeastOne = SETS,
    seed: int = 0,
) -> Threshold:
    """Return the least number of chosen stragglers for an error per partition, residual^2, of at least ``error``.

    If the adversary knows nothing, workers straggle in ``sets`` random orders, and the number is the median. If it
    knows the code, the number is exact if :func:`~anyk.codes.worst_stragglers` compares all sets of fewer, or a closed
    form bounds their error.

    >>> import anyk
    >>> adversarial_threshold(anyk.code("frc:load=3", workers=9), 0.3)
    Threshold(stragglers=3, found='exact', lost=(0, 1, 2), error=0.3333333333333333)
    """
    best = Threshold(None, "random" if knows == "nothing" else "search")
    low, high = -1, code.workers  # low stragglers do not reach the error; high ones do, or are all workers
    while high - low > 1:  # errors grow with the number of stragglers
        middle = (low + high) // 2
        lost: tuple[int, ...] = ()
        if knows == "nothing":
            reached = _median_error(code, middle, method(decoder), sets, seed)
        else:
            lost, decoding = chosen_stragglers(code, middle, knows=knows, decoder=decoder)
            reached = decoding.residual**2
        if reached >= error - _ROUNDING:
            best, high = best._replace(stragglers=middle, lost=lost, error=reached), middle
        else:
            low = middle
    if knows == "code" and _none_reaches(code, low, error, method(decoder)):
        return best._replace(found="exact")
    return best


def threshold_bound(code: Code, error: float) -> int | None:
    """Return a lower bound of :func:`adversarial_threshold` from the second singular value, with least squares.

    Let rows have the sum w, columns the sum c, and let s be the second singular value. Without f of the n workers, the
    other r replies with the best common weight have an error per partition of at most ``s^2 f / (w c r + s^2 f)``;
    hence ``f >= n e w c / (e w c + (1 - e) s^2)`` for an error e (derived here). Of square 0/1 codes with the same w a
    symmetric block design, if it exists, has the least s and the largest bound, which it attains (Kadhe, Koyluoglu and
    Ramchandran 2019 state such a bound). None for a code whose rows or columns differ in sum.

    >>> import anyk
    >>> [threshold_bound(anyk.code("bibd", workers=31), error) for error in (0.1, 0.2)]
    [14, 20]
    """
    rows, columns = (np.asarray(code.encoding.sum(axis=axis)).ravel() for axis in (1, 0))
    if code.messages > 1 or code.blocks > 1 or np.ptp(rows) > 1e-9 or np.ptp(columns) > 1e-9:
        return None
    ewc = error * float(rows[0] * columns[0])
    return ceil(code.workers * ewc / (ewc + (1.0 - error) * second_singular(code.encoding) ** 2) - 1e-9)


def _median_error(code: Code, stragglers: int, how: Method, sets: int, seed: int) -> float:
    """Return the upper median over random orders of the workers of residual^2 without the first ``stragglers``."""
    n = code.workers
    squares = []
    for order in range(sets):
        present = np.sort(keyed_generator(seed, "adversary-orders", n, order).permutation(n)[stragglers:])
        squares.append(code.decode(replies_of(code, present), decoder=how).residual ** 2)
    return sorted(squares, reverse=True)[(sets - 1) // 2]


def _none_reaches(code: Code, most: int, error: float, how: Method) -> bool:
    """Return whether it is certain that no set of up to ``most`` stragglers reaches the error."""
    if most < 0:
        return True
    bounded = isinstance(how, Own) and code.messages == 1  # a closed form is for the own decoder
    monotone = is_optimal(code, how)  # more stragglers never help such a decoder, so that fewer need no check
    for stragglers in [most] if monotone else range(most, -1, -1):
        bound = code.worst_error(stragglers) if bounded else None
        if bound is not None and bound[0] / code.partitions < error - _ROUNDING:
            continue
        if not is_exhaustive(code, stragglers, how):
            return False
        if worst_stragglers(code, stragglers, decoder=how)[1].residual ** 2 >= error - _ROUNDING:
            return False
    return True
