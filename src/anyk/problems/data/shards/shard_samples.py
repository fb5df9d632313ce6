"""Rows of shards, read block by block with a cache, and shards as samples for networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anyk.base.arrays import Array
from anyk.base.errors import BadInput, RunFailed
from anyk.base.plain import ByName
from anyk.problems.base import some_rows, stacked
from anyk.problems.data.sample_batches import Arrays, Batch, Form, Rows, SampledOnce
from anyk.problems.data.shards.sources import Shards, format_of
from anyk.problems.data.shards.survey import Survey, arrays_of, like_training, survey
from anyk.tables import Table, is_sparse, shown

BlockArrays = tuple[Any, ...]  # with equal first axis


class BlockSamples(SampledOnce):
    """Rows of shards, read block by block; ``form`` makes batches of their arrays.

    The object is small, whatever the size of the data. It is sent to workers, which open the files that they need.
    """

    def __init__(self, shards: Shards, survey: Survey, form: Form) -> None:
        super().__init__()
        self.shards, self.form = shards, form
        self._blocks, self._text, self._header = survey.blocks, set(survey.words), survey.header
        self.names = survey.names  # of a table's columns, with the target
        self._ends = np.cumsum([0, *(rows for *_, rows in survey.blocks)])
        self._cache: OrderedDict[int, BlockArrays] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> ByName:
        return super().__getstate__() | {"_cache": OrderedDict(), "_bytes": 0}

    def convert(self, content: Table, where: str) -> BlockArrays:
        """Return the arrays of a block."""
        raise NotImplementedError

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some rows."""
        return self.form(self.read_rows(rows))

    def read_some(self, samples: int, of: str) -> Arrays:
        return Arrays(self.read_rows(np.arange(len(self))[some_rows(len(self), samples, of)]), self.form)

    def by_block(self, first: int, last: int) -> Iterator[BlockArrays]:
        """Yield rows ``first`` to ``last`` (not included), block by block."""
        block = int(np.searchsorted(self._ends, first, side="right")) - 1
        while first < last:
            begin, end = int(self._ends[block]), int(self._ends[block + 1])
            if end > first:
                yield tuple(array[first - begin : min(end, last) - begin] for array in self._block(block))
            first, block = max(first, end), block + 1

    def read_rows(self, rows: Rows) -> BlockArrays:
        """Return consecutive rows, or those with these sorted numbers."""
        if isinstance(rows, slice):
            return tuple(map(stacked, zip(*self.by_block(rows.start, rows.stop), strict=True)))
        block_of = np.searchsorted(self._ends, rows, side="right") - 1
        blocks = [
            tuple(array[rows[block_of == block] - self._ends[block]] for array in self._block(block))
            for block in np.unique(block_of).tolist()
        ]
        return tuple(map(stacked, zip(*blocks, strict=True)))

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
        file_number, start, size, rows = self._blocks[number]
        file = self.shards.resolved_files[file_number]
        address = file.address
        try:
            if self.shards.read is not None:
                file.check_unchanged()  # a file may have become a pipe, on which the user's function would wait
            try:
                content = format_of(self.shards, address, self._text, header=self._header).read(start, size)
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
        values.nbytes
        for array in arrays
        for values in ((array.data, array.indices, array.indptr) if is_sparse(array) else (array,))
    )


# checks the arrays of a file, given by name, and returns them in a problem's number types
Convert = Callable[[dict[str, Array], str], dict[str, Array]]


class ShardSamples(BlockSamples):
    """Samples of shards for networks; the first 32 are in memory.

    ``form``: makes the form of batches from the arrays' names; None if they are the inputs and then the target.
    ``training``: the samples whose columns and target these have, for held-out ones.
    """

    whole: bool  # whether targets are integers

    def __init__(
        self,
        shards: Shards,
        convert: Convert,
        form: Callable[[tuple[str, ...] | None], Form],
        training: ShardSamples | None = None,
    ) -> None:
        if training is not None:
            shards = like_training(shards, training.shards, training.names)
        facts = survey(shards, "arrays")
        if training is not None and not training.shards.read and facts.names:
            facts.whole = training.whole
        self._names = tuple(name for name, *_ in facts.head)
        self.whole, self._convert = facts.whole, convert
        self.named = not self._names[0].isdigit()  # arrays with names, not the inputs and then the target
        super().__init__(shards, facts, form(self._names if self.named else None))
        head = {
            name: np.frombuffer(body, dtype=np.dtype(kind)).reshape(shape) for name, kind, shape, body in facts.head
        }
        self._first = self._typed(head, "the first file")
        self.mark = np.array([f"{shards.digest()} {shards.target} {shards.columns}"])

    @property
    def tried(self) -> int:
        """The number of rows that the survey has read."""
        return len(self._first[0])

    def convert(self, content: Table, where: str) -> BlockArrays:
        arrays = arrays_of(self.shards, content, where)
        if missing := [name for name in self._names if name not in arrays]:
            raise BadInput(f"{where} has no array '{missing[0]}', which the first file has")
        return self._typed({name: arrays[name] for name in self._names}, where)

    def read_rows(self, rows: Rows) -> BlockArrays:
        last = rows.stop if isinstance(rows, slice) else int(rows[-1]) + 1
        return tuple(array[rows] for array in self._first) if last <= self.tried else super().read_rows(rows)

    def _typed(self, named: dict[str, Array], where: str) -> BlockArrays:
        """Return arrays, in their order, in the problem's number types."""
        if self.whole:
            target = named["1"]  # all numbers of tables are float64
            if (target != np.floor(target)).any():
                raise BadInput(f"the target of {where} has decimals, and training rows have whole numbers only")
            named["1"] = target.astype(np.int64)
        return tuple(self._convert(named, where).values())
