"""Initial parameters of large modules: in a file they are the same numbers, and take no memory between uses."""

from __future__ import annotations

import copy
import sys
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.clusters.remote.shipping import ship, unship
from anyk.problems.torch import waiting_parameters
from anyk.problems.torch.network import trainable_parameters
from mapped_memory import resident_at

X = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
y = torch.randn(40, 200, generator=torch.Generator().manual_seed(1))


class Tied(nn.Module):
    """Shared, frozen, scalar and empty parameters, one that is not contiguous, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.frozen = nn.Linear(300, 200), nn.Linear(300, 200), nn.Linear(200, 200)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.scalar, self.empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.zeros(0))
        self.turned = nn.Parameter(torch.randn(200, 3).t())
        self.register_buffer("added", torch.ones(200))

    def forward(self, x: torch.Tensor) -> Any:
        out = self.first(x) + self.scalar * self.second(x) + self.turned.sum(0) + self.empty.sum()
        return self.frozen(out + self.added)


def made(module: nn.Module) -> Any:
    return anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))


def resident(problem: Any) -> int:
    """Return the bytes of memory in which the problem's file is."""
    return resident_at(problem._network.module.first.weight.data_ptr(), of="(deleted)")


@pytest.fixture
def in_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_parameters, "LARGE", 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells the memory of mappings")
@pytest.mark.usefixtures("in_file")
def test_parameters_of_large_modules_take_no_memory_between_uses() -> None:
    problem = made(Tied())
    assert resident(problem) == 0
    w = problem.initial()
    problem.split(4)
    run = anyk.train(problem, "uncoded", "simulated", workers=4, lr=0.01, steps=3)
    problem.loss(run.model)
    assert resident(problem) == 0 and w.nbytes > 200_000
    assert sum(float(parameter.detach().sum()) for parameter in trainable_parameters(problem._network.module))
    assert resident(problem) > 0  # the file is what was read


@pytest.mark.slow
@pytest.mark.parametrize("room", [True, False])
def test_parameters_in_a_file_have_the_same_bits(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Tied()
    before = copy.deepcopy(module)
    models = []
    for large in (1 << 40, 1):
        monkeypatch.setattr(waiting_parameters, "LARGE", large)
        if not room:
            monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: (_ for _ in ()).throw(OSError(28, "no space")))
        problem = made(module)
        with torch.no_grad():
            module.first.weight.zero_()  # the problem has a copy
        copies = [problem, copy.deepcopy(problem), copy.copy(problem), unship([bytes(b) for b in ship(problem)])]  # type: ignore[misc]
        for one in copies:
            names = {name: parameter.clone() for name, parameter in before.named_parameters()}
            assert all(torch.equal(own, names[name]) for name, own in one._network.module.named_parameters())
        vectors = [one.initial() for one in copies]
        assert all(np.array_equal(vectors[0], other) for other in vectors)
        module.load_state_dict(before.state_dict())
        models.append(anyk.train(problem, "frc:load=2", "simulated", workers=4, lr=0.01, steps=3).model)
        loaded = made(Tied())
        loaded.load_state_dict({name: tensor + 1 for name, tensor in before.state_dict().items()})
        assert np.array_equal(loaded.initial(), vectors[0] + np.float32(1))
    assert models[0].tobytes() == models[1].tobytes()
