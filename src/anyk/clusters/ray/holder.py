"""The actor that holds a slice of models, sums and an optimiser's state, and steps it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Key
from anyk.clusters.nodes.session import (
    NOT_INTACT,
    Collect,
    Done,
    Hold,
    Measure,
    MeasureStep,
    OfferedPart,
    Show,
    TakeStep,
    pack_message,
)
from anyk.clusters.nodes.slices import Holder
from anyk.clusters.nodes.wire import Offered, digests_of
from anyk.clusters.ray.answers import FOREVER, Unanswered, answer
from anyk.clusters.ray.connection import ray_module
from anyk.clusters.remote.wire import Form, form_of, vector_type

Question = Hold | TakeStep | MeasureStep | Measure | Show


class HolderNews(NamedTuple):
    """What a holder learns with its next order.

    ``given``: versions that it has not written, each with the part in which its slice lies. ``gone``: versions that are
    needed no more. ``dropped``: numbers of messages that are not.
    """

    given: list[tuple[Key, OfferedPart]]
    gone: list[Key]
    dropped: list[int]


class _Slice:
    """The slice of a version, which begins with the coordinate ``first``; no memory is taken for the rest."""

    def __init__(self, first: int, vector: Vector) -> None:
        self._first, self.vector = first, vector

    def __getitem__(self, coordinates: slice, /) -> Vector:
        return self.vector[coordinates.start - self._first : coordinates.stop - self._first]


class HolderActor:
    """The class that Ray instantiates, once for each slice: from the coordinate ``first`` to ``last``.

    All objects that it reads are bytes, and none is unpickled but orders, which the driver has pickled.
    """

    def __init__(self, number: int, first: int, last: int, kind: str) -> None:
        self._number = number
        self._holder = Holder(first, last, np.dtype(kind), lambda slot, version: self._models[slot, version])
        self._models: dict[Key, _Slice] = {}

    def ready(self) -> bytes:
        """Return nothing, as soon as the actor has started."""
        return b""

    def collect(self, pickled: bytes, references: Sequence[Any], skip: int) -> bytes:
        """Take in the slice of a message, which begins with the byte ``skip`` of an object.

        Several threads call it at the same time. References in a list are not read by Ray before the call, which would
        have all later calls wait.
        """
        order: Collect = pickle.loads(pickled)
        try:
            data = answer(ray_module(), references[0], FOREVER)[skip : skip + order.offered.size]
            failure = "" if digests_of(data) == order.offered.digests else NOT_INTACT
        except (Unanswered, ValueError):
            failure = NOT_INTACT
        if not failure:
            failure = self._holder.keep(order.number, np.frombuffer(data, dtype=self._holder.dtype))
        return pack_message(Done(order.run, order.number, self._number, failure))

    def carry_out(self, pickled: bytes, references: Mapping[bytes, Any]) -> tuple[bytes, bytes]:
        """Carry out an order; return the answer and the vectors that it offers, one after the other.

        ``references``: Ray's, by the keys with which orders name them.
        """
        order: Question
        order, news = pickle.loads(pickled)
        self._take_in(news, references)
        done = Done(order.run, order.number, self._number)
        offered: list[tuple[str, Vector]] = []
        try:
            match order:
                case Hold():
                    self._hold(order, references)
                case TakeStep():
                    done.digest = self._step(order)
                    offered = [("", self._models[order.plan.slot, order.plan.version + 1].vector)]
                case MeasureStep():
                    out = self._room((order.plan.slot, order.plan.version + 1))
                    done.squares = self._holder.measure(order.plan, out)
                case Measure():
                    done.squares = self._holder.squares(order.terms)
                case Show():
                    offered = list(self._holder.states(order.slot, order.version).items())
        except RunFailed as error:
            done.failure, done.final = str(error), True
        data = [np.ascontiguousarray(vector).tobytes() for _, vector in offered]
        for (name, vector), content in zip(offered, data, strict=True):
            form = form_of(vector)
            assert form is not None
            done.offered.append((name, form, Offered(b"", len(content), digests_of(memoryview(content)))))
        return pack_message(done), data[0] if len(data) == 1 else b"".join(data)

    def _take_in(self, news: HolderNews, references: Mapping[bytes, Any]) -> None:
        holder = self._holder
        for number in news.dropped:
            holder.drop(number)
        for key in news.gone:
            self._models.pop(key, None)
        for key, (first, offered, _) in news.given:
            start = holder.first * holder.dtype.itemsize - first
            vector = self._room(key).vector
            vector[:] = np.frombuffer(self._read(offered, references), holder.dtype, count=vector.size, offset=start)

    def _read(self, offered: Offered, references: Mapping[bytes, Any]) -> memoryview:
        return answer(ray_module(), references[offered.key], FOREVER)

    def _room(self, key: Key) -> _Slice:
        """Return the slice of a version, to be written; what was measured for a step is there."""
        holder = self._holder
        if key not in self._models:
            self._models[key] = _Slice(holder.first, np.empty(holder.last - holder.first, dtype=holder.dtype))
        return self._models[key]

    def _hold(self, order: Hold, references: Mapping[bytes, Any]) -> None:
        def read(form: Form, part: OfferedPart) -> Vector:
            return np.frombuffer(self._read(part.offered, references), dtype=vector_type(form)).copy()

        states = None if order.states is None else {name: read(form, part) for name, form, part in order.states}
        penalties = None if order.penalties is None else read(*order.penalties)
        self._holder.hold(order.slot, order.optimizer, states, penalties)

    def _step(self, order: TakeStep) -> int:
        if order.optimizer:
            self._holder.renew(order.plan.slot, order.optimizer)
        return self._holder.step(order.plan, self._room((order.plan.slot, order.plan.version + 1)), order.factor)
