"""Requirements of every source of data sets."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import BadInput, describe_error, parse_spec, read_plain, typed
from anyk.problems import Dataset, from_data, load, sources
from anyk.tables import Matrix
from anyk.testing.failures import failing_as

_SEEDS = (0, 12345)  # of NumPy's own generator, on which a data set must not depend


@typed
def check_data_source(spec: str, *, file: str | Path | None = None) -> None:
    """Check all properties of a registered source of data sets that problems and run folders rely on.

    Training and test rows are float64 in two dimensions, dense or as a sorted ``csr_array``, with the same columns and
    without missing values. Targets suit the task: -1 and 1, 0 to C - 1 with C classes, or numbers without classes. The
    same spec gives the same bits again, which do not depend on NumPy's own random numbers, and does not change them. A
    linear model can be trained. A source that reads a file leaves it unchanged, refuses a missing or empty one with
    :class:`~anyk.BadInput`, and reads a damaged or truncated one or refuses it in this way. Raises
    AssertionError for the first property that fails.

    ``file``: a small file that the source can read, if it reads one.

    >>> check_data_source("synthetic:rows=60,features=4")
    """
    entry = sources.entry(parse_spec(spec)[0])
    sentences: list[Any] = []
    file = None if file is None else Path(file)
    before = None if file is None or not file.is_file() else read_plain(file, follow=True)
    with failing_as(f"the source of '{spec}' fails"):
        data, repeated = (_loaded(spec, file, seed, sentences) for seed in _SEEDS)
    _check_rows(data)
    _check_targets(data)
    _check_repeated(data, repeated)
    for sentence in sentences:
        assert isinstance(sentence, str), f"progress() receives {sentence!r}, not a sentence"
    if before is not None and file is not None:
        assert read_plain(file, follow=True) == before, f"the source changes its file '{file}'"
    if "file" in inspect.signature(entry.build).parameters and before is not None and file is not None:
        _check_files(spec, file, before)
    with failing_as(f"no linear model of '{spec}' can be made"):
        problem = from_data(spec, file=file, progress=None)
        loss = problem.loss(np.asarray(problem.initial()))
    assert np.isfinite(loss), f"the loss of a linear model at its start is {loss}"


def _loaded(spec: str, file: Path | None, seed: int, sentences: list[Any]) -> Dataset:
    """Load a data set, with NumPy's own random numbers in a known state, which must stay."""
    earlier = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(seed)  # noqa: NPY002
        data = load(spec, file=file, progress=sentences.append if seed else None)
        drawn = np.random.random()  # noqa: NPY002
        assert drawn == np.random.RandomState(seed).random(), (
            "the source uses or seeds NumPy's own random numbers, which are the user's; use numpy.random.default_rng"
        )
    finally:
        np.random.set_state(earlier)  # noqa: NPY002
    return data


def _check_repeated(data: Dataset, repeated: Dataset) -> None:
    for name in ("X_train", "y_train", "X_test", "y_test"):
        first, second = getattr(data, name), getattr(repeated, name)
        assert _equal(first, second), f"{name} differs from one call to the next, with the same spec"
    assert data.classes == repeated.classes, (
        f"classes differ from one call to the next: {data.classes}, {repeated.classes}"
    )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    return a.shape == b.shape and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("indptr", "indices", "data")
    )


def _check_rows(data: Dataset) -> None:
    for name, X in (("X_train", data.X_train), ("X_test", data.X_test)):
        shape = getattr(X, "shape", None)
        assert shape is not None and len(shape) == 2, f"{name} has shape {shape}, not rows x columns"
        assert X.dtype == np.float64, f"{name} is of {X.dtype}, not float64"
        assert shape[0] > 0 and shape[1] > 0, f"{name} has {shape[0]} rows and {shape[1]} columns"
        values = X if isinstance(X, np.ndarray) else _checked_sparse(X, name)
        assert np.isfinite(values).all(), f"{name} has values that are missing or not finite"
    train, test = data.X_train.shape[1], data.X_test.shape[1]
    assert train == test, f"training rows have {train} columns, test rows {test}"
    for name, X, y in (("train", data.X_train, data.y_train), ("test", data.X_test, data.y_test)):
        assert isinstance(y, np.ndarray) and y.dtype == np.float64, f"y_{name} is not an array of float64"
        assert y.shape == X.shape[:1], f"y_{name} has shape {y.shape}, but X_{name} has {X.shape[0]} rows"
        assert np.isfinite(y).all(), f"y_{name} has values that are missing or not finite"


def _checked_sparse(X: Matrix, name: str) -> Any:
    """Return the numbers of a sparse matrix, after checks of its form."""
    sparse: Any = X
    assert type(sparse).__name__ == "csr_array", f"{name} is a {type(sparse).__name__}, not an array or a csr_array"
    assert sparse.indices.dtype == np.int32 == sparse.indptr.dtype, f"{name} has indices of {sparse.indices.dtype}"
    assert sparse.has_canonical_format, f"{name} has indices that are not sorted, or twice; assemble() sorts them"
    return sparse.data


def _check_targets(data: Dataset) -> None:
    assert data.task in ("binary", "multiclass", "regression"), f"task is {data.task!r}"
    values = set(np.unique(np.concatenate([data.y_train, data.y_test])).tolist())
    assert len(set(data.classes)) == len(data.classes), f"classes are named twice: {data.classes}"
    assert all(isinstance(name, str) for name in data.classes), f"classes are text, got {data.classes!r}"
    if data.task == "regression":
        assert not data.classes, f"data for regression have no classes, got {data.classes}"
        return
    allowed = {-1.0, 1.0} if data.task == "binary" else set(map(float, range(len(data.classes))))
    expected = "-1 and 1" if data.task == "binary" else f"0 to {len(data.classes) - 1} with {len(data.classes)} classes"
    assert values <= allowed, f"targets of {data.task} data are {expected}, got {sorted(values - allowed)[:3]}"
    assert data.task != "binary" or len(data.classes) in (0, 2), f"binary data have two classes, got {data.classes}"
    assert data.task != "multiclass" or data.classes, "multiclass data have no names of classes"
    assert len(np.unique(data.y_train)) > 1, "all training rows are of one class"


def _check_files(spec: str, file: Path, content: bytes) -> None:
    """Check that files that cannot be read are refused in a sentence."""
    wrong = {
        "empty": b"",
        "truncated": content[: len(content) * 2 // 3],
        "damaged": bytes(byte ^ 0x5A for byte in content),
        "binary": bytes(range(256)) * 8,
    }
    with tempfile.TemporaryDirectory() as folder:
        missing = Path(folder, f"missing{file.suffix}")
        _check_refused(spec, missing, "is missing", must=True)
        _check_refused(spec, Path(folder), "is a folder", must=False)
        for kind, file_content in wrong.items():
            copy = Path(folder, kind) / file.name
            copy.parent.mkdir()
            copy.write_bytes(file_content)
            _check_refused(spec, copy, f"is {kind}", must=kind == "empty")


def _check_refused(spec: str, file: Path, what: str, *, must: bool) -> None:
    """Check that loading a file succeeds or raises BadInput; it ``must`` raise it, or may."""
    try:
        load(spec, file=file, progress=None)
    except BadInput:
        return
    except Exception as error:
        raise AssertionError(
            f"a file that {what} ends in {describe_error(error)}; raise anyk.BadInput with a sentence for the user"
        ) from error
    assert not must, f"a file that {what} is read without a word; raise anyk.BadInput"
