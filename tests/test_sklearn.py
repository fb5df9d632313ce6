"""The scikit-learn estimators: scikit-learn's own checks, its own optima, its own tools around them."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import anyk
from anyk.errors import BadInput
from anyk.sklearn import AnykClassifier, AnykRegressor

EXACT: dict[str, Any] = {"tol": 1e-8, "max_iter": 5000, "random_state": 0}


@pytest.mark.parametrize("kind", [AnykClassifier, AnykRegressor])
def test_scikit_learns_own_checks(kind: Any) -> None:
    """All of them, as the estimators come; one asks for an array library that need not be installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of checks whose features differ widely in size
        results = check_estimator(kind(), on_skip=None, on_fail="raise")
    assert len(results) > 45
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}


def scaled(load: Any) -> tuple[Any, Any]:
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
@pytest.mark.parametrize("intercept", [True, False])
def test_scikit_learns_optimum_of_classes(load: Any, intercept: bool) -> None:
    X, y = scaled(load)
    X, y = X[::2, ::3], np.array(["no", "yes", "maybe"])[y[::2]]
    for l2 in (None, 0.05):
        theirs = LogisticRegression(
            C=1.0 if l2 is None else 1 / (l2 * len(y)), fit_intercept=intercept, tol=1e-12, max_iter=10_000
        ).fit(X, y)
        ours = AnykClassifier("cyclic:stragglers=1", l2=l2, fit_intercept=intercept, **EXACT).fit(X, y)
        assert ours.coef_ == pytest.approx(theirs.coef_, abs=2e-5)
        assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=2e-5)
        assert ours.decision_function(X) == pytest.approx(theirs.decision_function(X), abs=1e-4)
        assert ours.predict_proba(X) == pytest.approx(theirs.predict_proba(X), abs=1e-4)
        assert ours.predict_log_proba(X) == pytest.approx(np.log(ours.predict_proba(X)), abs=1e-9)
        assert (ours.predict(X) == theirs.predict(X)).all() and (ours.classes_ == theirs.classes_).all()
        assert ours.coef_.shape == theirs.coef_.shape and ours.intercept_.shape == theirs.intercept_.shape


@pytest.mark.parametrize("intercept", [True, False])
def test_scikit_learns_optimum_of_values(intercept: bool) -> None:
    X, y = scaled(load_diabetes)
    for table in (X, sparse.csr_array(np.where(abs(X) > 1, X, 0.0)), sparse.coo_matrix(X)):
        theirs = Ridge(
            alpha=7.0, fit_intercept=intercept, solver="sparse_cg" if sparse.issparse(table) else "cholesky", tol=1e-12
        ).fit(table, y)
        ours = AnykRegressor("frc:load=2", l2=7.0 / len(y), fit_intercept=intercept, **EXACT).fit(table, y)
        assert ours.coef_ == pytest.approx(theirs.coef_, abs=2e-4) and ours.intercept_ == pytest.approx(
            theirs.intercept_, abs=2e-4
        )
        assert ours.predict(table) == pytest.approx(theirs.predict(table), abs=2e-3)


@pytest.mark.parametrize(
    "kind", [anyk.problems.LogisticRegression, anyk.problems.LeastSquares, anyk.problems.SoftmaxRegression]
)
@pytest.mark.parametrize("wide", [False, True])
def test_the_regulariser_spares_the_intercept(kind: Any, wide: bool) -> None:
    """Sums of the parts' gradients, and the regulariser that the driver adds, are the loss's slope, at any model."""
    random = np.random.default_rng(3)
    X: Any = random.normal(size=(30, 4)) * (random.random((30, 4)) < 0.5)
    if wide:  # partitions that touch few columns answer on those alone
        X = sparse.hstack([sparse.csr_array(X), sparse.csr_array((30, 40))], format="csr")
    problem = kind(X, np.arange(30) % 2, l2=0.7, intercept=True)
    parts = problem.split(5)
    w = random.normal(size=problem.dimension)
    gradient = problem.l2 * w
    for j in range(5):
        support = parts.support(j)
        np.add.at(gradient, slice(None) if support is None else support, parts.partial_gradient(j, w) / 30)
        rows = np.array([0, 3])
        whole = [parts.partial_gradient(j, w, np.array([i])) for i in rows]
        assert parts.partial_gradient(j, w, rows) == pytest.approx(sum(whole))
    for k in range(problem.dimension):
        step = np.zeros_like(w)
        step[k] = 1e-6
        assert gradient[k] == pytest.approx((problem.loss(w + step) - problem.loss(w - step)) / 2e-6, abs=1e-7)
    assert (parts.support(0) is not None) == wide


