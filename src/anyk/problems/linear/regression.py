"""Linear models: logistic, least-squares and softmax regression on dense or sparse data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Array, Floats, Vector
from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.made_with import MadeWith
from anyk.problems.base import Better, Ends, ProblemAbilities, Recipe, cut, problem_text, some_rows
from anyk.problems.data.dataset import Dirichlet, Task, build_split
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.streams import NO_LOSS, SAMPLES, Stream
from anyk.problems.digests import digest_of
from anyk.problems.linear.row_partitions import LinearPartitions, as_matrix, losses_of
from anyk.problems.linear.scaling import (
    Scaling,
    array_of,
    checked_l2,
    design_of,
    encode_labels,
    extremes,
    in_units,
    model_columns,
    names_of_columns,
    penalty_factors,
    row_weights,
    start_in_columns,
    uneven_columns,
)
from anyk.problems.linear.sharded import LinearBatches, ShardRows, StreamRows
from anyk.problems.predicting import Predictor
from anyk.problems.surroundings import Variables, variables_of
from anyk.problems.watch import DATA, REMEDY_OF_PROBLEM, CodeWatch, Computing, rounding, sketch_of_problem
from anyk.tables import Column, Encoding, are_truths, check_sizes, is_sparse, listed, merged

_SQUARED_IN_SINGLE = 1e12  # larger numbers may have squares whose sum is infinite in single precision
_BOTH = "give X_test and y_test together, or neither"


@typed
class LinearProblem(ProblemAbilities):
    """The common part of the three linear problems; see :class:`~anyk.problems.base.Problem`.

    ``intercept``: adds a last column of ones, whose weights are not regularised. ``split``: how rows are spread over
    partitions by their labels (:class:`~anyk.problems.Dirichlet` or its spec), by default in their order.

    ``standardize``: columns are brought to mean 0 and variance 1 of the training rows (sparse columns to variance 1;
    constant columns stay), and the regulariser acts on the weights of the standardised columns; for categories of text
    in shards it acts on the weights of the original columns. ``scaling``: steps are taken in columns scaled in this way
    (:class:`~anyk.problems.linear.scaling.Scaling`), and the regulariser acts on the weights in its ``units``, by
    default the units of the input. Without either, a ``RuntimeWarning`` names columns whose sizes differ by more than a
    factor of 1,000. ``weights``: weights of the rows in the objective's mean, shape (rows,), at least 0. ``classes``:
    all labels, if the rows may lack some. ``start``: initial weights (columns x outputs) and intercepts (outputs,) in
    the units of the input; zeros by default.

    ``X`` may be :class:`~anyk.data.Shards`, which contain the targets: omit ``y``. Text is one-hot encoded, labels are
    the values of the target's column, and missing values are refused. ``X_test`` may then be shards, too. Such data is
    not read to evaluate the objective unless :class:`anyk.Evaluate` asks for it. Partitions are runs of rows in the
    order of the files: files that are sorted by their labels give partitions of one class.

    ``X`` may also be a :class:`~anyk.data.Stream` of pairs (x, y), for mini-batches: omit ``y``, specify ``classes``,
    and give an optimiser with a learning rate. ``scaling`` is then the only way to scale.
    """

    kind: ClassVar[str] = ""
    labelled: ClassVar[bool] = True
    curvature: ClassVar[float] = 1.0  # the largest curvature of a sample's loss as a function of its score
    task: ClassVar[Task] = "regression"
    metric: str
    better: Better
    l2: MadeWith[float] = MadeWith()
    penalty: MadeWith[float | Vector] = MadeWith("l2")
    intercept: MadeWith[bool] = MadeWith()
    standardize: MadeWith[bool] = MadeWith()
    samples: int
    X: Any
    X_test: Any = None
    y: Any = None  # shards and streams contain theirs
    y_test: Floats | None = None
    classes: Floats | None = None
    weights: Floats | None = None
    # of data read from files: how X was made, and the names of the classes
    encoding: Encoding = Encoding()
    labels: tuple[float | str, ...] = ()

    def __init__(
        self,
        X: Any,
        y: ArrayLike | None = None,
        *,
        l2: float = 0.0,
        X_test: Any = None,
        y_test: ArrayLike | None = None,
        recipe: Recipe | None = None,
        intercept: bool = False,
        split: Dirichlet | str | None = None,
        standardize: bool = False,
        scaling: Scaling | None = None,
        weights: ArrayLike | None = None,
        classes: Sequence[float] | None = None,
        start: tuple[Any, Any] | None = None,
        fill: Literal["mean"] | None = None,
    ) -> None:
        self.intercept, self.standardize, self.scaling = intercept, standardize, scaling
        self.l2, self._recipe = checked_l2(l2), recipe
        if standardize and scaling is not None:
            raise BadInput("standardize and scaling are two ways to do the same; give one")
        if self.labelled and scaling is not None and scaling.target:
            raise BadInput("the scaling's target is subtracted from numbers to predict, and this model has classes")
        if isinstance(X, Shards):
            _refuse_rows_beside("shards bring their", y=y, split=split, weights=weights, classes=classes)
            self._read_shards(X, X_test, y_test, fill)
        elif isinstance(X, Stream):
            _refuse_rows_beside("a stream brings its", y=y, split=split, weights=weights, fill=fill)
            self._read_stream(X, X_test, y_test, classes)
        else:
            _check_arrays(y, X_test, fill)
            self.uneven = build_split(split, None if self.labelled else "regression has numbers to predict")
            design = design_of(X, "X")
            self.encoding = _encoding_of(X, design)
            self.samples = int(design.shape[0])
            self.classes = self._read_classes(classes)
            self.y = self._read_targets(array_of(y, "y"), self.samples, "y")
            if weights is not None:
                self.weights = row_weights(weights, self.samples)
            if standardize:
                self.scaling = Scaling.standard(design, self.weights)
            elif scaling is not None:
                self.scaling = scaling.of_columns(design.shape[1])
            self.X = model_columns(design, self.scaling, intercept)
            self._hold_out(X_test, y_test, design.shape[1], "X has")
        self.outputs = int(self.classes.size) if self.task == "multiclass" and self.classes is not None else 1
        self.dimension = int(self.X.shape[1]) * self.outputs
        self._start = None
        if start is not None:
            features = int(self.X.shape[1]) - intercept
            self._start = start_in_columns(start, features, self.outputs, scaling=self.scaling, intercept=intercept)
        self.dtype = np.dtype(self.X.dtype)
        self.penalty = penalty_factors(
            self.l2,
            self.scaling,
            columns=int(self.X.shape[1]),
            outputs=self.outputs,
            intercept=intercept,
            dtype=self.dtype,
        )
        if recipe is None and (uneven := self.uneven_columns()) is not None:
            warnings.warn(uneven, RuntimeWarning, stacklevel=3)

    def _read_shards(self, shards: Shards, X_test: object, y_test: object, fill: Literal["mean"] | None) -> None:
        """Use rows that stay in their files in the place of ``X`` and ``y``."""
        self.X = X = ShardRows.learned(
            shards,
            self.task,
            intercept=self.intercept,
            standardize=self.standardize,
            ridge=self.l2 / self.curvature,
            scaling=self.scaling,
            fill=fill,
        )
        self.samples, self.scaling = X.shape[0], X.design.scaling
        self.encoding, self.labels = X.design.encoding, X.design.labels
        if self.labels:
            codes = [-1.0, 1.0] if self.task == "binary" else np.arange(len(self.labels))
            self.classes = np.array(codes if isinstance(self.labels[0], str) else self.labels, dtype=float)
        if isinstance(X_test, Shards):
            if y_test is not None:
                raise BadInput("shards bring their own targets; leave y_test out")
            self.X_test = X.held_out(X_test)
        elif X_test is not None or y_test is not None:
            raise BadInput("held-out rows of a model on shards must be shards, too: X_test=Shards(…), without y_test")
        self.evaluated_on = None if self.X_test is None else "held_out"

    def _read_stream(self, stream: Stream, X_test: object, y_test: object, classes: Sequence[float] | None) -> None:
        """Use rows that workers draw in the place of ``X`` and ``y``."""
        if self.standardize:
            raise BadInput("standardize needs a pass over the data, and a stream has no end; give scaling=Scaling(…)")
        self.classes = self._read_classes(classes)
        if self.labelled and self.classes is None:
            raise BadInput("which labels a stream has cannot be looked up; give classes=[…]")
        self.X = X = StreamRows(stream, self.kind, self.classes, intercept=self.intercept, scaling=self.scaling)
        self.samples, self.endless, self.scaling = SAMPLES, True, X.scaling
        if isinstance(X_test, Shards | Stream):
            raise BadInput(f"held-out rows of a model on a stream are arrays: {_BOTH}")
        self._hold_out(X_test, y_test, X.features, "the stream's samples")
        self.evaluated_on = None if self.X_test is None else "held_out"

    def _hold_out(self, X_test: object, y_test: object, columns: int, others: str) -> None:
        """Set the held-out rows and their targets, if there are any; ``others`` have this number of ``columns``."""
        if (X_test is None) != (y_test is None):
            raise BadInput(_BOTH)
        if X_test is None:
            return
        held_out = _in_order_of(self.encoding, design_of(X_test, "X_test"), names_of_columns(X_test))
        if held_out.shape[1] != columns:
            raise BadInput(f"X_test has {held_out.shape[1]} columns, {others} {columns}; they must agree")
        self.y_test = self._read_targets(array_of(y_test, "y_test"), held_out.shape[0], "y_test")
        self.X_test = model_columns(held_out, self.scaling, self.intercept)

    def uneven_columns(self) -> str | None:
        """Return a sentence on columns whose sizes differ by more than a factor of 1,000, unless they are scaled."""
        if self.scaling is not None or self.endless or not self.samples:
            return None
        features = int(self.X.shape[1]) - self.intercept
        low, high = self.X.extremes if isinstance(self.X, ShardRows) else extremes(self.X)
        return uneven_columns(low[:features], high[:features], self.encoding.names)

    __repr__ = problem_text

    def _read_targets(self, y: Array, rows: int, name: str) -> Floats:
        """Return targets as the model computes with them; raise :class:`~anyk.BadInput` for unusable ones."""
        if y.shape != (rows,):
            raise BadInput(f"{name} must have one value for each of the {rows} rows, got shape {y.shape}")
        if y.dtype.kind not in "biuf" or not np.isfinite(y).all():
            raise BadInput(f"{name} must hold finite numbers")
        values = y.astype(float)
        if not self.labelled:
            check_sizes(values[:, None], name)
        elif y.dtype.kind in "iu" and merged(values):
            raise BadInput(
                f"{name} holds labels such as {y[np.abs(values).argmax()]}, and numbers of that size cannot be told "
                "apart; number the labels first (numpy.unique(y, return_inverse=True))"
            )
        if not self.labelled:
            return values if self.scaling is None else values - self.scaling.target
        labels = np.unique(values)
        if self.classes is None:
            self.classes = self._classes_of(labels, name)
        return encode_labels(values, self.classes, self.kind, name, "y" if name == "y_test" else "classes")

    def _read_classes(self, classes: Sequence[float] | None) -> Floats | None:
        """Return all labels, if they are given; values have none."""
        if classes is None:
            return None
        if not self.labelled:
            raise BadInput("classes are of labels, and regression has numbers to predict; leave classes out")
        return self._classes_of(np.unique(array_of(classes, "classes").astype(float)), "classes")

    def _classes_of(self, labels: Floats, name: str) -> Floats:
        """Return all classes, given the distinct labels in ``name``; raise BadInput if they are unsuitable."""
        raise NotImplementedError("a problem with labels has classes")

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> LinearPartitions | LinearBatches:
        """Divide the rows into partitions; raise :class:`~anyk.BadInput` for fewer rows than partitions."""
        ends = cut(self.samples, partitions, shares)
        if isinstance(self.X, ShardRows | StreamRows):
            return LinearBatches(self.kind, self.outputs, self.X, ends)
        X, y, weights = ordered_rows(self, ends)
        return LinearPartitions(self.kind, self.outputs, X, y, ends, weights=weights)

    def watch_code(self) -> CodeWatch | None:
        """Return an object that notices if rows in memory are changed; None for rows that workers read themselves."""
        if isinstance(self.X, ShardRows | StreamRows):
            return None

        def variables(*, arrays: bool = True) -> Variables:
            rows = {"X": self.X, "y": self.y, "weights": self.weights}
            roots = {f"{DATA}'s {name}": array for name, array in rows.items() if array is not None}
            return variables_of(roots, arrays=arrays)

        present = Computing(variables, partial(sketch_of_problem, self))
        return CodeWatch(present, rounding(self.dtype), of="the problem", remedy=REMEDY_OF_PROBLEM)

    def initial(self) -> Vector:
        """Return ``start`` in the model's coordinates, or zeros."""
        w: Vector = np.zeros((self.X.shape[1], self.outputs), dtype=self.dtype)
        if self._start is not None:
            weights, intercepts = self._start
            w[: len(weights)] = weights
            if self.intercept:
                w[-1] = intercepts
        return w.reshape(-1)

    def loss(self, w: Vector) -> float:
        if self.endless:
            raise BadInput(NO_LOSS)
        total = 0.0
        for X, y in _rows_by_block(self.X, self.y):
            losses = losses_of(self.kind, self._scores(X, w), y)
            total += float(losses.sum() if self.weights is None else self.weights @ losses)
        return total / self.samples + 0.5 * float((self.penalty * w) @ w)

    def in_units(self, w: Vector) -> tuple[Floats, Floats]:
        """Return a model as weights (columns x outputs) and intercepts (outputs,) in the units of the input."""
        return in_units(w, self.outputs, self.intercept, self.scaling)

    def predictor(self) -> Predictor:
        """Return the predictor that a run stores; see :class:`~anyk.problems.predicting.Predictor`."""
        scaling = self.scaling
        classes = () if self.classes is None else tuple(self.classes.tolist())
        return Predictor(
            self.kind,
            features=int(self.X.shape[1]) - self.intercept,
            outputs=self.outputs,
            intercept=self.intercept,
            classes=self.labels[: len(classes)] or classes,
            encoding=self.encoding,
            center=() if scaling is None else tuple(scaling.center.tolist()),
            scale=() if scaling is None else tuple(scaling.scale.tolist()),
            target=0.0 if scaling is None else scaling.target,
        )

    def metrics(self, w: Vector) -> dict[str, float]:
        if self.X_test is None:
            return {}
        scored = [(y, self._scores(X, w)) for X, y in _rows_by_block(self.X_test, self.y_test)]
        y, scores = (np.concatenate(arrays) for arrays in zip(*scored, strict=True))
        return self._metrics(y, scores) if np.isfinite(scores).all() else {self.metric: float("nan")}

    def sampled(self, samples: int) -> Self:
        """Return the problem on a sample of its rows."""
        sample = copy(self)
        sample.X, y = _some_rows_of(self.X, self.y, samples, "train")
        sample.y = y.astype(float, copy=False)
        if self.weights is not None:
            sample.weights = self.weights[some_rows(self.samples, samples, "train")]
        sample.samples, sample.endless, sample.evaluated_on = len(y), False, "train"
        if self.X_test is not None:
            sample.X_test, sample.y_test = _some_rows_of(self.X_test, self.y_test, samples, "held out")
        return sample

    def recipe(self) -> Recipe | None:
        return self._recipe

    def digest(self) -> str | None:
        """Return a digest of the data, by which a later change is noticed; None if there is none."""
        uneven = () if self.uneven is None else self.uneven.digest_arrays
        weights = () if self.weights is None else (self.weights,)
        if isinstance(self.X, ShardRows):
            return digest_of(np.array([self.X.mark, "" if self.X_test is None else self.X_test.mark]))
        if self.endless:
            return digest_of(self.X.mark[0], self.X_test, self.y_test)
        return digest_of(self.X, self.y, self.X_test, self.y_test, *uneven, *weights)

    def smoothness(self, *, tol: float = 1e-3) -> float:
        """Return the largest curvature L of the objective: steps with learning rate 1 / L never overshoot.

        L is the largest eigenvalue of X'X / N (rows times their weights) times the loss's largest curvature (1/4
        logistic, 1/2 softmax, 1 squares), to a relative precision of ``tol`` (0: the number type's), plus the largest
        penalty. For shards with more than 1,024 columns the sum of the eigenvalues bounds the largest one.
        """
        from scipy.sparse.linalg import svds

        X = self.X
        if self.endless:
            raise BadInput(
                "no default learning rate is known for a stream; give one: --lr, or in Python "
                "optimizer=anyk.optimizers.GD(lr=…)"
            )
        if isinstance(X, ShardRows):
            return self.curvature * X.curvature() + float(np.max(self.penalty))
        if X.dtype == np.float32 and np.abs(X.data if is_sparse(X) else X).max(initial=0.0) > _SQUARED_IN_SINGLE:
            X = X.astype(np.float64)
        if self.weights is not None:
            roots = np.sqrt(self.weights).astype(X.dtype)[:, None]
            X = X.multiply(roots).tocsr() if is_sparse(X) else X * roots
        if min(X.shape) > 1:
            start = keyed_generator(0, "smoothness").standard_normal(min(X.shape)).astype(X.dtype)
            empty = not (X.count_nonzero() if is_sparse(X) else X.any())
            top = 0.0 if empty else float(svds(X, k=1, v0=start, return_singular_vectors=False, tol=tol)[0])
        else:
            top = float(np.sqrt((X * X).sum()))
        return self.curvature * top**2 / self.samples + float(np.max(self.penalty))

    def _scores(self, X: Any, w: Vector) -> Floats:
        return np.asarray(X @ as_matrix(w, self.outputs), dtype=float)

    def _metrics(self, y: Floats, scores: Floats) -> dict[str, float]:
        raise NotImplementedError("a linear problem has a metric")


