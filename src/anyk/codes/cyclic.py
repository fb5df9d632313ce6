"""Cyclic repetition: worker i holds partitions i to i + s, and any n - s replies give the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anyk import keyed
from anyk.checks import typed
from anyk.codes.base import Code, Decoder, Decoding, Floats, Indices, Row, check_stragglers, check_workers, windows
from anyk.codes.decoders import CountingDecoder
from anyk.codes.made import ReadOnly, fixed_property, frozen
from anyk.errors import BadInput

_DENSE = 1024  # workers up to which pseudo-inverse and null space are kept
_WORST_GAIN = 1e9  # a draw that amplifies rounding more than this on a probe is not worth keeping in double precision


@typed
@dataclass(frozen=True)
class CyclicRepetition(Code):
    """Cyclic repetition: worker i holds partitions i, …, i + s (mod n); any n - s replies give the exact sum.

    From a random ``H`` (s x n) with ``H 1 = 0``, row i of B is the null vector of the columns of H on worker i's
    support, so that the rows of B span the null space of H, which contains the all-ones vector (Tandon, Lei,
    Dimakis and Karampatziakis 2017, Algorithm 2). Here H has orthonormal rows and B rows of unit norm, several H
    are drawn (keyed by ``seed``) and the one that amplifies rounding least on probes is kept. Any straggler set is
    decoded when it occurs, by an s x s solve in the left null space of B (beyond 1,024 workers by a sparse LU of n - s
    replies), with one step of refinement; no table of sets is built.

    ``stragglers`` is s, 0 <= s < workers; left out it is a tenth of the workers, at least 1.

    >>> code = CyclicRepetition(5, stragglers=2)
    >>> code.load, code.tolerates, round(code.decode([0, 2, 3]).residual, 12)
    (3, 2, 0.0)
    """

    workers: int
    stragglers: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        s = max(1, n // 10) if self.stragglers is None and n > 1 else self.stragglers or 0
        object.__setattr__(self, "stragglers", check_stragglers(s, n))

    @property
    def spec(self) -> str:
        return f"cyclic:stragglers={self.stragglers}" + (f",seed={self.seed}" if self.seed else "")

    @property
    def partitions(self) -> int:
        """As many as workers."""
        return self.workers

    @property
    def tolerates(self) -> int:
        return self.stragglers or 0

    @property
    def load(self) -> int:
        """s + 1."""
        return self.tolerates + 1

    @fixed_property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        return windows(self.workers, self.load)

    @fixed_property
    def rows(self) -> Sequence[Row]:
        drawn = self._drawn
        return tuple((tuple(s), tuple(v)) for s, v in zip(drawn.supports.tolist(), drawn.values.tolist(), strict=True))

    def decoder(self) -> Decoder:
        return CountingDecoder(self)

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """The (n - s)-th arrival; see :meth:`Code.finish_times`."""
        needed = self.workers - self.tolerates
        return np.asarray(np.partition(self._arrivals(arrivals), needed - 1, axis=1)[:, needed - 1])

    @property
    def _drawn(self) -> _Draw:
        return _drawn(self.workers, self.tolerates, self.seed)

    def _solve(self, replies: Indices) -> Floats:
        if self.workers - len(replies) > self.tolerates:
            return super()._solve(replies)
        return self._drawn.weights(np.setdiff1d(np.arange(self.workers), replies))


@lru_cache(maxsize=16)  # a draw costs more than a step, and equal codes are made anew all the time: restored, replayed
def _drawn(n: int, s: int, seed: int) -> _Draw:
    """The draw that amplifies rounding least on probes."""
    supports = _supports(n, s)
    if s == 0:
        return _Draw(supports, np.ones((n, 1)))
    draws = 20 if n <= 64 else 6 if n <= 300 else 2
    best: tuple[float, _Draw] | None = None
    for draw in range(draws):
        random = keyed.generator(seed, "cyclic", n, s, draw)
        candidate = _candidate(supports, random)
        worst = 0.0
        for probe in range(20):
            # half the probes are random sets, half are neighbours: machines of one rack tend to be late together
            first = int(random.integers(n))
            lost = (first + np.arange(s)) % n if probe % 2 else random.choice(n, s, replace=False)
            decoding = candidate.judge(candidate.weights(np.sort(lost)))
            worst = max(worst, decoding.gain if decoding.exact else np.inf)
        if best is None or worst < best[0]:
            best = worst, candidate
    if best is None or best[0] > _WORST_GAIN:
        raise BadInput(
            f"cyclic:stragglers={s} cannot be built stably for {n} workers (rounding is amplified more than "
            f"{_WORST_GAIN:.0e} times); use frc:stragglers={s}, which loses nothing"
        )
    return best[1]


def _supports(n: int, s: int) -> Indices:
    return (np.arange(n)[:, None] + np.arange(s + 1)[None, :]) % n


def _candidate(supports: Indices, random: np.random.Generator) -> _Draw:
    n, s = len(supports), supports.shape[1] - 1
    gaussian = random.standard_normal((n, s))
    check = np.linalg.qr(gaussian - gaussian.mean(axis=0))[0].T
    blocks = check[:, supports].transpose(1, 0, 2)  # worker x s x (s + 1)
    try:
        values = np.linalg.svd(blocks)[2][:, -1, :]
    except np.linalg.LinAlgError:
        values = np.stack([_svd(block)[2][-1] for block in blocks])
    values *= np.where(values.sum(axis=1) < 0, -1.0, 1.0)[:, None]
    return _Draw(supports, values.astype(np.float64))


def _svd(matrix: Floats) -> tuple[Floats, Floats, Floats]:
    """Singular values and vectors. LAPACK's quick algorithm gives up now and then on a matrix that is none too hard."""
    try:
        left, singular, right = np.linalg.svd(matrix)
    except np.linalg.LinAlgError:
        from scipy.linalg import svd

        left, singular, right = svd(matrix, lapack_driver="gesvd")
    return left, singular, right


