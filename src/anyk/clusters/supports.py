"""The coordinates that messages contain: those that their partitions' gradients touch."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

import numpy as np

from anyk.base.errors import BadInput
from anyk.problems.base import Index, Partitions

_MARKED = 32  # if one in this number of coordinates is meant, marking them in an array is cheaper than sorting them


class Supports:
    """The coordinates of messages, by the partitions whose gradients they contain; each is computed once."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._unions: dict[tuple[int, ...], Index | None] = {}
        self._positions: dict[tuple[tuple[int, ...], tuple[int, ...]], Index | None] = {}

    def support(self, ids: tuple[int, ...]) -> Index | None:
        """Return the coordinates in a message over partitions ``ids``, sorted; None: all."""
        if ids not in self._unions:
            dimension = self._partitions.dimension
            index_sets = [support for j in ids if (support := support_of(self._partitions, j)) is not None]
            union: Index | None = None  # if a partition touches all coordinates
            if ids and len(index_sets) == len(ids):
                union = index_sets[0] if len(index_sets) == 1 else _union(index_sets, dimension)
            self._unions[ids] = union
        return self._unions[ids]

    def positions(self, ids: tuple[int, ...], other: tuple[int, ...]) -> Index | None:
        """Return the coordinates of a message over ``other`` as positions in one over a superset, ``ids``.

        None: all positions, in order.
        """
        try:
            return self._positions[ids, other]
        except KeyError:
            union, positions = self.support(ids), self.support(other)
        if positions is not None and union is not None:
            if positions.size == union.size:
                positions = None
            elif self._partitions.dimension < _MARKED * union.size:
                position_of = np.empty(self._partitions.dimension, dtype=np.intp)
                position_of[union] = np.arange(union.size)
                positions = position_of[positions]
            else:
                positions = np.searchsorted(union, positions)
        self._positions[ids, other] = positions
        return positions


def support_of(partitions: Partitions, partition: int) -> Index | None:
    """Return a partition's support; raise :class:`~anyk.BadInput` unless it is sorted coordinates, each once."""
    support, dimension = partitions.support(partition), partitions.dimension
    if support is None:
        return None
    coordinates = np.asarray(support)
    right = coordinates.ndim == 1 and coordinates.dtype.kind in "iu"
    if right and coordinates.size:
        ascending = (np.diff(coordinates.astype(np.int64)) > 0).all()
        right = bool(ascending and coordinates[0] >= 0 and coordinates[-1] < dimension)
    if not right:
        raise BadInput(
            f"support({partition}) must be coordinates from 0 to {dimension - 1} in ascending order, each once, got "
            f"{reprlib.repr(support)}"
        )
    return coordinates


def _union(index_sets: Sequence[Index], dimension: int) -> Index:
    """Return the coordinates that are in any of several sorted index sets, sorted."""
    if dimension >= _MARKED * sum(coordinates.size for coordinates in index_sets):
        return np.unique(np.concatenate(index_sets))
    marked = np.zeros(dimension, dtype=bool)
    for coordinates in index_sets:
        marked[coordinates] = True
    return np.flatnonzero(marked)
