"""JAX models with dropout, batch norm and frozen parts: keys, running statistics, masks, and modules as they are."""

from __future__ import annotations

import json
import subprocess
import sys

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.problems import JaxProblem
from anyk.problems.jax.model_loss import Averages, key_of, seed_of
from anyk.problems.jax.pytrees import distinct
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


@pytest.mark.slow
def test_keys_states_and_metrics():
    problem = made(metrics=["close", "held_out_loss"])
    w, parts = problem.initial(), problem.split(2)
    params = problem.params_at(w)
    # a worker's gradient is that of its batch in training, with the run's key, the partition and the rows alone
    parts.key = 5
    slope = jax.jit(jax.grad(lambda params, batch, seed: loss(params, batch, STATE, key_of(seed), True)[0]))
    for j, rows in ((0, None), (1, None), (1, np.arange(12))):
        chosen = 12 * j + (np.arange(12) if rows is None else rows)
        batch = {name: array[chosen] for name, array in DATA.items()}
        expected = slope(params, batch, seed_of(seed_of_draws(5, j, rows)))
        actual = parts.partial_gradient(j, w, rows)
        flat = np.concatenate([leaf.ravel() for leaf in map(np.asarray, jax.tree.leaves(expected))])
        assert actual == pytest.approx(flat * len(batch["y"]), rel=1e-3, abs=1e-3)
        replica = problem.split(2)
        replica.key = 5
        assert np.array_equal(actual, replica.partial_gradient(j, w, rows))
    other = slope(params, batch, seed_of(seed_of_draws(5, 0, rows)))
    assert not np.allclose(other["head"], expected["head"])
    assert np.array_equal(parts.piece(1, 1).partial_gradient(0, w), parts.partial_gradient(1, w))
    # evaluation is at the statistics of the data, whatever the momentum and how few the batches
    hidden = X.astype(float) @ PARAMS["body"]
    state = problem.state_at(w)
    assert np.asarray(state["mean"]) == pytest.approx(hidden.mean(0), rel=1e-3, abs=1e-3)
    assert np.asarray(state["var"]) == pytest.approx(hidden.var(0), rel=1e-3)
    error = (((hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)) @ PARAMS["head"] - DATA["y"]) ** 2
    assert problem.loss(w) == pytest.approx(error.mean(), rel=1e-3)
    metrics = problem.metrics(w)
    assert list(metrics) == ["close", "held_out_loss"] and (problem.metric, problem.better) == ("close", "higher")
    assert metrics == pytest.approx({"close": (error < 1).mean(), "held_out_loss": error.mean()}, rel=1e-3)


@pytest.mark.slow
def test_frozen_parameters_stay_and_are_not_sent():
    def plain(params, batch):
        return jnp.mean((jnp.tanh(batch["x"] @ params["body"]) @ params["head"] - batch["y"]) ** 2)

    whole = JaxProblem(plain, PARAMS, DATA)
    slope = whole.split(1).partial_gradient(0, whole.initial())
    for mask in ({"body": False, "head": True}, lambda path: path.startswith("head")):
        problem = JaxProblem(plain, PARAMS, DATA, trainable=mask)
        assert problem.dimension == 4 and problem.shapes == [(4,)]
        assert problem.split(1).partial_gradient(0, problem.initial()) == pytest.approx(slope[12:], rel=1e-5)
        params_there = problem.params_at(problem.initial() + 1)
        assert np.array_equal(params_there["body"], PARAMS["body"].astype(np.float32))
        assert np.asarray(params_there["head"]) == pytest.approx(PARAMS["head"] + 1, rel=1e-6)
        seen = problem.trained_at(problem.initial())  # as an optimiser of optax sees it
        assert seen["body"] is None and seen["head"].shape == (4,)


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
    at_rest = averages.at([step(averages.start, one) for one in x])
    assert at_rest["mean"] == pytest.approx([4.0, 0.5], rel=1e-6)
    if kind == "copied":
        assert at_rest["constant"] == 7.0


@pytest.mark.parametrize(
    "step", [lambda s: s + 1.0, lambda s: s @ np.array([[0.0, 1.0], [1.0, 1.0]]) / np.linalg.norm(s), lambda s: -s]
)
def test_state_that_does_not_come_to_rest_is_refused(step):
    with pytest.raises(BadInput, match=r"state\['u'\] is no moving average of what batches have"):
        Averages.of(lambda state: {"u": step(state["u"])}, {"u": np.array([1.0, 0.5])})


# ------------------------------------------------------------------------------------------ modules as they are


