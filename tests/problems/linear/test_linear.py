"""Linear models: gradients against differences and other libraries, partitions that add up, supports, and complaints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from anyk.base.errors import BadInput
from anyk.clusters.remote.shipping import ship
from anyk.problems import LeastSquares, LinearProblem, LogisticRegression, SoftmaxRegression

pytestmark = pytest.mark.in_process

KINDS = [LogisticRegression, LeastSquares, SoftmaxRegression]
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def labels(kind: Any, X: np.ndarray, random: np.random.Generator) -> np.ndarray:
    scores = X @ random.standard_normal((X.shape[1], 3)) + 0.3 * random.standard_normal((len(X), 3))
    if kind is LogisticRegression:
        y = np.where(scores[:, 0] > np.median(scores[:, 0]), 1.0, -1.0)
    elif kind is LeastSquares:
        y = scores[:, 0]
    else:
        y = scores.argmax(axis=1).astype(float)
        y[:3] = [0, 1, 2]
    return y


def table(rows: int, columns: int, seed: int, density: float | None = None) -> np.ndarray:
    random = np.random.default_rng(seed)
    X = random.standard_normal((rows, columns))
    return X if density is None else X * (random.random((rows, columns)) < density)


def problem(kind: Any, X: Any, seed: int = 0, **options: Any) -> LinearProblem:
    dense = X.toarray() if sparse.issparse(X) else np.asarray(X)
    model: LinearProblem = kind(X, labels(kind, dense, np.random.default_rng(seed)), **options)
    return model


def summed(made: LinearProblem, w: np.ndarray, partitions: int) -> np.ndarray:
    """The sum over all partitions, each scattered to its support."""
    split, total = made.split(partitions), np.zeros(made.dimension)
    split.load(range(partitions))
    for j in range(partitions):
        support, gradient = split.support(j), split.partial_gradient(j, w)
        total[slice(None) if support is None else support] += gradient
    return total


def full_gradient(made: LinearProblem, X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The sum of sample gradients from its formula, with SciPy's sigmoid and softmax, in double precision."""
    X, w = np.asarray(X, dtype=float), np.asarray(w, dtype=float)
    if isinstance(made, LogisticRegression):
        return np.asarray(X.T @ (-made.y * expit(-made.y * (X @ w))))
    if isinstance(made, LeastSquares):
        return np.asarray(X.T @ (X @ w - made.y))
    W = w.reshape(X.shape[1], -1)
    return np.asarray(X.T @ (softmax(X @ W, axis=1) - np.eye(W.shape[1])[made.y.astype(int)])).ravel()


# ------------------------------------------------------------------------------------------- gradients


@every
def test_gradients_are_the_slopes_of_the_loss(kind: Any) -> None:
    """(sum of partial gradients) / N + l2 w against central differences of the objective."""
    model = problem(kind, table(40, 5, 1), l2=0.1)
    for seed in range(3):
        w = np.random.default_rng(seed).standard_normal(model.dimension)
        slope = optimize.approx_fprime(w, model.loss, 1e-6)
        assert summed(model, w, 7) / model.samples + model.l2 * w == pytest.approx(slope, abs=1e-5)


@every
def test_the_objective_is_as_stated(kind: Any) -> None:
    X = table(30, 4, 2)
    model = problem(kind, X, l2=0.3)
    w = np.random.default_rng(0).standard_normal(model.dimension)
    if kind is LogisticRegression:
        losses = np.log1p(np.exp(-model.y * (X @ w)))
    elif kind is LeastSquares:
        losses = (X @ w - model.y) ** 2 / 2
    else:
        losses = -np.log(softmax(X @ w.reshape(4, 3), axis=1)[np.arange(30), model.y.astype(int)])
    assert model.loss(w) == pytest.approx(losses.mean() + 0.15 * float(w @ w), rel=1e-12)
    assert model.samples == 30 and model.initial().tolist() == [0.0] * model.dimension


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column .* holds numbers")
@every
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_partial_gradients_add_up_however_the_data_is_cut(kind: Any, data: st.DataObject) -> None:
    """Dense and sparse, in double and single precision, against the formula on the whole table."""
    rows, columns = data.draw(st.integers(6, 60)), data.draw(st.integers(1, 30))
    density = data.draw(st.sampled_from([None, 0.05, 0.3]))
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    X = table(rows, columns, data.draw(st.integers(0, 99)), density).astype(dtype)
    model = problem(kind, X if density is None else sparse.csr_array(X))
    w = np.random.default_rng(1).standard_normal(model.dimension).astype(dtype)
    expected = full_gradient(model, X, w)
    tolerance = (1e-12 if dtype is np.float64 else 1e-5) * max(1.0, float(np.abs(expected).max())) * rows
    for partitions in {1, data.draw(st.integers(1, rows)), rows}:
        assert summed(model, w, partitions) == pytest.approx(expected, abs=tolerance)


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("density", [None, 0.05])
def test_gradients_have_the_precision_of_the_data(kind: Any, dtype: Any, density: float | None) -> None:
    """Partitions promise one dtype for model and gradients; a float64 slope would double a float32 table's work."""
    X = table(20, 30, 3, density).astype(dtype)
    model = problem(kind, X if density is None else sparse.csr_array(X))
    split = model.split(4)
    assert model.dtype == split.dtype == model.initial().dtype == dtype
    for j in range(4):
        assert split.partial_gradient(j, model.initial()).dtype == dtype


