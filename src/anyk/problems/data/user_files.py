"""Data from a user's own file: CSV, Parquet, svmlight or npz."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.problems.base import Tell
from anyk.problems.data.dataset import (
    MOST_CLASSES,
    Dataset,
    Fraction,
    assemble,
    read_target,
    sources,
    split_rows,
)
from anyk.tables import (
    Column,
    Encoding,
    Fill,
    Kind,
    Limit,
    Matrix,
    Settings,
    Table,
    check_categories,
    check_complete,
    check_finite,
    check_input_file,
    check_long_numbers,
    column_hint,
    counts_rows,
    is_code,
    is_number,
    like_an_identifier,
    like_dates_in_digits,
    like_thousands,
    limit,
    listed,
    long_numbers,
    merged,
    missing_values,
    open_binary,
    perhaps_missing,
    read_csv,
    read_dates,
    read_npz,
    read_numbers,
    read_parquet,
    reading,
    rows_text,
    shown,
    truths_as_numbers,
    without_missing,
)

_LABELS = ("target", "label", "y")  # the usual names of the column to predict
# how a column without a name, such as pandas' index, is called after it is read or written again
_UNNAMED = re.compile(r"column \d+|Unnamed: \d+(\.\d+)*|__index_level_\d+__")


@dataclass(frozen=True, slots=True)
class _FileSettings:
    """The settings with which a file is read."""

    target: str | None
    task: str
    header: bool | None
    allowed: Limit
    progress: Tell | None
    fill: Fill | None
    test: float
    seed: int
    cells: Settings
    drop: tuple[str, ...]
    columns: tuple[str, ...] | None

    def say(self, sentence: str) -> None:
        """Report how something was read."""
        if self.progress is not None:
            self.progress(sentence)


@dataclass(frozen=True, slots=True)
class _FileContent:
    """The rows of a file.

    ``y``: numbers or text, of the training rows and then of separate test rows, ``X_test``, if the file has any.
    ``target``: the name of ``y`` in messages.
    """

    X: Matrix
    y: Array
    target: str
    X_test: Matrix | None = None
    encoding: Encoding = field(default_factory=Encoding)
    remarks: tuple[str, ...] = ()  # how the file was read, for the summary


@sources.register("file")
@typed
def from_file(
    *,
    target: str | None = None,
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto",
    header: Literal["auto", "yes", "no"] = "auto",
    columns: tuple[str, ...] | None = None,
    drop: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
    dates: tuple[str, ...] = (),
    text: tuple[str, ...] = (),
    missing: str = "",
    fill: Fill | None = None,
    intercept: bool = True,
    test: Fraction = 0.2,
    seed: int = 0,
    max_gb: float | None = None,
    format: Literal["auto", "csv", "parquet", "svmlight", "npz"] = "auto",
    file: Path,
    progress: Tell | None = None,
) -> Dataset:
    """Your own CSV, Parquet, svmlight or npz file, recognised by its extension or ``format`` (needs --data-file).

    CSV (``.csv``, also ``.gz`` or ``.bz2``) and Parquet: ``target`` is the target's column, by name or by number (from
    0; -1 is the last), by default the column called target, label or y, else the last. ``header``: whether the first
    row of a CSV file contains the columns' names; ``auto`` detects this and refuses an ambiguous row. Text columns are
    one-hot encoded, which makes ``X`` sparse. An unnamed column with row numbers is omitted. svmlight (``.svm``,
    ``.svmlight``, ``.libsvm``, also ``.gz`` or ``.bz2``): sparse. npz: arrays ``X`` and ``y``; if the file also has
    arrays ``X_test`` and ``y_test``, these are the test rows and ``test`` is not used.

    Of CSV and Parquet: ``columns``: those to learn from, a/b/c by name or number, by default all; ``drop``: those to
    leave out. Columns of dates, of numbers with units, and of numbers and text together are refused unless a setting
    decides: ``dates`` names columns of ISO dates, which become days; ``numbers`` columns of numbers that all have the
    same unit, perhaps with separators of thousands; ``text`` columns whose values are categories. ``missing``: words
    that stand for missing values beside empty cells, NA, N/A, NaN and null, separated by ``|``.

    ``fill``: missing numbers are replaced by the ``mean`` or ``median`` of their column's training rows, by default
    they are refused. Missing text is a category of its own. Fills are stored with the model.

    The model gets an intercept unless ``intercept=false``. With ``task=auto`` a target of two values is binary, one of
    text or a few integers multiclass, any other regression. ``progress`` receives a sentence on how the file was read.
    ``max_gb`` limits the memory for the file's contents, by default 1 GB or 8 times its size, whichever is more. Raises
    BadInput for a file that cannot be used, with the reason.
    """
    stated = None if format == "auto" else format
    extension = extension_of(file, stated)
    reader = _READERS[extension]
    svmlight = reader is _svmlight
    cells = Settings(tuple(missing.split("|")) if missing else (), numbers, dates, text)
    of_tables = {"target": target, "columns": columns, "drop": drop, "numbers": numbers, "dates": dates, "text": text}
    _check_formats(file, extension, of_tables | {"missing": missing}, header)
    if fill is not None and svmlight:
        raise BadInput(f"fill={fill} is for CSV, Parquet and npz; what {shown(file)} leaves out is 0, not missing")
    has_names = None if header == "auto" else header == "yes"
    settings = _FileSettings(
        target=target,
        task=task,
        header=has_names,
        allowed=limit(file, max_gb),
        progress=progress,
        fill=fill,
        test=test,
        seed=seed,
        cells=cells,
        drop=drop,
        columns=columns,
    )
    content = reader(file, settings)
    y, task_read, classes = read_target(content.y, task, content.target)
    data = assemble(content.X, y, task_read, classes, test=test, seed=seed, X_test=content.X_test)
    among = f" ({listed(classes)})" if classes else ""
    width = data.X_train.shape[1]
    wide = f"{width:,} column{'s' * (width != 1)}" + " and an intercept" * intercept
    rows = f"{file.name}: {rows_text(len(y))}"
    summary = ", ".join([rows, wide, f"task {task_read}{among}", *content.remarks])
    if progress is not None:
        progress(summary)
    if task == "auto" and task_read == "multiclass" and content.y.dtype.kind in "fiub" and progress is not None:
        progress(
            f"a guess: the {len(classes)} different whole numbers in {content.target} are classes; task=regression "
            "predicts numbers"
        )
    encoding = replace(content.encoding, words=content.y.dtype.kind not in "fiub", format=stated)
    standardize = intercept and not svmlight
    return replace(data, intercept=intercept, standardize=standardize, encoding=encoding, summary=summary)


def _check_formats(file: Path, extension: str, of_tables: dict[str, str | tuple[str, ...] | None], header: str) -> None:
    """Raise BadInput for a setting ``of_tables``, of CSV and Parquet, or ``header``, of CSV, with another format."""
    reader, refused = _READERS[extension], ""
    name, value = next(((name, value) for name, value in of_tables.items() if value), ("", None))
    if value and reader not in (_csv, _parquet):
        refused = f"{name}={value if isinstance(value, str) else '/'.join(value)} is for CSV and Parquet files"
    elif header != "auto" and reader is not _csv:
        refused = f"header={header} is for CSV files"
    if refused:
        raise BadInput(f"{refused}, but {shown(file)} is {extension[1:]}, which names its own; drop it")


def extension_of(file: Path, stated: str | None = None, *, otherwise: str | None = None) -> str:
    """Return the extension by which an existing file is read, without .gz or .bz2; BadInput for an unknown one.

    ``stated``: the file's format (csv, parquet, svmlight or npz), whatever its extension; ``otherwise``: if its
    extension is unknown.
    """
    check_input_file(file)
    if stated is not None:
        return f".{stated}"
    name = file.name.lower()
    extension = Path(name.removesuffix(".gz").removesuffix(".bz2")).suffix
    if extension not in _READERS or (extension in {".parquet", ".npz"} and not name.endswith(extension)):
        if otherwise is not None:
            return f".{otherwise}"
        raise BadInput(
            f"the extension of {shown(file)} is not that of a known format; known are .csv, .svm, .svmlight, .libsvm "
            "(each also .gz or .bz2), .parquet and .npz; format=csv, parquet, svmlight or npz states it"
        )
    return extension


def _svmlight(file: Path, settings: _FileSettings) -> _FileContent:
    X, y, base = read_svmlight(file, settings.allowed)
    check_finite(y[:, None], shown(file), ["the target"])
    return _FileContent(X, y, f"the target of {shown(file)}", encoding=Encoding(base=base))


def read_svmlight(file: Path, allowed: Limit, base: int | None = None) -> tuple[Matrix, Floats, int]:
    """Return ``X``, targets and the first column's number: ``base``, by default 0 if column 0 has entries, else 1."""
    from sklearn.datasets import load_svmlight_file

    with reading(file, "svmlight"), open_binary(file, allowed) as binary:
        X, y = load_svmlight_file(binary, zero_based=True)
    if not X.shape[0]:
        raise BadInput(f"{shown(file)} is empty")
    allowed.check(8.0 * X.shape[1])  # a model has a weight for every column up to the last
    X = X.tocsr()
    first = int(X.indices.min()) if X.nnz else 0
    if base == 1 and X.nnz and not first:
        raise BadInput(f"{shown(file)} has a column 0, but the columns that the model learned from begin with 1")
    base = min(first, 1) if base is None else base
    X = X[:, base:]
    check_finite(X, shown(file))
    return X, y, base


