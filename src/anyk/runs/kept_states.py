"""What a loop steps with, and its checkpoints do not store: optimisers and schedulers that are not in ``keep``."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any


def left_out(optimizers: Sequence[Any], kept: Sequence[Any]) -> list[str]:
    """Return the names of the types whose states are in no checkpoint, of some optimisers and their schedulers.

    ``optimizers``: optimisers of torch with which a loop steps; ``kept``: the objects whose states checkpoints store.
    An optimiser that has no state, as plain gradient descent, needs no keeping. An object of the user's own is taken
    to store the state of what it holds.

    >>> import torch
    >>> adam = torch.optim.Adam([torch.zeros(1)])
    >>> schedule = torch.optim.lr_scheduler.StepLR(adam, 3)
    >>> left_out([adam], [adam]), left_out([adam], [adam, schedule])
    (['StepLR'], [])
    """
    stored = {id(part) for item in kept for part in _stored_with(item)}
    lost = [optimizer for optimizer in optimizers if id(optimizer) not in stored and _has_state(optimizer)]
    for optimizer in optimizers:
        schedulers = _schedulers_of(optimizer)
        inner = {id(part) for scheduler in schedulers for part in _stored_with(scheduler) if part is not scheduler}
        lost += [scheduler for scheduler in schedulers if id(scheduler) not in stored | inner]
    return [type(item).__name__ for item in lost]


def _stored_with(item: Any) -> Iterator[Any]:
    """Yield an object and those whose state its own contains."""
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    yield item
    if isinstance(item, LRScheduler):
        yield from getattr(item, "_schedulers", ())  # a scheduler knows its optimiser, but stores only schedulers
    elif not isinstance(item, Optimizer):
        yield from vars(item).values() if hasattr(item, "__dict__") else ()


def _has_state(optimizer: Any) -> bool:
    return any(value is not None for state in optimizer.state.values() for value in state.values())


def _schedulers_of(optimizer: Any) -> list[Any]:
    """Return the schedulers of an optimiser, which does not know them: they are looked for among all objects."""
    from torch.optim.lr_scheduler import LRScheduler

    schedulers = [item for item in gc.get_objects() if issubclass(type(item), LRScheduler)]
    return [scheduler for scheduler in schedulers if getattr(scheduler, "optimizer", None) is optimizer]
