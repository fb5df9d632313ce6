"""A slice at a node: sums, models and optimisers' states at its coordinates, and steps there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from anyk.base import keyed
from anyk.base.arrays import Array, DType, Floats, Vector, Vectors
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.messages import add_weighted
from anyk.clusters.nodes.compiler import without_compiler
from anyk.clusters.nodes.wire import PIECE
from anyk.clusters.steps import PartOfStep, Place, StepPlan, note_state, stepping_by
from anyk.optimizers import Clip, Optimizer, squared_norm
from anyk.problems.base import Partitions
from anyk.protocol import Layout

SliceCopies = Annotated[int, msgspec.Meta(ge=1, le=2)]  # nodes that hold each slice
_LARGE = 1 << 24  # bytes of a slice whose memory is freed; that of others is used again, which is faster


def cut(dimension: int, itemsize: int, holders: int) -> list[tuple[int, int]]:
    """Return the first coordinate of each holder's slice, and the one after its last; some may be empty.

    They are multiples of a part, whose digests add up, and of a piece, whose bytes are digested.

    >>> cut(1_000_000, 4, 3)
    [(0, 393216), (393216, 786432), (786432, 1000000)]
    """
    unit = max(keyed.PART, PIECE // itemsize)
    units, left = divmod(-(-dimension // unit), holders)
    ends = [min(dimension, unit * (units * rank + min(rank, left))) for rank in range(holders + 1)]
    return list(pairwise(ends))


def no_slices(layout: Layout) -> str:
    """Return why a strategy's sums cannot lie in slices, "" if they can."""
    if layout.blocks > 1:
        return "this code's replies are shorter than the model"
    if layout.voting:
        return "replies are compared number by number, which needs them in one place"
    return ""


COMPRESSED = "compressed messages are decompressed as a whole"  # why theirs cannot


def check_slices(layout: Layout, partitions: Partitions, cluster: str) -> None:
    """Raise :class:`~anyk.BadInput` for what slices cannot do."""
    reason = no_slices(layout)
    if not reason and any(partitions.support(j) is not None for j in range(len(partitions.sizes))):
        reason = "this data is sparse, and its replies contain some coordinates only"
    if reason:
        raise not_in_slices(reason, cluster)


def not_in_slices(reason: str, cluster: str) -> BadInput:
    """Return the error that a run cannot lie in slices."""
    return BadInput(f"slices=nodes is not possible: {reason}; use cluster '{cluster}' without slices")


class Coordinates(Protocol):
    """Numbers of a model, of which the holder's are there."""

    def __getitem__(self, coordinates: slice, /) -> Vector: ...


class _Settings(NamedTuple):
    """How a slot's slices are stepped: the optimiser, its state, and the regulariser's factors if they differ."""

    optimizer: Optimizer
    states: Vectors
    penalties: Vector | None = None


