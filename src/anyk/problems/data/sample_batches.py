"""Numbered samples, in memory or elsewhere, and the batches that are read from them; independent of any framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.plain import ByName
from anyk.problems.base import Index, even_ends, some_rows, stacked

Rows = slice | Index
Batch = Any  # several samples in the type that a framework computes with
Form = Callable[[Sequence[Array]], Batch]  # makes a batch from the same rows of all arrays


class NamedForm:
    """The form of batches that are dictionaries or, without ``keys``, tuples, such as inputs and targets."""

    def __init__(self, keys: Sequence[Any] | None) -> None:
        self.keys = keys

    def __call__(self, arrays: Sequence[Any]) -> Batch:
        """Return a batch of some rows of the arrays."""
        return tuple(arrays) if self.keys is None else dict(zip(self.keys, arrays, strict=True))


class SampleBatch(NamedTuple):
    """A batch of samples.

    ``size``: the number of samples. ``start``: the number of the first one in the data set. ``rows``: the numbers of
    the samples within their partition, None for the complete partition. ``weights``: of the samples, None if equal.
    """

    batch: Batch
    size: int
    start: int
    rows: Index | None
    weights: Floats | None = None


class Samples:
    """Samples, numbered from 0.

    ``in_memory``: reading them costs nothing. ``endless``: they are generated on demand and have no numbers.
    ``takes_weights``: whether they have an order in which weights can be given.
    ``arrays``: the arrays whose rows are the samples, if these are in memory. ``mark``: an array, or an object with
    arrays, that differs if the samples differ. ``weights``: of all samples, with mean 1; None if equal.
    """

    in_memory: ClassVar[bool] = False
    endless: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False
    arrays: Sequence[Array] = ()
    mark: Any = None
    weights: Floats | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def tried(self) -> int:
        """The number of samples at the beginning that can be read without opening a file."""
        return len(self)

    @property
    def code(self) -> Mapping[str, object]:
        """The user's objects that read the samples, by the names that messages give them."""
        return {}

    @property
    def head(self) -> Samples:
        """Samples whose first rows can be read immediately, to try a model on."""
        return self

    @property
    def evaluated(self) -> Samples:
        """The same samples in the form for evaluation."""
        return self

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return consecutive samples, or those with sorted numbers; ``key`` determines any random augmentation."""
        raise NotImplementedError

    def parts(
        self, first: int, last: int, rows: Index | None = None, *, most: int | None = None, key: int = 0
    ) -> Iterator[SampleBatch]:
        """Yield samples ``first`` to ``last`` (not included) in batches of at most ``most``.

        ``rows``: only these samples, sorted numbers counted from ``first``.
        """
        size = last - first if rows is None else len(rows)
        for a, b in pairwise(even_ends(size, most or size)):
            own_rows = rows
            if b - a < size:
                own_rows = np.arange(a, b) if rows is None else rows[a:b]
            places = slice(first + a, first + b) if rows is None else rows[a:b] + first
            yield SampleBatch(self.batch(places, key), b - a, first + a, own_rows, self.weights_of(places))

    def weights_of(self, rows: Rows) -> Floats | None:
        """Return the weights of consecutive samples, or of those with sorted numbers; None if all are equal."""
        return None if self.weights is None else self.weights[rows]

    def some(self, samples: int, of: str) -> Samples:
        """Return ``samples`` of the samples; see :func:`~anyk.problems.base.some_rows`."""
        raise NotImplementedError

    def sample_batch(self, partitions: range, rows: Index | None) -> Samples:
        """Return a mini-batch of endless samples, with an equal number from each partition; ``rows`` is its key."""
        raise NotImplementedError

    def only(self, bounds: Sequence[tuple[int, int]]) -> Samples:
        """Return the data for a worker that uses only these ranges of samples, which keep their numbers."""
        return self

    def adopt(self, other: Self) -> None:
        """Take over the samples of other ranges; nothing is missing unless :meth:`only` leaves samples out."""


class Arrays(Samples):
    """Rows of arrays with equal first axis, as batches of a ``form``."""

    in_memory = takes_weights = True

    def __init__(self, arrays: Sequence[Array], form: Form) -> None:
        self.arrays, self.form = list(arrays), form

    def __len__(self) -> int:
        return int(self.arrays[0].shape[0])  # also of a sparse array

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return these rows of every array."""
        return self.form([array[rows] for array in self.arrays])

    def some(self, samples: int, of: str) -> Arrays:
        """Return ``samples`` of the rows."""
        return self.select_rows(some_rows(len(self), samples, of))

    def select_rows(self, rows: Rows) -> Arrays:
        """Return these rows, in this order."""
        selected = Arrays([array[rows] for array in self.arrays], self.form)
        selected.weights = self.weights_of(rows)
        return selected

    def only(self, bounds: Sequence[tuple[int, int]]) -> Samples:
        """Return these ranges of rows."""
        return ArrayRanges(self, bounds)


