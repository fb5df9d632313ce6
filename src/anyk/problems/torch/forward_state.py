"""Refusal of state that a PyTorch module changes in its forward pass, as workers would drop it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.errors import BadInput
from anyk.plain import ByName
from anyk.problems.data.sample_batches import Batch
from anyk.problems.torch.generators import seeded_generators
from anyk.problems.torch.module_partitions import norms_of
from anyk.problems.torch.network import Network

if TYPE_CHECKING:
    import torch

State = dict[str, list[Any]]  # tensors and numbers by the name of the buffer or attribute that contains them


def check_forward(network: Network, batches: Sequence[Batch]) -> None:
    """Refuse parameters, buffers and attributes whose value after a forward pass depends on earlier passes.

    The exception is the running statistics of batch norm, which are computed anew to evaluate. A pass may set values
    that do not depend on the past, such as its activations or a table that all batches share. ``batches``: one, or two
    of the same shapes; the second shows state that only the first pass ever sets. The run reports passes that fail.
    Changes that happen only now and then, or outside of modules, are not found here.
    """
    try:
        first, second, *third = _states_after(network, [batches[0], *batches])
        pairs = [(first, second), *zip(_states_after(network, batches[1:]), third, strict=True)]
    except BadInput:
        raise
    except Exception:
        return
    for one, other in pairs:
        for name, values in other.items():
            before = one.get(name, [])
            if len(before) != len(values) or any(map(_differ, before, values)):
                raise _refusal(name)


def _refusal(name: str) -> BadInput:
    return BadInput(
        f"the forward pass changes {name}, whose value then depends on earlier passes; workers drop such changes, "
        "except the running statistics of batch norm, so give a module that does without them"
    )


def _states_after(network: Network, batches: Sequence[Batch]) -> list[State]:
    """Return the state of one copy of the network after each of several passes in training.

    Its trained parameters are first moved a little, since a moving average may start where they are. Raises
    :class:`~anyk.errors.BadInput` if a pass changes a parameter.
    """
    import torch

    def moved(parameter: torch.Tensor) -> torch.Tensor:
        return parameter.detach() * 1.03 + 0.03 if parameter.requires_grad else parameter.detach()

    own = copy.deepcopy(network)
    own.device = "cpu"
    own.module.train()
    for parameter in own.module.parameters():
        if parameter.requires_grad:
            parameter.data = moved(parameter)
    states = []
    for batch in batches:
        with seeded_generators(0, torch.device("cpu")):
            own.loss_of(batch)
        states.append(_state_of(own))
    for (place, before), (_, after) in zip(_roots(network), _roots(own), strict=True):
        parameters = dict(after.named_parameters())
        for name, parameter in before.named_parameters():
            if name in parameters and _differ(moved(parameter), parameters[name].detach()):
                raise _refusal(f"parameter '{name}'{place}")
    return states


def _roots(network: Network) -> list[tuple[str, torch.nn.Module]]:
    """Return the module and, if it is a module too, the loss, with a suffix for the names of their parts."""
    import torch

    loss = [(" of the loss", network.loss)] if isinstance(network.loss, torch.nn.Module) else []
    return [("", network.module), *loss]


def _state_of(network: Network) -> State:
    """Return copies of all buffers and attributes, without the running statistics of batch norm."""
    import torch
    from torch.utils import _pytree as pytree

    buffers: ByName = {}
    attributes: ByName = {}
    internal = vars(torch.nn.Module())
    for place, root in _roots(network):
        norms = norms_of(root)
        for path, part in root.named_modules():
            name = f"{path}.{{}}'{place}" if path else f"{{}}'{place}"
            if part not in norms:
                buffers |= {f"buffer '{name.format(key)}": value for key, value in part._buffers.items()}
            own = {key: value for key, value in vars(part).items() if key not in internal}
            attributes |= {f"attribute '{name.format(key)}": value for key, value in own.items()}
    if not isinstance(network.loss, torch.nn.Module):
        own = getattr(network.loss, "__dict__", {})
        attributes |= {f"attribute '{key}' of the loss": value for key, value in own.items()}
    kinds = (torch.Tensor, np.ndarray, np.generic, bool, int, float, complex)
    return {
        name: [
            leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf)
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, kinds)
        ]
        for name, value in (buffers | attributes).items()
    }


def _differ(one: Any, other: Any) -> bool:
    """Return whether two tensors, arrays or numbers differ by more than rounding does."""
    import torch

    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return not np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind in "fc")
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    if not one.is_floating_point():
        return not torch.equal(one, other)
    size = float(
        torch.cat([one.reshape(-1), other.reshape(-1), one.new_zeros(1)]).nan_to_num(0.0, 0.0, 0.0).abs().max()
    )
    return not torch.allclose(one, other, rtol=0.0, atol=4 * torch.finfo(one.dtype).eps * size, equal_nan=True)
