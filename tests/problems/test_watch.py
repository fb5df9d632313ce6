"""Changes that a loop makes to what workers have copies of are noticed, and refused by name, on every cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import anyk
from anyk.base.errors import BadInput, RunFailed

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
y = torch.randn(40, 1, generator=torch.Generator().manual_seed(1))
BETA = [0.0]


class Options:
    beta = 0.0


class Loss(nn.Module):
    beta = 0.0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs, targets) + self.beta * outputs.pow(2).mean()


class Curriculum(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.epoch, self.reads = 0, 0
        self.cache: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        self.reads += 1
        self.cache[i] = y[i]
        return X[i] * (1 + 0.2 * self.epoch), y[i]


def by_list(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(outputs, targets) + BETA[0] * outputs.pow(2).mean()


def by_class(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(outputs, targets) + Options.beta * outputs.pow(2).mean()


@pytest.fixture(autouse=True)
def _reset() -> Any:
    BETA[0] = Options.beta = 0.0
    yield
    BETA[0] = Options.beta = 0.0


def loop(
    problem: Any, change: Callable[[int], None], *, cluster: Any = None, steps: int = 10, into: nn.Module | None = None
) -> int:
    done = 0
    for step in anyk.rounds(problem, "uncoded", cluster or anyk.clusters.Simulated(2), steps=steps, into=into):
        if into is not None:
            torch.optim.SGD(into.parameters(), lr=0.01).step()
        else:
            step.model -= 0.01 * step.gradient
        done = step.number
        change(step.number)
    return done


def problem_of(loss: Any, data: Any = None, module: nn.Module | None = None) -> Any:
    return anyk.problems.TorchProblem(module or nn.Linear(5, 1), loss, data or (X.clone(), y.clone()))


@pytest.mark.parametrize(
    "cluster", [anyk.clusters.Simulated, pytest.param(anyk.clusters.Processes, marks=pytest.mark.slow)]
)
def test_values_that_change_in_a_loop_are_refused_by_name(cluster: Callable[[int], Any]) -> None:
    loss, data = Loss(), Curriculum()
    cases: list[tuple[Any, Callable[[int], None], str]] = [
        (problem_of(by_list), lambda i: BETA.__setitem__(0, float(i + 1)), r"variable 'BETA'.*\[0\] was 0.0"),
        (problem_of(by_class), lambda i: setattr(Options, "beta", 1.0), "attribute 'beta' of class Options was 0.0"),
        (problem_of(loss), lambda i: setattr(loss, "beta", 1.0), "compute something else|attribute 'beta' of the loss"),
        (problem_of(nn.MSELoss(), data), lambda i: setattr(data, "epoch", i + 1), "attribute 'epoch' of the data set"),
    ]
    for problem, change, words in cases:
        with pytest.raises(BadInput, match=words):
            loop(problem, change, cluster=cluster(2))


def test_a_change_within_a_run_is_noticed_before_its_end() -> None:
    loss = Loss()
    with pytest.raises(BadInput, match="when the run began"):
        loop(problem_of(loss), lambda i: setattr(loss, "beta", 0.5) if i == 4 else None, steps=7)


def test_a_change_after_the_last_gradient_does_not_count() -> None:
    loss = Loss()
    assert loop(problem_of(loss), lambda i: setattr(loss, "beta", 0.5) if i == 6 else None, steps=7) == 6


def test_rates_of_dropout_and_targets_in_place_are_noticed() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    with pytest.raises(BadInput, match=r"attribute 'p' of the module.1 was 0.1 when the run began and is 0.5 now"):
        loop(problem_of(nn.MSELoss(), module=module), lambda i: setattr(module[1], "p", 0.5), into=module)
    targets = y.clone()
    with pytest.raises(BadInput, match=r"the data\[1\] was an array"):
        loop(problem_of(nn.MSELoss(), (X, targets)), lambda i: targets[39].mul_(2.0) and None)


@pytest.mark.slow
def test_counters_caches_and_modes_are_no_change() -> None:
    loss, data = Loss(), Curriculum()
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))

    def evaluate(_: int) -> None:
        module.eval()
        loss(module(X), y)
        data[0]

    assert loop(problem_of(loss, data, module), evaluate, into=module) == 9
    assert module[2].p == 0.1 and not module.training


def test_a_watch_leaves_the_module_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    problem = problem_of(nn.MSELoss(), module=module)
    with torch.no_grad():
        module[0].weight.add_(1.0)
        module[1].running_mean.add_(1.0)
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    problem.watch_code().check()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not module.training and all(parameter.grad is None for parameter in module.parameters())


def test_a_callback_that_changes_the_loss_ends_the_run() -> None:
    loss = Loss()

    class Annealing(anyk.Callback):
        def on_step(self, info: Any) -> None:
            loss.beta = 0.1 * info.step

    with pytest.raises(RunFailed, match="when the run began"):
        anyk.train(
            problem_of(loss),
            "uncoded",
            anyk.clusters.Simulated(2),
            optimizer=anyk.optimizers.GD(lr=0.01),
            steps=9,
            callbacks=[Annealing()],
        )


@pytest.mark.slow
def test_a_closure_of_a_jax_loss_that_changes_is_refused() -> None:
    jnp = pytest.importorskip("jax.numpy")
    beta = [0.0]

    def loss(w: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ w - batch[1]) ** 2) + beta[0] * jnp.sum(w**2)

    problem = anyk.problems.JaxProblem(loss, np.zeros(5, np.float32), (X.numpy(), y.numpy()[:, 0]))
    with pytest.raises(BadInput, match=r"variable 'beta'\[0\] was 0.0 when the run began and is 1.0 now"):
        loop(problem, lambda i: beta.__setitem__(0, 1.0))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.scale = nn.BatchNorm1d(5), nn.Linear(5, 1), 1.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(self.norm(inputs)) * self.scale
        return outputs


class Labelled(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.y, self.listed = y.clone(), y[:, 0].tolist()
        self.cache, self.seen = torch.zeros(40), [None] * 40

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        self.cache[i] += 1
        self.seen[i] = True  # type: ignore[call-overload]
        return X[i], self.y[i] + 0 * self.listed[i]


def test_a_module_changed_after_its_problem_was_made_is_refused() -> None:
    def relu(module: Any) -> None:
        module.linear = nn.Sequential(nn.Linear(5, 1), nn.ReLU())

    cases: list[tuple[Callable[[Any], Any], str]] = [
        (lambda module: setattr(module, "scale", 3.0), "attribute 'scale' of the module was 1.0 when the problem"),
        (lambda module: module.norm.eval(), "mode of the module.norm was training mode when the problem"),
        (relu, r"the module has other parameters .* \(linear.0.bias, linear.0.weight, linear.bias\)"),
    ]
    for change, words in cases:
        module = Scaled()
        problem = problem_of(nn.MSELoss(), module=module)
        change(module)
        if change is not relu:  # a loop refuses other parameters by their number or shape
            with pytest.raises(BadInput, match=words):
                loop(problem, lambda i: None, into=module)
        with pytest.raises(BadInput, match=words):
            problem.check_unchanged(begins=True)


def test_a_buffer_that_is_missing_is_refused_by_name() -> None:
    class Shifted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 1)
            self.register_buffer("shift", torch.zeros(1))  # no gradient shows that it is missing

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = super().forward(inputs) + sum(self.buffers())
            return outputs

    module = Shifted()
    problem = problem_of(nn.MSELoss(), module=module)
    assert problem.check_unchanged(begins=True) == []
    del module.shift
    module.register_buffer("other", torch.zeros(1))
    with pytest.raises(BadInput, match="^buffer 'shift' of the module was there when the problem was made and is mi"):
        problem.check_unchanged(begins=True)


def test_parameters_buffers_and_validation_are_no_change() -> None:
    module = Scaled()
    problem = problem_of(nn.MSELoss(), module=module)
    first = problem.initial().copy()
    with torch.no_grad():
        module.linear.weight.add_(1.0)
        module.norm.running_mean.add_(1.0)
    module(X)
    module.eval()
    assert loop(problem, lambda i: module.eval() and None, into=module) == 9
    assert np.array_equal(problem.initial(), first)


@pytest.mark.slow
def test_a_module_with_batch_norm_is_compared_in_a_loop_too() -> None:
    class Hidden(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.inner = [nn.Linear(1, 1)]  # no part of the module, so that no variable shows its weights

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.inner[0](super().forward(inputs))
            return outputs

    module, logged = Hidden(), Loss()
    logged.last = 0.0  # type: ignore[assignment]
    assert loop(problem_of(logged, module=module), lambda i: setattr(logged, "last", 1.0 * i), into=module) == 9
    with pytest.raises(BadInput, match="compute something else than when the run began"):
        loop(
            problem_of(nn.MSELoss(), module=module),
            lambda i: nn.init.zeros_(module.inner[0].weight) is None,
            into=module,
        )


def test_a_part_put_into_evaluation_mode_in_a_loop_is_refused() -> None:
    module = Scaled()
    with pytest.raises(BadInput, match="mode of the module.norm was training mode when the run began"):
        loop(problem_of(nn.MSELoss(), module=module), lambda i: module.norm.eval() and None, into=module)


@pytest.mark.parametrize("period", [3, 5, 10, 50])
def test_a_term_that_counts_now_and_then_is_refused(period: int) -> None:
    loss = Loss()
    with pytest.raises(BadInput, match="when the run began"):
        loop(problem_of(loss), lambda i: setattr(loss, "beta", 0.5 * ((i + 1) % period == 0)), steps=8 * period)


def test_new_labels_of_a_few_items_are_refused_by_name() -> None:
    for change, words in (
        (lambda data: data.y[37:].mul_(2.0), "attribute 'y' of the data set was an array"),
        (lambda data: data.listed.__setitem__(37, 9.0), r"attribute 'listed' of the data set\[37\] was"),
    ):
        data = Labelled()
        with pytest.raises(BadInput, match=words):
            loop(problem_of(nn.MSELoss(), data), lambda i, change=change, data=data: change(data))  # type: ignore[misc]


@pytest.mark.slow
def test_tables_and_lengths_of_data_sets_that_change_are_refused() -> None:
    class Framed(Labelled):
        def __init__(self) -> None:
            super().__init__()
            self.table = pandas.DataFrame({"y": y[:, 0].numpy().copy()})

        def __getitem__(self, i: int) -> Any:
            return X[i], torch.tensor([self.table.y.iloc[i]])

    framed = Framed()
    with pytest.raises(BadInput, match="attribute 'table' of the data set was an array"):
        loop(problem_of(nn.MSELoss(), framed), lambda i: framed.table.__setitem__("y", [0.0] * 37 + [float(i)] * 3))
    subset = torch.utils.data.Subset(Labelled(), range(30))
    with pytest.raises(BadInput, match="the data's length was 30 when the run began and is 40 now"):
        loop(problem_of(nn.MSELoss(), subset), lambda i: setattr(subset, "indices", range(40)))


def test_caches_of_a_data_set_are_no_change() -> None:
    data = Labelled()
    assert loop(problem_of(nn.MSELoss(), data), lambda i: [data[j] for j in range(40)] and None) == 9


def test_weights_of_samples_changed_in_a_loop_are_refused() -> None:
    weights = torch.ones(40)
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), nn.MSELoss(), (X, y), weights=weights)
    with pytest.raises(BadInput, match="the data's weights was an array"):
        loop(problem, lambda i: weights[37:].mul_(2.0) is None)


def test_weights_of_a_sampler_changed_in_a_loop_are_refused() -> None:
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(40), 40)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=4, sampler=sampler)
    with pytest.raises(BadInput, match="attribute 'weights' of the data's sampler was an array"):
        loop(problem_of(nn.MSELoss(), loader), lambda i: setattr(sampler, "weights", torch.ones(40) + i))


@pytest.mark.slow
def test_variables_without_effect_stay_without_effect() -> None:
    loss = Loss()
    assert loop(problem_of(loss), lambda i: setattr(loss, "last", float(i)), steps=30) == 29


HOOKS: list[tuple[str, Callable[[Any], Any]]] = [
    ("forward ", lambda part: part.register_forward_hook(lambda _, inputs, outputs: 2 * outputs)),
    ("forward pre-", lambda part: part.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],))),
    ("backward ", lambda part: part.register_full_backward_hook(lambda _, inputs, outputs: (2 * inputs[0],))),
    ("backward pre-", lambda part: part.register_full_backward_pre_hook(lambda _, outputs: (2 * outputs[0],))),
]


@pytest.mark.parametrize(("kind", "add"), HOOKS)
def test_hooks_added_or_removed_in_a_loop_are_refused(kind: str, add: Callable[[Any], Any]) -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    with pytest.raises(BadInput, match=f"the number of {kind}hooks of the module.2 was 0 when the run began and is 1"):
        loop(problem_of(nn.MSELoss(), module=module), lambda i: add(module[2]) and None, into=module)
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    handle = add(module[2])
    with pytest.raises(BadInput, match=f"the number of {kind}hooks of the module.2 was 1 when the run began and is 0"):
        loop(problem_of(nn.MSELoss(), module=module), lambda i: handle.remove(), into=module)


def test_hooks_that_only_look_are_no_change() -> None:
    module, seen = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1)), []
    module[0].register_forward_hook(lambda _, inputs, outputs: seen.append(outputs.detach()))

    def look(_: int) -> None:
        module[1].register_forward_hook(lambda _, inputs, outputs: seen.append(outputs.detach()))
        module(X)

    assert loop(problem_of(nn.MSELoss(), module=module), look, into=module) == 9


def test_an_environment_changed_in_a_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs, targets) * float(os.environ.get("ANYK_TEST_BETA", "1"))

    monkeypatch.delenv("ANYK_TEST_BETA", raising=False)
    with pytest.raises(BadInput, match="environment variable 'ANYK_TEST_BETA' was not set when the run began"):
        loop(problem_of(loss), lambda i: monkeypatch.setenv("ANYK_TEST_BETA", "0.5"))


class Recorded(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.y, self.weights, self.history, self.records = y.clone(), torch.ones(40), np.zeros(40), [0.0] * 40

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return X[i], self.target(i)

    def target(self, i: int) -> torch.Tensor:
        return self.y[i] * self.scaled[i]

    @property
    def scaled(self) -> torch.Tensor:
        return self.weights

    def record(self, i: int, loss: float) -> None:
        self.history[i] = self.records[i] = loss


class Indirect(Recorded):
    def __getitem__(self, i: int) -> Any:
        return X[i], self.y[i] * (1.0 + getattr(self, "history")[i])  # noqa: B009


def with_history(data: Any, i: int) -> Any:
    return X[i], data.y[i] + data.history[i]


class Called(Recorded):
    def __getitem__(self, i: int) -> Any:
        return with_history(self, i)


@pytest.mark.slow
def test_unread_records_of_a_data_set_are_no_change() -> None:
    for wrap in (lambda data: data, lambda data: torch.utils.data.Subset(data, range(40))):
        data = Recorded()
        assert loop(problem_of(nn.MSELoss(), wrap(data)), lambda i, data=data: data.record(37, 1.0 + i)) == 9  # type: ignore[misc]
        with pytest.raises(BadInput, match="attribute 'y' of .*the data set was an array"):
            loop(problem_of(nn.MSELoss(), wrap(data)), lambda i, data=data: data.y[37:].mul_(2.0) is None)  # type: ignore[misc]
        with pytest.raises(BadInput, match="attribute 'weights' of .*the data set was an array"):
            loop(problem_of(nn.MSELoss(), wrap(data)), lambda i, data=data: data.weights[37:].mul_(2.0) is None)  # type: ignore[misc]


@pytest.mark.slow
def test_records_that_items_may_read_are_refused_with_a_remedy() -> None:
    for data in (Indirect(), Called()):
        with pytest.raises(BadInput, match=r"attribute 'history' of the data set.*must be kept outside of the data"):
            loop(problem_of(nn.MSELoss(), data), lambda i, data=data: data.record(37, 1.0 + i))  # type: ignore[misc]
    data = Recorded()
    problem = anyk.problems.TorchProblem(
        nn.Linear(5, 1), nn.MSELoss(), data, transform=lambda item: (item[0], item[1] + data.history[0])
    )
    with pytest.raises(BadInput, match="attribute 'history' of the data set"):
        loop(problem, lambda i: data.record(37, 1.0 + i))


@pytest.mark.slow
def test_an_array_that_the_loss_does_not_read_may_change() -> None:
    def loss(module: Any, batch: Any) -> Any:
        return nn.functional.mse_loss(module(batch["x"]), batch["y"])

    def weighted(module: Any, batch: Any) -> Any:
        return (batch["last"] * (module(batch["x"]) - batch["y"])[:, 0] ** 2).mean()

    for own, words in ((loss, ""), (weighted, r"the data\[2\] was an array .*kept outside of the data")):
        data = {"x": X.clone(), "y": y.clone(), "last": torch.ones(40)}

        def record(i: int, data: Any = data) -> None:
            data["last"][37:] = torch.rand(3)

        if not words:
            assert loop(problem_of(own, data), record, steps=40) == 39
        else:
            with pytest.raises(BadInput, match=words):
                loop(problem_of(own, data), record)


def test_a_change_that_concerns_few_samples_is_noticed() -> None:
    def rare(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets * torch.where(targets == rarest, 1.0 + BETA[0], 1.0)).pow(2).mean()

    rarest = y[20]  # none of the first samples
    with pytest.raises(BadInput, match=r"variable 'BETA'.*\[0\] was 0.0"):
        loop(problem_of(rare), lambda i: BETA.__setitem__(0, float(i + 1)))


def test_a_rate_that_a_loss_reads_from_an_optimiser_is_named() -> None:
    module = nn.Linear(5, 1)
    sgd = torch.optim.SGD(module.parameters(), lr=0.01)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs, targets) + sgd.param_groups[0]["lr"] * outputs.pow(2).mean()

    with pytest.raises(BadInput, match=r"\['lr'\] was 0.01 when the run began and is 0.5 now;"):
        loop(problem_of(loss, module=module), lambda i: sgd.param_groups[0].update(lr=0.5), into=module)


@pytest.mark.parametrize(
    ("name", "value"), [("label_smoothing", 0.5), ("weight", torch.tensor([1.0, 2.0, 5.0])), ("ignore_index", 1)]
)
def test_a_loss_whose_mean_became_a_sum_is_watched_as_it_is_now(name: str, value: Any) -> None:
    """Where some targets do not count, workers have a copy of the loss that is a sum; the user changes the mean."""
    targets = torch.where(torch.arange(40) % 4 == 0, -100, torch.arange(40) % 3)
    loss = nn.CrossEntropyLoss()

    def change(number: int) -> None:
        if number == 4:
            setattr(loss, name, value)

    with pytest.raises(BadInput, match="the loss"):
        loop(problem_of(loss, (X.clone(), targets), nn.Linear(5, 3)), change)
