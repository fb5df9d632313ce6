"""Learning rates over steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Protocol, cast

from anyk.checks import NonnegativeNumber, PositiveShare, check, value_class
from anyk.errors import BadInput
from anyk.specs import Registry, show


class Schedule(Protocol):
    """The learning rate at step t = 0, 1, 2, …"""

    @property
    def spec(self) -> str:
        """The short form."""
        ...

    def at(self, step: int) -> float:
        """Return the learning rate of step ``step``."""
        ...


@dataclass(frozen=True)
class _Rate:
    start: float
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not 0.0 < self.start < inf:
            raise BadInput(f"a learning rate must be a finite number above 0, got {self.start:g}")

    @property
    def spec(self) -> str:
        """The short form."""
        return show(self.name, vars(self))


@value_class
class ConstantRate(_Rate):
    """A constant learning rate."""

    name = "constant"

    @property
    def spec(self) -> str:
        """The short form: the number alone."""
        return repr(float(self.start)).removesuffix(".0")

    def at(self, step: int) -> float:
        return self.start


@value_class
class ExponentialRate(_Rate):
    """``start * decay^t``.

    >>> ExponentialRate(0.1, 0.99).at(2)
    0.09801
    """

    decay: PositiveShare
    name = "exponential"

    def at(self, step: int) -> float:
        return float(self.start * self.decay**step)


@value_class
class InverseTimeRate(_Rate):
    """``start / (1 + decay * t)``."""

    decay: NonnegativeNumber
    name = "inverse"

    def at(self, step: int) -> float:
        return self.start / (1.0 + self.decay * step)


registry: Registry[Schedule] = Registry("learning-rate schedule")
for _schedule in (ConstantRate, ExponentialRate, InverseTimeRate):
    registry.register(_schedule.name)(_schedule)


def learning_rate(lr: float | str | Schedule) -> Schedule:
    """Return the schedule of a number, a spec or a schedule.

    >>> learning_rate("exponential:start=0.1,decay=0.99").at(0)
    0.1
    """
    if isinstance(lr, str):
        lr = number_in(lr)
        return registry.build(lr) if isinstance(lr, str) else ConstantRate(lr)
    if callable(getattr(lr, "at", None)):
        return cast(Schedule, lr)  # a type checker does not tell a schedule from a number here
    return ConstantRate(check(lr, float, "lr"))


def number_in(text: str) -> float | str:
    """Return the number that a text represents, or the text."""
    try:
        return float(text)
    except ValueError:
        return text
