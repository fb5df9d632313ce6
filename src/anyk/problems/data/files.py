"""Data from a file of one's own: CSV, Parquet, svmlight or npz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.matrices import read_npz
from anyk.problems.data.dataset import (
    Dataset,
    Progress,
    assemble,
    check_fraction,
    held_out,
    joined,
    read_target,
    sources,
)
from anyk.problems.data.encoding import Encoding, Fill, Matrix, check_categories, missing, rows_text, truths
from anyk.tables import (
    Limit,
    Table,
    absent,
    existing_file,
    is_row_number,
    limit,
    listed,
    open_binary,
    read_csv,
    read_parquet,
    reading,
    shown,
)


def finite(X: Any, where: str, names: Sequence[str] | None = None) -> None:
    """Raise BadInput, naming the first column and counting its rows, where ``X`` holds NaN or infinity."""
    bad = np.nonzero(~np.isfinite(X))[1] if isinstance(X, np.ndarray) else X.indices[~np.isfinite(X.data)]
    if len(bad):
        column, rows = bad.min(), int((bad == bad.min()).sum())
        what = f"column '{names[column]}'" if names else f"column {column}"
        raise BadInput(f"{what} of {where} is missing or not finite in {rows_text(rows)}; remove or fill them")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The settings of a spec about a file."""

    target: str | None
    header: bool | None
    allowed: Limit
    progress: Progress | None
    fill: Fill | None = None
    test: float = 0.2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Samples:
    X: Matrix
    y: NDArray[Any]  # numbers or text
    target: str  # how errors call y
    test: tuple[Matrix, NDArray[Any]] | None = None
    encoding: Encoding = field(default_factory=Encoding)
    remarks: tuple[str, ...] = ()  # on how the file was understood


@sources.register("file")
def from_file(
    *,
    target: str | None = None,
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto",
    header: Literal["auto", "yes", "no"] = "auto",
    fill: Fill | None = None,
    intercept: bool = True,
    test: float = 0.2,
    seed: int = 0,
    max_gb: float | None = None,
    file: Path,
    progress: Progress | None = None,
) -> Dataset:
    """Your own CSV, Parquet, svmlight or npz file, told by its extension (needs --data-file).

    CSV (``.csv``, also ``.gz`` or ``.bz2``) and Parquet: ``target`` is the target's column, by name or by number (from
    0; -1 is the last), else the column called target, label or y, else the last. ``header`` says whether the first row
    of a CSV file holds the columns' names; ``auto`` finds out, and asks where it cannot. Text columns are one-hot
    encoded, which makes ``X`` sparse; numbers stay as they are; an unnamed first column that numbers the rows is left
    out. svmlight (``.svm``, ``.svmlight``, ``.libsvm``, also ``.gz`` or ``.bz2``): sparse. npz: arrays ``X`` and
    ``y``; where it also holds ``X_test`` and ``y_test`` these are the test rows and ``test`` is not used.

    ``fill``: a missing value is replaced by the ``mean`` or ``median`` of its column's training rows (text by the most
    frequent value); left out, missing values are refused. It is kept with the model.

    The model gets an intercept unless ``intercept=false``. ``task=auto`` looks at the target: two values are binary;
    text or a few whole numbers multiclass; else regression. ``progress`` is told in a sentence how the file was
    understood. ``max_gb`` limits the memory that its contents may take, by default 1 GB or 8 times the file's size,
    whichever is more. Raises BadInput for a file that cannot be used, with the reason.
    """
    check_fraction(test)
    extension = extension_of(file)
    for key, value, served in (
        ("target", target, {".csv", ".parquet"}),
        ("header", None if header == "auto" else header, {".csv"}),
    ):
        if value is not None and extension not in served:
            kinds = "CSV and Parquet files" if len(served) > 1 else "CSV files"
            raise BadInput(
                f"{key}={value} is for {kinds}, but {shown(file)} is {extension[1:]}, which names its own; drop it"
            )
    if fill is not None and _READERS[extension] is _svmlight:
        raise BadInput(f"fill={fill} is for CSV, Parquet and npz; what {shown(file)} leaves out is 0, not missing")
    header_given = None if header == "auto" else header == "yes"
    samples = _READERS[extension](file, _Asked(target, header_given, limit(file, max_gb), progress, fill, test, seed))
    if samples.test is None:
        y, task_read, classes = read_target(samples.y, task, samples.target)
        data = assemble(samples.X, y, task=task_read, classes=classes, test=test, seed=seed)
    else:
        X_test, y_test = samples.test
        y, task_read, classes = read_target(np.concatenate([samples.y, y_test]), task, samples.target)
        first = len(samples.y)
        data = joined(samples.X, y[:first], X_test, y[first:], task=task_read, classes=classes)
    among = f" ({listed(classes)})" if classes else ""
    width = data.X_train.shape[1]
    wide = f"{width:,} column{'s' * (width != 1)}" + " and an intercept" * intercept
    summary = ", ".join(
        [
            f"{file.name}: {rows_text(len(data.y_train) + len(data.y_test))}",
            wide,
            f"task {task_read}{among}",
            *samples.remarks,
        ]
    )
    if progress is not None:
        progress(summary)
    encoding = replace(samples.encoding, words=samples.y.dtype.kind not in "fiub")
    table = intercept and _READERS[extension] is not _svmlight
    return replace(data, intercept=intercept, standardize=table, encoding=encoding, summary=summary)


