"""Strategies: when to wait, when to step."""

import inspect
from typing import Any

from anyk import codes, specs
from anyk.errors import BadInput
from anyk.protocol import CancelMode, Strategy
from anyk.strategies.asynchronous import Asynchronous
from anyk.strategies.progress import ProgressRounds
from anyk.strategies.rounds import CodedRounds, Scaling
from anyk.strategies.tree import TreeRounds
from anyk.strategies.wait import (
    AllOf,
    AnyOf,
    Count,
    Deadline,
    Decodable,
    Predicate,
    ResidualBelow,
    Wait,
    Waiting,
)

registry: specs.Registry[Strategy] = specs.Registry("strategy", given=("workers",))
register = registry.register


@register("async")
def _asynchronous(workers: int, *, step: float = 1.0) -> Strategy:
    """Asynchronous SGD: each reply steps the model at once; its worker goes on from the newest version."""
    return Asynchronous(workers, step=step)


@register("agc")
def _approximate(
    workers: int,
    *,
    load: int | None = None,
    wait: str | None = None,
    scaling: Scaling | None = None,
    cancel: CancelMode = "preempt",
) -> Strategy:
    """ErasureHead's approximate gradient coding: frc stopped early (one reply more than groups, by default)."""
    code = codes.FractionalRepetition(workers, load=load)
    return CodedRounds(code, wait=wait or min(code.groups + 1, workers), scaling=scaling, cancel=cancel)


# the keys that a code's spec gains as a strategy
_ROUNDS = {"wait": str, "scaling": Scaling, "cancel": CancelMode, "decoder": str}


def rounds(code: codes.Code, **keys: Any) -> Strategy:
    """The strategy that runs a code: :class:`CodedRounds`, or rounds of its own where it has a protocol of its own.

    >>> type(rounds(codes.NestedCode(8))).__name__
    'ProgressRounds'
    """
    made: Any = CodedRounds
    if isinstance(code, codes.ProgressCode):
        made = ProgressRounds
    elif isinstance(code, codes.TreeCode):
        made = TreeRounds
    known = inspect.signature(made).parameters
    for key in keys:
        if key not in known:
            raise BadInput(f"'{code.spec}' takes no {key}: its rounds have a protocol of their own")
    strategy: Strategy = made(code, **keys)
    return strategy


def strategy(spec: str, *, workers: int) -> Strategy:
    """Build a strategy from its spec for ``workers`` workers.

    Every code is a strategy of rounds and then also takes ``wait``, ``scaling``, ``cancel`` and ``decoder``.
    Raises :class:`~anyk.errors.BadInput` when the spec is wrong.

    >>> strategy("agc:load=3,wait=11", workers=30).spec
    'frc:load=3,wait=11'
    """
    name, values = specs.parse(spec)
    if name in registry:
        return registry.build(spec, workers=workers)
    codes_known = tuple(entry.name for entry in codes.registry)
    if name not in codes_known:
        registry.entry(name, also=codes_known)
    if "" in values:
        raise BadInput(f"'{values['']}' in '{spec}' should be key=value, as in name:key=value,key=value")
    own: dict[str, Any] = {
        key: specs.read(values.pop(key), kind, f"{key} in '{spec}'") for key, kind in _ROUNDS.items() if key in values
    }
    return rounds(codes.registry.build_parsed(spec, name, values, workers=workers), **own)


__all__ = [
    "AllOf",
    "AnyOf",
    "Asynchronous",
    "CodedRounds",
    "Count",
    "Deadline",
    "Decodable",
    "Predicate",
    "ProgressRounds",
    "ResidualBelow",
    "TreeRounds",
    "Wait",
    "Waiting",
    "register",
    "registry",
    "rounds",
    "strategy",
]
