"""Communication-efficient codes: each reply is a fraction of the vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anyk import keyed
from anyk.checks import typed
from anyk.codes.base import Code, Decoder, Floats, Indices, Method, Row, check_stragglers, check_workers, whole, windows
from anyk.codes.decoders import CountingDecoder, Decoding, Exact, Own
from anyk.codes.made import fixed_property
from anyk.errors import BadInput


@typed
@dataclass(frozen=True)
class CommunicationEfficient(Code):
    """Communication-efficient code: more computing buys shorter replies, one ``blocks``-th of the vector each.

    With ``load = stragglers + blocks`` partitions a worker, any n - s replies of length d / blocks give the exact sum
    (Ye and Abbe 2018; no code needs less load). The vector is cut into interleaved parts: coordinate
    ``v blocks + u`` belongs to part u. Here the encoders come from a matrix V (n x (n - s)) with orthonormal columns in
    place of the paper's Vandermonde matrix, which rounding spoils: worker i adds partition j's part u with
    ``C[i, j, u] = V[i] . P[:, j, u]``, P being chosen so that this is 0 for workers that do not hold j and that
    ``A' V = [e_0 … e_(blocks-1)]`` decodes part u by column u of A.

    Rounding is amplified hundreds to thousands of times (see ``gain``): send float64. ``stragglers`` left out is a
    tenth of the workers, ``blocks`` left out is 2 (1 where that is all that fits).

    >>> code = CommunicationEfficient(6, stragglers=1, blocks=2)
    >>> code.load, code.decode([0, 1, 2, 4, 5]).weights.shape, code.decode([0, 1, 2, 4, 5]).exact
    (3, (6, 2), True)
    """

    workers: int
    stragglers: int | None = None
    blocks: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        s = (max(1, n // 10) if n > 2 else 0) if self.stragglers is None else self.stragglers
        check_stragglers(s, n)
        blocks = min(self.blocks, n - s) if self.blocks == 2 else self.blocks
        if not 1 <= whole("blocks", blocks) <= n - s:
            raise BadInput(
                f"comm-efficient:blocks={blocks} does not exist for {n} workers and stragglers={s}: a worker would "
                f"hold stragglers + blocks partitions of {n}; blocks must be 1 to {n - s}"
            )
        object.__setattr__(self, "stragglers", s)
        object.__setattr__(self, "blocks", blocks)

    @property
    def spec(self) -> str:
        seed = f",seed={self.seed}" if self.seed else ""
        return f"comm-efficient:stragglers={self.stragglers},blocks={self.blocks}{seed}"

    @property
    def partitions(self) -> int:
        """As many as workers."""
        return self.workers

    @property
    def tolerates(self) -> int:
        return self.stragglers or 0

    @property
    def load(self) -> int:
        """stragglers + blocks."""
        return self.tolerates + self.blocks

    @fixed_property
    def _drawn(self) -> tuple[Floats, Floats, Floats]:
        """V (n x (n - s)), its orthogonal complement (n x s), and the encoders (n x load x blocks) of the best draw."""
        n, s, d, b = self.workers, self.tolerates, self.load, self.blocks
        best: tuple[float, tuple[Floats, Floats, Floats]] | None = None
        for draw in range(6 if n <= 100 else 2):
            random = keyed.generator(self.seed, "comm-efficient", n, s, b, draw)
            full = np.linalg.qr(random.standard_normal((n, n)))[0]
            V, N = full[:, : n - s], full[:, n - s :]
            coefficients = np.zeros((n, d, b))
            for j in range(n):
                holders = (j - np.arange(d)) % n
                others = np.setdiff1d(np.arange(n), holders)
                P = np.zeros((n - s, b))
                P[:b] = np.eye(b)
                if len(others):
                    P[b:] = np.linalg.solve(V[others][:, b:], -V[others][:, :b])
                coefficients[holders, np.arange(d)] = V[holders] @ P
            worst = max(
                float(np.linalg.norm(self._weights(V, N, np.sort(random.choice(n, n - s, replace=False)))))
                for _ in range(8)
            ) * float(np.abs(coefficients).max())
            if best is None or worst < best[0]:
                best = worst, (V, N, coefficients)
        assert best is not None
        return best[1]

    @fixed_property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        return windows(self.workers, self.load)

    @fixed_property
    def rows(self) -> Sequence[Row]:
        """See :attr:`Code.rows`; coefficients come block by block for each partition: (partition, block) in order.

        Worker i holds partitions i, …, i + load - 1 (mod n).
        """
        n, d = self.workers, self.load
        coefficients = self._drawn[2]
        return tuple(
            (tuple(((i + np.arange(d)) % n).tolist()), tuple(coefficients[i].ravel().tolist())) for i in range(n)
        )

    @fixed_property
    def norms(self) -> Floats:
        """See :attr:`Code.norms`; over all blocks."""
        return np.asarray(np.linalg.norm(self._drawn[2], axis=(1, 2)))

    def decoder(self) -> Decoder:
        return CountingDecoder(self)

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """The (n - s)-th arrival; see :meth:`Code.finish_times`."""
        needed = self.workers - self.tolerates
        return np.asarray(np.partition(self._arrivals(arrivals), needed - 1, axis=1)[:, needed - 1])

    def _weights(self, V: Floats, N: Floats, replies: Indices) -> Floats:
        n, b = self.workers, self.blocks
        lost = np.setdiff1d(np.arange(n), replies)
        weights = V[:, :b].copy()
        if len(lost) <= N.shape[1]:
            if len(lost):
                weights += N @ np.linalg.lstsq(N[lost], -weights[lost], rcond=None)[0]
        else:  # too few: as near as possible
            weights[replies] = np.linalg.lstsq(V[replies].T, np.eye(V.shape[1])[:, :b], rcond=None)[0]
        weights[lost] = 0.0
        return weights

    def _solve(self, replies: Indices) -> Floats:
        V, N, _ = self._drawn
        return self._weights(V, N, replies)

    def _decode(self, replies: Indices, how: Method) -> Decoding:
        if not isinstance(how, (Own, Exact)):
            raise BadInput(f"'{self.spec}' supports only its own decoder: each reply is a part of the vector")
        return super()._decode(replies, how)

    def judge(self, weights: Floats) -> Decoding:
        """Weights with the residual and gain they have: part u must be 1 in block u and 0 in the others."""
        b = self.blocks
        target = np.tile(np.eye(b), (1, self.partitions))  # (part, partition x block)
        error = (self.encoding.T @ weights).T - target
        worst = float(np.abs(error).max())
        residual = float(np.linalg.norm(error) / np.sqrt(self.partitions * b))
        gain = float(np.linalg.norm(np.linalg.norm(weights, axis=1) * self.norms))
        return Decoding(weights, residual, gain, worst)

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """See :meth:`Code.expected_error`; none is known."""
        del replies, decoder
        return None
