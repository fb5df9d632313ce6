"""Shards as samples for networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from anyk.errors import BadInput
from anyk.problems.base import Array, some_rows
from anyk.problems.data.sample_batches import Arrays, Batch, Form, Rows, SampledOnce
from anyk.problems.data.shards.blocks import Blocks
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.shards.survey import arrays_of, survey
from anyk.tables import Table

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
