"""Partitions of samples whose gradients are summed batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from typing import Self

import numpy as np

from anyk.base.arrays import DType, Floats, Vector
from anyk.base.errors import BadInput
from anyk.base.plain import ByName
from anyk.problems.base import Ends, Index, PartitionAbilities
from anyk.problems.data.sample_batches import PartitionSamples, Samples
from anyk.problems.data.streams import NO_PARTS

# receives a gradient's numbers from a coordinate on, in memory that is written again afterwards
Put = Callable[[int, Vector], None]


class Batches(PartitionAbilities):
    """Samples in partitions; see :class:`~anyk.problems.base.Partitions`.

    A model computes :meth:`gradient_sum` and :meth:`loss_sum` of some samples, at most ``most`` samples at a time.
    """

    custom_code = False  # whether a user's code computes gradients
    _stateful = ""  # a model whose running statistics are over all data, in words
    by_weight = False  # whether mini-batches are drawn in proportion to the samples' weights
    key = 0  # of random numbers in the next gradient; in a run, of the model's version and the local step

    def __init__(
        self,
        data: Samples,
        ends: Ends,
        *,
        dimension: int,
        dtype: DType,
        most: int | None = None,
    ) -> None:
        self.data, self.most, self.dimension, self.dtype = data, most, dimension, dtype
        self.sizes = tuple(np.diff(ends).tolist())
        self._bounds = list(pairwise(ends.tolist()))
        self._first = 0  # number of the first partition here among all partitions
        self._spanned = 1  # number of the strategy's partitions that each partition here joins
        self._placed: dict[int, Samples] = {}  # samples on the device that computes with them, by partition

    def __getstate__(self) -> ByName:
        return self.__dict__ | {"_placed": {}}

    def gradient_sum(self, w: Vector, chosen: PartitionSamples) -> Vector:
        """Return the gradient at ``w`` of the sum of the samples' losses, shape (dimension,)."""
        raise NotImplementedError

    def put_sum(self, w: Vector, chosen: PartitionSamples, put: Put) -> None:
        """Pass :meth:`gradient_sum` on, perhaps in pieces, which take less memory than the whole."""
        put(0, self.gradient_sum(w, chosen))

    def loss_sum(self, w: Vector, chosen: PartitionSamples) -> float:
        """Return the sum of the samples' losses at ``w``."""
        raise NotImplementedError

    def load(self, partitions: Sequence[int]) -> None:
        """Prepare these partitions; samples are read when they are needed."""

    def compare_replicas(self) -> None:
        """Have replicas of a gradient compared during the run, if a user's code computes them or draws the samples."""
        if self.custom_code or self.data.endless:
            self.tolerance = float(np.finfo(self.dtype).eps) ** 0.5

    def piece(self, first: int, last: int) -> Self:
        """Return consecutive partitions, ``first`` to ``last``, as one partition."""
        joined = copy(self)  # without what __getstate__ omits
        joined._bounds = [(self._bounds[first][0], self._bounds[last][1])]
        joined.sizes = (sum(self.sizes[first : last + 1]),)
        joined._first, joined._spanned = self._first + first, last - first + 1
        return joined

    def only(self, partitions: Sequence[int]) -> Self:
        """Return the part that computes these partitions; files and streams are opened where they are used."""
        selection = copy(self)
        selection.data = self.data.only([self._bounds[j] for j in sorted(partitions)])
        return selection

    def adopt(self, other: Self) -> None:
        """Take over the samples of another part's partitions."""
        self.data.adopt(other.data)

    def support(self, partition: int) -> Index | None:
        """Return None: a gradient may touch all coordinates."""
        return None  # explicit, as mypy demands

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """Return the sum of the gradients of a partition, or of some of its rows.

        Random numbers are keyed by ``key``, the partition and the rows, so that replicas agree.
        """
        return self.gradient_sum(w, self._drawn(partition, rows))

    def put_gradient(self, partition: int, w: Vector, rows: Index | None, put: Put) -> None:
        """Pass :meth:`partial_gradient` on in pieces, each number once."""
        self.put_sum(w, self._drawn(partition, rows), put)

    def _drawn(self, partition: int, rows: Index | None) -> PartitionSamples:
        """Return the samples of which a gradient is computed."""
        chosen = self._selected(partition, rows)
        if rows is not None and self.by_weight:
            chosen = chosen._replace(alike=float(self._weights_of(partition).mean()))
        return chosen

    def draw_rows(self, partition: int, count: int, random: np.random.Generator) -> Index | None:
        """Return the sorted rows of a mini-batch, drawn with replacement in proportion to weights, if these decide."""
        if not self.by_weight:
            return None
        ends = np.cumsum(self._weights_of(partition))
        if not ends[-1]:
            return np.empty(0, np.intp)  # the partition adds nothing
        rows = np.searchsorted(ends, ends[-1] * random.random(count), side="right")
        last = int(np.searchsorted(ends, ends[-1]))  # rounding must not draw what has weight 0
        return np.sort(np.minimum(rows, last)).astype(np.intp)

    def _weights_of(self, partition: int) -> Floats:
        weights = self.data.weights_of(slice(*self._bounds[partition]))
        assert weights is not None
        return weights

    def check_partial_loss(self) -> None:
        if self.data.endless:
            raise BadInput(NO_PARTS)
        if self._stateful:
            raise BadInput(
                f"workers cannot evaluate {self._stateful}, whose running statistics are over the data of all; "
                "evaluate where='driver' or 'aside'"
            )

    def partial_loss(self, partition: int, w: Vector, rows: Index | None = None, /) -> float:
        """Return the sum of the losses of a partition in evaluation mode."""
        return self.loss_sum(w, self._selected(partition, rows))

    def _selected(self, partition: int, rows: Index | None) -> PartitionSamples:
        number, (first, last) = self._first + partition, self._bounds[partition]
        if self.data.endless:
            samples = self.data.sample_batch(range(number, number + self._spanned), rows)
            return PartitionSamples(
                data=samples, partition=number, first=0, last=len(samples), rows=None, requested_rows=rows
            )
        if partition in self._placed:
            return PartitionSamples(
                data=self._placed[partition],
                partition=number,
                first=0,
                last=last - first,
                rows=rows,
                requested_rows=rows,
            )
        return PartitionSamples(
            data=self.data, partition=number, first=first, last=last, rows=rows, requested_rows=rows
        )
