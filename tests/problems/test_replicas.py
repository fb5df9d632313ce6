"""Replicas of a partition: whatever a data set draws, all who hold a partition compute the same gradient, or it is said."""

# ruff: noqa: NPY002  # the legacy global state is what users draw from

from __future__ import annotations

import os
import pickle
import random
import time

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.messages import Messages
from anyk.problems import ManyPartitions, TorchProblem
from anyk.problems.replicas import SINGLE, Mark, marks_apart
from anyk.testing.problems import Squares

pytestmark = pytest.mark.slow


class Augmented(torch.utils.data.Dataset):
    """Items with noise; ``noise(i)`` draws one number."""

    def __init__(self, noise, samples=24):
        self.X = torch.randn(samples, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.noise = noise

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i] * (1.0 + 0.5 * self.noise(i)), self.X[i, :3].argmax()


def problem_of(noise, module=None, **options):
    torch.manual_seed(2)
    module = module or nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.2), nn.Linear(4, 3))
    return TorchProblem(module.double(), nn.CrossEntropyLoss(), Augmented(noise), **options)


def numpys(i):
    return np.random.standard_normal()


SEEDED = {
    "torch": lambda i: float(torch.randn(())),
    "numpy": numpys,
    "random": lambda i: random.gauss(0.0, 1.0),
}


def global_draws():
    return float(torch.rand(())), np.random.normal(), random.random()


@pytest.mark.parametrize("noise", SEEDED.values(), ids=SEEDED)
@pytest.mark.parametrize("rows", [None, np.array([1, 4])])
def test_items_draw_alike_and_leave_other_draws_alone(noise, rows):
    problem = problem_of(noise, microbatch=3)
    w = problem.initial()
    one, other = problem.split(3), pickle.loads(cloudpickle.dumps(problem.split(3)))
    global_draws()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = global_draws()
    torch.set_rng_state(states[0]), np.random.set_state(states[1]), random.setstate(states[2])
    first = one.partial_gradient(1, w, rows)
    assert global_draws() == expected
    other.partial_gradient(0, w)  # another past
    assert np.array_equal(other.partial_gradient(1, w, rows), first)
    assert np.array_equal(one.partial_gradient(1, w + 1e-12, rows) > 0, first > 0)  # not keyed by the model's bits
    one.key = 1
    moved = one.partial_gradient(1, w, rows)
    assert np.linalg.norm(moved - first) > 0.01 * np.linalg.norm(first)  # drawn anew at another version
    assert problem.loss(w) == problem.loss(w)


def test_an_item_draws_the_same_in_every_batch_of_a_model():
    seen = []
    problem = problem_of(lambda i: seen.append((i, np.random.random())) or 0.0)
    seen.clear()
    w, parts = problem.initial(), problem.split(2)
    parts.partial_gradient(0, w)
    first_draws = dict(seen)
    seen.clear()
    parts.partial_gradient(0, w, np.array([3, 7]))
    assert len(set(first_draws.values())) == 12 and seen == [(3, first_draws[3]), (7, first_draws[7])]


def test_augmentation_on_processes_gives_the_simulators_bits():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            return self.layer(x) * (np.random.random() + random.random())

    problem = problem_of(numpys, module=Mixing())
    models = []
    for kind in (anyk.clusters.Simulated, anyk.clusters.Processes):
        run = anyk.train(
            problem,
            "frc:load=2,batch=4",
            kind(2, seed=1),
            steps=4,
            evaluate="every=4",
            optimizer=anyk.optimizers.GD(lr=0.1),
        )
        models.append(run.model.tobytes())
    assert models[0] == models[1]


def counted():
    """A data set's own generator, with the same seed everywhere, goes on from call to call."""
    draws = np.random.default_rng(0)
    return lambda i: draws.standard_normal()


BROKEN = {
    "default_rng": lambda i: np.random.default_rng().standard_normal(),
    "clock": lambda i: (time.perf_counter_ns() % 1009) / 1009,
    "stateful": counted(),
}


