"""Parameter groups and schedules that go by evaluations: against torch's own loop."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import anyk
from anyk.base.errors import BadInput
from anyk.optimizers import Clip, TorchOptimizer

EVERY = 4


def network():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    module[2].requires_grad_(False)
    X = torch.randn(40, 6, dtype=torch.float64)
    return module, X, X[:, :3].argmax(dim=1)


def groups(module):
    """As scripts have them: no decay for biases and norms, a learning rate of its own for the head; last bias in none."""
    return [
        {"params": [p for p in module[:4].parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [module[4].weight], "lr": 0.2, "betas": (0.5, 0.9)},
        {"params": [p for p in module[:4].parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]


def adamw(module):
    return torch.optim.AdamW(groups(module), lr=0.05)


def fleet():
    return anyk.clusters.Simulated(4, delays=anyk.delays.Exponential(mean=1.0), seed=1)


def loop(module, X, y, steps, optimizer, schedule=None):
    """Torch's own; a schedule that goes by the loss sees it every few steps."""
    for t in range(steps):
        optimizer.zero_grad()
        cross_entropy(module(X), y).backward()
        optimizer.step()
        if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
            if (t + 1) % EVERY == 0:
                schedule.step(cross_entropy(module(X), y).item())
        elif schedule is not None:
            schedule.step()
    return np.concatenate([p.detach().reshape(-1).numpy() for p in module.parameters() if p.requires_grad])


SCHEDULES = {
    "none": (None, lambda o: None),
    "by spec": ("CosineAnnealingLR:T_max=9", lambda o: lr_scheduler.CosineAnnealingLR(o, 9)),
    "one for each group": (None, lambda o: lr_scheduler.LambdaLR(o, [lambda t: 0.9**t, lambda t: 0.8**t, lambda t: 1])),
    "momenta": (None, lambda o: lr_scheduler.OneCycleLR(o, [0.1, 0.2, 0.3], 20)),
    "plateau": ("ReduceLROnPlateau:patience=0,factor=0.3,threshold=0.6",
                lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.3, threshold=0.6)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("spec", ["uncoded", "frc:stragglers=1"])
def test_groups_and_schedules_step_as_in_torchs_loop(name, spec):
    said, make = SCHEDULES[name]
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    mine = adamw(module)
    optimizer = TorchOptimizer(mine, schedule=None if name == "none" else said or make)
    run = anyk.train(problem, spec, fleet(), optimizer=optimizer, steps=18, evaluate=f"every={EVERY}")
    plain, X, y = network()
    stepping = adamw(plain)
    schedule = make(stepping)
    expected = loop(plain, X, y, 18, stepping, schedule)
    assert np.abs(run.model - expected).max() < 1e-11
    assert not mine.state and optimizer.spec == "torch:method=(made in Python)"
    assert torch.equal(problem.module_at(run.model)[4].bias, network()[0][4].bias)  # in no group
    if name == "plateau":
        assert stepping.param_groups[0]["lr"] < 0.05  # it was reached
    replayed = anyk.replay(run, problem=problem, optimizer=optimizer)
    assert str(replayed).endswith("the same bits of model")


def test_an_optimiser_goes_on_from_its_state():
    plain, X, y = network()
    stepping = adamw(plain)
    loop(plain, X, y, 5, stepping)
    problem = anyk.problems.TorchProblem(plain, nn.CrossEntropyLoss(), (X, y))
    with warnings.catch_warnings(action="ignore"):
        lr_scheduler.StepLR(stepping, 3)  # which puts a step of its own into the optimiser
    optimizer = TorchOptimizer(stepping)
    run = anyk.train(problem, "uncoded", fleet(), optimizer=optimizer, steps=6, evaluate=None)
    state = next(iter(stepping.state.values()))["step"].item()
    assert np.abs(run.model - loop(plain, X, y, 6, stepping)).max() < 1e-11
    assert state == 5


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda o: o, lambda o: Clip(of=o, norm=0.5)], ids=["plain", "clipped"])
def test_a_plateau_is_remembered_by_a_resumed_run(wrap, tmp_path):
    def problem():
        module, X, y = network()
        module = module.float()
        plateau = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
        return plateau, wrap(TorchOptimizer(adamw(module), schedule="ReduceLROnPlateau:patience=0,threshold=0.3"))

    options = {"evaluate": f"every={EVERY}"}
    one, optimizer = problem()
    uninterrupted = anyk.train(one, "frc:stragglers=1", fleet(), optimizer=optimizer, steps=20, **options)
    anyk.train(one, "frc:stragglers=1", fleet(), optimizer=optimizer, steps=10, out=tmp_path / "run", **options).close()
    other, optimizer = problem()  # of another process
    resumed = anyk.resume(tmp_path / "run", problem=other, optimizer=optimizer, steps=20)
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    assert str(anyk.replay(resumed, problem=other, optimizer=optimizer)).endswith("the same bits of model")


