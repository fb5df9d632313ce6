"""Check a PyTorch problem's options, and that a loss of several samples is the mean, or the sum, of their losses."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyk.checks import AtLeastOne, AtLeastZero, check
from anyk.errors import BadInput, needing
from anyk.plain import ByName
from anyk.problems.base import Floats, Index
from anyk.problems.data.sample_batches import Batch
from anyk.problems.replicas import adds_up, not_a_sum, nudge_signs
from anyk.problems.torch.network import Network, trained

if TYPE_CHECKING:
    import torch

_MODULE = ("module", "model")  # names of a loss's parameter that is the module


def check_options(
    device: str,
    precision: str | None,
    microbatch: int | None,
    threads: int,
    num_workers: int,
    better: str | None,
    functions: ByName,
) -> None:
    """Refuse options of :class:`~anyk.problems.TorchProblem` that are out of range, or ``functions`` that are none."""
    with needing("PyTorch", "torch", "TorchProblem"):
        import torch
    try:
        supported = torch.device(device).type in ("cpu", "cuda")
    except RuntimeError:
        supported = False
    if not supported:
        raise BadInput(f"device must be 'cpu', 'cuda' or 'cuda:0', got '{device}'")
    check(microbatch, AtLeastOne | None, "microbatch")
    check(threads, AtLeastOne, "threads")
    check(num_workers, AtLeastZero, "num_workers")
    check(better, Literal["higher", "lower"] | None, "better")
    for name, function in functions.items():
        if not (function is None or callable(function)):
            raise BadInput(f"{name} must be a function of an item, of a batch's items or of a batch, got {function!r}")
    if precision == "fp16":
        raise BadInput("precision 'fp16' needs loss scaling, which is not supported; use 'bf16'")
    check(precision, Literal["bf16"] | None, "precision")


def check_module(module: object) -> None:
    """Refuse an object that is no module."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise BadInput(
            "the module is one of TorchScript, which cannot be sent to workers; give the module it was made of"
        )
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"the module must be a torch.nn.Module, got {_class_or_kind(module)}")


def _class_or_kind(value: object) -> str:
    """Return the kind of a value in words; for a class, how to make an object of it."""
    named = getattr(value, "__name__", "")
    return f"the class {named}; make one, as in {named}(…)" if isinstance(value, type) else type(value).__name__


def ignored_by(loss: Any) -> int | None:
    """Return the target that a loss of torch's ignores, or None."""
    import torch

    classifies = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
    return int(loss.ignore_index) if classifies else None