def _encoding_of(X: Any, design: Any) -> Encoding:
    """Return the columns of a table by their names; of an array without names an empty encoding."""
    names = names_of_columns(X)
    if not names:
        return Encoding()
    truths = [not is_sparse(design) and are_truths(design[:, i]) for i in range(len(names))]
    return Encoding(tuple(Column(name, truth=truth) for name, truth in zip(names, truths, strict=True)), named=True)


def _in_order_of(encoding: Encoding, held_out: Any, names: Sequence[str]) -> Any:
    """Return held-out rows with the columns of the training rows by name, if both have names."""
    trained = [column.name for column in encoding.columns]
    if not (names and encoding.named) or list(names) == trained:
        return held_out
    if sorted(names) != sorted(trained):
        raise BadInput(f"X_test has the columns {listed(names)}, X has {listed(trained)}; they must agree")
    return held_out[:, [names.index(name) for name in trained]]


def ordered_rows(problem: LinearProblem, ends: Ends) -> tuple[Any, Floats, Floats | None]:
    """Return the training rows, their targets and weights, in the order of the partitions with these ends."""
    X, y, weights = problem.X, problem.y, problem.weights
    if problem.uneven is None:
        return X, y, weights
    order = problem.uneven.order(y, ends)
    return X[order], y[order], None if weights is None else weights[order]


