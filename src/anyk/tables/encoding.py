"""The conversion of a file's columns to numbers: categories of text, and replacements of missing values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from anyk.base import Array, BadInput, Flags, Floats, Indices
from anyk.tables.cells import is_number, missing_values, unusable_values
from anyk.tables.column_rules import read_dates, read_numbers, without_missing
from anyk.tables.input_files import shown
from anyk.tables.matrices import Matrix, is_sparse
from anyk.tables.table import column_hint, listed

Fill: TypeAlias = Literal["mean", "median"]
LARGEST = 1e120  # larger numbers could not be squared and added up


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file before encoding; text becomes one 0/1 column for each of its ``categories``.

    ``fill`` replaces missing values; with None they are refused. The category of missing text is ``""``. ``date``:
    whether cells are ISO dates, which become days since 1970-01-01, and ``zoned`` whether these have a time zone.
    ``unit``: what stands beside each number, such as ``%``; None if cells are plain numbers. ``truth``: whether all
    values are 1 and 0, for which the words true and false may stand.
    """

    name: str
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    date: bool = False
    zoned: bool = False
    unit: str | None = None
    truth: bool = False


@dataclass(frozen=True, slots=True)
class Encoding:
    """The columns of a file from which ``X`` is made; stored with a model and applied to other files.

    ``columns``: in order, empty for svmlight and for data sets without a file. ``named``: whether their names are from
    the file, so that other files may have them in another order. ``base``: the number of the first column in a svmlight
    file, 0 or 1. ``label``: the name of the target's column. ``words``: whether the target's labels are text.
    ``missing``: words (or numbers) that stand for missing values. ``format``: the file's, if it was stated.
    ``constant``: whether the last column of ``X`` is a column of ones, which new rows may leave out. ``file_columns``:
    the number of columns of a file without names, with the target and what was left out.
    """

    columns: tuple[Column, ...] = ()
    named: bool = False
    base: int | None = None
    label: str = ""
    words: bool = False
    missing: tuple[str, ...] = ()
    format: str | None = None
    constant: bool = False
    file_columns: int = 0

    @classmethod
    def fitted(
        cls, columns: Sequence[Column], values: Sequence[Array], rows: Any, fill: Fill | None, where: str
    ) -> tuple[Column, ...]:
        """Return the columns with their categories and fills.

        ``rows``: the indices of the rows from which fills are computed, the mean or median of numbers. Categories are
        taken from all rows, and missing text is a category of its own.
        """
        fitted = []
        for described, column in zip(columns, values, strict=True):
            column_name = f"column '{shown(described.name)}' of {where}"
            present = column[rows][~missing_values(column[rows])]
            if fill is not None and not len(present):
                raise BadInput(f"{column_name} has no value in the rows to learn from; leave it out")
            replacement: float | str | None = None
            categories: tuple[str, ...] = ()
            truth = False
            if column.dtype.kind == "f":
                truth = are_truths(column)
                if fill is not None:
                    replacement = float(np.mean(present) if fill == "mean" else np.median(present))
            else:
                present_anywhere = column[~missing_values(column)].tolist()
                gaps = len(present_anywhere) < len(column)
                categories = tuple(sorted({*present_anywhere, *([""] if gaps else [])}))
                replacement = "" if gaps or fill is not None else None
            fitted.append(replace(described, categories=categories, fill=replacement, truth=truth))
        return tuple(fitted)

    @property
    def width(self) -> int:
        """The number of columns of ``X``."""
        return len(self.names)

    @property
    def categorical(self) -> Flags:
        """Whether each column of ``X`` is a category of text, shape (width,)."""
        return np.array(
            [bool(column.categories) for column in self.columns for _ in column.categories or (None,)], bool
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of ``X``: ``size``, ``colour=red``, …"""
        return tuple(
            column.name if category is None else f"{column.name}={category or '(missing)'}"
            for column in self.columns
            for category in column.categories or (None,)
        )

    def places(self, names: Sequence[str], where: str, *, header: bool = True) -> list[int]:
        """Return the places of the encoding's columns in a table with columns of these ``names``.

        Columns are matched by name, or by order if the encoding's have no names and are equally many. Names such as
        ``column 3``, by which it calls them, are names in a table with a ``header`` that has all of them. Raises
        :class:`~anyk.BadInput` for a missing column.
        """
        unnamed = not (self.named or (header and {column.name for column in self.columns} <= set(names)))
        if unnamed and len(names) == len(self.columns):
            return self._in_order_of_file()
        if unnamed and len(names) < self.file_columns:
            raise BadInput(
                f"{where} has {len(names)} columns, but the model learned from a file of {self.file_columns}, of which "
                f"it uses {len(self.columns)}, and none has a name; give all {self.file_columns}, or those it uses"
            )
        places_of = defaultdict(list)
        for index, name in enumerate(names):
            places_of[name].append(index)
        positions, lacking = [], []
        for column in self.columns:
            if places_of[column.name]:
                positions.append(places_of[column.name].pop(0))
            else:
                lacking.append(column.name)
        repeated = next((column.name for column in self.columns if places_of[column.name]), None)
        if repeated is not None and not lacking:
            raise BadInput(
                f"{where} has more columns called '{shown(repeated)}' than the model learned from; leave one under "
                "that name"
            )
        if lacking and not self.named:
            raise BadInput(
                f"{where} has {len(names)} columns, but the model learned from {len(self.columns)}, which have no names"
            )
        if lacking:
            several = f"the columns {listed(lacking)}" if len(lacking) > 1 else f"a column '{shown(lacking[0])}'"
            raise BadInput(f"{where} lacks {several}, which the model learned from; {column_hint(lacking[0], names)}")
        return positions

    def _in_order_of_file(self) -> list[int]:
        """Return the places of columns without names in a table of just these, whatever order was asked for."""
        numbers = [_number_in(column.name, i) for i, column in enumerate(self.columns)]
        places = {number: place for place, number in enumerate(sorted(numbers))}
        return [places[number] for number in numbers]

    def text(self, names: Sequence[str]) -> set[int]:
        """Return the places of a table's columns to read as text; none if columns are missing."""
        try:
            positions = self.places(names, "")
        except BadInput:
            return set()
        return {
            index
            for index, column in zip(positions, self.columns, strict=True)
            if column.categories or column.date or column.unit is not None
        }

    def encode(self, values: Sequence[Array], where: str, tell: Callable[[str], None] | None = None) -> Matrix:
        """Return ``X``, dense if all columns are numbers, else sparse, with missing values filled.

        An unknown category is 0 in all columns of its categories, which is reported to ``tell``. Raises
        :class:`~anyk.BadInput` for missing values without a fill, infinite values, text in a column of numbers
        and numbers in a column of text.
        """
        ready = [
            _check_column(column, without_missing(cells, self.missing), f"column '{shown(column.name)}' of {where}")
            for column, cells in zip(self.columns, values, strict=True)
        ]
        if not self.categorical.any():
            return np.column_stack(ready)
        from scipy.sparse import csr_array, hstack

        blocks = []
        for column, cells in zip(self.columns, ready, strict=True):
            if not column.categories:
                blocks.append(csr_array(cells[:, None]))
                continue
            codes = codes_of(cells, column.categories)
            valid = codes >= 0
            if tell is not None and not valid.all():
                unknown = cells[~valid].tolist()
                examples = ", ".join(f"'{shown(word)}'" for word in sorted(set(unknown))[:3])
                tell(
                    f"column '{shown(column.name)}' of {where} has values that the model has not seen, such as "
                    f"{examples}, in {rows_text(len(unknown))}; there it counts as none of those it knows"
                )
            ends = np.concatenate(([0], np.cumsum(valid)))
            entries = np.ones(int(ends[-1])), codes[valid], ends
            blocks.append(csr_array(entries, shape=(len(cells), len(column.categories))))
        return hstack(blocks, format="csr")


def _number_in(name: str, otherwise: int) -> int:
    """Return the number in the name of a column that had none, such as ``column 3``."""
    number = name.removeprefix("column ")
    return int(number) if number.isdigit() else otherwise


def codes_of(values: Array, categories: Sequence[float | str]) -> Indices:
    """Return the place of each value among the categories, -1 if it is not there."""
    code_of = {category: code for code, category in enumerate(categories)}
    return np.array([code_of.get(value, -1) for value in values.tolist()], dtype=np.int64)


def check_finite(X: Any, where: str, names: Sequence[str] | None = None) -> None:
    """Raise BadInput for NaN or infinity in a matrix, with the first such column and the number of its rows."""
    bad = X.indices[~np.isfinite(X.data)] if is_sparse(X) else np.nonzero(~np.isfinite(X))[1]
    if len(bad):
        column, rows = bad.min(), int((bad == bad.min()).sum())
        name = f"column '{names[column]}'" if names else f"column {column}"
        raise BadInput(f"{name} of {where} is missing or not finite in {rows_text(rows)}; remove or fill them")


def check_sizes(X: Any, where: str, names: Sequence[str] = ()) -> None:
    """Raise BadInput for numbers too large to be squared and added up, with the first such column.

    >>> check_sizes(np.array([[1.0, 1e300]]), "X")  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    anyk.base.errors.BadInput: column 1 of X holds numbers such as 1e+300, and those above 1e+120 cannot be squared and
    added up; mark missing values as missing, or divide the column
    """
    values = X.data if is_sparse(X) else X
    high, low = (float(reduce(values, axis=None, initial=0)) for reduce in (np.fmax.reduce, np.fmin.reduce))
    if max(high, -low) <= LARGEST:
        return
    first = np.nonzero(np.abs(values) > LARGEST)
    column = int(X.indices[first[0][0]] if is_sparse(X) else first[1].min())
    name = f"column '{shown(names[column])}'" if len(names) else f"column {column}"
    raise BadInput(
        f"{name} of {where} holds numbers such as {max(high, -low):.6g}, and those above {LARGEST:g} cannot be squared "
        "and added up; mark missing values as missing, or divide the column"
    )


def check_complete(column: Array, where: str, remedy: str = "") -> None:
    """Raise BadInput if a value is missing or infinite."""
    if count := int(unusable_values(column).sum()):
        raise BadInput(f"{where} is missing or not finite in {rows_text(count)}; remove or fill them{remedy}")


def are_truths(column: Floats) -> bool:
    """Return whether all numbers in a column are 1 or 0, apart from missing ones."""
    parts = column[:100], column  # in most columns a number among the first is another
    return all(((part == 0.0) | (part == 1.0) | np.isnan(part)).all() for part in parts)


def truths_as_numbers(column: Array) -> Array:
    """Return a column of the words true and false, or without values, as 1, 0 and NaN; any other unchanged."""
    if column.dtype.kind == "f" or not {cell and cell.lower() for cell in column} <= {"true", "false", None}:
        return column
    return np.array([np.nan if cell is None else float(cell.lower() == "true") for cell in column])


def rows_text(count: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if count == 1 else f"{count:,} rows"


def _check_column(column: Column, cells: Array, where: str) -> Array:
    """Return the cells of a column, filled and of the column's kind."""
    if column.date:
        cells, _ = read_dates(cells, where, zoned=column.zoned)
    elif column.unit is not None:
        cells = read_numbers(cells, where, column.unit)[0]
    elif column.truth:
        cells = truths_as_numbers(cells)
    gaps = unusable_values(cells) if column.fill is None else missing_values(cells)
    if column.categories:
        if cells.dtype.kind == "f" and not gaps.all():
            raise BadInput(f"{where} holds numbers, but the model learned from text there; save it as text")
        cells = cells.astype(object)
    else:
        cells = _as_numbers(cells, gaps, where)
    if gaps.any():
        if column.fill is None:
            raise BadInput(
                f"{where} is missing or not finite in {rows_text(int(gaps.sum()))}; remove or fill them, or train "
                "with fill=median"
            )
        cells = np.where(gaps, np.array(column.fill, cells.dtype), cells)
    if cells.dtype.kind == "f" and (infinite := int(np.isinf(cells).sum())):
        raise BadInput(f"{where} is infinite in {rows_text(infinite)}; only missing values can be filled")
    return cells


def _as_numbers(cells: Array, gaps: Flags, where: str) -> Array:
    """Return cells, of which ``gaps`` have no value, as numbers; raise BadInput for one that is none."""
    if cells.dtype.kind == "f":
        return cells
    word = next((word for word in cells[~gaps].tolist() if not is_number(word)), None)
    if word is not None:
        raise BadInput(f"{where} holds text, such as '{shown(word)}', but the model learned from numbers there")
    return np.array([np.nan if gap else float(cell) for cell, gap in zip(cells, gaps, strict=True)])
