"""Straggler sets that hurt: what an adversary who knows the code would pick."""

from __future__ import annotations

from itertools import combinations, product
from math import comb

import numpy as np

from anyk.codes.base import Code, incidence, whole
from anyk.codes.decoders import Decoding, Indices, LeastSquares, Method, Own, method
from anyk.codes.edges import EdgeCode
from anyk.codes.product import KroneckerCode
from anyk.codes.tree import TreeCode
from anyk.errors import BadInput

_EXHAUSTIVE = 2_000  # sets up to which all are looked at
_TRIED = 32  # candidates looked at for each straggler that a greedy search adds
_STARTS = 2  # greedy searches, from different workers
_DENSE = 4_000_000  # replies x partitions up to which one decomposition serves a whole greedy search
_DIGITS = 9  # residuals that are the same to so many are a tie


def is_optimal(code: Code, how: Method) -> bool:
    """Whether the weights found are the least-squares ones, or as good."""
    own = type(code)._solve is Code._solve or isinstance(code, (EdgeCode, KroneckerCode, TreeCode))
    return code.messages == code.blocks == 1 and (isinstance(how, LeastSquares) or (own and isinstance(how, Own)))


def is_exhaustive(code: Code, stragglers: int) -> bool:
    """Whether :func:`worst_stragglers` looks at all sets of so many."""
    return comb(code.workers, stragglers) <= _EXHAUSTIVE


def worst_stragglers(code: Code, stragglers: int, *, decoder: str | Method = "own") -> tuple[tuple[int, ...], Decoding]:
    """The set of so many workers with the largest residual that a search finds, and the decoding without them.

    Up to 2,000 sets all are tried; beyond, the set is grown greedily, by the worker whose loss adds most, among those
    that share most with what is lost; of equal ones by the one that shares most and, where least squares decode, in
    a second search by the lowest. A greedy result is a lower bound of the worst.

    >>> import anyk
    >>> worst_stragglers(anyk.code("frc:load=3", workers=6), 3)[0]
    (0, 1, 2)
    """
    n, c = code.workers, code.messages
    if not 0 <= whole("stragglers", stragglers) < n:
        raise BadInput(f"stragglers must be at least 0 and below {n}, got {stragglers}")
    how = method(decoder)

    def without(lost: Indices) -> Decoding:
        here = np.setdiff1d(np.arange(n), lost)
        return code.decode((here[:, None] * c + np.arange(c)).ravel(), decoder=how)

    nobody = np.empty(0, dtype=np.int64)
    if not stragglers:
        return (), without(nobody)
    if is_exhaustive(code, stragglers):
        sets = (np.array(chosen, dtype=np.int64) for chosen in combinations(range(n), stragglers))
        best = max(((lost, without(lost)) for lost in sets), key=lambda found: found[1].residual)
        return tuple(best[0].tolist()), best[1]
    removal = code.removal if is_optimal(code, how) and code.replies * code.partitions <= _DENSE else None
    held = incidence(code.assignment, code.partitions)
    overlap = held @ held.T
    best_lost, best_found = nobody, without(nobody)
    starts = np.unique(np.linspace(0, n - 1, _STARTS).astype(np.int64))
    for first, nearest in product(starts, (True,) if removal is None else (False, True)):
        lost = np.array([first])
        while len(lost) < stragglers:
            shared = np.asarray(overlap[lost].sum(axis=0)).ravel()
            shared[lost] = -1.0
            near = np.argsort(-shared, kind="stable")[: min(_TRIED, n - len(lost))]
            if removal is None:
                residuals = np.array([without(np.append(lost, i)).residual for i in near])
            else:
                residuals = removal.residuals(lost, near).round(_DIGITS)
            # where nothing is lost yet, whoever shares most with the others is the one to go on with
            equal = near[residuals == residuals.max()]
            lost = np.append(lost, equal[0] if nearest else equal.min())
        found = without(lost)
        if found.residual > best_found.residual or not len(best_lost):
            best_lost, best_found = np.sort(lost), found
    return tuple(best_lost.tolist()), best_found