class ArrayRanges(Samples):
    """Ranges of rows, which keep their numbers: what a worker without shared memory receives.

    Each range is a view of the complete array, so that only its rows are pickled.

    >>> ranges = ArrayRanges(Arrays([np.arange(10)], list), [(0, 3), (6, 9)])
    >>> ranges.batch(slice(6, 8))[0].tolist(), ranges.batch(np.array([1, 7]))[0].tolist()
    ([6, 7], [1, 7])
    """

    in_memory = True

    def __init__(self, complete: Arrays, bounds: Sequence[tuple[int, int]]) -> None:
        columns = [*complete.arrays, *(() if complete.weights is None else (complete.weights,))]
        self._ranges = {a: [array[a:b] for array in columns] for a, b in bounds}
        self._form, self._weighted = complete.form, complete.weights is not None

    def adopt(self, other: Self) -> None:
        self._ranges |= other._ranges

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some rows; consecutive rows of a single range are not copied."""
        arrays = self._rows_of(rows, slice(None))
        return self._form(arrays[:-1] if self._weighted else arrays)

    def weights_of(self, rows: Rows) -> Floats | None:
        """Return the weights of some rows."""
        weights: Floats | None = self._rows_of(rows, slice(-1, None))[0] if self._weighted else None
        return weights

    def _rows_of(self, rows: Rows, columns: slice) -> list[Array]:
        parts: list[list[Array]] = []
        for start, arrays in self._ranges.items():
            if isinstance(rows, slice):
                inside: Rows = slice(max(rows.start - start, 0), max(rows.stop - start, 0))
            else:
                inside = rows[(start <= rows) & (rows < start + arrays[0].shape[0])] - start
            parts.append([array[inside] for array in arrays[columns]])
        parts = [block for block in parts if block[0].shape[0]] or parts[:1]
        return list(map(stacked, zip(*parts, strict=True)))


class SampledOnce(Samples):
    """Samples that are not in memory; those that are evaluated are read once (:meth:`read_some`)."""

    def __init__(self) -> None:
        self._some: dict[tuple[int, str], Samples] = {}

    def __getstate__(self) -> ByName:
        return self.__dict__ | {"_some": {}}

    def some(self, samples: int, of: str) -> Samples:
        if (samples, of) not in self._some:
            self._some[samples, of] = self.read_some(samples, of)
        return self._some[samples, of]

    def read_some(self, samples: int, of: str) -> Samples:
        """Return ``samples`` of the samples, in memory."""
        raise NotImplementedError


class PartitionSamples(NamedTuple):
    """Samples of a partition, over which a gradient or a loss is summed.

    ``partition``: its number. ``rows``: the samples' numbers, counted from ``first``; None for all up to ``last``.
    ``requested_rows``: the rows that the strategy requested, which key random numbers; of a stream ``rows`` is None.
    ``alike``: the weight of each sample, if samples were drawn in proportion to their own.
    """

    data: Samples
    partition: int
    first: int
    last: int
    rows: Index | None
    requested_rows: Index | None
    alike: float | None = None

    @property
    def size(self) -> int:
        """The number of samples."""
        return self.last - self.first if self.rows is None else len(self.rows)

    def parts(self, most: int | None, key: int = 0) -> Iterator[SampleBatch]:
        """Yield the samples in batches of at most ``most``."""
        for batch in self.data.parts(self.first, self.last, self.rows, most=most, key=key):
            yield batch if self.alike is None else batch._replace(weights=np.full(batch.size, self.alike))

    def batch(self, places: Index, key: int) -> Batch:
        """Return the samples at these places among them."""
        return self.data.batch((places if self.rows is None else self.rows[places]) + self.first, key)
