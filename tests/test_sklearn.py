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
from anyk.base.errors import BadInput
from anyk.sklearn import AnykClassifier, AnykRegressor

pytestmark = pytest.mark.slow

EXACT: dict[str, Any] = {"tol": 1e-8, "max_iter": 5000, "random_state": 0}


@pytest.mark.parametrize("kind", [AnykClassifier, AnykRegressor])
def test_scikit_learns_own_checks(kind: Any) -> None:
    """All of them, as the estimators come; one asks for an array library that need not be installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of checks whose features differ widely in size
        results = check_estimator(kind(), on_skip=None, on_fail="raise")
    assert len(results) > 45
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}


@pytest.mark.parametrize("kind", [AnykClassifier, AnykRegressor])
def test_every_parameter_is_kept(kind: Any) -> None:
    values = {name: object() for name in kind().get_params()}
    assert kind(**values).get_params(deep=False) == values


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


def test_a_range_of_workers_trains_the_same_model() -> None:
    X, y = scaled(load_diabetes)
    changing, fixed = (AnykRegressor("frc:stragglers=1", workers=workers).fit(X, y) for workers in ((2, 4), 4))
    assert (changing.run_.config.strategy, str(changing.run_.config.workers)) == ("frc:stragglers=1", "2..4")
    assert changing.coef_ == pytest.approx(fixed.coef_, rel=1e-9)
    for number in np.arange(2, 4):  # NumPy's whole numbers, as in a grid of parameters
        assert AnykRegressor(workers=number, max_iter=2, tol=None).fit(X, y).run_.config.workers.most == number


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
    gradient = problem.penalty * w
    for j in range(5):
        support = parts.support(j)
        np.add.at(gradient, slice(None) if support is None else support, parts.partial_gradient(j, w) / 30)
        rows = np.array([0, 3])
        gradients = [parts.partial_gradient(j, w, np.array([i])) for i in rows]
        assert parts.partial_gradient(j, w, rows) == pytest.approx(sum(gradients))
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
    same_seed = AnykClassifier("frc:load=3", workers=6, delays=anyk.delays.Exponential(mean=0.5), random_state=1).fit(
        X, y
    )
    assert same_seed.run_.seconds == coded.run_.seconds  # the same seed, the same delays
    other = AnykClassifier("frc:load=3", workers=6, delays="exp:mean=0.5", random_state=2).fit(X, y)
    assert other.run_.seconds != coded.run_.seconds


def test_on_real_workers() -> None:
    X, y = scaled(load_iris)
    simulated = AnykClassifier(workers=2).fit(X, y)
    real = AnykClassifier(workers=2, cluster="processes").fit(X, y)
    assert real.coef_.tobytes() == simulated.coef_.tobytes() and real.n_iter_ == simulated.n_iter_ < 1000


def test_in_pipelines_searches_and_pickles() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[::3], y[::3]
    pipeline = make_pipeline(StandardScaler(), AnykClassifier(workers=6, tol=1e-3))
    grid = {"anykclassifier__strategy": ["uncoded", "agc:load=2,wait=4"], "anykclassifier__l2": [0.01, 0.1]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.9 and set(search.best_params_) == set(grid)
    fitted = search.best_estimator_
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
    few = AnykClassifier("frc:load=2", workers=4, max_iter=30, tol=None, lr=0.01, fit_intercept=False)
    dense = clone(few).fit(wide[:200].toarray(), y[:200])  # centered only with an intercept
    assert few.fit(wide[:200], y[:200]).coef_ == pytest.approx(dense.coef_)


def test_when_it_ends() -> None:
    X, y = scaled(load_iris)
    with pytest.warns(
        ConvergenceWarning,
        match=r"after max_iter=7 steps the model still changes by more than tol=0\.0001; raise max_iter or tol",
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
    fail("max_iter must be a whole number of at least 1, got 0", max_iter=0)
    fail("tol must be a finite number of at least 0 or None, got -1", tol=-1.0)
    fail("l2 must be a finite number of at least 0, got -1", l2=-1.0)
    fail("lower the learning rate", lr=1e6, l2=1.0, error=anyk.RunFailed)
    fail("no cluster 'process'; did you mean 'processes'", cluster="process")
    for workers in (3.0, "3", (2, 3, 4), (2.0, 4), 0):
        fail("workers must be a whole number", workers=workers)


def badly_scaled(rows: int = 60) -> tuple[Any, Any]:
    random = np.random.default_rng(4)
    X = random.normal(size=(rows, 4)) * [1e-5, 1.0, 1e4, 1e2] + [0.0, 3.0, 1e6, -50.0]
    return X, X @ [1e5, 1.0, 1e-4, 0.0] + random.normal(size=rows)


@pytest.mark.parametrize("intercept", [True, False])
def test_features_of_any_size(intercept: bool) -> None:
    """scikit-learn's optimum in few steps, and the same steps whatever the units."""
    X, y = badly_scaled()
    labels = (y > np.median(y)).astype(int)
    options = EXACT | {"fit_intercept": intercept}
    theirs = Ridge(alpha=1.0, fit_intercept=intercept, solver="cholesky").fit(X, y)
    ours = AnykRegressor(**options).fit(X, y)
    assert ours.predict(X) == pytest.approx(theirs.predict(X), abs=1e-3) and ours.n_iter_ < 1000
    assert ours.coef_ * X.std(0) == pytest.approx(theirs.coef_ * X.std(0), abs=1e-3)
    if intercept:
        units = np.array([1e3, 1e-7, 1.0, 30.0])
        one, other = (
            AnykClassifier(l2=0.0, max_iter=40, tol=None).fit(table, labels) for table in (X, X * units + 7.0)
        )
        assert other.coef_ * units == pytest.approx(one.coef_, rel=1e-6)
        assert other.decision_function(X * units + 7.0) == pytest.approx(one.decision_function(X), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, None])
