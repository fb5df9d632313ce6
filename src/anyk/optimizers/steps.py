"""Optimisers: pure functions of (model, gradient, state, step) on flat vectors, with learning rates over steps.

All state is explicit.

``start`` returns the state, a dictionary of vectors; ``step`` returns the next model, in ``out`` if given, and changes
the state in place. The model is the point at which the next gradient is taken. New memory costs more than arithmetic on
a model of some hundred thousand numbers, so steps allocate as little as possible.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np

from anyk.base import keyed
from anyk.base.arrays import Flags, Indices, Vector
from anyk.base.checks import NonnegativeNumber, PositiveNumber, PositiveShare, check_value, value_class
from anyk.base.errors import BadInput
from anyk.base.registries import Registry
from anyk.base.specs import bracketed, parse_spec, show_spec, take_key, with_keys

State = dict[str, Vector]
Stepper = Callable[[slice, Vector], None]
Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]


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
        if not 0.0 < self.start < math.inf:
            raise BadInput(f"a learning rate must be a finite number above 0, got {self.start:g}")

    @property
    def spec(self) -> str:
        """The short form."""
        return show_spec(self.name, vars(self))


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


schedules: Registry[Schedule] = Registry("learning-rate schedule")
for _schedule in (ConstantRate, ExponentialRate, InverseTimeRate):
    schedules.register(_schedule.name)(_schedule)


def learning_rate(lr: float | str | Schedule) -> Schedule:
    """Return the schedule of a number, a spec or a schedule.

    >>> learning_rate("exponential:start=0.1,decay=0.99").at(0)
    0.1
    """
    if isinstance(lr, str):
        lr = number_in(lr)
        return schedules.build(lr) if isinstance(lr, str) else ConstantRate(lr)
    if callable(getattr(lr, "at", None)):
        return cast(Schedule, lr)  # a type checker does not tell a schedule from a number here
    return ConstantRate(check_value(lr, float, "lr"))


def number_in(spec: str) -> float | str:
    """Return the number that a text represents, or the text."""
    try:
        return float(spec)
    except ValueError:
        return spec


class _Pieces(NamedTuple):
    """The pieces of a vector that are parameters.

    Where they begin, their sizes, and whether they are known to be unused.
    """

    starts: Indices
    sizes: Indices
    unused: Flags

    @classmethod
    def of(cls, sizes: Indices, unused: Flags) -> _Pieces:
        filled = sizes > 0  # others have no coordinate
        sizes = sizes[filled]
        return cls(np.cumsum(sizes) - sizes, sizes, unused[filled])

    def within(self, span: slice) -> _Pieces:
        """Return the pieces of a part of the vector."""
        starts = np.maximum(self.starts, span.start)
        ends = np.minimum(self.starts + self.sizes, span.stop)
        return self.of(np.maximum(ends - starts, 0), self.unused)

    def at_rest(self, gradient: Vector) -> Flags | None:
        """Return the coordinates of the parameters that have no gradient; None if there are none (`lacks_gradient`)."""
        first = gradient[self.starts]
        if not ((first == 0.0) & (np.signbit(first) | self.unused)).any():
            return None
        zero = gradient == 0.0
        marked = np.logical_and.reduceat(np.signbit(gradient), self.starts)
        resting = np.logical_and.reduceat(zero, self.starts) & (marked | self.unused)
        return np.repeat(resting, self.sizes) if resting.any() else None


@dataclass(frozen=True)
class Optimizer(ABC):
    """A way to step; ``lr`` is a number, a schedule's spec or a schedule.

    ``by_coordinate = True`` in a class states that it steps each coordinate separately, in ``out`` and in the state's
    vectors, all of length d, so that a model can be stepped in slices. ``by_smoothness = True`` states that steps are
    in proportion to the gradient, so that 1 / smoothness of the problem is a learning rate. Subclasses inherit neither.
    """

    lr: float | str | Schedule = 1.0
    name: ClassVar[str] = ""
    by_coordinate: ClassVar[bool] = False
    by_smoothness: ClassVar[bool] = False
    rate: Schedule = field(init=False, repr=False, compare=False)
    _pieces: ClassVar[_Pieces | None] = None  # if parameters without a gradient are marked

    def __post_init__(self) -> None:
        if isinstance(self.lr, str) and not isinstance(number_in(self.lr), str):
            raise BadInput(f"lr must be a number or a schedule, not the text of a number, got {self.lr!r}")
        object.__setattr__(self, "rate", learning_rate(self.lr))

    @property
    def watches(self) -> Literal["higher", "lower"] | None:
        """The better values of evaluations if steps depend on them (:meth:`observe`), else None."""
        return None

    @property
    def uniform(self) -> bool:
        """Whether ``rate`` alone is the learning rate of all parameters."""
        return True

    @property
    def vectors(self) -> int:
        """The number of vectors of the model's length in the state."""
        try:
            return sum(vector.size == 2 for vector in self.start(np.zeros(2)).values())
        except Exception:  # a custom optimiser may require a certain length
            return 0

    def observe(self, state: State, value: float) -> None:
        """Note the value of the model after the last step; see :attr:`watches`."""
        del state, value

    @property
    def spec(self) -> str:
        """The short form, without the learning rate (``rate.spec``)."""
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("lr", "rate")}
        return show_spec(self.name, settings)

    @staticmethod
    def meant_by(value: Any) -> str:
        """Return what to write instead of an optimiser of torch or optax, at the end of a sentence."""
        home = (value if isinstance(value, type) else type(value)).__module__.partition(".")[0]
        if home == "torch" or hasattr(value, "param_groups"):
            rate = ", lr=…" if isinstance(value, type) else ""
            return f"; one of torch is given as anyk.optimizers.TorchOptimizer(…{rate})"
        if home == "optax" or (hasattr(value, "init") and hasattr(value, "update")):
            return "; one of optax is given as anyk.optimizers.OptaxOptimizer(…)"
        return ""

    def fitted(self, problem: Any) -> Optimizer:
        """Return the optimiser adapted to a problem's parameters, such as their shapes; by default unchanged."""
        return self

    def at_step(self, t: int, scale: float) -> Optimizer:
        """Return what takes step ``t`` in slices; a loop may have changed its optimiser since the last step."""
        return self

    def start(self, w: Vector) -> State:
        """Return the state before the first step from ``w``."""
        return {}

    def given_state(self) -> State:
        """Return the state with which the optimiser was given, for the whole model; empty if it has taken no step."""
        return {}

    @abstractmethod
    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        """Return the model after step ``t`` (from 0), in ``out`` if given; only ``gradient`` may be overwritten."""

    @contextmanager
    def stepping(
        self, w: Vector, state: State, t: int, scale: float, out: Vector, offset: int = 0
    ) -> Iterator[Stepper | None]:
        """Yield a function of (slice, gradient there) that steps the slice, or None if only a whole model can step.

        Several threads call it, once for each part. The arguments are as in :meth:`step`; ``w``, ``state`` and ``out``
        may be those of a part of the model, which begins at the coordinate ``offset``.
        """
        if not vars(type(self)).get("by_coordinate", False):
            yield None
            return

        def step(coordinates: slice, gradient: Vector) -> None:
            slice_state = {name: vector[coordinates] for name, vector in state.items()}
            self._of_part(coordinates, offset).step(
                w[coordinates], gradient, slice_state, t, scale, out=out[coordinates]
            )

        yield step

    def state_at(self, state: State, coordinates: slice) -> State:
        """Return the state of a part of the coordinates, for :meth:`stepping`."""
        return {name: vector[coordinates] for name, vector in state.items()}

    def joined_state(self, parts: Sequence[State]) -> State:
        """Return the state of the whole model from those of its parts, in order."""
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def _of_part(self, span: slice, offset: int) -> Optimizer:
        """Return the optimiser of a part of the coordinates from ``offset`` on."""
        if self._pieces is None:
            return self
        twin = copy.copy(self)
        object.__setattr__(twin, "_pieces", self._pieces.within(slice(offset + span.start, offset + span.stop)))
        return twin

    def _lr(self, t: int, scale: float) -> float:
        return self.rate.at(t) * scale

    def _descended(self, w: Vector, direction: Vector, t: int, scale: float, out: Vector | None) -> Vector:
        """Return the model after a step by ``-lr`` times a direction."""
        out = np.multiply(direction, -self._lr(t, scale), out=out)
        out += w
        return out


