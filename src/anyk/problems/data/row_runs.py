"""Runs of rows without the others: what a worker is sent that shares no memory with the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.problems.base import Index

Arrays = list[NDArray[Any]]


class Runs:
    """Some runs of the rows of arrays with equal first axis; rows keep their numbers.

    Each run is an array of its own, where the whole one lies, so that it is pickled alone.

    >>> runs = Runs([np.arange(10)], [(0, 3), (6, 9)])
    >>> runs.taken(slice(6, 8))[0].tolist(), runs.taken(np.array([1, 7]))[0].tolist()
    ([6, 7], [1, 7])
    """

    def __init__(self, arrays: Sequence[NDArray[Any]], bounds: Sequence[tuple[int, int]]) -> None:
        self._runs = {(a, b): [array[a:b] for array in arrays] for a, b in bounds}

    def taken(self, rows: slice | Index) -> Arrays:
        """Rows from ``start`` to ``stop``, or those with these numbers, sorted; of a single run without a copy."""
        parts: list[Arrays] = []
        if isinstance(rows, slice) and rows.start == rows.stop:
            return [array[:0] for array in next(iter(self._runs.values()))]
        for (a, b), arrays in self._runs.items():
            if isinstance(rows, slice):
                some: slice | Index = slice(max(a, rows.start) - a, min(b, rows.stop) - a)
                there = max(a, rows.start) < min(b, rows.stop)
            else:
                some = rows[(a <= rows) & (rows < b)] - a
                there = some.size > 0
            if there:
                parts.append([array[some] for array in arrays])
        return parts[0] if len(parts) == 1 else [np.concatenate(same) for same in zip(*parts, strict=True)]