class _Draw(ReadOnly):
    """Rows of unit norm on cyclic supports, and how any n - s of them are combined to ones."""

    def __init__(self, supports: Indices, values: Floats) -> None:
        self.supports, self.values = frozen((supports, values))
        self._n, self._s = len(values), values.shape[1] - 1

    @fixed_property
    def _dense(self) -> tuple[Floats, Floats]:
        """Pseudo-inverse (n x n) and left null space (n x s)."""
        n, rank = self._n, self._n - self._s
        dense = np.zeros((n, n))
        dense[np.arange(n)[:, None], self.supports] = self.values
        left, singular, right = _svd(dense)
        inverse = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
        return inverse.astype(np.float64), left[:, rank:].astype(np.float64)

    @fixed_property
    def _sparse(self) -> Any:
        from scipy.sparse import csr_array

        starts = np.arange(self._n + 1) * (self._s + 1)
        return csr_array((self.values.ravel(), self.supports.ravel(), starts), shape=(self._n, self._n), copy=True)

    def weights(self, lost: Indices) -> Floats:
        """Weights without the workers ``lost`` (at most s)."""
        solve = self._solver_dense(lost) if self._n <= _DENSE else self._solver_sparse(lost)
        weights = solve(np.ones(self._n))
        return weights + solve(self.error(weights))  # refinement wins back what the solve rounded away

    def _solver_dense(self, lost: Indices) -> Callable[[Floats], Floats]:
        inverse, null = self._dense
        if not len(lost):
            return lambda target: target @ inverse
        left, singular, right = _svd(null[lost])
        kept = singular > np.finfo(float).eps * singular[0]
        fit = (right[: len(lost)][kept].T / singular[kept]) @ left[:, kept].T

        def solve(target: Floats) -> Floats:
            weights: Floats = target @ inverse
            weights -= null @ (fit @ weights[lost])
            weights[lost] = 0.0
            return weights

        return solve

    def _solver_sparse(self, lost: Indices) -> Callable[[Floats], Floats]:
        """Any n - s coordinates determine a vector of the row space, so n - s equations of n are solved."""
        from scipy.sparse.linalg import splu

        used = np.setdiff1d(np.arange(self._n), lost)[: self._n - self._s]
        factors = splu(self._sparse[used][:, used].T.tocsc())

        def solve(target: Floats) -> Floats:
            weights = np.zeros(self._n)
            weights[used] = factors.solve(target[used])
            return weights

        return solve

    def error(self, weights: Floats) -> Floats:
        """1 - a B."""
        reached = np.bincount(self.supports.ravel(), (weights[:, None] * self.values).ravel(), minlength=self._n)
        return np.asarray(1.0 - reached)

    def judge(self, weights: Floats) -> Decoding:
        """Residual and gain of weights; rows have unit norm."""
        rest = self.error(weights)
        residual = float(np.linalg.norm(rest) / np.sqrt(self._n))
        return Decoding(weights, residual, float(np.linalg.norm(weights)), float(np.abs(rest).max()))
