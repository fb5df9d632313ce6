"""Straggler sets that hurt: the choice of an adversary who knows the code."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, islice
from math import comb
from typing import Any

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import check_range
from anyk.base.keyed import keyed_generator
from anyk.codes.base import Code, incidence, whole
from anyk.codes.decoders import Decoding, LeastSquaresMethod, Method, Own, method

_DECODED = 2_000  # sets up to which all are decoded
_COMPUTED = 200_000  # sets up to which the least-squares errors of all are computed
_DENSE = 4_000_000  # replies x partitions up to which least-squares errors follow from one inverse
_TRACKS = 32  # local searches side by side
_ROUNDS = 25  # times that each is repeated from a set near its best
_KICKED = 5  # stragglers in which that set differs
_WORK = 1e9  # multiplications after which a local search ends, roughly
_BATCH = 1_000_000  # numbers in an array
_TRIED = 32  # workers that are tried for each straggler where every set must be decoded
_SOFT, _SHARP = 1e-3, 1e-6  # penalties on weights
_NULL = 1e-10  # squared singular values below this fraction of the largest count as 0
_DIGITS = 7  # errors that agree to this many digits are a tie

Found = tuple[tuple[int, ...], Decoding]


def is_optimal(code: Code, how: Method) -> bool:
    """Return whether the weights are the least-squares weights, or as good."""
    return code.messages == code.blocks == 1 and (how == LeastSquaresMethod() or (code.optimal and how == Own()))


def is_exhaustive(code: Code, stragglers: int, how: Method) -> bool:
    """Return whether :func:`worst_stragglers` compares all sets of this size, so that its result is exact."""
    return comb(code.workers, stragglers) <= (_COMPUTED if _is_dense(code, how) else _DECODED)


def worst_stragglers(code: Code, stragglers: int, *, decoder: str | Method = "own") -> Found:
    """Return a set of this many workers with a large residual, and the decoding without them.

    If there are up to 200,000 sets and least squares decode, or up to 2,000 with other decoders, all are compared and
    the residual is the largest of all. Otherwise it is a lower bound of the largest. For least squares, a local search
    swaps stragglers for other workers as long as the error grows, from many sets, grown greedily or random, and then
    repeatedly from sets near the best. With other decoders, or more than 4 million coefficients, a greedy set is
    improved by random swaps. Raises :class:`~anyk.BadInput` for a number of stragglers out of range.

    >>> import anyk
    >>> worst_stragglers(anyk.code("frc:load=3", workers=6), 3)[0]
    (0, 1, 2)
    """
    n = code.workers
    check_count(stragglers, n)
    how = method(decoder)

    def decode_without(lost: Indices) -> Decoding:
        return code.decode(replies_of(code, np.setdiff1d(np.arange(n), lost)), decoder=how)

    if not stragglers:
        return (), decode_without(np.empty(0, dtype=np.int64))
    errors = _Errors(code) if _is_dense(code, how) else None
    if is_exhaustive(code, stragglers, how):
        sets, bounds = _all_sets(n, stragglers, errors)
    elif errors:
        sets = np.sort(_search(code, stragglers, errors), axis=1)
        bounds = errors.without(sets)
    else:
        small = code.messages == code.blocks == 1 and code.replies * code.partitions <= _DENSE
        start = worst_stragglers(code, stragglers, decoder=LeastSquaresMethod())[0] if small else range(stragglers)
        return _climb(code, np.array(start), decode_without)
    return _worst_of(code, sets, bounds, decode_without)


def _all_sets(workers: int, stragglers: int, errors: _Errors | None) -> tuple[Indices, Floats]:
    """Return all sets of stragglers, shape (sets, stragglers), with their errors; inf if those are not known."""
    remaining, batches = combinations(range(workers), stragglers), []
    while batch := list(islice(remaining, max(1, _BATCH // stragglers**2))):
        batches.append(np.array(batch, dtype=np.int64))
    sets = np.concatenate(batches)
    if errors is None:
        return sets, np.full(len(sets), np.inf)
    return sets, np.concatenate([errors.without(batch) for batch in batches])


def _worst_of(code: Code, sets: Indices, bounds: Floats, decode_without: Callable[[Indices], Decoding]) -> Found:
    """Return the set with the largest residual; ``bounds``: of each set's error, shape (sets,)."""
    worst: Found | None = None
    order = np.argsort(-bounds.round(_DIGITS), kind="stable")
    for index in order[:_DECODED].tolist():
        if worst and bounds[index] <= code.partitions * worst[1].residual ** 2 + 10.0**-_DIGITS:
            break
        decoding = decode_without(sets[index])
        if not worst or decoding.residual > worst[1].residual:
            worst = tuple(sets[index].tolist()), decoding
    assert worst
    return worst