def _npz(file: Path, settings: _FileSettings) -> _FileContent:
    arrays, names = read_npz(file, settings.allowed, ("X", "y", "X_test", "y_test"))
    if not {"X", "y"} <= set(arrays) or ("X_test" in arrays) != ("y_test" in arrays):
        raise BadInput(
            f"{shown(file)} holds {listed(names) or 'nothing'}, but needs the arrays X and y, and may hold both X_test "
            "and y_test"
        )
    X, y = _npz_rows(file, arrays, "X", "y", settings.fill)
    X_test: Any = None
    if "X_test" in arrays:
        X_test, y_test = _npz_rows(file, arrays, "X_test", "y_test", settings.fill)
        if X_test.shape[1] != X.shape[1]:
            raise BadInput(
                f"X of {shown(file)} has {X.shape[1]} columns but X_test has {X_test.shape[1]}; they must agree"
            )
        if y_test.dtype.kind != y.dtype.kind:
            raise BadInput(f"one of y and y_test in {shown(file)} is text and the other numbers; they must agree")
        y = np.concatenate([y, y_test])
    encoding, where = Encoding(), f"X in {shown(file)}"
    if settings.fill is not None:
        columns = [f"column {i}" for i in range(X.shape[1])]
        rows = split_rows(len(X), settings.test, settings.seed)[0] if X_test is None else slice(None)
        described = [Column(name) for name in columns]
        encoding = Encoding(Encoding.fitted(described, list(X.T), rows, settings.fill, where))
        X = encoding.encode(list(X.T), where)
        X_test = None if X_test is None else encoding.encode(list(X_test.T), f"X_test in {shown(file)}")
    return _FileContent(X, y, f"array 'y' of {shown(file)}", X_test, encoding)


