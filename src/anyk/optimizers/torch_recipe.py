"""How an optimiser of PyTorch is made anew: from its class and arguments, or from the groups of a user's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.errors import BadInput
from anyk.optimizers.steps import State
from anyk.optimizers.torch_groups import Groups, TorchGroups, take_state, values_beside

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TorchRecipe:
    """Makes optimisers of a class with the same arguments, or like that of the ``groups``, without state."""

    name: str  # for sentences
    kind: Any
    arguments: Mapping[str, Any]
    groups: TorchGroups | None

    def make(self, parameters: Sequence[torch.Tensor], lr: float, places: Sequence[int] | None = None) -> Any:
        """Return an optimiser of these parameters: those at ``places``, or all."""
        if self.groups is not None:
            return self.groups.over(parameters, places)
        return self.kind(parameters, lr=lr, **self.arguments)

    def make_with(self, parameters: Sequence[torch.Tensor], groups: Groups, places: Sequence[int] | None = None) -> Any:
        """Return an optimiser of these parameters whose groups have these hyperparameters."""
        optimizer = self.make(parameters, groups[0]["lr"], places)
        update_groups(optimizer.param_groups, groups)
        return optimizer

    def small(self, lr: float) -> Any:
        """Return an optimiser of a tiny model, with the same hyperparameters, for a scheduler to change."""
        import torch

        if self.groups is not None:
            return self.groups.over([torch.zeros(1) for _ in self.groups.placed])
        return self.make([torch.zeros(2, 2)], lr)

    def state_vectors(self, shapes: Sequence[tuple[int, ...]], lr: float) -> Collection[str]:
        """Step a tiny model; return the names of the vectors in a parameter's state.

        Raises :class:`~anyk.BadInput` if the optimiser cannot be made or cannot step, or keeps more than the states of
        its parameters.
        """
        import torch

        parameters = _tiny(shapes)
        try:
            optimizer = self.make(parameters, lr)
            before = values_beside(optimizer)
            optimizer.step()
        except Exception as error:
            device = "; it steps on the driver's CPU, whatever the problem's device" * ("cuda" in str(error).lower())
            raise BadInput(f"the torch optimiser {self.name} cannot be used like this: {error}{device}") from None
        names = (key.partition(".")[2] for key in take_state(optimizer, parameters))
        vectors = {name for name in names if ":" not in name}
        changed = [key[1] for key, value in values_beside(optimizer).items() if before.get(key) != value]
        changed += [str(key) for key in optimizer.state if not isinstance(key, torch.Tensor)]
        if changed:
            raise BadInput(
                f"the torch optimiser {self.name} keeps {', '.join(changed)} beside the states of its parameters, "
                "where it would be lost from step to step; use anyk.rounds with it"
            )
        return vectors

    def unfilled_state(
        self, dtype: torch.dtype, groups: Groups, lengths: Mapping[int, int], shapes: Sequence[tuple[int, ...]] | None
    ) -> State:
        """Return the state of parameters after a first step of a tiny model, with uninitialised vectors.

        ``lengths``: the number of coordinates of each parameter that lie in the slice. ``shapes``: of all parameters;
        the vectors of a parameter that lies in it as a whole have its shape.
        """
        if not lengths:
            return {}
        parameters = list(lengths)
        sliced: list[tuple[int, ...]] = [(length,) for length in lengths.values()]
        if shapes is not None:
            whole = [shapes[parameter] for parameter in parameters]
            sliced = [shape if prod(shape) == size else (size,) for shape, (size,) in zip(whole, sliced, strict=True)]
        small = _tiny(sliced, dtype)
        optimizer = self.make_with(small, groups, parameters)
        optimizer.step()
        state: State = {}
        for key, array in take_state(optimizer, small).items():
            number, _, name = key.partition(".")
            unfilled = array if ":" in name else np.empty(sliced[int(number)], dtype=array.dtype)
            state[f"{parameters[int(number)]}.{name}"] = unfilled
        return state


def update_groups(groups: Groups, values: Groups) -> None:
    """Set hyperparameters, group by group."""
    for group, new in zip(groups, values, strict=True):
        group.update(new)


def _tiny(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Return parameters of zeros, with gradients of zeros, of lengths of at most 2."""
    import torch

    parameters = [torch.zeros([min(size, 2) for size in shape], dtype=dtype) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    return parameters
