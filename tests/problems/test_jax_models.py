"""JAX models with dropout, batch norm and frozen parts: keys, running statistics, masks, and modules as they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import anyk
from anyk import keyed
from anyk.errors import BadInput
from anyk.problems import JaxProblem
from anyk.problems.jax_network import key_of, seed_of
from anyk.problems.jax_states import Averages
from anyk.problems.replicas import seed_of_draws

RANDOM = np.random.default_rng(0)
X = (RANDOM.standard_normal((24, 3)) * 2 + 1).astype(np.float32)
DATA = {"x": X, "y": (X[:, 0] * X[:, 1]).astype(np.float32)}
PARAMS = {"body": RANDOM.standard_normal((3, 4)), "head": RANDOM.standard_normal(4)}
STATE = {"mean": np.zeros(4, np.float32), "var": np.ones(4, np.float32)}


def loss(params, batch, state, key, train):
    """Batch norm and dropout, written by hand."""
    hidden = batch["x"] @ params["body"]
    mean, var = (hidden.mean(0), hidden.var(0)) if train else (state["mean"], state["var"])
    new = {"mean": 0.99 * state["mean"] + 0.01 * mean, "var": 0.99 * state["var"] + 0.01 * var} if train else state
    hidden = (hidden - mean) / jnp.sqrt(var + 1e-5)
    if train:
        hidden = hidden * jax.random.bernoulli(key, 0.5, hidden.shape)
    error = (hidden @ params["head"] - batch["y"]) ** 2
    return error.mean(), (jax.lax.stop_gradient(new), {"largest": abs(error).max(), "close": (error < 1).mean()})


def made(**options):
    settings = {"rng": True, "has_aux": True, "state": STATE, "held_out": DATA} | options
    return JaxProblem(settings.pop("loss", loss), PARAMS, DATA, **settings)


def test_keys_states_and_metrics():
    problem = made(metrics=["close", "held_out_loss"])
    w, parts = problem.initial(), problem.split(2)
    params = problem.params_at(w)
    # a worker's gradient is that of its batch in training, with a key of the model, the partition and the rows alone
    for j, rows in ((0, None), (1, None), (1, np.array([2, 5]))):
        key = key_of(seed_of(seed_of_draws(keyed.digest(w), j, rows)))
        batch = jax.tree.map(
            lambda a, j=j, rows=rows: a[12 * j : 12 * j + 12][slice(None) if rows is None else rows], DATA
        )
        slope = jax.grad(lambda params, batch=batch, key=key: loss(params, batch, STATE, key, True)[0])(params)
        found = parts.partial_gradient(j, w, *(() if rows is None else (rows,)))
        assert found == pytest.approx(np.asarray(ravel_pytree(slope)[0]) * len(batch["y"]), rel=1e-3, abs=1e-3)
        assert np.array_equal(found, problem.split(2).partial_gradient(j, w, *(() if rows is None else (rows,))))
    assert np.array_equal(parts.piece(1, 1).partial_gradient(0, w), parts.partial_gradient(1, w))
    # evaluation is at the statistics of the data, whatever the momentum and how few the batches
    hidden = X.astype(float) @ PARAMS["body"]
    state = problem.state_at(w)
    assert np.asarray(state["mean"]) == pytest.approx(hidden.mean(0), rel=1e-3, abs=1e-3)
    assert np.asarray(state["var"]) == pytest.approx(hidden.var(0), rel=1e-3)
    error = (((hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)) @ PARAMS["head"] - DATA["y"]) ** 2
    assert problem.loss(w) == pytest.approx(error.mean(), rel=1e-3)
    told = problem.metrics(w)
    assert list(told) == ["close", "held_out_loss"] and (problem.metric, problem.better) == ("close", "higher")
    assert told == pytest.approx({"close": (error < 1).mean(), "held_out_loss": error.mean()}, rel=1e-3)


def test_frozen_parameters_stay_and_are_not_sent():
    def plain(params, batch):
        return jnp.mean((jnp.tanh(batch["x"] @ params["body"]) @ params["head"] - batch["y"]) ** 2)

    whole = JaxProblem(plain, PARAMS, DATA)
    slope = whole.split(1).partial_gradient(0, whole.initial())
    for mask in ({"body": False, "head": True}, lambda path: path.startswith("head")):
        problem = JaxProblem(plain, PARAMS, DATA, trainable=mask)
        assert problem.dimension == 4 and problem.shapes == [(4,)]
        assert problem.split(1).partial_gradient(0, problem.initial()) == pytest.approx(slope[12:], rel=1e-5)
        there = problem.params_at(problem.initial() + 1)
        assert np.array_equal(there["body"], PARAMS["body"].astype(np.float32))
        assert np.asarray(there["head"]) == pytest.approx(PARAMS["head"] + 1, rel=1e-6)
    optax = pytest.importorskip("optax")
    stepping = anyk.optimizers.OptaxOptimizer(optax.adam(0.1))
    assert anyk.train(problem, "frc:load=2", anyk.clusters.Simulated(4), steps=2, optimizer=stepping).model.size == 4


@pytest.mark.parametrize("kind", ["counted", "first", "copied"])
def test_averages_come_to_rest(kind):
    x = [np.array([3.0, -1.0]), np.array([5.0, 2.0])]

    def step(state, x):
        if kind == "counted":  # as Equinox and Haiku: what begins at zero is divided by how much of it has been filled
            count = state["count"] + 1
            hidden = 0.999 * state["hidden"] + 0.001 * x
            return {"count": count, "hidden": hidden, "mean": hidden / (1 - 0.999**count)}
        if kind == "first":
            return {"mean": np.where(state["first"], x, 0.9 * state["mean"] + 0.1 * x), "first": np.array(False)}
        return {"mean": 0.5 * state["mean"] + 0.5 * x, "constant": state["constant"]}

    begin = {
        "counted": {"count": np.array(0), "hidden": np.zeros(2), "mean": np.zeros(2)},
        "first": {"mean": np.full(2, 9.0), "first": np.array(True)},
        "copied": {"mean": np.zeros(2), "constant": np.array([7.0])},
    }[kind]
    averages = Averages.of(lambda state: step(state, x[0]), begin)
    rest = averages.at([step(averages.start, one) for one in x])
    assert rest["mean"] == pytest.approx([4.0, 0.5], rel=1e-6)
    if kind == "copied":
        assert rest["constant"] == 7.0


@pytest.mark.parametrize(
    "step", [lambda s: s + 1.0, lambda s: s @ np.array([[0.0, 1.0], [1.0, 1.0]]) / np.linalg.norm(s), lambda s: -s]
)
def test_state_that_does_not_come_to_rest_is_refused(step):
    with pytest.raises(BadInput, match=r"state\['u'\] is no moving average of what batches have"):
        Averages.of(lambda state: {"u": step(state["u"])}, {"u": np.array([1.0, 0.5])})
