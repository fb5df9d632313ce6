"""Modules that are pruned, normalised, wrapped or compiled are trained as in plain torch, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import anyk
from anyk.base.errors import BadInput

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
y = torch.randn(40, 1, generator=torch.Generator().manual_seed(1))


class LowRank(nn.Module):
    """A frozen layer with a trained change of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.ones(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.base(inputs) + inputs @ self.down.T @ self.up.T
        return outputs


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", (torch.arange(5) % 2).float())

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.mask


class Kept(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(inputs)
        return self.last


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))


def changed(change: Callable[[Any], Any]) -> Any:
    """Return the network after a change of its first layer and a forward pass."""
    module = network()
    change(module)
    module(X)
    return module


TRAINED: dict[str, Callable[[], Any]] = {
    "weight norm": lambda: changed(lambda module: parametrizations.weight_norm(module[0])),
    "orthogonal": lambda: changed(lambda module: parametrizations.orthogonal(module[0])),
    "mask": lambda: changed(lambda module: parametrize.register_parametrization(module[0], "weight", Masked())),
    "low rank": lambda: changed(lambda module: module.__setitem__(0, LowRank(module[0]))),
    "compiled": lambda: torch.compile(network(), backend="eager"),
}


@pytest.mark.slow
@pytest.mark.parametrize("made", TRAINED)
def test_wrapped_modules_are_trained_as_in_plain_torch(made: str) -> None:
    plain, module = TRAINED[made](), TRAINED[made]()
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    sgd = torch.optim.SGD(trained, lr=0.1)
    for _ in range(4):
        sgd.zero_grad()
        nn.functional.mse_loss(plain(X), y).backward()
        sgd.step()
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in trained])
    problem = anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))
    run = anyk.train(problem, "uncoded", anyk.clusters.Simulated(2), optimizer=anyk.optimizers.GD(lr=0.1), steps=4)
    torch.testing.assert_close(torch.from_numpy(run.model), expected, atol=1e-5, rtol=0.0)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    steps = torch.optim.SGD(parameters, lr=0.1)
    for _ in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=4, into=module):
        steps.step()
    torch.testing.assert_close(
        torch.cat([each.detach().reshape(-1) for each in parameters]), expected, atol=1e-5, rtol=0.0
    )


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pruned": (lambda module: prune.l1_unstructured(module[0], "weight", 0.5), r"'0.weight' .*prune.remove"),
    "older weight norm": (
        lambda module: nn.utils.weight_norm(module[0]),
        r"'0.weight' .*torch.nn.utils.parametrizations",
    ),
    "stored": (lambda module: module.__setitem__(0, Kept(5, 4)), r"'0.last' of the module is computed .*\.detach\(\)"),
    "spectral norm": (lambda module: parametrizations.spectral_norm(module[0]), r"buffer '0.*_u'"),
}


@pytest.mark.parametrize("made", REFUSED)
def test_modules_that_cannot_be_copied_are_refused_by_name(made: str) -> None:
    change, words = REFUSED[made]
    with warnings.catch_warnings(action="ignore"):  # torch's own, of what is deprecated
        module = changed(change)
    with pytest.raises(BadInput, match=words):
        anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))


def test_pruning_made_permanent_is_trained() -> None:
    def pruned(module: Any) -> None:
        prune.l1_unstructured(module[0], "weight", 0.5)
        prune.remove(module[0], "weight")

    assert anyk.problems.TorchProblem(changed(pruned), nn.MSELoss(), (X, y)).dimension == 29
