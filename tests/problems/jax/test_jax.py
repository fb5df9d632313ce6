"""JAX functions: pytrees, gradients against autodiff of the whole batch, compiling once, and real workers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from functools import cache
from typing import NamedTuple

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import anyk
from anyk.base.errors import BadInput
from anyk.clusters.messages import Messages
from anyk.problems import JaxProblem
from anyk.protocol import Chunk

pytestmark = pytest.mark.slow

EXACT = ["uncoded", "frc:stragglers=2", "cyclic:stragglers=2", "mds:stragglers=2", "binary:stragglers=2", "nested",
         "progress", "partial:stragglers=1,load=4", "tree", "bcc", "comm-efficient"]  # fmt: skip


class Layer(NamedTuple):
    matrix: object
    offset: object


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["in"].matrix + params["in"].offset)
    scores = hidden @ params["out"][0] + params["out"][1]
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(scores)), batch["y"]])


def sum_loss(params, batch):
    return loss(params, batch) * len(batch["y"])


def made(samples=24, **options):
    random = np.random.default_rng(1)
    params = {
        "in": Layer(random.standard_normal((5, 4)), np.zeros(4)),
        "out": [random.standard_normal((4, 3)), np.full(3, 0.1)],
    }
    X = random.standard_normal((samples, 5))
    data = {"x": X, "y": X[:, :3].argmax(axis=1)}
    return JaxProblem(options.pop("loss", loss), params, data, **options), params, data


@cache
def shared(samples=24, mean=True):
    """A problem whose gradients are compiled once for all tests."""
    return made(samples=samples, **({} if mean else {"loss": sum_loss, "reduction": "sum"}))


def autodiff(params, data, rows=slice(None)):
    some = jax.tree.map(lambda array: array[rows], data)
    gradient = jax.grad(loss)(jax.tree.map(jnp.asarray, params), some)
    return np.asarray(ravel_pytree(gradient)[0], dtype=np.float64) * len(some["y"])


@pytest.mark.parametrize("spec", EXACT)
def test_a_step_of_every_exact_code_is_one_of_the_whole_batch(spec):
    problem, params, data = shared()
    w = problem.initial()
    assert w.dtype == np.float32 and problem.dimension == 20 + 4 + 12 + 3
    gradient = autodiff(params, data) / 24
    for seed in range(2):
        cluster = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(mean=1.0), seed=seed)
        run = anyk.train(problem, spec, cluster, steps=1, optimizer=anyk.optimizers.GD())
        assert w - run.model == pytest.approx(gradient, abs=1e-4 if spec.startswith("mds") else 5e-6)


@settings(max_examples=5, deadline=None)
@given(partitions=st.integers(1, 5), batch=st.integers(1, 6), version=st.integers(0, 5), mean=st.booleans())
def test_mini_batches_are_drawn_by_key_and_scaled(partitions, batch, version, mean):
    problem, params, data = shared(samples=12, mean=mean)
    w, parts = problem.initial(), problem.split(partitions)
    messages, ends = Messages(parts, seed=7), np.concatenate(([0], np.cumsum(parts.sizes)))
    for j in range(partitions):
        chunk = Chunk("model", (j,), (1.0,), batch=batch)
        rows = messages.rows(j, chunk, version)
        taken = np.arange(parts.sizes[j]) if rows is None else rows
        expected = autodiff(params, data, taken + ends[j]) * (parts.sizes[j] / len(taken))
        assert messages.partial_gradient(j, w, chunk, version) == pytest.approx(expected, abs=1e-5)


def test_pytrees_come_back_as_they_were():
    problem, params, data = made(held_out=made(samples=9)[2], l2=0.3)
    w = problem.initial() + np.float32(0.5)
    params_there = problem.params_at(w)
    assert isinstance(params_there["in"], Layer) and isinstance(params_there["out"], list)
    for one, other in zip(jax.tree.leaves(params_there), jax.tree.leaves(params), strict=True):
        assert np.allclose(one, other + 0.5, atol=1e-6)
    assert problem.shapes == [(5, 4), (4,), (4, 3), (3,)]
    assert np.array_equal(ravel_pytree(params_there)[0], w)
    assert problem.loss(w) == pytest.approx(float(loss(params_there, data)) + 0.15 * float(w @ w), rel=1e-5)
    dimension = made(samples=9)[2]
    assert problem.metrics(w)["held_out_loss"] == pytest.approx(float(loss(params_there, dimension)), rel=1e-5)
    assert (problem.metric, problem.better) == ("held_out_loss", "lower")


def test_loss_is_that_of_all_rows_and_metrics_may_be_ones_own():
    random = np.random.default_rng(0)
    x = random.standard_normal(2500).astype(np.float32)
    metrics = {"largest": lambda params, batch: jnp.max(batch) * params, "none": lambda params, batch: 0}
    problem = JaxProblem(lambda p, b: jnp.mean((b - p) ** 2), 2.0, x, held_out=x, metrics=metrics)
    with pytest.raises(BadInput, match="metrics are computed on held-out samples, and there are none"):
        JaxProblem(lambda p, b: jnp.mean((b - p) ** 2), 2.0, x, metrics=metrics)
    w = problem.initial()
    assert w.shape == (1,) and problem.loss(w) == pytest.approx(((x.astype(float) - 2.0) ** 2).mean(), rel=1e-6)
    assert problem.metrics(w) == {"largest": pytest.approx(2 * float(x.max())), "none": 0.0}
    assert problem.better == "higher"


def test_a_function_is_compiled_once_for_each_number_of_rows():
    traced = []

    def counted(params, batch):
        traced.append(batch.shape)
        return jnp.mean((batch - params) ** 2)

    problem = JaxProblem(counted, np.zeros(1), np.arange(11.0))
    parts = problem.split(3)
    assert parts.sizes == (4, 4, 3)
    traced.clear()
    for _ in range(2):
        parts.load([0, 1])
        parts.load([2])
    assert sorted(traced) == [(3,), (4,)]
    w = problem.initial()
    for j in (0, 1, 2, 0, 1, 2):
        parts.partial_gradient(j, w)
        parts.partial_gradient(j, w, np.array([0, 2]))
    assert sorted(traced) == [(2,), (3,), (4,)]


def test_arrays_go_out_of_band():
    random = np.random.default_rng(0)
    X = random.standard_normal((4000, 25)).astype(np.float32)
    problem = JaxProblem(lambda p, b: jnp.mean((b @ p) ** 2), np.ones((25, 400), np.float32), X)
    raw = []
    main = cloudpickle.dumps(problem.split(3), protocol=5, buffer_callback=raw.append)
    assert len(main) < 10_000
    assert sum(len(buffer.raw()) for buffer in raw) == X.nbytes
    parts = pickle.loads(main, buffers=[bytes(buffer.raw()) for buffer in raw])
    w = problem.initial()
    w.flags.writeable = False
    partitions = problem.split(3)
    assert np.array_equal(parts.partial_gradient(2, w), partitions.partial_gradient(2, w))
    raw.clear()  # Ray and MPI send a worker what it holds
    cloudpickle.dumps(partitions.only([2, 1]), protocol=5, buffer_callback=raw.append)
    assert sum(len(buffer.raw()) for buffer in raw) == X.nbytes * (1333 + 1333) / 4000
    smaller = partitions.only([2, 1])
    smaller.load([1, 2])
    rows = np.array([0, 7, 1332])
    assert np.array_equal(smaller.partial_gradient(1, w, rows), partitions.partial_gradient(1, w, rows))
    both = rows.tolist() + [1333, 2000]
    piece, expected = smaller.piece(1, 2), partitions.piece(1, 2)
    for args in [(0, w), (0, w, np.array(both))]:
        assert np.array_equal(piece.partial_gradient(*args), expected.partial_gradient(*args))


def test_what_cannot_work_is_said():
    x, p = np.ones((6, 2)), np.ones(2)

    def fits(params, batch):
        return jnp.mean(batch @ params)

    bad = [
        ((fits, p, (x, np.ones(5))), {}, "one entry for each sample, got \\[6, 5\\] entries"),
        ((fits, p, x * np.nan), {}, "the data must hold finite numbers"),
        ((fits, p, np.array(["a"])), {}, "must hold arrays of numbers"),
        ((fits, np.ones(3), x), {}, "the loss fails on the first 2 rows of the data: TypeError"),
        (
            (lambda params, batch: float(params[0]), p, x),
            {},
            "the loss fails on the first 2 rows of the data: Concretization",
        ),
        ((lambda params, batch: batch @ params, p, x), {}, "must give one number .* got shape \\(2,\\)"),
        ((fits, {}, x), {}, "params has no array to train"),
        ((fits, np.array([1, 2]), x), {}, "all be float32 or all float64, got int32"),
        ((fits, p, x), {"reduction": "none"}, "reduction must be mean, sum or None, got 'none'"),
        ((fits, p, x), {"l2": float("nan")}, "l2 must be a number, got nan"),
        ((fits, p, x), {"metrics": {}}, "metrics must name at least one function"),
        ((fits, p, x), {"metrics": fits}, "metrics must be functions by name, as in {'name': function}, got <function"),
        (
            (fits, p, x),
            {"metrics": {"m": 3}},
            "metrics must be functions by name, as in {'name': function}, got {'m': 3}",
        ),
        ((fits, p, x), {"better": "max"}, "better must be higher, lower or None, got 'max'"),
        ((fits, p, None), {}, "the data must be a pytree of arrays with a row for each sample, got NoneType"),
        (
            (lambda params, batch: batch["x"], p, x),
            {},
            r"the first 2 rows of the data: \w+Error: .* \(test_jax.py, line \d+\)$",
        ),
        ((fits, p, x), {"workers": "torch"}, "workers must be jax or numpy, got 'torch'"),
    ]
    for arguments, options, sentence in bad:
        with pytest.raises(BadInput, match=sentence):
            JaxProblem(*arguments, **options)
    with pytest.raises(BadInput, match="6 rows cannot be cut into 7 partitions"):
        JaxProblem(fits, p, x).split(7)


def test_a_script_without_a_guard_trains_on_processes_in_float64(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        textwrap.dedent(
            """
            import warnings
            warnings.simplefilter("error")
            import anyk, jax, jax.numpy as jnp, numpy as np

            jax.config.update("jax_enable_x64", True)

            def loss(params, batch):
                x, y = batch
                return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2)

            random = np.random.default_rng(0)
            x = random.standard_normal((60, 4))
            params = {"a": random.standard_normal((4, 3)), "b": np.ones(3)}
            problem = anyk.problems.JaxProblem(loss, params, (x, x[:, 0]), l2=1e-3)
            assert problem.dtype == np.float64
            cluster = anyk.clusters.Processes(2)
            run = anyk.train(problem, "uncoded", cluster, optimizer=anyk.optimizers.GD(lr=0.1), steps=5, evaluate="every=5")
            w = problem.initial()
            flat = jax.grad(lambda w: loss(problem.params_at(w), (x, x[:, 0])) + 0.5e-3 * w @ w)
            for _ in range(5):
                w = w - 0.1 * np.asarray(flat(w))
            assert np.abs(run.model - w).max() < 1e-13, np.abs(run.model - w).max()
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_held_out_data_that_the_loss_cannot_take_is_said_at_once() -> None:
    def loss(params, batch):
        return jnp.mean((batch["x"] @ params - batch["y"]) ** 2)

    data = {"x": np.ones((6, 3), np.float32), "y": np.ones(6, np.float32)}
    params = np.zeros(3, np.float32)
    with pytest.raises(BadInput, match="the loss fails on the first 2 rows of held_out: KeyError"):
        JaxProblem(loss, params, data, held_out={"x": data["x"]})
    with pytest.raises(BadInput, match="the data is empty"):
        JaxProblem(loss, params, {name: array[:0] for name, array in data.items()})


