"""Values that travel with each version of a model: the same training as in a loop of PyTorch, on every cluster."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.base.errors import BadInput, RunFailed

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
y = torch.randn(40, 1, generator=torch.Generator().manual_seed(1))
STEPS = 8


def loss(outputs: torch.Tensor, targets: torch.Tensor, beta: float) -> torch.Tensor:
    return nn.functional.mse_loss(outputs, targets) + beta * outputs.pow(2).mean()


class Taught(nn.Module):
    """A layer with a teacher, a moving average of it, and a buffer of whole numbers that the loop counts up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.teacher = nn.Linear(5, 1), nn.Linear(5, 1)
        self.teacher.requires_grad_(False)
        self.register_buffer("counts", torch.ones(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) - 0.5 * self.teacher(x) + 0.01 * self.counts.sum()

    @torch.no_grad()
    def renew(self) -> None:
        for mean, new in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
            mean.data.mul_(0.9).add_(new.data, alpha=0.1)
        self.counts[0] += 1


def train_plainly(steps: int = STEPS) -> Taught:
    module = Taught()
    sgd = torch.optim.SGD(module.layer.parameters(), lr=0.05)
    for step in range(steps):
        sgd.zero_grad()
        loss(module(X), y, 0.1 * step).backward()
        sgd.step()
        module.renew()
    return module


def train_in_rounds(strategy: str, cluster: Any, **settings: Any) -> tuple[Taught, anyk.Run]:
    module = Taught()
    sgd = torch.optim.SGD(module.layer.parameters(), lr=0.05)
    problem = anyk.problems.TorchProblem(module, loss, (X, y), values={"beta": 0.0})
    rounds = anyk.rounds(problem, strategy, cluster, **{"steps": STEPS, "into": module} | settings)
    for step in rounds:
        sgd.step()
        module.renew()
        step.values["beta"] = 0.1 * (step.number + 1)
    return module, rounds.run


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, value), expected in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, msg=name)


@pytest.mark.parametrize(
    ("cluster", "strategy"),
    [
        (anyk.clusters.Simulated, "uncoded"),
        (anyk.clusters.Simulated, "frc:stragglers=1"),
        (anyk.clusters.Simulated, "cyclic:stragglers=1"),
        pytest.param(anyk.clusters.Processes, "uncoded", marks=pytest.mark.slow),
        pytest.param(anyk.clusters.Processes, "frc:stragglers=1", marks=pytest.mark.slow),
    ],
)
def test_values_and_renewed_tensors_reach_every_worker(cluster: Callable[[int], Any], strategy: str) -> None:
    expected = train_plainly()
    module, run = train_in_rounds(strategy, cluster(2))
    assert_same(module, expected)
    receipt = run.receipt(5)
    assert receipt.values["beta"] == pytest.approx(0.4)
    assert {name for name in receipt.values if "teacher" in name or "counts" in name} == {
        "parameter 'teacher.weight'",
        "parameter 'teacher.bias'",
        "buffer 'counts'",
    }
    # the last version is evaluated with the values that it carries
    assert run.loss == pytest.approx(float(loss(module(X), y, 0.1 * STEPS).detach()), rel=1e-5)


@pytest.mark.slow
def test_a_resumed_loop_continues_with_its_values(tmp_path: Path) -> None:
    expected = train_plainly()
    train_in_rounds("uncoded", anyk.clusters.Simulated(2), steps=3, out=tmp_path / "run")
    module, run = train_in_rounds("uncoded", anyk.clusters.Simulated(2), out=tmp_path / "run", go_on=True)
    assert_same(module, expected)
    assert run.receipt(2).values["beta"] == pytest.approx(0.1) and run.receipt(8).values["beta"] == pytest.approx(0.7)


def test_tensors_that_differ_from_the_problems_travel_at_once() -> None:
    module = Taught()
    problem = anyk.problems.TorchProblem(module, loss, (X, y), values={"beta": 0.5})
    with torch.no_grad():
        module.teacher.weight.mul_(3.0)
    gradients = torch.autograd.grad(loss(module(X), y, 0.5), list(module.layer.parameters()))
    for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=1, into=module):
        np.testing.assert_allclose(step.gradient, torch.cat([g.reshape(-1) for g in gradients]), rtol=1e-5)


@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1", "async", "pasgd:tau=2"])
def test_a_schedule_gives_the_same_run_and_replay(strategy: str) -> None:
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), loss, (X, y), values={"beta": lambda step: 0.1 * step})
    run = anyk.train(problem, strategy, anyk.clusters.Simulated(4), optimizer=anyk.optimizers.GD(lr=0.01), steps=6)
    assert run.receipt(3).values == {"beta": pytest.approx(0.2)}
    replayed = anyk.replay(run, problem=problem)
    assert replayed.decisions and replayed.model