def flax_network():
    from flax import nnx  # need not be installed

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.body, self.head = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 1, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(4, use_bias=False, use_scale=False, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.head(self.dropout(self.norm(self.body(x))))[:, 0]

    return Network(nnx.Rngs(0))


@pytest.mark.slow
def test_a_module_of_nnx_is_taken_as_it_is():
    pytest.importorskip("flax")
    module = flax_network()

    def error(model, batch):
        value = jnp.mean((model(batch["x"]) - batch["y"]) ** 2)
        return value, {"again": value}

    problem = JaxProblem(error, module, DATA, held_out=DATA, has_aux=True, trainable=lambda path: path != "body/bias")
    w, parts = problem.initial(), problem.split(2)
    assert problem.shapes == [(3, 4), (4, 1)]
    gradients = [parts.partial_gradient(0, at) for at in (w, w, w + 1)]
    assert np.array_equal(gradients[0], gradients[1]) and not np.allclose(gradients[0], gradients[2])
    # in evaluation: statistics of all data, no dropout
    hidden = X @ w[:12].reshape(3, 4)
    model = problem.params_at(w)
    assert np.asarray(model.norm.mean[...]) == pytest.approx(hidden.mean(0), rel=1e-3, abs=1e-4)
    outputs = ((hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)) @ w[12:]
    assert np.asarray(model(X)) == pytest.approx(outputs, rel=1e-2, abs=1e-2)
    assert problem.loss(w) == pytest.approx(((outputs - DATA["y"]) ** 2).mean(), rel=1e-3)
    metrics = problem.metrics(w)
    assert list(metrics) == ["held_out_loss", "again"] and metrics["again"] == pytest.approx(problem.loss(w), rel=1e-5)
    assert np.array_equal(np.asarray(module.norm.mean[...]), np.zeros(4))  # the user's own is left alone


@pytest.mark.slow
def test_a_module_of_equinox_is_taken_as_it_is():
    eqx = pytest.importorskip("equinox")

    class Part(eqx.Module):
        matrix: jax.Array
        power: int = eqx.field(static=True, default=1)

    class Network(eqx.Module):
        body: Part
        norm: eqx.nn.BatchNorm
        dropout: eqx.nn.Dropout
        act: object

        def __init__(self, key):
            self.body, self.act = Part(jax.random.normal(key, (3,))), jnp.abs
            self.norm = eqx.nn.BatchNorm(1, "batch", channelwise_affine=False, mode="batch")
            self.dropout = eqx.nn.Dropout(0.5)

        def __call__(self, x, state, key):
            out, state = self.norm((self.body.matrix @ x)[None] ** self.body.power, state)
            return self.act(self.dropout(out[0], key=key)), state

    def error(model, batch, state, key):
        keys = jax.random.split(key, len(batch["y"]))
        rows = jax.vmap(model, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
        outputs, state = rows(batch["x"], state, keys)
        return jnp.mean((outputs - batch["y"]) ** 2), state

    model, state = eqx.nn.make_with_state(Network)(jax.random.key(0))
    problem = JaxProblem(error, model, DATA, rng=True, state=state)
    w = problem.initial()
    assert problem.shapes == [(3,)] and isinstance(problem.params_at(w), Network)
    hidden = X @ w
    outputs = abs((hidden - hidden.mean()) / np.sqrt(hidden.var() + 1e-5))
    assert problem.loss(w) == pytest.approx(((outputs - DATA["y"]) ** 2).mean(), rel=1e-3)
    # another process, which does not know these classes, computes the same
    parts = problem.split(1)
    code = "import pickle, sys; parts, w = pickle.load(sys.stdin.buffer); print(parts.partial_gradient(0, w).tolist())"
    sent = cloudpickle.dumps((parts, w))
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert json.loads(done.stdout) == pytest.approx(parts.partial_gradient(0, w).tolist(), rel=1e-5)


# -------------------------------------------------------------------------------------------- what is refused


def number(params, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ params["body"]) @ params["head"] - batch["y"]) ** 2)


def pair(beside):
    return lambda params, batch, **given: (number(params, batch), beside(given.get("state")))


def stateful(beside):
    return lambda params, batch, state, train: (number(params, batch), beside(state))