# ------------------------------------------------------------------------------------ models of Flax and Equinox


def node(module, name, *bases):
    """A class with the name and the home of a library's own, as a node of pytrees."""
    kind_of_node = type(name, bases or (object,), {"__module__": module})
    jax.tree_util.register_pytree_with_keys(
        kind_of_node,
        lambda x: ([(jax.tree_util.GetAttrKey(key), value) for key, value in vars(x).items()], tuple(vars(x))),
        lambda keys, values: _filled(kind_of_node, dict(zip(keys, values, strict=True))),
    )
    return kind_of_node


def _filled(kind, fields):
    instance = object.__new__(kind)
    instance.__dict__.update(fields)
    return instance


Variable = node("flax.nnx.variablelib", "Variable")
BatchStat = node("flax.nnx.variablelib", "BatchStat", Variable)
Param = node("flax.nnx.variablelib", "Param", Variable)
State = node("equinox.nn._stateful", "State")
Perceptron = node("equinox.nn._mlp", "MLP")
DENSE, NORM = {"kernel": np.ones((3, 2))}, {"mean": np.zeros(3), "var": np.ones(3)}
ALONE = "which is not to be trained; give the trainable parameters alone"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"params": {"Dense_0": DENSE}, "batch_stats": {"Norm_0": NORM}}, f"params holds the collection 'batch_stats', {ALONE}"),
        ({"params": {"Dense_0": DENSE}, "ema": {"Norm_0": NORM}}, "params holds the collection 'ema'"),
        ([{"net": {"batch_stats": NORM}}], r"params\[0\]\['net'\] holds the collection 'batch_stats'"),
        ({"d": _filled(Param, {"value": np.ones(3)}), "m": _filled(BatchStat, {"value": np.ones(3)})}, r"params\['m'\] holds a BatchStat"),
        ((DENSE, _filled(State, {"a": np.zeros(3)})), r"params\[1\] holds a State"),
        ({"norm": {"running_mean": np.zeros(3)}}, r"params\['norm'\]\['running_mean'\] holds 'running_mean'"),
        (_filled(Perceptron, {"weight": np.ones(3), "activation": jax.nn.relu}), r"params.activation must be an array, it is a function; give the arrays alone"),
        ({"w": np.ones(3), "axis": "batch"}, r"params\['axis'\] must be an array, it is of type str"),
        ({"w": np.ones(3), "inference": False}, r"params\['inference'\] must be an array, it is of type bool"),
    ],
)  # fmt: skip
def test_state_and_what_is_not_an_array_are_refused(params, words):
    with pytest.raises(BadInput, match=words):
        JaxProblem(lambda params, batch: jnp.mean(batch), params, np.ones((6, 3)))


def test_parameters_alone_are_taken():
    for params in (
        {"params": {"Dense_0": DENSE}},
        {"params": np.ones(3), "scale": 1.0},
        {"mean": np.zeros(3), "d": _filled(Param, {"value": np.ones(3)})},
        _filled(Perceptron, {"weight": np.ones(3), "activation": None}),
        _filled(Perceptron, {"weight": np.ones(3), "index": _filled(State, {"a": None})}),
    ):
        JaxProblem(
            lambda params, batch: sum(map(jnp.sum, jax.tree.leaves(params))) * jnp.mean(batch), params, np.ones((6, 3))
        )


def test_random_keys_are_no_data():
    with pytest.raises(BadInput, match="the data must hold arrays of numbers"):
        JaxProblem(lambda params, batch: params, 1.0, jax.random.split(jax.random.key(0), 6))
