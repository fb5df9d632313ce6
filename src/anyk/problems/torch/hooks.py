"""Hooks of a module's parameters, called with the gradient of a step instead of a partial gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import NO_GRADIENT, Vector, lacks_gradient
from anyk.base.errors import BadInput

if TYPE_CHECKING:
    import torch


def has_hooks(parameter: torch.nn.Parameter) -> bool:
    """Return whether a hook receives the parameter's gradient, before or after it is accumulated."""
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


@contextmanager
def without_hooks(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Compute without the hooks of parameters, for a while: torch looks them up in these dictionaries."""
    tables: list[Any] = [
        table
        for parameter in parameters
        for table in (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
        if table
    ]
    contents = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, content in zip(tables, contents, strict=True):
            table.update(content)


def set_gradients(parameters: Sequence[torch.nn.Parameter] = (), gradients: Sequence[torch.Tensor] = ()) -> None:
    """Add gradients to the ``grad`` of parameters as ``backward()`` does, which calls their hooks."""
    import torch

    if parameters:
        torch.autograd.backward(list(parameters), list(gradients))


def call_hooks(parameters: Sequence[torch.nn.Parameter], w: Vector, gradient: Vector) -> Vector:
    """Return what the hooks of the parameters make of a gradient at the model ``w``; they see both as in plain torch.

    The parameters themselves and their ``grad`` are left as they were. Raises :class:`~anyk.BadInput` if a hook
    takes a step.
    """
    import torch

    out, before = gradient.copy(), [(parameter, parameter.data, parameter.grad) for parameter in parameters]
    ends = np.cumsum([parameter.numel() for parameter in parameters])[:-1]
    try:
        models, pieces = np.split(w.copy(), ends), np.split(out, ends)
        for parameter, model in zip(parameters, models, strict=True):  # a hook may read any of them
            parameter.data = torch.from_numpy(model).view(parameter.shape).to(parameter.device)
        for parameter, piece in zip(parameters, pieces, strict=True):
            if has_hooks(parameter) and parameter.requires_grad and not lacks_gradient(piece):
                parameter.grad = None
                set_gradients([parameter], [torch.from_numpy(piece.copy()).view(parameter.shape).to(parameter.device)])
                piece[:] = NO_GRADIENT if parameter.grad is None else parameter.grad.cpu().numpy().reshape(-1)
        after = [parameter.detach().cpu().numpy().reshape(-1) for parameter in parameters]
        if not np.array_equal(np.concatenate(after), w):
            raise BadInput(
                "a hook of a parameter changes a parameter, which the optimiser of the run steps; use "
                "anyk.rounds(…, into=module), whose loop takes the steps"
            )
    finally:
        for parameter, data, grad in before:
            parameter.data, parameter.grad = data, grad
    return out
