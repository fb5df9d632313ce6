"""Optimisers of PyTorch are made anew from a class and its arguments, or from the groups of a user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyk.base.errors import BadInput
from anyk.optimizers.torch_groups import TorchGroups, hyperparameters, take_state
from anyk.optimizers.torch_recipe import TorchRecipe


def recipe(name: str, **arguments: Any) -> TorchRecipe:
    return TorchRecipe(f"'{name}'", getattr(torch.optim, name), arguments, None)


@pytest.mark.parametrize(
    ("tried", "vectors"),
    [
        (recipe("SGD"), set()),
        (recipe("SGD", momentum=0.9), {"momentum_buffer"}),
        (recipe("AdamW", amsgrad=True), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    ],
)
def test_a_tiny_step_shows_the_vectors_of_a_state(tried: TorchRecipe, vectors: set[str]) -> None:
    assert tried.state_vectors([(3, 4), (5,)], 0.1) == vectors


def test_arguments_that_the_class_refuses_are_named() -> None:
    with pytest.raises(BadInput, match=r"^the torch optimiser 'SGD' cannot be used like this: .*speed"):
        recipe("SGD", speed=3).state_vectors([(2,)], 0.1)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adadelta", "ASGD", "NAdam", "Rprop"])
def test_an_unfilled_state_has_the_form_of_a_first_steps(name: str) -> None:
    maker = recipe(name, momentum=0.9) if name == "SGD" else recipe(name)
    shapes = [(3, 4), (5,), (2,)]
    parameters = [torch.ones(shape, dtype=torch.float64) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = maker.make(parameters, 0.1)
    optimizer.step()
    stepped = {key: (array.shape, array.dtype) for key, array in take_state(optimizer, parameters).items()}
    groups = list(map(hyperparameters, maker.small(0.1).param_groups))
    lengths = {j: parameter.numel() for j, parameter in enumerate(parameters)}
    unfilled = maker.unfilled_state(dtype=torch.float64, groups=groups, lengths=lengths, shapes=shapes)
    assert {key: (array.shape, array.dtype) for key, array in unfilled.items()} == stepped


def test_a_part_of_a_parameter_has_a_flat_state() -> None:
    maker = recipe("Adam")
    groups = list(map(hyperparameters, maker.small(0.1).param_groups))
    state = maker.unfilled_state(dtype=torch.float32, groups=groups, lengths={1: 7}, shapes=[(2,), (3, 4)])
    assert state["1.exp_avg"].shape == (7,) and not any(key.startswith("0.") for key in state)


def test_an_optimiser_of_groups_keeps_each_groups_numbers() -> None:
    parameters = [torch.zeros(2), torch.zeros(3), torch.zeros(4)]
    given = torch.optim.SGD(
        [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:], "momentum": 0.9}], lr=0.1
    )
    maker = TorchRecipe("SGD", torch.optim.SGD, {}, TorchGroups(given))
    others = [torch.zeros(4), torch.zeros(2)]
    groups = maker.make(others, 7.0, [2, 0]).param_groups  # the rate is that of the groups
    assert [(group["lr"], group["momentum"], len(group["params"])) for group in groups] == [(0.5, 0, 1), (0.1, 0.9, 1)]
    assert groups[0]["params"][0] is others[1]
