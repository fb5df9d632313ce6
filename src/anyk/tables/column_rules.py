"""Rules by which the cells of a column are read: as numbers, dates, categories or missing values.

A rule that would have to guess refuses the column, and the sentence names the setting that decides.
"""

from __future__ import annotations

import re
import unicodedata
from calendar import day_abbr, day_name, month_abbr, month_name
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from anyk.base import Array, BadInput, Floats
from anyk.tables.cells import is_code, is_missing, is_number
from anyk.tables.input_files import shown

Kind: TypeAlias = Literal["number", "date", "text"]

_FEW = 20  # different values up to which numbers with different units may well be categories, such as 1st, 2nd, 3rd
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_LABEL = 2.0**53  # from here on neighbouring whole numbers can be one float64

# ------------------------------------------------------------------------------------------- dates

_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:[ap]\.?m\.?)?\s*(?:z|utc|gmt|[+-]\d{2}:?\d{0,2})?"
_DATES = re.compile(
    rf"""
    \d{{4}}(?P<a>[-/.])\d{{1,2}}(?:(?P=a)\d{{1,2}})?(?:[t\s]+{_TIME})?     # 2024-12-31 23:59, 2024/12/31, 2024-12
    | \d{{8}}t\d{{4,6}}(?:\.\d+)?(?:z|[+-]\d{{2}}:?\d{{0,2}})?             # 20241231T235959Z
    | \d{{1,2}}(?P<b>[-/.])\d{{1,2}}(?P=b)(?:\d{{4}}|\d{{2}})(?:[,t\s]+{_TIME})?  # 31/12/2024, 12-31-24
    | \d{{1,2}}/\d{{4}}                                                    # 12/2024
    | \d{{4}}[-\s]?q[1-4] | q[1-4][-\s]?\d{{4}} | \d{{4}}-?w\d{{2}}(?:-\d)?   # 2024-Q4, 2024-W52
    | {_TIME}                                                              # 23:59:59
    """,
    re.VERBOSE | re.IGNORECASE,
)
_DAY, _YEAR, _WORD = r"(?:0?[1-9]|[12]\d|3[01])\.?", r"(?:19|20)\d{2}", r"[^\W\d_]{3,10}\.?"
_IN_WORDS = re.compile(rf"{_DAY}[-\s]{_WORD}[-\s]{_YEAR}|{_WORD}\s{_DAY},?\s{_YEAR}")  # 31. Dezember 2024
_MONTHS = {name.lower() for names in (month_name, month_abbr) for name in names[1:]} | {"sept"}
_WEEKDAYS = {name.lower() for names in (day_name, day_abbr) for name in names}
_WORDS_OF_DATES = _MONTHS | _WEEKDAYS | {"am", "pm", "utc", "gmt", "z", "t", "st", "nd", "rd", "th", "of"}


def looks_like_a_date(cell: str) -> bool:
    """Return whether a cell has the form of a date or a time of day.

    >>> [looks_like_a_date(cell) for cell in ("2024-12-31", "31.12.24 8:00", "Dec 31, 2024", "10-20", "1.2.3", "Fri")]
    [True, True, True, False, False, False]
    """
    lowered = cell.strip().lower()
    if _DATES.fullmatch(lowered):
        return True
    if _IN_WORDS.fullmatch(lowered):
        return True
    words = re.findall(r"[^\W\d_]+", lowered)
    return (
        bool(words)
        and all(word in _WORDS_OF_DATES for word in words)
        and any(word in _MONTHS for word in words)
        and any(sign.isdigit() for sign in lowered)
    )


def days(cell: str) -> float:
    """Return the days from 1970-01-01 (UTC) to an ISO date, with or without a time; raise ValueError for other text.

    >>> days("1970-01-02"), days("19700103T120000"), days("1970-01-02T02:00+02:00")
    (1.0, 2.5, 1.0)
    """
    moment = datetime.fromisoformat(cell.strip())
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds() / 86_400


# ------------------------------------------------------------------------------------------- numbers with a unit

