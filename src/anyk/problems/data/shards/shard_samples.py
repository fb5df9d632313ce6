"""Rows of shards, read block by block with a cache, and shards as samples for networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from anyk.arrays import Array
from anyk.errors import BadInput, RunFailed
from anyk.plain import ByName
from anyk.problems.base import Index, is_sparse, some_rows, stacked
from anyk.problems.data.sample_batches import Arrays, Batch, Form, Rows, SampledOnce
from anyk.problems.data.shards.formats import format_of
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.shards.survey import Survey, arrays_of, survey
from anyk.tables import Table, shown

BlockArrays = tuple[Any, ...]  # with equal first axis
ConvertTable = Callable[[Table, str], BlockArrays]


class Blocks:
    """Rows of shards as arrays, made of each block by ``convert(content, where)``.

    The object is small, whatever the size of the data. It is sent to workers, which open the files that they need.
    """

    def __init__(self, shards: Shards, survey: Survey, convert: ConvertTable) -> None:
        self.shards, self.convert = shards, convert
        self._blocks, self._text, self._header = survey.blocks, set(survey.words), survey.first.header
        self._ends = np.concatenate(([0], np.cumsum(survey.blocks[:, 3])))
        self._cache: OrderedDict[int, BlockArrays] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> ByName:
        return self.__dict__ | {"_cache": OrderedDict(), "_bytes": 0}

    def parts(self, first: int, last: int) -> Iterator[BlockArrays]:
        """Yield rows ``first`` to ``last`` (not included), block by block."""
        block = int(np.searchsorted(self._ends, first, side="right")) - 1
        while first < last:
            begin, end = int(self._ends[block]), int(self._ends[block + 1])
            if end > first:
                yield tuple(array[first - begin : min(end, last) - begin] for array in self._block(block))
            first, block = max(first, end), block + 1

    def read_rows(self, rows: Index) -> BlockArrays:
        """Return the rows with these sorted numbers."""
        block_of = np.searchsorted(self._ends, rows, side="right") - 1
        blocks = [
            tuple(array[rows[block_of == block] - self._ends[block]] for array in self._block(block))
            for block in np.unique(block_of).tolist()
        ]
        return tuple(stacked(parts) for parts in zip(*blocks, strict=True))

    def _block(self, number: int) -> BlockArrays:
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        arrays = self._read(number)
        size = _bytes(arrays)
        limit = self.shards.cache_mb * 1e6
        while self._cache and self._bytes + size > limit:
            _, old = self._cache.popitem(last=False)
            self._bytes -= _bytes(old)
        if size <= limit:
            self._cache[number] = arrays
            self._bytes += size
        return arrays

    def _read(self, number: int) -> BlockArrays:
        place, at, size, rows = self._blocks[number].tolist()
        file = self.shards.resolved_files[place]
        address = file.address
        try:
            if self.shards.read is not None:
                file.check_unchanged()  # a file may have become a pipe, on which the user's function would wait
            try:
                content = format_of(self.shards, address, header=self._header).read(at, size, self._text)
            finally:  # replaces any exception that a changed file causes
                file.check_unchanged()
            arrays = self.convert(content, shown(address))
        except BadInput as error:
            raise RunFailed(str(error)) from None
        except OSError as error:
            raise RunFailed(f"{shown(address)} cannot be read: {error.strerror or error}") from None
        if any(array.shape[0] != rows for array in arrays):
            raise RunFailed(
                f"{shown(address)} has changed since the run began: {arrays[0].shape[0]} rows where there were {rows}"
            )
        return arrays


def _bytes(arrays: BlockArrays) -> int:
    return sum(
        part.nbytes
        for array in arrays
        for part in ((array.data, array.indices, array.indptr) if is_sparse(array) else (array,))
    )


# checks the arrays of a file, given by name, and returns them in a problem's number types
Convert = Callable[[dict[str, Array], str], dict[str, Array]]


def _convert_block(
    shards: Shards, names: tuple[str, ...], whole: bool, convert: Convert, content: Table, where: str
) -> tuple[Array, ...]:
    """Return a block's arrays in the order of ``names``; ``whole``: whether the targets are integers."""
    arrays = arrays_of(shards, content, where)
    if missing := [name for name in names if name not in arrays]:
        raise BadInput(f"{where} has no array '{missing[0]}', which the first file has")
    named = {name: arrays[name] for name in names}
    if whole:
        named["1"] = named["1"].astype(np.int64)  # all numbers of tables are float64
    return tuple(convert(named, where).values())


class ShardSamples(SampledOnce):
    """Samples of shards, read block by block; the first 32 are in memory.

    ``form``: makes the form of batches from the arrays' names; None if they are the inputs and then the target.
    """

    def __init__(self, shards: Shards, convert: Convert, form: Callable[[tuple[str, ...] | None], Form]) -> None:
        super().__init__()
        facts = survey(shards, "arrays")
        names = tuple(name for name, *_ in facts.first.head)
        self.named = not names[0].isdigit()  # arrays with names, not the inputs and then the target
        self.form = form(names if self.named else None)
        self._blocks = Blocks(shards, facts, partial(_convert_block, shards, names, facts.whole, convert))
        head = {
            name: np.frombuffer(body, dtype=np.dtype(kind)).reshape(shape)
            for name, kind, shape, body in facts.first.head
        }
        if facts.whole:
            head["1"] = head["1"].astype(np.int64)
        self._first = tuple(convert(head, "the first file").values())
        self.mark = np.array([f"{shards.digest()} {shards.target} {shards.columns}"])

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def tried(self) -> int:
        """The number of rows that the survey has read."""
        return len(self._first[0])

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some rows."""
        return self.form(self._read_rows(rows))

    def read_some(self, samples: int, of: str) -> Arrays:
        return Arrays(self._read_rows(np.arange(len(self))[some_rows(len(self), samples, of)]), self.form)

    def _read_rows(self, rows: Rows) -> tuple[Array, ...]:
        last = rows.stop if isinstance(rows, slice) else int(rows[-1]) + 1
        if last <= self.tried:
            return tuple(array[rows] for array in self._first)
        if not isinstance(rows, slice):
            return self._blocks.read_rows(rows)
        parts = list(self._blocks.parts(rows.start, rows.stop))
        return parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts, strict=True)))
