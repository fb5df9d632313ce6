"""An audit of sums of gradients, whose residuals are recomputed from the coefficients that were dispatched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Floats
from anyk.base.errors import RunFailed
from anyk.protocol import Combine, Task
from anyk.runs.engine.dispatches import Batch

_KEPT = 64  # sets of tasks whose coefficients are kept as arrays: rounds dispatch the same ones again and again
_APART = 1e-6  # the largest difference between the residual that is recomputed and the one that is stated
Flat = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]  # cell, partition x block, coefficient


class Audit:
    """Recomputes the residual of a sum from the coefficients *dispatched*, and refuses a step that states another.

    A strategy computes weights from its code's matrix. If its workers used other coefficients, the sum would be wrong
    although the stated residual looks right.
    """

    def __init__(self, partitions: int, blocks: int) -> None:
        self._partitions, self._blocks = partitions, blocks
        self._known: dict[int, tuple[Sequence[Task], Flat]] = {}

    def residual(self, command: Combine, parts: Iterable[tuple[Batch, int, Any]], step: int) -> float:
        """Return the residual of a combine; raise :class:`~anyk.RunFailed` if it states another.

        ``parts``: for each message, its batch, its cell there and its weight.
        """
        m, b = self._partitions, self._blocks
        weights: dict[Batch, Floats] = {}
        for batch, cell, weight in parts:
            if batch not in weights:
                weights[batch] = np.zeros((len(batch.status), b))
            weights[batch][cell] = weight
        total = np.zeros((b, m * b))  # row u: the coefficients of all blocks of all partitions in part u of the sum
        for batch, message_weights in weights.items():
            cells, columns, values = self._flat(batch)
            for block in range(b):
                total[block] += np.bincount(columns, values * message_weights[cells, block], minlength=m * b)
        total -= np.tile(np.eye(b), (1, m))
        residual = float(np.linalg.norm(total) / np.sqrt(m * b))
        stated = command.residual
        if stated is None:
            return residual
        if not abs(residual - stated) <= _APART * max(1.0, residual):
            raise RunFailed(
                f"step {step}: the coefficients that workers were given, with the weights of the replies, add up to a "
                f"residual of {residual:.3g}, and the strategy states {stated:.3g}; the model is left as it was"
            )
        return stated

    def _flat(self, batch: Batch) -> Flat:
        flattened = self._known.get(id(batch.chunks))
        if flattened is None or flattened[0] is not batch.chunks:
            if len(self._known) >= _KEPT:
                self._known.clear()
            flattened = self._known[id(batch.chunks)] = batch.chunks, _flattened(batch, self._blocks)
        return flattened[1]


def _flattened(batch: Batch, blocks: int) -> Flat:
    cells: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for item, task in enumerate(batch.chunks):
        for index, chunk in enumerate(task):
            cells += [item * batch.width + index] * len(chunk.coefficients)
            columns += [j * blocks + block for j in chunk.partitions for block in range(blocks)]
            values += chunk.coefficients
    return np.array(cells, dtype=np.intp), np.array(columns, dtype=np.intp), np.array(values, dtype=np.float64)
