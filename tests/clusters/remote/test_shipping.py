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


REGISTERS = """
from dataclasses import dataclass
import numpy as np
import anyk

@anyk.compression.register("whole")
@dataclass(frozen=True)
class Whole(anyk.compression.Compressor):
    name, promise = "whole", "linear"

    def size(self, length, itemsize):
        return length * itemsize + -length * itemsize % 8

    def pack(self, vector, key):
        return np.frombuffer(vector.tobytes().ljust(self.size(vector.size, vector.itemsize), b"0"), np.uint8)

    def unpack(self, payload, length, dtype, key):
        return payload[: length * dtype.itemsize].view(dtype).copy()

@anyk.optimizers.register("plain")
@dataclass(frozen=True)
class Plain(anyk.optimizers.Optimizer):
    name, by_coordinate = "plain", True

    def start(self, w):
        return {}

    def step(self, w, gradient, state, t, scale=1.0, out=None):
        return np.subtract(w, self.rate.at(t) * scale * gradient, out=out)

if __name__ == "__main__":
    problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    for strategy, ours, like in (
        ("compressed:of=uncoded,by=whole", "gd:lr=0.5", "uncoded"),
        ("pasgd:tau=3", "plain:lr=0.5", "pasgd:tau=3"),
    ):
        mine = anyk.train(problem, strategy, "processes", workers=2, steps=5, optimizer=ours)
        theirs = anyk.train(problem, like, "simulated", workers=2, steps=5, optimizer="gd:lr=0.5")
        assert mine.model.tobytes() == theirs.model.tobytes(), strategy
"""


@pytest.mark.slow
def test_workers_know_what_a_users_script_registers(tmp_path):
    (tmp_path / "mine.py").write_text(REGISTERS)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_process_has_registered_itself_stays(monkeypatch):
    registry = anyk.compression.registry
    monkeypatch.setattr(registry, "entries", dict(registry.entries))

    @anyk.compression.register("mine")
    class Mine(anyk.compression.Compressor):
        pass

    shipped = [memoryview(bytes(buffer)) for buffer in ship(anyk.testing.Squares(4))]
    before = registry.entries["mine"]
    unship(shipped)
    assert registry.entries["mine"] is before
    del registry.entries["mine"]
    unship(shipped)
    assert registry.entries["mine"].build.__name__ == "Mine"


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
        assert unship(parcel).sizes == all_partitions.sizes
