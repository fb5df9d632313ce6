"""A table: named columns of numbers and text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anyk.base import Array, BadInput, suggest
from anyk.tables.input_files import shown


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length: float64 with NaN for a missing number, or text as str objects with None if missing.

    ``header``: whether the names are from the file; otherwise they are "column 0", "column 1" and so on. ``refused``:
    for each column why its values could not be read, empty if all could be. ``index``: the names of columns that are
    left out, as pandas stored its index in them.
    """

    names: tuple[str, ...]
    columns: tuple[Array, ...]
    header: bool
    refused: tuple[str, ...] = ()
    index: tuple[str, ...] = ()

    def check_readable(self, places: Iterable[int], file: Path | str) -> None:
        """Raise BadInput if one of the columns at ``places`` has values that could not be read."""
        for index in places:
            if self.refused and self.refused[index]:
                name = shown(self.names[index])
                days = f", let dates={name} count days" if self.columns[index].dtype.kind == "O" else ""
                raise BadInput(f"{self.refused[index]}; convert them{days}, or omit the column (drop={name})")

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.columns[0].shape[0]) if self.columns else 0


def listed(names: Sequence[str]) -> str:
    """Return the first five names for a message, quoted so that spaces in a name are visible."""
    return ", ".join(repr(shown(name)) for name in names[:5]) + ", ..." * (len(names) > 5)


def column_hint(name: str, names: Sequence[str]) -> str:
    """Return the end of a message about a missing column: the nearest name, else the names of the columns."""
    return suggest(name, names, f"its columns: {listed(names)}")


def is_row_number(values: Array) -> bool:
    """Return whether a column contains the row numbers 0, 1, 2, … or 1, 2, 3, …"""
    numbers = values.dtype.kind == "f" and len(values) > 1
    return bool(numbers and values[0] in (0.0, 1.0) and (np.diff(values) == 1.0).all())
