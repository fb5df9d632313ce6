"""Cyclic MDS: a deterministic real code in which every worker's row is the same polynomial, shifted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.codes.base import EXACT, Code, Row, WindowCode
from anyk.codes.made import fixed_property

_SMALL = 512  # workers up to which least squares are tried if the closed form
_GOOD = 1e-9  # has a larger error than this
_SURE = 64  # workers up to which every set decodes in closed form


@value_class
class CyclicMDS(WindowCode):
    """Cyclic MDS (real Reed-Solomon): any n - s replies give the exact sum, by a code without a random draw.

    The rows are shifts of ``g(x) = prod (x - z)`` over s neighbouring n-th roots of unity z, symmetric about -1, so
    that g is real with s + 1 coefficients and, by the BCH bound, any n - s rows span a space that contains the all-ones
    vector (Raviv, Tamo, Tandon and Dimakis 2017; Halbawi, Azizan, Salehi and Hassibi 2018). Such roots exist when
    n - s is odd; when it is even, the roots of ``x^n = -1`` are used (a negacyclic code) and the columns divided
    by the code word ``cos((q - (n - 1) / 2) pi / n)``. Decoding solves in the left null space, which consists of
    cosines and sines at the angles of the roots.

    For few random stragglers it amplifies rounding far less than ``cyclic``. For many *neighbouring* stragglers it
    fails in double precision (9 of 100 workers, 6 of 256, 5 of 1,000): then a decoding is not exact, as its residual
    shows, and a round waits for one more reply. Raises :class:`~anyk.BadInput` if even random sets cannot be
    decoded.

    >>> code = CyclicMDS(5, stragglers=2)
    >>> [round(c, 7) for c in code.rows[0][1]]
    [1.0, 1.618034, 1.0]
    """

    workers: int
    stragglers: int | None = None

    name = "mds"

    def __post_init__(self) -> None:
        super().__post_init__()
        n, s = self.workers, self.tolerates
        random = keyed_generator(0, "mds-probe", n, s)
        for _ in range(3 if s else 0):  # rounding may have spoiled the coefficients
            replies = np.sort(random.choice(n, n - s, replace=False))
            worst = self.judge(self._solve(replies)).worst
            if not worst <= EXACT:
                raise BadInput(
                    f"mds:stragglers={s} cannot be decoded in double precision for {n} workers: random stragglers "
                    f"leave max|a B - 1| = {worst:.1e}; use cyclic:stragglers={s} or frc:stragglers={s}"
                )

    @property
    def negacyclic(self) -> bool:
        """Whether shifts change sign as they wrap around: n - s is even."""
        return self.tolerates > 0 and (self.workers - self.tolerates) % 2 == 0

    @fixed_property
    def angles(self) -> Floats:
        """Angles of the roots of g, neighbouring and symmetric about pi, shape (stragglers,)."""
        n, s = self.workers, self.tolerates
        if self.negacyclic:
            return (2 * (np.arange(s) + (n - s) // 2) + 1) * np.pi / n
        return 2 * np.pi * (np.arange(s) + (n - s + 1) // 2) / n

    @fixed_property
    def polynomial(self) -> Floats:
        """Coefficients of g, shape (stragglers + 1,): positive and palindromic, the outer ones 1."""
        product = np.ones(1)
        for angle in self.angles[self.angles < np.pi - 1e-9][::-1]:
            product = np.convolve(product, [1.0, -2.0 * np.cos(angle), 1.0])
        return np.convolve(product, [1.0, 1.0]) if self.tolerates % 2 else product

    @fixed_property
    def _columns(self) -> Floats:
        """Divisor of each column, shape (n,)."""
        n = self.workers
        return np.cos((np.arange(n) - (n - 1) / 2) * np.pi / n) if self.negacyclic else np.ones(n)

    @fixed_property
    def rows(self) -> Sequence[Row]:
        n, s = self.workers, self.tolerates
        rows: list[Row] = []
        for i in range(n):
            window = np.arange(i, i + s + 1)
            values = np.where(window >= n, -1.0 if self.negacyclic else 1.0, 1.0) * self.polynomial
            values /= self._columns[window % n]
            rows.append((tuple((window % n).tolist()), tuple(values.tolist())))
        return tuple(rows)

    @property
    def quick(self) -> bool:
        return self.workers <= _SURE  # with more workers some sets may not decode exactly

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """Return the (n - s)-th arrival of each round if every set decodes, else decode reply by reply."""
        s = self.tolerates
        if s and not self.decode(range(s, self.workers)).exact:  # neighbours are the worst set
            return Code.finish_times(self, arrivals)
        return super().finish_times(arrivals)

    @fixed_property
    def _null(self) -> Floats:
        """Left null space with columns of norm 1, shape (n, stragglers)."""
        row_numbers = np.arange(self.workers)[:, None]
        upper = self.angles[self.angles < np.pi - 1e-9]
        parts = [np.cos(row_numbers * upper), np.sin(row_numbers * upper)]
        if self.tolerates % 2:
            parts.append(np.cos(row_numbers * np.pi))
        null = np.concatenate(parts, axis=1)
        return np.asarray(null / np.linalg.norm(null, axis=0))

    @fixed_property
    def _all(self) -> Floats:
        """Weights in closed form if all workers reply, shape (n,)."""
        n = self.workers
        if not self.negacyclic:
            return np.full(n, 1.0 / self.polynomial.sum())
        half = np.exp(1j * np.pi / n)
        phase = np.exp(-0.5j * np.pi * (n - 1) / n) / np.polyval(self.polynomial[::-1], 1.0 / half)
        return np.asarray((phase * half ** np.arange(n)).real)

    def _solve(self, replies: Indices) -> Floats:
        lost = np.setdiff1d(np.arange(self.workers), replies)
        if len(lost) > self.tolerates:
            return super()._solve(replies)
        weights = self._all.copy()
        for _ in range(2 if len(lost) else 0):  # the second time removes the rounding of the first
            weights += self._null @ np.linalg.lstsq(self._null[lost], -weights[lost], rcond=None)[0]
        weights[lost] = 0.0
        if len(lost) and self.workers <= _SMALL and np.abs(weights @ self.encoding - 1.0).max() > _GOOD:
            # where the null space is nearly dependent on the lost workers, dropping directions does better
            other = super()._solve(replies)
            if self.judge(other).worst < self.judge(weights).worst:
                return other
        return weights