def extension_of(file: Path) -> str:
    """Return the extension by which an existing file is read, without .gz or .bz2; BadInput for an unknown one."""
    existing_file(file)
    name = file.name.lower()
    extension = Path(name.removesuffix(".gz").removesuffix(".bz2")).suffix
    if extension not in _READERS or (extension in {".parquet", ".npz"} and not name.endswith(extension)):
        raise BadInput(
            f"the extension of {shown(file)} is not that of a known format; known are .csv, .svm, .svmlight, .libsvm "
            "(each also .gz or .bz2), .parquet and .npz"
        )
    return extension


def _svmlight(file: Path, asked: _Asked) -> _Samples:
    X, y, base = read_svmlight(file, asked.allowed)
    finite(y[:, None], shown(file), ["the target"])
    return _Samples(X, y, f"the target of {shown(file)}", encoding=Encoding(base=base))


def read_svmlight(file: Path, allowed: Limit, base: int | None = None) -> tuple[Matrix, NDArray[np.float64], int]:
    """``X``, the targets, and the number of the first column: ``base``, or 0 where column 0 has an entry, else 1."""
    from sklearn.datasets import load_svmlight_file

    with reading(file, "svmlight"), open_binary(file, allowed) as binary:
        X, y = load_svmlight_file(binary, zero_based=True)
    if not X.shape[0]:
        raise BadInput(f"{shown(file)} is empty")
    allowed.check(8.0 * X.shape[1])  # a model has a weight for every column, also where one entry names the last
    X = cast(Any, X.tocsr())
    first = int(X.indices.min()) if X.nnz else 0
    if base == 1 and X.nnz and not first:
        raise BadInput(f"{shown(file)} has a column 0, but the columns that the model learned from begin with 1")
    base = min(first, 1) if base is None else base
    X = X[:, base:]
    finite(X, shown(file))
    return X, y, base


def _npz(file: Path, asked: _Asked) -> _Samples:
    arrays, array_names = read_npz(file, asked.allowed, ("X", "y", "X_test", "y_test"))
    if not {"X", "y"} <= set(arrays) or ("X_test" in arrays) != ("y_test" in arrays):
        raise BadInput(
            f"{shown(file)} holds {listed(array_names) or 'nothing'}, but needs the arrays X and y, and may hold both "
            "X_test and y_test"
        )
    X, y = _npz_pair(file, arrays, "X", "y", asked.fill)
    pair = _npz_pair(file, arrays, "X_test", "y_test", asked.fill) if "X_test" in arrays else None
    if pair is not None and pair[0].shape[1] != X.shape[1]:
        raise BadInput(
            f"X of {shown(file)} has {X.shape[1]} columns but X_test has {pair[0].shape[1]}; they must agree"
        )
    if pair is not None and pair[1].dtype.kind != y.dtype.kind:
        raise BadInput(f"one of y and y_test in {shown(file)} is text and the other numbers; they must agree")
    encoding, where = Encoding(), f"X in {shown(file)}"
    if asked.fill is not None:
        names = [f"column {i}" for i in range(X.shape[1])]
        rows = slice(None) if pair is not None else held_out(len(X), asked.test, asked.seed)[0]
        encoding = Encoding(Encoding.fitted(names, list(X.T), rows, asked.fill, where))
        X = encoding.encode(list(X.T), where)
        pair = None if pair is None else (encoding.encode(list(pair[0].T), f"X_test in {shown(file)}"), pair[1])
    return _Samples(X, y, f"array 'y' of {shown(file)}", pair, encoding)