def _listed(numbers: Floats) -> str:
    """Return the first five numbers for a message."""
    return ", ".join(f"{number:.15g}" for number in numbers[:5]) + ", …" * (len(numbers) > 5)


def _refuse_rows_beside(bring: str, **arguments: Any) -> None:
    """Refuse arguments for data that brings its own rows and targets."""
    for name, value in arguments.items():
        if value is not None:
            raise BadInput(f"{bring} own rows and targets, as they come; leave {name} out")


def _check_arrays(y: object, X_test: object, fill: str | None) -> None:
    """Raise BadInput for arguments that do not go with an array as ``X``."""
    if y is None:
        raise BadInput("y, the targets of X, is missing")
    if isinstance(X_test, Shards) or fill is not None:
        which = "X_test may be" if fill is None else "fill is for"
        raise BadInput(f"{which} shards only where X is; give arrays")


def _rows_by_block(X: object, y: object) -> Iterable[tuple[Any, Any]]:
    """Return rows and targets; from files, block by block."""
    return X.by_block(0, len(X)) if isinstance(X, ShardRows) else [(X, y)]


def _some_rows_of(X: Any, y: Any, samples: int, purpose: str) -> Sequence[Any]:
    """Return ``samples`` of the rows and their targets, in memory."""
    if isinstance(X, ShardRows | StreamRows):
        return X.some(samples, purpose).arrays
    rows = some_rows(X.shape[0], samples, purpose)
    return X[rows], y[rows]


