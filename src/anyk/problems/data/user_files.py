"""Data from a user's own file: CSV, Parquet, svmlight or npz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.problems.base import Tell
from anyk.problems.data.dataset import Dataset, Fraction, assemble, guess_of_classes, read_target, sources, split_rows
from anyk.problems.data.file_content import FileContent, FileSettings
from anyk.problems.data.user_tables import content_of, places_named
from anyk.tables import (
    Column,
    Encoding,
    Fill,
    Limit,
    Matrix,
    Settings,
    check_finite,
    check_input_file,
    limit,
    listed,
    merged,
    open_binary,
    read_csv,
    read_npz,
    read_parquet,
    reading,
    rows_text,
    shown,
)


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
    settings = FileSettings(
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
    _notice_unseen(data, file, settings, given=content.X_test is not None)
    among = f" ({listed(classes)})" if classes else ""
    width = data.X_train.shape[1]
    wide = f"{width:,} column{'s' * (width != 1)}" + " and an intercept" * intercept
    rows = f"{file.name}: {rows_text(len(y))}"
    summary = ", ".join([rows, wide, f"task {task_read}{among}", *content.remarks])
    if progress is not None:
        progress(summary)
    if task == "auto" and task_read == "multiclass" and content.y.dtype.kind in "fiub" and progress is not None:
        progress(guess_of_classes(len(classes), content.target))
    encoding = replace(content.encoding, words=content.y.dtype.kind not in "fiub", format=stated)
    standardize = intercept and not svmlight
    return replace(data, intercept=intercept, standardize=standardize, encoding=encoding, summary=summary)


def _notice_unseen(data: Dataset, file: Path, settings: FileSettings, *, given: bool) -> None:
    """Report a class that held-out rows alone have; raise BadInput if they were ``given`` as such."""
    if data.task != "multiclass":
        return
    unseen = np.setdiff1d(data.y_test, data.y_train)
    if not unseen.size:
        return
    named = listed([data.classes[int(code)] for code in unseen] if data.classes else list(map(str, unseen)))
    sentence = f"held-out rows of {shown(file)} have labels that no training row has: {named}"
    if given:
        raise BadInput(f"{sentence}; correct them in y_test, or give rows of these classes in y")
    settings.say(f"{sentence}; the model cannot learn them, and if they are misspelt, they are wrong classes")


def _check_formats(file: Path, extension: str, of_tables: dict[str, str | tuple[str, ...] | None], header: str) -> None:
    """Raise BadInput for a setting ``of_tables``, of CSV and Parquet, or ``header``, of CSV, with another format."""
    reader = _READERS[extension]
    instead = f"but {shown(file)} is {extension[1:]}, which names its own; drop it"
    for name, value in of_tables.items():
        if value and reader not in (_csv, _parquet):
            stated = value if isinstance(value, str) else "/".join(value)
            raise BadInput(f"{name}={stated} is for CSV and Parquet files, {instead}")
    if header != "auto" and reader is not _csv:
        raise BadInput(f"header={header} is for CSV files, {instead}")


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


def _svmlight(file: Path, settings: FileSettings) -> FileContent:
    X, y, base = read_svmlight(file, settings.allowed)
    check_finite(y[:, None], shown(file), ["the target"])
    return FileContent(X, y, f"the target of {shown(file)}", encoding=Encoding(base=base))


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


def _npz(file: Path, settings: FileSettings) -> FileContent:
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
    return FileContent(X, y, f"array 'y' of {shown(file)}", X_test, encoding)


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


def _csv(file: Path, settings: FileSettings) -> FileContent:
    table = read_csv(file, settings.allowed, header=settings.header, exact=True)
    as_text = set(places_named(settings.cells.text, table.names, file, "text"))
    if any(table.columns[i].dtype.kind == "f" for i in as_text):
        table = read_csv(file, settings.allowed, header=table.header, text=lambda _: as_text, exact=True)
    return content_of(table, file, settings, f"header {'yes' if table.header else 'no'}")


def _parquet(file: Path, settings: FileSettings) -> FileContent:
    table = read_parquet(file, settings.allowed, needed=(), exact=True)
    return content_of(table, file, settings, *(f"the index '{shown(name)}' left out" for name in table.index))


_READERS: dict[str, Callable[[Path, FileSettings], FileContent]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".svm": _svmlight,
    ".svmlight": _svmlight,
    ".libsvm": _svmlight,
    ".npz": _npz,
}
