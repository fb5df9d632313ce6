"""Changes between making a problem and training it are refused by name, or said where they would not count."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.base.errors import BadInput

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
y = torch.randn(40, 1, generator=torch.Generator().manual_seed(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4), nn.Dropout(0.1), nn.Linear(4, 1))


def problem_of(module: nn.Module, data: Any = None, **options: Any) -> Any:
    return anyk.problems.TorchProblem(module, options.pop("loss", nn.MSELoss()), data or (X.clone(), y), **options)


def train(problem: Any, **options: Any) -> anyk.Run:
    options = {"steps": 2, "optimizer": anyk.optimizers.GD(lr=0.01)} | options
    return anyk.train(problem, "uncoded", anyk.clusters.Simulated(2), **options)


def loop(problem: Any, into: nn.Module | None = None) -> None:
    for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=2, into=into):
        del step


MODULE_CHANGES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda module: setattr(module[2], "p", 0.9), "attribute 'p' of the module.2 was 0.1 when the problem was made"),
    (lambda module: module.append(nn.ReLU()), "part '4' of the module was missing when the .* is ReLU now"),
    (lambda module: module[0].eval(), "mode of the module.0 was training mode when the problem was made"),
    (lambda module: module[1].requires_grad_(False), r"parameter '1.\w+' was trained.*is frozen"),
    (lambda module: setattr(module, "1", nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))), "other parameters"),
    (lambda module: module.append(nn.Linear(1, 1)), r"has other parameters.*4.bias"),
    (lambda module: module.register_forward_hook(lambda *_: _[2] * 3), "number of forward hooks of the module was 0"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "words"), MODULE_CHANGES)
def test_training_refuses_a_module_changed_since_its_problem(change: Callable[[Any], Any], words: str) -> None:
    module = network()
    problem = problem_of(module)
    train(problem)
    change(module)
    for start in (train, loop):
        with pytest.raises(BadInput, match=words):
            start(problem)
    train(problem_of(module))


def test_many_problems_are_each_compared() -> None:
    modules = network(), network()
    problems = list(map(problem_of, modules))
    modules[1][2].p = 0.9
    with pytest.raises(BadInput, match="attribute 'p' of the module.2 was 0.1"):
        anyk.train_many(problems, "m-sgc:B=1,W=2,lambda=1", anyk.clusters.Simulated(4), steps=2, lr=0.01)


def test_a_module_with_hooked_parameters_is_compared() -> None:
    module = network()
    module[1].weight.register_hook(lambda gradient: 0.5 * gradient)
    module[1].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    problem = problem_of(module)
    train(problem)
    assert len(module[1].weight._backward_hooks) == 1
    module[2].p = 0.9
    with pytest.raises(BadInput, match="attribute 'p' of the module.2 was 0.1"):
        train(problem)


@pytest.mark.slow
def test_other_parameters_than_the_problem_has_are_said() -> None:
    module = network()
    problem = problem_of(module)
    nn.init.zeros_(module[1].weight)
    with pytest.warns(RuntimeWarning, match="parameter '1.weight' of the module had other numbers") as warned:
        run = train(problem)
    assert warned[0].filename == __file__
    assert "1.weight" in next(note["text"] for note in run.notes if note["kind"] == "data")
    with pytest.warns(RuntimeWarning, match="parameter '1.weight'"):
        loop(problem)
    loop(problem, module)  # the loop's module is where it begins
    train(problem_of(module))


def test_an_earlier_run_has_the_parameters_that_count(tmp_path: Path) -> None:
    module = network()
    problem = problem_of(module)
    with train(problem, out=tmp_path / "run") as run:
        nn.init.zeros_(module[1].weight)
        train(problem, begin=run, steps=3)
    anyk.resume(tmp_path / "run", problem=problem, steps=3).close()


def test_frozen_parameters_and_buffers_that_differ_are_said() -> None:
    module = network()
    module.register_buffer("shift", torch.ones(1))
    module[1].requires_grad_(False)
    problem = problem_of(module)
    module(X)  # running statistics are computed anew
    train(problem)
    module[1].weight.data.zero_()
    module.shift.zero_()  # type: ignore[operator]
    with pytest.warns(RuntimeWarning, match=r"parameter '1.weight', buffer 'shift' of the module"):
        train(problem)


def test_a_resumed_run_refuses_a_changed_module(tmp_path: Path) -> None:
    module = network()
    problem = problem_of(module)
    train(problem, out=tmp_path / "run").close()
    module[2].p = 0.9
    with pytest.raises(BadInput, match="attribute 'p' of the module.2 was 0.1"):
        anyk.resume(tmp_path / "run", problem=problem, steps=3)


@pytest.mark.parametrize("kind", ["double", "not contiguous", "loader", "weights", "held out", "numpy"])
def test_data_of_which_the_problem_has_copies_are_compared(kind: str) -> None:
    data: Any = X.clone(), y.clone()
    changed, options = data[1], {}
    if kind == "double":
        data = X.double(), y.double()
        changed = data[1]
    elif kind == "not contiguous":
        changed = X.T.contiguous()
        data = changed.T, y
    elif kind == "loader":
        sampler = torch.utils.data.SubsetRandomSampler(range(30))
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=4, sampler=sampler)
    elif kind == "weights":
        changed = options["weights"] = torch.rand(40)
    elif kind == "held out":
        changed = y.double()
        options["held_out"] = (X, changed)
    elif kind == "numpy":
        data = X.numpy(), y.double().numpy()
        changed = torch.from_numpy(data[1])
    problem = problem_of(network(), data, **options)
    train(problem)
    changed.mul_(3.0)
    with pytest.raises(BadInput, match="was an array of shape .* when the problem was made"):
        train(problem)


def test_data_that_the_problem_shares_may_change_before() -> None:
    data = X.clone(), y.clone()
    problem = problem_of(nn.Linear(5, 1), data)
    first = train(problem).loss
    data[1].mul_(3.0)
    assert train(problem).loss == train(problem_of(copy.deepcopy(problem.module), data)).loss != first


def test_a_longer_data_set_and_another_reduction_are_refused() -> None:
    subset, loss = torch.utils.data.Subset(torch.utils.data.TensorDataset(X, y), list(range(30))), nn.MSELoss()
    longer, other = problem_of(nn.Linear(5, 1), subset), problem_of(nn.Linear(5, 1), loss=loss)
    subset.indices = list(range(40))
    with pytest.raises(BadInput, match="had 30 samples when the problem was made and has 40 now"):
        train(longer)
    loss.reduction = "sum"
    with pytest.raises(BadInput, match="reduction of the loss was 'mean' when the problem was made and is 'sum' now"):
        train(other)


def test_a_problem_that_has_been_trained_is_unchanged() -> None:
    module = network()
    problem = problem_of(module)
    train(problem)
    module.eval()(X)
    problem.module_at(problem.initial())
    assert problem.check_unchanged(begins=True) == []
    assert np.array_equal(train(problem).model, train(problem).model)


class FrozenNorm(nn.Sequential):
    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self[0].eval()
        return self


@pytest.mark.slow
def test_modes_that_a_module_sets_by_itself_are_no_change() -> None:
    module = FrozenNorm(nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 1))
    problem = problem_of(module)
    train(problem)
    loop(problem, module)
    module.train()
    train(problem)
    loop(problem, module)
    module[1].eval()
    for start in (train, loop):
        with pytest.raises(BadInput, match="the mode of the module.1 was training mode"):
            start(problem)
