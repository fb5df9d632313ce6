"""States of PyTorch's optimisers, as arrays that a checkpoint can store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.errors import BadInput
from anyk.optimizers.steps import State

if TYPE_CHECKING:
    import torch

_PLAIN: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float}


def values_beside(optimizer: Any) -> dict[tuple[str, str], str]:
    """Return an optimiser's values outside its parameters' states, by place and name, as text that can be compared."""
    values = {("self", name): value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")}
    for group in optimizer.param_groups:
        values |= {("group", name): value for name, value in group.items() if name != "params"}
    return {key: repr(value) for key, value in values.items() if not key[1].startswith("_")}


def give_state(optimizer: Any, parameters: Sequence[torch.Tensor], state: State) -> None:
    """Set an optimiser's state, in the arrays' own memory."""
    import torch

    for key, array in state.items():
        place, _, name = key.partition(".")
        name, _, kind = name.partition(":")
        own = optimizer.state[parameters[int(place)]]
        if kind in _PLAIN:
            own[name] = _PLAIN[kind](array[0])
        else:
            own[name] = torch.from_numpy(array).view(()) if kind == "number" else torch.from_numpy(array)


def take_state(optimizer: Any, parameters: Sequence[torch.Tensor]) -> State:
    """Return an optimiser's state as arrays, by number of the parameter, name and, if it is no array, kind."""
    import torch

    state: State = {}
    for place, parameter in enumerate(parameters):
        for name, value in optimizer.state.get(parameter, {}).items():
            key = f"{place}.{name}"
            if not str(name).isidentifier():
                raise BadInput(f"a checkpoint cannot keep the state '{name}' of {type(optimizer).__name__}: rename it")
            if isinstance(value, torch.Tensor) and value.dtype not in (torch.bfloat16, torch.float16):
                array = value.detach().cpu().numpy()
                state[key if array.ndim else f"{key}:number"] = array if array.ndim else array.reshape(1)
            elif type(value).__name__ in _PLAIN:
                state[f"{key}:{type(value).__name__}"] = np.array([value])
            elif value is not None:
                raise BadInput(
                    f"the state '{name}' of {type(optimizer).__name__} is {type(value).__name__}, which a checkpoint "
                    "cannot keep; use another optimiser"
                )
    return state