@every
def test_extreme_scores_give_finite_losses_and_slopes(kind: Any) -> None:
    model = problem(kind, table(20, 3, 4))
    for size in (1e3, 1e6):
        w = size * np.random.default_rng(0).standard_normal(model.dimension)
        assert np.isfinite(model.loss(w)) and np.isfinite(summed(model, w, 3)).all()


def test_two_classes_of_softmax_are_logistic_regression() -> None:
    """With W = (0, w) the two models are one."""
    X = table(30, 4, 5)
    y = (table(30, 1, 6)[:, 0] > 0).astype(float)
    w = np.random.default_rng(0).standard_normal(4)
    W = np.column_stack([np.zeros(4), w]).ravel()
    one, other = LogisticRegression(X, y), SoftmaxRegression(X, y)
    assert other.loss(W) == pytest.approx(one.loss(w), rel=1e-12)
    assert summed(other, W, 4).reshape(4, 2)[:, 1] == pytest.approx(summed(one, w, 4), rel=1e-9)


# ------------------------------------------------------------------------------------------- other libraries


@pytest.mark.parametrize("kind", [LogisticRegression, SoftmaxRegression], ids=lambda kind: kind.__name__)
def test_scikit_learns_solution_is_our_minimum(kind: Any) -> None:
    X, l2 = table(200, 5, 7), 0.05
    model = problem(kind, X, l2=l2)
    fitted = SklearnLogistic(C=1 / (200 * l2), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, model.y)
    w = fitted.coef_[0] if kind is LogisticRegression else fitted.coef_.T.ravel()
    assert np.abs(summed(model, w, 6) / 200 + l2 * w).max() < 1e-6
    assert model.loss(w) < min(model.loss(w + 0.01 * d) for d in np.random.default_rng(0).standard_normal((20, w.size)))


def test_ridges_solution_is_our_minimum() -> None:
    X, l2 = table(50, 5, 8), 0.2
    model = problem(LeastSquares, X, l2=l2)
    w = Ridge(alpha=50 * l2, fit_intercept=False, solver="cholesky").fit(X, model.y).coef_
    assert np.abs(summed(model, w, 6) / 50 + l2 * w).max() < 1e-10


def test_metrics_on_held_out_rows() -> None:
    X, T = table(60, 4, 9), table(31, 4, 10)
    w = np.random.default_rng(1).standard_normal(4)
    test_labels = labels(LogisticRegression, T, np.random.default_rng(2))
    model: LinearProblem = LogisticRegression(X, np.sign(X[:, 0]), X_test=T, y_test=test_labels)
    positive, negative = (T @ w)[test_labels > 0], (T @ w)[test_labels < 0]
    auc = np.mean([(p > q) + 0.5 * (p == q) for p in positive for q in negative])
    right, majority = np.mean((T @ w > 0) == (test_labels > 0)), max(np.mean(test_labels > 0), np.mean(test_labels < 0))
    assert model.metrics(w) == {
        "auc": pytest.approx(auc), "accuracy": pytest.approx(right), "majority": pytest.approx(majority)
    }  # fmt: skip
    assert model.better == "higher" and next(iter(model.metrics(w))) == model.metric
    model = LeastSquares(X, X[:, 0], X_test=sparse.csr_array(T), y_test=T[:, 1])
    mse, r2 = np.mean((T @ w - T[:, 1]) ** 2), r2_score(T[:, 1], T @ w)
    assert model.metrics(w) == {"mse": pytest.approx(mse), "r2": pytest.approx(r2)} and model.better == "lower"
    assert np.isnan(model.metrics(w * 1e308)["mse"])  # scores that are not finite
    y = np.arange(60) % 3
    model = SoftmaxRegression(X, y, X_test=T, y_test=np.arange(31) % 3)
    W = np.random.default_rng(2).standard_normal(12)
    accuracy = np.mean((T @ W.reshape(4, 3)).argmax(axis=1) == np.arange(31) % 3)
    assert model.metrics(W) == {"accuracy": pytest.approx(accuracy), "majority": pytest.approx(11 / 31)}
    assert problem(LeastSquares, X).metrics(w) == {}


