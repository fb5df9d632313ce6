"""Modules whose parts do not all train: frozen batch norm, parts in evaluation mode, gradients inside the forward."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anyk
from anyk.clusters.messages import Messages
from anyk.problems.replicas import SINGLE, Mark, Trial, marks_apart, model_like
from anyk.problems.torch import module_partitions, network
from anyk.protocol import Chunk
from mapped_memory import resident_at

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
y = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))


class FrozenNorm(nn.Module):
    """A batch norm that a ``train`` method keeps in evaluation mode, as for fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layer, self.drop = nn.BatchNorm1d(6), nn.Linear(6, 2), nn.Dropout(0.5)
        with torch.no_grad():
            self.norm.running_mean.fill_(2.0)
            self.norm.running_var.fill_(9.0)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.norm(x))


def of_parts(*evaluated: int, momentum: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Dropout(0.5), nn.Linear(8, 2))
    with torch.no_grad():
        module[1].running_mean.fill_(0.3)
    for index in evaluated:
        module[index].eval()
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "train override": FrozenNorm,
    "eval of a part": lambda: of_parts(1, 2),
    "no momentum": lambda: of_parts(2, momentum=0.0),
}


@pytest.mark.parametrize("made", MODULES)
@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1"])
def test_statistics_that_do_not_move_stay_everywhere(made: str, strategy: str) -> None:
    module = MODULES[made]()
    plain = copy.deepcopy(module)
    if made == "train override":
        plain.train()
    norms = [layer for layer in plain.modules() if isinstance(layer, nn.BatchNorm1d)]
    statistics = [norm.running_mean.clone() for norm in norms]
    problem = anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    optimizer = anyk.optimizers.GD(lr=0.1)
    # one partition, as a batch norm of momentum 0 still normalises with its batch
    workers = 2 if made != "no momentum" else 1
    strategy = strategy if workers > 1 else "uncoded"
    run = anyk.train(problem, strategy, anyk.clusters.Simulated(workers), optimizer=optimizer, steps=4)
    for _ in range(4):
        sgd.zero_grad()
        nn.functional.mse_loss(plain(X), y).backward()
        sgd.step()
    trained = problem.module_at(run.model)
    for one, other in zip(trained.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    found = [layer.running_mean for layer in trained.modules() if isinstance(layer, nn.BatchNorm1d)]
    assert all(map(torch.equal, found, statistics))
    expected = nn.functional.mse_loss(plain.eval()(X), y)
    assert run.loss == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.slow
def test_parts_in_evaluation_mode_stay_in_it_on_processes() -> None:
    problem = anyk.problems.TorchProblem(of_parts(1, 2), nn.MSELoss(), (X, y))
    settings: dict[str, Any] = {"optimizer": anyk.optimizers.GD(lr=0.1), "steps": 3}
    models = [
        torch.tensor(anyk.train(problem, "frc:stragglers=1", cluster(2), **settings).model)
        for cluster in (anyk.clusters.Simulated, anyk.clusters.Processes)
    ]
    assert torch.equal(*models)


def test_a_loop_leaves_the_modes_and_statistics_of_its_module() -> None:
    module = of_parts(1, 2)
    modes, mean = [layer.training for layer in module.modules()], module[1].running_mean.clone()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    problem = anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))
    for _ in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=3, into=module):
        sgd.step()
        module.state_dict()
    assert [layer.training for layer in module.modules()] == modes and torch.equal(module[1].running_mean, mean)


def test_a_module_in_evaluation_mode_as_a_whole_is_trained() -> None:
    problem = anyk.problems.TorchProblem(of_parts().eval(), nn.MSELoss(), (X, y))
    assert problem.split(2).least == 2  # its batch norm normalises with the batch
    run = anyk.train(problem, "uncoded", anyk.clusters.Simulated(2), optimizer=anyk.optimizers.GD(lr=0.1), steps=1)
    assert "was in evaluation mode as a whole, and is trained in training mode" in run.notes[0]["text"]


def test_a_train_method_that_freezes_parts_is_no_change() -> None:
    module = FrozenNorm()  # whose train() nobody has called yet
    problem = anyk.problems.TorchProblem(module, nn.MSELoss(), (X, y))
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=2, into=module):
        sgd.step()
        module.train()
    assert module.norm.running_mean.eq(2.0).all()


class Force(nn.Module):
    """The negative gradient of an energy, for which the forward pass differentiates."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


def test_a_module_that_differentiates_is_evaluated() -> None:
    module = Force()
    problem = anyk.problems.TorchProblem(module, nn.MSELoss(), (X, X), held_out=(X[:10], X[:10]))
    w = problem.initial()
    assert problem.loss(w) == pytest.approx(float(nn.functional.mse_loss(module(X), X).detach()), rel=1e-5)
    assert problem.metrics(w)["mse"] == pytest.approx(float(nn.functional.mse_loss(module(X[:10]), X[:10]).detach()))


class Varied(nn.Module):
    """A parameter that is used twice, sparse gradients, one memory for two gradients, dropout, and an unused part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer, self.unused = nn.Embedding(9, 6, sparse=True), nn.Linear(6, 6), nn.Linear(3, 3)
        self.one, self.other = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(36))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layer(self.drop(self.layer(self.words(x))))
        return found @ (self.one + self.other.view(6, 6))