def _npz_rows(file: Path, arrays: dict[str, Array], first: str, second: str, fill: Fill | None) -> tuple[Matrix, Array]:
    """Return the inputs, shape (rows, columns), and targets, shape (rows,), in the arrays of these names."""
    for name, kinds, dimensions, form in (
        (first, "biuf", 2, "a table of numbers"),
        (second, "biufU", 1, "one column of numbers or text"),
    ):
        shape, dtype = arrays[name].shape, arrays[name].dtype
        if dtype.kind not in kinds or len(shape) != dimensions:
            raise BadInput(f"array '{name}' of {shown(file)} should be {form}, got {dtype} of shape {shape}")
    X, y = arrays[first], arrays[second]
    if y.dtype.kind in "iu" and merged(y.astype(float)):
        y = y.astype(str)  # labels that float64 could not tell apart
    if len(X) != len(y):
        raise BadInput(f"{first} of {shown(file)} has {rows_text(len(X))} but {second} has {len(y)}; they must agree")
    if not len(X):
        raise BadInput(f"{first} of {shown(file)} has no rows")
    with np.errstate(all="ignore"):  # numbers too large for float64 become infinite, which is refused
        X, y = X.astype(float), y if y.dtype.kind == "U" else y.astype(float)
    if fill is None:
        check_finite(X, f"{first} in {shown(file)}")
    if y.dtype.kind == "U":
        with reading(file, "npz"):
            y.tolist()  # fails on bytes that are no characters
    else:
        check_finite(y[:, None], shown(file), [second])
    return X, y