@pytest.mark.parametrize(
    ("loss", "options", "words"),
    [
        (number, {"rng": True}, "rng=True is given, but the loss takes no argument called 'key'"),
        (lambda params, batch, key: 0.0, {}, "the loss takes 'key', which it is given with rng=True only"),
        (number, {"rng": 3}, "rng must be True or False, got 3"),
        (number, {"has_aux": True}, r"must give \(number, metrics\), as has_aux=True says, got one number"),
        (pair(lambda _: {"a": 1.0}), {}, "got tuple .* for .number, metrics. say has_aux=True"),
        (pair(lambda _: jnp.zeros(2)), {"has_aux": True}, "metrics beside the loss must be numbers by name, .* got shape"),
        (pair(lambda _: {"scores": jnp.zeros(2)}), {"has_aux": True}, "must be numbers, 'scores' is shape"),
        (pair(lambda _: {"a": 1.0}), {"has_aux": True, "metrics": ["b"]}, "metrics names 'b', but the loss gives a;"),
        (pair(lambda _: {"held_out_loss": 1.0}), {"has_aux": True}, "two metrics called 'held_out_loss'"),
        (number, {"state": STATE}, "the loss takes no argument called 'state'"),
        (pair(lambda state: state), {"state": STATE}, "with a state the loss must take train, a bool"),
        (lambda params, batch, state, train: 0.0, {"state": STATE}, r"must give \(number, state\), .* got float"),
        (stateful(lambda state: {"new": state}), {"state": STATE}, r"state\['mean'\] is missing in the new one"),
        (stateful(lambda state: state | {"var": jnp.ones(3)}), {"state": STATE}, r"'var'\] is float32\[3\] in the new one"),
        (number, {"trainable": lambda path: path == "tail"}, "leaves no parameter to train; params has body, head"),
        (number, {"trainable": {"body": 1, "head": 0}}, "pytree of True and False, .* got of type int"),
        (number, {"trainable": {"tail": True}}, "trainable does not have the form of params"),
        (number, {"trainable": lambda path, leaf: True}, "trainable fails at the path 'body': TypeError"),
        (number, {"platform": "tpu"}, "platform must be cpu or gpu, got 'tpu'"),
        (lambda params, batch, key: 0.0, {"rng": True, "workers": "numpy"}, "draw no random numbers"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_in_a_sentence(loss, options, words):
    with pytest.raises(BadInput, match=words):
        JaxProblem(loss, PARAMS, DATA, **options)


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_said():
    parts = JaxProblem(number, PARAMS, DATA, platform="gpu").split(2)
    if jax.default_backend() != "gpu":
        with pytest.raises(BadInput, match="there is no platform 'gpu' here: JAX finds cpu"):
            parts.load([0])


def test_modules_without_arrays_or_with_own_state_are_refused():
    linen, eqx = pytest.importorskip("flax.linen"), pytest.importorskip("equinox")
    for module, words in (
        (linen.Dense(2), "params is the linen module Dense, which holds no arrays; give module.init"),
        (linen.Dense, "params is the class Dense, not a model made of it"),
        (eqx.nn.BatchNorm(2, "batch", mode="batch"), "holds a StateIndex, .*make_with_state"),
    ):
        with pytest.raises(BadInput, match=words):
            JaxProblem(number, module, DATA)


@pytest.mark.slow
def test_runs_leave_the_arrays_of_a_model_by_their_paths(tmp_path):
    from safetensors.numpy import load_file

    params = {"layers": [{"w": np.ones((2, 1)), "b": np.zeros(1)}], "scale": np.array([2.0, 3.0])}

    def loss(params, batch, state, train):
        inputs = batch["x"] * params["scale"] @ params["layers"][0]["w"] + params["layers"][0]["b"]
        value = ((inputs[:, 0] - batch["y"]) ** 2).mean()
        return value, {"mean": 0.9 * state["mean"] + 0.1 * batch["x"].mean(0)} if train else state

    data = {"x": np.arange(8.0).reshape(4, 2), "y": np.ones(4)}
    params, data = (jax.tree.map(lambda array: array.astype(np.float32), one) for one in (params, data))
    state, trainable = {"mean": np.zeros(2, np.float32)}, lambda path: path.startswith("layers/")
    problem = JaxProblem(loss, params, data, state=state, trainable=trainable)
    options = {"optimizer": anyk.optimizers.GD(lr=1e-3), "steps": 2, "out": tmp_path / "run"}
    run = anyk.train(problem, "uncoded", anyk.clusters.Simulated(2), **options)
    arrays = load_file(tmp_path / "run" / "model.safetensors")
    assert sorted(arrays) == ["layers/0/b", "layers/0/w", "scale", "state/mean"]
    trained = np.concatenate([arrays["layers/0/b"].reshape(-1), arrays["layers/0/w"].reshape(-1)])
    assert np.array_equal(trained, run.model) and np.array_equal(arrays["scale"], params["scale"])
    assert arrays["state/mean"] == pytest.approx(data["x"].mean(0), rel=1e-3)
    with pytest.raises(RunFailed, match="two arrays of the model are called 'a/b'"):
        distinct([("a/b", np.ones(1)), ("a/b", np.ones(1))])
