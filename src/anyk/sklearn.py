"""scikit-learn estimators: linear models trained by any strategy, on any cluster.

They work in pipelines, grid searches and cross-validation. The objective is the same as in scikit-learn's
``LogisticRegression`` and ``Ridge``; anyk does the training. (Imported by name only: ``from anyk.sklearn import
AnykClassifier``.)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from anyk.base import Array, AtLeastOne, BadInput, ByName, Floats, NonnegativeNumber, Vector, check_value
from anyk.delays import DelayModel
from anyk.optimizers import Optimizer, split_rate
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems import (
    LeastSquares,
    LinearProblem,
    LogisticRegression,
    Scaling,
    SoftmaxRegression,
    array_of,
    checked_l2,
    likeliest_class,
    row_weights,
)
from anyk.runs import Evaluate, Run, train
from anyk.runs.api import USUAL, Callback, StepInfo, StopRun, check_callbacks, check_has_default

_CALM = 3  # consecutive steps that must change little, as momentum stands still for a moment where it turns


def _check_classes(classes: Array) -> None:
    if classes.size < 2:
        raise BadInput(f"a classifier needs labels of two classes, got one class only: {classes.tolist()}")


def _validated(estimator: Any, *data: Any, **checks: Any) -> Any:
    """Return X (and y) after scikit-learn's checks, which also set or compare the number and names of features."""
    for values, name in zip(data, "Xy", strict=False):
        if isinstance(values, np.ma.MaskedArray):  # of which scikit-learn drops the mask
            array_of(values, name)
    _refuse_times(data[0])
    checks |= {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # before 1.6
        validate_data = type(estimator)._validate_data
    try:
        return validate_data(estimator, *data, **checks)
    except (TypeError, ValueError):
        _refuse_columns(data[0])
        raise


def _refuse_times(X: Any) -> None:
    """Raise BadInput for dates and durations, which scikit-learn takes for numbers, in whatever unit they are in."""
    kinds = X.dtypes if hasattr(X, "iloc") and hasattr(X, "columns") else [getattr(X, "dtype", None)]
    for number, kind in enumerate(kinds):
        if getattr(kind, "kind", "") in ("m", "M"):
            name = f"column '{X.columns[number]}' of X" if hasattr(X, "columns") else "X"
            raise BadInput(
                f"{name} holds {kind} values, and the estimators take numbers; turn them into numbers of one unit, "
                "such as days since a date"
            )


def _refuse_columns(X: Any) -> None:
    """Raise BadInput for the first column of a data frame that does not hold numbers, if there is one."""
    for i in range(X.shape[1] if hasattr(X, "iloc") and hasattr(X, "columns") else 0):
        cells = np.asarray(X.iloc[:, i])
        try:
            cells.astype(float)
        except (TypeError, ValueError):
            example = f", such as {str(cells[0])!r}," if len(cells) else ""
            raise BadInput(
                f"column '{X.columns[i]}' of X holds {cells.dtype} values{example} and the estimators take numbers; "
                "encode it first (scikit-learn's OneHotEncoder in a ColumnTransformer), or leave it out"
            ) from None


@contextmanager
def _all_or_nothing(estimator: Any) -> Iterator[None]:
    """Leave an estimator as it was if fitting it fails: what was learned before goes together."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


class _Settled(Callback):
    """Ends a run when steps change no number of the model by more than ``tol`` times its size.

    The size is that of the largest coefficient, or of a tenth of ``unit`` if this is more. Intercepts, the last
    ``intercepts`` numbers of the model, do not count for it: they can have any size beside the coefficients. Nor may
    the coefficient of a column of ones, so that without an intercept the size is at most ``most``.
    """

    def __init__(self, tol: float, *, intercepts: int, unit: float, most: float = np.inf) -> None:
        self.tol, self.intercepts, self.unit, self.most = tol, intercepts, unit, most
        self.calm = 0
        self._before: Vector | None = None  # a copy, as the cluster overwrites its own

    def on_step(self, info: StepInfo) -> None:
        w = info.model
        if self._before is None:
            self._before = w.copy()
            return
        change = np.abs(np.subtract(w, self._before, out=self._before)).max()
        size = max(min(float(np.abs(w[: w.size - self.intercepts]).max()), self.most), self.unit / 10)
        self.calm = self.calm + 1 if change <= self.tol * size else 0
        self._before[:] = w
        if self.done:
            raise StopRun(f"{_CALM} steps in a row have changed the model by no more than tol={self.tol:g}")

    @property
    def done(self) -> bool:
        """Whether the model no longer changes."""
        return self.calm >= _CALM


class _Task(NamedTuple):
    """The kind of problem to fit, its rows with their weights, and the number of classes, None for values."""

    kind: type[LinearProblem]
    X: Any
    y: Any
    weights: Floats | None
    classes: int | None = None


def _mean_and_spread(task: _Task) -> tuple[float, float]:
    """Return the weighted mean and the standard deviation of the targets."""
    y = np.asarray(task.y, dtype=float)
    mean = float(np.average(y, weights=task.weights))
    return mean, float(np.sqrt(np.average((y - mean) ** 2, weights=task.weights)))


@dataclass
class _Steps:
    """State between calls of ``partial_fit``: scaling of the columns, largest curvature so far, last run."""

    scaling: Scaling
    smoothness: float
    run: Run


@dataclass(eq=False, repr=False)
class _Linear(BaseEstimator):
    """The base class of both estimators: their parameters, and training."""

    strategy: str = "uncoded"
    _: KW_ONLY
    cluster: str = "simulated"
    workers: int | tuple[int, int] = 4
    delays: str | DelayModel = "none"
    optimizer: str = "nesterov"
    lr: float | str | None = None
    l2: float | None = None
    max_iter: int = 1000
    tol: float | None = 1e-4
    fit_intercept: bool = True
    warm_start: bool = False
    random_state: Any = None
    callbacks: Any = None

    def _fit(self, task: _Task) -> None:
        """Train until the model settles, from the start, or with ``warm_start`` from the current model."""
        check_value(self.tol, NonnegativeNumber | None, "tol")
        check_value(self.max_iter, AtLeastOne, "max_iter")
        check_value(self.warm_start, bool, "warm_start")
        self._steps: _Steps | None = None
        problem = self._problem(task, None, warm=self.warm_start)
        spread = 1.0 if problem.labelled else _mean_and_spread(task)[1]
        stopping = _Settled(
            self.tol or 0.0,
            intercepts=problem.outputs if problem.intercept else 0,
            unit=spread,
            most=np.inf if problem.intercept or not spread else spread,
        )
        self._train(problem, 1.0 / (problem.smoothness(tol=0.0) or 1.0), self.max_iter, stopping if self.tol else None)
        if self.tol and not stopping.done:
            warnings.warn(
                f"after max_iter={self.max_iter} steps the model still changes by more than tol={self.tol:g}; raise "
                "max_iter or tol, or l2 where features say nearly the same",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _partial_fit(self, task: _Task) -> None:
        """Take one step on these rows, from the result of the last call."""
        before = vars(self).get("_steps")
        problem = self._problem(task, None if before is None else before.scaling, warm=True)
        smoothness = problem.smoothness(tol=0.0)
        if before is not None:
            smoothness = max(smoothness, before.smoothness)
        self._train(problem, 1.0 / (smoothness or 1.0), 1, None, begin=None if before is None else before.run)
        assert problem.scaling is not None
        self._steps = _Steps(problem.scaling, smoothness, self.run_)

    def _problem(self, task: _Task, scaling: Scaling | None, *, warm: bool) -> LinearProblem:
        """Return the objective in coordinates in which all features have the same curvature."""
        kind, X, y, weights, classes = task
        l2 = 1.0 / (X.shape[0] if weights is None else weights.sum()) if self.l2 is None else checked_l2(self.l2)
        if scaling is None:
            scaling = Scaling.curved(
                X,
                weights,
                curvature=kind.curvature,
                l2=l2,
                centered=self.fit_intercept,
                target=_mean_and_spread(task)[0] if self.fit_intercept and not kind.labelled else 0.0,
            )
        return kind(
            X,
            y,
            l2=l2,
            intercept=self.fit_intercept,
            scaling=scaling,
            weights=weights,
            classes=None if classes is None else range(classes),
            start=(np.atleast_2d(self.coef_).T, np.ravel(self.intercept_)) if warm and "coef_" in vars(self) else None,
        )

    def _optimizer(self, usual_rate: float) -> Optimizer:
        """Return the optimiser, with its own learning rate, ``lr`` or the usual one."""
        name, lr = split_rate(self.optimizer, self.lr)
        if lr is None:
            check_has_default(name)
        return build_optimizer(name, lr=usual_rate if lr is None else lr)

    def _train(
        self, problem: LinearProblem, rate: float, steps: int, settled: _Settled | None, *, begin: Run | None = None
    ) -> None:
        """Take ``steps`` steps, from the problem's start or after an earlier run, and set the fitted attributes."""
        total = steps + (0 if begin is None else begin.steps)
        self.run_ = train(
            problem,
            self.strategy,
            self.cluster,
            workers=self.workers,
            delays=self.delays,
            seed=int(check_random_state(self.random_state).randint(2**31)),
            optimizer=self._optimizer(rate),
            steps=total,
            # without callbacks only the first and the last evaluation are read
            evaluate=USUAL if self.callbacks else Evaluate(every=total),
            callbacks=[*check_callbacks(self.callbacks), *([] if settled is None else [settled])],
            begin=begin,
        )
        self.n_iter_ = self.run_.steps
        weights, intercepts = problem.in_units(self.run_.model)
        self._set_coefficients(weights.T.astype(problem.dtype), intercepts.astype(problem.dtype))

    def _set_coefficients(self, coefficients: Vector, intercepts: Vector) -> None:
        """Set coefficients, shape (outputs, features), and intercepts, shape (outputs,)."""
        self.coef_, self.intercept_ = coefficients, intercepts

    def _weights(self, sample_weight: Any, rows: int) -> Floats | None:
        """Return the weights of the rows, shape (rows,); None if all count alike."""
        if sample_weight is None:
            return None
        weights = array_of(sample_weight, "sample_weight")
        weights = np.full(rows, weights) if weights.ndim == 0 else weights
        row_weights(weights, rows, "sample_weight")
        return weights.astype(np.float64)

    def _scores(self, X: Any) -> Vector:
        check_is_fitted(self)
        return np.asarray(safe_sparse_dot(_validated(self, X, reset=False), self.coef_.T) + self.intercept_)

    def __getstate__(self) -> ByName:
        # without the run, whose log is a database in memory
        return {key: value for key, value in super().__getstate__().items() if key != "run_"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class AnykClassifier(ClassifierMixin, _Linear):
    """Logistic regression (two classes) or softmax regression (more), trained by a strategy on a cluster.

    The objective is the same as in scikit-learn's ``LogisticRegression`` with ``C = 1 / (l2 rows)``: the mean loss and
    ``l2 / 2`` times the squared coefficients, the intercept aside. ``X``: rows x features, dense or sparse (which it
    stays), float32 or float64. With ``sample_weight`` the mean is weighted and ``rows`` is the sum of the weights, so
    that a row of weight 2 is two rows. ``class_weight``: None, a dictionary (label: weight), or ``balanced``, which
    gives all classes the same sum of weights.

    ``strategy``, ``cluster``, ``delays``, ``optimizer``: specs, as for :func:`anyk.train`; ``workers``: at most as
    many as rows, or a range such as ``(2, 4)``, within which they come and go. ``cluster="simulated"`` computes in this
    process, on a virtual clock, and is quick; ``"processes"`` starts workers for every fit. ``l2``: by default
    1 / rows. ``max_iter``: the largest number of steps; ``tol``: training ends when three steps in a row change no
    number of the scaled model by more than ``tol`` times its largest coefficient, the intercept aside (None or 0:
    never). This coefficient counts for at least 0.1 or, of values to predict with standard deviation s, for at least
    s / 10 and, without an intercept, at most s. ``random_state``: the seed of the delays. ``callbacks``: as for
    :func:`anyk.train` (searches and cross-validation, which clone the estimator, copy them).

    Features may have any size: steps are taken in scaled coordinates, in which all have the same curvature. With an
    intercept the mean m of a feature is subtracted (m = 0 without one, and for columns of sparse data with entries in
    less than half of the rows), and the feature is divided by ``sqrt(c mean (x - m)^2 + l2)``, c the loss's largest
    curvature: 1/4 for two classes, 1/2 for more, 1 for squares. The objective and the coefficients stay in the units of
    ``X``. ``lr`` is the learning rate in scaled coordinates, by default 1 / smoothness, which no step overshoots under
    ``uncoded`` and exact codes; an asynchronous strategy needs a smaller one.

    ``warm_start``: a fit begins with the model of the previous fit. :meth:`partial_fit` takes one step on the given
    rows, with the optimiser's state after the previous call.

    Fitted: ``coef_`` (1 x features for two classes, else classes x features), ``intercept_``, ``classes_``,
    ``n_iter_``, ``n_features_in_``, and ``run_``, the :class:`~anyk.runs.Run`, which pickling omits.

    Raises :class:`~anyk.BadInput` (a ValueError) for settings that cannot work, and
    :class:`~anyk.RunFailed` if training cannot continue.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AnykClassifier("frc:load=2", workers=6, delays="exp:mean=0.1").fit(X, y)
    >>> model.coef_.shape, model.run_.ledger["cancelled"] > 0
    ((3, 4), True)
    """

    class_weight: dict[Any, float] | str | None = None

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows of ``X`` with labels ``y`` (any two or more); ``sample_weight``: shape (rows,)."""
        before = vars(self).get("classes_")
        with _all_or_nothing(self):
            X, y = _validated(self, X, y, ensure_min_samples=2)
            check_classification_targets(y)
            classes, numbers = np.unique(y, return_inverse=True)
            _check_classes(classes)
            if self.warm_start and before is not None and not np.array_equal(before, classes):
                raise BadInput(f"with warm_start the labels must be those of the fit before, {before.tolist()}")
            self.classes_ = classes
            self._fit(_Task(self._kind, X, numbers, self._weights_of(sample_weight, numbers), classes.size))
        return self

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Take one step on the mean loss of these rows, from the model and the optimiser's state of the last call.

        The first call needs all ``classes``, unless :meth:`fit` was called before, whose model it continues from; a
        batch need not have rows of all classes. The first batch determines the scaled coordinates, and the learning
        rate is 1 / smoothness, the largest of any batch so far. So k calls with the same rows are ``fit`` with
        ``max_iter=k`` and ``tol=None``, bit for bit, and calls with one batch after another are stochastic gradient
        descent. ``l2`` is by default 1 / rows of the batch. ``tol``, ``max_iter`` and ``warm_start`` have no effect.
        """
        first = "classes_" not in vars(self)
        if first and classes is None:
            raise BadInput("the first call of partial_fit needs all labels: give classes=")
        with _all_or_nothing(self):
            X, y = _validated(self, X, y, reset=first)
            check_classification_targets(y)
            classes_known = self.classes_ if classes is None else np.unique(np.asarray(classes))
            if not first and not np.array_equal(classes_known, self.classes_):
                raise BadInput(f"classes must be those of the first call, {self.classes_.tolist()}, or left out")
            _check_classes(classes_known)
            if not np.isin(y, classes_known).all():
                raise BadInput(f"y has labels that are not in classes: {np.setdiff1d(y, classes_known).tolist()}")
            if self.class_weight == "balanced":
                raise BadInput("class_weight='balanced' needs all rows at once; give partial_fit a dictionary")
            self.classes_ = classes_known
            numbers = np.searchsorted(classes_known, y)
            weights = self._weights_of(sample_weight, numbers)
            self._partial_fit(_Task(self._kind, X, numbers, weights, classes_known.size))
        return self

    @property
    def _kind(self) -> type[LinearProblem]:
        return LogisticRegression if self.classes_.size == 2 else SoftmaxRegression

    def _weights_of(self, sample_weight: Any, numbers: NDArray[np.intp]) -> Floats | None:
        """Return the weights of the rows times the weights of their classes, shape (rows,); None if all count alike."""
        weights = self._weights(sample_weight, len(numbers))
        if self.class_weight is None:
            return weights
        if self.class_weight == "balanced":
            sums = np.bincount(numbers, weights, minlength=self.classes_.size)
            factors = sums.sum() / (self.classes_.size * np.where(sums > 0, sums, 1.0))
        else:
            factors = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[numbers])
            if not (np.isfinite(factors).all() and (factors >= 0).all() and factors[numbers].any()):
                raise BadInput(
                    "class_weight must hold finite numbers of at least 0, not all of them 0, got "
                    f"{dict(zip(self.classes_.tolist(), factors.tolist(), strict=True))}"
                )
        return np.asarray(factors[numbers] * (1.0 if weights is None else weights), dtype=np.float64)

    def decision_function(self, X: Any) -> Vector:
        """Return scores, shape (rows,) for two classes (above 0: the second), else (rows, classes)."""
        scores = self._scores(X)
        return scores.ravel() if self.classes_.size == 2 else scores

    def predict(self, X: Any) -> Array:
        """Return the likeliest label of each row, shape (rows,)."""
        best = likeliest_class(self._scores(X))
        return np.asarray(self.classes_[best])

    def predict_log_proba(self, X: Any) -> Vector:
        """Return logarithms of the probabilities of ``classes_``, shape (rows, classes)."""
        from scipy.special import log_expit, log_softmax

        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([log_expit(-scores), log_expit(scores)])
        return np.asarray(log_softmax(scores, axis=1))

    def predict_proba(self, X: Any) -> Vector:
        """Return the probabilities of ``classes_``, shape (rows, classes)."""
        return np.exp(self.predict_log_proba(X))


class AnykRegressor(RegressorMixin, _Linear):
    """Least squares with an l2 penalty, trained by a strategy on a cluster.

    The objective is the same as in scikit-learn's ``Ridge`` with ``alpha = l2 rows``: half the mean squared error and
    ``l2 / 2`` times the squared coefficients, the intercept aside. Parameters as for :class:`AnykClassifier` (but
    ``class_weight``), and so are steps, ``sample_weight``, ``warm_start`` and ``partial_fit``; fitted: ``coef_``
    (features,), ``intercept_`` (a number), ``n_iter_``, ``n_features_in_`` and ``run_``.

    >>> import numpy as np
    >>> X = np.arange(12.0)[:, None] / 6 - 1
    >>> model = AnykRegressor(l2=0.0).fit(X, 3 * X[:, 0] + 1)
    >>> model.coef_.round(3), round(float(model.intercept_), 3)
    (array([3.]), 1.0)
    """

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows of ``X`` with values ``y``, shape (rows,); ``sample_weight``: shape (rows,)."""
        with _all_or_nothing(self):
            X, y = _validated(self, X, y, ensure_min_samples=2, y_numeric=True)
            self._fit(_Task(LeastSquares, X, y, self._weights(sample_weight, X.shape[0])))
        return self

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take one step on the mean loss of these rows; see :meth:`AnykClassifier.partial_fit`."""
        with _all_or_nothing(self):
            X, y = _validated(self, X, y, reset="coef_" not in vars(self), y_numeric=True)
            self._partial_fit(_Task(LeastSquares, X, y, self._weights(sample_weight, X.shape[0])))
        return self

    def _set_coefficients(self, coefficients: Vector, intercepts: Vector) -> None:
        self.coef_, self.intercept_ = coefficients[0], intercepts[0]

    def predict(self, X: Any) -> Vector:
        """Return a value for each row, shape (rows,)."""
        return self._scores(X)
