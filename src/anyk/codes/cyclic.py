"""Cyclic repetition: worker i holds partitions i to i + s, and any n - s replies give the sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.codes.base import EXACT, Row, WindowCode
from anyk.codes.made import ReadOnlyArrays, fixed_property, frozen

_DENSE = 1024  # workers up to which pseudo-inverse and null space are stored
_WORST_GAIN = 1e9  # a sample that amplifies rounding more than this is useless in double precision


@value_class
class CyclicRepetition(WindowCode):
    """Cyclic repetition: worker i holds partitions i, …, i + s (mod n); any n - s replies give the exact sum.

    From a random ``H`` (s x n) with ``H 1 = 0``, row i of B is the null vector of the columns of H on worker i's
    support, so that the rows of B span the null space of H, which contains the all-ones vector (Tandon, Lei,
    Dimakis and Karampatziakis 2017, Algorithm 2). Here H has orthonormal rows and B rows of unit norm, several H
    are sampled (keyed by ``seed``) and the one that amplifies rounding least on trial sets of stragglers is used. Any
    straggler set is decoded when it occurs, by an s x s solve in the left null space of B (beyond 1,024 workers by a
    sparse LU of n - s replies), with one step of refinement; no table of sets is built.

    ``stragglers`` is s, 0 <= s < workers; by default a tenth of the workers, at least 1. Raises
    :class:`~anyk.BadInput` for other values, or if every sample amplifies rounding more than 1e9 times.

    >>> code = CyclicRepetition(5, stragglers=2)
    >>> code.load, code.tolerates, round(code.decode([0, 2, 3]).residual, 12)
    (3, 2, 0.0)
    """

    workers: int
    stragglers: int | None = None
    seed: int = 0
    name = "cyclic"

    @fixed_property
    def rows(self) -> Sequence[Row]:
        best = self._best
        return tuple((tuple(s), tuple(v)) for s, v in zip(best.supports.tolist(), best.values.tolist(), strict=True))

    @property
    def _best(self) -> _Sample:
        return _best_sample(self.workers, self.tolerates, self.seed)

    def _solve(self, replies: Indices) -> Floats:
        if self.workers - len(replies) > self.tolerates:
            return super()._solve(replies)
        return self._best.weights(np.setdiff1d(np.arange(self.workers), replies))


@lru_cache(maxsize=16)  # sampling costs more than a step, and restored or replayed runs build equal codes repeatedly
def _best_sample(n: int, s: int, seed: int) -> _Sample:
    """Return the sample that amplifies rounding least on trial sets of stragglers."""
    if s == 0:
        return _Sample(np.arange(n)[:, None], np.ones((n, 1)))
    gain, best = min(_samples(n, s, seed), key=itemgetter(0))
    if gain > _WORST_GAIN:
        raise BadInput(
            f"cyclic:stragglers={s} cannot be built stably for {n} workers (rounding is amplified more than "
            f"{_WORST_GAIN:.0e} times); use frc:stragglers={s}, which loses nothing"
        )
    return best


def _samples(n: int, s: int, seed: int) -> Iterator[tuple[float, _Sample]]:
    """Yield samples with their largest gain on trial sets of stragglers."""
    for number in range(20 if n <= 64 else 6 if n <= 300 else 2):
        random = keyed_generator(seed, "cyclic", n, s, number)
        sample, worst = _sample(n, s, random), 0.0
        for trial in range(20):
            # half the sets are random, half are neighbours: machines of one rack tend to be late together
            first = int(random.integers(n))
            lost = (first + np.arange(s)) % n if trial % 2 else random.choice(n, s, replace=False)
            weights = sample.weights(np.sort(lost))
            exact = np.abs(sample.error(weights)).max() <= EXACT
            worst = max(worst, float(np.linalg.norm(weights)) if exact else np.inf)  # rows have unit norm
        yield worst, sample


def _sample(n: int, s: int, random: np.random.Generator) -> _Sample:
    """Return the sample of a random H, here ``null_rows``."""
    supports = (np.arange(n)[:, None] + np.arange(s + 1)) % n
    gaussian = random.standard_normal((n, s))
    null_rows = np.linalg.qr(gaussian - gaussian.mean(axis=0))[0].T
    blocks = null_rows[:, supports].transpose(1, 0, 2)  # worker x s x (s + 1)
    try:
        values = np.linalg.svd(blocks)[2][:, -1, :]
    except np.linalg.LinAlgError:
        values = np.stack([_svd(block)[2][-1] for block in blocks])
    values *= np.where(values.sum(axis=1) < 0, -1.0, 1.0)[:, None]
    return _Sample(supports, values.astype(float))


def _svd(matrix: Floats) -> tuple[Floats, Floats, Floats]:
    """Return singular vectors and values; LAPACK's fast algorithm sometimes fails on a harmless matrix."""
    try:
        left, singular, right = np.linalg.svd(matrix)
    except np.linalg.LinAlgError:
        from scipy.linalg import svd

        left, singular, right = svd(matrix, lapack_driver="gesvd")
    return left, singular, right


