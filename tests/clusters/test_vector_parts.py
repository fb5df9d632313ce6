"""Steps are taken part by part: same bits as in one go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base import keyed
from anyk.base.keyed import array_digest
from anyk.clusters import vector_parts
from anyk.runs.log import queries

SPARSE = "synthetic:rows=80,features=40,density=0.1"
DENSE = "synthetic:rows=80,features=40"


@pytest.mark.parametrize(
    ("spec", "optimizer", "data"),
    [
        ("uncoded", "adamw", DENSE),
        ("frc:load=2", "accelerated", DENSE),
        ("cyclic:stragglers=1", "nesterov", SPARSE),
        ("comm-efficient:stragglers=1,blocks=2", "momentum", DENSE),
        ("async:compensate=0.5", "adam", DENSE),
        ("pasgd:tau=2,outer=slowmo", "gd", DENSE),
    ],
)
def test_parts_give_the_bits_of_the_whole(
    spec: str, optimizer: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of 5 numbers, by two threads."""
    problem = anyk.problems.from_data(data)
    drivers = []
    for size in (5, 1 << 17):
        monkeypatch.setattr(keyed, "PART", size)
        monkeypatch.setattr(vector_parts, "_FEWEST_PARTS", 1)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        cluster = anyk.clusters.Simulated(4, delays=anyk.delays.Exponential(0.5), seed=2)
        drivers.append(
            anyk.train(problem, spec, cluster, optimizer=anyk.optimizers.optimizer(optimizer, lr=0.05), steps=6)
        )
        assert queries.digest(drivers[-1].log, "model", 6) == array_digest(drivers[-1].model)
    assert np.array_equal(drivers[0].model, drivers[1].model)
    assert not np.array_equal(drivers[0].model, problem.initial())


def test_a_clipped_gradient_has_the_same_bits_with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The squares of parts are added up in the order of the parts; other parts round the norm in another way."""
    problem, models = anyk.problems.from_data(DENSE), []
    monkeypatch.setattr(vector_parts, "_FEWEST_PARTS", 1)
    for size, threads in ((5, "1"), (5, "4"), (1 << 17, "1")):
        monkeypatch.setattr(keyed, "PART", size)
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        clip = anyk.optimizers.optimizer("clip:of=adam,norm=1e-3", lr=0.05)
        models.append(anyk.train(problem, "k-sync:k=3", "simulated", workers=4, optimizer=clip, steps=6).model)
    assert np.array_equal(*models[:2])
    assert models[2] == pytest.approx(models[0], rel=1e-9)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}), ("AdamW", {}), ("NAdam", {}), ("RAdam", {}),
     ("RMSprop", {"centered": True}), ("Adagrad", {}), ("Adadelta", {}), ("Adamax", {}), ("ASGD", {}), ("Rprop", {})],
)  # fmt: skip
def test_optimisers_of_torch_step_parts_as_they_step_the_whole(method: str, arguments: dict[str, Any]) -> None:
    """Parts that cut parameters apart or hold several; state included."""

    class Shaped:
        shapes = ((40, 3), (5,), (0, 3), (7,), (150,))

    optimizer = anyk.optimizers.TorchOptimizer(method, lr=1e-2, **arguments).fitted(Shaped)
    size, parts = 282, [slice(0, 64), slice(64, 122), slice(122, 131), slice(131, 282)]
    model = apart = np.random.default_rng(0).standard_normal(size)
    state, state_apart = optimizer.start(model), optimizer.start(apart)
    taken = 0
    for t in range(4):
        gradient = np.random.default_rng(t + 1).standard_normal(size)
        model = optimizer.step(model, gradient.copy(), state, t, 0.5)
        out = np.empty(size)
        with optimizer.stepping(apart, state_apart, t, 0.5, out) as take:
            if take is None:
                optimizer.step(apart, gradient.copy(), state_apart, t, 0.5, out=out)
            else:
                taken += 1
                for section in reversed(parts):
                    take(section, gradient[section].copy())
        apart = out
    assert taken == 4  # the first one, which makes the state, included
    assert np.array_equal(model, apart)
    assert state.keys() == state_apart.keys() and all(np.array_equal(state[key], state_apart[key]) for key in state)