class LogisticRegression(LinearProblem):
    """Logistic regression: loss ``log(1 + exp(-y x.w))``, labels -1 and +1 (or any two values); metric AUC.

    Further metrics: accuracy, and the share of the more frequent label of the held-out rows.

    ``X``: rows x columns, NumPy or scipy.sparse; ``l2`` as in the objective. Raises
    :class:`~anyk.BadInput` for NaN in the data, labels of one class or of more than two.

    >>> import numpy as np
    >>> problem = LogisticRegression(np.eye(2), [1, -1])
    >>> round(problem.loss(np.zeros(2)), 6)
    0.693147
    """

    kind = "logistic"
    task = "binary"
    curvature = 0.25
    metric = "auc"
    better = "higher"

    def _classes_of(self, labels: Floats, name: str) -> Floats:
        if labels.size != 2:
            count = "one class only" if labels.size < 2 else f"{labels.size} classes"
            other = "" if labels.size < 2 else "; for more than two use SoftmaxRegression"
            raise BadInput(f"logistic regression needs labels of two classes, got {count}{other}")
        return labels

    def _metrics(self, y: Floats, scores: Floats) -> dict[str, float]:
        from sklearn.metrics import roc_auc_score

        auc = float(roc_auc_score(y, scores)) if np.unique(y).size == 2 else float("nan")
        second = float(np.mean(y > 0))
        return {"auc": auc, "accuracy": float(np.mean((scores > 0) == (y > 0))), "majority": max(second, 1.0 - second)}


