"""Checks of a PyTorch problem's options, module and loss."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from anyk.checks import AtLeastOne, AtLeastZero, check
from anyk.errors import BadInput, MissingPackage
from anyk.plain import ByName

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
    try:
        import torch
    except ImportError:
        raise MissingPackage("PyTorch", "torch", "TorchProblem") from None
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


def check_module(module: Any) -> None:
    """Refuse an object that is no module."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise BadInput(
            "the module is one of TorchScript, which cannot be sent to workers; give the module it was made of"
        )
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"the module must be a torch.nn.Module, got {_class_or_kind(module)}")


def _class_or_kind(value: Any) -> str:
    """Return the kind of a value in words; for a class, how to make an object of it."""
    named = getattr(value, "__name__", "")
    return f"the class {named}; make one, as in {named}(…)" if isinstance(value, type) else type(value).__name__


def ignored_by(loss: Any) -> int | None:
    """Return the target that a loss of torch's ignores, or None."""
    import torch

    classifies = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
    return int(loss.ignore_index) if classifies else None


def is_mean(loss: Any, reduction: str | None) -> bool:
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


def takes_module(loss: Any) -> bool:
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