@value_class
class GD(Optimizer):
    """Gradient descent: ``w - lr g``.

    >>> import numpy as np
    >>> GD(lr=0.5).step(np.array([1.0]), np.array([1.0]), {}, 0)
    array([0.5])
    """

    name = "gd"
    by_coordinate = True
    by_smoothness = True

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        return self._descended(w, gradient, t, scale, out)


class _Resting(Optimizer):
    """The common part of optimisers with a state: parameters without a gradient rest, as in torch's optimisers."""

    def fitted(self, problem: Any) -> Optimizer:
        """Return an optimiser that leaves parameters alone which have no gradient, if the problem marks these."""
        if not getattr(problem, "marks_unused", False):
            return self
        sizes = [math.prod(shape) for shape in problem.shapes]
        unused = [index in getattr(problem, "unused_parameters", ()) for index in range(len(sizes))]
        fitted = copy.copy(self)
        object.__setattr__(fitted, "_pieces", _Pieces.of(np.array(sizes), np.array(unused)))
        return fitted

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        resting = None if self._pieces is None else self._pieces.at_rest(gradient)
        if resting is None:
            return self._step(w, gradient, state, t, scale=scale, out=out)
        resting_state = {name: vector[resting] for name, vector in state.items()}
        out = self._step(w, gradient, state, t, scale=scale, out=out)
        out[resting] = w[resting]
        for name, numbers in resting_state.items():
            state[name][resting] = numbers
        return out

    @abstractmethod
    def _step(self, w: Vector, gradient: Vector, state: State, t: int, scale: float, out: Vector | None) -> Vector:
        """Do :meth:`step` for all coordinates, also those without a gradient."""


