"""Shards as samples: what networks learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.problems.base import some_rows
from anyk.problems.data.samples import Arrays, Batch, Form, Rows, Samples
from anyk.problems.data.shards.blocks import Blocks
from anyk.problems.data.shards.sources import Content, Shards
from anyk.problems.data.shards.survey import arrays_of, survey
from anyk.tables import Table

# arrays by name, and the file they are from, as a problem computes with them: checked, and of its own number types
Convert = Callable[[dict[str, NDArray[Any]], str], dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class _Converted:
    """A block as arrays, in the order of ``names``."""

    shards: Shards
    names: tuple[str, ...]
    whole: bool
    convert: Convert

    def __call__(self, content: Content, where: str) -> tuple[NDArray[Any], ...]:
        arrays = arrays_of(self.shards, content, where)
        if missing := [name for name in self.names if name not in arrays]:
            raise BadInput(f"{where} has no array '{missing[0]}', which the first file has")
        named = {name: arrays[name] for name in self.names}
        if self.whole and isinstance(content, Table):
            named["1"] = named["1"].astype(np.int64)  # tables hold all numbers as float64
        return tuple(self.convert(named, where).values())


class ShardSamples(Samples):
    """Samples of shards, read block by block; the first 32 are known without opening anything.

    ``form``: from names, None if the arrays are the inputs and then the target, to how batches are formed.
    """

    def __init__(self, shards: Shards, convert: Convert, form: Callable[[tuple[str, ...] | None], Form]) -> None:
        survey_result = survey(shards, "arrays")
        names = tuple(name for name, *_ in survey_result.first.head)
        self.named = not names[0].isdigit()  # arrays have names, and are not the inputs and then the target
        self.form = form(names if self.named else None)
        self._blocks = Blocks(shards, survey_result, _Converted(shards, names, survey_result.whole, convert))
        head = {
            name: np.frombuffer(body, dtype=np.dtype(kind)).reshape(shape)
            for name, kind, shape, body in survey_result.first.head
        }
        if survey_result.whole and survey_result.first.names:
            head["1"] = head["1"].astype(np.int64)
        self._first = tuple(convert(head, "the first file").values())
        self._some: dict[tuple[int, str], Arrays] = {}
        self.mark = np.array([f"{shards.digest()} {shards.target} {shards.columns}"])

    def __len__(self) -> int:
        return len(self._blocks)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_some": {}}

    @property
    def tried(self) -> int:
        """The number of rows that the survey brought."""
        return len(self._first[0])

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some rows, from the blocks in which they lie."""
        del key
        return self.form(self._taken(rows))

    def some(self, samples: int, of: str) -> Arrays:
        """Return ``samples`` of the rows, in memory."""
        if (samples, of) not in self._some:
            rows = np.arange(len(self))[some_rows(len(self), samples, of)]
            self._some[samples, of] = Arrays(self._taken(rows), self.form)
        return self._some[samples, of]

    def _taken(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        last = rows.stop if isinstance(rows, slice) else int(rows[-1]) + 1
        if last <= self.tried:
            return tuple(array[rows] for array in self._first)
        if not isinstance(rows, slice):
            return self._blocks.taken(rows)
        parts = list(self._blocks.parts(rows.start, rows.stop))
        return parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts, strict=True)))