# ------------------------------------------------------------------------------------------- partitions


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), st.data())
def test_partitions_are_even_and_in_order(rows: int, data: st.DataObject) -> None:
    """As numpy.array_split cuts them; partition j's gradient is that of its own rows."""
    m = data.draw(st.integers(1, rows))
    X = np.arange(1.0, rows + 1)[:, None]
    split = LeastSquares(X, np.zeros(rows)).split(m)
    pieces = np.array_split(X[:, 0], m)
    assert split.sizes == tuple(len(piece) for piece in pieces) and split.dimension == 1
    for j, piece in enumerate(pieces):
        assert split.partial_gradient(j, np.ones(1))[0] == pytest.approx(float(piece @ piece))


@every
def test_replies_of_sparse_partitions_cover_what_they_touch(kind: Any) -> None:
    X = table(24, 60, 11, 0.03)
    X[20:, :] = table(4, 60, 12)  # the last partition touches everything
    model, dense_model = problem(kind, sparse.csr_array(X)), problem(kind, X)
    split, dense = model.split(6), dense_model.split(6)
    w = np.random.default_rng(0).standard_normal(model.dimension)
    local = 0
    for j in range(6):
        touched = np.flatnonzero(np.abs(X[4 * j : 4 * j + 4]).sum(axis=0))
        support, full = split.support(j), dense.partial_gradient(j, w)
        assert dense.support(j) is None
        if support is None:
            assert touched.size >= 30  # half of the columns or more
            assert split.partial_gradient(j, w) == pytest.approx(full, abs=1e-12)
            continue
        local += 1
        outputs = model.dimension // 60
        assert support.tolist() == [outputs * t + k for t in touched for k in range(outputs)]
        assert split.partial_gradient(j, w) == pytest.approx(full[support], abs=1e-12)
        assert not np.delete(full, support).any()
    assert local >= 4


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_array", "duplicates", "unsorted"])
def test_any_sparse_form_is_understood_and_left_as_it_was(form: str) -> None:
    X = table(12, 40, 13, 0.1)
    given_form: Any = getattr(sparse, form)(X) if hasattr(sparse, form) else sparse.csr_array(X)
    if form == "duplicates":  # one entry in two halves, at the end of the first row
        data = np.r_[given_form.data[:1] / 2, given_form.data[:1] / 2, given_form.data[1:]]
        indices = np.r_[given_form.indices[:1], given_form.indices]
        given_form = sparse.csr_array((data, indices, np.r_[0, given_form.indptr[1:] + 1]), shape=X.shape)
    elif form == "unsorted":
        reverse = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(given_form.indptr, given_form.indptr[1:])])  # noqa: B905
        given_form = sparse.csr_array(
            (given_form.data[reverse], given_form.indices[reverse], given_form.indptr), shape=X.shape
        )
    before = given_form.copy()
    model = LeastSquares(given_form, np.arange(12))
    w = np.random.default_rng(0).standard_normal(40)
    assert summed(model, w, 5) == pytest.approx(X.T @ (X @ w - np.arange(12)), abs=1e-9)
    assert given_form.nnz == before.nnz and np.array_equal(given_form.toarray(), X)
    assert np.array_equal(given_form.data, before.data)


def test_tables_of_whole_numbers_and_booleans_become_floats() -> None:
    for dtype in (np.int32, bool, np.float16, np.uint8):
        X = (table(10, 3, 14) > 0).astype(dtype)
        model = LeastSquares(X, np.arange(10))
        assert model.dtype == np.float64
        assert summed(model, np.ones(3), 2) == pytest.approx(
            X.astype(float).T @ (X.astype(float).sum(axis=1) - np.arange(10))
        )
    assert LeastSquares([[1, 2], [3, 4]], [1, 2]).dimension == 2


# ------------------------------------------------------------------------------------------- smoothness