@value_class
class Momentum(_Resting):
    """Heavy ball: ``v = momentum v + g``, ``w - lr v`` (Polyak 1964)."""

    momentum: Decay = 0.9
    name = "momentum"
    by_coordinate = True
    by_smoothness = True

    def start(self, w: Vector) -> State:
        return {"velocity": np.zeros_like(w)}

    def _step(self, w: Vector, gradient: Vector, state: State, t: int, scale: float, out: Vector | None) -> Vector:
        return self._descended(w, self._direction(gradient, state, scale, out), t, scale, out)

    def _direction(self, gradient: Vector, state: State, scale: float, out: Vector | None) -> Vector:
        """Return the direction, in the memory of ``gradient``, ``state`` or ``out``, if this is given."""
        velocity = state["velocity"]
        velocity *= self.momentum
        velocity += gradient
        return velocity


@value_class
class Nesterov(Momentum):
    """Nesterov momentum: ``v = momentum v + g``, ``w - lr (g + momentum v)``, as torch.optim.SGD has it."""

    name = "nesterov"
    by_coordinate = True
    by_smoothness = True

    def _direction(self, gradient: Vector, state: State, scale: float, out: Vector | None) -> Vector:
        out = np.multiply(super()._direction(gradient, state, scale, out), self.momentum, out=out)
        out += gradient
        return out


@value_class
class Accelerated(_Resting):
    """The accelerated method of the gradient-coding papers, ``theta_t = 2 / (t + 2)`` (Nesterov 1983).

    The papers use an auxiliary sequence, ``y_t = (1 - theta_t) x_t + theta_t u_t``, ``x_{t+1} = y_t - lr g(y_t)``,
    ``u_{t+1} = x_t + (x_{t+1} - x_t) / theta_t``; eliminating u gives
    ``y_{t+1} = x_{t+1} + t / (t + 3) (x_{t+1} - x_t)``, as computed here. The model is y, at which the gradient is
    taken.
    """

    name = "accelerated"
    by_coordinate = True
    by_smoothness = True

    def start(self, w: Vector) -> State:
        return {"x": w.copy()}

    def _step(self, w: Vector, gradient: Vector, state: State, t: int, scale: float, out: Vector | None) -> Vector:
        x = state["x"]
        gradient *= -self._lr(t, scale)
        gradient += w  # x_{t+1}
        out = np.subtract(gradient, x, out=out)
        out *= t / (t + 3)
        out += gradient
        x[:] = gradient
        return out


@value_class
class Adam(_Resting):
    """Adam with bias correction (Kingma and Ba 2015, Algorithm 1)."""

    lr: float | str | Schedule = field()  # steps do not grow with the gradient: no default suits every problem
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: PositiveNumber = 1e-8
    name = "adam"
    by_coordinate = True

    def start(self, w: Vector) -> State:
        return {"first": np.zeros_like(w), "second": np.zeros_like(w)}

    def _step(self, w: Vector, gradient: Vector, state: State, t: int, scale: float, out: Vector | None) -> Vector:
        first, second = state["first"], state["second"]
        first *= self.beta1
        first += np.multiply(gradient, 1.0 - self.beta1, out=out)
        second *= self.beta2
        gradient *= gradient
        gradient *= 1.0 - self.beta2
        second += gradient
        size = np.divide(second, 1.0 - self.beta2 ** (t + 1), out=gradient)
        np.sqrt(size, out=size)
        size += self.epsilon
        out = np.multiply(first, -self._lr(t, scale) / (1.0 - self.beta1 ** (t + 1)), out=out)
        out /= size
        out += w
        return out


