"""Data from a user's own file: CSV, Parquet, svmlight or npz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyk.arrays import Array, Floats
from anyk.checks import typed
from anyk.errors import BadInput
from anyk.matrices import Matrix, read_npz
from anyk.problems.base import Tell
from anyk.problems.data.dataset import (
    Dataset,
    Fraction,
    assemble,
    read_target,
    sources,
    split_rows,
)
from anyk.problems.data.encoding import (
    Encoding,
    Fill,
    check_categories,
    check_complete,
    check_finite,
    rows_text,
    truths_as_numbers,
)
from anyk.tables import (
    Limit,
    Table,
    check_input_file,
    column_hint,
    is_row_number,
    limit,
    listed,
    missing_values,
    open_binary,
    read_csv,
    read_parquet,
    reading,
    shown,
)


@dataclass(frozen=True, slots=True)
class _FileSettings:
    """The settings with which a file is read."""

    target: str | None
    header: bool | None
    allowed: Limit
    progress: Tell | None
    fill: Fill | None
    test: float
    seed: int


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
    fill: Fill | None = None,
    intercept: bool = True,
    test: Fraction = 0.2,
    seed: int = 0,
    max_gb: float | None = None,
    file: Path,
    progress: Tell | None = None,
) -> Dataset:
    """Your own CSV, Parquet, svmlight or npz file, recognised by its extension (needs --data-file).

    CSV (``.csv``, also ``.gz`` or ``.bz2``) and Parquet: ``target`` is the target's column, by name or by number (from
    0; -1 is the last), by default the column called target, label or y, else the last. ``header``: whether the first
    row of a CSV file contains the columns' names; ``auto`` detects this and refuses an ambiguous row. Text columns are
    one-hot encoded, which makes ``X`` sparse. An unnamed first column with row numbers is omitted. svmlight (``.svm``,
    ``.svmlight``, ``.libsvm``, also ``.gz`` or ``.bz2``): sparse. npz: arrays ``X`` and ``y``; if the file also has
    arrays ``X_test`` and ``y_test``, these are the test rows and ``test`` is not used.

    ``fill``: missing numbers are replaced by the ``mean`` or ``median`` of their column's training rows, missing text
    by the most frequent value; by default missing values are refused. The fills are stored with the model.

    The model gets an intercept unless ``intercept=false``. With ``task=auto`` a target of two values is binary, one of
    text or a few integers multiclass, any other regression. ``progress`` receives a sentence on how the file was read.
    ``max_gb`` limits the memory for the file's contents, by default 1 GB or 8 times its size, whichever is more. Raises
    BadInput for a file that cannot be used, with the reason.
    """
    extension = extension_of(file)
    reader = _READERS[extension]
    svmlight, refused = reader is _svmlight, ""
    if target is not None and reader not in (_csv, _parquet):
        refused = f"target={target} is for CSV and Parquet files"
    elif header != "auto" and reader is not _csv:
        refused = f"header={header} is for CSV files"
    if refused:
        raise BadInput(f"{refused}, but {shown(file)} is {extension[1:]}, which names its own; drop it")
    if fill is not None and svmlight:
        raise BadInput(f"fill={fill} is for CSV, Parquet and npz; what {shown(file)} leaves out is 0, not missing")
    has_names = None if header == "auto" else header == "yes"
    content = reader(file, _FileSettings(target, has_names, limit(file, max_gb), progress, fill, test, seed))
    y, task_read, classes = read_target(content.y, task, content.target)
    data = assemble(content.X, y, task_read, classes, test=test, seed=seed, X_test=content.X_test)
    among = f" ({listed(classes)})" if classes else ""
    width = data.X_train.shape[1]
    wide = f"{width:,} column{'s' * (width != 1)}" + " and an intercept" * intercept
    rows = f"{file.name}: {rows_text(len(y))}"
    summary = ", ".join([rows, wide, f"task {task_read}{among}", *content.remarks])
    if progress is not None:
        progress(summary)
    encoding = replace(content.encoding, words=content.y.dtype.kind not in "fiub")
    standardize = intercept and not svmlight
    return replace(data, intercept=intercept, standardize=standardize, encoding=encoding, summary=summary)


def extension_of(file: Path) -> str:
    """Return the extension by which an existing file is read, without .gz or .bz2; BadInput for an unknown one."""
    check_input_file(file)
    name = file.name.lower()
    extension = Path(name.removesuffix(".gz").removesuffix(".bz2")).suffix
    if extension not in _READERS or (extension in {".parquet", ".npz"} and not name.endswith(extension)):
        raise BadInput(
            f"the extension of {shown(file)} is not that of a known format; known are .csv, .svm, .svmlight, .libsvm "
            "(each also .gz or .bz2), .parquet and .npz"
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
        encoding = Encoding(Encoding.fitted(columns, list(X.T), rows, settings.fill, where))
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
    table = read_csv(file, settings.allowed, header=settings.header)
    return _from_table(table, file, settings, f"header {'yes' if table.header else 'no'}")


def _parquet(file: Path, settings: _FileSettings) -> _FileContent:
    return _from_table(read_parquet(file, settings.allowed), file, settings)


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
    place, how = target_column(names, file, settings.target)
    where = f"column '{shown(names[place])}' of {shown(file)}"
    y = table.columns[place]
    check_complete(y, where)
    if y.dtype.kind == "O":
        check_categories(Counter(y.tolist()), where)
    remarks = (f"label '{shown(names[place])}'{how}", *remarks)
    features = [i for i in range(len(names)) if i != place]
    unnamed = table.header and names[0] in {"column 0", "Unnamed: 0"}
    if unnamed and features[0] == 0 and len(features) > 1 and is_row_number(table.columns[0]):
        features.pop(0)  # pandas' index
        remarks += ("row numbers in the first column left out",)
    values = [truths_as_numbers(table.columns[i]) for i in features]
    rows: Any = slice(None)
    if settings.fill is None:
        for i, cells in zip(features, values, strict=True):
            check_complete(cells, f"column '{shown(names[i])}' of {shown(file)}", " (fill=median)")
    else:
        rows = split_rows(table.rows, settings.test, settings.seed)[0]
        if gaps := sum(int(missing_values(cells).sum()) for cells in values):
            remarks += (f"{gaps:,} missing value{'s' * (gaps != 1)} filled in by {settings.fill}",)
    columns = Encoding.fitted([names[i] for i in features], values, rows, settings.fill, shown(file))
    encoding = Encoding(columns, table.header, label=names[place])
    for column in columns:
        if column.categories and settings.progress is not None:
            settings.progress(
                f"one-hot encoding the text column '{shown(column.name)}' of {file.name}: {len(column.categories)} "
                "different values"
            )
    return _FileContent(encoding.encode(values, shown(file)), y, where, encoding=encoding, remarks=remarks)


def target_column(names: Sequence[str], file: Path | str, target: str | None) -> tuple[int, str]:
    """Return the place of the target's column and, if it was chosen as the last, a remark."""
    if target is None:
        for wanted in ("target", "label", "y"):
            if usual := [i for i, name in enumerate(names) if name.lower() == wanted]:
                return usual[0], ""
        return len(names) - 1, " (the last column; target= names another)"
    if target in names:
        if names.count(target) > 1:
            raise BadInput(
                f"{shown(file)} has {names.count(target)} columns '{shown(target)}'; give target as a number"
            )
        return names.index(target), ""
    try:
        place = int(target)
    except ValueError:
        raise BadInput(
            f"{shown(file)} has no column '{shown(target)}' for the target; {column_hint(target, names)}"
        ) from None
    if not -len(names) <= place < len(names):
        raise BadInput(
            f"{shown(file)} has {len(names)} columns, so target is a number from 0 to {len(names) - 1}, got {place}"
        )
    return place % len(names), ""
