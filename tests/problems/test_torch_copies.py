"""What a PyTorch module is must not be lost by computing with copies of it; plain torch is the oracle."""

import copy

import numpy as np
import pytest

import anyk
from anyk.clusters import Simulated
from anyk.optimizers import TorchOptimizer
from anyk.problems import TorchProblem

torch = pytest.importorskip("torch")
nn = torch.nn

torch.manual_seed(0)
X, Y = torch.randn(40, 5), torch.randint(0, 3, (40,))
CROSS_ENTROPY = nn.CrossEntropyLoss()


class Frozen(nn.Module):
    """A batch norm with statistics of its own, which training does not renew."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.l, self.bn, self.h = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.bn.running_mean.fill_(2.0)
        self.bn.running_var.fill_(9.0)
        if how == "momentum":
            self.bn.momentum = 0.0

    def train(self, mode=True):
        super().train(mode)
        if self.how == "train":
            self.bn.eval()
        return self

    def forward(self, x):
        if self.how == "forward":
            self.bn.eval()
        return self.h(torch.relu(self.bn(self.l(x))))


def trained_plainly(module, steps=3, optimizer=torch.optim.SGD, loss=CROSS_ENTROPY, **options):
    options = options or {"lr": 0.5}
    steps_with = optimizer([p for p in module.parameters() if p.requires_grad], **options)
    for _ in range(steps):
        steps_with.zero_grad()
        loss(module(X), Y).backward()
        steps_with.step()
    return module


def trained_in_a_loop(module, optimizer, steps=3, strategy="uncoded", cluster=None):
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    for _ in anyk.rounds(problem, strategy, cluster or Simulated(workers=4), steps=steps, into=module):
        optimizer.step()
    return module


@pytest.mark.parametrize("how", ["train", "mode", "forward", "momentum"])
def test_frozen_batch_norms_keep_their_statistics(how):
    module = Frozen(how).train()
    if how == "mode":
        module.bn.eval()
    plain = trained_plainly(copy.deepcopy(module))
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y), held_out=(X, Y), metrics={"loss": CROSS_ENTROPY})
    workers = 1 if how == "momentum" else 4  # a batch norm in training mode normalises by partition
    run = anyk.train(problem, "uncoded", Simulated(workers), optimizer=TorchOptimizer("SGD", lr=0.5), steps=3)
    trained = problem.module_at(run.model)
    for name, tensor in plain.state_dict().items():
        if "num_batches" not in name:
            assert torch.allclose(trained.state_dict()[name], tensor, atol=1e-6), name
    modes = [part.training for part in module.modules()]
    expected = CROSS_ENTROPY(plain.eval()(X), Y).item()
    assert run.loss == pytest.approx(expected, abs=1e-6)
    assert run.metric["value"] == pytest.approx(expected, abs=1e-6)
    trained_in_a_loop(module, torch.optim.SGD(module.parameters(), lr=0.5), steps=1)
    assert module.bn.running_mean[0] == 2.0 and module.bn.running_var[0] == 9.0
    assert [part.training for part in module.modules()] == modes


@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1", "pasgd:tau=1"])
def test_parts_in_evaluation_mode_stay_in_it(strategy):
    module = nn.Sequential(nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)), nn.Linear(8, 3))
    module[0].requires_grad_(False).eval()
    plain = trained_plainly(copy.deepcopy(module))
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    run = anyk.train(problem, strategy, Simulated(4), optimizer=anyk.optimizers.GD(lr=0.5), steps=3)
    assert np.allclose(run.model[:24], plain[1].weight.detach().reshape(-1).numpy(), atol=1e-6)
    assert module.training and not module[0][1].training


def test_a_module_in_evaluation_mode_trains_with_dropout():
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    training = TorchProblem(copy.deepcopy(module).train(), CROSS_ENTROPY, (X, Y))
    gradients = [
        next(iter(anyk.rounds(each, "uncoded", Simulated(2), steps=1))).gradient for each in (problem, training)
    ]
    assert np.array_equal(*gradients)
    assert not module.training