class Holder:
    """A slice at a node, from the coordinate ``first`` to ``last``.

    ``model`` returns a version where the node's workers read it, of which the slice is there.
    """

    def __init__(self, first: int, last: int, dtype: DType, model: Callable[[str, int], Coordinates]) -> None:
        self.first, self.last, self.dtype = first, last, dtype
        self._model = model
        self._sums: dict[int, Vector] = {}
        self._own: dict[int, Array] = {}  # the memory of those that were read
        self._unused: list[Array] = []  # such memory
        self._settings: dict[str, _Settings] = {}
        self._fresh: set[str] = set()  # slots that have taken no step

    @property
    def coordinates(self) -> slice:
        """The coordinates in the whole vector."""
        return slice(self.first, self.last)

    def clear(self) -> None:
        """Forget everything."""
        for collection in (self._sums, self._own, self._unused, self._settings, self._fresh):
            collection.clear()

    # ------------------------------------------------------------------------------------------- sums

    def room(self, number: int) -> Vector:
        """Return memory for a slice of a message, to be read into."""
        if number not in self._own:
            size = self.last - self.first
            self._own[number] = self._unused.pop() if self._unused else np.empty(size, dtype=self.dtype)
        return self._own[number]

    def keep(self, number: int, vector: Vector) -> str:
        """Keep a slice of a message; return why it must not be used, "" if it may."""
        self._sums[number] = vector
        return "" if np.isfinite(vector).all() else "not finite"

    def has(self, number: int) -> bool:
        """Return whether a slice of a message is there."""
        return number in self._sums

    def drop(self, number: int) -> None:
        """Forget a slice of a message."""
        self._sums.pop(number, None)
        room = self._own.pop(number, None)
        if room is not None and room.nbytes < _LARGE:
            self._unused.append(room)

    def copy_from(self, message: Vector) -> None:
        """Copy the slices that lie in a message, whose memory will be freed."""
        for number, vector in self._sums.items():
            if np.may_share_memory(vector, message):
                self._sums[number] = vector.copy()

    def combine(self, messages: Sequence[Place], weights: Sequence[Any], coordinates: slice) -> Floats:
        inside = slice(coordinates.start - self.first, coordinates.stop - self.first)
        terms = [(self._sums[number][inside], weight) for (number, _), weight in zip(messages, weights, strict=True)]
        return add_weighted(terms, inside.stop - inside.start)

    def squares(self, terms: Sequence[tuple[int, float]]) -> list[float]:
        """Return the squared norm of each part of a weighted sum of messages, at these coordinates."""
        squares = []
        for start in range(self.first, self.last, keyed.PART):
            coordinates = slice(start, min(start + keyed.PART, self.last))
            added = self.combine([(number, 0) for number, _ in terms], [weight for _, weight in terms], coordinates)
            squares.append(squared_norm(added))
        return squares

    # ------------------------------------------------------------------------------------------- steps

    def hold(self, slot: str, pickled: bytes, states: Vectors | None, penalties: Vector | None) -> None:
        """Prepare steps of a slot; ``states``: None for those before a first step."""
        optimizer: Optimizer = pickle.loads(pickled)  # the driver's, over an encrypted connection
        self._settings[slot] = _Settings(optimizer, {} if states is None else states, penalties)
        if states is None:
            self._fresh.add(slot)

    def renew(self, slot: str, pickled: bytes) -> None:
        """Take the next steps of a slot by another optimiser, with the same state."""
        self._settings[slot] = self._settings[slot]._replace(optimizer=pickle.loads(pickled))

    def states(self, slot: str, version: int) -> Vectors:
        """Return the state of a slot's optimiser before the step from a version."""
        optimizer, states, _ = self._settings[slot]
        if slot in self._fresh:
            self._fresh.remove(slot)
            states.update(optimizer.start(self._model(slot, version)[self.coordinates]))
        return states

    def model_at(self, slot: str, version: int, coordinates: slice) -> Vector:
        return self._model(slot, version)[coordinates]

    def measure(self, plan: StepPlan, out: Coordinates) -> list[float]:
        """Return the squared norm of each part of what a step goes by; ``out`` keeps it for :meth:`step`."""
        return self._part(plan, out).squares()

    def step(self, plan: StepPlan, out: Coordinates, factor: float | None = None) -> int:
        """Write this slice of the next version to ``out``, and return its digest.

        ``factor``: of an optimiser that clips, after :meth:`measure`. Raises :class:`~anyk.RunFailed` if the next
        version is not finite.
        """
        part = self._part(plan, out)
        states = self.states(plan.slot, plan.version)
        steps_by, state = stepping_by(plan, self._settings[plan.slot].optimizer, states, part.w)
        assert (factor is not None) == isinstance(steps_by, Clip), "the whole gradient has a norm, not this slice"
        with without_compiler():
            digest = part.take(steps_by, state, factor)
        if digest is None:
            raise RunFailed("this optimiser cannot step a slice")
        note_state(plan, states, state)
        return digest

    def _part(self, plan: StepPlan, out: Coordinates) -> PartOfStep:
        penalties = self._settings[plan.slot].penalties
        w = self._model(plan.slot, plan.version)[self.coordinates]
        return PartOfStep(plan, self, w=w, out=out[self.coordinates], offset=self.first, penalties=penalties)