@value_class
class AdamW(Adam):
    """Adam with decoupled weight decay: the model also shrinks by ``lr weight_decay`` (Loshchilov and Hutter 2019)."""

    weight_decay: NonnegativeNumber = 0.01
    name = "adamw"
    by_coordinate = True

    def _step(self, w: Vector, gradient: Vector, state: State, t: int, scale: float, out: Vector | None) -> Vector:
        out = super()._step(w, gradient, state, t, scale=scale, out=out)
        out -= np.multiply(w, self._lr(t, scale) * self.weight_decay, out=gradient)
        return out


@value_class
class SlowMo(Momentum):
    """Slow momentum for the change by local steps: ``u = momentum u + d / r``, ``w - lr r u`` (Wang et al. 2020).

    ``d`` is the change and r the learning rate of the local steps (``scale``), so that u is in units of gradients and
    a learning rate that falls does not leave old momentum too large.
    """

    momentum: Decay = 0.5
    name = "slowmo"
    by_coordinate = True

    def _direction(self, gradient: Vector, state: State, scale: float, out: Vector | None) -> Vector:
        return super()._direction(np.divide(gradient, scale, out=gradient), state, scale, out)


STEPPED = "own"  # the spec of steps that a user's loop takes

registry: Registry[Optimizer] = Registry("optimizer", supplied=("lr",))
register = registry.register


Rate = TypeVar("Rate", bound=float | str | Schedule)
_OTHER_WORDS = ("learning_rate", "rate", "step_size", "alpha", "eta")  # for the key lr


def split_rate(spec: str, lr: Rate | None = None) -> tuple[str, Rate | str | None]:
    """Return an optimiser's spec without its learning rate, and the rate: the spec's own, or ``lr``.

    Raises :class:`~anyk.BadInput` if both are given.

    >>> split_rate("adam:beta1=0.8,lr=0.1"), split_rate("clip:of=(gd:lr=0.1),norm=5")
    (('adam:beta1=0.8', '0.1'), ('clip:norm=5,of=gd', '0.1'))
    """
    name, values = parse_spec(spec)
    if word := next((word for word in _OTHER_WORDS if word in values), None):
        raise BadInput(f"the learning rate in '{spec}' is called lr, not {word}, as in {name}:lr={values[word]}")
    plain, spec_rate = take_key(spec, "lr")
    outer, inner = take_key(plain, "of")
    if inner is not None:
        inner, inner_rate = split_rate(inner, spec_rate)
        if inner_rate is not None and spec_rate is None:
            plain, spec_rate = with_keys(outer, {"of": bracketed(inner)}), str(inner_rate)
    if spec_rate is not None and lr is not None:
        given_rate = lr if isinstance(lr, (int, float, str)) else lr.spec
        raise BadInput(f"the learning rate is given twice, as '{spec}' and as lr={given_rate}; keep one")
    return plain, lr if spec_rate is None else spec_rate


def suits_smoothness(spec: str) -> bool:
    """Return whether 1 / smoothness of the problem is a learning rate for an optimiser.

    >>> suits_smoothness("nesterov"), suits_smoothness("clip:of=momentum"), suits_smoothness("adamw")
    (True, True, False)
    """
    name, values = parse_spec(spec)
    if name == Clip.name:
        return suits_smoothness(values.get("of", GD.name))
    return bool(vars(registry.entry(name).build).get("by_smoothness", False))


def optimizer(spec: str, *, lr: float | str | Schedule | None = None) -> Optimizer:
    """Build an optimiser from its spec and a learning rate (a number, a schedule's spec or a schedule).

    The rate may be in the spec instead. Raises :class:`~anyk.BadInput` if it is in neither place or in both.

    >>> optimizer("nesterov:momentum=0.8", lr=0.1).spec, optimizer("adam:lr=0.1").rate.spec
    ('nesterov:momentum=0.8', '0.1')
    """
    if spec == STEPPED:
        raise BadInput(
            "the steps were taken by the user's loop (anyk.rounds, anyk.torch.Optimizer): continue with its "
            "script, with go_on=True, or give an optimizer"
        )
    plain, rate = split_rate(spec, lr)
    if rate is None:
        registry.entry(parse_spec(plain)[0])
        raise BadInput(
            f"the optimizer '{spec}' needs a learning rate: lr=…, or as in '{with_keys(plain, {'lr': 0.01})}'"
        )
    return registry.build(plain, lr=number_in(rate) if isinstance(rate, str) else rate)


