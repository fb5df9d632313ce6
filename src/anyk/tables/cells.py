"""Cells of text become numbers, or stay text; which stand for a missing value, and which look like codes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

import numpy as np

from anyk.base import Array, Flags

_CODE = re.compile(r"[ \t]*[+-]?0\d+[ \t]*")
# whole numbers that float64 would change: with zeros in front, as codes have them, or of more than 15 digits
CODES = re.compile(r"^[ \t]*[+-]?0\d+[ \t]*$", re.MULTILINE)
INEXACT = re.compile(r"^[ \t]*[+-]?(?:0\d+|\d{16,})[ \t]*$", re.MULTILINE)
_MISSING = {"", "na", "n/a", "#n/a", "nan", "null"}


def is_number(cell: str) -> bool:
    """Return whether a cell is a number; ``1_000``, a number in Python, is text."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def is_code(cell: str) -> bool:
    """Return whether a cell is a number with zeros in front, as codes have them.

    >>> is_code("007"), is_code("0"), is_code("0.5")
    (True, False, False)
    """
    return _CODE.fullmatch(cell) is not None


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for a missing value: empty, NA, N/A, NaN or null."""
    return cell.strip().lower() in _MISSING


def missing_values(column: Array) -> Flags:
    """Return a mask of the missing values of a column: NaN, or None in a column of text."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    return np.array([value is None for value in column.tolist()], dtype=bool)


def unusable_values(column: Array) -> Flags:
    """Return a mask of the values of a column that are missing or not finite.

    >>> unusable_values(np.array([1.0, np.inf])).tolist(), unusable_values(np.array(["a", None], dtype=object)).tolist()
    ([False, True], [False, True])
    """
    return ~np.isfinite(column) if column.dtype.kind == "f" else missing_values(column)


def convert_columns(
    columns: Sequence[Array], as_text: Collection[int], text_pattern: re.Pattern[str] | None = None
) -> list[Array]:
    """Return columns of cells converted; ``as_text``: the indices of those that must stay text.

    ``text_pattern``: see :func:`convert_cells`.
    """
    return [convert_cells(column, i in as_text, text_pattern) for i, column in enumerate(columns)]


def convert_cells(cells: Sequence[str] | Array, as_text: bool, text_pattern: re.Pattern[str] | None = None) -> Array:
    """Return cells as numbers, NaN if missing; as text, None if missing, if ``as_text`` or if a cell is not a number.

    ``text_pattern``: cells are text if one of them matches, such as :data:`CODES` or :data:`INEXACT`.
    """
    joined = "" if as_text else "\n".join(cells)
    if not as_text and "_" not in joined and not (text_pattern and text_pattern.search(joined)):
        try:
            return np.array(list(map(float, cells)))
        except ValueError:
            pass
        try:
            return np.array([math.nan if is_missing(cell) else float(cell) for cell in cells])
        except ValueError:
            pass
    column = np.empty(len(cells), dtype=object)
    column[:] = [None if is_missing(cell) else cell for cell in cells]
    return column
