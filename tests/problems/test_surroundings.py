"""Variables that a user's code reads, and workers that compute with other values of them than the driver."""

from __future__ import annotations

import importlib
import os
import random
import sys
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.base.errors import BadInput
from anyk.problems.replicas import Trial
from anyk.problems.surroundings import differences, is_read, variables_of

MODULE = """
import torch

class Options:
    scale = 1.0

OPTIONS = {"scale": 1.0}
SCALE = 1.0

class Loss:
    scale = 1.0
    def __call__(self, outputs, targets):
        return self.scale * torch.nn.functional.mse_loss(outputs, targets)

def plain(outputs, targets):
    return torch.nn.functional.mse_loss(outputs, targets)

def by_variable(outputs, targets):
    return SCALE * plain(outputs, targets)

def by_class(outputs, targets):
    return Options.scale * plain(outputs, targets)

def by_dictionary(outputs, targets):
    return OPTIONS["scale"] * plain(outputs, targets)

def of_jax(w, batch):
    import jax.numpy as jnp
    return SCALE * jnp.mean((batch[0] @ w - batch[1]) ** 2)
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that workers can import, as the user's packages are."""
    (tmp_path / "settings_of_user.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("settings_of_user")
    sys.modules.pop("settings_of_user", None)


def names(value: object) -> dict[str, str]:
    return variables_of({"the loss": value})


def test_closures_defaults_and_partials_are_variables() -> None:
    beta = [0.5]

    def loss(outputs: Any, targets: Any, weight: float = 2.0) -> Any:
        return beta[0] * weight * (outputs - targets)

    variables = names(partial(loss, weight=3.0))
    assert variables["variable 'beta'[0]"] == "0.5"
    assert variables["argument 'weight' of the loss"] == "3.0"
    beta[0] = 0.7
    assert list(differences(variables, names(partial(loss, weight=3.0)))) == [("variable 'beta'[0]", "0.5", "0.7")]


def test_attributes_of_modules_and_classes_are_variables() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25))
    before = variables_of({"the module": module})
    module[1].p = 0.5
    changed = list(differences(before, variables_of({"the module": module})))
    assert changed == [("attribute 'p' of the module.1", "0.25", "0.5")]


def test_parameters_and_generators_are_no_variables() -> None:
    class Data:
        def __init__(self) -> None:
            self.generator, self.layer = np.random.default_rng(0), nn.Linear(2, 2)

    data = Data()
    before = names(data)
    data.generator.random()
    with torch.no_grad():
        data.layer.weight.add_(1.0)
    assert not list(differences(before, names(data)))


def test_new_entries_of_a_cache_are_no_difference() -> None:
    cache: dict[str, float] = {"a": 1.0}
    before = names(cache)
    cache["b"] = 2.0
    assert not list(differences(before, names(cache)))


def test_arrays_differ_by_their_numbers() -> None:
    array = np.zeros(5)
    before = names({"targets": array})
    array[3] = 1.0
    assert [name for name, *_ in differences(before, names({"targets": array}))] == ["the loss['targets']"]


def test_objects_that_refer_to_each_other_are_visited_once() -> None:
    class Node:
        other: Any = None

    one, two = Node(), Node()
    one.other, two.other = two, one
    assert names(one) is not None


def test_built_in_functions_are_variables() -> None:
    class Layer(nn.Module):
        activation = staticmethod(torch.tanh)

    before = variables_of({"the module": Layer()})
    Layer.activation = staticmethod(torch.relu)
    changed = list(differences(before, variables_of({"the module": Layer()})))
    assert changed == [("attribute 'activation' of class Layer", "function 'tanh'", "function 'relu'")]


def test_a_worker_that_fails_where_the_driver_does_not_says_why() -> None:
    def fail() -> Any:
        raise KeyError("tanh")

    trial = Trial.of(lambda: np.ones(3), 1e-6, replicas=False, variables={"variable 'NAMES'": "4"})
    assert trial is not None
    words = r"cannot compute a gradient that the driver can .KeyError: 'tanh'.*: variable 'NAMES' is 3 on the worker"
    with pytest.raises(BadInput, match=words):
        trial.check(fail, lambda: {"variable 'NAMES'": "3"})
    trial.check(fail, lambda: {"variable 'NAMES'": "4"})  # the run reports the error


