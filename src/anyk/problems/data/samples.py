"""Samples by number, wherever they are, and their batches: no framework is needed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.problems.base import Index, even_ends, some_rows, stacked

Rows = slice | Index
Batch = Any  # several samples as a framework takes them
Form = Callable[[Sequence[NDArray[Any]]], Batch]  # from the same rows of all arrays


class Part(NamedTuple):
    """A batch of samples.

    ``size``: the number of samples. ``start``: the place of the first one, counted from the data set's first sample.
    ``rows``: the numbers of the samples within their partition; None: all of it.
    """

    batch: Batch
    size: int
    start: int
    rows: Index | None


class Samples:
    """Samples with numbers from 0.

    ``in_memory``: reading them costs nothing. ``endless``: they are drawn, and have no numbers. ``tried``: how many of
    the first samples can be read without opening a file. ``arrays``: what samples in memory are rows of. ``mark``: an
    array, or an object with arrays, that differs if the samples differ.
    """

    in_memory: ClassVar[bool] = False
    endless: ClassVar[bool] = False
    arrays: Sequence[NDArray[Any]] = ()
    mark: Any = None

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def tried(self) -> int:
        """The number of first samples that can be read without opening a file."""
        return len(self)

    @property
    def head(self) -> Samples:
        """Samples of which the first are known."""
        return self

    @property
    def evaluated(self) -> Samples:
        """The same samples as they are evaluated."""
        return self

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some samples: consecutive ones, or those with sorted numbers. ``key`` determines what they draw."""
        raise NotImplementedError

    def parts(
        self, first: int, last: int, rows: Index | None = None, *, most: int | None = None, key: int = 0
    ) -> Iterator[Part]:
        """Yield samples ``first`` to ``last`` (not included), or the ``rows`` counted from there, ``most`` at once."""
        size = last - first if rows is None else len(rows)
        ends = even_ends(size, most or size)
        for a, b in pairwise(ends):
            own = rows
            if len(ends) > 2:
                own = np.arange(a, b) if rows is None else rows[a:b]
            places = slice(first + a, first + b) if rows is None else rows[a:b] + first
            yield Part(self.batch(places, key), b - a, first + a, own)

    def some(self, samples: int, of: str) -> Samples:
        """Return ``samples`` of the samples; see :func:`~anyk.problems.base.some_rows`."""
        raise NotImplementedError

    def drawn(self, partitions: range, rows: Index | None) -> Samples:
        """Return the samples of a mini-batch of endless samples, in equal parts of the partitions."""
        raise NotImplementedError

    def only(self, bounds: Sequence[tuple[int, int]]) -> Samples:
        """Return what a worker needs that computes with these runs of samples alone; they keep their numbers."""
        del bounds
        return self


class Arrays(Samples):
    """Rows of arrays with equal first axis, as batches of a ``form``."""

    in_memory = True

    def __init__(self, arrays: Sequence[NDArray[Any]], form: Form) -> None:
        self.arrays, self.form = list(arrays), form

    def __len__(self) -> int:
        return int(self.arrays[0].shape[0])  # also of a sparse one

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some rows of every array."""
        del key
        return self.form([array[rows] for array in self.arrays])

    def some(self, samples: int, of: str) -> Arrays:
        """Return ``samples`` of the rows."""
        return self.taken(some_rows(len(self), samples, of))

    def taken(self, rows: Rows) -> Arrays:
        """Return these rows, in this order."""
        return Arrays([array[rows] for array in self.arrays], self.form)

    def only(self, bounds: Sequence[tuple[int, int]]) -> Samples:
        """Return these runs of rows."""
        return ArrayRuns(self, bounds)


class ArrayRuns(Samples):
    """Some runs of rows, which keep their numbers: what a worker is sent that shares no memory with the driver.

    Each run is an array of its own, a view of the complete one, so that only its rows are pickled.

    >>> runs = ArrayRuns(Arrays([np.arange(10)], list), [(0, 3), (6, 9)])
    >>> runs.batch(slice(6, 8))[0].tolist(), runs.batch(np.array([1, 7]))[0].tolist()
    ([6, 7], [1, 7])
    """

    in_memory = True

    def __init__(self, complete: Arrays, bounds: Sequence[tuple[int, int]]) -> None:
        self._runs = {(a, b): [array[a:b] for array in complete.arrays] for a, b in bounds}
        self._form = complete.form

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some rows; those of a single run are not copied."""
        del key
        parts: list[list[NDArray[Any]]] = []
        if isinstance(rows, slice) and rows.start == rows.stop:
            return self._form([array[:0] for array in next(iter(self._runs.values()))])
        for (a, b), arrays in self._runs.items():
            if isinstance(rows, slice):
                some: Rows = slice(max(a, rows.start) - a, min(b, rows.stop) - a)
                there = max(a, rows.start) < min(b, rows.stop)
            else:
                some = rows[(a <= rows) & (rows < b)] - a
                there = some.size > 0
            if there:
                parts.append([array[some] for array in arrays])
        return self._form(parts[0] if len(parts) == 1 else [stacked(same) for same in zip(*parts, strict=True)])


class Selection(NamedTuple):
    """Samples of a partition, over which a gradient or a loss is summed.

    ``partition``: its number among all. ``rows``: the samples' numbers from ``first`` on; None: all to ``last``.
    ``asked``: the rows that the strategy asked for, by which draws are keyed; of a stream ``rows`` are None.
    """

    data: Samples
    partition: int
    first: int
    last: int
    rows: Index | None
    asked: Index | None

    @property
    def size(self) -> int:
        """The number of samples."""
        return self.last - self.first if self.rows is None else len(self.rows)

    def parts(self, most: int | None, key: int = 0) -> Iterator[Part]:
        """Yield the samples, at most ``most`` at once."""
        return self.data.parts(self.first, self.last, self.rows, most=most, key=key)

    def batch(self, places: Index, key: int) -> Batch:
        """Return the samples at some places among these."""
        return self.data.batch((places if self.rows is None else self.rows[places]) + self.first, key)
