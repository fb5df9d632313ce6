"""Optimisers from their specs."""

from __future__ import annotations

from anyk.errors import BadInput
from anyk.optimizers.schedules import Schedule, number_in
from anyk.optimizers.steps import Optimizer
from anyk.specs import Registry

STEPPED = "own"  # the spec of steps that a user's own loop takes

registry: Registry[Optimizer] = Registry("optimizer", given=("lr",))
register = registry.register


def optimizer(spec: str, *, lr: float | str | Schedule) -> Optimizer:
    """Build an optimiser from its spec and a learning rate (a number, a schedule's spec or a schedule).

    >>> optimizer("nesterov:momentum=0.8", lr=0.1).spec
    'nesterov:momentum=0.8'
    """
    if spec == STEPPED:
        raise BadInput(
            "the steps were taken by a loop of its own (anyk.rounds, anyk.torch.Optimizer): go on with the script that "
            "it is in, with go_on=True, or give an optimizer"
        )
    return registry.build(spec, lr=number_in(lr) if isinstance(lr, str) else lr)
