"""Models of PyTorch in files that others read, and states from elsewhere to begin with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

import anyk
from anyk.base.errors import BadInput
from anyk.problems import TorchProblem


class Tied(nn.Module):
    """Batch norm, a frozen layer and a weight that two layers share."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.frozen(self.norm(self.first(x))))


def made(seed=0):
    torch.manual_seed(seed)
    X = torch.randn(24, 4)
    module = Tied()
    return TorchProblem(module, nn.CrossEntropyLoss(), (X, X.argmax(dim=1)), held_out=(X, X.argmax(dim=1))), module, X


def trained(problem, **options):
    optimizer = anyk.optimizers.Adam(lr=0.05)
    return anyk.train(problem, "uncoded", anyk.clusters.Simulated(3), optimizer=optimizer, steps=6, **options)


@pytest.mark.slow
def test_a_run_folder_has_the_model_as_others_read_it(tmp_path):
    problem, _, X = made()
    run = trained(problem, out=tmp_path / "run")
    restored, read = problem.module_at(run.model), Tied()
    load_model(read, tmp_path / "run" / "model.safetensors")
    assert torch.equal(read.eval()(X), restored(X)) and read.second.weight is read.first.weight
    names = set(load_file(tmp_path / "run" / "model.safetensors"))
    assert names | {"second.weight", "first.weight"} == set(restored.state_dict())
    run.close()
    assert anyk.verify(tmp_path / "run").whole
    resumed = anyk.resume(tmp_path / "run", problem=problem, steps=9)
    load_model(read, tmp_path / "run" / "model.safetensors")
    assert torch.equal(read(X), problem.module_at(resumed.model)(X))
    resumed.close()
    assert not list((tmp_path / "run").glob("*.part"))


@pytest.mark.slow
def test_a_problem_begins_with_a_state_from_elsewhere(tmp_path):
    problem, _, _ = made()
    run = trained(problem, out=tmp_path / "run")
    restored = problem.module_at(run.model)
    same = made()[0]
    same.load_state_dict(run)
    for source in (run, tmp_path / "run", str(tmp_path / "run" / "model.safetensors"), restored.state_dict()):
        other, module, _ = made(seed=1)
        before = other.initial()
        other.load_state_dict(source)
        assert np.array_equal(other.initial(), run.model) and not np.array_equal(before, run.model)
        assert torch.equal(
            module.first.weight.reshape(-1), torch.from_numpy(before[:16])
        )  # the user's own is left alone
    other.load_state_dict(restored.state_dict())  # frozen layers come with it
    assert torch.equal(other.module_at(other.initial()).frozen.weight, restored.frozen.weight)
    gradients = [sum(one.split(2).partial_gradient(j, run.model) for j in (0, 1)) for one in (problem, same)]
    assert np.array_equal(*gradients)


def test_states_that_do_not_fit_are_refused(tmp_path):
    problem, _, X = made()
    small = TorchProblem(nn.Linear(4, 4), nn.CrossEntropyLoss(), (X, X.argmax(dim=1)))
    bad = {name: value * float("nan") for name, value in Tied().state_dict().items()}
    (tmp_path / "broken.safetensors").write_bytes(b"nothing of the kind")
    for source, sentence in (
        (tmp_path, r"there is no '.*model.safetensors'; give a run folder, a safetensors file"),
        (
            tmp_path / "broken.safetensors",
            r"broken.safetensors' is not a safetensors file .* give torch.load\(file, weights",
        ),
        (nn.Linear(4, 4).state_dict(), "the state does not fit the problem's module .*first.weight"),
        (bad, "holds parameters that are not finite"),
        (3, r"a state is a run, its folder, a safetensors file or a state_dict\(\), got int"),
        (trained(small), "the run's model has 20 parameters, the problem's module 32"),
    ):
        with pytest.raises(BadInput, match=sentence):
            problem.load_state_dict(source)
    with pytest.raises(BadInput, match=r"a model is a vector of 32 numbers \(run.model\), got shape \(3,\)"):
        problem.module_at(np.zeros(3))
