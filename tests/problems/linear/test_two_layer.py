"""The two-layer network: its gradient against finite differences, its partitions against the whole, from the command line."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import approx_fprime

import anyk
from anyk.base.errors import BadInput


def small(kind: str = "dense", l2: float = 0.0) -> anyk.problems.TwoLayerNetwork:
    rng = np.random.default_rng(3)
    X = np.where(rng.random((17, 5)) < 0.6, rng.standard_normal((17, 5)), 0.0)
    y = np.concatenate(([0, 1, 2], rng.integers(0, 3, 14)))
    return anyk.problems.TwoLayerNetwork(sparse.csr_array(X) if kind == "sparse" else X, y, hidden=4, l2=l2)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_gradients_are_those_of_the_loss(kind: str) -> None:
    problem = small(kind)
    w = problem.initial() + 0.1
    partitions = problem.split(4)
    assert sum(partitions.sizes) == 17 and partitions.dimension == problem.dimension == 6 * 4 + 5 * 3
    gradient = sum(partitions.partial_gradient(j, w) for j in range(4)) / 17
    numeric = approx_fprime(w, problem.loss, 1e-7)
    assert gradient == pytest.approx(numeric, abs=2e-6)
    rows = np.array([0, 2])
    some = partitions.partial_gradient(1, w, rows)
    mini_batch = partitions.partial_gradient(1, w, np.array([1, 3]))
    assert some + mini_batch == pytest.approx(partitions.partial_gradient(1, w), abs=1e-12)


def test_the_start_is_keyed_and_breaks_the_symmetry() -> None:
    problem = small()
    assert np.array_equal(problem.initial(), small().initial())
    first = problem.initial()[: 5 * 4].reshape(5, 4)
    assert np.linalg.matrix_rank(first) == 4
    other = anyk.problems.TwoLayerNetwork(problem.X, problem.y, hidden=4, seed=1)
    assert not np.array_equal(other.initial(), problem.initial())


@pytest.mark.slow
def test_it_learns_what_a_linear_model_cannot() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    problem = anyk.problems.TwoLayerNetwork(X, y, hidden=16, X_test=X, y_test=y)
    linear = anyk.problems.SoftmaxRegression(X, y, X_test=X, y_test=y)
    accuracy = []
    for model in (problem, linear):
        run = anyk.train(
            model, "frc:load=2", anyk.clusters.Simulated(4), optimizer=anyk.optimizers.Adam(lr=0.05), steps=250
        )
        accuracy.append(run.metric["value"])
    assert accuracy[0] > 0.9 and accuracy[1] < 0.7, accuracy


@pytest.mark.slow
def test_equal_on_both_clusters() -> None:
    problem = anyk.problems.from_data("digits", model="two-layer:hidden=6")
    assert problem.recipe() == {"data": "digits", "model": "two-layer:hidden=6"}
    models = []
    for name in ("simulated", "processes"):
        run = anyk.train(
            problem, "frc:load=2,batch=5", anyk.cluster(name, workers=4), steps=5, optimizer=anyk.optimizers.GD()
        )
        models.append(run.model.tobytes())
        assert str(anyk.replay(run)).endswith("the same bits of model")
    assert models[0] == models[1]


def test_a_data_set_of_two_classes_or_of_none() -> None:
    binary = anyk.problems.from_data("synthetic:rows=50,features=3", model="two-layer:hidden=2")
    assert binary.dimension == 4 * 2 + 3 * 2 and binary.metric == "accuracy"
    with pytest.raises(BadInput, match="hidden must be a whole number of at least 1, got 0"):
        anyk.problems.from_data("digits", model="two-layer:hidden=0")
    with pytest.raises(BadInput, match="no model 'three-layer'; did you mean 'two-layer'?"):
        anyk.problems.from_data("digits", model="three-layer")
