"""anyk.torch.Optimizer: a loop of step() against torch's own loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anyk
from anyk.base.errors import BadInput


def network():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    X = torch.randn(40, 5, dtype=torch.float64)
    return module, X, X[:, :3].argmax(dim=1)


def stepping(module):
    groups = [{"params": [module[0].weight], "weight_decay": 0.1}, {"params": module[2].parameters(), "lr": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def fleet():
    return anyk.clusters.Simulated(4, delays=anyk.delays.Exponential(mean=1.0), seed=1)


def flat(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def problem_of(module, X, y):
    return anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["prepare", "clip"])
def test_steps_are_those_of_torchs_loop(by):
    module, X, y = network()
    adamw, schedule = stepping(module)
    clip = {"prepare": lambda: nn.utils.clip_grad_norm_(module.parameters(), 0.1)} if by == "prepare" else {by: 0.1}
    with anyk.torch.Optimizer(adamw, problem_of(module, X, y), "frc:stragglers=1", fleet(), **clip) as optimizer:
        for t in range(8):
            step = optimizer.step()
            schedule.step()
            assert step.number == t and step.receipt.residual <= 1e-6
    plain, X, y = network()
    own_optimizer, following = stepping(plain)
    for _ in range(8):
        plain.zero_grad()
        cross_entropy(plain(X), y).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        own_optimizer.step()
        following.step()
    assert np.abs(flat(module) - flat(plain)).max() < 1e-11
    assert optimizer.run.steps == 8 and np.array_equal(optimizer.run.model, flat(module))
    with pytest.raises(BadInput, match="the run is over"):
        optimizer.step()


@pytest.mark.parametrize("strategy", ["async:lr_scale=0.25", "k-batch-async:k=2,lr_scale=0.5"])
def test_learning_rates_are_multiplied_by_the_strategys_factor(strategy):
    module, X, y = network()
    adamw, schedule = stepping(module)
    with anyk.torch.Optimizer(adamw, problem_of(module, X, y), strategy, fleet()) as optimizer:
        for _ in range(6):
            optimizer.step()
            schedule.step()
    plain, X, y = network()
    adapted = anyk.optimizers.TorchOptimizer(stepping(plain)[0], schedule="ExponentialLR:gamma=0.9")
    run = anyk.train(problem_of(plain, X, y), strategy, fleet(), optimizer=adapted, steps=6)
    assert np.abs(flat(module) - run.model).max() < 1e-12


def test_learning_rates_are_as_before_after_a_step_that_fails(monkeypatch):
    """The loop may be started again with the same optimiser, whose state is saved."""
    module, X, y = network()
    adamw, _ = stepping(module)
    rates = [group["lr"] for group in adamw.param_groups]

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(adamw, "step", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        anyk.torch.Optimizer(adamw, problem_of(module, X, y), "async:lr_scale=0.25", fleet()) as optimizer,
    ):
        optimizer.step()
    assert [group["lr"] for group in adamw.param_groups] == rates


@pytest.mark.slow
def test_it_goes_on_in_its_folder(tmp_path):
    def some(steps):
        module, X, y = network()
        adamw, _ = stepping(module)
        options = {"out": tmp_path / "run", "go_on": True, "evaluate": None}
        with anyk.torch.Optimizer(adamw, problem_of(module, X, y), "uncoded", fleet(), **options) as optimizer:
            for _ in range(steps):
                optimizer.step()
        optimizer.run.close()
        return module

    some(3)
    twice = some(4)
    module, X, y = network()
    own_optimizer, _ = stepping(module)
    for _ in range(7):
        own_optimizer.zero_grad()
        cross_entropy(module(X), y).backward()
        own_optimizer.step()
    assert np.abs(flat(twice) - flat(module)).max() < 1e-11


def test_what_it_cannot_do_is_said():
    module, X, y = network()
    problem = problem_of(module, X, y)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    other = torch.optim.SGD(network()[0].parameters(), lr=0.1)
    for arguments, sentence in (
        (
            (other, problem, "uncoded"),
            "that is not in the problem's module; make optimiser and problem from the same module",
        ),
        ((torch.optim.SGD, problem, "uncoded"), "must be one of PyTorch, made, got type"),
        (
            (sgd, anyk.problems.from_data("synthetic:rows=60,features=3"), "uncoded"),
            "must be a TorchProblem, got Logistic",
        ),
        ((sgd, problem, "pasgd:tau=2"), "workers take the steps"),
    ):
        with pytest.raises(BadInput, match=sentence):
            anyk.torch.Optimizer(*arguments, fleet())
    with pytest.raises(BadInput, match="prepare must be a function without arguments, got 0.1"):
        anyk.torch.Optimizer(sgd, problem, "uncoded", fleet(), prepare=0.1)
    with pytest.raises(BadInput, match="clip"):
        anyk.torch.Optimizer(sgd, problem, "uncoded", fleet(), clip=0)
    optimizer = anyk.torch.Optimizer(sgd, problem, "uncoded", fleet(), steps=1)
    with pytest.raises(
        AttributeError, match="has step, close and run, but no 'zero_grad'; it takes neither backward nor"
    ):
        optimizer.zero_grad()
    optimizer.step()
    with pytest.raises(BadInput, match="has reached its limit of steps or seconds"):
        optimizer.step()
    assert optimizer.run.steps == 1


def test_an_attribute_that_a_callback_lacks_is_an_error():
    class Faulty(anyk.Callback):
        def on_step(self, info):
            return info.nothing_like_it

    module, X, y = network()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = anyk.torch.Optimizer(sgd, problem_of(module, X, y), "uncoded", fleet(), callbacks=[Faulty()])
    with pytest.raises(AttributeError, match="nothing_like_it"):
        for _ in range(4):
            optimizer.step()
    with pytest.raises(anyk.RunFailed, match=r"AttributeError: .*nothing_like_it.* \(test_torch\.py, line"):
        assert optimizer.run
