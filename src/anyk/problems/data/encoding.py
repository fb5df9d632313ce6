"""How columns of a file become numbers: which ones, with which categories, and what stands for a missing value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.tables import Table, is_number, listed, shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Matrix: TypeAlias = "NDArray[np.float64] | csr_array[Any]"
Fill: TypeAlias = Literal["mean", "median"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file before it was encoded; one of text has one 0/1 column for each of its ``categories``.

    ``fill`` is put where a value is missing; None: that is refused.
    """

    name: str
    categories: tuple[str, ...] = ()
    fill: float | str | None = None


@dataclass(frozen=True, slots=True)
class Encoding:
    """The columns of ``X`` in the file that a model learns from; kept with the model, and applied to other files.

    ``columns``: those in order, empty where a file has none of its own (svmlight, a data set that is not a file).
    ``named``: their names are the file's, so that other files may have them in another order. ``base``: the number of a
    svmlight file's first column, 0 or 1. ``label``: the target's column. ``words``: the target's labels are text.
    """

    columns: tuple[Column, ...] = ()
    named: bool = False
    base: int | None = None
    label: str = ""
    words: bool = False

    @classmethod
    def fitted(
        cls, names: Sequence[str], values: Sequence[NDArray[Any]], rows: Any, fill: Fill | None, where: str
    ) -> tuple[Column, ...]:
        """The columns as they are to be encoded; ``rows``: those that may be learned from, by index.

        Categories are all there are; what is filled in is the mean or median, of text the most frequent value.
        """
        columns_read = []
        for name, column in zip(names, values, strict=True):
            place = f"column '{shown(name)}' of {where}"
            present = column[rows][~missing(column[rows])]
            if fill is not None and not len(present):
                raise BadInput(f"{place} has no value in the rows to learn from; leave it out")
            if column.dtype.kind == "f":
                filled = None if fill is None else float(np.mean(present) if fill == "mean" else np.median(present))
                columns_read.append(Column(name, (), filled))
                continue
            check_categories(Counter(column[~missing(column)].tolist()), place)
            categories = tuple(np.unique(column[~missing(column)]))
            usual = None
            if fill is not None:
                words, counts = np.unique(present, return_counts=True)
                usual = str(words[counts.argmax()])
            columns_read.append(Column(name, categories, usual))
        return tuple(columns_read)

    @property
    def width(self) -> int:
        """Columns of ``X``."""
        return sum(len(column.categories) or 1 for column in self.columns)

    @property
    def categorical(self) -> NDArray[np.bool_]:
        """Which columns of ``X`` stand for categories of text, shape (width,)."""
        return np.array(
            [bool(column.categories) for column in self.columns for _ in column.categories or (None,)], bool
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of ``X``: ``size``, ``colour=red``, …"""
        feature_names: list[str] = []
        for column in self.columns:
            feature_names += [f"{column.name}={one}" for one in column.categories] or [column.name]
        return tuple(feature_names)

    def places(self, names: Sequence[str], where: str) -> list[int]:
        """Return the places of the encoding's columns in a table with these columns: by name, or else by order.

        Raises :class:`~anyk.errors.BadInput` where one is missing.
        """
        if not self.named and len(names) == len(self.columns):
            return list(range(len(names)))
        there = defaultdict(list)
        for place, name in enumerate(names):
            there[name].append(place)
        positions, lacking = [], []
        for column in self.columns:
            if there[column.name]:
                positions.append(there[column.name].pop(0))
            else:
                lacking.append(column.name)
        twice = next((column.name for column in self.columns if there[column.name]), None)
        if twice is not None and not lacking:
            raise BadInput(
                f"{where} has more columns called '{shown(twice)}' than the model learned from; leave one under that "
                "name"
            )
        if lacking and not self.named:
            raise BadInput(
                f"{where} has {len(names)} columns, but the model learned from {len(self.columns)}, which have no names"
            )
        if lacking:
            near = get_close_matches(lacking[0], names, n=1)
            hint = f"did you mean '{shown(near[0])}'?" if near else f"its columns: {listed(names)}"
            several = f"the columns {listed(lacking)}" if len(lacking) > 1 else f"a column '{shown(lacking[0])}'"
            raise BadInput(f"{where} lacks {several}, which the model learned from; {hint}")
        return positions

    def text(self, names: Sequence[str]) -> set[int]:
        """Which of a table's columns are to be read as text; none where columns are missing."""
        try:
            positions = self.places(names, "")
        except BadInput:
            return set()
        return {place for place, column in zip(positions, self.columns, strict=True) if column.categories}

    def of_table(self, table: Table, where: str, tell: Callable[[str], None] | None) -> Matrix:
        """A table as the model's ``X``; see :meth:`encode`."""
        places = self.places(table.names, where)
        return self.encode([table.columns[place] for place in places], where, tell)

    def encode(self, values: Sequence[NDArray[Any]], where: str, tell: Callable[[str], None] | None = None) -> Matrix:
        """``X``, dense where all columns are numbers, else sparse; missing values are filled in.

        A category that was not known is none of them: its columns are all 0, which ``tell`` hears of. Raises
        :class:`~anyk.errors.BadInput` for missing values without a fill, infinite ones, text in a column of numbers and
        numbers in a column of text.
        """
        ready = [
            _checked(column, given, f"column '{shown(column.name)}' of {where}")
            for column, given in zip(self.columns, values, strict=True)
        ]
        if all(not column.categories for column in self.columns):
            return np.column_stack(ready)
        from scipy.sparse import csr_array, hstack

        blocks = []
        for column, given in zip(self.columns, ready, strict=True):
            if not column.categories:
                blocks.append(csr_array(given[:, None]))
                continue
            of = {word: code for code, word in enumerate(column.categories)}
            codes = np.array([of.get(word, -1) for word in given.tolist()], dtype=np.int64)
            has_category = codes >= 0
            if tell is not None and not has_category.all():
                _tell_unknown(column, given[~has_category], where, tell)
            ends = np.concatenate(([0], np.cumsum(has_category)))
            blocks.append(
                csr_array(
                    (np.ones(int(ends[-1])), codes[has_category], ends), shape=(len(given), len(column.categories))
                )
            )
        stacked: Matrix = hstack(blocks, format="csr")
        return stacked


def check_categories(words: Mapping[str, int], said: str) -> None:
    """Raise BadInput if ``words``, the values of column ``said`` with their counts, do not look like categories.

    They do not if all are numbers with commas, or if more than 50 and more than half of them differ.
    """
    with_commas = next((word for word in words if "," in word), None)
    if with_commas is not None and all(is_number(word.replace(",", "")) for word in words):
        raise BadInput(
            f"{said} holds numbers with commas, such as '{shown(with_commas)}', which would count as words; write "
            "numbers with a decimal point and without separators of thousands"
        )
    rows = sum(words.values())
    if len(words) > max(50, rows / 2):
        raise BadInput(
            f"{said} holds text with {len(words):,} different values in {rows_text(rows)}, such as "
            f"'{shown(next(iter(words)))}', too many to be categories; replace it by numbers (a date by days, say) or "
            "leave it out"
        )


def missing(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values are missing, as a mask: NaN, or None in a column of text."""
    if column.dtype.kind == "f":
        return np.asarray(np.isnan(column))
    return np.array([value is None for value in column.tolist()], dtype=bool)


def truths(column: NDArray[Any]) -> NDArray[Any]:
    """A column of text that says nothing but true and false as 1 and 0; any other as it is."""
    if column.dtype.kind == "f":
        return column
    words = {value.lower() for value in column.tolist() if value is not None}
    if not words or not words <= {"true", "false"}:
        return column
    return np.array([np.nan if value is None else float(value.lower() == "true") for value in column.tolist()])


def rows_text(count: int) -> str:
    """A number of rows in words."""
    return "1 row" if count == 1 else f"{count:,} rows"


def _checked(column: Column, given: NDArray[Any], said: str) -> NDArray[Any]:
    """A column's values, filled in and of the right kind."""
    absent = missing(given)
    if given.dtype.kind == "f":
        absent = absent | np.isinf(given) if column.fill is None else absent
    if column.categories and given.dtype.kind == "f":
        if not absent.all():
            raise BadInput(f"{said} holds numbers, but the model learned from text there; save it as text")
        given = np.full(len(given), None, dtype=object)
    elif not column.categories and given.dtype.kind != "f":
        given = truths(given)
        if given.dtype.kind != "f" and absent.all():
            given = np.full(len(given), np.nan)
        if given.dtype.kind != "f":
            words = [value for value in given.tolist() if value is not None]
            odd = next((value for value in words if not is_number(value)), words[0])
            raise BadInput(f"{said} holds text, such as '{shown(odd)}', but the model learned from numbers there")
    if absent.any():
        if column.fill is None:
            raise BadInput(
                f"{said} is missing or not finite in {rows_text(int(absent.sum()))}; remove or fill them, or train "
                "with fill=median"
            )
        given = given.copy()
        given[absent] = column.fill
    if given.dtype.kind == "f" and (bad := int(np.isinf(given).sum())):
        raise BadInput(f"{said} is infinite in {rows_text(bad)}; only missing values can be filled")
    return given


def _tell_unknown(column: Column, words: NDArray[Any], where: str, tell: Callable[[str], None]) -> None:
    some = ", ".join(f"'{shown(word)}'" for word in sorted(set(words.tolist()))[:3])
    tell(
        f"column '{shown(column.name)}' of {where} has values that the model has not seen, such as {some}, in "
        f"{rows_text(len(words))}; there it counts as none of those it knows"
    )