_SEPARATED = re.compile(r"\s*[+-]?(?:\d{1,3}(?:[.,'\u00a0\u202f ]\d{3})+(?:[.,]\d+)?|\d*,\d+)\s*")
_CURRENCIES = set(re.findall("...", "USDEURGBPJPYCHFCNYINRAUDCADNZDSEKNOKDKKPLNCZKHUFBRLRUBKRWMXNZARTRYSGDHKD"))
_MARKED = re.compile(
    r"\s*(?P<sign>[+-]?)\s*(?P<before>[^\d\s+\-.,()]{0,3})\s*"
    r"(?P<inner>[+-]?)(?P<number>(?:[1-9]\d{0,2}(?:[,'\u00a0\u202f ]\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
    r"\s*(?P<after>[^\d]{0,12}?)\s*"
)


def marked_number(cell: str) -> tuple[float, str] | None:
    """Return a number and the sign or unit beside it, or None.

    Commas, spaces and apostrophes may separate thousands, and a number in brackets is negative.

    >>> [marked_number(cell) for cell in ("$1,200.50", "45 %", "-3kg", "12", "1,5", "A12")]
    [(1200.5, '$'), (45.0, '%'), (-3.0, 'kg'), (12.0, ''), None, None]
    """
    stripped = cell.strip()
    is_in_brackets = stripped.startswith("(") and stripped.endswith(")")  # as accounts write what is owed
    match = _MARKED.fullmatch(stripped[1:-1] if is_in_brackets else cell)
    if match is None or not _is_unit(match["before"], match["after"]):
        return None
    signs = match["sign"] + match["inner"] + "-" * is_in_brackets
    if len(signs) > 1:
        return None
    return float(signs + re.sub(r"[,'\u00a0\u202f ]", "", match["number"])), match["before"] + match["after"].strip()


def _is_unit(before: str, after: str) -> bool:
    """Return whether what stands beside a number can be its currency or unit, or is nothing."""
    if before and before.upper() not in _CURRENCIES and not all(unicodedata.category(sign) == "Sc" for sign in before):
        return False
    if re.match(r"[-_#]", after) or "_" in after:
        return False
    return not after or any(sign.isalpha() or unicodedata.category(sign) in ("Sc", "So", "Po") for sign in after)


