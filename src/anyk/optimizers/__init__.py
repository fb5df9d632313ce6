"""Optimisers: steps on flat vectors."""

from anyk.optimizers.schedules import (
    ConstantRate,
    ExponentialRate,
    InverseTimeRate,
    Schedule,
    learning_rate,
)
from anyk.optimizers.schedules import registry as schedules
from anyk.optimizers.steps import GD, Accelerated, Adam, AdamW, Momentum, Nesterov, Optimizer, SlowMo
from anyk.specs import Registry

registry: Registry[Optimizer] = Registry("optimizer", given=("lr",))
for _optimizer in (GD, Momentum, Nesterov, Accelerated, Adam, AdamW, SlowMo):
    registry.register(_optimizer.name)(_optimizer)

register = registry.register


def optimizer(spec: str, *, lr: float | str | Schedule) -> Optimizer:
    """Build an optimiser from its spec and a learning rate (a number, a schedule's spec or a schedule).

    >>> optimizer("nesterov:momentum=0.8", lr=0.1).spec
    'nesterov:momentum=0.8'
    """
    return registry.build(spec, lr=lr)


__all__ = [
    "GD",
    "Accelerated",
    "Adam",
    "AdamW",
    "ConstantRate",
    "ExponentialRate",
    "InverseTimeRate",
    "Momentum",
    "Nesterov",
    "Optimizer",
    "Schedule",
    "SlowMo",
    "learning_rate",
    "optimizer",
    "register",
    "registry",
    "schedules",
]