@pytest.mark.slow
def test_a_scheduled_value_is_the_same_on_processes() -> None:
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), loss, (X, y), values={"beta": lambda step: 0.1 * step})
    models = [
        anyk.train(problem, "frc:stragglers=1", cluster(4), optimizer=anyk.optimizers.GD(lr=0.05), steps=6).model
        for cluster in (anyk.clusters.Simulated, anyk.clusters.Processes)
    ]
    np.testing.assert_array_equal(*models)


@pytest.mark.slow
def test_values_of_a_jax_loss_travel() -> None:
    jnp = pytest.importorskip("jax.numpy")

    def jax_loss(w: Any, batch: Any, beta: Any, target: Any) -> Any:
        return jnp.mean((batch[0] @ w - batch[1]) ** 2) + beta * jnp.sum((w - target["w"]) ** 2)

    a, b = X.numpy(), y.numpy()[:, 0]
    values = {"beta": 0.0, "target": {"w": np.zeros(5, np.float32)}}
    problem = anyk.problems.JaxProblem(jax_loss, np.zeros(5, np.float32), (a, b), values=values)
    expected, target = np.zeros(5), np.zeros(5)
    for step in anyk.rounds(problem, "frc:stragglers=1", anyk.clusters.Simulated(4), steps=5):
        gradient = 2.0 * a.T @ (a @ expected - b) / 40 + 2.0 * 0.1 * step.number * (expected - target)
        np.testing.assert_allclose(step.gradient, gradient, rtol=2e-4, atol=1e-6)
        expected = expected - 0.1 * gradient
        step.model -= 0.1 * step.gradient
        target = expected.copy()
        step.values["beta"] = 0.1 * (step.number + 1)
        step.values["target"] = {"w": target.astype(np.float32)}


def test_values_by_one_name_and_by_the_modules_forward() -> None:
    class Cooled(nn.Linear):
        def forward(self, x: torch.Tensor, temperature: float) -> torch.Tensor:  # type: ignore[override]
            return super().forward(x) / temperature

    def all_values(outputs: torch.Tensor, targets: torch.Tensor, values: dict[str, float]) -> torch.Tensor:
        return values["beta"] * nn.functional.mse_loss(outputs, targets)

    values = {"beta": 2.0, "temperature": 4.0}
    problem = anyk.problems.TorchProblem(Cooled(5, 1), all_values, (X, y), values=values)
    w = problem.initial()
    expected = 2.0 * float(((X @ torch.tensor(w[:5]) + float(w[5])).reshape(-1, 1) / 4.0 - y).pow(2).mean())
    assert problem.loss(w) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["gamma", "Beta"])
def test_a_value_that_the_problem_lacks_is_refused(name: str) -> None:
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), loss, (X, y), values={"beta": 0.0})
    with pytest.raises(BadInput, match="name all of them in values="):
        for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=3):
            step.values[name] = 1.0
    plain = anyk.problems.TorchProblem(nn.Linear(5, 1), nn.MSELoss(), (X, y))
    with pytest.raises(BadInput, match="the problem has"):
        for step in anyk.rounds(plain, "uncoded", anyk.clusters.Simulated(2), steps=3):
            step.values[name] = 1.0


@pytest.mark.parametrize("where", ["aside", "workers"])
def test_schedules_are_refused_by_evaluations_elsewhere(where: str) -> None:
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), loss, (X, y), values={"beta": lambda step: 0.1 * step})
    optimizer = anyk.optimizers.GD(lr=0.05)
    with pytest.raises(BadInput, match="the problem's values 'beta' change during the run, and evaluation .* initial"):
        anyk.train(
            problem, "uncoded", anyk.clusters.Simulated(2), optimizer=optimizer, steps=3, evaluate=f"where={where}"
        )


def test_evaluation_elsewhere_does_not_follow_a_loop() -> None:
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), loss, (X, y), values={"beta": 0.5})
    with pytest.raises(RunFailed, match="evaluate where='driver'"):
        for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=3, evaluate="where=workers"):
            step.values["beta"] = 0.1


def test_a_module_with_other_buffers_is_refused() -> None:
    problem = anyk.problems.TorchProblem(Taught(), loss, (X, y), values={"beta": 0.0})
    module = Taught()
    module.register_buffer("counts", torch.ones(4))
    with pytest.raises(BadInput, match="frozen parameters and buffers are not those"):
        for _ in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=1, into=module):
            pass


