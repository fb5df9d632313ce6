"""Partitions of samples whose gradients are summed batch by batch: of PyTorch, of JAX, and of shards and streams."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Self

import numpy as np

from anyk.errors import BadInput
from anyk.problems.base import DType, Ends, Index, Vector
from anyk.problems.data.samples import Samples, Selection
from anyk.problems.data.streams import NO_PARTS


class Batches:
    """Samples in partitions; see :class:`~anyk.problems.base.Partitions`.

    A model computes :meth:`gradient_sum` and :meth:`loss_sum` of some samples. ``most``: samples at once, at most.
    """

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
        self.tolerance = 0.0
        self._bounds = list(pairwise(ends.tolist()))
        self._first = 0  # the number of its first partition among all
        self._spanned = 1  # how many partitions of the strategy's each of its own is
        self._placed: dict[int, Samples] = {}  # partitions whose samples are where they are computed with

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_placed": {}}

    def gradient_sum(self, w: Vector, chosen: Selection) -> Vector:
        """Return the gradient at ``w`` of the sum of the samples' losses, shape (dimension,)."""
        raise NotImplementedError

    def loss_sum(self, w: Vector, chosen: Selection) -> float:
        """Return the sum of the samples' losses at ``w``."""
        raise NotImplementedError

    def load(self, partitions: Sequence[int]) -> None:
        """Prepare for these partitions; samples are read when they are needed."""

    def piece(self, first: int, last: int) -> Self:
        """Return some consecutive partitions, from ``first`` to before ``last``."""
        joined = copy(self)
        joined._bounds = [(self._bounds[first][0], self._bounds[last][1])]
        joined.sizes = (sum(self.sizes[first : last + 1]),)
        joined._first, joined._spanned, joined._placed = self._first + first, last - first + 1, {}
        return joined

    def only(self, partitions: Sequence[int]) -> Self:
        """Return the part that computes these partitions; files and streams are opened where they are used."""
        part = copy(self)
        part.data = self.data.only([self._bounds[j] for j in sorted(partitions)])
        return part

    def support(self, partition: int) -> Index | None:
        """All coordinates."""
        del partition
        return None  # as opposed to an index of some

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """Return the sum of the gradients of a partition, or of some of its rows.

        What is drawn is keyed by the bits of ``w``, the partition and the rows, so that all who hold it draw alike.
        """
        return self.gradient_sum(w, self._selected(partition, rows))

    def check_partial_loss(self) -> None:
        """Raise :class:`~anyk.errors.BadInput` if workers cannot evaluate the loss."""
        if self.data.endless:
            raise BadInput(NO_PARTS)

    def partial_loss(self, partition: int, w: Vector, rows: Index | None = None, /) -> float:
        """Return the sum of the losses of a partition in evaluation mode."""
        return self.loss_sum(w, self._selected(partition, rows))

    def _selected(self, partition: int, rows: Index | None) -> Selection:
        number, (first, last) = self._first + partition, self._bounds[partition]
        if self.data.endless:
            samples = self.data.drawn(range(number, number + self._spanned), rows)
            return Selection(samples, number, 0, len(samples), None, rows)
        if partition in self._placed:
            return Selection(self._placed[partition], number, 0, last - first, rows, rows)
        return Selection(self.data, number, first, last, rows, rows)
