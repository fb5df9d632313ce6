"""Data sets in memory: the class, the registry of sources, and splits into training and test rows and partitions."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.checks import typed, value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.registries import Registry
from anyk.base.specs import parse_spec, show_spec
from anyk.problems.base import Ends, Index, Tell
from anyk.tables import Column, Encoding, Matrix, merged

Task: TypeAlias = Literal["binary", "multiclass", "regression"]
Fraction = Annotated[float, msgspec.Meta(gt=0, lt=1)]

MOST_CLASSES = 20  # a target of whole numbers has classes if it has at most this number of different values


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows with their targets.

    ``X_*`` are float64, dense (ndarray) or sparse (``scipy.sparse.csr_array``, int32 indices, sorted), of shape
    ``(rows, features)``. ``y_*`` are float64 of shape ``(rows,)``: -1 and +1 for ``binary``, 0 to C-1 for
    ``multiclass``, any number for ``regression``. ``classes`` holds the original labels in that order, and is empty
    for regression. ``name`` is the spec of the data set.

    ``intercept``: whether a model should add an intercept, because ``X`` has no constant column. ``standardize``:
    whether a linear model standardises the columns by default, because they may be in any units. For a file,
    ``encoding`` describes the columns that ``X`` was made from, and ``summary`` is a sentence on how the file was read.
    """

    name: str
    task: Task
    X_train: Matrix
    y_train: Floats
    X_test: Matrix
    y_test: Floats
    classes: tuple[str, ...] = ()
    intercept: bool = False
    standardize: bool = False
    encoding: Encoding = field(default_factory=Encoding)
    summary: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the file from which ``X`` was made."""
        return self.encoding.columns

    @property
    def labels(self) -> tuple[float | str, ...]:
        """The classes as text or, if the file has numbers, as numbers."""
        try:
            return self.classes if self.encoding.words else tuple(map(float, self.classes))
        except ValueError:  # the source is no file
            return self.classes

    @property
    def label(self) -> str:
        """The name of the target's column in the file."""
        return self.encoding.label


def tell(sentence: str) -> None:
    """Print a sentence to standard error."""
    print(sentence, file=sys.stderr)


sources: Registry[Dataset] = Registry("data set", supplied=("file", "progress"))


def load(spec: str, *, file: str | Path | None = None, progress: Tell | None = tell) -> Dataset:
    """Return the data set of a spec such as ``digits`` or ``synthetic:rows=200,task=regression``.

    ``file`` is the local file that the source reads (on the command line: ``--data-file``). ``progress`` is called
    with one sentence before any slow work and with a summary of a file; by default the sentences are printed to
    standard error, with None they are not printed. Raises BadInput for an unknown source or key, a file that is
    missing, unreadable or of the wrong kind, and for data from which no model can learn.

    >>> from anyk.problems.data import load
    >>> load("synthetic:rows=50,features=3").X_train.shape
    (40, 3)
    """
    name, _ = parse_spec(spec)
    if Path(name).suffix and name not in sources:
        raise BadInput(
            f"'{name}' looks like a file; to read one use the data set 'file' with --data-file {name}, or "
            f"shards:files={name} where it does not fit into memory"
        )
    if name == "shards":
        raise BadInput("shards stay in their files, so there are no arrays to load; see anyk.data.Shards")
    parameters = inspect.signature(sources.entry(name).build).parameters
    _check_file_needed(name, parameters, file)
    arguments = {"file": None if file is None else Path(file).expanduser(), "progress": progress}
    try:
        data = sources.build(spec, **{key: value for key, value in arguments.items() if key in parameters})
    except MemoryError:
        raise BadInput(f"data set '{spec}' does not fit into the memory of this machine; ask for fewer rows") from None
    if not isinstance(data, Dataset):
        raise BadInput(
            f"data set '{name}' returned {type(data).__name__}, not a Dataset; anyk.problems.data.assemble makes one"
        )
    if progress is not None and data.task == "binary" and (data.y_test == data.y_test[0]).all():
        progress(_of_one_class(data))
    return replace(data, name=spec.strip())


