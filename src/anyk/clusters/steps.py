"""Steps as plain data, and their arithmetic on any part of a model.

A strategy's command becomes a :class:`StepPlan`, in which everything is decided. Who holds a part of the model, of the
messages and of the optimiser's state takes the step there, by the same function as who holds the whole.

Models are processed in parts of :data:`~anyk.base.keyed.PART` numbers, so that intermediate results stay in the
processor's cache and take no memory, whatever the model's size; the parts of a large model are distributed over all
cores. Coordinates are independent, so the numbers do not depend on the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from anyk.base import keyed
from anyk.base.arrays import Array, Floats, Vector, Vectors
from anyk.base.errors import RunFailed
from anyk.base.keyed import array_digest
from anyk.clusters.vector_parts import over_parts, sum_over_parts
from anyk.optimizers import Clip, Optimizer, squared_norm, unclipped
from anyk.optimizers import optimizer as build_optimizer

Place = tuple[int, int]  # a message, by its task and chunk
OUTER = "outer "  # with which the names of an outer optimiser's vectors begin


class StaleMessage(NamedTuple):
    """A message with gradients of an older version, which are compensated for the delay with this ``factor``."""

    message: Place
    version: int
    factor: Any


class ModelTerm(NamedTuple):
    """A model that is added with a weight."""

    slot: str
    version: int
    weight: float


class MixPlan(NamedTuple):
    """The part of a plan that mixes models: ``models`` are added to the messages, in this order.

    ``outer``: the spec and the learning rate of the optimiser that steps by the difference from the slot's version;
    None: the sum is the next version.
    """

    models: tuple[ModelTerm, ...] = ()
    outer: tuple[str, float] | None = None


class StepPlan(NamedTuple):
    """A step from a slot's ``version``, as plain data.

    The gradient is the weighted sum of ``messages``, compensated for their delay (``compensation``; None: not at all),
    divided by ``divisor``, plus ``penalty`` times the model. An optimiser steps by it, at ``scale`` times its learning
    rate. With a ``mix`` there is no gradient, and the messages are models.
    """

    slot: str
    version: int
    messages: Sequence[Place]
    weights: Sequence[Any]  # a number for each message, or a list of one for each block
    divisor: float = 1.0
    penalty: float = 0.0
    compensation: tuple[StaleMessage, ...] | None = None
    scale: float = 1.0
    mix: MixPlan | None = None

    @property
    def optimised(self) -> bool:
        """Whether an optimiser takes the step."""
        return self.mix is None or self.mix.outer is not None


def split_states(states: Vectors) -> tuple[Vectors, Vectors]:
    """Return a slot's states without those of an outer optimiser, and these, by the names that they have for it."""
    inner = {name: vector for name, vector in states.items() if not name.startswith(OUTER)}
    outer = {name.removeprefix(OUTER): vector for name, vector in states.items() if name.startswith(OUTER)}
    return inner, outer


def named_outer(state: Vectors) -> Vectors:
    """Return the state of an outer optimiser by the names that it has among a slot's states."""
    return {OUTER + name: vector for name, vector in state.items()}


def stepping_by(plan: StepPlan, optimizer: Optimizer, states: Vectors, w: Vector) -> tuple[Optimizer | None, Vectors]:
    """Return what steps by a plan, None if nothing does, and its state among a slot's ``states``.

    ``w``: the model from which it steps, or the part of it whose states these are.
    """
    if plan.mix is None:
        return optimizer, states
    if plan.mix.outer is None:
        return None, {}
    spec, rate = plan.mix.outer
    outer = build_optimizer(spec, lr=rate)
    return outer, split_states(states)[1] or outer.start(w)


def note_state(plan: StepPlan, states: Vectors, state: Vectors) -> None:
    """Put the ``state`` of :func:`stepping_by` after the step among a slot's states."""
    if state is not states:
        states.update(named_outer(state))


class Source(Protocol):
    """Messages that have arrived and models, at coordinates of the whole vector."""

    def combine(self, messages: Sequence[Place], weights: Sequence[Any], coordinates: slice) -> Floats:
        """Return the weighted sum of messages, added in order, as a new array."""
        ...

    def model_at(self, slot: str, version: int, coordinates: slice) -> Vector:
        """Return the numbers of a version, which are not changed."""
        ...


def _checked_step(stepped: Any, w: Vector, optimizer: Optimizer) -> Array:
    """Return what an optimiser made of a model; raise :class:`~anyk.RunFailed` unless it is as many real numbers."""
    values: Array = np.asanyarray(stepped)
    if values.shape != w.shape or values.dtype.kind not in "fiu" or isinstance(values, np.ma.MaskedArray):
        form = "masked numbers" if isinstance(values, np.ma.MaskedArray) else str(values.dtype)
        raise RunFailed(
            f"the optimizer '{optimizer.spec}' must return a model of {w.size:,} real numbers, got "
            f"{type(stepped).__name__} of shape {values.shape} ({form})"
        )
    return values


