"""The user's module and loss, and whether they are still what they were when a problem was made of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.problems.given import ANEW
from anyk.problems.surroundings import Variables, variables_of
from anyk.problems.torch.module_partitions import TorchPartitions, as_initial, modes_of
from anyk.problems.torch.network import Network, kept_tensors
from anyk.problems.watch import Computing, compare_copies, other_numbers

if TYPE_CHECKING:
    import torch

_LISTED = 3  # names that a sentence lists at most


class GivenModule:
    """The ``module`` and the ``loss`` that a problem was given, with what they were at that time.

    ``network``: what the problem made of them; its module is a copy.
    """

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any], network: Network) -> None:
        self.module, self.loss = module, loss
        self.parameters = list(module.parameters())
        self._is_mean, self._reduction = network.mean, getattr(loss, "reduction", None)
        self._modes = [layer.training for layer in module.modules()]
        self._norms = network.norms
        self._numbers = self._numbers_of(network.module)

    def now(self, network: Network) -> Network:
        """Return a network of the module and the loss as they are now."""
        present = copy.copy(network)
        present.module, present.loss = self.module, self.loss
        if network.mean != self._is_mean:  # the mean over targets that are not ignored became a sum
            present.loss = copy.copy(self.loss)
            present.loss.reduction = "sum"
        present.moved_to = self.device
        return present

    @property
    def device(self) -> torch.device:
        """Where the module is now."""
        return next(self.module.parameters()).device

    def trained(self, network: Network) -> list[torch.nn.Parameter]:
        """Return the parameters of the module whose copies are trained."""
        copied_parameters = network.module.parameters()
        return [
            parameter
            for parameter, copied in zip(self.parameters, copied_parameters, strict=True)
            if copied.requires_grad
        ]

    def sketch(self, network: Network, partitions: TorchPartitions, samples: int) -> Floats:
        """Return sums that represent the gradient of a few samples at the initial model, as it is now."""
        with as_initial(self.module, network.module, self._modes):
            return partitions.tried_with(self.now(network), samples)

    def _sketch_of_copy(self, network: Network, partitions: TorchPartitions, samples: int) -> Floats:
        """Return the same sums for the copy, on the device where the module is now."""
        copied, module = copy.copy(network), network.module
        copied.moved_to = self.device
        on_its_device = next(module.parameters()).device == copied.moved_to
        copied.module = module if on_its_device else copy.deepcopy(module).to(copied.moved_to)
        with as_initial(copied.module, module, [layer.training for layer in module.modules()]):
            return partitions.tried_with(copied, samples)

    # ------------------------------------------------------------------------------------------- changes

    def check_parts(self, network: Network) -> None:
        """Refuse other parameters or parts than when the problem was made, and another reduction of the loss."""
        forms, forms_now = (_forms_of(module) for module in (network.module, self.module))
        for name in forms.keys() & forms_now.keys():
            if forms[name] != forms_now[name]:
                raise BadInput(
                    f"parameter '{name}' was {forms[name]} when the problem was made and is {forms_now[name]} now; "
                    f"{ANEW}"
                )
        if forms.keys() != forms_now.keys():
            some = _listed(forms.keys() ^ forms_now.keys())
            raise BadInput(f"the module has other parameters than when the problem was made ({some}); {ANEW}")
        kinds, kinds_now = (
            {name: type(layer).__name__ for name, layer in module.named_modules()}
            for module in (network.module, self.module)
        )
        for name in sorted(kinds.keys() | kinds_now.keys()):
            kind, kind_now = kinds.get(name, "missing"), kinds_now.get(name, "missing")
            if kind != kind_now:
                raise BadInput(
                    f"{f'part {name!r} of the module' if name else 'the module'} was {kind} when the problem was made "
                    f"and is {kind_now} now; {ANEW}"
                )
        reduction = getattr(self.loss, "reduction", None)
        if reduction != self._reduction:
            raise BadInput(
                f"the reduction of the loss was {self._reduction!r} when the problem was made and is "
                f"{reduction!r} now; {ANEW}"
            )

    def check_unchanged(
        self, network: Network, partitions: TorchPartitions, rounding: float, *, begins: bool
    ) -> list[str]:
        """Refuse a module or a loss that computes something else than the copies; return a sentence on other numbers.

        ``rounding``: the relative difference that two gradients may have. ``begins``: whether a run begins with the
        problem's initial parameters.
        """
        initial_modes = modes_of(self.module, self._modes)
        compare_copies(
            Computing(
                lambda: variables_of({"the module": network.module}) | initial_modes,
                lambda samples: self._sketch_of_copy(network, partitions, samples),
            ),
            Computing(
                lambda: variables_of({"the module": self.module}) | modes_of(self.module),
                lambda samples: self.sketch(network, partitions, samples),
            ),
            rounding,
            "the module",
        )
        numbers = self._numbers_of(self.module)
        if missing := self._numbers.keys() - numbers.keys():
            raise BadInput(
                f"{_listed(missing)} of the module was there when the problem was made and is missing now; {ANEW}"
            )
        other = [name for name, digest in self._numbers.items() if numbers[name] != digest]
        if not begins:
            named = self.module.named_parameters()
            trained = {_parameter(name) for name, parameter in named if parameter.requires_grad}
            other = [name for name in other if name not in trained]
        return [other_numbers(other, "the module")] if other else []

    def _numbers_of(self, module: torch.nn.Module) -> Variables:
        """Return digests of a module's parameters and buffers, without running statistics that are computed anew."""
        parameters = {_parameter(name): parameter for name, parameter in module.named_parameters()}
        tensors = parameters | kept_tensors(module, self._norms)
        return {name: "".join(variables_of({name: tensor.detach()}).values()) for name, tensor in tensors.items()}


def _parameter(name: str) -> str:
    return f"parameter '{name}'"


def _forms_of(module: torch.nn.Module) -> dict[str, str]:
    """Return what a sentence says of each parameter of a module, by its name."""
    return {
        name: f"{'trained' if parameter.requires_grad else 'frozen'} and of shape {tuple(parameter.shape)}"
        for name, parameter in module.named_parameters()
    }


def _listed(names: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(names)[:_LISTED])
