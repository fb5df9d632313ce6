"""Optimisers: steps on flat vectors."""

from anyk.optimizers.library_classes import MADE, Argument
from anyk.optimizers.optax_transformations import OptaxOptimizer
from anyk.optimizers.steps import (
    GD,
    STEPPED,
    Accelerated,
    Adam,
    AdamW,
    Clip,
    ConstantRate,
    ExponentialRate,
    InverseTimeRate,
    Momentum,
    Nesterov,
    Optimizer,
    Schedule,
    SlowMo,
    State,
    learning_rate,
    optimizer,
    register,
    registry,
    schedules,
    split_rate,
    squared_norm,
    suits_smoothness,
    unclipped,
)
from anyk.optimizers.torch_groups import give_state
from anyk.optimizers.torch_optimizers import TorchOptimizer

for _optimizer in (GD, Momentum, Nesterov, Accelerated, Adam, AdamW, SlowMo, Clip):
    register(_optimizer.name)(_optimizer)


@register("torch")
def _torch(
    method: str, *, lr: float | str | Schedule = 1e-3, schedule: str | None = None, **arguments: Argument
) -> Optimizer:
    """An optimiser of ``torch.optim``, with its own arguments as further keys."""
    return TorchOptimizer(method, lr=lr, schedule=schedule, **arguments)


@register("optax")
def _optax(method: str, *, lr: float | str | Schedule = 1.0, **arguments: Argument) -> Optimizer:
    """An optimiser of ``optax``, with its own arguments as further keys."""
    return OptaxOptimizer(method, lr=lr, **arguments)


__all__ = [
    "GD",
    "MADE",
    "STEPPED",
    "Accelerated",
    "Adam",
    "AdamW",
    "Clip",
    "ConstantRate",
    "ExponentialRate",
    "InverseTimeRate",
    "Momentum",
    "Nesterov",
    "OptaxOptimizer",
    "Optimizer",
    "Schedule",
    "SlowMo",
    "State",
    "TorchOptimizer",
    "give_state",
    "learning_rate",
    "optimizer",
    "register",
    "registry",
    "schedules",
    "split_rate",
    "squared_norm",
    "suits_smoothness",
    "unclipped",
]
