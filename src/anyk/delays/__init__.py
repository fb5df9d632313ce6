"""Delays: how long workers take, as laws or as measured traces."""

from anyk.delays.models import (
    Bimodal,
    Constant,
    DelayModel,
    Exponential,
    Heterogeneous,
    NoDelay,
    Pareto,
    ShiftedExponential,
    Uniform,
)
from anyk.delays.stream import DelayStream
from anyk.delays.trace import Trace
from anyk.specs import Registry

registry: Registry[DelayModel] = Registry("delay model")
for _model in (NoDelay, Constant, Uniform, Exponential, ShiftedExponential, Pareto, Bimodal, Heterogeneous, Trace):
    registry.register(_model.name)(_model)

register = registry.register


def parse(spec: str) -> DelayModel:
    """Build a delay model from its spec; every model also takes ``by``, ``per`` and ``uninterruptible``.

    Raises :class:`~anyk.errors.BadInput` when the spec is wrong.

    >>> parse("exp:mean=0.5").spec
    'exp:mean=0.5'
    """
    return registry.build(spec)


__all__ = [
    "Bimodal",
    "Constant",
    "DelayModel",
    "DelayStream",
    "Exponential",
    "Heterogeneous",
    "NoDelay",
    "Pareto",
    "ShiftedExponential",
    "Trace",
    "Uniform",
    "parse",
    "register",
    "registry",
]
