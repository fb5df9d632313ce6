"""The rows of mini-batches: drawn by a key, or parts of a permutation that takes each row once an epoch."""

from __future__ import annotations

import numpy as np

from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.problems.base import Index, Partitions, partition_abilities
from anyk.problems.many import ManyPartitions
from anyk.protocol import Chunk


class MiniBatches:
    """Draws the rows of mini-batches of ``partitions``, which are numbered from ``first`` on, by the key ``seed``.

    ``epochs``: whether they are parts of permutations (:class:`~anyk.protocol.Layout`).
    """

    def __init__(self, partitions: Partitions, seed: int, *, epochs: bool, first: int) -> None:
        self._partitions, self._seed, self._epochs, self._first = partitions, seed, epochs, first
        self._least = partition_abilities(partitions).least  # the fewest rows that a gradient takes
        self._orders: dict[int, tuple[int, Index]] = {}  # the newest epoch and its permutation, by partition

    def rows(self, partition: int, chunk: Chunk, version: int) -> Index | None:
        """Return the rows of a partition's mini-batch, sampled without replacement and sorted; None: all rows.

        Partitions may draw rows in another way (:class:`~anyk.problems.base.PartitionAbilities`).

        With ``epochs`` they are a part of a permutation, which may be empty: an epoch takes the same number of steps
        for all partitions, and the parts of a partition differ in size by at most one row. If gradients take more than
        one row, parts have a multiple of that number, and the last part has the remaining rows as well.
        """
        sizes = self._partitions.sizes
        size = sizes[partition]
        if not 0 < chunk.batch < (max(sizes) if self._epochs else size):
            return None
        if self._epochs:
            return self._part_of_epoch(partition, chunk, version)
        random = keyed_generator(self._seed, "batch", version, self._first + partition, chunk.repeat)
        drawing = self._partitions.of(chunk.slot) if isinstance(self._partitions, ManyPartitions) else self._partitions
        if (drawn := partition_abilities(drawing).draw_rows(partition, chunk.batch, random)) is not None:
            return _checked_rows(drawn, partition, chunk.batch, size)
        return np.sort(random.choice(size, chunk.batch, replace=False, shuffle=False)).astype(np.intp)

    def _part_of_epoch(self, partition: int, chunk: Chunk, version: int) -> Index:
        size, least, steps = self._partitions.sizes[partition], self._least, self._steps_of_epoch(chunk)
        epoch, step = divmod(version, steps)
        newest, order = self._orders.get(partition, (-1, np.empty(0, np.intp)))
        if newest != epoch:
            order = keyed_generator(self._seed, "epoch", epoch, partition).permutation(size).astype(np.intp)
            self._orders[partition] = epoch, order
        first, end = (least * (i * (size // least) // steps) for i in (step, step + 1))
        return np.sort(order[first : size if step + 1 == steps else end])

    def share(self, partition: int, chunk: Chunk, rows: Index) -> float:
        """Return the factor by which the gradient of a mini-batch is scaled up to the partition."""
        # parts of a permutation may differ in size, and each sample counts alike in an epoch
        return self._steps_of_epoch(chunk) if self._epochs else self._partitions.sizes[partition] / len(rows)

    def _steps_of_epoch(self, chunk: Chunk) -> int:
        return -(-max(self._partitions.sizes) // chunk.batch)


def _checked_rows(rows: Index, partition: int, batch: int, size: int) -> Index:
    """Return the rows that a user's code has drawn; raise :class:`~anyk.BadInput` unless they are a mini-batch."""
    drawn = np.asarray(rows)
    if drawn.shape == (0,):  # no sample of the partition counts
        return drawn.astype(np.intp)
    right = drawn.shape == (batch,) and drawn.dtype.kind in "iu" and drawn.min() >= 0 and drawn.max() < size
    if not right or (np.diff(drawn.astype(np.int64)) < 0).any():
        raise BadInput(
            f"draw_rows({partition}, {batch}, …) must give {batch} rows from 0 to {size - 1} in ascending order, got "
            f"{drawn.dtype} of shape {drawn.shape}"
        )
    return drawn