def test_weights_are_numbers_of_rows(classes: int | None) -> None:
    """Step by step those of repeated rows, and in the end scikit-learn's optimum of weighted ones."""
    X, y = scaled(load_iris)
    X, y = X[::3], X[::3, 0] + y[::3] if classes is None else y[::3] % classes
    weights = np.random.default_rng(0).integers(0, 4, len(y))
    ours: Any = AnykRegressor if classes is None else AnykClassifier
    few = ours(max_iter=30, tol=None).fit(X, y, weights)
    repeated = ours(max_iter=30, tol=None).fit(X.repeat(weights, axis=0), y.repeat(weights))
    assert few.coef_ == pytest.approx(repeated.coef_, rel=1e-9)
    assert few.intercept_ == pytest.approx(repeated.intercept_, rel=1e-9)
    theirs: Any = Ridge(alpha=1.0) if classes is None else LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000)
    model = ours(**EXACT).fit(X, y, sample_weight=weights)
    assert model.coef_ == pytest.approx(
        np.squeeze(theirs.fit(X, y, weights).coef_) if classes is None else theirs.fit(X, y, weights).coef_, abs=2e-5
    )
    assert ours(max_iter=3, tol=None).fit(X, y, 2.0).coef_ == pytest.approx(  # as all count alike, l2 aside
        ours(max_iter=3, tol=None, l2=0.5 / len(y)).fit(X, y).coef_
    )