class Checkpointed(nn.Module):
    """Layers in a reentrant checkpoint, which demands ``backward()``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.first, x.requires_grad_(), use_reentrant=True))


WORDS, NUMBERS = (torch.randint(0, 9, (40,)), torch.randint(0, 6, (40,))), (torch.randn(40, 6), torch.randn(40, 6))
LARGE_MODULES: dict[str, tuple[Any, ...]] = {
    "varied": (Varied, nn.CrossEntropyLoss(), WORDS, {}),
    "varied, several batches": (Varied, nn.CrossEntropyLoss(), WORDS, {"microbatch": 3}),
    "varied, bf16": (Varied, nn.CrossEntropyLoss(), WORDS, {"precision": "bf16"}),
    "varied, weighted": (Varied, nn.CrossEntropyLoss(), WORDS, {"weights": np.arange(40.0)}),
    "checkpointed": (Checkpointed, nn.MSELoss(), NUMBERS, {}),
}
CHUNKS = [
    Chunk((0, 1), (1.0, 1.0)),
    Chunk((1, 2, 4), (1.0, -0.5, 0.3)),
    Chunk((3, 1), (-1.5, 2.0), batch=5),
    Chunk((2, 3), (1.0, 1.0), batch=1),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_MODULES)
def test_gradients_passed_on_in_pieces_have_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def messages_of() -> list[bytes]:
        torch.manual_seed(0)
        make, loss, data, more = LARGE_MODULES[name]
        problem = anyk.problems.TorchProblem(make(), loss, data, **more)
        partitions = problem.split(5)
        messages, w = Messages(partitions, seed=3), problem.initial()
        written = []
        for chunk in CHUNKS:
            marks: list[Mark] = []
            out = np.full(problem.dimension, np.nan, w.dtype)
            messages.encode(chunk, w, out, version=4, compared=1, seen=marks.append)
            written.append(out.tobytes())
            gradient = messages.partial_gradient(1, w, chunk, 4)
            for mark in marks:
                assert marks_apart(mark.number, Mark.of(gradient).number) < SINGLE
            assert len(marks) == (1 in chunk.partitions)
        return written

    whole = messages_of()
    for place in (network, module_partitions):
        monkeypatch.setattr(place, "LARGE", 0)
    monkeypatch.setattr(module_partitions, "_PART", 10)
    pieces: list[int] = []
    add = Messages.add

    def note(self: Messages, out: Any, ids: Any, item: int, coefficient: Any, gradient: Any, first: int = 0) -> None:
        pieces.append(gradient.size)
        add(self, out, ids, item, coefficient, gradient, first)

    monkeypatch.setattr(Messages, "add", note)
    assert messages_of() == whole
    assert (max(pieces) < 40) == ("several" not in name)


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells the memory of mappings")
def test_the_trial_model_of_large_modules_takes_a_quarter() -> None:
    scales = [(100, 0.0, 1.0), (3_000_000, 5.0, 1.0), (7, 0.0, 1.0)]
    w = model_like(scales, np.dtype(np.float32), sparse=True)
    large = w[100:-7]
    assert large.sum() > 0.0, "zeros are read"
    assert w.nbytes / 4 < resident_at(w.ctypes.data) < w.nbytes / 3
    assert 0.2 < np.count_nonzero(large) / large.size < 0.3 and np.count_nonzero(w[:100]) == 100
    assert abs(large[large != 0].mean() - 5.0) < 0.1
    assert (w == model_like(scales, np.dtype(np.float32), sparse=True)).all()


class Normalised(nn.Module):
    """Weights whose rows have norm 1, which rows of zeros have not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.utils.parametrizations.weight_norm(nn.Linear(6, width)), nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.layer(x)))


@pytest.mark.parametrize("made", [lambda: Normalised(9000), lambda: nn.Sequential(nn.Linear(6, 9000), nn.Tanh(),
                                                                               nn.Linear(9000, 2))])  # fmt: skip
def test_large_modules_are_compared_at_a_model_with_a_gradient(
    made: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_partitions, "_SPARSE", 10)
    problem = anyk.problems.TorchProblem(made(), nn.MSELoss(), (X, y))
    partitions = problem.split(2)
    trial = Trial.of(partitions._tried, partitions.rounding(), replicas=True)
    assert trial is not None and np.isfinite(trial.sketch).all() and trial.sketch.all()
    trial.check(partitions._tried, dict)
    other = anyk.problems.TorchProblem(made(), nn.MSELoss(), (X, y * 1.1)).split(2)
    with pytest.raises(anyk.BadInput, match="apart from the driver's"):
        trial.check(other._tried, dict)
