"""Rows of shards by number, wherever they lie: read block by block, with the last blocks kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Index, stacked
from anyk.problems.data.shards.formats import format_of
from anyk.problems.data.shards.sources import Content, Shards
from anyk.problems.data.shards.survey import Survey
from anyk.tables import shown

Arrays = tuple[Any, ...]  # with equal first axis
Convert = Callable[[Content, str], Arrays]


class Blocks:
    """Rows of shards as arrays, made of each block by ``convert(content, where)``.

    What it holds itself is small, whatever the data: it goes to workers as it is, and they open what they need.
    """

    def __init__(self, shards: Shards, survey: Survey, convert: Convert) -> None:
        self.shards, self.convert = shards, convert
        self._blocks, self._text, self._header = survey.blocks, set(survey.text), survey.first.header
        self._ends = np.concatenate(([0], np.cumsum(survey.blocks[:, 3])))
        self._kept: OrderedDict[int, Arrays] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": OrderedDict(), "_bytes": 0}

    def parts(self, first: int, last: int) -> Iterator[Arrays]:
        """Rows ``first`` to ``last`` (not included), those of one block after those of another."""
        block = int(np.searchsorted(self._ends, first, side="right")) - 1
        while first < last:
            begin, end = int(self._ends[block]), int(self._ends[block + 1])
            if end > first:
                yield tuple(array[first - begin : min(end, last) - begin] for array in self._block(block))
            first, block = max(first, end), block + 1

    def taken(self, rows: Index) -> Arrays:
        """Some rows, by sorted numbers, together."""
        of = np.searchsorted(self._ends, rows, side="right") - 1
        blocks_found = [
            tuple(array[rows[of == block] - self._ends[block]] for array in self._block(block))
            for block in np.unique(of).tolist()
        ]
        return tuple(stacked(parts) for parts in zip(*blocks_found, strict=True))

    def _block(self, number: int) -> Arrays:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        arrays = self._read(number)
        size = sum(_bytes(array) for array in arrays)
        limit = self.shards.cache_mb * 1e6
        while self._kept and self._bytes + size > limit:
            _, old = self._kept.popitem(last=False)
            self._bytes -= sum(_bytes(array) for array in old)
        if size <= limit:
            self._kept[number] = arrays
            self._bytes += size
        return arrays

    def _read(self, number: int) -> Arrays:
        place, at, size, rows = self._blocks[number].tolist()
        file = self.shards.found[place]
        address = file.address
        try:
            if self.shards.read is not None:
                file.check_unchanged()  # the user's function would wait for a pipe
            try:
                content = format_of(self.shards, address, header=self._header).read(at, size, self._text)
            finally:  # in the place of whatever reading a changed file raises
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


def _bytes(array: Any) -> int:
    if hasattr(array, "indptr"):
        return int(array.data.nbytes + array.indices.nbytes + array.indptr.nbytes)
    return int(array.nbytes)