def test_weights_of_classes() -> None:
    X, y = scaled(load_iris)
    X, y = X[:110], np.array(["a", "b", "c"])[y[:110]]
    random = np.random.default_rng(0).integers(1, 3, len(y))
    for class_weight in ("balanced", {"a": 0.5, "c": 3.0}):
        theirs = LogisticRegression(class_weight=class_weight, tol=1e-12, max_iter=10_000).fit(X, y)
        total = 110 if class_weight == "balanced" else 25 + 50 + 30
        ours = AnykClassifier(class_weight=class_weight, l2=1 / total, **EXACT).fit(X, y)
        assert ours.coef_ == pytest.approx(theirs.coef_, abs=2e-5)
        one = AnykClassifier(class_weight=class_weight, max_iter=9, tol=None).fit(X, y, random)
        many = AnykClassifier(class_weight=class_weight, max_iter=9, tol=None).fit(
            X.repeat(random, axis=0), y.repeat(random)
        )
        assert one.coef_ == pytest.approx(many.coef_, rel=1e-9)


def test_a_warm_start_begins_where_the_last_fit_ended() -> None:
    X, y = badly_scaled()
    labels = (y > np.median(y)).astype(int)
    for make, target in ((AnykClassifier, labels), (AnykRegressor, y)):
        cold = make(tol=1e-6, max_iter=5000).fit(X, target)
        warm = make(tol=1e-6, max_iter=5000, warm_start=True).fit(X, target)
        steps = warm.n_iter_
        assert (warm.coef_ == cold.coef_).all() and warm.fit(X, target).n_iter_ < steps / 2
        assert warm.predict(X) == pytest.approx(cold.predict(X), rel=1e-3)
        assert warm.set_params(max_iter=1, tol=None, lr=1e-12).fit(X, target).coef_ == pytest.approx(warm.coef_)
    with pytest.raises(BadInput, match=r"with warm_start the labels must be those of the fit before, \[0, 1\]"):
        AnykClassifier(warm_start=True).fit(X, labels).fit(X, labels + 5)


@pytest.mark.parametrize("kind", [AnykClassifier, AnykRegressor])
def test_calls_of_partial_fit_are_steps_of_one_fit(kind: Any) -> None:
    X, y = scaled(load_iris)
    first = {"classes": [0, 1, 2]} if kind is AnykClassifier else {}
    single_fit = kind("frc:load=2", max_iter=7, tol=None, delays="exp:mean=1", random_state=0).fit(X, y)
    steps = kind("frc:load=2", delays="exp:mean=1", random_state=0).partial_fit(X, y, **first)
    for _ in range(6):
        steps = pickle.loads(pickle.dumps(steps)).partial_fit(X, y)
    assert (steps.coef_ == single_fit.coef_).all() and (steps.intercept_ == single_fit.intercept_).all()
    assert steps.n_iter_ == 7


def test_partial_fit_over_batches_is_gradient_descent() -> None:
    """In the coordinates of the first batch, from where a fit left off; by hand."""
    X, y = badly_scaled()
    model = AnykRegressor(optimizer="gd", lr=0.1, l2=0.01).fit(X[:30], y[:30])
    w, b = model.coef_, model.intercept_
    center, scale = X[:20].mean(0), np.sqrt(X[:20].var(0) + 0.01)
    for rows in (slice(0, 20), slice(20, 40), slice(40, 60)):
        model.partial_fit(X[rows], y[rows])
        Z, v, c = (X[rows] - center) / scale, w * scale, b + center @ w
        slope = Z @ v + c - y[rows]
        v, c = v - 0.1 * (Z.T @ slope / 20 + 0.01 * v / scale**2), c - 0.1 * slope.mean()
        w, b = v / scale, c - center @ (v / scale)
        assert model.coef_ == pytest.approx(w, rel=1e-6) and model.intercept_ == pytest.approx(b, rel=1e-6)


