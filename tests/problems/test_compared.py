"""Workers that hold the same partition are compared while they work; no torch here, so that they start quickly."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import anyk
from anyk.clusters.messages import Messages
from anyk.errors import RunFailed
from anyk.problems.replicas import SINGLE, mark, marks_apart
from anyk.testing.problems import Squares

pytestmark = pytest.mark.slow


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
    random = np.random.default_rng(0)
    for dtype, rounding in (np.float64, 1e-15), (np.float32, 1e-7):
        g = random.standard_normal(1001).astype(dtype) + dtype(3.0)
        noise = random.standard_normal(1001).astype(dtype)
        assert marks_apart(mark(g), mark(g + dtype(rounding) * noise)) < SINGLE
        for other in (g + dtype(0.01) * noise, g * dtype(1.01), -g, 0 * g):
            assert 1e-5 < marks_apart(mark(g), mark(other)) <= 2.0
    assert marks_apart(mark(0 * g), mark(0 * g)) == 0.0
    assert mark(np.array([np.nan])) is mark(np.array([1e300])) is None