def squared_norm(numbers: Vector) -> float:
    """Return the squared norm of at most :data:`~anyk.base.keyed.PART` numbers, whose bits no thread pool changes."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.square(numbers, dtype=float).sum())  # squares of float32 overflow soon


def unclipped(of: Optimizer) -> Optimizer:
    """Return what steps by the gradients that an optimiser has clipped; the optimiser itself if it does not clip."""
    while isinstance(of, Clip):
        of = of.inner
    return of


@value_class
class Clip(Optimizer):
    """Steps of another optimiser (``of``) on gradients scaled down to a Euclidean ``norm`` (Pascanu et al. 2013).

    The gradient is the one of a whole step, combined, averaged and regularised; a longer one is multiplied by
    ``norm / (|g| + 1e-6)``, as ``torch.nn.utils.clip_grad_norm_`` does. ``of`` is an optimiser, whose learning rate
    holds, or a spec, which takes ``lr``. A model is stepped in slices if ``of`` can be, by the :meth:`factor` of the
    whole gradient, whose squares add up over parts of :data:`~anyk.base.keyed.PART` numbers.

    >>> import numpy as np
    >>> Clip(lr=1.0, of="gd", norm=5.0).step(np.zeros(2), np.array([30.0, 40.0]), {}, 0).round(5)
    array([-3., -4.])
    """

    lr: Any = None  # by default the inner optimiser's
    of: str | Optimizer = "gd"
    norm: PositiveNumber = 1.0
    name = "clip"

    def __post_init__(self) -> None:
        if isinstance(self.of, str):
            object.__setattr__(self, "of", optimizer(self.of, lr=self.lr))
        elif self.lr is not None and self.lr != self.inner.lr:
            raise BadInput(
                f"the learning rate is given twice, as {self.lr} and as {self.inner.lr} of {self.of}; keep one"
            )
        object.__setattr__(self, "lr", self.inner.lr)
        object.__setattr__(self, "rate", self.inner.rate)

    @property
    def inner(self) -> Optimizer:
        """The optimiser that steps by clipped gradients."""
        assert isinstance(self.of, Optimizer)
        return self.of

    @property
    def watches(self) -> Literal["higher", "lower"] | None:
        return self.inner.watches

    @property
    def uniform(self) -> bool:
        return self.inner.uniform

    @property
    def vectors(self) -> int:
        return self.inner.vectors

    def observe(self, state: State, value: float) -> None:
        self.inner.observe(state, value)

    @property
    def spec(self) -> str:
        return show_spec(self.name, {"of": bracketed(self.inner.spec), "norm": self.norm})

    def fitted(self, problem: Any) -> Optimizer:
        return replace(self, of=self.inner.fitted(problem))

    def start(self, w: Vector) -> State:
        return self.inner.start(w)

    def given_state(self) -> State:
        return self.inner.given_state()

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        self.shorten(gradient)
        return unclipped(self).step(w, gradient, state, t, scale, out=out)

    def shorten(self, gradient: Vector) -> None:
        """Scale a gradient down in place."""
        parts = range(0, gradient.size, keyed.PART)
        gradient *= gradient.dtype.type(self.factor([squared_norm(gradient[at : at + keyed.PART]) for at in parts]))

    def factor(self, squares: Sequence[float]) -> float:
        """Return the number by which a gradient is multiplied, from the squared norms of its parts, in order.

        A clipped gradient that is clipped again has the norm to which it was scaled.

        >>> round(Clip(lr=1.0, norm=5.0).factor([900.0, 1600.0]), 5), Clip(lr=1.0, norm=5.0).factor([9.0, 16.0])
        (0.1, 1.0)
        """
        total = 0.0
        for square in squares:  # in this order: sum() of later versions of Python rounds in another way
            total += square
        norm, factor = math.sqrt(total), 1.0
        clips: Optimizer = self
        while isinstance(clips, Clip):
            if norm > clips.norm:
                shorter = min(1.0, clips.norm / (norm + 1e-6))
                factor, norm = factor * shorter, norm * shorter
            clips = clips.inner
        return factor

    def state_at(self, state: State, coordinates: slice) -> State:
        return self.inner.state_at(state, coordinates)

    def joined_state(self, parts: Sequence[State]) -> State:
        return self.inner.joined_state(parts)
