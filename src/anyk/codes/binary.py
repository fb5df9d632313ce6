"""The binary code: each of s + 1 classes of workers holds all the data once; a class that is complete is the sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import value_class
from anyk.codes.base import Decoder, Row, StragglersCode
from anyk.codes.decoders import LeastSquaresDecoder
from anyk.codes.made import fixed_property
from anyk.codes.repetition import FractionalRepetition, cut_evenly


@value_class
class BinaryCode(StragglersCode):
    """The numerically stable binary code: coefficients and weights are 0 and 1, so nothing is ever rounded.

    Worker i is in class ``i mod (s + 1)``, and each class cuts all partitions among its members as evenly as
    possible. Any s stragglers touch at most s classes, so at least one class is complete, and its replies add up to the
    sum (Charalambides, Mahdavifar and Hero 2020). Where s + 1 divides n it is fractional repetition with its stronger
    decoder. With more stragglers the least-squares weights are often still exact.

    ``stragglers`` is by default a tenth of the workers, at least 1.

    >>> code = BinaryCode(7, stragglers=2)
    >>> code.assignment
    ((0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3), (3, 4), (4, 5, 6), (4, 5, 6), (5, 6))
    >>> code.decode([1, 4, 5]).weights.tolist()
    [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    """

    workers: int
    stragglers: int | None = None
    name = "binary"

    @property
    def classes(self) -> int:
        """Number of classes, s + 1."""
        return self.tolerates + 1

    @fixed_property
    def rows(self) -> Sequence[Row]:
        rows: list[Row] = [((), ())] * self.workers
        for c in range(self.classes):
            members = range(c, self.workers, self.classes)
            for worker, block in zip(members, cut_evenly(self.partitions, len(members)), strict=True):
                rows[worker] = tuple(block), (1.0,) * len(block)
        return tuple(rows)

    @fixed_property
    def _repetition(self) -> FractionalRepetition | None:
        """The same code as groups, if all classes cut alike."""
        if self.workers % self.classes:
            return None
        return FractionalRepetition(self.workers, stragglers=self.stragglers)

    def decoder(self) -> Decoder:
        return _ClassDecoder(self) if self._repetition is None else self._repetition.decoder()

    @property
    def quick(self) -> bool:
        return self._repetition is not None

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        return super().finish_times(arrivals) if self._repetition is None else self._repetition.finish_times(arrivals)

    def _solve(self, replies: Indices) -> Floats:
        """Return the sum of the first complete class, else least squares."""
        if self._repetition is not None:
            return self._repetition._solve(replies)
        class_of = np.arange(self.workers) % self.classes
        complete = np.flatnonzero(np.bincount(class_of[replies], minlength=self.classes) == np.bincount(class_of))
        if not len(complete):
            return super()._solve(replies)
        return np.asarray(class_of == complete[0], dtype=float)


class _ClassDecoder(LeastSquaresDecoder):
    """Counts the replies of each class; least squares find other exact sums."""

    def __init__(self, code: BinaryCode) -> None:
        super().__init__(code)
        self._classes = code.classes
        self._missing_of = np.bincount(np.arange(code.workers) % code.classes).tolist()

    def add(self, worker: int) -> bool:
        group = worker % self._classes
        self._missing_of[group] -= 1
        if not self._missing_of[group]:
            self._replied.append(worker)
            self.decodable = True
            return True
        return super().add(worker)

    @property
    def residual(self) -> float:
        return 0.0 if self.decodable else super().residual
