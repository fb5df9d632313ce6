"""scikit-learn estimators: linear models trained by any strategy, on any cluster.

They go where scikit-learn's own go: pipelines, grid searches, cross-validation. What is fitted is the objective of
scikit-learn's ``LogisticRegression`` and ``Ridge``; how it is fitted is anyk's. (Imported by name only:
``from anyk.sklearn import AnykClassifier``.)
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from anyk.clusters import cluster as build_cluster
from anyk.delays import DelayModel
from anyk.delays import parse as parse_delays
from anyk.errors import BadInput
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems import LeastSquares, LogisticRegression, SoftmaxRegression
from anyk.problems.base import Vector
from anyk.problems.linear import LinearProblem
from anyk.training.api import train
from anyk.training.driver import Driver
from anyk.training.evaluation import Evaluator

Numbers = NDArray[np.floating[Any]]
_CALM = 3  # steps in a row that must change little: a method with momentum stands still where it turns, too


def _validated(estimator: Any, *data: Any, **checks: Any) -> Any:
    """scikit-learn's checks of X (and y), which also set or compare the number and names of features."""
    checks |= {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # before 1.6
        return estimator._validate_data(*data, **checks)
    return validate_data(estimator, *data, **checks)


class _Settled:
    """Ends a run when steps change the model by no more than ``tol`` of its largest number."""

    def __init__(self, tol: float) -> None:
        self.tol = tol
        self.calm = 0
        self._before: Vector | None = None

    def __call__(self, driver: Driver, evaluator: Evaluator) -> None:
        """After a step."""
        del evaluator
        assert driver.last_update is not None
        w = driver.models[driver.last_update.slot]
        if self._before is None:
            self._before = w.copy()  # the cluster's own is written over
            return
        change = np.abs(np.subtract(w, self._before, out=self._before)).max()
        self.calm = self.calm + 1 if change <= self.tol * np.abs(w).max() else 0
        self._before[:] = w
        if self.done:
            driver.end()

    @property
    def done(self) -> bool:
        """Whether it has."""
        return self.calm >= _CALM


class _Linear(BaseEstimator):
    """What both estimators share: their parameters, and training."""

    def __init__(
        self,
        strategy: str = "uncoded",
        *,
        cluster: str = "simulated",
        workers: int = 4,
        delays: str | DelayModel = "none",
        optimizer: str = "nesterov",
        lr: float | str | None = None,
        l2: float | None = None,
        max_iter: int = 1000,
        tol: float | None = 1e-4,
        fit_intercept: bool = True,
        random_state: Any = None,
    ) -> None:
        self.strategy = strategy
        self.cluster = cluster
        self.workers = workers
        self.delays = delays
        self.optimizer = optimizer
        self.lr = lr
        self.l2 = l2
        self.max_iter = max_iter
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _train(self, kind: type[LinearProblem], X: Any, y: Any) -> Numbers:
        """The model as (features, then the intercept if there is one) x outputs."""
        rows = X.shape[0]
        if self.tol is not None and not 0.0 <= self.tol < float("inf"):
            raise BadInput(f"tol must be a finite number of at least 0, or None, got {self.tol:g}")
        if self.max_iter < 1:
            raise BadInput(f"max_iter must be at least 1, got {self.max_iter}")
        problem = kind(X, y, l2=1.0 / rows if self.l2 is None else self.l2, intercept=self.fit_intercept)
        rate = 1.0 / (problem.smoothness() or 1.0) if self.lr is None else self.lr
        settled = _Settled(self.tol or 0.0)
        self.run_ = train(
            problem,
            self.strategy,
            build_cluster(
                self.cluster,
                workers=self.workers,
                delays=parse_delays(self.delays) if isinstance(self.delays, str) else self.delays,
                seed=int(check_random_state(self.random_state).randint(2**31)),
            ),
            optimizer=build_optimizer(self.optimizer, lr=rate),
            steps=self.max_iter,
            evaluate_every=self.max_iter,  # the first and the last: nobody looks at those between
            watch=settled if self.tol else None,
        )
        self.n_iter_ = self.run_.steps
        if self.tol and not settled.done:
            warnings.warn(
                f"after max_iter={self.max_iter} steps the model still changes by more than tol={self.tol:g}; scale "
                "the features (StandardScaler), or raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self.run_.model.reshape(-1, problem.outputs)

    def _split(self, model: Numbers) -> tuple[Numbers, Numbers]:
        """Coefficients (outputs x features) and intercepts (outputs,)."""
        if not self.fit_intercept:
            return model.T.copy(), np.zeros(model.shape[1], dtype=model.dtype)
        return model[:-1].T.copy(), model[-1].copy()

    def _scores(self, X: Any) -> Numbers:
        check_is_fitted(self)
        return np.asarray(safe_sparse_dot(_validated(self, X, reset=False), self.coef_.T) + self.intercept_)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key != "run_"}  # its log is a database in memory

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class AnykClassifier(ClassifierMixin, _Linear):
    """Logistic regression (two classes) or softmax regression (more), trained by a strategy on a cluster.

    The objective is that of scikit-learn's ``LogisticRegression`` with ``C = 1 / (l2 rows)``: the mean loss and
    ``l2 / 2`` times the squared coefficients, the intercept aside. ``X``: rows x features, dense or sparse (which it
    stays), float32 or float64; sample weights are not taken.

    ``strategy``, ``cluster``, ``delays``, ``optimizer``: specs, as for :func:`anyk.train`; ``workers``: at most as
    many as rows. ``cluster="simulated"`` computes here, on a virtual clock, and is quick; ``"processes"`` starts
    workers for every fit. ``lr``: 1 / smoothness of the data if left out, which no step
    overshoots under ``uncoded`` and exact codes; an asynchronous strategy needs less. ``l2``: 1 / rows if left out.
    ``max_iter``: steps at most; ``tol``: ends when three steps in a row change no number of the model by more than
    that share of its largest (None or 0: never). Features of very different sizes make that slow: scale them.
    ``random_state``: of the delays.

    Fitted: ``coef_`` (1 x features for two classes, else classes x features), ``intercept_``, ``classes_``,
    ``n_iter_``, ``n_features_in_``, and ``run_``, the :class:`~anyk.training.Run`, which pickling leaves out.

    Raises :class:`~anyk.errors.BadInput` (a ValueError) for what cannot work, and
    :class:`~anyk.errors.RunFailed` where training does not go on.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AnykClassifier("frc:load=2", workers=6, delays="exp:mean=0.1").fit((X - X.mean(0)) / X.std(0), y)
    >>> model.coef_.shape, model.run_.ledger["cancelled"] > 0
    ((3, 4), True)
    """

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on rows of ``X`` with labels ``y`` (any two or more)."""
        X, y = _validated(self, X, y, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if self.classes_.size < 2:
            raise BadInput(f"a classifier needs labels of two classes, got one class only: {self.classes_[0]!r}")
        kind = LogisticRegression if self.classes_.size == 2 else SoftmaxRegression
        self.coef_, self.intercept_ = self._split(self._train(kind, X, numbers))
        return self

    def decision_function(self, X: Any) -> Numbers:
        """Scores, shape (rows,) for two classes (above 0: the second), else (rows, classes)."""
        scores = self._scores(X)
        return scores.ravel() if self.classes_.size == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest label of each row."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_log_proba(self, X: Any) -> Numbers:
        """Logarithms of the probabilities of ``classes_``, shape (rows, classes)."""
        from scipy.special import log_expit, log_softmax

        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([log_expit(-scores), log_expit(scores)])
        return np.asarray(log_softmax(scores, axis=1))

    def predict_proba(self, X: Any) -> Numbers:
        """Probabilities of ``classes_``, shape (rows, classes)."""
        return np.exp(self.predict_log_proba(X))


class AnykRegressor(RegressorMixin, _Linear):
    """Least squares with an l2 penalty, trained by a strategy on a cluster.

    The objective is that of scikit-learn's ``Ridge`` with ``alpha = l2 rows``: half the mean squared error and
    ``l2 / 2`` times the squared coefficients, the intercept aside. Parameters as for :class:`AnykClassifier`; fitted:
    ``coef_`` (features,), ``intercept_`` (a number), ``n_iter_``, ``n_features_in_`` and ``run_``.

    >>> import numpy as np
    >>> X = np.arange(12.0)[:, None] / 6 - 1
    >>> model = AnykRegressor(l2=0.0).fit(X, 3 * X[:, 0] + 1)
    >>> model.coef_.round(3), round(float(model.intercept_), 3)
    (array([3.]), 1.0)
    """

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on rows of ``X`` with values ``y``, shape (rows,)."""
        X, y = _validated(self, X, y, ensure_min_samples=2, y_numeric=True)
        coefficients, intercepts = self._split(self._train(LeastSquares, X, y))
        self.coef_, self.intercept_ = coefficients[0], intercepts[0]
        return self

    def predict(self, X: Any) -> Numbers:
        """A value for each row."""
        return self._scores(X)
