"""A module and its loss, computed in the same way by a PyTorch problem's workers and its driver; metrics of it."""

from __future__ import annotations

import copy
import copyreg
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.errors import BadInput
from anyk.base.plain import ByName
from anyk.problems.data.sample_batches import Batch, SampleBatch
from anyk.problems.values import arguments, check_taken, taken_by

if TYPE_CHECKING:
    import torch


LARGE = 1 << 20  # parameters of a module whose gradients are passed on one by one
_SETTINGS = "settings of torch"


def _torch_settings() -> ByName:
    """Return the settings of torch on which results depend and which a new process does not have."""
    import torch

    return {
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32),
    }


def _apply_settings(settings: ByName) -> None:
    """Set what :func:`_torch_settings` returned."""
    import torch

    torch.set_default_dtype(settings["dtype"])
    torch.use_deterministic_algorithms(settings["deterministic"], warn_only=settings["warn only"])
    torch.set_float32_matmul_precision(settings["precision"])
    cudnn = torch.backends.cudnn
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = settings["cudnn"]


@dataclass(eq=False)
class Network:
    """A module and its loss, which is one of the two kinds: ``loss(outputs, targets)`` or ``loss(module, batch)``.

    - ``mean``: whether the loss is a batch's mean, over its samples or over the terms that ``count`` returns; otherwise
      it is a sum.
    - ``scale``: the factor of a sum of losses after which it can be divided by the number of samples, if the mean is
      over other terms.
    - ``ignored``: a target that the loss's mean omits; ``unknown``: the same, if the number of the other targets was
      not counted.
    - ``alone``: whether the loss of a weighted sample is computed from a batch of this sample alone.
    - ``threads``: the number of threads with which a worker computes gradients.
    - ``values``: the current values of the problem, by name (:class:`~anyk.problems.values.Values`). ``for_module``,
      ``for_loss``: those that the module and the loss take.
    - ``evaluated``: the names of the parts that stay in evaluation mode while the module trains. ``norms``: the names
      of the batch norms whose running statistics are computed anew to evaluate.
    - ``differentiates``: whether module or loss differentiate, so that they need gradients also to evaluate.
    - ``backward``: whether gradients are computed by ``backward()``, as reentrant checkpoints demand.
    - ``moved_to``: the device on which module and loss are; None: not moved to ``device`` yet.
    """

    module: torch.nn.Module
    loss: Any
    _: KW_ONLY
    device: str
    precision: str | None
    mean: bool
    takes_module: bool = False
    count: Callable[[Batch], Any] | None = None
    threads: int = 1
    scale: float = 1.0
    ignored: int | None = None
    unknown: int | None = None
    alone: bool = False
    moved_to: torch.device | None = None
    values: ByName = field(default_factory=dict)
    for_module: tuple[str, ...] = ()
    for_loss: tuple[str, ...] = ()
    initial_kept: dict[str, torch.Tensor] = field(default_factory=dict)  # of those that have been replaced
    evaluated: frozenset[str] = frozenset()
    norms: tuple[str, ...] = ()
    differentiates: bool = False
    backward: bool = False

    def gradients(
        self, loss: Callable[[], torch.Tensor], parameters: Sequence[torch.nn.Parameter]
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Return a loss and its gradients by the parameters, None for those that it does not use."""
        import torch

        value = loss()
        if not self.backward:
            try:
                return value, list(torch.autograd.grad(value, parameters, allow_unused=True))
            except RuntimeError as error:
                if "heckpoint" not in str(error):
                    raise
            self.backward, value = True, loss()  # reentrant checkpoints work with backward() alone
        before = [parameter.grad for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.grad = None
            value.backward()
            return value, [parameter.grad for parameter in parameters]
        finally:
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = grad

    def each_gradient(
        self,
        loss: Callable[[], torch.Tensor],
        parameters: Sequence[torch.nn.Parameter],
        take: Callable[[int, torch.Tensor], None],
    ) -> torch.Tensor:
        """Return a loss, and pass on the gradient of each parameter that it uses, with the parameter's number.

        Of a large module, each is passed on as soon as it is there, so that they do not exist at the same time.
        """
        taken = 0

        def take_from(number: int, parameter: torch.Tensor) -> None:
            nonlocal taken
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                taken += 1
                take(number, gradient)

        if self.backward or sum(parameter.numel() for parameter in parameters) < LARGE:
            value, gradients = self.gradients(loss, parameters)
            for number, gradient in enumerate(gradients):
                if gradient is not None:
                    take(number, gradient)
            return value
        value = loss()
        before = [parameter.grad for parameter in parameters]
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(take_from, number))
            for number, parameter in enumerate(parameters)
        ]
        try:
            for parameter in parameters:
                parameter.grad = None
            value.backward(inputs=list(parameters))
        except RuntimeError as error:
            if "heckpoint" not in str(error) or taken:
                raise
            self.backward = True  # reentrant checkpoints work with backward() alone
        finally:
            for hook, parameter, grad in zip(hooks, parameters, before, strict=True):
                hook.remove()
                parameter.grad = grad
        return self.each_gradient(loss, parameters, take) if self.backward else value

    def keep_modes(self) -> None:
        """Let the parts that are in evaluation mode now stay in it, if the module itself is in training mode."""
        if self.module.training:
            self.evaluated = frozenset(name for name, layer in self.module.named_modules() if not layer.training)
        self.train()
        self.norms = renewed_norms(self.module)

    def without_gradient(self) -> Any:
        """Return a context in which no gradient is computed, if module and loss work without."""
        import torch

        return torch.set_grad_enabled(self.differentiates)

    def find_differentiation(self, batch: Batch) -> None:
        """Find out whether module and loss differentiate, by evaluating a batch."""
        import torch

        self.module.eval()
        try:
            with torch.no_grad():
                self.loss_of(batch)
        except RuntimeError:
            try:
                with torch.enable_grad():
                    self.loss_of(batch)
            except Exception:  # the run reports what fails
                return
            self.differentiates = True
        except Exception:
            return
        finally:
            self.train()

    def train(self) -> None:
        """Set the module to training mode, without the parts that stay in evaluation mode."""
        self.module.train()
        for name, layer in self.module.named_modules():
            if name in self.evaluated:
                layer.training = False

    def take_values(self, names: Sequence[str]) -> None:
        """Find out which of the values the module and the loss take; raise if there are any that nothing takes."""
        self.for_loss = taken_by(self.loss, names)
        self.for_module = () if self.takes_module else taken_by(self.module, names)
        check_taken(names, self.for_loss, self.for_module)

    def set_values(self, values: ByName) -> None:
        """Set the values of the next computations."""
        device = self.moved_to
        self.values = values if self.kind == "cpu" else map_tensors(values, lambda tensor: tensor.to(device))

    def __getstate__(self) -> ByName:
        import torch

        for root in (self.module, self.loss):
            for layer in root.modules() if isinstance(root, torch.nn.Module) else ():
                if torch.nn.utils.parametrize.is_parametrized(layer):  # each has a class of its own
                    copyreg.pickle(type(layer), _reduce_parametrized)
        return self.__dict__ | {"moved_to": None, _SETTINGS: _torch_settings()}

    def __setstate__(self, state: ByName) -> None:
        """Restore a copy; torch computes in this process as in the one that sent it."""
        settings = state.pop(_SETTINGS)
        self.__dict__.update(state)
        if settings != _torch_settings():
            _apply_settings(settings)

    @property
    def kind(self) -> str:
        """The type of the device on which the module is."""
        return "cpu" if self.moved_to is None else self.moved_to.type

    @property
    def opaque(self) -> bool:
        """Whether the loss can only be examined by means of samples, and not of the module's outputs."""
        return self.takes_module or self.count is not None

    def move(self) -> torch.device:
        """Move to the device, once, and return it: of several CUDA devices each worker takes the next."""
        import torch

        if self.moved_to is not None:
            return self.moved_to
        device = torch.device(self.device)
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise BadInput(f"there is no device '{self.device}' here: torch finds no CUDA; use device='cpu'")
            if self.device == "cuda":
                number = int(os.environ.get("ANYK_WORKER", "0")) % torch.cuda.device_count()
                device = torch.device("cuda", number)
        for root in (self.module, self.loss):
            if isinstance(root, torch.nn.Module):
                root.to(device)
        self.moved_to = device
        return device

    def on_device(self, batch: Batch) -> Batch:
        """Return a batch with its tensors on the module's device."""
        device = self.moved_to
        return batch if self.kind == "cpu" else map_tensors(batch, lambda tensor: tensor.to(device))

    def outputs(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the module's outputs for a batch's inputs."""
        with self._autocast():
            outputs: torch.Tensor = self.module(*batch[:-1], **arguments(self.for_module, self.values))
        return outputs

    def loss_of(self, batch: Batch, weights: Floats | None = None) -> torch.Tensor:
        """Return the loss of a batch: one number; ``weights``: as for :meth:`loss_at`."""
        if self.takes_module:
            return self.loss_at(self.module, batch, weights)
        return self.loss_at(self.outputs(batch), batch[-1], weights)

    def loss_at(self, outputs: Any, targets: Batch, weights: Floats | None = None) -> torch.Tensor:
        """Return the loss of outputs and targets, or of the module and a batch: one number.

        With ``weights`` of samples it is the weighted sum of their losses, unless these are computed alone.
        """
        import torch

        with self._autocast():
            if weights is None or self.alone:
                loss: Any = self.loss(outputs, targets, **arguments(self.for_loss, self.values))
            else:
                losses = sample_losses(self, outputs, targets)
                factors = torch.tensor(weights, dtype=losses.dtype, device=losses.device)  # weights may be read-only
                loss = (losses * factors)[factors != 0].sum()
        if not isinstance(loss, torch.Tensor) or loss.dim():
            shape = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise BadInput(f"the loss must give one number for a batch, its mean or sum, got {shape}")
        # in evaluation a module may do without a gradient
        if self.module.training and torch.is_grad_enabled() and not loss.requires_grad:
            raise BadInput(
                "the loss has no gradient: what it gives does not depend on the parameters, or not in a way that torch "
                "differentiates, as after .detach(), .item() or .argmax()"
            )
        return loss

    def terms(self, batch: Batch, size: int) -> float:
        """Return the number of terms of a batch's loss: its ``size`` samples, or the number that ``count`` returns."""
        return size if self.count is None else count_terms(self.count, batch)

    def loss_factor(self, batch: Batch, size: int, weights: Floats | None = None) -> float:
        """Return the factor of a batch's loss in the sum that is divided by the number of samples."""
        if weights is not None:  # those of several samples are in their loss
            weight = float(weights[0]) if self.alone else float(weights.any())
            return weight and weight * self.loss_factor(batch, 1)
        unknown = self.unknown
        if unknown is not None and not batch[-1].is_floating_point() and bool((batch[-1] == unknown).any()):
            raise BadInput(
                f"the loss is a mean over the targets that are not {unknown} (ignore_index), and how many there "
                "are in the whole data set is known of arrays alone; give the data as tensors, (X, y), or count=…, or "
                "the loss reduction='sum'"
            )
        terms = self.terms(batch, size)  # a batch without any adds nothing, and a mean over nothing is not a number
        return self.scale * (terms if self.mean else min(terms, 1.0))

    def _autocast(self) -> Any:
        import torch

        return torch.autocast(self.kind, dtype=torch.bfloat16, enabled=self.precision is not None)


def sample_losses(network: Network, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each sample, shape (samples,)."""
    import torch

    loss: Any = network.loss
    count = len(targets)
    if type(loss).__module__ == "torch.nn.modules.loss" and hasattr(loss, "reduction"):
        unreduced = copy.copy(loss)
        unreduced.reduction = "none"
        terms: torch.Tensor = unreduced(outputs, targets).reshape(count, -1)
        return terms.mean(dim=1) if loss.reduction == "mean" else terms.sum(dim=1)
    singles = [slice(i, i + 1) for i in range(count)]
    return torch.stack([network.loss_at(map_tensors(outputs, itemgetter(one)), targets[one]) for one in singles])


def loss_sum(network: Network, parts: Iterator[SampleBatch]) -> float:
    """Return the sum of the losses of several batches, in evaluation mode."""
    total = 0.0
    with network.without_gradient():
        for sample_batch in parts:
            batch = network.on_device(sample_batch.batch)
            if factor := network.loss_factor(batch, sample_batch.size, sample_batch.weights):
                total += float(network.loss_of(batch, sample_batch.weights).detach()) * factor
    return total


def _reduce_parametrized(module: Any) -> tuple[Any, ...]:
    """Return the parts from which pickle restores a parametrized module; torch itself only copies them."""
    from torch.nn.utils.parametrize import type_before_parametrizations

    kind: Any = type_before_parametrizations(module)
    return _parametrized, (kind, list(module.parametrizations)), kind.__getstate__(module)


def _parametrized(kind: Any, names: list[str]) -> Any:
    """Return a module of this class without state, whose tensors of these names are parametrized."""
    from torch.nn.utils import parametrize

    module = kind.__new__(kind)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def trainable_parameters(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that form the model: shared ones once, and no frozen ones."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def count_terms(count: Callable[[Batch], Any], batch: Batch) -> float:
    """Return the number of terms that a function counts in a batch."""
    number = count(batch)
    try:
        value = float(number)
    except (TypeError, ValueError, RuntimeError):
        value = -1.0
    if not (value >= 0.0 and value.is_integer()):
        shape = getattr(number, "shape", ())
        kind = f"{type(number).__name__} of shape {tuple(shape)}" if shape else f"{type(number).__name__} {number}"
        value_text = f"{value:g}" if value >= 0.0 else kind
        raise BadInput(f"count must give the number of terms in a batch's loss, a whole number, got {value_text}")
    return value


def tensors_in(batch: Batch) -> list[torch.Tensor]:
    """Return all tensors of a batch, in tuples, lists and dictionaries."""
    import torch
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def map_tensors(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Return a batch with its tensors changed."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch)


def kept_tensors(module: torch.nn.Module, norms: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the frozen parameters and the buffers of a module, without the statistics of its ``norms``, by name."""
    statistics = {id(buffer) for norm in parts_of(module, norms) for buffer in norm.buffers(recurse=False)}
    frozen = {
        f"parameter '{name}'": parameter for name, parameter in module.named_parameters() if not parameter.requires_grad
    }
    buffers = {f"buffer '{name}'": buffer for name, buffer in module.named_buffers() if id(buffer) not in statistics}
    return {name: tensor.detach() for name, tensor in (frozen | buffers).items()}


def kept_tensor(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    """Return the frozen parameter or buffer that a module has now by a name as of :func:`kept_tensors`, or None."""
    path, _, key = name.split("'")[1].rpartition(".")
    try:
        layer = module.get_submodule(path)
    except AttributeError:
        return None
    # a loop's dictionaries compute running statistics when they are read
    tensor: torch.Tensor | None = dict.get(layer._buffers, key, layer._parameters.get(key))
    return tensor


def put_kept(network: Network, arrays: Mapping[str, Array]) -> None:
    """Set frozen parameters and buffers, named as by :func:`kept_tensors`; others get their initial numbers again."""
    if not arrays and not network.initial_kept:
        return
    tensors, initial = kept_tensors(network.module, network.norms), network.initial_kept
    for name, array in arrays.items():
        initial.setdefault(name, tensors[name].clone())
        copy_array(array, tensors[name])
    for name in initial.keys() - arrays.keys():
        tensors[name].copy_(initial[name])


def copy_array(array: Array, tensor: torch.Tensor) -> None:
    """Copy an array (:meth:`~anyk.problems.values.Values.plain`) into a tensor."""
    import torch

    source = torch.from_numpy(np.array(array))
    tensor.copy_(source.view(torch.bfloat16) if tensor.dtype == torch.bfloat16 else source)


def renewed_norms(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the batch norms whose running statistics a pass renews in the module's present mode.

    Those in evaluation mode, or with ``momentum=0``, keep theirs.
    """
    return tuple(
        name
        for name, layer in module.named_modules()
        if is_norm(layer) and layer.running_mean is not None and layer.training and layer.momentum != 0
    )


def normalises_batches(module: torch.nn.Module) -> bool:
    """Return whether a batch norm uses the statistics of the current batch in the module's present mode."""
    return any(is_norm(layer) and (layer.training or layer.running_mean is None) for layer in module.modules())


def is_norm(module: Any) -> bool:
    """Return whether a part of a module is a batch norm."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return isinstance(module, _BatchNorm)


def parts_of(module: torch.nn.Module, names: Sequence[str]) -> list[Any]:
    """Return the parts of a module with these names."""
    return [module.get_submodule(name) for name in names]
