"""Learning rates over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

from anyk.checks import check, typed
from anyk.errors import BadInput
from anyk.specs import Registry, show


class Schedule(Protocol):
    """The learning rate at step t = 0, 1, 2, …"""

    @property
    def spec(self) -> str:
        """The short form."""
        ...

    def at(self, step: int) -> float:
        """The learning rate of step ``step``."""
        ...


def _check(start: float) -> None:
    if not 0.0 < start < float("inf"):
        raise BadInput(f"a learning rate must be a finite number above 0, got {start:g}")


@typed
@dataclass(frozen=True)
class ConstantRate:
    """The same learning rate always."""

    start: float
    name: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        _check(self.start)

    @property
    def spec(self) -> str:
        """The short form: the number alone."""
        return repr(float(self.start)).removesuffix(".0")

    def at(self, step: int) -> float:
        """See :class:`Schedule`."""
        del step
        return self.start


@typed
@dataclass(frozen=True)
class ExponentialRate:
    """``start * decay^t``.

    >>> ExponentialRate(0.1, 0.99).at(2)
    0.09801
    """

    start: float
    decay: float
    name: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        _check(self.start)
        if not 0.0 < self.decay <= 1.0:
            raise BadInput(
                f"the decay of an exponential learning rate must be above 0 and at most 1, got {self.decay:g}"
            )

    @property
    def spec(self) -> str:
        """The short form."""
        return show(self.name, {"start": self.start, "decay": self.decay})

    def at(self, step: int) -> float:
        """See :class:`Schedule`."""
        return float(self.start * self.decay**step)


@typed
@dataclass(frozen=True)
class InverseTimeRate:
    """``start / (1 + decay * t)``."""

    start: float
    decay: float
    name: ClassVar[str] = "inverse"

    def __post_init__(self) -> None:
        _check(self.start)
        if not 0.0 <= self.decay < float("inf"):
            raise BadInput(f"the decay of an inverse-time learning rate must be at least 0, got {self.decay:g}")

    @property
    def spec(self) -> str:
        """The short form."""
        return show(self.name, {"start": self.start, "decay": self.decay})

    def at(self, step: int) -> float:
        """See :class:`Schedule`."""
        return self.start / (1.0 + self.decay * step)


registry: Registry[Schedule] = Registry("learning-rate schedule")
for _schedule in (ConstantRate, ExponentialRate, InverseTimeRate):
    registry.register(_schedule.name)(_schedule)


def learning_rate(lr: float | str | Schedule) -> Schedule:
    """Make a schedule of a number, a spec or a schedule.

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
    """The number that a text is, or the text."""
    try:
        return float(text)
    except ValueError:
        return text
