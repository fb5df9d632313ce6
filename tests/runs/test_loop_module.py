"""The module of a loop as it is: statistics, losses and states with what the loop has renewed besides parameters."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import anyk
from anyk.base.errors import BadInput
from anyk.problems import TorchProblem

torch.manual_seed(0)
X, Y = torch.randn(64, 4), torch.randn(64, 1)


def cluster() -> anyk.clusters.Simulated:
    return anyk.clusters.Simulated(2)


class Scaled(nn.Module):
    """A linear model behind a buffer, and with a batch norm in between if asked."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.register_buffer("k", torch.ones(4))
        self.norm, self.linear = nn.BatchNorm1d(4) if norm else nn.Identity(), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x * self.k))


def test_statistics_are_those_of_renewed_buffers() -> None:
    module = Scaled(norm=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    rounds = anyk.rounds(TorchProblem(module, nn.MSELoss(), (X, Y)), "uncoded", cluster(), steps=4, into=module)
    for step in rounds:
        optimizer.step()
        with torch.no_grad():
            module.k.mul_(3.0)
        if step.number == 1:  # read in between
            torch.testing.assert_close(module.norm.running_mean, (X * 9.0).mean(0))
    torch.testing.assert_close(module.norm.running_mean, (X * 81.0).mean(0))
    assert rounds.run.loss == pytest.approx(mse_loss(module.eval()(X), Y).item(), rel=1e-4)


@pytest.mark.slow
def test_statistics_are_those_of_renewed_frozen_parameters() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    module[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    problem = TorchProblem(module, nn.MSELoss(), (X, Y))
    for _ in anyk.rounds(problem, "uncoded", cluster(), steps=3, into=module):
        optimizer.step()
        with torch.no_grad():
            module[0].bias.add_(5.0)
    torch.testing.assert_close(module[1].running_mean, module[0](X).mean(0), rtol=1e-4, atol=1e-4)


def test_a_closure_computes_the_loss_with_the_present_values() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor, beta: float) -> torch.Tensor:
        return mse_loss(outputs, targets) + beta * outputs.pow(2).mean()

    torch.manual_seed(3)
    module = nn.Linear(4, 1)
    plain = copy.deepcopy(module)
    options: Any = {"max_iter": 5, "line_search_fn": "strong_wolfe"}
    problem = TorchProblem(module, loss, (X, Y), values={"beta": 0.0})
    with anyk.torch.Optimizer(
        torch.optim.LBFGS(module.parameters(), **options), problem, "uncoded", cluster()
    ) as lbfgs:
        for _ in range(6):
            lbfgs.step().values["beta"] = 1.0
    own, beta = torch.optim.LBFGS(plain.parameters(), **options), 0.0

    def closure() -> torch.Tensor:
        own.zero_grad()
        value = loss(plain(X), Y, beta)
        value.backward()
        return value

    for _ in range(6):
        own.step(closure)
        beta = 1.0
    assert loss(module(X), Y, 1.0).item() == pytest.approx(loss(plain(X), Y, 1.0).item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, torch.ones(3), "x"])
def test_a_closure_returns_one_number(value: Any) -> None:
    module = nn.Linear(4, 1)
    problem = TorchProblem(module, nn.MSELoss(), (X, Y))
    optimizer = anyk.torch.Optimizer(torch.optim.LBFGS(module.parameters()), problem, "uncoded", cluster())
    with pytest.raises(BadInput, match="must return the loss, one number"):
        optimizer.step(lambda: value)


@pytest.mark.parametrize("workers", ["2", 2.5, (2,), 0])
def test_workers_of_a_spec_are_checked(workers: Any) -> None:
    module = nn.Linear(4, 1)
    problem = TorchProblem(module, nn.MSELoss(), (X, Y))
    with pytest.raises(BadInput, match="workers must be a whole number"):
        anyk.torch.Optimizer(torch.optim.SGD(module.parameters()), problem, "uncoded", "simulated", workers=workers)


@pytest.mark.slow
def test_a_run_that_is_over_gives_the_module_its_buffers(tmp_path: Path) -> None:
    def script() -> tuple[Scaled, float]:
        torch.manual_seed(1)
        module = Scaled()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        rounds = anyk.rounds(
            TorchProblem(module, nn.MSELoss(), (X, Y)), "uncoded", cluster(),
            steps=4, into=module, out=tmp_path / "run", keep=[optimizer], go_on=True,
        )  # fmt: skip
        for _ in rounds:
            optimizer.step()
            with torch.no_grad():
                module.k.mul_(1.2)
        return module, float(rounds.run.loss)

    (first, loss), (second, again) = script(), script()
    assert torch.equal(first.k, second.k) and second.k[0] == pytest.approx(1.2**4)
    assert loss == again == pytest.approx(mse_loss(second(X), Y).item())
    problem = TorchProblem(Scaled(), nn.MSELoss(), (X, Y))
    for source in (tmp_path / "run", anyk.Run.open(tmp_path / "run")):
        problem.load_state_dict(source)
        assert problem.loss(problem.initial()) == pytest.approx(loss)


def test_a_loop_begins_with_buffers_of_load_state_dict() -> None:
    module = Scaled()
    problem = TorchProblem(module, nn.MSELoss(), (X, Y))
    state = copy.deepcopy(module.state_dict())
    state["k"] *= 3
    problem.load_state_dict(state)
    for step in anyk.rounds(problem, "uncoded", cluster(), steps=1, into=module):
        expected = torch.autograd.grad(mse_loss(module(X), Y), list(module.parameters()))
        np.testing.assert_allclose(step.gradient, np.concatenate([g.reshape(-1) for g in expected]), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 2])
def test_parameters_that_are_replaced_in_any_step_are_refused(at: int) -> None:
    module = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    problem = TorchProblem(module, nn.MSELoss(), (X, Y))
    with pytest.raises(BadInput, match="is another object than when the loop began"):
        for step in anyk.rounds(problem, "uncoded", cluster(), steps=3, into=module):
            optimizer.step()
            if step.number == at:
                zeros = {name: torch.zeros_like(tensor) for name, tensor in module.state_dict().items()}
                module.load_state_dict(zeros, assign=True)


class Stateful(anyk.Callback):
    """Has a state, and notes what is restored."""

    def __init__(self, state: Any) -> None:
        self.state, self.restored = state, None

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.restored = state


@pytest.mark.slow
def test_states_whose_keys_look_alike_stay_apart(tmp_path: Path) -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    half = torch.full((2,), 1.5, dtype=torch.bfloat16)
    state = {"layer": {"w": np.zeros(2)}, "layer/w": np.ones(2), 1: np.full(2, 3.0), "1": np.full(2, 4.0), "e": half}
    anyk.train(problem, "uncoded", cluster(), steps=2, callbacks=[Stateful(state)], out=tmp_path / "run").close()
    given = Stateful(state)
    anyk.resume(tmp_path / "run", steps=3, callbacks=[given]).close()
    found: Any = given.restored
    assert found["layer"]["w"].tolist() == [0.0, 0.0] and found["layer/w"].tolist() == [1.0, 1.0]
    assert found[1].tolist() == [3.0, 3.0] and found["1"].tolist() == [4.0, 4.0]
    assert found["e"].dtype == torch.bfloat16 and torch.equal(found["e"], half)
    with pytest.raises((BadInput, anyk.RunFailed), match=r"has the key \(1, 2\)"):
        anyk.train(problem, "uncoded", cluster(), steps=2, callbacks=[Stateful({(1, 2): 3})], out=tmp_path / "other")
