"""JaxProblem(workers="numpy"): the driver has JAX, workers run its gradient as NumPy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyk
from anyk.clusters.remote.shipping import ship, unship
from anyk.problems import JaxProblem
from anyk.problems.jax.loss_partitions import DecompiledPartitions

pytestmark = pytest.mark.slow


def loss(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["w1"] + params["b1"])
    scores = jax.nn.log_softmax(hidden @ params["w2"])
    return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))


def problem(**options: Any) -> JaxProblem:
    random = np.random.default_rng(0)
    params = {"w1": random.standard_normal((5, 4)), "b1": np.zeros(4), "w2": random.standard_normal((4, 3))}
    data = {"x": random.standard_normal((61, 5)), "y": random.integers(0, 3, 61)}
    return JaxProblem(loss, params, data, l2=1e-3, **options)


def test_partial_gradients_are_those_of_jax() -> None:
    """For both sizes of partitions that 61 rows give, and for mini-batches of the size said."""
    ours, theirs = problem(workers="numpy", batch=4).split(4), problem().split(4)
    assert isinstance(ours, DecompiledPartitions)
    assert ours.sizes == theirs.sizes == (16, 15, 15, 15)
    w = np.random.default_rng(1).standard_normal(ours.dimension).astype(np.float32)
    for j in range(4):
        assert np.allclose(ours.partial_gradient(j, w), theirs.partial_gradient(j, w), rtol=1e-5, atol=1e-5)
        rows = np.array([0, 3, 7, 11])
        assert np.allclose(ours.partial_gradient(j, w, rows), theirs.partial_gradient(j, w, rows), rtol=1e-5, atol=1e-5)
    with pytest.raises(anyk.BadInput, match=r"no source for mini-batches of 2 rows; .* batch=2"):
        ours.partial_gradient(0, w, np.array([1, 2]))


def test_on_processes_it_leads_where_jax_does() -> None:
    steps = {"optimizer": anyk.optimizers.GD(lr=0.5), "steps": 8}
    expected = anyk.train(problem(), "frc:load=2", anyk.clusters.Simulated(4), **steps)
    run = anyk.train(problem(workers="numpy"), "frc:load=2", anyk.clusters.Processes(4), **steps)
    assert np.allclose(run.model, expected.model, rtol=1e-4, atol=1e-5)


def test_a_worker_needs_neither_jax_nor_pickle(tmp_path: Path) -> None:
    partitions = problem(workers="numpy").split(3)
    w = np.full(partitions.dimension, 0.1, dtype=np.float32)
    for i, buffer in enumerate(ship(partitions)):
        (tmp_path / f"part{i}").write_bytes(buffer)
    script = tmp_path / "worker.py"
    script.write_text(
        """
import pickle, sys
from pathlib import Path
import numpy as np
from anyk.clusters.remote.shipping import unship

def refuse(*args, **options):
    raise AssertionError("unpickled")

pickle.loads = refuse
sys.modules["jax"] = None
folder = Path(sys.argv[1])
parts = [memoryview((folder / f"part{i}").read_bytes()) for i in range(len(list(folder.glob("part*"))))]
partitions = unship(parts)
partitions.load([0])
gradient = partitions.partial_gradient(0, np.full(partitions.dimension, 0.1, dtype=np.float32))
np.save(folder / "gradient.npy", gradient)
"""
    )
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = problem().split(3).partial_gradient(0, w)
    assert np.allclose(np.load(tmp_path / "gradient.npy"), expected, rtol=1e-5, atol=1e-5)


def test_a_text_that_is_not_the_drivers_is_not_run() -> None:
    partitions = problem(workers="numpy").split(3)
    assert isinstance(partitions, DecompiledPartitions)
    rows, (source, digest) = next(iter(partitions._texts.items()))
    partitions._texts[rows] = source.replace("np.tanh", "np.sinh"), digest
    with pytest.raises(anyk.BadInput, match="it is not what was sent, and is not run"):
        unship(ship(partitions)).load([0])


def test_the_source_can_be_read() -> None:
    source = problem(workers="numpy").source(16).text
    assert "np.tanh" in source and "import jax" not in source
    with pytest.raises(anyk.BadInput, match="workers must be jax or numpy, got 'torch'"):
        problem(workers="torch")
    with pytest.raises(anyk.BadInput, match="batch must be a whole number of at least 0, got -1"):
        problem(workers="numpy", batch=-1)