def test_what_partial_fit_refuses() -> None:
    X, y = scaled(load_iris)

    def fail(sentence: str, model: Any, *args: Any, **more: Any) -> None:
        with pytest.raises(BadInput, match=sentence):
            model.partial_fit(*args, **more)

    fail("the first call of partial_fit needs all labels: give classes=", AnykClassifier(), X, y)
    fail(r"y has labels that are not in classes: \[2\]", AnykClassifier(), X, y, classes=[0, 1])
    fail("class_weight='balanced' needs all rows", AnykClassifier(class_weight="balanced"), X, y, classes=[0, 1, 2])
    begun = AnykClassifier().partial_fit(X[:10], y[:10], classes=[0, 1, 2])  # of one label
    assert begun.predict_proba(X).shape == (150, 3)
    fail(r"classes must be those of the first call, \[0, 1, 2\]", begun, X, y, classes=[0, 1])
    fail("sample_weight must hold one number for each of the 150 rows", begun, X, y, sample_weight=[1.0])
    fail("was optimised by 'nesterov:momentum=0.9'", begun.set_params(optimizer="adam:lr=0.1"), X, y)


class TestTolerance:
    """When training ends does not depend on where 0 lies on the scale of the target."""

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("offset", [0.0, -2_000.0, 101_325.0])
    def test_an_offset_of_the_target_changes_no_coefficient(self, offset, dtype):
        random = np.random.default_rng(3)
        X = (random.normal(size=(300, 4)) @ random.normal(size=(4, 4))).astype(dtype)
        y = X @ [1.0, -2.0, 0.5, 0.0] + random.normal(size=300)
        original, shifted = AnykRegressor().fit(X, y), AnykRegressor().fit(X, y + offset)
        assert shifted.n_iter_ == pytest.approx(original.n_iter_, abs=2)
        assert shifted.coef_ == pytest.approx(original.coef_, rel=1e-3, abs=1e-3)
        assert shifted.intercept_ - offset == pytest.approx(original.intercept_, abs=0.02)
        assert shifted.coef_ == pytest.approx(Ridge(1.0).fit(X, y).coef_, abs=0.01)

    @pytest.mark.parametrize("estimator", ["own column", "weights", "sparse", "features"])
    def test_other_ways_to_an_offset_change_no_score(self, estimator):
        random = np.random.default_rng(4)
        X = random.normal(size=(300, 3))
        y, weights = X @ [1.0, -2.0, 0.5] + random.normal(size=300) + 50_000.0, random.integers(1, 5, 300)
        if estimator == "own column":
            X = np.column_stack([X, np.ones(300)])
            ours, theirs = AnykRegressor(fit_intercept=False, l2=0.0), Ridge(1e-9, fit_intercept=False)
            weights = None
        else:
            ours, theirs = AnykRegressor(), Ridge(1.0)
        if estimator == "features":
            X = X + 1e5
        if estimator == "sparse":
            X = sparse.csr_array(np.where(np.abs(X) > 1, X, 0.0))
        ours.fit(X, y, weights)
        theirs.fit(X.toarray() if sparse.issparse(X) else X, y, weights)
        assert ours.score(X, y) == pytest.approx(theirs.score(X.toarray() if sparse.issparse(X) else X, y), abs=1e-3)
        assert ours.coef_[:3] == pytest.approx(theirs.coef_[:3], abs=0.01)

    @pytest.mark.parametrize("factor", [1e-9, 1e9])
    def test_the_unit_of_the_target_changes_no_step(self, factor):
        X, y = load_diabetes(return_X_y=True)
        one, other = AnykRegressor().fit(X, y), AnykRegressor().fit(X, y * factor)
        assert one.n_iter_ == other.n_iter_
        assert other.coef_ / factor == pytest.approx(one.coef_, rel=1e-6)

    def test_a_constant_target_is_its_intercept_at_once(self):
        model = AnykRegressor().fit(np.arange(12.0)[:, None], np.full(12, 101_325.3))
        assert model.n_iter_ < 10 and model.intercept_ == pytest.approx(101_325.3)
        assert np.abs(model.coef_).max() < 1e-9

    def test_a_rare_class_is_learned_as_well_as_a_frequent_one(self):
        random = np.random.default_rng(0)
        X = random.normal(size=(20_000, 2))
        y = random.random(20_000) < 1 / (1 + np.exp(6 - X @ [0.5, -0.5]))
        ours, theirs = AnykClassifier(max_iter=5000).fit(X, y), LogisticRegression(tol=1e-12).fit(X, y)
        assert ours.coef_ == pytest.approx(theirs.coef_, abs=0.01)
        assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=0.02)

    def test_a_run_predicts_what_the_estimator_predicts(self):
        X, y = load_diabetes(return_X_y=True)
        model = AnykRegressor(max_iter=50, tol=None).fit(X, y + 2000)
        assert model.run_.predict(X) == pytest.approx(model.predict(X))


