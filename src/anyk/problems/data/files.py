"""Data from a file of one's own: CSV, Parquet, svmlight or npz. Nothing is ever unpickled."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput, MissingPackage
from anyk.problems.data.dataset import Dataset, Matrix, Progress, assemble, check_fraction, joined, read_target, sources

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    NotImplementedError,
    csv.Error,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    Warning,
)


@contextmanager
def reading(file: Path, kind: str) -> Iterator[None]:
    """Answer whatever a library says about a broken file with one sentence that names the file and its kind."""
    try:
        yield
    except BadInput:
        raise
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise BadInput(f"{file} cannot be read as {kind}: {reason}") from None


def existing_file(file: Path) -> None:
    """Raise BadInput unless ``file`` is a file with something in it."""
    with reading(file, "a file"):
        if not file.exists():
            beside = [other.name for other in file.parent.iterdir()] if file.parent.is_dir() else []
            near = get_close_matches(file.name, beside, n=1)
            raise BadInput(f"there is no file {file}" + (f"; did you mean {file.with_name(near[0])}?" if near else ""))
        if not file.is_file():
            raise BadInput(f"{file} is a {'folder' if file.is_dir() else 'device'}; give the file itself")
        if not file.stat().st_size:
            raise BadInput(f"{file} is empty")


def open_binary(file: Path) -> IO[bytes]:
    """Open a plain, gzip or bzip2 file by its extension."""
    if file.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(file))
    return bz2.open(file) if file.suffix.lower() == ".bz2" else file.open("rb")


def open_text(file: Path) -> io.TextIOWrapper:
    """As :func:`open_binary`, for text in UTF-8 with or without a byte order mark."""
    return io.TextIOWrapper(open_binary(file), encoding="utf-8-sig", newline="")


def finite(X: Any, where: str, names: Sequence[str] | None = None) -> None:
    """Raise BadInput, naming the first column and counting its rows, where ``X`` holds NaN or infinity."""
    bad = np.nonzero(~np.isfinite(X))[1] if isinstance(X, np.ndarray) else X.indices[~np.isfinite(X.data)]
    if len(bad):
        column, rows = bad.min(), int((bad == bad.min()).sum())
        what = f"column '{names[column]}'" if names else f"column {column}"
        raise BadInput(f"{what} of {where} is missing or not finite in {_rows(rows)}; remove or fill them")


def listed(names: Sequence[str]) -> str:
    """The first few names for an error; quoted, so that a broken name shows."""
    return ", ".join(map(repr, names[:5])) + ", ..." * (len(names) > 5)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


@dataclass(frozen=True, slots=True)
class _Samples:
    X: Matrix
    y: NDArray[Any]  # numbers or text
    target: str  # how errors call y
    test: tuple[Matrix, NDArray[Any]] | None = None


@sources.register("file")
def from_file(
    *,
    target: str | None = None,
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto",
    test: float = 0.2,
    seed: int = 0,
    file: Path,
    progress: Progress | None = None,
) -> Dataset:
    """Your own CSV, Parquet, svmlight or npz file, told by its extension (needs --data-file).

    CSV (``.csv``, also ``.gz`` or ``.bz2``; with or without a header) and Parquet: ``target`` is the target's column,
    by name or by number (from 0; -1 is the last), else the column called target, label or y, else the last. Text
    columns are one-hot encoded, which makes ``X`` sparse, and ``progress`` says so; numbers stay as they are.
    svmlight (``.svm``, ``.svmlight``, ``.libsvm``, also ``.gz`` or ``.bz2``): sparse. npz: arrays ``X`` and ``y``;
    where it also holds ``X_test`` and ``y_test`` these are the test rows and ``test`` is not used. No constant column
    is added. ``task=auto`` looks at the target: two values are binary; text or a few whole numbers multiclass; else
    regression. Raises BadInput for a file that cannot be used, with the reason.
    """
    check_fraction(test)
    existing_file(file)
    name = file.name.lower()
    extension = Path(name.removesuffix(".gz").removesuffix(".bz2")).suffix
    packed = name.endswith((".gz", ".bz2"))
    if extension not in _READERS or (packed and extension in {".parquet", ".npz"}):
        raise BadInput(
            f"the extension of {file} tells no known format; known are .csv, .svm, .svmlight, .libsvm (each also "
            ".gz or .bz2), .parquet and .npz"
        )
    samples = _READERS[extension](file, target, progress)
    if samples.test is None:
        y, found, classes = read_target(samples.y, task, samples.target)
        return assemble(samples.X, y, task=found, classes=classes, test=test, seed=seed)
    X_test, y_test = samples.test
    y, found, classes = read_target(np.concatenate([samples.y, y_test]), task, samples.target)
    rows = len(samples.y)
    return joined(samples.X, y[:rows], X_test, y[rows:], task=found, classes=classes)


def _no_target(file: Path, target: str | None, kind: str) -> None:
    if target is not None:
        raise BadInput(
            f"target={target} is for CSV and Parquet files, but {file} is {kind}, which names its own; drop it"
        )


def _svmlight(file: Path, target: str | None, progress: Progress | None) -> _Samples:
    from sklearn.datasets import load_svmlight_file

    _no_target(file, target, "svmlight")
    with reading(file, "svmlight"), open_binary(file) as binary:
        X, y = load_svmlight_file(binary)
    if not X.shape[0]:
        raise BadInput(f"{file} is empty")
    finite(X, str(file))
    finite(y[:, None], str(file), ["the target"])
    return _Samples(X.tocsr(), y, f"the target of {file}")


def _npz(file: Path, target: str | None, progress: Progress | None) -> _Samples:
    _no_target(file, target, "npz")
    with reading(file, "npz"):
        if not zipfile.is_zipfile(file):
            raise BadInput(f"{file} is no npz file, or is cut short; write it with numpy.savez")
        # Opened here, since NumPy leaves a file open that it opened itself and found damaged.
        with file.open("rb") as binary, np.load(binary, allow_pickle=False) as arrays:
            found = arrays.files
            if not {"X", "y"} <= set(found) or ("X_test" in found) != ("y_test" in found):
                raise BadInput(
                    f"{file} holds {listed(found) or 'nothing'}, but needs the arrays X and y, and may hold "
                    "both X_test and y_test"
                )
            X, y = _npz_pair(file, arrays, "X", "y")
            pair = _npz_pair(file, arrays, "X_test", "y_test") if "X_test" in found else None
    if pair is not None and pair[0].shape[1] != X.shape[1]:
        raise BadInput(f"X of {file} has {X.shape[1]} columns but X_test has {pair[0].shape[1]}; they must agree")
    if pair is not None and pair[1].dtype.kind != y.dtype.kind:
        raise BadInput(f"one of y and y_test in {file} is text and the other numbers; they must agree")
    return _Samples(X, y, f"array 'y' of {file}", pair)


def _npz_pair(file: Path, arrays: Any, first: str, second: str) -> tuple[NDArray[np.float64], NDArray[Any]]:
    read = {}
    for name, kinds, form in (
        (first, "biuf", "a table of numbers"),
        (second, "biufU", "one column of numbers or text"),
    ):
        try:
            read[name] = arrays[name]
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise BadInput(
                f"array '{name}' of {file} holds Python objects, which only unpickling could read, and that is never "
                "done; save it as numbers or text"
            ) from None
        shape = read[name].shape
        if read[name].dtype.kind not in kinds or len(shape) != (2 if name == first else 1):
            raise BadInput(f"array '{name}' of {file} should be {form}, got {read[name].dtype} of shape {shape}")
    X, y = read[first].astype(np.float64), read[second]
    if len(X) != len(y):
        raise BadInput(f"{first} of {file} has {_rows(len(X))} but {second} has {len(y)}; they must agree")
    if not len(X):
        raise BadInput(f"{first} of {file} has no rows")
    finite(X, f"{first} in {file}")
    if y.dtype.kind == "U":
        return X, y
    finite(y[:, None], str(file), [second])
    return X, y.astype(np.float64)


def _csv(file: Path, target: str | None, progress: Progress | None) -> _Samples:
    pandas = _pandas("reading a CSV file")
    with reading(file, "CSV"), open_text(file) as text:
        first = next(csv.reader(text), [])
    with reading(file, "CSV"), warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # it has dropped something
        # Without index_col=False pandas takes the first column for an index where rows are longer than the header.
        frame = pandas.read_csv(
            file, header=None if all(map(_is_number, first)) else 0, index_col=False, low_memory=False,
            encoding="utf-8-sig",
        )  # fmt: skip
    return _from_columns(frame, file, target, progress)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(file: Path, target: str | None, progress: Progress | None) -> _Samples:
    pandas = _pandas("reading a Parquet file")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingPackage("pyarrow", "data", "reading a Parquet file") from None
    with reading(file, "Parquet"):
        frame = pandas.read_parquet(file)
    return _from_columns(frame, file, target, progress)


def _pandas(purpose: str) -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingPackage("pandas", "data", purpose) from None
    return pandas


_READERS: dict[str, Callable[[Path, str | None, Progress | None], _Samples]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".svm": _svmlight,
    ".svmlight": _svmlight,
    ".libsvm": _svmlight,
    ".npz": _npz,
}


def _from_columns(frame: Any, file: Path, target: str | None, progress: Progress | None) -> _Samples:
    """Features and target from a pandas frame; text becomes one-hot columns where it stood."""
    names = [str(name) for name in frame.columns]
    if len(names) < 2 or not len(frame):
        raise BadInput(
            f"{file} has {_rows(len(frame))} and {len(names)} column{'s' * (len(names) != 1)} (separated by commas); a "
            "target, a feature and two rows are the least"
        )
    place = _target_column(names, file, target)
    columns = [_column(frame.iloc[:, i], names[i], file) for i in range(len(names))]
    y = columns.pop(place)
    where = f"column '{names.pop(place)}' of {file}"
    if all(column.dtype.kind == "f" for column in columns):
        return _Samples(np.column_stack(columns), y, where)

    from scipy.sparse import csr_array, hstack
    from sklearn.preprocessing import OneHotEncoder

    blocks = []
    for name, column in zip(names, columns, strict=True):
        text = column.dtype.kind != "f"
        blocks.append(csr_array(OneHotEncoder().fit_transform(column[:, None]) if text else column[:, None]))
        if text and progress is not None:
            progress(
                f"one-hot encoding the text column '{name}' of {file.name}: {blocks[-1].shape[1]} different values"
            )
    return _Samples(hstack(blocks, format="csr"), y, where)


def _target_column(names: list[str], file: Path, target: str | None) -> int:
    if target is None:
        usual = [i for wanted in ("target", "label", "y") for i, name in enumerate(names) if name.lower() == wanted]
        return usual[0] if usual else len(names) - 1
    if target in names:
        return names.index(target)
    try:
        place = int(target)
    except ValueError:
        near = get_close_matches(target, names, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"its columns: {listed(names)}"
        raise BadInput(f"{file} has no column '{target}' for the target; {hint}") from None
    if not -len(names) <= place < len(names):
        raise BadInput(
            f"{file} has {len(names)} columns, so target is a number from 0 to {len(names) - 1}, got {place}"
        )
    return place % len(names)


def _column(series: Any, name: str, file: Path) -> NDArray[Any]:
    """One column as float64, or as an object array of str."""
    values = series.to_numpy()
    missing = int(series.isna().sum())
    if not missing:
        if all(isinstance(value, str) for value in values) and len(values):
            return np.array(values, dtype=object)
        try:
            if values.dtype.kind in "Mmc":
                raise TypeError
            numbers = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise BadInput(
                f"column '{name}' of {file} holds {type(values[0]).__name__} values, which are neither all numbers nor "
                "all text; make them one of the two"
            ) from None
        missing = int((~np.isfinite(numbers)).sum())
    if missing:
        raise BadInput(f"column '{name}' of {file} is missing or not finite in {_rows(missing)}; remove or fill them")
    return numbers