def _csv(file: Path, settings: _FileSettings) -> _FileContent:
    table = read_csv(file, settings.allowed, header=settings.header, exact=True)
    as_text = set(places_named(settings.cells.text, table.names, file, "text"))
    if any(table.columns[i].dtype.kind == "f" for i in as_text):
        table = read_csv(file, settings.allowed, header=table.header, text=lambda _: as_text, exact=True)
    return _from_table(table, file, settings, f"header {'yes' if table.header else 'no'}")


def _parquet(file: Path, settings: _FileSettings) -> _FileContent:
    table = read_parquet(file, settings.allowed, needed=(), exact=True)
    return _from_table(table, file, settings, *(f"the index '{shown(name)}' left out" for name in table.index))


_READERS: dict[str, Callable[[Path, _FileSettings], _FileContent]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".svm": _svmlight,
    ".svmlight": _svmlight,
    ".libsvm": _svmlight,
    ".npz": _npz,
}


def _from_table(table: Table, file: Path, settings: _FileSettings, *remarks: str) -> _FileContent:
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
    encoding = Encoding(columns, table.header, label=names[target], missing=settings.cells.missing)
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
    return _FileContent(X, y, where, encoding=encoding, remarks=remarks)


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


def _features(table: Table, file: Path, settings: _FileSettings, target: int) -> tuple[list[int], list[str]]:
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


def _target(y: Array, kind: Kind | None, name: str, where: str, settings: _FileSettings) -> Array:
    """Return the targets as numbers, or as labels of text."""
    if kind == "date":
        y = read_dates(y, where)
    elif kind == "number":
        y = read_numbers(y, where)[0]
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
    table: Table, index: int, kind: Kind | None, file: Path, settings: _FileSettings
) -> tuple[Column, Array]:
    """Return the description of a column to learn from, and its values: numbers, or text with None if missing."""
    name = table.names[index]
    where = f"column '{shown(name)}' of {shown(file)}"
    cells = without_missing(table.columns[index], settings.cells.missing)
    if kind == "date":
        return Column(name, date=True), read_dates(cells, where)
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


def _notice(column: Column, cells: Array, raw: Array, file: Path, settings: _FileSettings) -> None:
    """Report a column that is read in a way which its values put in doubt; ``raw``: its cells in the file."""
    name, remedy = shown(column.name), f"drop={shown(column.name)} leaves it out"
    if column.categories and all(is_number(word) for word in column.categories if word):
        code = next((word for word in column.categories if is_code(word)), None)
        if code is not None:
            settings.say(
                f"column '{name}' of {file.name} has codes such as '{shown(code)}', so its values are categories; "
                f"numbers={name} makes them numbers"
            )
    if column.date or column.unit is not None:
        return
    if like_dates_in_digits(cells):
        settings.say(
            f"a guess: column '{name}' of {file.name} is learned from as numbers, although they look like dates, such "
            f"as {np.nanmax(cells):.0f}; dates={name} counts days, {remedy}"
        )
    elif like_an_identifier(cells) or (long_numbers(cells) and like_an_identifier(raw)):
        settings.say(
            f"a guess: column '{name}' of {file.name} is learned from, although nearly every row has another value, "
            f"like an identifier; {remedy}"
        )
    elif like_thousands(cells):
        settings.say(
            f"a guess: column '{name}' of {file.name} has decimal points, although its numbers look as if points "
            f"separated thousands, such as {np.nanmin(cells[cells % 1 != 0]):g}; write numbers without separators if so"
        )
    _notice_missing(name, cells, file, settings)


def _notice_missing(name: str, cells: Array, file: Path, settings: _FileSettings, *, remedy: str = "") -> None:
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
