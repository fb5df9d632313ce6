"""Communication-efficient codes: each reply is a fraction of the vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import check_range, value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.codes.base import Decoding, Method, Row, WindowCode
from anyk.codes.decoders import Exact, Own
from anyk.codes.made import fixed_property

# V (n x (n - s)), its orthogonal complement (n x s), and the encoders (n x load x blocks)
_Sample = tuple[Floats, Floats, Floats]


@value_class
class CommunicationEfficient(WindowCode):
    """Communication-efficient code: more computing buys shorter replies, one ``blocks``-th of the vector each.

    With ``load = stragglers + blocks`` partitions a worker, any n - s replies of length d / blocks give the exact sum
    (Ye and Abbe 2018; no code needs less load). The vector is cut into interleaved parts: coordinate
    ``v blocks + u`` belongs to part u. Here the encoders come from a matrix V (n x (n - s)) with orthonormal columns in
    place of the paper's Vandermonde matrix, which rounding spoils: worker i adds partition j's part u with
    ``C[i, j, u] = V[i] . P[:, j, u]``, where P is such that this is 0 for workers without j, and that
    ``A' V = [e_0 … e_(blocks-1)]`` decodes part u by column u of A.

    Rounding is amplified hundreds to thousands of times (see ``gain``): send float64. By default ``stragglers`` is a
    tenth of the workers and ``blocks`` is 2 (1 if no more fits). Raises :class:`~anyk.BadInput` if
    stragglers + blocks exceed the workers.

    >>> code = CommunicationEfficient(6, stragglers=1, blocks=2)
    >>> code.load, code.decode([0, 1, 2, 4, 5]).weights.shape, code.decode([0, 1, 2, 4, 5]).exact
    (3, (6, 2), True)
    """

    workers: int
    stragglers: int | None = None
    blocks: int = 2
    seed: int = 0
    name = "comm-efficient"

    def __post_init__(self) -> None:
        n = self.workers
        if self.stragglers is None and n == 2:  # a straggler would leave no room for two blocks
            self._resolve(stragglers=0)
        super().__post_init__()
        s = self.tolerates
        blocks = min(self.blocks, n - s) if self.blocks == 2 else self.blocks
        check_range("blocks of 'comm-efficient'", blocks, 1, n - s, f" (of {n} partitions, less stragglers={s})")
        self._resolve(blocks=blocks)

    @fixed_property
    def _best(self) -> _Sample:
        """The sample that amplifies rounding least on probes."""
        return min(self._samples(), key=itemgetter(0))[1]

    def _samples(self) -> Iterator[tuple[float, _Sample]]:
        """Yield samples with the amplification of rounding on probes."""
        n, s, d, b = self.workers, self.tolerates, self.load, self.blocks
        for number in range(6 if n <= 100 else 2):
            random = keyed_generator(self.seed, "comm-efficient", n, s, b, number)
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
            yield worst, (V, N, coefficients)

    @fixed_property
    def rows(self) -> Sequence[Row]:
        """Partitions i, …, i + load - 1 (mod n) of each worker i, with ``blocks`` adjacent coefficients for each."""
        n, window = self.workers, np.arange(self.load)
        coefficients = self._best[2]
        return tuple((tuple(((i + window) % n).tolist()), tuple(coefficients[i].ravel().tolist())) for i in range(n))

    @fixed_property
    def norms(self) -> Floats:
        """Euclidean norm of each row over all blocks, shape (replies,)."""
        return np.asarray(np.linalg.norm(self._best[2], axis=(1, 2)))

    def _weights(self, V: Floats, N: Floats, replies: Indices) -> Floats:
        n, b = self.workers, self.blocks
        lost = np.setdiff1d(np.arange(n), replies)
        weights = V[:, :b].copy()
        if len(lost) <= N.shape[1]:
            if len(lost):
                weights += N @ np.linalg.lstsq(N[lost], -weights[lost], rcond=None)[0]
        else:  # too few replies: as near as possible
            weights[replies] = np.linalg.lstsq(V[replies].T, np.eye(V.shape[1])[:, :b], rcond=None)[0]
        weights[lost] = 0.0
        return weights

    def _solve(self, replies: Indices) -> Floats:
        V, N, _ = self._best
        return self._weights(V, N, replies)

    def _decode(self, replies: Indices, how: Method) -> Decoding:
        if not isinstance(how, (Own, Exact)):
            raise BadInput(f"'{self.spec}' supports only its own decoder: each reply is a part of the vector")
        return super()._decode(replies, how)

    def judge(self, weights: Floats) -> Decoding:
        """Return weights with their residual and gain: part u must be 1 in block u and 0 in the others."""
        b = self.blocks
        target = np.tile(np.eye(b), (1, self.partitions))  # (part, partition x block)
        error = (self.encoding.T @ weights).T - target
        worst = float(np.abs(error).max())
        residual = float(np.linalg.norm(error) / np.sqrt(self.partitions * b))
        gain = float(np.linalg.norm(np.linalg.norm(weights, axis=1) * self.norms))
        return Decoding(weights, residual, gain, worst)

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """Return None: no closed form is known."""
        return None
