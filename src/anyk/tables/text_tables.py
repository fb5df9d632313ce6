"""Tables from CSV files: split by pandas, cells converted by our rules, the header found or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import Array, BadInput
from anyk.tables.cells import INEXACT, convert_cells, convert_columns, is_missing, is_number
from anyk.tables.input_files import Limit, lines, open_text, reading, shown
from anyk.tables.table import Table, listed

_CHUNK = 4096  # rows that are converted together: as text they take ten times the memory of numbers
_SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'", " ": "spaces"}
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")  # pandas' words
HEADER_SETTING = "give header=yes or header=no"
_ENOUGH = 5  # rows below the first one by which its numbers can be told from data


def read_csv(
    file: Path,
    allowed: Limit,
    *,
    header: bool | None = None,
    text: Callable[[Sequence[str]], Iterable[int]] | None = None,
    exact: bool = False,
    remedy: str = HEADER_SETTING,
) -> Table:
    """Read a CSV file in UTF-8, separated by commas; it may be compressed (``.gz``, ``.bz2``).

    A column is numeric if all its cells are numbers or missing, else text. ``header``: whether the first row contains
    names; with None :func:`has_header` decides. ``text``: a function that returns, for the names of all columns, the
    indices of the columns to read as text. ``exact``: columns with codes such as 007, or whole numbers of more than 15
    digits, are text, too. ``remedy``: what to do about a header that is ambiguous, for the error. Raises BadInput for
    it and for a file of any other format.
    """
    as_text: set[int] = set()  # columns whose cells must not be converted to numbers
    if text is not None:
        with reading(file, "CSV"), open_text(file, allowed) as opened:
            as_text |= set(text(column_names(first_cells(opened, file), bool(header))))
    first, columns = _read_columns(file, allowed, as_text, header, exact=exact)
    if header is None:
        header = has_header(file, first, columns, remedy)
        if not header:
            columns = [_with_cell(cell, column) for cell, column in zip(first, columns, strict=True)]
    return Table(column_names(first, header), tuple(columns), header)


def _read_columns(
    file: Path, allowed: Limit, as_text: set[int], header: bool | None, *, exact: bool
) -> tuple[list[str], list[Array]]:
    """Return the first row, and the columns of the rows below it (with ``header=False`` of all rows)."""
    while True:
        first, chunks = _read_chunks(file, allowed, as_text, header, INEXACT if exact else None)
        text_columns = {i for chunk in chunks for i, column in enumerate(chunk) if column.dtype.kind == "O"}
        if not any(chunk[i].dtype.kind == "f" for chunk in chunks for i in text_columns):
            columns = [np.concatenate(pieces) for pieces in zip(*chunks, strict=True)]
            return first, columns or [np.empty(0) for _ in first]
        as_text |= text_columns  # read the file again, as some of their chunks contain only numbers


def _with_cell(cell: str, column: Array) -> Array:
    """Return a column with one more cell, the first."""
    return np.concatenate([convert_cells([cell], column.dtype.kind == "O"), column])


def column_names(first: Sequence[str], header: bool) -> tuple[str, ...]:
    """Return the names of columns whose first row is ``first``."""
    names = [cell.strip() for cell in first] if header else [""] * len(first)
    return tuple(name or f"column {i}" for i, name in enumerate(names))


class _CheckedLines:
    """Lines as pandas reads them from a file: none before it is needed; a NUL character raises BadInput."""

    def __init__(self, stream: Iterable[str], file: Path | str) -> None:
        checked = (line for line in lines(stream, file))
        beginning: list[str] = []
        for line in checked:
            if beginning or line.strip("\r\n"):
                beginning.append(line)
            if len(beginning) == 2:
                break
        self.beginning = tuple(beginning)
        self._lines = chain(beginning, checked)

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def readline(self) -> str:
        """Return the next line, or nothing at the end."""
        return next(self._lines, "")

    read = readline


def cell_chunks(stream: Iterable[str], file: Path | str, *, rows: int = _CHUNK) -> Iterator[list[Array]]:
    """Yield the columns of a CSV file, split by pandas, in chunks of at most ``rows`` rows (at least 4).

    Columns are arrays of str objects; no cell is interpreted. The first chunk begins with the first row, blank lines
    are left out, and no line is read before its chunk is needed. Raises BadInput for a file that is empty, has another
    separator, or has rows of different lengths.
    """
    from pandas.errors import ParserError

    source = _CheckedLines(stream, file)
    if source.beginning:
        _check_separator(source.beginning, file)
    count = 0
    try:
        with _split(source, file, rows) as frames:
            for frame in frames:
                columns = [frame[name].to_numpy(dtype=object) for name in frame.columns]
                filled = np.array([isinstance(cell, str) for cell in columns[0]], dtype=bool)
                if not filled.all():  # blank lines
                    columns = [column[filled] for column in columns]
                for number, cell in enumerate(columns[-1], start=count + 1):
                    if not isinstance(cell, str):
                        width = sum(isinstance(column[number - count - 1], str) for column in columns)
                        raise BadInput(_uneven(file, number, width, len(columns)))
                count += len(columns[0])
                yield columns
    except ParserError as error:
        if match := _TOO_LONG.search(str(error)):
            expected, row, width = map(int, match.groups())
            raise BadInput(_uneven(file, row, width, expected)) from None
        raise


def first_cells(stream: Iterable[str], file: Path | str) -> list[str]:
    """Return the cells of the first row of a CSV file, without a look at the others; BadInput for an empty file."""
    with _split(_CheckedLines(stream, file), file, 1) as frames:
        frame = next(iter(frames))
    return [str(frame[name].iloc[0]) for name in frame.columns]


def _split(source: _CheckedLines, file: Path | str, rows: int) -> Any:
    """Return pandas' reader of chunks of cells; raise BadInput for an empty file.

    pandas' slower engine sees that a row is too short, and that quotes are not closed.
    """
    import pandas

    if not source.beginning:
        raise BadInput(f"{shown(file)} is empty")
    return pandas.read_csv(
        source,
        dtype=object,
        keep_default_na=False,
        header=None,
        engine="python",
        skipinitialspace=True,
        skip_blank_lines=False,
        chunksize=rows,
    )


def _uneven(file: Path | str, number: int, width: int, expected: int) -> str:
    """Return the sentence about a row that has fewer or more cells than the first."""
    return (
        f"{shown(file)} cannot be read as CSV: row {number} has {width} cell{'s' * (width != 1)}, the first has "
        f"{expected}"
    )


def first_row(columns: Sequence[Array]) -> list[str]:
    """Return the cells of the first row of some columns of text."""
    return [str(column[0]) for column in columns]


def _check_separator(beginning: Sequence[str], file: Path | str) -> None:
    """Raise BadInput if the first two lines of a file are evidently not separated by commas."""
    for sign, name in _SEPARATORS.items():
        cells = [line.strip("\r\n").split(sign) for line in (beginning[0], beginning[-1])]
        if len(cells[0]) == 1 or len(cells[0]) != len(cells[1]):
            continue
        decimal = all(is_number(cell.replace(",", ".")) or is_missing(cell) for cell in cells[1])
        if "," not in beginning[0] or (decimal and sign != " "):
            raise BadInput(
                f"the columns of {shown(file)} are separated by {name}; save it with commas between columns and points "
                "in decimal numbers"
            )


def _read_chunks(
    file: Path, allowed: Limit, as_text: set[int], header: bool | None, text_pattern: re.Pattern[str] | None
) -> tuple[list[str], list[list[Array]]]:
    """Return the first row, and the columns of the rows below it (with ``header=False`` of all rows) in chunks."""
    chunks: list[list[Array]] = []
    cells, first = 0, list[str]()
    with reading(file, "CSV"), open_text(file, allowed) as opened:
        for columns in cell_chunks(opened, file):
            if not first:
                first = first_row(columns)
                if header is not False:
                    columns = [column[1:] for column in columns]
            cells += len(columns) * len(columns[0])
            allowed.check(8 * cells)
            if len(columns[0]):
                chunks.append(convert_columns(columns, as_text, text_pattern))
    return first, chunks


def has_header(file: Path | str, first: list[str], columns: list[Array], remedy: str = HEADER_SETTING) -> bool:
    """Return whether the first row contains the names of the columns below it; raise BadInput if this is ambiguous.

    Text above numbers is a name. A number above numbers, and text that occurs again in its column, are data. The
    numbers 0, 1, 2, … or 1, 2, 3, … are names after an empty cell (pandas writes unnamed columns so), else ambiguous,
    as are other whole numbers at equal distances, such as years, and whole numbers far from the fractions below them.
    """
    cells = [cell.strip() for cell in first]
    words = {i for i, cell in enumerate(cells) if not is_missing(cell) and not is_number(cell)}
    numeric = {i for i, column in enumerate(columns) if column.dtype.kind == "f" and len(column)}
    numbers = {i for i in numeric - words if not is_missing(cells[i])}
    ambiguous = f"the first row of {shown(file)} ({listed(cells)}) may be names or data; {remedy}"
    if not words:
        return _numbers_as_names(cells, columns, ambiguous)
    names = words & numeric
    if not names and any(cells[i] in columns[i] for i in words):
        return False
    repeated = not names and len(columns[0]) and len(set(cells)) < len(cells)
    if numbers or repeated:
        raise BadInput(ambiguous)
    return True


def _numbers_as_names(cells: list[str], columns: list[Array], ambiguous: str) -> bool:
    """Return whether the numbers in a first row are names; raise BadInput with ``ambiguous`` if they may be."""
    labels = cells[1:] if cells[0] == "" else cells
    counted = labels in ([str(i + start) for i in range(len(labels))] for start in (0, 1))
    if len(labels) >= 3 and counted and not cells[0]:
        return True
    if (len(labels) >= 3 and _counts_columns(labels, columns[-len(labels) :])) or _far_above(cells, columns):
        raise BadInput(ambiguous)
    return False


def _counts_columns(cells: Sequence[str], columns: Sequence[Array]) -> bool:
    """Return whether cells are whole numbers at equal distances, such as years, unlike the numbers below them.

    These have fractions, or the distance is 1 in the first row and not in another.
    """
    if not all(re.fullmatch(r"\d{1,15}", cell) for cell in cells):
        return False
    steps = set(np.diff(list(map(int, cells))).tolist())
    if len(steps) > 1 or steps == {0}:
        return False
    below = [column for column in columns if column.dtype.kind == "f"]
    if any((np.isfinite(column) & (column != np.floor(column))).any() for column in below):
        return True
    pairs = pairwise(below)
    return steps == {1} and not (len(below) == len(cells) and all((right - left == 1.0).all() for left, right in pairs))


def _far_above(cells: Sequence[str], columns: Sequence[Array]) -> bool:
    """Return whether whole numbers are farther from the fractions below them than these are from each other."""
    if len(columns) < 2 or len(columns[0]) < _ENOUGH or not all(map(is_number, cells)):
        return False
    for cell, column in zip(cells, columns, strict=True):
        below = column[np.isfinite(column)] if column.dtype.kind == "f" else column[:0]
        if len(below) < _ENOUGH or not float(cell).is_integer() or (below == np.floor(below)).all():
            return False
        if np.abs(below - float(cell)).min() <= np.ptp(below):
            return False
    return True