# ------------------------------------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a source by which its columns are read; columns are named, or numbered from 0.

    ``missing``: further words (or numbers) that stand for missing values. ``numbers``, ``dates``, ``text``: columns of
    numbers, perhaps with a unit and separators of thousands, of ISO dates, and of categories.
    """

    missing: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    text: tuple[str, ...] = ()


def without_missing(cells: Array, missing: Iterable[str]) -> Array:
    """Return cells with those that stand for missing values, also the words or numbers in ``missing``, as None or NaN.

    >>> without_missing(np.array(["a", "NA", "?"], dtype=object), ["?"]).tolist()
    ['a', None, None]
    """
    words = {word.strip().lower() for word in missing}
    numbers = {float(word) for word in words if is_number(word)}
    if cells.dtype.kind == "f":
        return np.where(np.isin(cells, list(numbers)), np.nan, cells) if numbers else cells

    def stands_for_none(cell: str | None) -> bool:
        if cell is None or is_missing(cell) or cell.strip().lower() in words:
            return True
        return bool(numbers) and is_number(cell) and float(cell) in numbers  # 99.0 is 99 in any column

    return _objects(None if stands_for_none(cell) else cell for cell in cells)


def read_dates(cells: Array, where: str, *, zoned: bool | None = None) -> tuple[Floats, bool]:
    """Return ISO dates as days since 1970-01-01, NaN if missing, and whether they have a time zone.

    ``zoned``: whether they must have one. Raises BadInput for any other cell.
    """
    values = np.full(len(cells), np.nan)
    zones: dict[bool, str] = {}
    for row, cell in enumerate(cells.tolist()):
        if cell is None or cell != cell:
            continue
        word = cell
        if isinstance(cell, float):
            word = f"{cell:.0f}" if cell == np.floor(cell) else repr(cell)  # 20241231, but not 20241231.7
        try:
            values[row] = days(word)
            zones.setdefault(datetime.fromisoformat(word.strip()).tzinfo is not None, word)
        except (ValueError, OverflowError):
            raise BadInput(
                f"{where} should hold dates, but '{shown(word)}' in row {row + 1} is no ISO date, such as 2024-12-31 "
                "or 2024-12-31T23:59+01:00, whose day and month cannot be confused; write dates so, or leave the "
                "column out"
            ) from None
    if len(zones) == 2:
        raise BadInput(
            f"{where} has dates with a time zone ('{shown(zones[True])}') and without ('{shown(zones[False])}'); give "
            "all or none a time zone"
        )
    if zoned is not None and (not zoned) in zones:
        here, before = ("without", "with") if zoned else ("with", "without")
        raise BadInput(
            f"{where} has dates {here} a time zone, such as '{shown(zones[not zoned])}', but the model learned from "
            f"dates {before}; write them as there"
        )
    return values, True in zones


def read_numbers(cells: Array, where: str, unit: str | None = None) -> tuple[Floats, str]:
    """Return numbers, NaN if missing, and the unit beside all of them; ``unit``: the one that they must have.

    Raises BadInput for a cell that is no number, or has another unit.
    """
    if cells.dtype.kind == "f":
        cells = _objects(None if np.isnan(cell) else repr(cell) for cell in cells.tolist())
    values = np.full(len(cells), np.nan)
    numbers: dict[str, float] = {}
    for row, cell in enumerate(cells.tolist()):
        if cell is None:
            continue
        if cell not in numbers:
            numbers[cell], unit_here = _number_and_unit(cell, where, row)
            if unit is None:
                unit = unit_here
            if unit_here != unit:
                others = f"'{unit}'" if unit else "no unit"
                raise BadInput(
                    f"{where} has numbers with {others}, but '{shown(cell)}' in row {row + 1}; convert them to one unit"
                )
        values[row] = numbers[cell]
    return values, unit or ""


def _number_and_unit(cell: str, where: str, row: int) -> tuple[float, str]:
    number = (float(cell), "") if is_number(cell) else marked_number(cell)
    if number is not None:
        return number
    if "," in cell and _SEPARATED.fullmatch(cell):
        raise BadInput(
            f"{where} should hold numbers, but '{shown(cell)}' in row {row + 1} has a decimal comma; write "
            "numbers with a decimal point"
        )
    raise BadInput(
        f"{where} should hold numbers, but '{shown(cell)}' in row {row + 1} is none; give "
        f"missing={shown(cell)} if it stands for a missing value"
    )


def check_categories(
    words: Mapping[str, int],
    where: str,
    *,
    name: str | None = None,
    row_of: Callable[[str], int] | None = None,
    target: bool = False,
) -> None:
    """Raise BadInput if the values of a column, with their counts, may not be categories.

    This holds if they are mostly dates, or numbers, perhaps with a unit, or if more than 50 values, and more than half
    of all, are different. ``name``: the column's for a remedy, None if no setting reads it in another way; ``row_of``:
    a function that returns the number of a word's first row; ``target``: whether it is the column to predict.
    """
    column = _TextColumn(words, where, name, row_of, target)
    column.refuse_dates()
    column.refuse_separators()
    column.refuse_units()
    column.refuse_mixture()
    column.refuse_variety()


@dataclass(frozen=True)
class _TextColumn:
    """A column whose values may be categories: its words with their counts, and what sentences say of it.

    The arguments are those of :func:`check_categories`.
    """

    words: Mapping[str, int]
    where: str
    name: str | None
    row_of: Callable[[str], int] | None
    target: bool

    @cached_property
    def numbers(self) -> set[str]:
        return {word for word in self.words if is_number(word) and not is_code(word)}

    @cached_property
    def marked(self) -> dict[str, tuple[float, str]]:
        """The numbers and units of words that are numbers with a sign or unit, or codes."""
        numbers = {word: marked_number(word) for word in self.words if word not in self.numbers}
        return {word: number for word, number in numbers.items() if number is not None}

    def remedy(self, setting: str = "") -> str:
        return _remedy(self.name, setting, target=self.target)

    def example(self, word: str) -> str:
        """Return a word in quotes, with its row if that can be told."""
        return f"'{shown(word)}'" + ("" if self.row_of is None else f" in row {self.row_of(word)}")

    def refuse_dates(self) -> None:
        dates = [word for word in self.words if looks_like_a_date(word)]
        if 2 * len(dates) <= len(self.words):
            return
        other = next((word for word in self.words if word not in set(dates)), None)
        also = "" if other is None else f" and other text, such as {self.example(other)}"
        counted = "dates counts the days of ISO dates" if all(map(_is_iso, dates)) else ""
        raise BadInput(
            f"{self.where} holds dates or times, such as {self.example(dates[0])}{also}, which are neither numbers nor "
            f"categories; {self.remedy(counted)}"
        )

    def refuse_separators(self) -> None:
        """Refuse numbers with decimal commas or separators of thousands."""
        separated = next((word for word in self.words if "," in word or not is_number(word)), None)
        if separated is None or not all(is_number(word) or _SEPARATED.fullmatch(word) for word in self.words):
            return
        commas = "commas" if "," in separated else "separators of thousands"
        readable = all(word in self.numbers or word in self.marked for word in self.words)
        raise BadInput(
            f"{self.where} holds numbers with {commas}, such as '{shown(separated)}', which would count as words; "
            "write numbers with a decimal point and without separators of thousands"
            + (f" (numbers={shown(self.name)} reads separators of thousands)" if self.name and readable else "")
        )

    def refuse_units(self) -> None:
        """Refuse words most of which are numbers, some with units; many units may well be categories' names."""
        with_units = [word for word in self.marked if not is_code(word)]
        if not with_units or 2 * (len(self.numbers) + len(with_units)) <= len(self.words):
            return
        units = Counter(self.marked[word][1] for word in with_units)
        one_unit = 2 * max(units.values()) >= len(with_units)
        few_units = len(self.words) > _FEW and len(units) <= 5
        if one_unit or few_units:
            raise BadInput(
                f"{self.where} holds numbers with units or other signs, such as {self.example(with_units[0])}, which "
                f"would count as words; {self.remedy('numbers reads numbers that all have the same unit')}"
            )

    def refuse_mixture(self) -> None:
        """Refuse numbers, most of the words or of the cells, beside other text."""
        if not self.numbers or all(map(is_number, self.words)):  # of numbers alone, codes such as 007 make codes of all
            return
        others = len(self.words) - len(self.numbers)
        cells = sum(self.words[word] for word in self.numbers)
        if len(self.numbers) <= others and 2 * cells <= sum(self.words.values()):
            return
        word = next(word for word in self.words if word not in self.numbers)
        missing = f"give missing={shown(word)} if it stands for a missing value; " if self.name else ""
        if self.target:
            missing = "leave out its row if its target is unknown; "
        raise BadInput(f"{self.where} holds numbers, but {self.example(word)} is none; {missing}{self.remedy()}")

    def refuse_variety(self) -> None:
        """Refuse more than 50 words that are more than half of the cells."""
        rows = sum(self.words.values())
        if len(self.words) <= max(50, rows / 2):
            return
        plural = "1 row" if rows == 1 else f"{rows:,} rows"
        numbers = all(map(is_number, self.words))
        codes = f"; numbers={shown(self.name)} reads numbers" if self.name and numbers else ""
        raise BadInput(
            f"{self.where} holds text with {len(self.words):,} different values in {plural}, such as "
            f"'{shown(next(iter(self.words)))}', too many to be categories; replace it by numbers or leave it out"
            + (f" (drop={shown(self.name)}){codes}" if self.name else "")
        )


