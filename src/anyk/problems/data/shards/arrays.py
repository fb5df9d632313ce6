"""Shards as arrays of samples: what networks learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.problems.base import Index, some_rows
from anyk.problems.data.shards.blocks import Blocks
from anyk.problems.data.shards.sources import Content, Shards
from anyk.problems.data.shards.survey import arrays_of, survey
from anyk.tables import Table

# arrays by name, and where they are from, as a problem computes with them: checked, and of its own number types
Made = Callable[[dict[str, NDArray[Any]], str], dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class _Convert:
    """A block as arrays, in the order of ``names``."""

    shards: Shards
    names: tuple[str, ...]
    whole: bool
    make: Made

    def __call__(self, content: Content, where: str) -> tuple[NDArray[Any], ...]:
        found = arrays_of(self.shards, content, where)
        if missing := [name for name in self.names if name not in found]:
            raise BadInput(f"{where} has no array '{missing[0]}', which the first file has")
        named = {name: found[name] for name in self.names}
        if self.whole and isinstance(content, Table):
            named["1"] = named["1"].astype(np.int64)  # tables hold all numbers as float64
        return tuple(self.make(named, where).values())


class ShardArrays:
    """Samples of shards by number, as arrays with equal first axis; the first 32 are known without opening anything.

    ``named``: whether the arrays have names, and are not the inputs and then the target.
    """

    def __init__(self, shards: Shards, make: Made) -> None:
        found = survey(shards, "arrays")
        names = tuple(name for name, *_ in found.first.head)
        self.named = not names[0].isdigit()
        convert = _Convert(shards, names, found.whole, make)
        self._blocks = Blocks(shards, found, convert)
        head = {
            name: np.frombuffer(body, dtype=np.dtype(kind)).reshape(shape)
            for name, kind, shape, body in found.first.head
        }
        if found.whole and found.first.names:
            head["1"] = head["1"].astype(np.int64)
        self._names, self._head = names, tuple(make(head, "the first file").values())
        self.tried = len(self._head[0])

    def __len__(self) -> int:
        return len(self._blocks)

    def arrays(self, rows: slice | Index) -> dict[str, NDArray[Any]]:
        """Some samples, by name or by number: a run of them, or those with these numbers, sorted."""
        last = rows.stop if isinstance(rows, slice) else int(rows[-1]) + 1
        if last <= self.tried:
            found: tuple[Any, ...] = tuple(array[rows] for array in self._head)
        elif isinstance(rows, slice):
            parts = list(self._blocks.parts(rows.start, rows.stop))
            found = parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts, strict=True)))
        else:
            found = self._blocks.taken(rows)
        return dict(zip(self._names, found, strict=True))

    def some(self, samples: int, of: str) -> dict[str, NDArray[Any]]:
        """So many of the samples, in memory; see :func:`~anyk.problems.base.some_rows`."""
        return self.arrays(np.arange(len(self))[some_rows(len(self), samples, of)])

    @property
    def digest(self) -> str:
        """What tells the files from others, and how they are read."""
        shards = self._blocks.shards
        return f"{shards.digest()} {shards.target} {shards.columns}"
