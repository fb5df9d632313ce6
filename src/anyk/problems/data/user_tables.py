"""The columns of a user's table: which is the target, and what each of the others is learned from as."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base.arrays import Array
from anyk.base.errors import BadInput
from anyk.problems.data.dataset import (
    MOST_CLASSES,
    split_rows,
)
from anyk.problems.data.file_content import FileContent, FileSettings
from anyk.tables import (
    Column,
    Encoding,
    Kind,
    Settings,
    Table,
    check_categories,
    check_complete,
    check_long_numbers,
    column_hint,
    counts_rows,
    is_code,
    is_number,
    like_an_identifier,
    like_dates_in_digits,
    like_thousands,
    listed,
    long_numbers,
    merged,
    missing_values,
    perhaps_missing,
    read_dates,
    read_numbers,
    rows_text,
    shown,
    truths_as_numbers,
    without_missing,
)

_LABELS = ("target", "label", "y")  # the usual names of the column to predict
# how a column without a name, such as pandas' index, is called after it is read or written again
_UNNAMED = re.compile(r"column \d+|Unnamed: \d+(\.\d+)*|__index_level_\d+__")


def content_of(table: Table, file: Path, settings: FileSettings, *remarks: str) -> FileContent:
    """Return the inputs and targets of a table; text columns are one-hot encoded."""
    names = table.names
    if len(names) < 2 or not table.rows:
        raise BadInput(
            f"{shown(file)} has {rows_text(table.rows)} and {len(names)} column{'s' * (len(names) != 1)} (separated by "
            "commas); a target, a feature and two rows are the least"
        )
    target, how = target_column(names, file, settings.target)
    where = f"column '{shown(names[target])}' of {shown(file)}"
    kinds = _kinds(table, file, settings.cells)
    features, left_out = _features(table, file, settings, target)
    if settings.target is None:
        how += _other_label([names[i] for i in features])
    remarks = (f"label '{shown(names[target])}'{how}", *remarks, *left_out)
    table.check_readable(
        [i for i in (target, *features) if kinds.get(i) != "date" or table.columns[i].dtype.kind == "f"], file
    )
    y = _target(
        without_missing(table.columns[target], settings.cells.missing),
        kinds.get(target),
        names[target],
        where,
        settings,
    )
    _notice_missing(shown(names[target]), y, file, settings, remedy="leave out these rows if it does")
    _notice_thousands(shown(names[target]), y, file, settings)
    described, values = [], []
    for i in features:
        column, cells = _read_column(table, i, kinds.get(i), file, settings)
        described.append(column)
        values.append(cells)
    remarks += tuple(_conversions(described))
    rows: Any = slice(None)
    if settings.fill is None:
        _check_numbers_complete(described, values, file)
    else:
        rows = split_rows(table.rows, settings.test, settings.seed)[0]
        numbers = [cells for cells in values if cells.dtype.kind == "f"]
        if gaps := sum(int(missing_values(cells).sum()) for cells in numbers):
            remarks += (f"{gaps:,} missing value{'s' * (gaps != 1)} filled in by {settings.fill}",)
    columns = Encoding.fitted(described, values, rows, settings.fill, shown(file))
    encoding = Encoding(
        columns,
        table.header,
        label=names[target],
        missing=settings.cells.missing,
        file_columns=0 if table.header else len(names),
    )
    plain_columns = tuple(replace(column, date=False, unit=None) for column in columns)  # as values are read already
    for i, column, cells in zip(features, columns, values, strict=True):
        if column.categories:
            gaps = int(missing_values(cells).sum())
            settings.say(
                f"one-hot encoding the text column '{shown(column.name)}' of {file.name}: {len(column.categories)} "
                "different values" + f", one of them for {gaps:,} missing" * bool(gaps)
            )
        _notice(column, cells, table.columns[i], file, settings)
    X = replace(encoding, columns=plain_columns, missing=()).encode(values, shown(file))
    return FileContent(X, y, where, encoding=encoding, remarks=remarks)


def _kinds(table: Table, file: Path, cells: Settings) -> dict[int, Kind]:
    """Return how columns are to be read whose kind the user stated, by their places."""
    kinds: dict[int, Kind] = {}
    stated: tuple[tuple[str, Kind, Sequence[str]], ...] = (
        ("numbers", "number", cells.numbers),
        ("dates", "date", cells.dates),
        ("text", "text", cells.text),
    )
    for setting, kind, wanted in stated:
        for index in places_named(wanted, table.names, file, setting):
            if index in kinds:
                raise BadInput(f"column '{shown(table.names[index])}' is named by two of numbers, dates and text")
            kinds[index] = kind
    return kinds


def _conversions(columns: Sequence[Column]) -> Iterator[str]:
    """Yield a remark on each column that is converted to numbers."""
    for column in columns:
        if column.date:
            yield f"'{shown(column.name)}' as days since 1970-01-01"
        elif column.unit is not None:
            yield f"'{shown(column.name)}' as numbers" + f" (in '{shown(column.unit)}')" * bool(column.unit)


def _check_numbers_complete(columns: Sequence[Column], values: Sequence[Array], file: Path) -> None:
    for column, cells in zip(columns, values, strict=True):
        if cells.dtype.kind == "f":
            check_complete(cells, f"column '{shown(column.name)}' of {shown(file)}", " (fill=median)")


def _features(table: Table, file: Path, settings: FileSettings, target: int) -> tuple[list[int], list[str]]:
    """Return the places of the columns to learn from, and remarks on columns that are left out."""
    names, remarks = table.names, list[str]()
    dropped = places_named(settings.drop, names, file, "drop")
    chosen = places_named(settings.columns or (), names, file, "columns")
    _check_selection(names, target, dropped=dropped, chosen=chosen)
    if dropped:
        remarks.append(f"without {listed([names[i] for i in dropped])}")
    features = []
    for i in chosen if settings.columns else range(len(names)):
        if i == target or i in dropped:
            continue
        if table.header and i not in chosen and _UNNAMED.fullmatch(names[i]):
            if not counts_rows(table.columns[i]):
                raise BadInput(
                    f"column {i} of {shown(file)} has no name, as pandas writes its index, but is not one number for "
                    f"each row; drop={i} leaves it out, or give it a name"
                )
            remarks.append(f"row numbers in {'the first column' if i == 0 else f'column {i}'} left out")
            continue
        features.append(i)
    if not features:
        raise BadInput(f"{shown(file)} has no columns to learn from beside the target")
    _check_names_differ(names, (*features, target), file)
    return features, remarks


def _check_selection(names: Sequence[str], target: int, *, dropped: list[int], chosen: list[int]) -> None:
    """Raise BadInput if the settings drop and columns name the target, or a column both."""
    for setting, places in (("drop", dropped), ("columns", chosen)):
        if target in places:
            raise BadInput(f"column '{shown(names[target])}' is the target; leave it out of {setting}")
    if both := [names[i] for i in chosen if i in dropped]:
        raise BadInput(f"column '{shown(both[0])}' is named by columns and by drop; leave one out")


def _check_names_differ(names: Sequence[str], used: Sequence[int], file: Path) -> None:
    """Raise BadInput if two of the columns that are ``used`` have the same name."""
    used_names = [names[i] for i in used]
    if repeated := next((name for name in used_names if used_names.count(name) > 1), None):
        others = [i for i, name in enumerate(names) if name == repeated]
        raise BadInput(
            f"{shown(file)} has {len(others)} columns '{shown(repeated)}'; rename them, or leave all but one out by "
            f"number (drop={others[-1]})"
        )


def _target(y: Array, kind: Kind | None, name: str, where: str, settings: FileSettings) -> Array:
    """Return the targets as numbers, or as labels of text."""
    if kind == "date":
        y, _ = read_dates(y, where)
    elif kind == "number":
        y = read_numbers(y, where)[0]
    elif kind == "text" and y.dtype.kind == "f":
        raise BadInput(f"{where} has numbers in the file, not text; save them as text")
    check_complete(y, where)
    if y.dtype.kind != "O" or kind == "text":
        return y
    words = Counter(y.tolist())
    if all(map(is_number, words)):
        labels = np.array(list(map(float, words)))
        classes = settings.task in ("binary", "multiclass") or (
            settings.task == "auto" and len(words) <= max(2, min(MOST_CLASSES, len(y) / 2))
        )
        codes = any(map(is_code, words)) and settings.task != "regression"
        if not codes and not (classes and merged(labels)):
            return y.astype(float)
    if settings.task not in ("binary", "multiclass"):
        check_categories(words, where, name=name, row_of=_rows_of(y), target=True)
    return y


def _read_column(
    table: Table, index: int, kind: Kind | None, file: Path, settings: FileSettings
) -> tuple[Column, Array]:
    """Return the description of a column to learn from, and its values: numbers, or text with None if missing."""
    name = table.names[index]
    where = f"column '{shown(name)}' of {shown(file)}"
    cells = without_missing(table.columns[index], settings.cells.missing)
    if kind == "date":
        values, zoned = read_dates(cells, where)
        return Column(name, date=True, zoned=zoned), values
    if kind == "number":
        values, unit = read_numbers(cells, where)
        return Column(name, unit=unit), values
    if cells.dtype.kind == "f":
        if kind == "text":
            raise BadInput(f"{where} has numbers in the file, not text; save them as text")
        return Column(name), cells
    words = Counter(cell for cell in cells.tolist() if cell is not None)
    if kind != "text":
        values = truths_as_numbers(cells)
        if values.dtype.kind == "f":
            return Column(name), values
        if all(map(is_number, words)) and not any(map(is_code, words)):
            check_long_numbers(words, where, name)
            return Column(name), np.array([np.nan if cell is None else float(cell) for cell in cells])
    if kind != "text":
        check_categories(words, where, name=name, row_of=_rows_of(cells))
    return Column(name), cells


def _rows_of(cells: Array) -> Callable[[str], int]:
    """Return a function that returns the number of the first row with a word, from 1 below the header."""
    return lambda word: cells.tolist().index(word) + 1


def _notice(column: Column, cells: Array, raw: Array, file: Path, settings: FileSettings) -> None:
    """Report a column that is read in a way which its values put in doubt; ``raw``: its cells in the file."""
    name, remedy = shown(column.name), f"drop={shown(column.name)} leaves it out"
    if column.categories and all(is_number(word) for word in column.categories if word):
        code = next((word for word in column.categories if is_code(word)), None)
        if code is not None:
            settings.say(
                f"column '{name}' of {file.name} has codes such as '{shown(code)}', so its values are categories; "
                f"numbers={name} makes them numbers"
            )
    if column.date:
        return
    if column.unit is None and like_dates_in_digits(cells):
        settings.say(
            f"a guess: column '{name}' of {file.name} is learned from as numbers, although they look like dates, such "
            f"as {np.nanmax(cells):.0f}; dates={name} counts days, {remedy}"
        )
    elif column.unit is None and (like_an_identifier(cells) or (long_numbers(cells) and like_an_identifier(raw))):
        settings.say(
            f"a guess: column '{name}' of {file.name} is learned from, although nearly every row has another value, "
            f"like an identifier; {remedy}"
        )
    else:
        _notice_thousands(name, cells, file, settings)
    _notice_missing(name, cells, file, settings)


def _notice_thousands(name: str, cells: Array, file: Path, settings: FileSettings) -> None:
    """Report numbers whose decimal points may separate thousands."""
    if like_thousands(cells):
        settings.say(
            f"a guess: column '{name}' of {file.name} has decimal points, although its numbers look as if points "
            f"separated thousands, such as {np.nanmin(cells[cells % 1 != 0]):g}; write numbers without separators if so"
        )


def _notice_missing(name: str, cells: Array, file: Path, settings: FileSettings, *, remedy: str = "") -> None:
    """Report a number that is learned from although it may stand for a missing value; by default missing= says so."""
    if (number := perhaps_missing(cells)) is not None:
        rows = rows_text(int((cells == float(number)).sum()))
        settings.say(
            f"a guess: {number} in {rows} of column '{name}' of {file.name} is a number like others, although it may "
            f"stand for a missing value; {remedy or f'missing={number} says that it does'}"
        )


def places_named(wanted: Sequence[str], names: Sequence[str], file: Path | str, setting: str) -> list[int]:
    """Return the places of columns that a setting names, or numbers from 0; raise BadInput for unknown ones."""
    numbered = {str(i): i % len(names) for i in range(-len(names), len(names))}
    places = []
    for one in wanted:
        indices = [i for i, name in enumerate(names) if name == one]
        if len(indices) > 1:
            raise BadInput(
                f"{shown(file)} has {len(indices)} columns '{shown(one)}'; in {setting} give their numbers, "
                f"{' or '.join(map(str, indices))}"
            )
        if not indices and one in numbered:
            indices = [numbered[one]]
        if not indices:
            raise BadInput(f"{shown(file)} has no column '{shown(one)}' for {setting}; {column_hint(one, names)}")
        places += indices
    return list(dict.fromkeys(places))


def _other_label(features: Sequence[str]) -> str:
    """Return a remark on a column that is learned from, although its name is one of a label, too."""
    others = [name for name in features if name.lower() in _LABELS]
    return f" (column '{shown(others[0])}' is learned from; target= names another)" if others else ""


def target_column(names: Sequence[str], file: Path | str, target: str | None) -> tuple[int, str]:
    """Return the place of the target's column and, if it was chosen as the last, a remark."""
    if target is None:
        for wanted in _LABELS:
            if usual := [i for i, name in enumerate(names) if name.lower() == wanted]:
                if len(usual) > 1:
                    raise BadInput(
                        f"{shown(file)} has {len(usual)} columns '{shown(names[usual[0]])}'; give target as a number, "
                        f"{' or '.join(map(str, usual))}"
                    )
                return usual[0], ""
        return len(names) - 1, " (the last column; target= names another)"
    if target in names:
        if names.count(target) > 1:
            raise BadInput(
                f"{shown(file)} has {names.count(target)} columns '{shown(target)}'; give target as a number"
            )
        return names.index(target), ""
    try:
        index = int(target)
    except ValueError:
        raise BadInput(
            f"{shown(file)} has no column '{shown(target)}' for the target; {column_hint(target, names)}"
        ) from None
    if not -len(names) <= index < len(names):
        raise BadInput(
            f"{shown(file)} has {len(names)} columns, so target is a number from 0 to {len(names) - 1}, got {index}"
        )
    return index % len(names), ""
