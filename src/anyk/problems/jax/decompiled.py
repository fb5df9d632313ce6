"""Gradients that the driver writes as NumPy source, for workers without JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anyk.decompile import compile_source
from anyk.errors import BadInput
from anyk.plain import ByName
from anyk.problems.base import Array, DType, Index, PartitionAbilities, Vector


class DecompiledPartitions(PartitionAbilities):
    """Training data in partitions, and the source of the gradient for each number of rows.

    ``texts``: for each number of rows, the source of a function of the flat model and the arrays' rows, and its digest,
    by which workers recognise the driver's text. It reaches workers as plain text and arrays: nothing is unpickled. See
    :class:`~anyk.problems.base.Partitions`.
    """

    def __init__(
        self,
        texts: dict[int, tuple[str, str]],
        arrays: Sequence[Array],
        ends: Sequence[int],
        dimension: int,
        dtype: DType,
    ) -> None:
        self._texts, self._arrays, self._ends = texts, list(arrays), list(ends)
        self._bounds = list(pairwise(self._ends))
        self.sizes = tuple(last - first for first, last in self._bounds)
        self.dimension = dimension
        self.dtype = dtype
        self._functions: dict[int, Callable[..., Any]] = {}

    def plain(self) -> tuple[ByName, list[Array]]:
        """Return the partitions as plain data and arrays."""
        texts = [[rows, *text] for rows, text in self._texts.items()]
        plain = {"texts": texts, "ends": self._ends, "dimension": self.dimension, "dtype": self.dtype.str}
        return plain, self._arrays

    @classmethod
    def from_plain(cls, plain: ByName, arrays: Sequence[Array]) -> DecompiledPartitions:
        """Return the partitions that :meth:`plain` converted."""
        texts = {rows: (text, digest) for rows, text, digest in plain["texts"]}
        return cls(texts, arrays, plain["ends"], plain["dimension"], np.dtype(plain["dtype"]))

    def load(self, partitions: Sequence[int]) -> None:
        """Compile the texts."""
        self._functions = {rows: compile_source(*text) for rows, text in self._texts.items()}

    def check_partial_loss(self) -> None:
        raise BadInput(
            "workers without JAX (workers='numpy') compute gradients alone; evaluate where='driver' or 'aside'"
        )

    def support(self, partition: int) -> Index | None:
        """Return None: a gradient may touch all coordinates."""
        return None  # explicit, as mypy demands

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        if not self._functions:
            self.load(())
        first, last = self._bounds[partition]
        rows_used = slice(first, last) if rows is None else rows + first
        number = last - first if rows is None else len(rows)
        function = self._functions.get(number)
        if function is None:
            raise BadInput(
                f"there is no source for mini-batches of {number} rows; give JaxProblem(…, workers='numpy', "
                f"batch={number})"
            )
        return np.asarray(function(w, *(array[rows_used] for array in self._arrays)))