def _check_file_needed(name: str, parameters: Mapping[str, inspect.Parameter], file: str | Path | None) -> None:
    """Raise BadInput if the source ``name`` needs a file and none is given, or takes none."""
    if "file" not in parameters:
        if file is not None:
            raise BadInput(f"data set '{name}' takes no file, got '{file}'; to read your own use the data set 'file'")
    elif file is None and parameters["file"].default is inspect.Parameter.empty:
        raise BadInput(f"data set '{name}' needs a file; give it with --data-file (in Python: file=...)")


def _of_one_class(data: Dataset) -> str:
    """Return a remark on held-out rows that are all of one class."""
    only = data.classes[int(data.y_test[0] > 0)]
    rows = "1 held-out row is" if len(data.y_test) == 1 else f"{len(data.y_test)} held-out rows are"
    return (
        f"the {rows} of one class ('{only}'), so their AUC is not defined (nan); hold out more rows (test=) or "
        "split by another seed="
    )


def assemble(
    X: Matrix,
    y: Floats,
    task: Task,
    classes: tuple[str, ...] = (),
    *,
    test: float,
    seed: int,
    X_test: Matrix | None = None,
) -> Dataset:
    """Return a data set with the fraction ``test`` of its rows held out; ``seed`` selects them and shuffles all.

    ``X``, ``y`` and ``classes`` are as in :class:`Dataset`, but ``y`` may be of whole numbers. If there are separate
    test rows, ``X_test``, whose targets are the last of ``y``, no others are held out. Raises BadInput for arrays that
    do not go together, and for targets that the task does not have.

    >>> assemble(np.eye(4), np.array([0, 1, 2, 1]), "multiclass", ("red", "green", "blue"), test=0.25, seed=0).classes
    ('red', 'green', 'blue')
    """
    for name, inputs in (("X", X), ("X_test", X if X_test is None else X_test)):
        if not hasattr(inputs, "shape") or inputs.dtype.kind not in "biuf" or isinstance(inputs, np.ma.MaskedArray):
            masked = "masked " if isinstance(inputs, np.ma.MaskedArray) else ""
            kind = f"{masked}{inputs.dtype}" if hasattr(inputs, "dtype") else type(inputs).__name__
            raise BadInput(f"{name} of a data set must be an array of real numbers, got {kind}")
        if len(inputs.shape) != 2:
            raise BadInput(f"{name} of a data set must be of shape (rows, features), got {inputs.shape}")
    rows, features = X.shape
    y = _checked_target(y, rows + (0 if X_test is None else X_test.shape[0]), task, classes)
    if not features:
        raise BadInput("a data set needs at least 1 column beside the target, got none")
    if X_test is None:
        train, last = split_rows(rows, test, seed)
        X, X_test, y_train, y_test = X[train], X[last], y[train], y[last]
    else:
        y_train, y_test = y[:rows], y[rows:]
    if task != "regression" and (y_train == y_train[0]).all():
        raise BadInput("all training rows are of one class; hold out fewer rows (test=) or split by another seed=")
    return Dataset(
        name="",
        task=task,
        X_train=_canonical(X),
        y_train=y_train,
        X_test=_canonical(X_test),
        y_test=y_test,
        classes=classes,
    )


