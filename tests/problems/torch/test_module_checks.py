"""PyTorch modules whose forward pass changes them: state that later passes depend on is refused by name."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from anyk.base.errors import BadInput
from anyk.problems import TorchProblem


class Wrapped(nn.Module):
    """A linear layer as ``layer``, after which ``change(self, x)`` may do something to the module."""

    def __init__(self, change=lambda self, x: None, **state):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 3)
        self.change = change
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x):
        self.change(self, x)
        return self.layer(x)


def problem_of(module, loss=None):
    X = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
    return TorchProblem(module, loss or nn.CrossEntropyLoss(), (X, X[:, :3].argmax(dim=1)))


def count(self, x):
    self.calls += 1


def follow(self, x):
    """The target network of BYOL: a moving average of the trained one."""
    for target, trained in zip(self.target.parameters(), self.layer.parameters(), strict=True):
        target.data = 0.99 * target.data + 0.01 * trained.data


def quantise(self, x):
    """A codebook that moves to the inputs nearest to its entries."""
    nearest = torch.cdist(x, self.codebook).argmin(dim=1)
    self.codebook.index_copy_(0, nearest, 0.9 * self.codebook[nearest] + 0.1 * x)


def settle(self, x):
    """What the first batch determines, once and for all."""
    if not self.settled:
        self.scale, self.settled = x.std(dim=0), torch.tensor(True)


def overwrite(self, x):
    self.layer.weight.data = self.layer.weight.data.clamp(-0.01, 0.01)


def remember(self, x):
    self.memory.append(x.detach())


class Centred(nn.Module):
    """A loss with a running mean of outputs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, outputs, targets):
        with torch.no_grad():
            self.centre = 0.9 * self.centre + 0.1 * outputs.mean(dim=0)
        return nn.functional.cross_entropy(outputs - self.centre, targets)


TARGET = nn.Linear(5, 3).requires_grad_(False)
CARRIED = {
    "buffer 'layer.parametrizations.weight.0._u'": lambda: Wrapped(
        lambda self, x: None, layer=parametrizations.spectral_norm(nn.Linear(5, 3))
    ),
    "buffer 'layer.weight_u'": lambda: Wrapped(layer=nn.utils.spectral_norm(nn.Linear(5, 3))),
    "buffer 'codebook'": lambda: Wrapped(quantise, codebook=torch.eye(5)),
    "buffer 'calls'": lambda: Wrapped(count, calls=torch.tensor(0)),
    "attribute 'calls'": lambda: Wrapped(count, calls=0),
    "attribute 'memory'": lambda: Wrapped(remember, memory=[]),
    "buffer 'scale'": lambda: Wrapped(settle, scale=torch.ones(5), settled=torch.tensor(False)),
    "parameter 'target.weight'": lambda: Wrapped(follow, target=copy.deepcopy(TARGET)),
    "parameter 'layer.weight'": lambda: Wrapped(overwrite),
    "buffer '1.running_mean'": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(5, 3)
    ),
}


@pytest.mark.parametrize("name", CARRIED)
def test_state_that_depends_on_earlier_passes_is_refused_by_name(name):
    with pytest.raises(BadInput, match=f"^the forward pass changes {name},"), warnings.catch_warnings(action="ignore"):
        problem_of(CARRIED[name]())


def test_a_target_network_equal_at_the_start_is_refused():
    module = Wrapped(follow)
    module.target = copy.deepcopy(module.layer).requires_grad_(False)
    with pytest.raises(BadInput, match=r"changes parameter 'target\.weight'"):
        problem_of(module)


class Smoothed:
    """A loss that is no module, with a running mean of its own values."""

    def __init__(self):
        self.mean = 0.0

    def __call__(self, outputs, targets):
        loss = nn.functional.cross_entropy(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * loss.item()
        return loss / (1.0 + self.mean)


@pytest.mark.parametrize("loss, name", [(Centred(), "buffer 'centre'"), (Smoothed(), "attribute 'mean'")])
def test_state_of_the_loss_is_refused(loss, name):
    with pytest.raises(BadInput, match=f"^the forward pass changes {name} of the loss,"):
        problem_of(Wrapped(), loss)


def look_at(self, x):
    self.seen, self.length, self.sums = x.detach(), len(x), {"x": x.sum().item()}


def tabulate(self, x):
    if len(self.table) < x.shape[1]:
        self.table = torch.arange(x.shape[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Wrapped(look_at),  # written anew by each pass
        lambda: Wrapped(tabulate, table=torch.arange(0)),  # the same for all batches
        lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)),
        lambda: parametrizations.orthogonal(nn.Linear(5, 3)),
    ],
)
def test_values_that_do_not_depend_on_earlier_passes_are_allowed(make):
    with warnings.catch_warnings(action="ignore"):
        assert problem_of(make()).dimension


PASSES = {"count": 0}


class Meter:
    total = 0.0


def by_global(outputs, targets):
    PASSES["count"] += 1
    return nn.functional.cross_entropy(outputs, targets)


def by_class(outputs, targets):
    Meter.total += 1.0
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("loss", "name"), [(by_global, "variable 'PASSES' of module "), (by_class, "'total' of class Meter")]
)
def test_variables_that_each_pass_changes_are_refused(loss, name):
    with pytest.raises(
        BadInput, match=f"the forward pass changes .*{name}.*, whose value then depends on earlier passes"
    ):
        problem_of(Wrapped(), loss)


def test_state_in_objects_of_a_module_is_refused():
    def change(self, x):
        self.meter.total += 1.0

    with pytest.raises(BadInput, match="changes attribute 'total' of attribute 'meter' of the module"):
        problem_of(Wrapped(change, meter=Meter()))


def test_a_list_of_losses_is_allowed():
    losses = []

    def loss(outputs, targets):
        losses.append(nn.functional.cross_entropy(outputs, targets).item())
        return nn.functional.cross_entropy(outputs, targets)

    assert not problem_of(Wrapped(), loss).data_remarks and losses


def test_a_gradient_that_differs_each_time_is_noted():
    numbers = iter(range(10_000))

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) + 0.1 * next(numbers) * outputs.pow(2).mean()

    (remark,) = problem_of(Wrapped(), loss).data_remarks
    assert remark.startswith("module and loss give another gradient of the same samples each time")
