"""Optimisers and schedulers that a resumed loop would begin anew are named."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import anyk
from anyk.runs.kept_states import left_out

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(dim=1)


class Script:
    """A loop of a module with one optimiser and one scheduler, and what it said."""

    def __init__(self, schedule, *, make=None):
        torch.manual_seed(0)
        self.module = nn.Linear(4, 3)
        make = make or (lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9))
        self.optimizer = make(self.module.parameters())
        self.schedule = None if schedule is None else schedule(self.optimizer)
        self.problem = anyk.problems.TorchProblem(self.module, nn.CrossEntropyLoss(), (X, Y))
        self.cluster = anyk.clusters.Simulated(4, seed=1)

    def loop(self, steps, **options):
        """Step in a loop of one's own, and return the warnings."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in anyk.rounds(self.problem, "frc:load=2", self.cluster, steps=steps, into=self.module, **options):
                self.optimizer.step()
                if self.schedule is not None:
                    self.schedule.step()
        return [str(warning.message) for warning in said]

    def wrapped(self, steps, **options):
        """Step by anyk's wrapper, and return the warnings."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with anyk.torch.Optimizer(self.optimizer, self.problem, "frc:load=2", self.cluster, **options) as wrapper:
                for _ in range(steps):
                    wrapper.step()
                    self.schedule.step()
        return [str(warning.message) for warning in said]


def halving(optimizer):
    return lr_scheduler.StepLR(optimizer, 3, gamma=0.5)


class Plateau(lr_scheduler.ReduceLROnPlateau):
    def step(self):
        super().step(1.0)


def in_sequence(optimizer):
    parts = [lr_scheduler.ConstantLR(optimizer, factor=0.1), lr_scheduler.ExponentialLR(optimizer, gamma=0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


SCHEDULES = {"StepLR": halving, "Plateau": Plateau, "SequentialLR": in_sequence}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scheduler_that_is_not_kept_is_named(name, tmp_path):
    script = Script(SCHEDULES[name])
    (said,) = script.loop(2, out=tmp_path / "run", keep=[script.optimizer])
    assert name in said and "SGD" not in said and "keep" in said


@pytest.mark.slow
def test_a_wrapped_optimizers_scheduler_is_named(tmp_path):
    (said,) = Script(halving).wrapped(2, out=tmp_path / "run")
    assert "StepLR" in said and "SGD" not in said


@pytest.mark.slow
def test_an_optimizer_with_a_state_is_named(tmp_path):
    (said,) = Script(None).loop(2, out=tmp_path / "run")
    assert "SGD" in said


def test_an_optimizer_without_a_state_is_not_named(tmp_path):
    script = Script(None, make=lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    assert script.loop(2, out=tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_said_if_all_is_kept(name, tmp_path):
    script = Script(SCHEDULES[name])
    assert script.loop(2, out=tmp_path / "run", keep=[script.optimizer, script.schedule]) == []


def test_nothing_is_said_without_a_folder():
    assert Script(halving).loop(2) == []


@pytest.mark.slow
def test_a_resumed_loop_says_what_it_begins_anew(tmp_path):
    first, second = Script(halving), Script(halving)
    first.loop(2, out=tmp_path / "run", keep=[first.optimizer])
    (said,) = second.loop(4, out=tmp_path / "run", keep=[second.optimizer], go_on=True)
    assert "StepLR" in said


class Attributes:
    def __init__(self, optimizer, schedule):
        self.optimizer, self.schedule = optimizer, schedule


class Slots:
    __slots__ = ("optimizer", "schedule")
    __init__ = Attributes.__init__


class Nested:
    def __init__(self, optimizer, schedule):
        self.parts = {"first": [Slots(optimizer, schedule)]}


@pytest.mark.parametrize("holder", [Attributes, Slots, Nested])
def test_objects_of_ones_own_may_keep_what_they_hold(holder):
    script = Script(halving, make=torch.optim.Adam)
    script.loop(1)
    assert left_out([script.optimizer], []) == ["Adam", "StepLR"]
    assert left_out([script.optimizer], [holder(script.optimizer, script.schedule)]) == []


@pytest.mark.slow
def test_a_kept_scheduler_does_not_keep_its_optimizer():
    script = Script(halving, make=torch.optim.Adam)
    script.loop(1)
    assert left_out([script.optimizer], [script.schedule]) == ["Adam"]
    assert left_out([script.optimizer], [script.optimizer]) == ["StepLR"]


@pytest.mark.slow
def test_another_optimizers_scheduler_is_not_named(tmp_path):
    other = Script(halving)
    script = Script(None)
    assert script.loop(2, out=tmp_path / "run", keep=[script.optimizer]) == []
    assert other.schedule.optimizer is other.optimizer


@pytest.mark.slow
def test_objects_in_another_order_are_refused(tmp_path):
    first, second = Script(halving), Script(halving)
    first.loop(2, out=tmp_path / "run", keep=[first.optimizer, first.schedule])
    with pytest.raises(anyk.BadInput, match="of SGD, StepLR, in this order, keep has StepLR, SGD; give the same"):
        second.loop(4, out=tmp_path / "run", keep=[second.schedule, second.optimizer], go_on=True)


@pytest.mark.slow
def test_a_state_that_does_not_fit_is_refused(tmp_path):
    def in_groups(parameters):
        return torch.optim.SGD([{"params": [parameter]} for parameter in parameters], lr=0.5, momentum=0.9)

    first, second = Script(None), Script(None, make=in_groups)
    first.loop(2, out=tmp_path / "run", keep=[first.optimizer])
    with pytest.raises(anyk.BadInput, match="the SGD in keep cannot take the state that the run stores"):
        second.loop(4, out=tmp_path / "run", keep=[second.optimizer], go_on=True)