def _checked_target(y: Any, rows: int, task: Task, classes: tuple[str, ...]) -> Floats:
    """Return targets as float64; raise BadInput unless there is one a row, of the task and its classes."""
    y = np.asarray(y)
    if y.shape != (rows,) or y.dtype.kind not in "fiub":
        raise BadInput(f"y of a data set must be numbers of shape ({rows},), one a row, got {y.dtype} of {y.shape}")
    if not isinstance(classes, tuple) or not all(isinstance(name, str) for name in classes):
        raise BadInput(f"classes of a data set must be their names, a tuple of texts, got {classes!r}")
    if task != "regression":
        allowed = (-1, 1) if task == "binary" else range(len(classes))
        if (wrong := y[~np.isin(y, allowed)]).size:
            numbers = f"the number of one of its {len(classes)} classes, from 0" if task == "multiclass" else "-1 or 1"
            raise BadInput(f"y of a data set for task={task} must be {numbers}, got {wrong[0]:g}")
    targets: Floats = y.astype(np.float64, copy=False)
    return targets


@typed
def split_rows(rows: int, test: Fraction, seed: int) -> tuple[Array, Array]:
    """Return the numbers of the training rows and of the test rows, both shuffled; raise BadInput for too few rows."""
    if rows < 2:
        raise BadInput(f"a data set needs at least 2 rows, one to train and one to test, got {rows}")
    # Rounded before ceil: 0.7 * 10 is a hair above 7, which is no reason to hold out an eighth row.
    test_rows = min(max(math.ceil(round(test * rows, 6)), 1), rows - 1)
    order = keyed_generator(seed, "split").permutation(rows)
    return order[: rows - test_rows], order[rows - test_rows :]


def _canonical(X: Any) -> Matrix:
    """Return a contiguous array, or a sparse one with sorted int32 indices and no duplicates; both float64."""
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X, dtype=float)
    from scipy.sparse import csr_array

    limit = np.iinfo(np.int32).max
    if max(X.shape[1], X.nnz) > limit:
        raise BadInput(
            f"the data have {X.shape[1]} columns and {X.nnz} non-zeros; at most {limit} of each are possible"
        )
    matrix = csr_array(X, dtype=float)
    matrix.sum_duplicates()  # sorts, too
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def guess_of_classes(number: int, where: str) -> str:
    """Return a sentence on whole numbers in ``where`` that :func:`read_target` took for classes."""
    return f"a guess: the {number} different whole numbers in {where} are classes; task=regression predicts numbers"


def read_target(values: Array, task: Task | Literal["auto"], where: str) -> tuple[Floats, Task, tuple[str, ...]]:
    """Return targets as numbers, the task and the class names, from numbers or text of shape ``(rows,)``.

    With ``auto``, a target with two different values is binary. Text is multiclass, as are whole numbers with at most
    20 different values that occur at least twice on average. Any other target is for regression. Classes are numbered
    in the order of their values. ``where`` names the target in errors.
    """
    is_text = values.dtype.kind not in "fiub"
    labels, codes = np.unique(values, return_inverse=True)
    if task == "auto":
        few = len(labels) <= min(MOST_CLASSES, len(values) / 2)
        classes = is_text or (few and _all_whole(labels))
        task = "binary" if len(labels) <= 2 else "multiclass" if classes else "regression"
    if task == "regression":
        if is_text:
            raise BadInput(
                f"{where} holds text, such as '{labels[0]}', but regression needs numbers; use task=multiclass"
            )
        return values.astype(float), task, ()
    _check_labels(labels, task, where)
    y = codes.astype(float)
    return 2 * y - 1 if task == "binary" else y, task, tuple(map(_label_text, labels))


def _check_labels(labels: Array, task: Task, where: str) -> None:
    """Raise BadInput if different labels, numbers or text, are no classes of the task."""
    numbers = labels.dtype.kind in "fiub"
    if numbers and merged(labels):
        raise BadInput(
            f"{where} holds labels such as {labels[np.abs(labels).argmax()]:.0f}, and numbers of that size cannot be "
            "told apart; save labels as text"
        )
    if len(labels) == 1:
        raise BadInput(
            f"{where} holds one class only, '{_label_text(labels[0])}'; two or more are needed to learn from"
        )
    if task == "binary" and len(labels) > 2:
        raise BadInput(f"{where} has {len(labels)} different values but task=binary needs two; use task=multiclass")
    if task == "multiclass" and numbers and not _all_whole(labels):
        broken = labels[labels != np.floor(labels)][0]
        raise BadInput(f"{where} holds fractions, such as {broken:g}, which are not classes; use task=regression")