def test_stragglers_cost_time_and_not_the_model() -> None:
    X, y = scaled(load_iris)
    plain = AnykClassifier(workers=6, random_state=1).fit(X, y)
    coded = AnykClassifier("frc:load=3", workers=6, delays="exp:mean=0.5", random_state=1).fit(X, y)
    assert coded.coef_ == pytest.approx(plain.coef_, abs=1e-9) and coded.n_iter_ == plain.n_iter_
    assert coded.run_.seconds > 0 and coded.run_.ledger["cancelled"] > 0
    again = AnykClassifier("frc:load=3", workers=6, delays=anyk.delays.Exponential(mean=0.5), random_state=1).fit(X, y)
    assert again.run_.seconds == coded.run_.seconds  # the same seed, the same delays
    other = AnykClassifier("frc:load=3", workers=6, delays="exp:mean=0.5", random_state=2).fit(X, y)
    assert other.run_.seconds != coded.run_.seconds


def test_on_real_workers() -> None:
    X, y = scaled(load_iris)
    here = AnykClassifier(workers=2).fit(X, y)
    there = AnykClassifier(workers=2, cluster="processes").fit(X, y)
    assert there.coef_.tobytes() == here.coef_.tobytes() and there.n_iter_ == here.n_iter_ < 1000


def test_in_pipelines_searches_and_pickles() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[::3], y[::3]
    pipeline = make_pipeline(StandardScaler(), AnykClassifier(workers=6, tol=1e-3))
    grid = {"anykclassifier__strategy": ["uncoded", "agc:load=2,wait=4"], "anykclassifier__l2": [0.01, 0.1]}
    found = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert found.best_score_ > 0.9 and set(found.best_params_) == set(grid)
    fitted = found.best_estimator_
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert (other.predict_proba(X) == fitted.predict_proba(X)).all()
        assert not hasattr(other[-1], "run_") and hasattr(fitted[-1], "run_")
    bare = clone(fitted)
    with pytest.raises(NotFittedError):
        bare[-1].predict(X)
    assert bare[-1].get_params() == fitted[-1].get_params()
    assert cross_val_score(AnykRegressor(), *scaled(load_diabetes), cv=3).mean() > 0.4


@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_data_stay_sparse(classes: int) -> None:
    """Two thousand rows of forty thousand columns would be 640 MB."""
    X, y = make_classification(2000, 10, n_informative=6, n_classes=classes, random_state=0)
    wide = sparse.hstack(
        [sparse.csr_array(X), sparse.random_array((2000, 40_000), density=1e-4, format="csr", rng=0)]
    ).tocsr()
    tracemalloc.start()
    model = AnykClassifier("frc:load=2", workers=4, max_iter=30, tol=None).fit(wide, y)
    assert model.predict_proba(wide).shape == (2000, classes)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
    dense = AnykClassifier("frc:load=2", workers=4, max_iter=30, tol=None, lr=0.01).fit(wide[:200].toarray(), y[:200])
    assert AnykClassifier("frc:load=2", workers=4, max_iter=30, tol=None, lr=0.01).fit(
        wide[:200], y[:200]
    ).coef_ == pytest.approx(dense.coef_)


def test_when_it_ends() -> None:
    X, y = scaled(load_iris)
    with pytest.warns(
        ConvergenceWarning,
        match=r"after max_iter=7 steps the model still changes by more than tol=0\.0001; scale the features",
    ):
        assert AnykClassifier(max_iter=7).fit(X, y).n_iter_ == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tol in (None, 0.0):
            assert AnykClassifier(max_iter=7, tol=tol).fit(X, y).n_iter_ == 7
        loose, tight = (AnykClassifier(tol=tol).fit(X, y).n_iter_ for tol in (1e-2, 1e-4))
    assert 3 < loose < tight < 1000


def test_what_cannot_be_fitted() -> None:
    X, y = scaled(load_iris)

    def fail(
        sentence: str, labels: Any = y, rows: int = 150, error: type[Exception] = BadInput, **parameters: Any
    ) -> None:
        with pytest.raises(error, match=sentence):
            AnykClassifier(**parameters).fit(X[:rows], labels[:rows])

    fail("no strategy 'uncodde'; did you mean 'uncoded'", strategy="uncodde")
    fail("no optimiser|no optimizer", optimizer="sgdd")
    fail("120 rows cannot be cut into 130 partitions of at least one row; use fewer workers", rows=120, workers=130)
    fail("a classifier needs labels of two classes, got one class only", rows=50)
    fail("max_iter must be at least 1, got 0", max_iter=0)
    fail("tol must be a finite number of at least 0, or None, got -1", tol=-1.0)
    fail("l2 must be a finite number of at least 0, got -1", l2=-1.0)
    fail("lower the learning rate", lr=1e6, l2=1.0, error=anyk.RunFailed)
    fail("no cluster 'process'; did you mean 'processes'", cluster="process")
