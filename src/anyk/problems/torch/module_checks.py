"""Checks of a PyTorch problem.

Refused are options that are out of range, losses of several samples that are not the mean, or the sum, of their losses,
and modules whose forward pass changes state, as workers would drop it.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.checks import AtLeastOne, AtLeastZero, check_value, typed
from anyk.base.errors import BadInput, needing
from anyk.base.plain import ByName
from anyk.problems.base import Better, Index
from anyk.problems.data.sample_batches import Batch
from anyk.problems.generators import seeded_generators
from anyk.problems.replicas import adds_up, not_a_sum, nudge_signs
from anyk.problems.surroundings import Variables, differences, variables_of
from anyk.problems.torch.network import (
    LARGE,
    Network,
    is_norm,
    normalises_batches,
    parts_of,
    sample_losses,
    trainable_parameters,
)

if TYPE_CHECKING:
    import torch

_MODULE_NAMES = ("module", "model")  # names of the first parameter of a loss of (module, batch)


@typed
def check_options(
    device: str,
    precision: str | None,
    microbatch: AtLeastOne | None,
    threads: AtLeastOne,
    num_workers: AtLeastZero,
    better: Better | None,
    functions: ByName,
) -> None:
    """Refuse options of :class:`~anyk.problems.TorchProblem` that are out of range.

    ``functions``: the options that must be None or callable, by name.
    """
    with needing("PyTorch", "torch", "TorchProblem"):
        import torch
    try:
        supported = torch.device(device).type in ("cpu", "cuda")
    except RuntimeError:
        supported = False
    if not supported:
        raise BadInput(f"device must be 'cpu', 'cuda' or 'cuda:0', got '{device}'")
    for name, function in functions.items():
        if not (function is None or callable(function)):
            raise BadInput(f"{name} must be a function of an item, of a batch's items or of a batch, got {function!r}")
    if precision == "fp16":
        raise BadInput("precision 'fp16' needs loss scaling, which is not supported; use 'bf16'")
    check_value(precision, Literal["bf16"] | None, "precision")


def check_module(module: object) -> None:
    """Refuse an object that is not a module, or one that cannot be sent to workers."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise BadInput(
            "a TorchScript module cannot be sent to workers; give the torch.nn.Module from which it was compiled"
        )
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"the module must be a torch.nn.Module, got {_describe(module)}")
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.parallel.DistributedDataParallel):
            raise BadInput(
                "the module is wrapped in DistributedDataParallel, whose processes average gradients themselves; give "
                "the module inside, module.module"
            )
        computed = [key for key, value in vars(layer).items() if isinstance(value, torch.Tensor) and not value.is_leaf]
        if computed:
            path = f"{name}.{computed[0]}".removeprefix(".")
            raise BadInput(
                f"'{path}' of the module is computed from parameters, and torch cannot copy it; if "
                "torch.nn.utils.prune or its older weight_norm or spectral_norm left it there, use "
                "torch.nn.utils.parametrizations or parametrize instead, or make it permanent (prune.remove); if a "
                "forward pass stores it, .detach() it"
            )
        if getattr(layer, "scale_grad_by_freq", False):
            raise BadInput(
                f"'{name}' divides gradients by how often a number occurs in a batch (scale_grad_by_freq=True), so "
                "that the gradient of a batch is not the sum of its samples'; use scale_grad_by_freq=False"
            )


def _describe(value: object) -> str:
    """Return the type of a value in words; for a class, with advice to give an object of it."""
    if isinstance(value, type):
        return f"the class {value.__name__}; give an object of it, {value.__name__}(…)"
    return type(value).__name__


def ignored_target(loss: Any) -> int | None:
    """Return the target that torch's losses for classification ignore; None for other losses."""
    import torch

    classifies = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
    return int(loss.ignore_index) if classifies else None