CHANGES = {
    "by_variable": ("SCALE", lambda module: setattr(module, "SCALE", 0.1)),
    "by_class": ("attribute 'scale' of class Options", lambda module: setattr(module.Options, "scale", 0.1)),
    "by_dictionary": ("OPTIONS", lambda module: module.OPTIONS.update(scale=0.1)),
    "Loss": ("attribute 'scale' of class Loss", lambda module: setattr(module.Loss, "scale", 0.1)),
    "by_patch": ("variable 'plain'", lambda module: setattr(module, "plain", lambda a, b: 0.1 * (a - b).abs().mean())),
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["uncoded", "pasgd:tau=2", "frc:stragglers=1"])
@pytest.mark.parametrize("change", CHANGES)
def test_workers_that_lack_a_setting_are_refused(settings: Any, strategy: str, change: str) -> None:
    named, apply = CHANGES[change]
    apply(settings)
    loss = settings.Loss() if change == "Loss" else getattr(settings, change.replace("patch", "variable"))
    X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    problem = anyk.problems.TorchProblem(nn.Linear(5, 1), loss, (X, X.sum(1, keepdim=True)))
    optimizer = anyk.optimizers.GD(lr=0.1)
    with pytest.raises(anyk.RunFailed, match="apart from the driver's") as refusal:
        anyk.train(problem, strategy, anyk.clusters.Processes(2), optimizer=optimizer, steps=2)
    assert named in str(refusal.value)
    assert anyk.train(problem, strategy, anyk.clusters.Simulated(2), optimizer=optimizer, steps=2).steps == 2


@pytest.mark.slow
def test_jax_workers_that_lack_a_setting_are_refused(settings: Any) -> None:
    settings.SCALE = 0.1
    X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    problem = anyk.problems.JaxProblem(settings.of_jax, np.zeros(5, np.float32), (X, X.sum(axis=1)))
    with pytest.raises(anyk.RunFailed, match="variable 'SCALE' of module 'settings_of_user' is 1.0 on the worker"):
        anyk.train(problem, "uncoded", anyk.clusters.Processes(2), optimizer=anyk.optimizers.GD(lr=0.1), steps=2)


@pytest.mark.slow
def test_the_default_type_of_numbers_reaches_workers() -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        weight = torch.full((1,), 0.1)  # of torch's default type
        assert weight.dtype == torch.float64
        return (weight * (outputs - targets) ** 2).sum()

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        X = torch.linspace(-1.0, 1.0, 60).reshape(20, 3)
        problem = anyk.problems.TorchProblem(nn.Linear(3, 1), loss, (X, X.sum(1, keepdim=True)), reduction="sum")
        settings = {"optimizer": anyk.optimizers.GD(lr=0.01), "steps": 3}
        runs = [anyk.train(problem, "uncoded", cluster(2), **settings).model for cluster in CLUSTERS]
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_array_equal(*runs)


CLUSTERS = (anyk.clusters.Simulated, anyk.clusters.Processes)


@pytest.mark.slow
def test_a_data_set_of_ones_own_generator_still_trains_uncoded() -> None:
    class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.generator = np.random.default_rng(0)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> Any:
            return torch.tensor(self.generator.normal(size=3), dtype=torch.float32), torch.zeros(1)

    problem = anyk.problems.TorchProblem(nn.Linear(3, 1), nn.MSELoss(), Noisy())
    run = anyk.train(
        problem, "uncoded", anyk.clusters.Processes(2), optimizer=anyk.optimizers.GD(lr=0.1), steps=2, evaluate=None
    )
    assert run.steps == 2


def by_environment(outputs: Any, targets: Any) -> Any:
    return float(os.environ.get("ANYK_TEST_BETA", "1")) * (outputs - targets).pow(2).mean()


def by_getenv(outputs: Any, targets: Any) -> Any:
    from os import getenv

    return float(getenv(NAME, "1")) * (outputs - targets).pow(2).mean()


class FromEnvironment:
    key = "ANYK_TEST_BETA"

    @property
    def beta(self) -> float:
        return float(environment[self.key]) if self.key in environment else 1.0

    def __call__(self, outputs: Any, targets: Any) -> Any:
        return self.beta * (outputs - targets).pow(2).mean()


NAME, environment = "ANYK_TEST_BETA", os.environ
BY_ENVIRONMENT = [by_environment, by_getenv, FromEnvironment(), partial(by_environment)]