class PartOfStep:
    """The arithmetic of a plan where ``w`` is the model from ``offset`` on, a multiple of ``PART``.

    ``out``, of the same length, receives the next version. ``penalties``: the regulariser's factor of each of these
    coordinates if it is not the plan's for all.
    """

    def __init__(
        self,
        plan: StepPlan,
        source: Source,
        *,
        w: Vector,
        out: Vector,
        offset: int = 0,
        penalties: Vector | None = None,
    ) -> None:
        assert offset % keyed.PART == 0, "parts that are cut elsewhere have other digests"
        self._plan, self._source = plan, source
        self.w, self._out, self._offset, self._penalties = w, out, offset, penalties

    def squares(self) -> list[float]:
        """Return the squared norm of each part of what an optimiser that clips steps by, which is kept in ``out``."""

        def write(part: slice) -> float:
            self._out[part] = self._direction(part)
            return squared_norm(self._out[part])

        return over_parts(write, self.w.size)

    def take(self, optimizer: Optimizer | None, state: Vectors, factor: float | None = None) -> int | None:
        """Write the next version and return its digest, or None if the optimiser cannot step a part by itself.

        The digests of all parts add up to the whole vector's modulo 2^63. ``state``: the optimiser's at these
        coordinates, which is changed. ``factor``: of an optimiser that clips, after :meth:`squares`; by default that of
        these coordinates alone. Raises :class:`~anyk.RunFailed` if the next version is not finite.
        """
        plan, w, out = self._plan, self.w, self._out
        if not plan.optimised:

            def write(part: slice) -> int:
                out[part] = self._sum_of_models(part)
                return self._digest(out, part)

            return sum_over_parts(write, w.size)
        assert optimizer is not None
        steps_by = unclipped(optimizer)
        with steps_by.stepping(w, state, plan.version, plan.scale, out, offset=self._offset) as step:
            if step is None:
                return None
            if isinstance(optimizer, Clip) and factor is None:
                factor = optimizer.factor(self.squares())

            def step_part(part: slice) -> int:
                step(part, self._direction(part) if factor is None else out[part] * out.dtype.type(factor))
                return self._digest(out, part)

            return sum_over_parts(step_part, w.size)

    def take_at_once(self, optimizer: Optimizer, state: Vectors) -> tuple[Vector, int]:
        """Return the next version and its digest after a step of the whole model, for any optimiser."""
        plan, w = self._plan, self.w
        whole = np.empty_like(w)

        def write(part: slice) -> int:
            whole[part] = self._direction(part)
            return 0

        sum_over_parts(write, w.size)
        with np.errstate(over="ignore", invalid="ignore"):
            stepped = optimizer.step(w, whole, state, plan.version, plan.scale, out=self._out)
        out = self._out
        if stepped is not out:  # it may be a buffer of the optimiser's own
            out[:] = _checked_step(stepped, w, optimizer)
        return out, sum_over_parts(lambda part: self._digest(out, part), w.size)

    def _direction(self, part: slice) -> Vector:
        """Return what the optimiser steps by: the gradient, or the change by local work."""
        if self._plan.mix is None:
            return self._gradient(part)
        w = self.w[part]
        return np.subtract(w, self._sum_of_models(part)).astype(w.dtype, copy=False)

    def _gradient(self, part: slice) -> Vector:
        plan, w = self._plan, self.w[part]
        g = self._source.combine(plan.messages, plan.weights, self._coordinates(part))
        if plan.compensation is not None:
            correction = self._compensation(plan.compensation, part)
            np.add(g, correction, out=g, where=correction != 0.0)  # adding 0.0 would remove the mark of no gradient
        g /= plan.divisor
        if self._penalties is not None:
            g += w * self._penalties[part]
        elif plan.penalty:
            g += w * plan.penalty
        return g.astype(self._out.dtype, copy=False)

    def _compensation(self, stale: Sequence[StaleMessage], part: slice) -> Floats | float:
        """Return the sum of ``factor g g (w - w_old)`` of each stale message's gradient g."""
        coordinates = self._coordinates(part)
        total: Floats | float = 0.0
        for message, version, factor in stale:
            g = self._source.combine([message], [1.0], coordinates)
            g *= g
            g *= self.w[part] - self._source.model_at(self._plan.slot, version, coordinates)
            total = total + g * factor
        return total

    def _sum_of_models(self, part: slice) -> Floats:
        plan, coordinates = self._plan, self._coordinates(part)
        assert plan.mix is not None
        mixed = self._source.combine(plan.messages, plan.weights, coordinates)
        for slot, version, weight in plan.mix.models:
            mixed += weight * self._source.model_at(slot, version, coordinates)
        return mixed

    def _coordinates(self, part: slice) -> slice:
        """Return the coordinates of a part in the whole vector."""
        return slice(self._offset + part.start, self._offset + part.stop) if self._offset else part

    def _digest(self, out: Vector, part: slice) -> int:
        """Return the digest of a part of the next version."""
        numbers = out[part]
        if not np.isfinite(numbers).all():
            version = self._plan.version
            raise RunFailed(f"diverged at step {version}: the model is no longer finite; lower the learning rate")
        return array_digest(numbers, self._offset + part.start)
