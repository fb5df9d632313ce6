"""How many stragglers it takes to do harm, when somebody chooses them, and what that somebody must know.

An adversary of gradient codes picks the workers that straggle so that the decoded sum is as wrong as possible. One that
knows the ``code`` searches for the worst set. One that knows the ``overlaps`` only, how many partitions any two workers
share but not what they compute, looks for a community of workers that share much (Charles and Papailiopoulos 2018).
One that knows ``nothing`` draws at random.
"""

from __future__ import annotations

from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from anyk import keyed
from anyk.codes import Code, worst_stragglers
from anyk.codes.base import incidence
from anyk.codes.decoders import Decoding, Method, Own, method
from anyk.codes.regular import second_singular
from anyk.codes.search import is_exhaustive, is_optimal
from anyk.errors import BadInput

Knowledge = Literal["code", "overlaps", "nothing"]
SETS = 101  # random orders of the workers, by default
_ROUNDING = 1e-12


def chosen_stragglers(
    code: Code, stragglers: int, *, knows: Knowledge = "code", decoder: str | Method = "own", seed: int = 0
) -> tuple[tuple[int, ...], Decoding]:
    """Return the workers that an adversary picks, and the decoding without them.

    If it knows the code, this is the set of :func:`~anyk.codes.worst_stragglers`, or the set that overlaps suggest if
    that is worse. Unless all sets are compared there, its residual is a lower bound of the worst. ``seed`` is for an
    adversary that knows nothing. Raises
    :class:`~anyk.errors.BadInput` for a number of stragglers below 0 or not below the number of workers.

    >>> import anyk
    >>> code = anyk.code("frc:load=3", workers=9)
    >>> [chosen_stragglers(code, 3, knows=knows)[0] for knows in ("code", "overlaps")]
    [(0, 1, 2), (0, 1, 2)]
    """
    n, c = code.workers, code.messages
    if not 0 <= stragglers < n:
        raise BadInput(f"stragglers must be at least 0 and below {n}, got {stragglers}")
    if knows in ("code", "overlaps"):
        lost = _community(code, stragglers)
    elif knows == "nothing":
        lost = np.sort(keyed.generator(seed, "adversary", n, stragglers).permutation(n)[:stragglers])
    else:
        raise BadInput(f"knows must be code, overlaps or nothing, got {knows!r}")
    here = np.setdiff1d(np.arange(n), lost)
    found = tuple(lost.tolist()), code.decode((here[:, None] * c + np.arange(c)).ravel(), decoder=method(decoder))
    if knows == "code":
        searched = worst_stragglers(code, stragglers, decoder=decoder)
        return max(searched, found, key=lambda choice: choice[1].residual)
    return found


def _community(code: Code, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Workers that share most with each other: grown from each worker in turn, the set of largest total overlap."""
    held = incidence(code.assignment, code.partitions)
    overlap = np.asarray((held @ held.T).todense())
    np.fill_diagonal(overlap, 0.0)
    best, most = np.empty(0, dtype=np.int64), -1.0
    for first in range(code.workers if size else 0):
        inside = np.zeros(code.workers, dtype=bool)
        inside[first] = True
        shared, total = overlap[first].copy(), 0.0
        for _ in range(size - 1):
            at = int(np.argmax(np.where(inside, -1.0, shared)))
            inside[at] = True
            total += shared[at]
            shared += overlap[at]
        if total > most:
            best, most = np.flatnonzero(inside), total
    return best


class Threshold(NamedTuple):
    """How many stragglers it takes: ``stragglers`` (None: no number does), with ``lost`` as an example, and ``error``.

    ``found``: "exact" (fewer do not do), "search" (an upper bound: a better search may need fewer) or "random" (the
    median over random orders of the workers; ``lost`` is empty).
    """

    stragglers: int | None
    found: Literal["exact", "search", "random"]
    lost: tuple[int, ...] = ()
    error: float | None = None


def adversarial_threshold(
    code: Code,
    error: float,
    *,
    knows: Knowledge = "code",
    decoder: str | Method = "own",
    sets: int = SETS,
    seed: int = 0,
) -> Threshold:
    """The least number of chosen stragglers that pushes the error per partition, residual^2, to ``error`` or more.

    One that knows nothing loses workers in a random order, of which there are ``sets``: the number is their median.
    For one that knows the code the number is exact if :func:`~anyk.codes.worst_stragglers` compares all sets of fewer,
    or a closed form bounds their error.

    >>> import anyk
    >>> adversarial_threshold(anyk.code("frc:load=3", workers=9), 0.3)
    Threshold(stragglers=3, found='exact', lost=(0, 1, 2), error=0.3333333333333333)
    """
    if not 0.0 < error <= 1.0:
        raise BadInput(f"the error per partition must be above 0 and at most 1, got {error:g}")
    if sets < 1:
        raise BadInput(f"sets must be at least 1, got {sets}")
    best = Threshold(None, "random" if knows == "nothing" else "search")
    low, high = -1, code.workers
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
    if knows == "code" and _none_do(code, low, error, method(decoder)):
        return best._replace(found="exact")
    return best


def threshold_bound(code: Code, error: float) -> int | None:
    """Return a lower bound of :func:`adversarial_threshold` from the second singular value, with least squares.

    For rows of sum w, columns of sum c and second singular value s, r replies with the best common weight have an error
    per partition of at most ``s^2 f / (w c r + s^2 f)``; hence ``f >= n e w c / (e w c + (1 - e) s^2)`` for an error e
    (derived here). Of square 0/1 codes with the same w a symmetric block design, if it exists, has the least s and
    the largest bound, which it attains (Kadhe, Koyluoglu and Ramchandran 2019 state such a bound). None for a code
    whose rows or columns differ in sum.

    >>> import anyk
    >>> [threshold_bound(anyk.code("bibd", workers=31), error) for error in (0.1, 0.2)]
    [14, 20]
    """
    rows, columns = (np.asarray(code.encoding.sum(axis=axis)).ravel() for axis in (1, 0))
    if code.messages > 1 or code.blocks > 1 or np.ptp(rows) > 1e-9 or np.ptp(columns) > 1e-9:
        return None
    first = error * float(rows[0] * columns[0])
    return ceil(code.workers * first / (first + (1.0 - error) * second_singular(code.encoding) ** 2) - 1e-9)


def _median_error(code: Code, stragglers: int, how: Method, sets: int, seed: int) -> float:
    """Residual^2 without the first so many workers of random orders: what at least half of them reach."""
    n, c = code.workers, code.messages
    squares = []
    for order in range(sets):
        here = np.sort(keyed.generator(seed, "adversary-orders", n, order).permutation(n)[stragglers:])
        squares.append(code.decode((here[:, None] * c + np.arange(c)).ravel(), decoder=how).residual ** 2)
    return sorted(squares, reverse=True)[(sets - 1) // 2]


def _none_do(code: Code, most: int, error: float, how: Method) -> bool:
    """Whether it is certain that no set of up to so many stragglers reaches the error."""
    if most < 0:
        return True
    known = isinstance(how, Own) and code.messages == 1
    monotone = is_optimal(code, how)  # losing more never helps such a decoder, so that it need not be asked for fewer
    for stragglers in [most] if monotone else range(most, -1, -1):
        bound = code.worst_error(stragglers) if known else None
        if bound is not None and bound[0] / code.partitions < error - _ROUNDING:
            continue
        if not is_exhaustive(code, stragglers, how):
            return False
        if worst_stragglers(code, stragglers, decoder=how)[1].residual ** 2 >= error - _ROUNDING:
            return False
    return True