@pytest.mark.parametrize("loss", BY_ENVIRONMENT)
def test_variables_of_the_environment_are_found(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(loss)
    assert before["environment variable 'ANYK_TEST_BETA'"] == "not set"
    assert "PATH" not in str(before)
    monkeypatch.setenv("ANYK_TEST_BETA", "0.5")
    assert list(differences(before, names(loss))) == [("environment variable 'ANYK_TEST_BETA'", "not set", "'0.5'")]
    monkeypatch.setenv("ANYK_TEST_BETA", "long enough for a secret")
    assert "secret" not in str(names(loss))


def test_code_that_reads_no_environment_has_none_of_it() -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        return len("PATH")

    assert "environment" not in str(names(loss))


@pytest.mark.parametrize("loss", BY_ENVIRONMENT)
def test_a_worker_in_another_environment_is_refused_by_name(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = anyk.problems.TorchProblem(nn.Linear(3, 1), loss, (torch.randn(8, 3), torch.randn(8, 1)))
    partitions = problem.split(2)
    partitions.compare_workers(replicas=False)
    monkeypatch.setenv("ANYK_TEST_BETA", "0.5")  # as on another machine
    with pytest.raises(anyk.BadInput, match="environment variable 'ANYK_TEST_BETA' is '0.5' on the worker and not set"):
        partitions.load([0])


@pytest.mark.slow
def test_processes_have_the_environment_of_the_run_start(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.randn(8, 3), torch.randn(8, 1)
    problem = anyk.problems.TorchProblem(nn.Linear(3, 1), by_environment, data)
    monkeypatch.setenv("ANYK_TEST_BETA", "0.5")
    options: Any = {"optimizer": anyk.optimizers.GD(lr=0.1), "steps": 2}
    models = [
        anyk.train(problem, "uncoded", cluster, **options).model
        for cluster in (anyk.clusters.Simulated(2), anyk.clusters.Processes(2))
    ]
    assert np.array_equal(*models)


def test_hooks_of_a_module_and_what_they_read_are_variables() -> None:
    scale = [1.0]
    module = nn.Sequential(nn.Linear(2, 2))
    before = variables_of({"the module": module})
    handle = module[0].register_forward_hook(lambda part, inputs, outputs: outputs * scale[0])
    first = variables_of({"the module": module})
    scale[0] = 2.0
    second = variables_of({"the module": module})
    assert list(differences(before, first)) == [("the number of forward hooks of the module.0", "0", "1")]
    assert list(differences(first, second)) == [("variable 'scale'[0]", "1.0", "2.0")]
    handle.remove()
    assert variables_of({"the module": module}) == before


# ------------------------------------------------------------------------------------------- one name, several things


def scaled(scale: float) -> Any:
    return lambda outputs: scale * outputs


def test_variables_of_one_name_are_told_apart() -> None:
    first, second = scaled(1.0), scaled(1.0)
    before = variables_of({"the losses": [first, second]})
    second.__closure__[0].cell_contents = 2.0
    assert list(differences(before, variables_of({"the losses": [first, second]}))) == [
        ("variable 'scale' (2)", "1.0", "2.0")
    ]
    kinds = [type("Loss", (), {"scale": 1.0, "__call__": lambda self: self.scale}) for _ in range(2)]
    objects = {"the losses": [kind() for kind in kinds]}
    before = variables_of(objects)
    kinds[1].scale = 3.0  # type: ignore[attr-defined]
    assert [(was, now) for _, was, now in differences(before, variables_of(objects))] == [("1.0", "3.0")]


def test_functions_that_differ_in_a_constant_differ() -> None:
    functions = [
        *(lambda x: x.sum((0, 1)), lambda x: x.sum((0, 2))),
        *(lambda x: [y * 2 for y in x], lambda x: [y * 3 for y in x]),
        *(lambda x: x in {1, 2}, lambda x: x in {1, 3}),
    ]
    digests = [variables_of({"the loss": function})["the loss"] for function in functions]
    assert len(set(digests)) == len(functions)
    assert len({variables_of({"the loss": scaled(1.0)})["the loss"] for _ in range(3)}) == 1


def test_sets_and_shapes_are_the_same_in_every_process_or_differ() -> None:
    shown = variables_of({"a set": {scaled, max, object(), "word"}})["a set"]
    assert " at 0x" not in shown and variables_of({"a set": {scaled, max, object(), "word"}})["a set"] == shown
    tensors = [torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2)]
    one, other = (variables_of({"a tensor": tensor})["a tensor"] for tensor in tensors)
    assert one.startswith("an array of shape (2, 3)") and one != other


def test_a_users_class_may_be_called_generator() -> None:
    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

    assert variables_of({"the module": Generator()})["attribute 'scale' of the module"] == "2.0"
    for generator in (torch.Generator(), random.Random(1), np.random.default_rng(1), random.SystemRandom()):
        assert variables_of({"it": generator}) == {}


def test_a_decorated_method_reads_what_its_function_reads() -> None:
    def decorated(function: Any) -> Any:
        @wraps(function)
        def inner(*arguments: Any) -> Any:
            return function(*arguments)

        return inner

    def enclosing(function: Any) -> Any:
        return lambda *arguments: function(*arguments)

    class Caller:
        def __call__(self, data: Any, index: int) -> Any:
            return data.scale * index

    class Inheriting(Caller): ...

    def item(self: Any, index: int) -> Any:
        return self.scale * index

    for method in (item, decorated(item), enclosing(item), lru_cache(item), lru_cache(decorated(item)), Inheriting()):
        data = type("Data", (), {"__getitem__": method, "scale": 1.0, "other": 2.0})()
        assert is_read(data, "attribute 'scale' of the data set", [])
        assert not is_read(data, "attribute 'other' of the data set", [])


def test_assertions_that_pytest_has_rewritten_are_not_followed() -> None:
    scale = 2.0

    def checked(x: float) -> float:
        assert x > 0.0, x
        return scale * x

    assert "@pytest_ar" in checked.__code__.co_names
    assert set(variables_of({"the loss": checked})) == {"the loss", "variable 'scale'"}