class LeastSquares(LinearProblem):
    """Least squares: loss ``(x.w - y)^2 / 2``; metric MSE (mean squared error, without the half), and R²."""

    kind = "least-squares"
    labelled = False
    metric = "mse"
    better = "lower"

    def _metrics(self, y: Floats, scores: Floats) -> dict[str, float]:
        mse, spread = float(np.mean((y - scores) ** 2)), float(np.var(y))
        return {"mse": mse, "r2": 1.0 - mse / spread if spread else float("nan")}


class SoftmaxRegression(LinearProblem):
    """Softmax regression: cross-entropy over classes 0, …, C-1; metrics accuracy and the most frequent class's share.

    Labels with gaps, such as 10, 20 and 50, are refused unless ``classes`` says that rows lack some. The model is the
    (columns x classes) matrix, row by row, as one flat vector.
    """

    kind = "softmax"
    task = "multiclass"
    curvature = 0.5
    metric = "accuracy"
    better = "higher"

    def _classes_of(self, labels: Floats, name: str) -> Floats:
        if labels.size < 2:
            raise BadInput("softmax regression needs at least two classes, got one class only")
        classes = np.arange(labels[-1] + 1)
        if name == "classes" and not np.array_equal(labels, classes):
            raise BadInput(f"classes of softmax regression must be 0, 1, 2, …, got {labels.tolist()}")
        if not np.isin(labels, classes).all():
            raise BadInput(f"{name} must hold classes 0, 1, 2, …; number the labels first")
        if labels.size < classes.size:
            raise BadInput(
                f"{name} holds the labels {_listed(labels)} alone, and classes are 0, 1, 2, …; number the labels "
                f"first (numpy.unique(y, return_inverse=True)), or give classes=range({classes.size}) if rows lack some"
            )
        return classes

    def _metrics(self, y: Floats, scores: Floats) -> dict[str, float]:
        most = float(np.unique(y, return_counts=True)[1].max() / len(y))
        return {"accuracy": float(np.mean(scores.argmax(axis=1) == y)), "majority": most}
