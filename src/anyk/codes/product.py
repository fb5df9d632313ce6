"""Product codes: the Kronecker product of two codes."""

from __future__ import annotations

import numpy as np

from anyk.checks import value_class
from anyk.codes.base import Code, Floats, Indices, MatrixCode
from anyk.codes.biregular import adversarial_bound, second_singular
from anyk.codes.decoders import LeastSquares
from anyk.codes.made import SparseMatrix
from anyk.errors import BadInput


@value_class
class KroneckerCode(MatrixCode):
    """Product of two codes: worker (i, j) holds partition (p, q) with coefficient ``B1[i, p] B2[j, q]``.

    Loads, as fractions of the data, multiply. When the replies form a product of worker sets, the product of the
    factors' optimal weights is optimal, with ``err = m1 m2 - (m1 - err1) (m2 - err2)``; any other set is decoded by
    least squares. Where both factors have constant row and column sums, the bound of
    :class:`~anyk.codes.BiregularCode` holds with second singular value ``max(s1 t2, t1 s2)``, where t is the first one
    (product gradient codes, Sakorikar and Wang 2021). Worker (i, j) is number ``i n2 + j``, partitions likewise. Raises
    :class:`~anyk.errors.BadInput` for factors whose workers send several messages or parts of the vector.

    >>> import anyk
    >>> code = KroneckerCode(anyk.codes.BlockDesignCode(7), anyk.codes.BlockDesignCode(13))
    >>> replies = [i * 13 + j for i in range(4) for j in range(9)]
    >>> round(code.partitions * code.decode(replies).residual ** 2, 9)
    19.0
    """

    left: Code
    right: Code
    optimal = True

    def __post_init__(self) -> None:
        for code in (self.left, self.right):
            if code.messages > 1 or code.blocks > 1:
                raise BadInput(f"kronecker takes codes whose workers send one whole message; '{code.spec}' is not one")
        self._resolve(workers=self.left.replies * self.right.replies)
        self._resolve(approximate=self.left.approximate or self.right.approximate)

    @property
    def spec(self) -> str:
        return f"kronecker:left=({self.left.spec}),right=({self.right.spec}),split={self.left.workers}"

    @property
    def partitions(self) -> int:
        """Number of partitions, m1 m2."""
        return self.left.partitions * self.right.partitions

    @property
    def tolerates(self) -> int:
        """Number of stragglers with which a product of decodable sets surely replies: (s1 + 1) (s2 + 1) - 1.

        More than s2 stragglers are needed to spoil a row of the grid of workers, and more than s1 rows must be spoiled.
        """
        if self.approximate:
            return 0
        return (self.left.tolerates + 1) * (self.right.tolerates + 1) - 1

    def _matrix(self) -> SparseMatrix:
        from scipy.sparse import csr_array, kron

        return csr_array(kron(self.left.encoding, self.right.encoding, format="csr"))

    def _solve(self, replies: Indices) -> Floats:
        here = np.zeros((self.left.replies, self.right.replies), dtype=bool)
        here.ravel()[replies] = True
        rows, columns = here.any(axis=1), here.any(axis=0)
        if (here == np.outer(rows, columns)).all():
            first = self.left.decode(np.flatnonzero(rows), decoder="least-squares").weights
            second = self.right.decode(np.flatnonzero(columns), decoder="least-squares").weights
            return np.outer(first, second).ravel()
        return LeastSquares().weights(self, replies)

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """Return the bound for biregular factors, see :class:`KroneckerCode`; None for other factors."""
        if stragglers <= self.tolerates and self.tolerates:
            return 0.0, True
        factors = []
        for code in (self.left, self.right):
            rows, columns = (np.asarray(code.encoding.sum(axis=axis)).ravel() for axis in (1, 0))
            if np.ptp(rows) > 1e-9 or np.ptp(columns) > 1e-9:
                return None
            largest = float(np.sqrt(rows[0] * columns[0]))
            factors.append((largest, second_singular(code.encoding), float(columns[0])))
        (t1, s1, c1), (t2, s2, c2) = factors
        return adversarial_bound(self, stragglers, max(s1 * t2, t1 * s2) / (c1 * c2))