def _all_whole(numbers: Array) -> bool:
    return bool((numbers == np.floor(numbers)).all())


def _label_text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return str(int(value)) if value == math.floor(value) else repr(float(value))


splits: Registry[Dirichlet] = Registry("split")


@splits.register("dirichlet")
@value_class
class Dirichlet:
    """Partitions that differ in their labels: the shares of the classes follow a Dirichlet distribution.

    The shares of the C classes in a partition are sampled from ``Dir(alpha C p)``, where p are the shares in the rows
    that no earlier partition has: ``Dir(alpha, …, alpha)`` if classes are equally frequent. With a large ``alpha`` all
    partitions have the same labels, with a small one most have one or two. When a class has no rows left, rows of other
    classes replace it, so the last partitions are more mixed. Sizes stay even, or in the proportions that a strategy
    requests, and each row is in one partition: the objective is the same. (After Hsu, Qi and Brown 2019.)

    >>> Dirichlet(alpha=0.3, seed=1).spec
    'dirichlet:alpha=0.3,seed=1'
    """

    alpha: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
    seed: int = 0

    @property
    def spec(self) -> str:
        """The spec that builds this split."""
        return show_spec("dirichlet", {"alpha": self.alpha, "seed": self.seed}, {"seed": 0})

    @property
    def digest_arrays(self) -> tuple[Array, ...]:
        """The arrays that the split adds to the digest of a problem's data."""
        return (np.array(self.spec),)

    def order(self, labels: Array, ends: Ends) -> Index:
        """Return all rows in the order of their partitions, shape (rows,).

        ``labels``: shape (rows,). ``ends``: the start of each partition and the end of the last, shape
        (partitions + 1,).
        """
        _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        rows = [
            keyed_generator(self.seed, "dirichlet rows", c).permutation(np.flatnonzero(codes.reshape(-1) == c))
            for c in range(len(counts))
        ]
        used, partitions = np.zeros_like(counts), []
        for j, (a, b) in enumerate(pairwise(ends.tolist())):
            amounts = _sample_amounts(self.alpha, counts - used, b - a, keyed_generator(self.seed, "dirichlet", j))
            taken = [rows[c][used[c] : used[c] + number] for c, number in enumerate(amounts.tolist())]
            partitions.append(np.sort(np.concatenate(taken)))
            used += amounts
        return np.concatenate(partitions).astype(np.intp)


def _sample_amounts(alpha: float, unused: Array, size: int, random: np.random.Generator) -> Array:
    """Return the number of rows of each class in a partition of ``size`` rows, at most the ``unused`` ones."""
    shares, amounts = np.zeros(len(unused)), np.zeros_like(unused)
    shares[unused > 0] = random.dirichlet(alpha * len(unused) * unused[unused > 0] / unused.sum())
    while (missing := size - int(amounts.sum())) > 0:
        available = unused - amounts
        weights = shares * (available > 0)
        if not weights.sum() > 0.0:  # all rows of its classes are used
            weights = available.astype(float)
        # rounded up or down at random, so that expected values and the sum do not change
        ends = np.floor(np.cumsum(missing * weights / weights.sum()) + random.random())
        amounts += np.minimum(available, np.diff(np.minimum(ends, missing), prepend=0.0).astype(unused.dtype))
    return amounts


def build_split(split: Dirichlet | str | None, unlabelled: str | None) -> Dirichlet | None:
    """Return the split; raise BadInput if a problem has no labels, for the reason ``unlabelled``."""
    built = splits.build(split) if isinstance(split, str) else split
    if built is not None and unlabelled is not None:
        raise BadInput(f"split={built.spec} needs labels, and {unlabelled}; leave split out")
    return built