def check_count(stragglers: int, workers: int) -> None:
    """Raise :class:`~anyk.BadInput` unless ``stragglers`` is at least 0 and below ``workers``."""
    check_range("stragglers", whole("stragglers", stragglers), 0, workers - 1, ", below workers")


def replies_of(code: Code, workers: Indices) -> Indices:
    """Return the indices of all replies of some workers."""
    return (workers[:, None] * code.messages + np.arange(code.messages)).ravel()


def _is_dense(code: Code, how: Method) -> bool:
    return is_optimal(code, how) and code.replies * code.partitions <= _DENSE


class _Errors:
    """Least-squares errors, partitions x residual^2, without sets of workers: upper bounds, exact for independent rows.

    Rows are scaled to norm 1. Least squares with a penalty ``a' D a`` on the weights have the error ``m - b' K^-1 b``
    with ``K = B B' + D`` and ``b = B 1``. With ``M = K^-1`` and ``a = M b`` a set F adds ``a_F' (M_FF)^-1 a_F``. D is
    needed where rows depend on each other: it is 1e-6 on the left null space of B. With ``soft`` it is 1e-3 on all
    weights. That penalty is larger the fewer replies make up the sum, which tells sets of equal error apart.
    """

    def __init__(self, code: Code, *, soft: bool = False) -> None:
        rows = code.encoding.toarray() / np.where(code.norms > 0.0, code.norms, 1.0)[:, None]
        values, vectors = np.linalg.eigh(rows @ rows.T)
        values = values + _SOFT if soft else np.where(values > _NULL * values[-1], values, _SHARP)
        sums, self._inverse = rows.sum(axis=1), (vectors / values) @ vectors.T
        self._weights = self._inverse @ sums
        self._error = code.partitions - float(sums @ self._weights)

    def without(self, lost: Indices) -> Floats:
        """Return errors without sets of shape (sets, size); shape (sets,)."""
        weights = self._weights[lost]
        solved = np.linalg.solve(self._inverse[lost[:, :, None], lost[:, None, :]], weights[:, :, None])[:, :, 0]
        return np.asarray(self._error + (weights * solved).sum(axis=1))

    def _parts(self, lost: Indices) -> tuple[Any, ...]:
        """Return the diagonal of the Schur complement of M_FF in M, with parts of the errors of larger sets."""
        across, weights = self._inverse[lost], self._weights[lost]
        inverse = np.linalg.inv(self._inverse[lost[:, :, None], lost[:, None, :]])
        solved, applied = (inverse @ weights[:, :, None])[:, :, 0], inverse @ across
        complement = self._inverse.diagonal() - (applied * across).sum(axis=1)
        np.put_along_axis(complement, lost, 1.0, axis=1)
        beyond = self._weights - (solved[:, None, :] @ across)[:, 0]
        error = self._error + (weights * solved).sum(axis=1)
        return error, beyond, complement, solved, applied, inverse.diagonal(axis1=1, axis2=2)

    def with_more(self, lost: Indices) -> Floats:
        """Return errors without each set and one more worker, shape (sets, workers); -inf for those in the set."""
        error, beyond, complement, *_ = self._parts(lost)
        larger = error[:, None] + beyond**2 / complement
        np.put_along_axis(larger, lost, -np.inf, axis=1)
        return np.asarray(larger)

    def with_swap(self, lost: Indices) -> tuple[Floats, Floats]:
        """Return the errors of sets, and of those with one straggler swapped for each worker, (sets, size, workers)."""
        error, beyond, complement, solved, applied, diagonal = self._parts(lost)
        removed = solved[:, :, None] - applied * (beyond / complement)[:, None, :]
        swapped = (error[:, None] + beyond**2 / complement)[:, None, :] - removed**2 / (
            diagonal[:, :, None] + applied**2 / complement[:, None, :]
        )
        np.put_along_axis(swapped, np.broadcast_to(lost[:, None, :], (*lost.shape, lost.shape[1])), -np.inf, axis=2)
        return error, swapped