class _Sample(ReadOnlyArrays):
    """Rows of unit norm on cyclic supports; any n - s rows can be combined to ones."""

    def __init__(self, supports: Indices, values: Floats) -> None:
        self.supports, self.values = frozen((supports, values))
        self._n, self._s = len(values), values.shape[1] - 1

    @fixed_property
    def _dense(self) -> tuple[Floats, Floats]:
        """Pseudo-inverse, shape (n, n), and left null space, shape (n, s)."""
        n, rank = self._n, self._n - self._s
        dense = np.zeros((n, n))
        dense[np.arange(n)[:, None], self.supports] = self.values
        left, singular, right = _svd(dense)
        inverse = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
        return inverse.astype(float), left[:, rank:].astype(float)

    @fixed_property
    def _sparse(self) -> Any:
        from scipy.sparse import csr_array

        starts = np.arange(self._n + 1) * (self._s + 1)
        return csr_array((self.values.ravel(), self.supports.ravel(), starts), shape=(self._n, self._n), copy=True)

    def weights(self, lost: Indices) -> Floats:
        """Return weights without the workers ``lost``, at most s."""
        solve = self._solver_dense(lost) if self._n <= _DENSE else self._solver_sparse(lost)
        weights = solve(np.ones(self._n))
        return weights + solve(self.error(weights))  # refinement removes most of the rounding of the first solve

    def _solver_dense(self, lost: Indices) -> Callable[[Floats], Floats]:
        inverse, null = self._dense
        if not len(lost):
            return lambda target: target @ inverse
        left, singular, right = _svd(null[lost])
        used = singular > np.finfo(float).eps * singular[0]
        fit = (right[: len(lost)][used].T / singular[used]) @ left[:, used].T

        def solve(target: Floats) -> Floats:
            weights: Floats = target @ inverse
            weights -= null @ (fit @ weights[lost])
            weights[lost] = 0.0
            return weights

        return solve

    def _solver_sparse(self, lost: Indices) -> Callable[[Floats], Floats]:
        """Return a solver by n - s of the n equations, which are enough to determine a vector in the row space."""
        from scipy.sparse.linalg import splu

        used = np.setdiff1d(np.arange(self._n), lost)[: self._n - self._s]
        factors = splu(self._sparse[used][:, used].T.tocsc())

        def solve(target: Floats) -> Floats:
            weights = np.zeros(self._n)
            weights[used] = factors.solve(target[used])
            return weights

        return solve

    def error(self, weights: Floats) -> Floats:
        """Return 1 - a B, shape (n,)."""
        sums = np.bincount(self.supports.ravel(), (weights[:, None] * self.values).ravel(), minlength=self._n)
        return np.asarray(1.0 - sums)