def _remedy(name: str | None, setting: str = "", *, target: bool = False) -> str:
    """Return the settings that decide how a column is read; ``setting``: one more, and what it does."""
    if name is None:
        return "convert the column, or leave it out"
    key, _, effect = setting.partition(" ")
    ways = [f"{key}={shown(name)} {effect}"] if setting else []
    ways += [f"text={shown(name)} makes each value a {'class' if target else 'category'}"]
    return ", ".join([*ways, "target= names another column" if target else f"drop={shown(name)} leaves the column out"])


def _is_iso(cell: str) -> bool:
    try:
        days(cell)
    except (ValueError, OverflowError):
        return False
    return True


def _objects(cells: Iterable[object]) -> Array:
    values = list(cells)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def check_long_numbers(words: Iterable[str], where: str, name: str) -> None:
    """Raise BadInput if different whole numbers in a column, such as identifiers, are the same float64."""
    written: dict[float, str] = {}
    for word in words:
        if _WHOLE.fullmatch(word.strip()):
            other = written.setdefault(float(word), word)
            if Decimal(other) != Decimal(word):  # int() refuses more than 4,300 digits
                raise BadInput(
                    f"{where} has whole numbers too long for float64, such as '{shown(other)}' and '{shown(word)}', "
                    f"which would be equal; {_remedy(name)}, numbers={shown(name)} reads them all the same"
                )