@pytest.mark.slow
def test_a_plateau_is_waited_for_on_processes():
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    optimizer = TorchOptimizer("SGD", lr=0.5, schedule="ReduceLROnPlateau:patience=0,threshold=0.4")
    run = anyk.train(
        problem, "uncoded", anyk.clusters.Processes(2), optimizer=optimizer, steps=18, evaluate=f"every={EVERY}"
    )
    plain, X, y = network()
    stepping = torch.optim.SGD(plain.parameters(), lr=0.5)
    schedule = lr_scheduler.ReduceLROnPlateau(stepping, patience=0, threshold=0.4)
    assert np.abs(run.model - loop(plain, X, y, 18, stepping, schedule)).max() < 1e-11
    assert stepping.param_groups[0]["lr"] < 0.5


def test_what_groups_and_plateaus_cannot_do_is_said():
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y), held_out=(X, y))
    other = network()[0]
    plateau = TorchOptimizer("SGD", lr=0.1, schedule="ReduceLROnPlateau")
    linear = anyk.problems.from_data("synthetic:rows=60,features=3")

    def train(optimizer, of=problem, strategy="uncoded", evaluate="every=2"):
        return lambda: anyk.train(of, strategy, fleet(), optimizer=optimizer, steps=4, evaluate=evaluate)

    frozen = torch.optim.SGD(module[2].parameters(), lr=0.1)
    bad = [
        (lambda: TorchOptimizer(adamw(module), lr=0.1, eps=1.0), "has its own learning rate and arguments; leave out lr, eps"),
        (lambda: TorchOptimizer(torch.optim.LBFGS(module.parameters())), "cannot be used like this"),
        (lambda: TorchOptimizer("SGD", lr=0.1, schedule=lr_scheduler.StepLR(adamw(module), 3)),
         "a schedule is a spec or a function that makes one of an optimiser, lambda optimizer: …, got StepLR"),
        (train(TorchOptimizer(adamw(other))), "a parameter of shape \\(5, 6\\) that is not in the problem's module"),
        (train(TorchOptimizer(adamw(module)), linear), "goes with a TorchProblem of the same module; for LogisticRegression"),
        (train(TorchOptimizer(frozen)), "all parameters of the optimiser are frozen"),
        (train(TorchOptimizer(adamw(module)), strategy="pasgd:tau=2"), "workers take the steps, all by one learning rate"),
        (train(plateau, evaluate=None), "give evaluate=Evaluate\\(every=…\\), without seconds"),
        (train(plateau, evaluate=anyk.Evaluate()), "give evaluate=Evaluate\\(every=…\\), without seconds"),
        (train(plateau), "depends on the accuracy, and a higher one is better; give ReduceLROnPlateau mode=max"),
        (train(TorchOptimizer("SGD", lr=0.1, schedule="ReduceLROnPlateau:mode=max"), strategy="adasync"),
         "must know from the start"),
    ]  # fmt: skip
    for make, sentence in bad:
        with pytest.raises(BadInput, match=sentence):
            make()


def test_a_pickled_schedule_begins_again_without_a_warning():
    for schedule in ("StepLR:step_size=2,gamma=0.5", "ReduceLROnPlateau:patience=0"):
        made = TorchOptimizer("SGD", lr=0.5, schedule=schedule)
        made.rate.groups(3, [1.0, 2.0])
        rate = pickle.loads(pickle.dumps(made)).rate
        for step, values in ((3, [1.0, 2.0]), (4, [1.0, 2.0, 3.0]), (1, [])):
            assert rate.groups(step, values) == made.rate.groups(step, values)
