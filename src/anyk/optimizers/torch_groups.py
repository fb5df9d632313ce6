"""Parameter groups of PyTorch's optimisers, over the parameters of a problem."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anyk.errors import BadInput

if TYPE_CHECKING:
    import torch


Groups = Sequence[dict[str, Any]]  # the hyperparameters of each group


class TorchGroups:
    """The parameter groups of an optimiser, and the places of their parameters in a problem."""

    def __init__(self, given: torch.optim.Optimizer) -> None:
        self.given = given
        own = [parameter for group in given.param_groups for parameter in group["params"]]
        self._values: list[dict[str, Any]] = []
        self._places: list[list[int]] = []
        for group in given.param_groups:
            values = copy.deepcopy(hyperparameters(group))
            if "lr" not in values:
                raise BadInput(f"the torch optimiser {type(given).__name__} has no learning rate, lr")
            self._values.append(values | {"lr": float(values["lr"])})
            first = sum(map(len, self._places))
            self._places.append(list(range(first, first + len(group["params"]))))
        self.placed: list[Any] = own  # the optimiser's parameters in the problem's order, None if it lacks one
        self.shapes = [ranked(parameter.shape) for parameter in own]

    @property
    def lr(self) -> float:
        """The largest learning rate."""
        return float(max(values["lr"] for values in self._values))

    def among(self, problem: Any) -> TorchGroups:
        """Return the same groups, with the problem's places."""
        places_of = getattr(problem, "places_of", None)
        if places_of is None:
            name = type(self.given).__name__
            raise BadInput(
                f"an optimiser with parameters of its own ({name}) goes with a TorchProblem of the same module; for "
                f"{type(problem).__name__} give its name: TorchOptimizer('{name}')"
            )
        groups = copy.copy(self)
        groups.placed = [None] * len(problem.shapes)
        groups._places = []
        for group in self.given.param_groups:
            places = places_of(group["params"])  # None for one that is frozen
            groups._places.append([place for place in places if place is not None])
            for place, parameter in zip(places, group["params"], strict=True):
                if place is not None:
                    groups.placed[place] = parameter
        if not any(groups._places):
            raise BadInput("all parameters of the optimiser are frozen (requires_grad=False): nothing would be trained")
        return groups

    def over(self, parameters: Sequence[torch.Tensor], places: Sequence[int] | None = None) -> Any:
        """Return an optimiser like the given one, without state, of these parameters: at ``places``, or all."""
        at = dict(zip(range(len(parameters)) if places is None else places, parameters, strict=True))
        optimizer = object.__new__(type(self.given))
        own = {name: value for name, value in vars(self.given).items() if name != "step"}  # which schedulers wrap
        optimizer.__dict__ |= own | {
            "state": defaultdict(dict),
            "param_groups": [
                values | {"params": [at[place] for place in own if place in at]}
                for values, own in zip(self._values, self._places, strict=True)
            ],
        }
        return optimizer


def hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a parameter group."""
    return {name: value for name, value in group.items() if name != "params"}


def ranked(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a parameter's shape, (1,) for a scalar, as its states would look like counts of steps."""
    return tuple(shape) or (1,)
