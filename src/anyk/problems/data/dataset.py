"""What a data set is here, the registry of sources, and the split into training and test rows."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.keyed import generator
from anyk.problems.data.encoding import Column, Encoding, Matrix
from anyk.specs import Registry, parse

Task: TypeAlias = Literal["binary", "multiclass", "regression"]
Progress: TypeAlias = Callable[[str], None]

_FEW = 20  # a target of at most so many different whole numbers is taken for classes


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows with their targets.

    ``X_*`` are float64, dense (ndarray) or sparse (``scipy.sparse.csr_array``, int32 indices, sorted), of shape
    ``(rows, features)``. ``y_*`` are float64 of shape ``(rows,)``: -1 and +1 for ``binary``, 0 to C-1 for
    ``multiclass``, any number for ``regression``. ``classes`` holds the original labels in that order, and is empty
    for regression. ``name`` is the spec the data set was made from.

    ``intercept``: a model should add an intercept, as ``X`` has no constant column. ``standardize``: a linear model
    standardises the columns unless told otherwise, as they may be in any units. Of a file: ``encoding`` says what
    ``X`` was made from (``columns``, in order, and ``label``, the target's name), and ``summary`` says in a sentence
    how the file was understood.
    """

    name: str
    task: Task
    X_train: Matrix
    y_train: NDArray[np.float64]
    X_test: Matrix
    y_test: NDArray[np.float64]
    classes: tuple[str, ...] = ()
    intercept: bool = False
    standardize: bool = False
    encoding: Encoding = field(default_factory=Encoding)
    summary: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the file that ``X`` was made from."""
        return self.encoding.columns

    @property
    def labels(self) -> tuple[float | str, ...]:
        """The classes as they were: text, or numbers."""
        try:
            return self.classes if self.encoding.words else tuple(map(float, self.classes))
        except ValueError:  # of a source that is not a file
            return self.classes

    @property
    def label(self) -> str:
        """The target's column of the file."""
        return self.encoding.label


def tell(sentence: str) -> None:
    """Print a sentence to standard error."""
    print(sentence, file=sys.stderr)


sources: Registry[Dataset] = Registry("data set", supplied=("file", "progress"))


def load(spec: str, *, file: str | Path | None = None, progress: Progress | None = tell) -> Dataset:
    """The data set that a spec asks for, such as ``digits`` or ``synthetic:rows=200,task=regression``.

    ``file`` is the local file that the source reads (on the command line: ``--data-file``); ``progress`` is called
    with one sentence before something slow, and to say how a file was understood; left out, it prints to standard
    error, and with None nothing is said. Raises BadInput for an unknown source or key, a file that is absent,
    unreadable or of the wrong kind, and for data from which nothing can be learned.

    >>> from anyk.problems.data import load
    >>> load("synthetic:rows=50,features=3").X_train.shape
    (40, 3)
    """
    name, _ = parse(spec)
    if name not in sources and Path(name).suffix:
        raise BadInput(
            f"'{name}' looks like a file; to read one use the data set 'file' with --data-file {name}, or "
            f"shards:files={name} where it does not fit into memory"
        )
    if name == "shards":
        raise BadInput("shards stay in their files, so there are no arrays to load; see anyk.data.Shards")
    takes = inspect.signature(sources.entry(name).build).parameters
    if "file" not in takes:
        if file is not None:
            raise BadInput(f"data set '{name}' takes no file, got '{file}'; to read your own use the data set 'file'")
    elif file is None and takes["file"].default is inspect.Parameter.empty:
        raise BadInput(f"data set '{name}' needs a file; give it with --data-file (in Python: file=...)")
    arguments = {"file": None if file is None else Path(file).expanduser(), "progress": progress}
    try:
        data = sources.build(spec, **{key: value for key, value in arguments.items() if key in takes})
    except MemoryError:
        raise BadInput(f"data set '{spec}' does not fit into the memory of this machine; ask for fewer rows") from None
    if progress is not None and data.task == "binary" and (data.y_test == data.y_test[0]).all():
        only = data.classes[int(data.y_test[0] > 0)]
        rows = "1 held-out row is" if len(data.y_test) == 1 else f"{len(data.y_test)} held-out rows are"
        progress(
            f"the {rows} of one class ('{only}'), so their AUC is not defined (nan); hold out more rows (test=) or "
            "split by another seed="
        )
    return replace(data, name=spec.strip())


