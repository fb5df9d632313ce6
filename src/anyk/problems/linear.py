"""Linear models: logistic, least-squares and softmax regression on dense or sparse data."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk import keyed
from anyk.checks import typed
from anyk.errors import BadInput
from anyk.problems.base import Index, Vector, cut, problem_text
from anyk.problems.digest import digest_of
from anyk.problems.splits import Dirichlet, checked

if TYPE_CHECKING:
    import scipy.sparse

Floats = NDArray[np.float64]
Design: TypeAlias = "Floats | scipy.sparse.csr_array"

_LOCAL = 0.5  # a partition touching less than this share of the coordinates is kept, and answers, on those alone


def _design(X: Any, name: str) -> Any:
    """``X`` as a finite 2-D array or CSR array of floats; float32 stays, everything else becomes float64."""
    from scipy import sparse

    is_sparse: bool = sparse.issparse(X)
    if is_sparse:
        X = sparse.csr_array(X, copy=True)  # the caller's stays as it is
        X.sum_duplicates()
        values = X.data
    else:
        X = np.asarray(X)
        if X.ndim != 2:
            raise BadInput(f"{name} must be a table (rows x columns), got shape {X.shape}")
        values = X
    if not (np.issubdtype(values.dtype, np.number) or values.dtype == bool) or np.iscomplexobj(values):
        raise BadInput(f"{name} must hold numbers, got {values.dtype}")
    if values.dtype != np.float32:
        X = X.astype(np.float64, copy=False)
    bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
    if bad:
        raise BadInput(f"{name} has {bad} values that are NaN or infinite; drop or fill those rows first")
    return X if is_sparse else np.ascontiguousarray(X)


class LinearPartitions:
    """A linear model's training rows in partitions; see :class:`~anyk.problems.base.Partitions`.

    A sparse partition keeps only the columns it touches, renumbered, so that products run in cache and a reply
    covers nothing else. ``free``: the regulariser's factor that the last column, an intercept's, is to be spared: its
    sums have that much less, which is what the driver will add.
    """

    def __init__(self, kind: str, outputs: int, X: Any, y: Vector, ends: NDArray[np.int64], free: float = 0.0) -> None:
        from scipy import sparse

        self.kind, self.outputs, self.free = kind, outputs, free
        self.features = X.shape[1]
        self.dimension = self.features * outputs
        self.dtype = np.dtype(X.dtype)
        self.sizes = tuple(np.diff(ends).tolist())
        self._y = [np.ascontiguousarray(y[a:b], dtype=self.dtype) for a, b in pairwise(ends)]
        self._X: list[Any] = []
        self._columns: list[Index | None] = []
        for a, b in pairwise(ends):
            rows: Any = X[a:b]
            columns: Index | None = None
            if hasattr(rows, "indptr"):
                touched, local = np.unique(rows.indices, return_inverse=True)
                if touched.size < _LOCAL * self.features:
                    columns = touched.astype(np.intp)
                    rows = sparse.csr_array(
                        (rows.data, local.astype(np.int32).reshape(-1), rows.indptr.astype(np.int32)),
                        shape=(rows.shape[0], touched.size),
                    )
            self._X.append(rows)
            self._columns.append(columns)

    def only(self, partitions: Sequence[int]) -> LinearPartitions:
        """See :class:`~anyk.problems.base.Partitions`."""
        held = set(partitions)
        part = copy(self)
        part._X = [X if j in held else None for j, X in enumerate(self._X)]
        part._y = [y if j in held else np.empty(0, self.dtype) for j, y in enumerate(self._y)]
        return part

    def load(self, partitions: Sequence[int]) -> None:
        """See :class:`~anyk.problems.base.Partitions`; the arrays are in memory already."""

    def support(self, partition: int) -> Index | None:
        """See :class:`~anyk.problems.base.Partitions`."""
        columns = self._columns[partition]
        if columns is None or self.outputs == 1:
            return columns
        return np.asarray(columns[:, None] * self.outputs + np.arange(self.outputs)).reshape(-1)

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """See :class:`~anyk.problems.base.Partitions`."""
        X, y, columns = self._X[partition], self._y[partition], self._columns[partition]
        if rows is not None:
            X, y = X[rows], y[rows]
        if self.outputs > 1:
            W = w.reshape(self.features, self.outputs)
            slope = softmax_slope(X @ (W if columns is None else W[columns]), y)
            gradient = np.asarray(X.T @ slope).reshape(-1)
        else:
            scores = X @ (w if columns is None else w[columns])
            gradient = np.asarray(X.T @ (logistic_slope(scores, y) if self.kind == "logistic" else scores - y))
        if self.free:  # every row has the last column, which is therefore the last of the support
            gradient[-self.outputs :] -= len(y) * self.free * w[-self.outputs :]
        return gradient


def logistic_slope(scores: Vector, y: Vector) -> Vector:
    """Derivative of ``log(1 + exp(-y s))`` in s: ``-y / (1 + exp(y s))``, by tanh so that nothing overflows."""
    return np.asarray(0.5 * y * (np.tanh(0.5 * y * scores) - 1.0))


def softmax_slope(scores: Vector, y: Vector) -> Vector:
    """Derivative of the cross-entropy in the scores (rows x classes): probabilities less the one-hot labels."""
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(p)), y.astype(np.intp)] -= 1.0
    return np.asarray(p)


@typed
class LinearProblem:
    """What the three linear problems share; see :class:`~anyk.problems.base.Problem`.

    ``intercept``: a last column of ones is added, whose weights the regulariser spares. ``split``: how rows are spread
    over partitions by their labels (:class:`~anyk.problems.Dirichlet` or its spec), if not as they come.
    """

    kind: ClassVar[str] = ""
    labelled: ClassVar[bool] = True
    _curvature: ClassVar[float] = 1.0
    metric: str
    better: Literal["higher", "lower"]

    def __init__(
        self,
        X: Any,
        y: ArrayLike,
        *,
        l2: float = 0.0,
        X_test: Any = None,
        y_test: ArrayLike | None = None,
        recipe: dict[str, Any] | None = None,
        intercept: bool = False,
        split: Dirichlet | str | None = None,
    ) -> None:
        self.intercept = intercept
        self.uneven = checked(split, None if self.labelled else "regression has numbers to predict")
        self.X = self._columns(_design(X, "X"))
        self.y = self._labels(np.asarray(y), self.X.shape[0], "y")
        if (X_test is None) != (y_test is None):
            raise BadInput("give X_test and y_test together, or neither")
        self.X_test = None if X_test is None else self._columns(_design(X_test, "X_test"))
        if self.X_test is not None and self.X_test.shape[1] != self.X.shape[1]:
            found, wanted = self.X_test.shape[1] - intercept, self.X.shape[1] - intercept
            raise BadInput(f"X_test has {found} columns, X has {wanted}; they must agree")
        rows = 0 if self.X_test is None else self.X_test.shape[0]
        self.y_test = None if y_test is None else self._labels(np.asarray(y_test), rows, "y_test")
        if not 0.0 <= l2 < float("inf"):
            raise BadInput(f"l2 must be a finite number of at least 0, got {l2:g}")
        self.l2 = float(l2)
        self.samples = int(self.X.shape[0])
        self.outputs = self._outputs()
        self.dimension = int(self.X.shape[1]) * self.outputs
        self.dtype = np.dtype(self.X.dtype)
        self._recipe = recipe

    def __repr__(self) -> str:
        return problem_text(self)

    def _labels(self, y: NDArray[Any], rows: int, name: str) -> Floats:
        if y.shape != (rows,):
            raise BadInput(f"{name} must have one value for each of the {rows} rows, got shape {y.shape}")
        if y.dtype == bool:
            y = y.astype(np.float64)
        if not np.issubdtype(y.dtype, np.number) or np.iscomplexobj(y) or not np.isfinite(y).all():
            raise BadInput(f"{name} must hold finite numbers")
        return y.astype(np.float64)

    def _columns(self, X: Any) -> Any:
        if not self.intercept:
            return X
        ones = np.ones((X.shape[0], 1), dtype=X.dtype)
        if not hasattr(X, "indptr"):
            return np.hstack([X, ones])
        from scipy import sparse

        return sparse.hstack([X, sparse.csr_array(ones)], format="csr")

    def _outputs(self) -> int:
        return 1

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> LinearPartitions:
        """See :class:`~anyk.problems.base.Problem`; raises when there are fewer rows than partitions."""
        ends = cut(self.samples, partitions, shares)
        free = self.l2 if self.intercept else 0.0
        return LinearPartitions(self.kind, self.outputs, *self._rows(ends), ends, free)

    def _rows(self, ends: NDArray[np.int64]) -> tuple[Any, Floats]:
        """The training rows and their targets in the order of the partitions that end there."""
        if self.uneven is None:
            return self.X, self.y
        order = self.uneven.order(self.y, ends)
        return self.X[order], self.y[order]

    def initial(self) -> Vector:
        """Zeros."""
        return np.zeros(self.dimension, dtype=self.dtype)

    def loss(self, w: Vector) -> float:
        """See :class:`~anyk.problems.base.Problem`."""
        v = w[: w.size - self.intercept * self.outputs]  # what is regularised
        return float(self._losses(self._scores(self.X, w), self.y).mean() + 0.5 * self.l2 * float(v @ v))

    def metrics(self, w: Vector) -> dict[str, float]:
        """See :class:`~anyk.problems.base.Problem`."""
        if self.X_test is None or self.y_test is None:
            return {}
        return {self.metric: self._metric(self.y_test, self._scores(self.X_test, w))}

    def recipe(self) -> dict[str, Any] | None:
        """See :class:`~anyk.problems.base.Problem`."""
        return self._recipe

    def digest(self) -> str | None:
        """See :class:`~anyk.problems.base.Problem`."""
        uneven = () if self.uneven is None else self.uneven.told
        return digest_of(self.X, self.y, self.X_test, self.y_test, *uneven)

    def smoothness(self) -> float:
        """L, the largest curvature the objective can have: gradient steps with learning rate 1 / L never overshoot.

        The largest eigenvalue of X'X / N times the loss's own curvature (1/4 logistic, 1/2 softmax, 1 squares), and l2.
        """
        from scipy.sparse.linalg import svds

        if min(self.X.shape) > 1:
            start = keyed.generator(0, "smoothness").standard_normal(min(self.X.shape)).astype(self.dtype)
            empty = not (self.X.count_nonzero() if hasattr(self.X, "count_nonzero") else self.X.any())
            top = 0.0 if empty else float(svds(self.X, k=1, v0=start, return_singular_vectors=False, tol=1e-3)[0])
        else:
            top = float(np.sqrt((self.X * self.X).sum()))
        return self._curvature * top**2 / self.samples + self.l2

    def _scores(self, X: Any, w: Vector) -> Floats:
        return np.asarray(X @ (w if self.outputs == 1 else w.reshape(-1, self.outputs)), dtype=np.float64)

    def _losses(self, scores: Floats, y: Floats) -> Floats:
        raise NotImplementedError("a linear problem has a loss")

    def _metric(self, y: Floats, scores: Floats) -> float:
        raise NotImplementedError("a linear problem has a metric")


class LogisticRegression(LinearProblem):
    """Logistic regression: loss ``log(1 + exp(-y x.w))``, labels -1 and +1 (or any two values); metric AUC.

    ``X``: rows x columns, NumPy or scipy.sparse; ``l2`` as in the objective. Raises
    :class:`~anyk.errors.BadInput` for NaN in the data, labels of one class or of more than two.

    >>> import numpy as np
    >>> problem = LogisticRegression(np.eye(2), [1, -1])
    >>> round(problem.loss(np.zeros(2)), 6)
    0.693147
    """

    kind = "logistic"
    _curvature = 0.25
    metric = "auc"
    better = "higher"

    def _labels(self, y: NDArray[Any], rows: int, name: str) -> Floats:
        values = super()._labels(y, rows, name)
        classes = np.unique(values)
        if name == "y":
            if classes.size != 2:
                found = "one class only" if classes.size < 2 else f"{classes.size} classes"
                other = "" if classes.size < 2 else "; for more than two use SoftmaxRegression"
                raise BadInput(f"logistic regression needs labels of two classes, got {found}{other}")
            self.classes = classes
        elif not np.isin(classes, self.classes).all():
            raise BadInput(f"{name} has labels that are not in y: {np.setdiff1d(classes, self.classes).tolist()}")
        return np.where(values == self.classes[1], 1.0, -1.0)

    def _losses(self, scores: Floats, y: Floats) -> Floats:
        return np.logaddexp(0.0, -y * scores)

    def _metric(self, y: Floats, scores: Floats) -> float:
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(y, scores)) if np.unique(y).size == 2 else float("nan")


class LeastSquares(LinearProblem):
    """Least squares: loss ``(x.w - y)^2 / 2``; metric MSE (mean squared error, without the half)."""

    kind = "least-squares"
    labelled = False
    metric = "mse"
    better = "lower"

    def _losses(self, scores: Floats, y: Floats) -> Floats:
        return 0.5 * (scores - y) ** 2

    def _metric(self, y: Floats, scores: Floats) -> float:
        from sklearn.metrics import mean_squared_error

        return float(mean_squared_error(y, scores))


class SoftmaxRegression(LinearProblem):
    """Softmax regression: cross-entropy over classes 0, …, C-1; metric accuracy.

    The model is the (columns x classes) matrix, row by row, as one flat vector.
    """

    kind = "softmax"
    _curvature = 0.5
    metric = "accuracy"
    better = "higher"

    def _labels(self, y: NDArray[Any], rows: int, name: str) -> Floats:
        values = super()._labels(y, rows, name)
        if (values < 0).any() or (values != np.floor(values)).any():
            raise BadInput(f"{name} must hold classes 0, 1, 2, …; number the labels first")
        if name == "y" and np.unique(values).size < 2:
            raise BadInput("softmax regression needs at least two classes, got one class only")
        if name == "y_test" and values.size and values.max() > self.y.max():
            raise BadInput(f"{name} has class {int(values.max())}, y only classes up to {int(self.y.max())}")
        return values

    def _outputs(self) -> int:
        return int(self.y.max()) + 1

    def _losses(self, scores: Floats, y: Floats) -> Floats:
        top = scores.max(axis=1)
        log_sum = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
        return np.asarray(log_sum - scores[np.arange(len(y)), y.astype(np.intp)])

    def _metric(self, y: Floats, scores: Floats) -> float:
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, scores.argmax(axis=1)))