def _npz_pair(
    file: Path, arrays: dict[str, NDArray[Any]], first: str, second: str, fill: Fill | None
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    for name, kinds, form in (
        (first, "biuf", "a table of numbers"),
        (second, "biufU", "one column of numbers or text"),
    ):
        shape, dtype = arrays[name].shape, arrays[name].dtype
        if dtype.kind not in kinds or len(shape) != (2 if name == first else 1):
            raise BadInput(f"array '{name}' of {shown(file)} should be {form}, got {dtype} of shape {shape}")
    X, y = _float64(arrays[first]), arrays[second]
    if len(X) != len(y):
        raise BadInput(f"{first} of {shown(file)} has {rows_text(len(X))} but {second} has {len(y)}; they must agree")
    if not len(X):
        raise BadInput(f"{first} of {shown(file)} has no rows")
    if fill is None:
        finite(X, f"{first} in {shown(file)}")
    if y.dtype.kind == "U":
        with reading(file, "npz"):
            y.tolist()  # not every four bytes are a character
        return X, y
    y = _float64(y)
    finite(y[:, None], shown(file), [second])
    return X, y


def _float64(values: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):  # what does not fit becomes infinite, which is refused
        return values.astype(np.float64)


def _csv(file: Path, asked: _Asked) -> _Samples:
    table = read_csv(file, asked.allowed, header=asked.header)
    return _from_table(table, file, asked, f"header {'yes' if table.header else 'no'}")


def _parquet(file: Path, asked: _Asked) -> _Samples:
    return _from_table(read_parquet(file, asked.allowed), file, asked)


_READERS: dict[str, Callable[[Path, _Asked], _Samples]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".svm": _svmlight,
    ".svmlight": _svmlight,
    ".libsvm": _svmlight,
    ".npz": _npz,
}


def _from_table(table: Table, file: Path, asked: _Asked, *remarks: str) -> _Samples:
    """Features and target; text becomes one-hot columns where it stood."""
    names = list(table.names)
    if len(names) < 2 or not table.rows:
        raise BadInput(
            f"{shown(file)} has {rows_text(table.rows)} and {len(names)} column{'s' * (len(names) != 1)} (separated by "
            "commas); a target, a feature and two rows are the least"
        )
    place, how = target_column(names, file, asked.target)
    columns = dict(enumerate(table.columns))
    y = columns.pop(place)
    label = names[place]
    where = f"column '{shown(label)}' of {shown(file)}"
    y = _complete(y, where)
    if y.dtype.kind == "O":
        check_categories(Counter(y.tolist()), where)
    remarks = (f"label '{shown(label)}'{how}", *remarks)
    unnamed = table.header and names[0] in {"column 0", "Unnamed: 0"}
    if unnamed and 0 in columns and len(columns) > 1 and is_row_number(columns[0]):
        del columns[0]  # pandas' index
        remarks += ("row numbers in the first column left out",)
    kept_names = [names[i] for i in columns]
    values = [truths(column) for column in columns.values()]
    if asked.fill is None:
        for name, column in zip(kept_names, values, strict=True):
            _complete(column, f"column '{shown(name)}' of {shown(file)}", " (fill=median)")
    elif gaps := sum(int(missing(column).sum()) for column in values):
        remarks += (f"{gaps:,} missing value{'s' * (gaps != 1)} filled in by {asked.fill}",)
    rows = slice(None) if asked.fill is None else held_out(table.rows, asked.test, asked.seed)[0]
    described = Encoding.fitted(kept_names, values, rows, asked.fill, shown(file))
    encoding = Encoding(described, table.header, label=label)
    for one in described:
        if one.categories and asked.progress is not None:
            asked.progress(
                f"one-hot encoding the text column '{shown(one.name)}' of {file.name}: {len(one.categories)} different "
                "values"
            )
    return _Samples(encoding.encode(values, shown(file)), y, where, encoding=encoding, remarks=remarks)


def target_column(names: list[str], file: Path | str, target: str | None) -> tuple[int, str]:
    """Return the target's column and, unless it was named, a remark on the choice."""
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
        near = get_close_matches(target, names, n=1)
        hint = f"did you mean '{shown(near[0])}'?" if near else f"its columns: {listed(names)}"
        raise BadInput(f"{shown(file)} has no column '{shown(target)}' for the target; {hint}") from None
    if not -len(names) <= place < len(names):
        raise BadInput(
            f"{shown(file)} has {len(names)} columns, so target is a number from 0 to {len(names) - 1}, got {place}"
        )
    return place % len(names), ""


def _complete(column: NDArray[Any], where: str, how: str = "") -> NDArray[Any]:
    """The column itself; BadInput where a value is missing or infinite."""
    if count := int(absent(column).sum()):
        raise BadInput(f"{where} is missing or not finite in {rows_text(count)}; remove or fill them{how}")
    return column
