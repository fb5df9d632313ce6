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
from anyk.base.errors import BadInput
from anyk.problems import LeastSquares, LogisticRegression, SoftmaxRegression
from anyk.problems.data.shards import survey
from anyk.problems.linear import sharded
from anyk.problems.linear.scaling import Scaling
from anyk.sklearn import AnykRegressor
from anyk.testing import check_problem

pytestmark = pytest.mark.in_process

KINDS = [LogisticRegression, LeastSquares, SoftmaxRegression]
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
uneven = pytest.mark.filterwarnings("ignore:column .* holds numbers")  # on purpose
stored = pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])


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
        shifted = kind(store(X), y, l2=0.3, intercept=intercept, weights=weights, start=(W, b), **options)
        if intercept:
            assert shifted.initial() == pytest.approx(w, rel=1e-9, abs=1e-9)
    assert scaling.apply(store(X)).shape == X.shape and sparse.issparse(scaling.apply(store(X))) == (
        store is not np.asarray
    )


@every
@stored
@uneven
def test_a_weight_is_a_number_of_rows(kind: Any, store: Any) -> None:
    X, y, weights = data(kind)
    one = kind(store(X), y, l2=0.1, weights=weights, intercept=True)
    many = kind(store(X.repeat(weights, axis=0)), y.repeat(weights), l2=0.1, intercept=True)
    w = (
        np.random.default_rng(0).normal(size=one.dimension)
        / np.tile([[1.0], [1e3], [1.0], [1.0], [1.0]], one.outputs).ravel()
    )
    assert one.loss(w) == pytest.approx(many.loss(w))
    for model in (one, many):
        model.found = model.split(3)
    slopes = [
        sum(np.asarray(model.found.partial_gradient(j, w)) for j in range(3)) / model.samples for model in (one, many)
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


@uneven
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
    fails(
        r"column 1 of X holds .*e\+30., and those above 1e\+120 cannot be squared",
        X=X * [1, 1e300, 1, 1],
        standardize=True,
    )
    fails("give one", standardize=True, scaling=Scaling.standard(X))
    fails(r"start must be weights of shape \(4, 1\) and intercepts of shape \(1,\)", start=([1.0], [0.0]))
    fails("start must be a pair of weights and intercepts", start=np.zeros(4))
    fails("start must hold finite numbers", start=(np.full((4, 1), np.nan), [0.0]))
    fails("start must hold finite numbers", start=(np.full((4, 1), "a"), [0.0]))
    fails("start has intercepts, and the model has none; give intercept=True", start=(np.zeros((4, 1)), [1.0]))
    ones = np.ones(4)
    for scaling, words in (
        (Scaling(ones[:3], ones), r"center must hold one number for each of the 4 columns of X, got shape \(3,\)"),
        (Scaling(ones, ones[:, None]), r"scale must hold one number for each of the 4 columns of X, got shape \(4, 1"),
        (Scaling(ones, ones, ones[:2]), r"units must hold one number for each of the 4 columns of X, got shape \(2,\)"),
        (Scaling(0.0, ones), r"center must hold one number for each of the 4 columns of X, got shape \(\)"),  # type: ignore[arg-type]
        (Scaling(ones, ones - 1), r"scale must hold finite numbers above 0, got \[0.0, "),
        (Scaling(ones, ones, -ones), r"units must hold finite numbers above 0, got \[-1.0, "),
        (Scaling(ones * np.nan, ones), r"center must hold finite numbers, got \[nan, "),
    ):
        fails(words, scaling=scaling)
    fails("the scaling's target must be", kind=LeastSquares, scaling=Scaling(ones, ones, target=np.inf))
    fails("subtracted from numbers to predict, and this model has classes", scaling=Scaling(ones, ones, target=1.0))
    lists = LogisticRegression(X, y, scaling=Scaling([1.0] * 4, [2] * 4))  # type: ignore[arg-type]
    assert lists.loss(ones) == LogisticRegression(X, y, scaling=Scaling(ones, 2 * ones)).loss(ones)
    five_classes = SoftmaxRegression(X, y, classes=range(5))  # rows need not have all
    assert five_classes.outputs == 5 and five_classes.dimension == 20


# ------------------------------------------------------------------------------------------- tables of one's own


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes over shards in this process."""
    for module in (sharded, survey):
        monkeypatch.setattr(module, "map_in_processes", lambda work, pieces: [work(piece) for piece in pieces])


def table(text: bool, unit: float = 1.0) -> str:
    """A CSV file of a label that follows from two columns, the second in any unit, and perhaps from rare words."""
    random = np.random.default_rng(3)
    a, b = random.normal(50.0, 20.0, 240), random.normal(size=240)
    words = np.array(["rome", "oslo", "rare"])[np.minimum(np.arange(240) % 7, 2) if text else np.zeros(240, int)]
    labels = np.where(a - 50 + 10 * b > 0, "yes", "no")
    rows = [
        f"{x!r},{z * unit!r},{word},{y}" for x, z, word, y in zip(a.tolist(), b.tolist(), words, labels, strict=True)
    ]
    head = "a,b,word,y" if text else "a,b,y"
    return "\n".join([head, *(rows if text else [row.replace("rome,", "") for row in rows])])


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
@pytest.mark.parametrize("stays", [False, True], ids=["file", "shards"])
@pytest.mark.usefixtures("here")
def test_units_of_columns_do_not_matter(tmp_path: Any, text: bool, stays: bool) -> None:
    """The same table in other units gives the same predictions, and coefficients in its units."""
    fits = []
    for unit in (1.0, 1e-6):
        for name in ("train", "test"):
            (tmp_path / f"{name}.csv").write_text(table(text, unit))
        problem = (
            anyk.problems.from_data(f"shards:files={tmp_path}/t*.csv", progress=None)
            if stays
            else anyk.problems.from_data("file", file=tmp_path / "train.csv", progress=None)
        )
        run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=100)
        fits.append((run, problem.in_units(run.model)[0][:, 0]))
        assert run.metrics["accuracy"] > 0.95 > 0.7 > run.metrics["majority"]
    (one, weights), (other, small) = fits
    assert weights * [1, 1e6, 1, 1, 1][: len(weights)] == pytest.approx(small, rel=1e-3)
    assert one.loss == pytest.approx(other.loss, rel=1e-6) if not stays else one.metric == other.metric


def test_the_regulariser_acts_on_standardised_columns(tmp_path: Any) -> None:
    (tmp_path / "t.csv").write_text(table(True))
    problem = anyk.problems.from_data("file", file=tmp_path / "t.csv", l2=0.3, progress=None)
    check_problem(problem)
    raw = anyk.problems.from_data(
        "file", file=tmp_path / "t.csv", l2=0.3, model="linear:standardize=false", progress=None
    )
    X, deviations = raw.X.toarray()[:, :-1], raw.X.toarray()[:, :2].std(axis=0)
    w = np.random.default_rng(0).normal(size=problem.dimension)
    W, b = problem.in_units(w)
    V = W * np.array([*deviations, 1.0, 1.0, 1.0])[:, None]
    assert problem.loss(w) == pytest.approx(stated(problem, X, raw.y > 0, None, V, W, b), rel=1e-9)
    assert raw.scaling is None and problem.X.nnz == raw.X.nnz  # categories stay sparse


@pytest.mark.usefixtures("here")
def test_columns_that_differ_much_in_size_are_named(tmp_path: Any) -> None:
    X = np.column_stack([np.arange(1e6, 1e6 + 8), np.arange(8.0) - 3.5])
    with pytest.warns(RuntimeWarning, match="column 0 holds numbers 290,000 times as large as column 1, so that"):
        LogisticRegression(X, np.arange(8) > 3)
    LogisticRegression(X, np.arange(8) > 3, standardize=True)  # no warning
    (tmp_path / "t.svm").write_text("\n".join(f"{i % 2} 1:{1e6 + i} 2:{i - 3.5}" for i in range(20)))
    (tmp_path / "t.csv").write_text("id,f,y\n" + "\n".join(f"{1e6 + i},{i - 3.5},{i % 2}" for i in range(20)))
    for data, file, model, names in (
        ("file", "t.svm", "linear", ("column 0", "column 1")),
        (f"shards:files={tmp_path}/t.csv", None, "linear:standardize=false", ("column 'id'", "column 'f'")),
        ("file", "t.csv", "linear:standardize=false", ("column 'id'", "column 'f'")),
        ("file:intercept=no", "t.csv", "linear", ("column 'id'", "column 'f'")),
        ("file", "t.csv", "two-layer", ("column 'id'", "column 'f'")),
        ("file", "t.csv", "linear", None),
        ("file", "t.svm", "linear:standardize=true", None),
    ):
        said: list[str] = []
        anyk.problems.from_data(data, file=file and tmp_path / file, model=model, progress=said.append)
        warned = [line for line in said if "times as large" in line]
        assert len(warned) == (names is not None), said
        assert names is None or (warned[0].startswith(names[0]) and f"as large as {names[1]}" in warned[0])


# ------------------------------------------------------------------------------------------- large numbers


@pytest.mark.slow
@pytest.mark.parametrize("first", [2e15, 2.024e16, 1.7e18, -3e17])
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_consecutive_identifiers_do_not_hide_other_columns(first: float, store: Any) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=1000)
    X, y = np.column_stack([x, first + np.arange(1000)]), 2 * x + random.normal(0, 0.5, size=1000)
    problem = LeastSquares(store(X), y, standardize=True, intercept=True, X_test=store(X), y_test=y)
    run = anyk.train(problem, "uncoded", "simulated", workers=4, steps=100)
    assert run.metrics["r2"] > 0.93
    assert AnykRegressor().fit(X, y).score(X, y) > 0.93


@uneven
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("value", [1.79769313486e308, -1e160])
def test_numbers_too_large_to_be_squared_are_refused(value: float, store: Any) -> None:
    X, y, _ = data(LogisticRegression)
    X[3, 1] = value
    with pytest.raises(BadInput, match=r"column 1 of X holds numbers such as 1.*e\+.*cannot be squared"):
        LogisticRegression(store(X), y)
    with pytest.raises(BadInput, match=r"column 1 of X_test holds"):
        LogisticRegression(store(np.ones_like(X)), y, X_test=store(X), y_test=y)
    with pytest.raises(BadInput, match=r"column 0 of y holds numbers such as"):
        LeastSquares(np.ones((2, 1)), [1.0, value])
    assert LogisticRegression(store(np.where(value == X, 1e20, X).astype(np.float32)), y).smoothness() > 1e30


def test_labels_with_gaps_and_ragged_rows_are_refused() -> None:
    with pytest.raises(BadInput, match=r"y holds the labels 10, 20, 50 alone, and classes are 0, 1, 2, …; number"):
        SoftmaxRegression(np.eye(3), [10, 20, 50])
    assert SoftmaxRegression(np.eye(3), [0, 2, 0], classes=range(3)).outputs == 3
    with pytest.raises(BadInput, match=r"X must hold values in rows of equal length; NumPy says"):
        LeastSquares([[1.0, 2.0], [3.0]], [1.0, 2.0])
    with pytest.raises(BadInput, match=r"y must hold values in rows of equal length"):
        LeastSquares([[1.0], [3.0]], [[1.0, 2.0], [1.0]])
    with pytest.raises(
        BadInput, match=r"y holds labels such as 900719925474099., and numbers of that size cannot be told"
    ):
        LogisticRegression(np.eye(2), [9007199254740992, 9007199254740993])
    with pytest.raises(BadInput, match=r"classes must "):
        SoftmaxRegression(np.eye(2), [0, 1], classes=[[0], [1, 2]])  # type: ignore[list-item]
    with pytest.raises(BadInput, match=r"data must be a spec such as 'digits' or 'file', got dict; rows in memory"):
        anyk.problems.from_data({"x": [1.0]})  # type: ignore[arg-type]
