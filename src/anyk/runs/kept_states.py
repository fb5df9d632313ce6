"""What a loop steps with, and its checkpoints do not store: optimisers and schedulers that are not in ``keep``."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

_STEPS = 6  # from an object of the user's to the optimiser that it holds, through attributes, lists and dictionaries
_MOST = 10_000  # objects that are looked at in each of these steps


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
    """Yield an object and those whose state its own may contain, as far as few steps from it reach."""
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    seen, level = {id(item)}, [item]
    for _ in range(_STEPS):
        level, above = [], level
        for owner in above:
            yield owner
            if isinstance(owner, LRScheduler):
                # it knows its optimiser, but stores only the schedulers that it combines
                parts = list(getattr(owner, "_schedulers", ()))
            elif isinstance(owner, (Optimizer, type, ModuleType, FunctionType)):
                parts = []
            else:
                parts = gc.get_referents(owner)
            new = [part for part in parts if gc.is_tracked(part) and id(part) not in seen]
            seen.update(map(id, new))
            level += new[: _MOST - len(level)]


def _has_state(optimizer: Any) -> bool:
    return any(value is not None for state in optimizer.state.values() for value in state.values())


def _schedulers_of(optimizer: Any) -> list[Any]:
    """Return the schedulers of an optimiser, which does not know them: they are looked for among all objects."""
    from torch.optim.lr_scheduler import LRScheduler

    schedulers = [item for item in gc.get_objects() if issubclass(type(item), LRScheduler)]
    return [scheduler for scheduler in schedulers if getattr(scheduler, "optimizer", None) is optimizer]