def _search(code: Code, stragglers: int, sharp: _Errors) -> Indices:
    """Return sets that no swap makes worse (if the work suffices), shape (tracks, stragglers)."""
    n, f = code.workers, stragglers
    soft, work = _Errors(code, soft=True), _WORK
    random = keyed_generator(0, "worst-stragglers", n, f)

    def climb(lost: Indices) -> tuple[Indices, Floats]:
        nonlocal work
        for errors in (soft, sharp):
            active, last, before = np.arange(len(lost)), lost.copy(), np.full(len(lost), -np.inf)
            while len(active) and work > 0:
                work -= len(active) * f * n * (f + 10)
                error, swapped = errors.with_swap(lost[active])
                flat = swapped.reshape(len(active), f * n)
                best = flat.argmax(axis=1)
                grew = error > before[active] + 10.0**-_DIGITS  # rounding may have predicted a larger error
                lost[active[~grew]] = last[active[~grew]]
                grows = grew & (flat[np.arange(len(active)), best] > error + 10.0**-_DIGITS)
                active, best, error = active[grows], best[grows], error[grows]
                last[active], before[active] = lost[active], error
                lost[active, best // n] = best % n
        return lost, sharp.without(lost)

    tracks = max(2, min(_TRACKS, _BATCH // (f * n)))
    lost = random.permuted(np.tile(np.arange(n), (tracks, 1)), axis=1)[:, :f]
    grown = np.arange(n)[:: -(-2 * n // tracks)][:, None]
    while grown.shape[1] < f:
        grown = np.append(grown, soft.with_more(grown).argmax(axis=1)[:, None], axis=1)
    lost[: len(grown)] = grown
    lost, error = climb(lost)
    for _ in range(_ROUNDS):
        if work <= 0:
            break
        near, keys = lost.copy(), random.random((tracks, n))
        np.put_along_axis(keys, lost, np.inf, axis=1)
        kicked = min(_KICKED, f, n - f)
        places = random.random((tracks, f)).argsort(axis=1)[:, :kicked]
        np.put_along_axis(near, places, keys.argsort(axis=1)[:, :kicked], axis=1)
        near, errors = climb(near)
        better = errors >= error
        lost[better], error[better] = near[better], errors[better]
    return lost


def _climb(code: Code, start: Indices, decode_without: Callable[[Indices], Decoding]) -> Found:
    """Return the worse of a greedy set and ``start``, improved by random swaps; every set is decoded."""
    n, stragglers = code.workers, len(start)
    random = keyed_generator(0, "worst-stragglers", n, stragglers)
    holders = incidence(code.assignment, code.partitions)
    overlap = holders @ holders.T
    lost = start[:1]
    while len(lost) < stragglers:
        shared = np.asarray(overlap[lost].sum(axis=0)).ravel()
        shared[lost] = -1.0
        near = np.argsort(-shared, kind="stable")[: min(_TRIED, n - len(lost))]  # workers that share most partitions
        lost = np.append(lost, near[np.argmax([decode_without(np.append(lost, i)).residual for i in near])])
    lost, decoding = max(((s, decode_without(s)) for s in (lost, start)), key=lambda pair: pair[1].residual)
    for _ in range(min(_DECODED, _TRIED * stragglers)):
        swapped = lost.copy()
        swapped[random.integers(stragglers)] = random.choice(np.setdiff1d(np.arange(n), lost))
        other = decode_without(swapped)
        if other.residual >= decoding.residual:
            lost, decoding = swapped, other
    return tuple(np.sort(lost).tolist()), decoding
