"""Cyclic repetition: worker i holds partitions i to i + s, and any n - s replies give the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anyk import keyed
from anyk.codes.base import Code, Decoder, Decoding, Floats, Row, check_stragglers, check_workers
from anyk.errors import BadInput

_WORST_GAIN = 1e9  # a draw that amplifies rounding more than this on a probe is not worth keeping in double precision


@dataclass(frozen=True)
class CyclicRepetition(Code):
    """Cyclic repetition: worker i holds partitions i, …, i + s (mod n); any n - s replies give the exact sum.

    From a random ``H`` (s x n) with ``H 1 = 0``, row i of B is the null vector of the columns of H on worker i's
    support, so that the rows of B span the null space of H, which contains the all-ones vector (Tandon, Lei,
    Dimakis and Karampatziakis 2017, Algorithm 2). Here H has orthonormal rows and B rows of unit norm, several H
    are drawn (keyed by ``seed``) and the one that amplifies rounding least on probes is kept. Any straggler set is
    decoded when it occurs, by an s x s solve in the left null space of B with one step of refinement; no table of
    sets is built.

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
        """See :attr:`Code.spec`."""
        return f"cyclic:stragglers={self.stragglers}" + (f",seed={self.seed}" if self.seed else "")

    @property
    def partitions(self) -> int:
        """As many as workers."""
        return self.workers

    @property
    def tolerates(self) -> int:
        """See :attr:`Code.tolerates`."""
        return self.stragglers or 0

    @cached_property
    def rows(self) -> Sequence[Row]:
        """See :attr:`Code.rows`."""
        supports, values = self._supports, self._drawn[0]
        return tuple((tuple(s), tuple(v)) for s, v in zip(supports.tolist(), values.tolist(), strict=True))

    def decoder(self) -> Decoder:
        """See :meth:`Code.decoder`."""
        return _CountingDecoder(self)

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """The (n - s)-th arrival; see :meth:`Code.finish_times`."""
        needed = self.workers - self.tolerates
        return np.asarray(np.partition(self._arrivals(arrivals), needed - 1, axis=1)[:, needed - 1])

    # ------------------------------------------------------------------------------------------- construction

    @property
    def _supports(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        return (np.arange(self.workers)[:, None] + np.arange(self.tolerates + 1)[None, :]) % self.workers

    @cached_property
    def _drawn(self) -> tuple[Floats, Floats, Floats]:
        """Row values (n x (s + 1)), pseudo-inverse (n x n) and left null space (n x s) of the best draw."""
        n, s = self.workers, self.tolerates
        if s == 0:
            return np.ones((n, 1)), np.eye(n), np.zeros((n, 0))
        draws = 20 if n <= 64 else 6 if n <= 300 else 2
        best: tuple[float, tuple[Floats, Floats, Floats]] | None = None
        for draw in range(draws):
            random = keyed.generator(self.seed, "cyclic", n, s, draw)
            candidate = self._candidate(random)
            worst = 0.0
            for probe in range(20):
                # half the probes are random sets, half are neighbours: machines of one rack tend to be late together
                first = int(random.integers(n))
                lost = (first + np.arange(s)) % n if probe % 2 else random.choice(n, s, replace=False)
                decoding = self._judge_draw(candidate, np.sort(lost))
                worst = max(worst, decoding.gain if decoding.exact else np.inf)
            if best is None or worst < best[0]:
                best = worst, candidate
        if best is None or best[0] > _WORST_GAIN:
            raise BadInput(
                f"cyclic:stragglers={s} cannot be built stably for {n} workers (rounding is amplified more than "
                f"{_WORST_GAIN:.0e} times); use frc:stragglers={s}, which loses nothing"
            )
        return best[1]

    def _candidate(self, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        n, s = self.workers, self.tolerates
        gaussian = random.standard_normal((n, s))
        check = np.linalg.qr(gaussian - gaussian.mean(axis=0))[0].T
        blocks = check[:, self._supports].transpose(1, 0, 2)  # worker x s x (s + 1)
        values = np.linalg.svd(blocks)[2][:, -1, :]
        values *= np.where(values.sum(axis=1) < 0, -1.0, 1.0)[:, None]
        dense = np.zeros((n, n))
        dense[np.arange(n)[:, None], self._supports] = values
        left, singular, right = np.linalg.svd(dense)
        rank = n - s
        inverse = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
        return values.astype(np.float64), inverse.astype(np.float64), left[:, rank:].astype(np.float64)

    def _judge_draw(
        self, drawn: tuple[Floats, Floats, Floats], lost: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> Decoding:
        """Weights for the stragglers ``lost`` (at most s), their residual and gain."""
        values, inverse, null = drawn

        def solve(target: Floats) -> Floats:
            weights: Floats = target @ inverse
            if len(lost):
                weights += null @ np.linalg.lstsq(null[lost], -weights[lost], rcond=None)[0]
                weights[lost] = 0.0
            return weights

        def error(weights: Floats) -> Floats:
            reached = np.bincount(self._supports.ravel(), (weights[:, None] * values).ravel(), minlength=self.workers)
            return np.asarray(1.0 - reached)

        weights = solve(np.ones(self.workers))
        weights = weights + solve(error(weights))  # one step of refinement wins back what the solve rounded away
        rest = error(weights)
        gain = float(np.linalg.norm(weights))  # rows have unit norm
        residual = float(np.linalg.norm(rest) / np.sqrt(self.workers))
        return Decoding(weights, residual, gain, float(np.abs(rest).max()))

    def _solve(self, workers: Sequence[int]) -> Floats:
        if self.workers - len(workers) > self.tolerates:
            return super()._solve(workers)
        lost = np.setdiff1d(np.arange(self.workers), np.asarray(workers, dtype=np.int64))
        return self._judge_draw(self._drawn, lost).weights


class _CountingDecoder(Decoder):
    """Any n - s replies suffice and fewer never do, so a count decides and nothing is solved before the step."""

    def __init__(self, code: CyclicRepetition) -> None:
        self._code = code
        self._replied: list[int] = []
        self._needed = code.workers - code.tolerates

    def add(self, worker: int) -> bool:
        """See :meth:`Decoder.add`."""
        self._replied.append(worker)
        self.decodable = len(self._replied) >= self._needed
        return self.decodable

    @property
    def residual(self) -> float:
        """See :attr:`Decoder.residual`."""
        return 0.0 if self.decodable else self.decode().residual

    def decode(self) -> Decoding:
        """See :meth:`Decoder.decode`."""
        return self._code.judge(self._code._solve(sorted(self._replied)))