def check_fraction(test: float) -> None:
    """Raise BadInput unless ``test`` lies between 0 and 1."""
    if not 0 < test < 1:
        raise BadInput(f"test should be a fraction between 0 and 1, such as 0.2, got {test:g}")


def assemble(
    X: Matrix,
    y: NDArray[np.float64],
    *,
    task: Task,
    classes: tuple[str, ...] = (),
    test: float,
    seed: int,
) -> Dataset:
    """Hold out the fraction ``test`` of the rows, chosen by ``seed``; the order of rows is shuffled by it too."""
    rows, features = X.shape
    if not features:
        raise BadInput("a data set needs at least 1 column beside the target, got none")
    train, last = held_out(rows, test, seed)
    return joined(X[train], y[train], X[last], y[last], task=task, classes=classes)


def held_out(rows: int, test: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of so many rows train and which test, both shuffled; raises :class:`~anyk.errors.BadInput` for too few."""
    check_fraction(test)
    if rows < 2:
        raise BadInput(f"a data set needs at least 2 rows, one to train and one to test, got {rows}")
    # Rounded before ceil: 0.7 * 10 is a hair above 7, which is no reason to hold out an eighth row.
    test_rows = min(max(math.ceil(round(test * rows, 6)), 1), rows - 1)
    order = generator(seed, "split").permutation(rows)
    return order[: rows - test_rows], order[rows - test_rows :]


def joined(
    X_train: Matrix,
    y_train: NDArray[np.float64],
    X_test: Matrix,
    y_test: NDArray[np.float64],
    *,
    task: Task,
    classes: tuple[str, ...] = (),
) -> Dataset:
    """A data set from training and test rows that are already apart."""
    if task != "regression" and (y_train == y_train[0]).all():
        raise BadInput("all training rows are of one class; hold out fewer rows (test=) or split by another seed=")
    return Dataset("", task, _tidy(X_train), y_train, _tidy(X_test), y_test, classes)


def _tidy(X: Any) -> Matrix:
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X, dtype=np.float64)
    from scipy.sparse import csr_array

    limit = np.iinfo(np.int32).max
    if max(X.shape[1], X.nnz) > limit:
        raise BadInput(
            f"the data have {X.shape[1]} columns and {X.nnz} non-zeros; at most {limit} of each are possible"
        )
    tidy: csr_array[Any] = csr_array(X, dtype=np.float64)
    tidy.sum_duplicates()  # sorts, too
    tidy.indices, tidy.indptr = tidy.indices.astype(np.int32), tidy.indptr.astype(np.int32)
    return tidy


def read_target(
    values: NDArray[Any], task: Task | Literal["auto"], where: str
) -> tuple[NDArray[np.float64], Task, tuple[str, ...]]:
    """Targets as numbers, the task and the class names, from numbers or text of shape ``(rows,)``.

    With ``auto``, two different values make a binary task; text, or at most 20 whole numbers that each come twice on
    average, make classes; anything else is regression. Classes are numbered in the order of their values. ``where``
    names the target in errors.
    """
    text = values.dtype.kind not in "fiub"
    labels, codes = np.unique(values, return_inverse=True)
    whole = text or bool((labels == np.floor(labels)).all())
    few = len(labels) <= min(_FEW, len(values) / 2)
    if task == "auto":
        task = "binary" if len(labels) <= 2 else "multiclass" if text or (whole and few) else "regression"
    if task == "regression":
        if text:
            raise BadInput(
                f"{where} holds text, such as '{labels[0]}', but regression needs numbers; use task=multiclass"
            )
        return values.astype(np.float64), task, ()
    if len(labels) == 1:
        raise BadInput(f"{where} holds one class only, '{_label(labels[0])}'; two or more are needed to learn from")
    if task == "binary" and len(labels) > 2:
        raise BadInput(f"{where} has {len(labels)} different values but task=binary needs two; use task=multiclass")
    if task == "multiclass" and not whole:
        broken = labels[labels != np.floor(labels)][0]
        raise BadInput(f"{where} holds fractions, such as {broken:g}, which are not classes; use task=regression")
    y = codes.astype(np.float64)
    return 2 * y - 1 if task == "binary" else y, task, tuple(map(_label, labels))


def _label(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return str(int(value)) if value == math.floor(value) else repr(float(value))