# ------------------------------------------------------------------------------------------- remarks

_NINES = re.compile("-?99+")
_SEVERAL = 5  # other values of a column in which any number far from them may stand for a missing value


def like_an_identifier(column: Array) -> bool:
    """Return whether the values of a column, whole numbers or text, nearly all differ in 20 rows or more."""
    if len(column) < 20:
        return False
    if column.dtype.kind == "f":
        present = column[np.isfinite(column)]
        if not len(present) or (present != np.floor(present)).any():
            return False
        different = len(np.unique(present))
    else:
        different = len({value for value in column.tolist() if value is not None})
    return different >= 0.95 * len(column)


def like_dates_in_digits(column: Array) -> bool:
    """Return whether a column of numbers has the form 20241231 throughout."""
    if column.dtype.kind != "f":
        return False
    present = np.unique(column[np.isfinite(column)])
    if len(present) < 2 or present[0] < 19_000_101 or present[-1] > 21_001_231 or (present != np.floor(present)).any():
        return False
    try:
        for value in present.tolist():
            datetime.fromisoformat(f"{value:.0f}")
    except ValueError:
        return False
    return True


def like_thousands(column: Array) -> bool:
    """Return whether the points in a column of numbers may separate thousands, as in 1.234 beside 999.

    >>> like_thousands(np.array([1.234, 12.345, 999.0])), like_thousands(np.array([0.125, 12.345, 999.0]))
    (True, False)
    """
    if column.dtype.kind != "f":
        return False
    sizes = np.abs(column[np.isfinite(column) & (column != 0)])
    is_whole = sizes == np.floor(sizes)
    if not 0.05 * len(sizes) < is_whole.sum() < len(sizes) or (sizes < 1).any() or (sizes >= 1000).any():
        return False
    thousandths = sizes[~is_whole] * 1000
    exact = np.abs(thousandths - np.round(thousandths)) < 1e-6
    three = np.round(thousandths) % 10 != 0  # three decimals, none of which ends in 0
    return bool(exact.all() and 2 * three.sum() > len(three))


def perhaps_missing(column: Array) -> str | None:
    """Return a number such as -999 that occurs again and again, far from all others; None if there is none.

    Far is farther than the others are from each other; -1 below positive numbers is far in any case. Numbers that do
    not end in nines count in columns of at least six different values only.

    >>> perhaps_missing(np.array([1.5, -999.0, 2.5, -999.0])), perhaps_missing(np.array([98.0, 99.0, 99.0, 97.0]))
    ('-999', None)
    """
    if column.dtype.kind != "f":
        return None
    values, counts = np.unique(column[np.isfinite(column)], return_counts=True)
    if len(values) < 3:
        return None
    for value, count, others in ((values[0], counts[0], values[1:]), (values[-1], counts[-1], values[:-1])):
        apart = np.abs(others - value).min() > others[-1] - others[0] or (value == -1.0 and others[0] > 0.0)
        number = f"{value:.0f}" if value == np.floor(value) and abs(value) < _LABEL else repr(float(value))
        usual = _NINES.fullmatch(number) is not None
        if count > 1 and apart and (usual or (len(others) >= _SEVERAL and 2 * count <= counts.sum())):
            return number
    return None


def counts_rows(column: Array) -> bool:
    """Return whether a column has a different whole number in each row, as pandas' index has."""
    numbers = column.dtype.kind == "f" and len(column) > 1 and bool((column == np.floor(column)).all())
    return numbers and len(np.unique(column)) == len(column)


def long_numbers(column: Array) -> bool:
    """Return whether a column has numbers so large that different whole numbers can be one float64."""
    return column.dtype.kind == "f" and bool(np.nanmax(np.abs(column), initial=0.0) >= _LABEL)


def merged(labels: Array) -> bool:
    """Return whether some labels are so large that different ones could be the same number."""
    return bool(np.abs(labels).max(initial=0.0) >= _LABEL)