@pytest.mark.parametrize("noise", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("kind", ["simulated", "processes"])
def test_draws_without_a_seed_are_refused_with_replicas(noise, kind):
    problem = problem_of(noise)
    with pytest.raises(BadInput, match=r"the same model gave two gradients that are [\d.]+ % apart: a code takes rep"):
        anyk.train(
            problem, "cyclic:stragglers=1", anyk.cluster(kind, workers=3), steps=3, optimizer=anyk.optimizers.GD(lr=0.1)
        )


def test_without_replicas_such_draws_are_the_users_affair():
    run = anyk.train(
        problem_of(BROKEN["default_rng"]),
        "uncoded",
        anyk.clusters.Simulated(3),
        steps=2,
        optimizer=anyk.optimizers.GD(lr=0.1),
    )
    assert run.steps == 2


def test_a_worker_that_differs_from_the_driver_is_named():
    driver = os.getpid()
    problem = problem_of(lambda i, driver=driver: float(os.getpid() != driver))
    assert (
        anyk.train(
            problem, "frc:load=2", anyk.clusters.Simulated(2), steps=1, optimizer=anyk.optimizers.GD(lr=0.1)
        ).steps
        == 1
    )
    words = r"worker \d could not load its partitions: BadInput: it computes a gradient that is [\d.]+ % apart from"
    with pytest.raises(RunFailed, match=words):
        anyk.train(problem, "frc:load=2", anyk.clusters.Processes(2), steps=1, optimizer=anyk.optimizers.GD(lr=0.1))


def test_partitions_are_compared_at_fewer_and_fewer_steps():
    problem = problem_of(lambda i: 0.0)
    parts = problem.split(3)
    assert not any(Messages(parts).compared(version) >= 0 for version in range(100))
    parts.compare_replicas()
    messages = Messages(ManyPartitions({"a": parts}))
    assert messages.compared(0) == -1
    messages.partitions.compare_replicas()
    compared = {version: j for version in range(300) if (j := Messages(messages.partitions).compared(version)) >= 0}
    assert list(compared) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 192, 256] and set(compared.values()) == {0, 1, 2}


def test_rounding_is_no_difference():
    """Another order of summation, as other processors have: bits differ, gradients do not."""
    factor = iter([1.0, 1.0 + 1e-12, 1.0 - 1e-12, 1.0 + 1e-12] + [1.0] * 50)

    class Rounding(nn.Linear):
        def forward(self, x):
            return super().forward(x) * next(factor)

    problem = problem_of(lambda i: 0.0, module=Rounding(5, 3))
    factor = iter([1.0, 1.0 + 1e-12, 1.0 - 1e-12, 1.0 + 1e-12])
    parts = problem.split(2)
    parts.compare_workers(replicas=True)
    parts.load([0])
    factor = iter([1.0, 1.0 + 1e-4])
    with pytest.raises(BadInput, match=r"two gradients that are 0\.0\d+ % apart"):
        problem.split(2).compare_workers(replicas=True)


class Straying(Squares):
    """Two workers that wait for each other at every partition, and whose gradients differ by ``by``."""

    def __init__(self, folder, by):
        super().__init__(2)
        self.folder, self.by = folder, by

    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        compute, calls = pieces.partial_gradient, []

        def partial_gradient(j, w, rows=None):
            worker = os.environ.get("ANYK_WORKER")
            if worker is None:
                return compute(j, w)
            calls.append(j)
            (self.folder / f"{len(calls)} {worker}").touch()
            until = time.monotonic() + 60.0
            while len(list(self.folder.glob(f"{len(calls)} *"))) < 2 and time.monotonic() < until:
                time.sleep(0.001)
            return compute(j, w) * (1.0 + self.by * int(worker))

        pieces.partial_gradient, pieces.tolerance = partial_gradient, 1e-6
        return pieces


def test_workers_are_compared_while_they_work(tmp_path):
    problem = Straying(tmp_path, 1e-3)
    seed = next(seed for seed in range(9) if Messages(problem.split(2), seed=seed).compared(0) == 0)
    words = r"step 0 workers \d and \d computed gradients of partition 0 that are 0\.1 % apart: a code takes replicas"
    with pytest.raises(RunFailed, match=words):
        anyk.train(problem, "frc:load=2", anyk.clusters.Processes(2, seed=seed), steps=1)


@pytest.mark.parametrize(
    ("spec", "tolerance"),
    [("frc:load=3", 1e-6), ("tree", 1e-6), ("draco:byzantine=1", 0.0), ("uncoded", None), ("pasgd", None)],
)
def test_partitions_are_compared_where_a_strategy_relies_on_it(spec, tolerance):
    class Opted(Squares):
        def split(self, partitions, shares=None):
            pieces = super().split(partitions, shares)
            pieces.tolerance = None
            pieces.compare_replicas = lambda: setattr(pieces, "tolerance", 1e-6)
            seen.append(pieces)
            return pieces

    seen = []
    anyk.train(Opted(8), spec, anyk.clusters.Simulated(6), optimizer=anyk.optimizers.GD(lr=0.1), steps=1)
    assert seen[-1].tolerance == tolerance


def test_marks_tell_gradients_apart():
    def mark(gradient):
        return Mark.of(gradient).number

    random = np.random.default_rng(0)
    for dtype, rounding in (np.float64, 1e-15), (np.float32, 1e-7):
        g = random.standard_normal(1001).astype(dtype) + dtype(3.0)
        noise = random.standard_normal(1001).astype(dtype)
        assert marks_apart(mark(g), mark(g + dtype(rounding) * noise)) < SINGLE
        for other in (g + dtype(0.01) * noise, g * dtype(1.01), -g, 0 * g):
            assert 1e-5 < marks_apart(mark(g), mark(other)) <= 2.0
    assert marks_apart(mark(0 * g), mark(0 * g)) == 0.0
    assert mark(np.array([np.nan])) is mark(np.array([1e300])) is None