def hessian(made: LinearProblem, X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of the objective, from its formula."""
    N, ridge = len(X), made.l2 * np.eye(made.dimension)
    if isinstance(made, LeastSquares):
        return X.T @ X / N + ridge
    if isinstance(made, LogisticRegression):
        p = expit(X @ w)
        return X.T @ (X * (p * (1 - p))[:, None]) / N + ridge
    P = softmax(X @ w.reshape(X.shape[1], -1), axis=1)
    inner = np.einsum("ia,ab->iab", P, np.eye(P.shape[1])) - np.einsum("ia,ib->iab", P, P)
    return np.einsum("ij,ik,iab->jakb", X, X, inner).reshape(made.dimension, made.dimension) / N + ridge


@every
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_smoothness_bounds_the_curvature(kind: Any, data: st.DataObject) -> None:
    """To the relative 1e-5 of its iterative solver."""
    rows, columns = data.draw(st.integers(4, 40)), data.draw(st.integers(1, 12))
    X = table(rows, columns, data.draw(st.integers(0, 99))) * np.geomspace(
        1, 10 ** data.draw(st.integers(-2, 2)), columns
    )
    if data.draw(st.booleans()):
        X = X - X.mean(axis=0)
    model = problem(kind, X, l2=data.draw(st.sampled_from([0.0, 0.5])))
    bound = model.smoothness() * (1 + 1e-5)
    for scale in (0.0, 0.1, 3.0):
        w = scale * np.random.default_rng(0).standard_normal(model.dimension)
        assert np.linalg.eigvalsh(hessian(model, X, w))[-1] <= bound
    if kind is not SoftmaxRegression:  # reached: everywhere, and at zero
        top = np.linalg.eigvalsh(hessian(model, X, np.zeros(model.dimension)))[-1]
        assert model.smoothness() == pytest.approx(top, rel=1e-5)


@every
def test_steps_at_one_over_the_smoothness_never_go_up(kind: Any) -> None:
    for X in (table(40, 6, 15), sparse.csr_array(table(30, 50, 16, 0.1))):
        model = problem(kind, X, l2=0.01)
        w, rate = model.initial(), 1 / model.smoothness()
        losses = [model.loss(w)]
        for _ in range(60):
            w = w - rate * (summed(model, w, 3) / model.samples + model.l2 * w)
            losses.append(model.loss(w))
        assert all(b <= a + 1e-12 for a, b in zip(losses, losses[1:], strict=False)) and losses[-1] < losses[0]


@pytest.mark.parametrize("case", ["opposite columns", "no entries", "one column", "one row", "rows of opposite sign"])
def test_smoothness_of_tables_that_hide_their_largest_direction(case: str) -> None:
    """Where the all-ones vector, with which an iteration may begin, is mapped to nothing."""
    x = table(50, 1, 17)
    X = {
        "opposite columns": np.hstack([x, -x]),
        "no entries": np.zeros((5, 3)),
        "one column": x,
        "one row": x.T,
        "rows of opposite sign": np.vstack([x.T, -x.T]),
    }[case]
    expected = np.linalg.eigvalsh(X.T @ X / len(X))[-1]
    assert LeastSquares(X, np.zeros(len(X)), l2=0.5).smoothness() == pytest.approx(expected + 0.5, rel=1e-5)


# ------------------------------------------------------------------------------------------- complaints

X4 = table(4, 2, 18)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: LeastSquares(np.zeros(4), [1] * 4), "X must be a table (rows x columns), got shape (4,)"),
        (lambda: LeastSquares([["a"]], [1]), "X must hold numbers, got <U1"),
        (
            lambda: LeastSquares([[1, np.nan], [np.inf, 2]], [1, 2]),
            "X has 2 values that are NaN or infinite; drop or fill",
        ),
        (
            lambda: LeastSquares(sparse.csr_array([[0, np.nan], [1.0, 2]]), [1, 2]),
            "X has 1 values that are NaN or infinite; drop or fill those rows first",
        ),
        (lambda: LeastSquares(X4, [1, 2, 3]), "y must have one value for each of the 4 rows, got shape (3,)"),
        (
            lambda: LeastSquares(X4, [[1], [2], [3], [4]]),
            "y must have one value for each of the 4 rows, got shape (4, 1)",
        ),
        (lambda: LeastSquares(X4, [1, 2, 3, np.nan]), "y must hold finite numbers"),
        (lambda: LeastSquares(X4, ["a", "b", "c", "d"]), "y must hold finite numbers"),
        (lambda: LeastSquares(X4, range(4), l2=-1), "l2 must be a finite number of at least 0, got -1"),
        (lambda: LeastSquares(X4, range(4), l2=float("nan")), "l2 must be a number, got nan"),
        (lambda: LeastSquares(X4, range(4), X_test=X4), "give X_test and y_test together, or neither"),
        (lambda: LeastSquares(X4, range(4), y_test=[1]), "give X_test and y_test together, or neither"),
        (
            lambda: LeastSquares(X4, range(4), X_test=np.ones((3, 5)), y_test=[1, 2, 3]),
            "X_test has 5 columns, X has 2; they must agree",
        ),
        (
            lambda: LeastSquares(X4, range(4), X_test=X4, y_test=[1, 2]),
            "y_test must have one value for each of the 4 rows, got shape (2,)",
        ),
        (
            lambda: LeastSquares(X4, range(4), X_test=X4 * np.nan, y_test=range(4)),
            "X_test has 8 values that are NaN or infinite",
        ),
        (
            lambda: LogisticRegression(X4, [1] * 4),
            "logistic regression needs labels of two classes, got one class only",
        ),
        (
            lambda: LogisticRegression(X4, [1, 2, 3, 1]),
            "logistic regression needs labels of two classes, got 3 classes; for more than two use SoftmaxRegression",
        ),
        (
            lambda: LogisticRegression(X4, [0, 1, 0, 1], X_test=X4, y_test=[0, 1, 2, 1]),
            "y_test has labels that are not in y: [2.0]",
        ),
        (lambda: SoftmaxRegression(X4, [1] * 4), "softmax regression needs at least two classes, got one class only"),
        (lambda: SoftmaxRegression(X4, [0, 1, -1, 0]), "y must hold classes 0, 1, 2, …; number the labels first"),
        (lambda: SoftmaxRegression(X4, [0, 1, 0.5, 0]), "y must hold classes 0, 1, 2, …; number the labels first"),
        (
            lambda: SoftmaxRegression(X4, [0, 1, 0, 1], X_test=X4, y_test=[0, 1, 2, 0]),
            "y_test has labels that are not in y: [2.0]",
        ),
        (
            lambda: LeastSquares(X4, range(4)).split(5),
            "4 rows cannot be cut into 5 partitions of at least one row; use at most 4",
        ),
        (lambda: LeastSquares(X4, range(4)).split(0), "4 rows cannot be cut into 0 partitions of at least one row"),
        (lambda: LeastSquares(X4 + 1j, range(4)), "X must hold"),
    ],
)
def test_bad_data_is_named(build: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        build()
    assert str(caught.value).startswith(sentence)


def test_any_two_labels_will_do() -> None:
    """The larger is the positive class."""
    y = np.array([0, 1, 1, 0])
    w = np.ones(2)
    expected = LogisticRegression(X4, np.where(y > 0, 1, -1)).loss(w)
    for labels_used in ([0, 1], [-1, 1], [3.5, 7.0], [1, 2]):
        assert LogisticRegression(X4, np.array(labels_used)[y]).loss(w) == expected
    assert LogisticRegression(X4, y == 1).loss(w) == expected  # booleans are two values


def test_a_held_out_set_of_one_class_has_no_auc() -> None:
    model = LogisticRegression(X4, [0, 1, 0, 1], X_test=X4, y_test=[1] * 4)
    assert np.isnan(model.metrics(np.ones(2))["auc"])


@pytest.mark.parametrize("thin", [False, True])
def test_partitions_without_the_data_of_others(thin: bool) -> None:
    """What is left computes the same, knows all supports, and is as much smaller as it holds less."""
    random = np.random.default_rng(0)
    X = random.standard_normal((400, 50)) * (random.random((400, 50)) < 0.05 if thin else 1.0)
    data = sparse.csr_array(X) if thin else X
    all_partitions = LogisticRegression(data, np.where(random.random(400) < 0.5, -1.0, 1.0)).split(20)
    piece = all_partitions.only([3, 7])
    w = random.standard_normal(50)
    for j in (3, 7):
        assert np.array_equal(piece.partial_gradient(j, w), all_partitions.partial_gradient(j, w))
    for j in range(20):
        assert np.array_equal(piece.support(j), all_partitions.support(j)) if thin else piece.support(j) is None
    sizes = [sum(len(buffer) for buffer in ship(partitions)[1:]) for partitions in (all_partitions, piece)]
    if not thin:
        assert sizes[1] == pytest.approx(0.1 * sizes[0], rel=1e-6)
