"""Laws of how long a worker takes: constant, exponential, shifted exponential, Pareto, two-valued, heterogeneous.

Every model turns keyed uniform draws into seconds, so a delay is a pure function of (seed, worker, number) and
strategies that are compared meet the same luck. Seconds are rounded to the nanosecond, which makes them equal on
machines whose logarithms differ in the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput
from anyk.specs import show

Floats = NDArray[np.float64]


def _check(name: str, value: float, *, least: float = 0.0, strictly: bool = True) -> None:
    rule = f"above {least:g}" if strictly else f"at least {least:g}"
    if not np.isfinite(value) or value < least or (strictly and value == least):
        raise BadInput(f"{name} must be a finite number {rule}, got {value:g}; for no delay at all use 'none'")


@dataclass(frozen=True)
class DelayModel(ABC):
    """How long a worker is held up before its reply is ready, in seconds, beyond its real computation.

    ``by``: what numbers the draws of a worker: its dispatched ``task``s (default), the ``round`` (model version), or
    the ``item`` (model version and how-many-th task on it). ``per="load"``: the drawn seconds are for one partition and
    held before each; ``per="task"``: once, before the first. ``uninterruptible``: the worker cannot be preempted while
    it is held up.
    """

    by: Literal["task", "round", "item"] = field(default="task", kw_only=True)
    per: Literal["task", "load"] = field(default="task", kw_only=True)
    uninterruptible: bool = field(default=False, kw_only=True)
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for key, known in (("by", ("task", "round", "item")), ("per", ("task", "load"))):
            if getattr(self, key) not in known:
                raise BadInput(f"{key} of '{self.name}' must be one of {', '.join(known)}, got {getattr(self, key)!r}")

    @property
    def spec(self) -> str:
        """The short form that :func:`anyk.delays.parse` reads back."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return show(self.name, values, {f.name: f.default for f in fields(self)})

    @abstractmethod
    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """The delays that uniform draws in [0, 1) stand for, same shape."""

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        """Delays ``start`` to ``start + count - 1`` of a worker, in seconds, shape (count,).

        >>> Exponential(mean=0.5).draws(1, 0, 3, 2).tolist() == Exponential(mean=0.5).draws(1, 0, 0, 5)[3:].tolist()
        True
        """
        draws = keyed.uniforms(seed, "delay", worker, start=start, count=count)
        return np.round(self.seconds(draws, worker), 9)

    def item_draw(self, seed: int, worker: int, version: int, repeat: int) -> float:
        """The delay of a worker's ``repeat``-th task on a model version (``by="item"``)."""
        draws = keyed.uniforms(seed, "delay-item", worker, version, start=repeat, count=1)
        return float(np.round(self.seconds(draws, worker), 9)[0])

    def at_load(self, seconds: float, relative_load: float) -> float:
        """A drawn delay adjusted to the share of the data that the task covers; only traces change it."""
        del relative_load
        return seconds

    def check_fleet(self, workers: int) -> None:
        """Raise :class:`~anyk.errors.BadInput` when the model cannot serve this many workers."""
        del workers


@dataclass(frozen=True)
class NoDelay(DelayModel):
    """No injected delay."""

    name: ClassVar[str] = "none"

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return np.zeros_like(uniforms)


@dataclass(frozen=True)
class Constant(DelayModel):
    """The same delay always."""

    value: float
    name: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the value of 'constant'", self.value)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return np.full_like(uniforms, self.value)


@dataclass(frozen=True)
class Uniform(DelayModel):
    """Anything from ``low`` to ``high``, all equally likely."""

    low: float
    high: float
    name: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("'low' of 'uniform'", self.low, strictly=False)
        _check("'high' of 'uniform'", self.high)
        if self.high <= self.low:
            raise BadInput(f"'high' of 'uniform' must be above 'low' ({self.low:g}), got {self.high:g}")

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return self.low + (self.high - self.low) * uniforms


@dataclass(frozen=True)
class Exponential(DelayModel):
    """Exponential delays with the given mean.

    >>> float(Exponential(mean=0.5).draws(seed=0, worker=0, start=0, count=20000).mean().round(2))
    0.5
    """

    mean: float
    name: ClassVar[str] = "exp"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the mean of 'exp'", self.mean)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return -self.mean * np.log1p(-uniforms)


@dataclass(frozen=True)
class ShiftedExponential(DelayModel):
    """A fixed shift plus an exponential delay with the given mean."""

    shift: float
    mean: float
    name: ClassVar[str] = "shifted-exp"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the shift of 'shifted-exp'", self.shift, strictly=False)
        _check("the mean of 'shifted-exp'", self.mean)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return self.shift - self.mean * np.log1p(-uniforms)


@dataclass(frozen=True)
class Pareto(DelayModel):
    """Pareto delays: ``P(delay > x) = (minimum / x)^alpha``; heavy tails, no mean for alpha <= 1."""

    minimum: float
    alpha: float
    name: ClassVar[str] = "pareto"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the minimum of 'pareto'", self.minimum)
        _check("the alpha of 'pareto'", self.alpha)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return self.minimum * (1.0 - uniforms) ** (-1.0 / self.alpha)


@dataclass(frozen=True)
class Bimodal(DelayModel):
    """Fast most of the time, slow with the given probability."""

    fast: float
    slow: float
    probability: float = 0.1
    name: ClassVar[str] = "bimodal"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("'fast' of 'bimodal'", self.fast, strictly=False)
        _check("'slow' of 'bimodal'", self.slow)
        if not 0.0 < self.probability < 1.0:
            raise BadInput(f"the probability of 'bimodal' must be between 0 and 1, got {self.probability:g}")
        if self.slow <= self.fast:
            raise BadInput(f"'slow' of 'bimodal' must be above 'fast' ({self.fast:g}), got {self.slow:g}")

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return np.where(uniforms < self.probability, self.slow, self.fast)


@dataclass(frozen=True)
class Heterogeneous(DelayModel):
    """Exponential delays whose mean differs by worker: ``hetero:means=0.1/0.1/0.4``, repeated over the fleet."""

    means: tuple[float, ...]
    name: ClassVar[str] = "hetero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.means:
            raise BadInput("'hetero' needs at least one mean, as in hetero:means=0.1/0.4")
        for mean in self.means:
            _check("each mean of 'hetero'", mean)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        return -self.means[worker % len(self.means)] * np.log1p(-uniforms)