def is_mean(loss: object, reduction: str | None) -> bool:
    """Return whether the loss of a batch is a mean; refuse a mean that does not weigh all samples alike."""
    import torch

    stated = getattr(loss, "reduction", None)
    stated = "mean" if stated == "batchmean" else stated  # torch's KLDivLoss: the sum divided by the number of samples
    if reduction is not None and stated in ("mean", "sum") and reduction != stated:
        raise BadInput(f"reduction is '{reduction}', but the loss itself returns the {stated}")
    reduction = reduction or stated or "mean"
    if reduction not in ("mean", "sum"):
        raise BadInput(f"the loss of a batch must be its mean or its sum, got reduction '{reduction}'")
    weighted = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)) and loss.weight is not None
    if weighted and reduction == "mean":
        raise BadInput("a mean with class weights does not weigh all samples alike; give the loss reduction='sum'")
    if isinstance(loss, torch.nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise BadInput("the loss has parameters of its own, which would not be trained; make them part of the module")
    return reduction == "mean"


def takes_module(loss: object) -> bool:
    """Return whether a loss takes (module, batch), according to the name of its first parameter.

    >>> takes_module(lambda model, batch: 0.0), takes_module(lambda outputs, targets: 0.0)
    (True, False)
    """
    if isinstance(loss, type) or not callable(loss):
        raise BadInput(f"the loss must be a function of (outputs, targets) or (module, batch), got {_describe(loss)}")
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # a compiled function has no signature
        return False
    return len(names) > 1 and names[0] in _MODULE_NAMES


_PAIR = 2  # samples that are compared together if a single one has no gradient
_SINGLES = 8  # largest number of samples of a batch whose losses are computed one by one
_OUTPUTS_ADVICE = (
    "to ignore targets give torch's own CrossEntropyLoss(ignore_index=…) or NLLLoss, which is exact, else a loss that "
    "is a sum over samples, with reduction='sum'"
)
_SAMPLES_ADVICE = (
    "if it is a mean over the targets that are not padding, give count=…, a function of a batch that returns their "
    "number, else a loss that is a sum over samples, with reduction='sum'"
)


def has_entries(outputs: object, count: int) -> bool:
    """Return whether a module's outputs are tensors, perhaps in tuples or dictionaries, with one entry per sample."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(outputs)
    return all(isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == count for leaf in leaves)


def check_loss(network: Network, outputs: object, targets: torch.Tensor, samples: str) -> None:
    """Refuse a loss of a batch that is not the mean, or the sum, of its samples' losses, as far as can be found out.

    The loss of the batch and its gradients with respect to the module's outputs are compared with the same for up to 8
    single samples. Nothing is compared if the outputs have no entry per sample (:func:`has_entries`), or if the loss
    draws random numbers, is not finite, or fails for a single sample.
    """
    import torch
    from torch.utils import _pytree as pytree

    count = len(targets)
    if not has_entries(outputs, count):
        return
    leaves, tree = pytree.tree_flatten(outputs)
    singles = np.unique(np.linspace(0, count - 1, min(count, _SINGLES)).astype(np.intp))

    def measure(places: Index, nudge: int | None) -> Floats:
        """Return the summed loss of all samples or of a single sample, and its gradient by the outputs.

        The gradient has a row for each of ``singles``, which is 0 if the sample is not among ``places``.
        """
        rows = slice(int(places[0]), int(places[-1]) + 1)
        parts = [leaf[rows].detach() for leaf in leaves]
        if nudge is not None:
            parts = [
                _nudge_values(tensor, network, nudge) if tensor.is_floating_point() else tensor for tensor in parts
            ]
        inputs = [tensor.requires_grad_() for tensor in parts if tensor.is_floating_point()]
        loss = network.loss_at(pytree.tree_unflatten(parts, tree), targets[rows])
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
        by_sample = torch.cat([g.reshape(len(g), -1).double() for g in gradients if g is not None], dim=1)
        gradient = np.zeros((len(singles), by_sample.shape[1]))
        all_samples = len(places) == count
        gradient[... if all_samples else singles == places] = (
            (by_sample[singles] if all_samples else by_sample).cpu().numpy()
        )
        factor = len(places) if network.mean else 1
        return np.append(float(loss.detach()), gradient) * factor

    with warnings.catch_warnings(action="ignore"), torch.enable_grad():  # ignored: shapes may not suit a single sample
        try:
            correct = adds_up(measure, count, tolerance=_tolerance(network), singles=singles, vectors=len(singles))
        except Exception:  # the loss need not accept a single sample
            return
    if not correct:
        raise not_a_sum(samples, _pairing_advice(outputs, targets) or _OUTPUTS_ADVICE, mean=network.mean)


def check_mixing(network: Network, batch_of: Callable[[Index], Batch], count: int, samples: str) -> None:
    """Refuse modules whose gradient of several samples is not the sum of the gradients of each sample, or each two.

    Nothing is compared if a batch norm mixes samples also in evaluation mode, or if single samples and pairs fail.
    """
    network.module.eval()
    mixes = normalises_batches(network.module)
    network.train()
    if not mixes:
        check_samples(network, batch_of, count, samples, lenient=True)


_MIXING = (
    "a layer mixes the samples of a batch, or a hook changes gradients by more than a factor, so that the result would "
    "depend on how samples are spread over workers; compute each sample by itself"
)


def check_weighted(network: Network, batch_of: Callable[[slice], Batch], samples: int) -> None:
    """Find out whether the losses of weighted samples follow from the outputs of a batch, in evaluation mode.

    Otherwise each sample is computed alone (``network.alone``), which batch norm does not allow.
    """
    import torch

    network.alone = network.opaque
    network.module.eval()
    try:
        if not network.alone:
            with network.without_gradient(), seeded_generators(0, torch.device("cpu")):
                batch = batch_of(slice(0, samples))
                losses = sample_losses(network, network.outputs(batch), batch[-1])
                singles = [network.loss_of(batch_of(slice(i, i + 1))) for i in range(samples)]
            near = 0.02 if network.precision else 1e-3
            network.alone = not torch.allclose(losses.double(), torch.stack(singles).double(), rtol=near, atol=1e-6)
    except Exception:  # outputs that have no entry for each sample
        network.alone = True
    finally:
        network.train()
    if network.alone and normalises_batches(network.module):
        raise BadInput(
            "the losses of weighted samples are computed one by one here, and a module with batch norm needs "
            "several samples together; give a loss of (outputs, targets) without count, with an output for each "
            "sample, or another normalisation"
        )


def check_samples(
    network: Network, batch_of: Callable[[Index], Batch], count: int, samples: str, *, lenient: bool = False
) -> None:
    """Refuse the same losses as :func:`check_loss`, by computing them for samples instead of outputs.

    ``batch_of(places)`` returns a batch of some of the ``count`` samples. The loss and its gradient with respect to the
    parameters are compared, in evaluation mode, so that neither dropout nor the statistics of batch norm make a
    difference. Raises also if the loss of a single sample fails or is not finite, such as a mean over no target.
    """
    import torch

    if count < 2:
        return
    losses = _LossesOfSamples(network, batch_of, samples, lenient=lenient)
    network.module.eval()
    try:
        with warnings.catch_warnings(action="ignore"), torch.enable_grad():
            correct = losses.add_up(count)
    except BadInput:
        raise
    except Exception:  # the run reports what fails
        return
    finally:
        network.train()
    if not np.isnan(losses.terms_singly) and losses.terms_singly != losses.terms:
        raise BadInput(
            f"count returns {losses.terms:g} terms for {samples} together and {losses.terms_singly:g} for them one by "
            "one; it must return the number of terms that the loss of a batch adds up"
        )
    if not correct:
        raise not_a_sum(samples, _MIXING if lenient else _SAMPLES_ADVICE, mean=network.mean)


class _LossesOfSamples:
    """Losses and gradients of several samples together and of single ones, for :func:`check_samples`."""

    terms = 0.0  # of all samples together
    terms_singly = np.nan  # the sum over single samples

    def __init__(
        self, network: Network, batch_of: Callable[[Index], Batch], samples: str, *, lenient: bool = False
    ) -> None:
        self._network, self._batch_of, self._samples, self._lenient = network, batch_of, samples, lenient

    def add_up(self, count: int) -> bool:
        """Return whether the gradient of ``count`` samples is the sum of the gradients of each, or of each two."""
        tolerance = _tolerance(self._network)
        try:
            return adds_up(self._measure, count, tolerance=tolerance)
        except BadInput:
            raise
        except Exception:  # as of a standard deviation, which a single sample has not
            if not self._lenient or count < 2 * _PAIR:
                raise
        of_pairs = adds_up(self._measure, count - count % _PAIR, tolerance=tolerance, together=_PAIR)
        self.terms_singly = np.nan
        return of_pairs

    def _measure(self, places: Index, nudge: int | None) -> Floats:
        """Return the summed loss of some samples and its gradient."""
        single = len(places) == 1
        try:
            batch = self._batch_of(places)
            terms = self._network.terms(batch, len(places))
            if single:
                self.terms_singly = terms if places[0] == 0 else self.terms_singly + terms
            else:
                self.terms = terms if places[0] == 0 else self.terms + terms
            if not terms:
                return np.zeros(1)
            values = _loss_and_gradient(self._network, batch, nudge)
        except BadInput:
            raise
        except Exception as error:
            if not single or self._lenient:
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise BadInput(
                f"it cannot be checked whether the loss is a sum over samples: it accepts several ({self._samples}), "
                f"but for one of them alone it fails ({reason}); give a loss that accepts a single sample"
            ) from None
        if single and not np.isfinite(values).all():
            self._refuse_single()
        return np.asarray(values * (terms if self._network.mean else 1.0))

    def _refuse_single(self) -> NoReturn:
        """Raise for a single sample whose loss or gradient is no number."""
        if self._lenient:
            raise ValueError("a single sample has no gradient")
        raise BadInput(
            f"the loss of {self._samples} together is a number, but the loss of one of them alone is not, as it "
            f"ignores targets; {_SAMPLES_ADVICE}"
        )


def _loss_and_gradient(network: Network, batch: Batch, nudge: int | None) -> Floats:
    """Return the loss of a batch, and then its gradient with respect to the trained parameters, in one vector.

    Of a large module, the gradient is that at coordinates which are as far apart as necessary.
    """
    import torch

    inputs = trainable_parameters(network.module)
    apart = sum(parameter.numel() for parameter in inputs) // LARGE | 1
    pieces = [torch.zeros(-(-parameter.numel() // apart)).to(parameter) for parameter in inputs]

    def take(number: int, gradient: torch.Tensor) -> None:
        pieces[number] = gradient.reshape(-1)[::apart].clone()

    with _nudged_parameters(network, nudge):
        loss = network.each_gradient(lambda: network.loss_of(batch), inputs, take)
    values = torch.cat([loss.detach().reshape(1), *pieces])
    return np.asarray(values.double().cpu().numpy())


@contextmanager
def _nudged_parameters(network: Network, nudge: int | None) -> Iterator[None]:
    """Change the trained parameters by a few roundings, for a while and as copies: their memory may be shared."""
    parameters = [] if nudge is None else trainable_parameters(network.module)
    originals = [parameter.data for parameter in parameters]
    for parameter in parameters:
        parameter.data = _nudge_values(parameter.data, network, nudge or 0)
    try:
        yield
    finally:
        for parameter, values in zip(parameters, originals, strict=True):
            parameter.data = values


def _nudge_values(values: torch.Tensor, network: Network, nudge: int) -> torch.Tensor:
    """Return values changed by a few roundings of the number type in which the network computes."""
    import torch

    if network.precision:
        rounding = torch.finfo(torch.bfloat16).eps
    else:
        rounding = torch.finfo(values.dtype).eps if network.kind == "cpu" else 2.0**-11  # rounding of TF32
    signs = torch.from_numpy(nudge_signs(values.numel(), nudge)).view(values.shape).to(values)
    return values * (1.0 + rounding * signs)


def _pairing_advice(outputs: object, targets: torch.Tensor) -> str | None:
    """Return advice if the targets have as many numbers as the outputs but another shape, else None."""
    import torch

    if not isinstance(outputs, torch.Tensor) or outputs.shape == targets.shape or outputs.numel() != targets.numel():
        return None
    return (
        f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} are not paired one by "
        "one: each output is paired with all targets; give them the same shape"
    )


def _tolerance(network: Network) -> float:
    """Return the relative difference that rounding may cause: large in bfloat16 and on devices other than the CPU."""
    return 0.02 if network.precision or network.kind != "cpu" else 1e-4


_COUNT = "num_batches_tracked"  # by a batch norm, which only uses it where it renews its statistics
State = dict[str, list[Any]]  # tensors and numbers by the name of the buffer or attribute that contains them


def check_forward(network: Network, batches: Sequence[Batch]) -> None:
    """Refuse parameters, buffers, attributes and variables whose value after a pass depends on earlier passes.

    The exception is the running statistics of batch norm, which are computed anew to evaluate. A pass may set values
    that do not depend on the past, such as its activations or a table that all batches share. ``batches``: one, or two
    of the same shapes; the second shows state that only the first pass ever sets. The run reports passes that fail.
    Changes that happen only now and then, or in objects that no code names, are not found here.
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
    :class:`~anyk.BadInput` if a pass changes a parameter.
    """
    import torch

    def moved(parameter: torch.Tensor) -> torch.Tensor:
        return parameter.detach() * 1.03 + 0.03 if parameter.requires_grad else parameter.detach()

    twin = copy.deepcopy(network)
    twin.device = "cpu"
    twin.train()
    for parameter in twin.module.parameters():
        if parameter.requires_grad:
            parameter.data = moved(parameter)
    states, outside = [], []
    for batch in batches:
        with seeded_generators(0, torch.device("cpu")):
            twin.loss_of(batch)
        states.append(_state_of(twin))
        outside.append(_variables_outside(twin))
    for name, *_ in differences(*outside[:2]) if len(outside) > 1 else ():
        raise _refusal(name)
    for (suffix, before), (_, after) in zip(_roots(network), _roots(twin), strict=True):
        parameters = dict(after.named_parameters())
        for name, parameter in before.named_parameters():
            if name in parameters and _differ(moved(parameter), parameters[name].detach()):
                raise _refusal(f"parameter '{name}'{suffix}")
    return states


def _variables_outside(network: Network) -> Variables:
    """Return the numbers outside of parts of the module, such as global counters, that forward pass and loss read."""
    variables = variables_of({"the loss": network.loss, "the module": network.module}, arrays=False)
    outside = ("variable '", " of class ", " of attribute '")
    return {name: value for name, value in variables.items() if any(word in name for word in outside)}


def _roots(network: Network) -> list[tuple[str, torch.nn.Module]]:
    """Return the module and, if it is a module too, the loss, with a suffix for the names of their parts."""
    import torch

    loss = [(" of the loss", network.loss)] if isinstance(network.loss, torch.nn.Module) else []
    return [("", network.module), *loss]


def _state_of(network: Network) -> State:
    """Return copies of all buffers and attributes, without the running statistics of batch norm."""
    import torch

    buffers: ByName = {}
    attributes: ByName = {}
    internal = vars(torch.nn.Module())
    for suffix, root in _roots(network):
        norms = parts_of(root, network.norms) if root is network.module else []
        for path, layer in root.named_modules():
            name = f"{path}.{{}}'{suffix}" if path else f"{{}}'{suffix}"
            if layer not in norms:
                contents = {
                    key: value for key, value in layer._buffers.items() if not (is_norm(layer) and key == _COUNT)
                }
                buffers |= {f"buffer '{name.format(key)}": value for key, value in contents.items()}
            contents = {key: value for key, value in vars(layer).items() if key not in internal}
            attributes |= {f"attribute '{name.format(key)}": value for key, value in contents.items()}
    if not isinstance(network.loss, torch.nn.Module):
        contents = getattr(network.loss, "__dict__", {})
        attributes |= {f"attribute '{key}' of the loss": value for key, value in contents.items()}
    return {name: _copies_in(value) for name, value in (buffers | attributes).items()}


def _copies_in(value: object) -> list[Any]:
    """Return copies of the tensors, arrays and numbers in a value."""
    import torch
    from torch.utils import _pytree as pytree

    kinds = (torch.Tensor, np.ndarray, np.generic, bool, int, float, complex)
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, kinds)]
    return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf) for leaf in leaves]


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