def test_a_column_of_dates_or_text_is_named():
    import pandas as pd

    frame = pd.DataFrame(
        {"a": [1.0, 2.0, 3.0, 5.0], "when": pd.date_range("2024-01-01", periods=4), "city": ["x", "y", "x", "y"]}
    )
    for columns, name, remedy in (
        (["a", "when"], "when", "turn them into numbers of one unit"),
        (["a", "city"], "city", "encode it first"),
        (["city", "when"], "when", "turn them into numbers of one unit"),
    ):
        with pytest.raises(BadInput, match=rf"column '{name}' of X holds .* values.*; {remedy}"):
            AnykRegressor().fit(frame[columns], [1.0, 2.0, 3.0, 4.0])
    frame["whole"] = pd.array([1, 2, 3, 5], dtype="Int64")
    assert AnykRegressor().fit(frame[["a", "whole"]], [1.0, 2.0, 3.0, 4.0]).coef_.shape == (2,)
    with pytest.raises(BadInput, match="sample_weight must hold values in rows of equal length"):
        AnykRegressor().fit(frame[["a"]], [1.0, 2.0, 3.0, 4.0], [[1.0], [1.0, 2.0], [1.0], [1.0]])


# ------------------------------------------------------------------------------------------- what cannot be learned from


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_and_durations_are_refused_in_whatever_form(unit: str) -> None:
    import pandas as pd

    dates = np.arange(60).astype("M8[D]").astype(f"M8[{unit}]")
    frame = pd.DataFrame({"a": dates, "b": np.arange(60.0)})
    for X in (dates[:, None], (dates - dates[0])[:, None], frame, frame[["a"]], frame.iloc[:0]):
        with pytest.raises(BadInput, match="and the estimators take numbers; turn them into numbers of one unit"):
            AnykRegressor().fit(X, np.arange(float(len(X))))


def test_a_fit_that_fails_leaves_the_estimator_as_it_was() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = (X[:, 0] > 0).astype(int)
    model = AnykClassifier().fit(X, y)
    predicted = model.predict(X)
    for fit in (
        lambda: model.set_params(workers=1000).fit(X[:, :2], y + 5),
        lambda: model.set_params(workers=4, lr=-1.0).partial_fit(X, y),
    ):
        with pytest.raises(BadInput):
            fit()
        assert model.classes_.tolist() == [0, 1] and model.n_features_in_ == 3
        assert np.array_equal(model.predict(X), predicted)
    first = AnykClassifier(workers=1000)
    with pytest.raises(BadInput):
        first.fit(X, y)
    with pytest.raises(NotFittedError):
        first.predict(X)


@pytest.mark.parametrize("weights", [{0: 0, 1: 0}, {0: 1, 1: -1}, {0: 1, 1: float("nan")}])
def test_weights_of_classes_that_cannot_be_are_refused_by_name(weights: dict[int, float]) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(BadInput, match="class_weight must hold finite numbers of at least 0"):
        AnykClassifier(class_weight=weights).fit(X, (X[:, 0] > 0).astype(int))


def test_warm_start_is_true_or_false() -> None:
    with pytest.raises(BadInput, match="warm_start must be True or False, got 'no'"):
        AnykRegressor(warm_start="no").fit([[0.0], [1.0]], [0.0, 1.0])
