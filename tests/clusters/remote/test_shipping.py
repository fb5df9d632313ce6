"""Partitions sent one by one: a worker that adopts them computes what one with all data computes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.clusters.remote.shipping import ship, single_parcels, unship
from anyk.problems.many import ManyProblems

pytestmark = pytest.mark.in_process

M = 6
CACHED = """
import functools
import anyk

@functools.lru_cache
def scale(factor):
    return 2.0 * factor

class Scaled(anyk.testing.Squares):
    def loss(self, w):
        return scale(3) * super().loss(w)

def make():
    return Scaled(4)
"""


def test_a_cached_function_of_a_users_file_is_sent(tmp_path):
    """A process without the file, such as a worker on another machine, can load it."""
    (tmp_path / "cached.py").write_text(CACHED)
    problem = anyk.problems.from_function(f"{tmp_path / 'cached.py'}:make")
    (tmp_path / "problem").write_bytes(pickle.dumps([bytes(buffer) for buffer in ship(problem)]))
    code = (
        "import pickle, sys; from anyk.clusters.remote.shipping import unship; "
        "problem = unship([memoryview(b) for b in pickle.load(open(sys.argv[1], 'rb'))]); "
        "print(problem.loss(problem.initial()))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "problem"], capture_output=True, text=True)
    assert done.returncode == 0 and float(done.stdout) == problem.loss(problem.initial()), done.stderr


def in_torch():
    import torch

    random = torch.Generator().manual_seed(1)
    X = torch.randn(600, 40, generator=random, dtype=torch.float64)
    module = torch.nn.Linear(40, 3).to(torch.float64)
    return anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), (X, X[:, :3].argmax(dim=1)))


def in_jax():
    import jax.numpy as jnp

    X = np.random.default_rng(1).normal(size=(600, 40)).astype(np.float32)

    def loss(w, batch):
        return jnp.mean((batch[0] @ w["a"] - batch[1]) ** 2)

    return anyk.problems.JaxProblem(loss, {"a": np.zeros(40, np.float32)}, (X, X[:, 0]))


def linear(spec="synthetic:rows=600,features=40"):
    return anyk.problems.from_data(spec)


def two():
    problem = linear()
    return ManyProblems([problem, problem])


def sparse():
    X = scipy.sparse.random(600, 300, 0.1, format="csr", random_state=1)
    y = np.sign(np.random.default_rng(1).normal(size=600))
    return anyk.problems.LogisticRegression(X, y, l2=0.1)


FAMILIES = {"linear": linear, "sparse": sparse, "two models": two, "PyTorch": in_torch, "JAX": in_jax}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_adopted_partitions_have_the_gradients_of_all_data(family):
    problem = FAMILIES[family]()
    all_partitions = problem.split(M)
    parcels = single_parcels(all_partitions)
    assert len(parcels) == M
    w = problem.initial() + np.linspace(-1, 1, problem.dimension, dtype=problem.dtype)

    @settings(max_examples=5, deadline=None)
    @given(st.permutations(range(1, M)), st.integers(1, M - 1))
    def check(order, count):
        shipped = unship(parcels[0])
        shipped.load([0])
        for j in order[:count]:
            shipped.adopt(unship(parcels[j]))
            shipped.load([j])
            rows = np.array([1, 7, 20])
            assert (shipped.partial_gradient(j, w) == all_partitions.partial_gradient(j, w)).all()
            assert (shipped.partial_gradient(j, w, rows) == all_partitions.partial_gradient(j, w, rows)).all()
            if family != "two models":
                assert shipped.partial_loss(j, w) == all_partitions.partial_loss(j, w)
        assert (shipped.partial_gradient(0, w) == all_partitions.partial_gradient(0, w)).all()

    check()


def test_a_network_that_outweighs_its_rows_is_sent_once():
    import torch

    X, y = torch.randn(60, 40), torch.zeros(60, dtype=torch.long)
    problem = anyk.problems.TorchProblem(torch.nn.Linear(40, 300), torch.nn.CrossEntropyLoss(), (X, y))
    assert single_parcels(problem.split(M)) == []


def test_partitions_of_a_users_class_are_sent_whole():
    assert single_parcels(anyk.testing.Squares(4).split(4)) == []


def test_a_parcel_has_the_rows_of_one_partition_only():
    all_partitions = linear("synthetic:rows=6000,features=40").split(M)
    for size, parcel in zip(all_partitions.sizes, single_parcels(all_partitions), strict=True):
        rows = size * 41 * 8  # features and target
        assert rows <= sum(buffer.nbytes for buffer in parcel) < 1.1 * rows
        assert pickle.loads(parcel[0], buffers=parcel[1:]).sizes == all_partitions.sizes
