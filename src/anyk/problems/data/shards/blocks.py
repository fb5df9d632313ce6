"""Rows of shards by number, read block by block, with a cache of the latest blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anyk.errors import BadInput, RunFailed
from anyk.plain import ByName
from anyk.problems.base import Index, is_sparse, stacked
from anyk.problems.data.shards.formats import format_of
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.shards.survey import Survey
from anyk.tables import Table, shown

Arrays = tuple[Any, ...]  # with equal first axis
Convert = Callable[[Table, str], Arrays]


class Blocks:
    """Rows of shards as arrays, made of each block by ``convert(content, where)``.

    The object is small, whatever the size of the data. It is sent to workers, which open the files that they need.
    """

    def __init__(self, shards: Shards, survey: Survey, convert: Convert) -> None:
        self.shards, self.convert = shards, convert
        self._blocks, self._text, self._header = survey.blocks, set(survey.words), survey.first.header
        self._ends = np.concatenate(([0], np.cumsum(survey.blocks[:, 3])))
        self._cache: OrderedDict[int, Arrays] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> ByName:
        return self.__dict__ | {"_cache": OrderedDict(), "_bytes": 0}

    def parts(self, first: int, last: int) -> Iterator[Arrays]:
        """Yield rows ``first`` to ``last`` (not included), block by block."""
        block = int(np.searchsorted(self._ends, first, side="right")) - 1
        while first < last:
            begin, end = int(self._ends[block]), int(self._ends[block + 1])
            if end > first:
                yield tuple(array[first - begin : min(end, last) - begin] for array in self._block(block))
            first, block = max(first, end), block + 1

    def read_rows(self, rows: Index) -> Arrays:
        """Return the rows with these sorted numbers."""
        block_of = np.searchsorted(self._ends, rows, side="right") - 1
        blocks = [
            tuple(array[rows[block_of == block] - self._ends[block]] for array in self._block(block))
            for block in np.unique(block_of).tolist()
        ]
        return tuple(stacked(parts) for parts in zip(*blocks, strict=True))

    def _block(self, number: int) -> Arrays:
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

    def _read(self, number: int) -> Arrays:
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


def _bytes(arrays: Arrays) -> int:
    return sum(
        part.nbytes
        for array in arrays
        for part in ((array.data, array.indices, array.indptr) if is_sparse(array) else (array,))
    )
