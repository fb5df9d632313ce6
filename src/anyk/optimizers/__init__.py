"""Optimisers: steps on flat vectors."""

from anyk.errors import BadInput
from anyk.optimizers.clipping import Clip
from anyk.optimizers.named import Argument
from anyk.optimizers.optax_transformations import OptaxOptimizer
from anyk.optimizers.schedules import (
    ConstantRate,
    ExponentialRate,
    InverseTimeRate,
    Schedule,
    learning_rate,
    number_in,
)
from anyk.optimizers.schedules import registry as schedules
from anyk.optimizers.steps import GD, Accelerated, Adam, AdamW, Momentum, Nesterov, Optimizer, SlowMo
from anyk.optimizers.torch_optimizers import TorchOptimizer
from anyk.specs import Registry

STEPPED = "own"  # in the place of a spec, where a loop of the user's own takes the steps

registry: Registry[Optimizer] = Registry("optimizer", given=("lr",))
for _optimizer in (GD, Momentum, Nesterov, Accelerated, Adam, AdamW, SlowMo, Clip):
    registry.register(_optimizer.name)(_optimizer)

register = registry.register


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


__all__ = [
    "GD",
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
    "TorchOptimizer",
    "learning_rate",
    "optimizer",
    "register",
    "registry",
    "schedules",
]