class Masked(nn.Module):
    """A layer with a mask, and a teacher that may be another object in each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.teacher = nn.Linear(5, 1), nn.Linear(5, 1).requires_grad_(False)
        self.register_buffer("mask", torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.mask) - 0.5 * self.teacher(x)

    def renew(self, step: int) -> None:
        self.mask = torch.arange(5.0) % (step + 2)
        self.teacher = copy.deepcopy(self.layer).requires_grad_(False)


def test_buffers_and_parts_assigned_anew_travel_too() -> None:
    plain, module = Masked(), Masked()
    sgd = torch.optim.SGD(plain.layer.parameters(), lr=0.05)
    for step in range(STEPS):
        sgd.zero_grad()
        nn.functional.mse_loss(plain(X), y).backward()
        sgd.step()
        plain.renew(step)
    sgd = torch.optim.SGD(module.layer.parameters(), lr=0.05)
    problem = anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))
    for each in anyk.rounds(problem, "frc:stragglers=1", anyk.clusters.Simulated(2), steps=STEPS, into=module):
        sgd.step()
        module.renew(each.number)
    assert_same(module, plain)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda module: setattr(module, "mask", torch.ones(1)),
            r"buffer 'mask' of the module was torch.float32 \(5,\)",
        ),
        (lambda module: setattr(module, "mask", module.mask.double()), r"is torch.float64 \(5,\) now"),
        (lambda module: setattr(module, "teacher", nn.Identity()), "parameter 'teacher.weight' .* is missing now"),
        (lambda module: setattr(module, "layer", nn.Linear(5, 1)), "parameter 'layer.weight' is another object"),
    ],
)
def test_parts_of_another_form_in_a_loop_are_refused(change: Callable[[Any], None], words: str) -> None:
    module = Masked()
    problem = anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))
    with pytest.raises(BadInput, match=words):
        for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=4, into=module):
            if step.number == 1:
                change(module)


@pytest.mark.slow
def test_a_loop_says_where_it_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_in_rounds("uncoded", anyk.clusters.Simulated(2), steps=3, out=tmp_path / "run")
    assert "continues" not in capsys.readouterr().err
    train_in_rounds("uncoded", anyk.clusters.Simulated(2), out=tmp_path / "run", go_on=True)
    assert f"the run in '{tmp_path / 'run'}' continues at step 3\n" in capsys.readouterr().err


@pytest.mark.slow
def test_a_loop_has_a_checkpoint_within_its_first_seconds(tmp_path: Path) -> None:
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), nn.MSELoss(), (X, y))
    until = time.monotonic() + 60.0
    for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=10_000, out=tmp_path / "run"):
        time.sleep(0.3)
        if step.number and (checkpoints := list((tmp_path / "run").glob("checkpoint*"))):
            break
        assert time.monotonic() < until
    assert checkpoints and step.number < 30  # with one every 10 s there would be none before step 33


def test_values_are_set_on_the_step_of_an_optimiser() -> None:
    module, plain = nn.Linear(5, 1), nn.Linear(5, 1)
    plain.load_state_dict(module.state_dict())
    sgd = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(4):
        sgd.zero_grad()
        loss(plain(X), y, 0.1 * step).backward()
        sgd.step()
    problem = anyk.problems.TorchProblem(module, loss, (X, y), values={"beta": 0.0})
    own = torch.optim.SGD(module.parameters(), lr=0.05)
    with anyk.torch.Optimizer(own, problem, "frc:stragglers=1", anyk.clusters.Simulated(2)) as optimizer:
        for number in range(4):
            optimizer.step().values["beta"] = 0.1 * (number + 1)
    assert_same(module, plain)


def _with_target(outputs: Any, targets: Any, target: Any) -> Any:
    return nn.functional.mse_loss(outputs, targets) + (torch.as_tensor(target) * outputs.mean()).sum()


@pytest.mark.parametrize("form", [torch.ones, lambda count: np.ones(count, np.float32)])
@pytest.mark.parametrize(
    "cluster", [anyk.clusters.Simulated, pytest.param(anyk.clusters.Processes, marks=pytest.mark.slow)]
)
def test_arrays_of_values_may_be_changed_in_place(form: Callable[[int], Any], cluster: Callable[[int], Any]) -> None:
    data = torch.ones(8, 3), torch.zeros(8, 1)

    def trained(change: Callable[[Any, Any], None]) -> Any:
        torch.manual_seed(0)
        target = form(1)
        problem = anyk.problems.TorchProblem(nn.Linear(3, 1), _with_target, data, values={"target": target})
        for step in anyk.rounds(problem, "uncoded", cluster(2), steps=4):
            step.model -= 0.1 * step.gradient
            change(step, target)
        return step.model

    def anew(step: Any, target: Any) -> None:
        step.values["target"] = form(1) * (step.number + 2)

    def given(step: Any, target: Any) -> None:
        target += 1.0
        step.values["target"] = target

    def current(step: Any, target: Any) -> None:
        step.values["target"] += 1.0

    assert np.array_equal(trained(anew), trained(given))
    assert np.array_equal(trained(anew), trained(current))
