"""Linear models in scaled columns, with weighted rows: the same objective in the units of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import log_softmax
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import anyk
from anyk.errors import BadInput
from anyk.problems import LeastSquares, LogisticRegression, SoftmaxRegression
from anyk.problems.scaling import Scaling
from anyk.testing import check_problem

KINDS = [LogisticRegression, LeastSquares, SoftmaxRegression]
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
stored = pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """In place of the look through all processes around each test: nothing here can start one."""


def data(kind: Any, rows: int = 24) -> tuple[Any, Any, Any]:
    """Columns of very different sizes, one of them constant, labels or values, and weights, some of them zero."""
    random = np.random.default_rng(5)
    X = random.normal(size=(rows, 4)) * [1.0, 1e3, 1e-3, 0.0] + [0.0, 5e3, 1.0, 2.0]
    X[:, 0] *= np.arange(rows) % 3 == 0  # mostly empty
    return X, np.arange(rows) % (3 if kind is SoftmaxRegression else 2), random.integers(0, 4, rows)


def stated(problem: Any, X: Any, y: Any, weights: Any, V: Any, W: Any, b: Any) -> float:
    """The objective as documented: losses of scores ``X W + b``, the regulariser on ``V``."""
    scores = X @ W + b
    if problem.kind == "softmax":
        losses = -log_softmax(scores, axis=1)[np.arange(len(y)), y]
    elif problem.kind == "logistic":
        losses = np.logaddexp(0.0, -(2 * y - 1) * scores[:, 0])
    else:
        losses = (scores[:, 0] - y) ** 2 / 2
    return float(np.average(losses, weights=weights) + problem.l2 / 2 * (V**2).sum())


@every
@stored
@pytest.mark.parametrize("intercept", [True, False])
def test_the_objective_in_any_coordinates(kind: Any, store: Any, intercept: bool) -> None:
    X, y, weights = data(kind)
    scaling = Scaling.curved(store(X), weights, curvature=kind.curvature, l2=0.3, centered=intercept)
    random = np.random.default_rng(0)
    for options in ({"standardize": True}, {"scaling": scaling}):
        problem = kind(store(X), y, l2=0.3, intercept=intercept, weights=weights, **options)
        check_problem(problem)
        w = random.normal(size=problem.dimension)
        W, b = problem.in_units(w)
        V = w.reshape(-1, problem.outputs)[:4] if "standardize" in options else W
        assert problem.loss(w) == pytest.approx(stated(problem, X, y, weights, V, W, b), rel=1e-9)
        again = kind(store(X), y, l2=0.3, intercept=intercept, weights=weights, start=(W, b), **options)
        if intercept:
            assert again.initial() == pytest.approx(w, rel=1e-9, abs=1e-9)
    assert scaling.apply(store(X)).shape == X.shape and sparse.issparse(scaling.apply(store(X))) == (
        store is not np.asarray
    )


@every
@stored
def test_a_weight_is_a_number_of_rows(kind: Any, store: Any) -> None:
    X, y, weights = data(kind)
    one = kind(store(X), y, l2=0.1, weights=weights, intercept=True)
    many = kind(store(X.repeat(weights, axis=0)), y.repeat(weights), l2=0.1, intercept=True)
    w = (
        np.random.default_rng(0).normal(size=one.dimension)
        / np.tile([[1.0], [1e3], [1.0], [1.0], [1.0]], one.outputs).ravel()
    )
    assert one.loss(w) == pytest.approx(many.loss(w))
    for made in (one, many):
        made.found = made.split(3)
    slopes = [
        sum(np.asarray(made.found.partial_gradient(j, w)) for j in range(3)) / made.samples for made in (one, many)
    ]
    assert slopes[0] == pytest.approx(slopes[1])
    assert one.smoothness(tol=0.0) == pytest.approx(many.smoothness(tol=0.0))
    assert one.digest() != kind(store(X), y, l2=0.1, intercept=True).digest()


@stored
def test_standardised_as_scikit_learn_does(store: Any) -> None:
    X, _, _ = data(LeastSquares)
    X = X[:, :3]
    y = X @ [1.0, 0.01, 30.0] + np.random.default_rng(1).normal(size=len(X))
    problem = LeastSquares(store(X), y, l2=0.2, intercept=True, standardize=True)
    solver = (
        {"solver": "cholesky"} if store is np.asarray else {"solver": "sparse_cg", "tol": 1e-14, "max_iter": 10_000}
    )
    theirs = make_pipeline(StandardScaler(with_mean=store is np.asarray), Ridge(alpha=0.2 * len(y), **solver)).fit(
        store(X), y
    )
    Z = problem.X if store is np.asarray else problem.X.toarray()
    expected = theirs[0].transform(X)
    if store is not np.asarray:  # full columns are centered here, too; a regression with an intercept is the same
        expected[:, 1:] -= expected[:, 1:].mean(axis=0)
    assert Z[:, :3] == pytest.approx(expected)
    exact = np.linalg.solve(Z.T @ Z / len(y) + np.diag(problem.penalty), Z.T @ y / len(y))
    weights, intercepts = problem.in_units(exact)
    assert X @ weights[:, 0] + intercepts[0] == pytest.approx(theirs.predict(store(X)), rel=1e-5)
    held_out = LeastSquares(X, y, l2=0.2, standardize=True, X_test=X[:5], y_test=y[:5])
    assert (held_out.X_test == held_out.X[:5]).all()  # by the training rows' means, not their own


def test_constant_columns_stay() -> None:
    X, y, _ = data(LeastSquares)
    for store in (np.asarray, sparse.csr_array):
        scaling = Scaling.standard(store(X))
        assert scaling.center[3] == 0.0 and scaling.scale[3] == 1.0
    big = np.full((50, 1), 0.1) * 3e8  # its computed mean is off by rounding, which must not become a column of ones
    curved = Scaling.curved(big, None, curvature=1.0, l2=0.0, centered=True)
    assert abs(curved.apply(big)).max() < 1e-6
    assert LeastSquares(X.astype(np.float32), y, standardize=True).X.dtype == np.float32


def test_local_steps_spare_the_intercept_too() -> None:
    """One worker that averages after each step takes the very steps of gradient descent."""
    X, y, _ = data(LogisticRegression)
    problem = LogisticRegression(X[:, :1], y, l2=0.5, intercept=True)
    local, plain = (
        anyk.train(problem, strategy, "simulated", workers=1, optimizer=anyk.optimizers.GD(lr=0.5), steps=20)
        for strategy in ("pasgd:tau=1", "uncoded")
    )
    assert local.model == pytest.approx(plain.model, rel=1e-12) and abs(plain.model[1]) > 0


def test_what_is_refused() -> None:
    X, y, _ = data(LogisticRegression)

    def fails(sentence: str, kind: Any = LogisticRegression, X: Any = X, y: Any = y, **options: Any) -> None:
        with pytest.raises(BadInput, match=sentence):
            kind(X, y, **options)

    fails(r"weights must hold one number for each of the 24 rows, got shape \(3,\)", weights=[1, 2, 3])
    fails("weights must be finite numbers of at least 0", weights=[-1.0] + [1.0] * 23)
    fails("all weights are zero", weights=[0.0] * 24)
    fails("y has labels that are not in classes: \\[0.0\\]", classes=[1.0, 2.0])
    fails("labels of two classes, got 3 classes; for more than two use SoftmaxRegression", classes=[1.0, 2.0, 3.0])
    fails("classes of softmax regression must be 0, 1, 2", kind=SoftmaxRegression, classes=[1.0, 2.0])
    fails("leave classes out", kind=LeastSquares, classes=[0.0, 1.0])
    fails("the numbers of column 1 are too large to be standardised", X=X * [1, 1e300, 1, 1], standardize=True)
    fails("give one", standardize=True, scaling=Scaling.standard(X))
    with pytest.raises(BadInput, match=r"start must be weights of shape \(4, 1\) and intercepts of shape \(1,\)"):
        LogisticRegression(X, y, start=([1.0], [0.0])).initial()
    known = SoftmaxRegression(X, y, classes=range(5))  # rows need not have all
    assert known.outputs == 5 and known.dimension == 20