def is_mean(loss: object, reduction: str | None) -> bool:
    """Return whether the loss is a batch's mean; refuse a mean that does not weigh all samples alike."""
    import torch

    own = getattr(loss, "reduction", None)
    own = "mean" if own == "batchmean" else own  # torch's KLDivLoss: the sum divided by the number of samples
    if reduction is not None and own in ("mean", "sum") and reduction != own:
        raise BadInput(f"reduction is '{reduction}', but the loss says that it gives the {own}")
    reduction = reduction or own or "mean"
    if reduction not in ("mean", "sum"):
        raise BadInput(f"the loss of a batch must be its mean or its sum, got reduction '{reduction}'")
    weighted = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)) and loss.weight is not None
    if weighted and reduction == "mean":
        raise BadInput("a weighted mean of losses is not the mean of the samples'; give the loss reduction='sum'")
    if isinstance(loss, torch.nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise BadInput("the loss has parameters of its own, which would not be trained; make them part of the module")
    return reduction == "mean"


def takes_module(loss: object) -> bool:
    """Return whether a loss takes (module, batch), according to the name of its first parameter.

    >>> takes_module(lambda model, batch: 0.0), takes_module(lambda outputs, targets: 0.0)
    (True, False)
    """
    if isinstance(loss, type) or not callable(loss):
        raise BadInput(
            f"the loss must be a function of (outputs, targets) or (module, batch), got {_class_or_kind(loss)}"
        )
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # a compiled function has no signature
        return False
    return len(names) > 1 and names[0] in _MODULE


_SINGLES = 8  # samples of a batch whose losses are computed one by one, at most
_OUTPUTS_ADVICE = (
    "to leave out targets give torch's own CrossEntropyLoss(ignore_index=…) or NLLLoss, which is exact, else a loss "
    "that is a sum over samples, with reduction='sum'"
)
_SAMPLES_ADVICE = (
    "where it is a mean over the targets that are not padding, give count=…, a function of a batch that gives their "
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
    alone = np.unique(np.linspace(0, count - 1, min(count, _SINGLES)).astype(np.intp))

    def measure(places: Index, nudge: int | None) -> Floats:
        rows = slice(int(places[0]), int(places[-1]) + 1)
        parts = [leaf[rows].detach() for leaf in leaves]
        if nudge is not None:
            parts = [_nudged(part, network, nudge) if part.is_floating_point() else part for part in parts]
        inputs = [part.requires_grad_() for part in parts if part.is_floating_point()]
        loss = network.loss_at(pytree.tree_unflatten(parts, tree), targets[rows])
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
        by_sample = torch.cat([g.reshape(len(g), -1).double() for g in gradients if g is not None], dim=1)
        total = np.zeros((len(alone), by_sample.shape[1]))
        whole = len(places) == count
        total[slice(None) if whole else alone == places] = (by_sample[alone] if whole else by_sample).cpu().numpy()
        factor = len(places) if network.mean else 1
        return np.append(float(loss.detach()), total) * factor

    with warnings.catch_warnings(action="ignore"), torch.enable_grad():  # of shapes that do not fit one sample
        try:
            correct = adds_up(measure, count, tolerance=_tolerance(network), alone=alone, vectors=len(alone))
        except Exception:  # the loss need not accept a single sample
            return
    if not correct:
        raise not_a_sum(samples, _pairing_advice(outputs, targets) or _OUTPUTS_ADVICE, mean=network.mean)


def check_samples(network: Network, batch_of: Callable[[Index], Batch], count: int, samples: str) -> None:
    """Do the same as :func:`check_loss` by means of samples: ``batch_of(places)`` returns some of the ``count`` ones.

    The loss and its gradient with respect to the parameters are compared, in evaluation mode, so that neither dropout
    nor the statistics of batch norm make a difference. Raises also if the loss of a single sample fails or is not a
    number, such as a mean over no target.
    """
    import torch

    if count < 2:
        return
    terms = [0.0, np.nan]  # of all samples together, and of single samples in order of their places

    def measure(places: Index, nudge: int | None) -> Floats:
        single = len(places) == 1
        try:
            batch = batch_of(places)
            own = network.terms(batch, len(places))
            terms[single] = own if places[0] == 0 else terms[single] + own
            if not own:
                return np.zeros(1)
            with _nudged_parameters(network, nudge):
                loss = network.loss_of(batch)
                inputs = trained(network.module)
                gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
            parts = [torch.zeros_like(w) if g is None else g for w, g in zip(inputs, gradients, strict=True)]
            flat = torch.cat([loss.detach().reshape(1), *(part.reshape(-1) for part in parts)]).double().cpu().numpy()
        except BadInput:
            raise
        except Exception as error:
            if not single:
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise BadInput(
                f"whether the loss is a sum over samples cannot be told: of several ({samples}) it is a number, but of "
                f"one of them alone it fails ({reason}); give one that a single sample has, too"
            ) from None
        if single and not np.isfinite(flat).all():
            raise BadInput(
                f"the loss of {samples} together is a number, but that of one of them alone is not: it leaves out "
                f"targets; {_SAMPLES_ADVICE}"
            )
        return np.asarray(flat * (own if network.mean else 1.0))

    training = network.module.training
    network.module.eval()
    try:
        with warnings.catch_warnings(action="ignore"), torch.enable_grad():
            correct = adds_up(measure, count, tolerance=_tolerance(network))
    except BadInput:
        raise
    except Exception:  # the run reports what fails
        return
    finally:
        network.module.train(training)
    if not np.isnan(terms[1]) and terms[1] != terms[0]:
        raise BadInput(
            f"count gives {terms[0]:g} terms for {samples} together and {terms[1]:g} for them one by one; it must "
            "count what the loss of a batch adds up"
        )
    if not correct:
        raise not_a_sum(samples, _SAMPLES_ADVICE, mean=network.mean)


@contextmanager
def _nudged_parameters(network: Network, nudge: int | None) -> Iterator[None]:
    """Change the trained parameters by some roundings for a while, but not their memory, which may be shared."""
    parameters = [] if nudge is None else trained(network.module)
    originals = [parameter.data for parameter in parameters]
    for parameter in parameters:
        parameter.data = _nudged(parameter.data, network, nudge or 0)
    try:
        yield
    finally:
        for parameter, values in zip(parameters, originals, strict=True):
            parameter.data = values


def _nudged(values: torch.Tensor, network: Network, nudge: int) -> torch.Tensor:
    """Return values changed by some roundings of the numbers that the network computes in."""
    import torch

    if network.precision:
        rounding = torch.finfo(torch.bfloat16).eps
    else:
        rounding = torch.finfo(values.dtype).eps if network.kind == "cpu" else 2.0**-11  # TF32's
    signs = torch.from_numpy(nudge_signs(values.numel(), nudge)).view(values.shape).to(values)
    return values * (1.0 + rounding * signs)


def _pairing_advice(outputs: object, targets: torch.Tensor) -> str | None:
    """Return advice if the targets have as many numbers as the outputs but another shape, else None."""
    import torch

    if not isinstance(outputs, torch.Tensor) or outputs.shape == targets.shape or outputs.numel() != targets.numel():
        return None
    return (
        f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} are not paired one by "
        "one but each with all; give them the same shape"
    )


def _tolerance(network: Network) -> float:
    """Return a relative difference that rounding may cause: in bfloat16, on other devices, or in single precision."""
    return 0.02 if network.precision or network.kind != "cpu" else 1e-4
