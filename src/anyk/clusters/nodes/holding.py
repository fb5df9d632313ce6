"""What a node does for the driver with a slice that it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Key
from anyk.clusters.nodes.session import (
    NOT_INTACT,
    Collect,
    CollectAlso,
    Done,
    Hold,
    Measure,
    MeasureStep,
    OfferedPart,
    Release,
    Show,
    TakeStep,
    ToHolder,
)
from anyk.clusters.nodes.slices import Holder
from anyk.clusters.nodes.vectors import NodeVectors
from anyk.clusters.nodes.wire import Offered, bytes_of
from anyk.clusters.remote.wire import Form, form_of, vector_type
from anyk.clusters.steps import StepPlan


class Holding:
    """Carries out orders for a slice, in their order: reads what they need, and tells when they are done.

    ``read`` begins to read what is offered, from a byte on, at an address, and returns the number of the read;
    ``read_also`` adds an address and a key to it, and ``stop`` ends it. ``offer`` and ``drop`` offer bytes and withdraw
    them. ``own_message`` returns the message of a worker of this node that is offered under a key.
    """

    def __init__(
        self,
        run: int,
        number: int,
        holder: Holder,
        vectors: NodeVectors,
        *,
        read: Callable[[memoryview, Offered, str, int], int],
        read_also: Callable[[int, str, bytes], None],
        stop: Callable[[int], None],
        offer: Callable[[memoryview], Offered],
        drop: Callable[[bytes], None],
        own_message: Callable[[bytes], Vector | None],
        tell: Callable[[Done], None],
    ) -> None:
        self._run, self._number, self._holder, self._vectors, self._tell = run, number, holder, vectors, tell
        self._read, self._read_also, self._stop = read, read_also, stop
        self._offer, self._drop, self._own_message = offer, drop, own_message
        self._collecting: dict[int, int] = {}  # reads, by the number of the message
        self._finishing: dict[int, Callable[[bool, bytes], None]] = {}  # what follows the end of a read
        self._queue: deque[Hold | TakeStep | MeasureStep | Measure | Show] = deque()  # orders that wait for their turn
        self._offered: dict[Key, bytes] = {}  # keys of the slices of models that are offered
        self._shown: list[bytes] = []  # keys of the state that is offered

    def obey(self, order: ToHolder) -> None:
        """Begin to carry out an order."""
        match order:
            case Collect():
                self._collect(order)
            case CollectAlso():
                self._collect_also(order)
            case Hold():
                self._hold(order)
            case Release():
                self.close()
                self._holder.clear()
            case _:
                self._queue.append(order)

    def finished(self, read: int, key: bytes, *, complete: bool) -> bool:
        """Note the end of a read, most of it offered under ``key``; return whether it was one of these."""
        then = self._finishing.pop(read, None)
        if then is not None:
            then(complete, key)
        return then is not None

    def look(self) -> None:
        """Carry out the orders that wait, until one of them has to wait for models or messages."""
        while self._queue and self._is_ready(self._queue[0]):
            order = self._queue.popleft()
            match order:
                case Hold():
                    self._done(order.number, offered=[self._offer_slice(key) for key in order.offers])
                case TakeStep():
                    self._step(order)
                case MeasureStep():
                    self._done(order.number, squares=self._holder.measure(order.plan, self._next_model(order.plan)))
                case Measure():
                    self._done(order.number, squares=self._holder.squares(order.terms))
                case Show():
                    self._show(order)

    def _is_ready(self, order: ToHolder) -> bool:
        """Return whether what an order needs is there; begin to read the models."""
        missing = [key for key in _models(order) if key not in self._offered and not self._vectors.here(key)]
        self._vectors.fetch(missing)
        return not missing and all(map(self._holder.has, _messages(order)))

    def needs(self, key: Key) -> bool:
        """Return whether an order that waits needs a model."""
        return any(key in _models(order) for order in self._queue)

    def forget_model(self, key: Key) -> None:
        """Offer the slice of a model no more."""
        if key in self._offered:
            self._drop(self._offered.pop(key))

    def forget_messages(self, numbers: Sequence[int]) -> None:
        """Drop slices of messages."""
        for number in numbers:
            read = self._collecting.pop(number, None)
            if read is not None:
                del self._finishing[read]
                self._stop(read)
            self._holder.drop(number)

    def forget_source(self, message: Vector) -> None:
        """Use the memory of a message no more."""
        self._holder.copy_from(message)

    def close(self) -> None:
        """Stop all reads, withdraw what is offered, and forget the orders."""
        for read in self._finishing:
            self._stop(read)
        for key in (*self._offered.values(), *self._shown):
            self._drop(key)
        for collection in (self._finishing, self._collecting, self._offered, self._shown, self._queue):
            collection.clear()

    def _done(self, number: int, failure: str = "", **values: Any) -> None:
        self._tell(Done(self._run, number, self._number, failure, **values))

    # ------------------------------------------------------------------------------------------- messages

    def _collect(self, order: Collect) -> None:
        """Read the slice of a message, or take it from a message of this node."""
        number = order.number
        if self._take_own(number, order.offered.key):
            return
        read = self._read(bytes_of(self._holder.room(number)), order.offered, order.address, order.first)
        self._collecting[number] = read
        self._finishing[read] = partial(self._collected, number)

    def _collect_also(self, order: CollectAlso) -> None:
        read = self._collecting.get(order.number)
        if read is None:
            return  # it is here
        if self._own_message(order.key) is None:
            self._read_also(read, order.address, order.key)
            return
        del self._collecting[order.number], self._finishing[read]
        self._stop(read)
        self._take_own(order.number, order.key)

    def _take_own(self, number: int, key: bytes) -> bool:
        message = self._own_message(key)
        if message is not None:
            self._done(number, self._holder.keep(number, message[self._holder.coordinates]), key=key)
        return message is not None

    def _collected(self, number: int, complete: bool, key: bytes) -> None:
        del self._collecting[number]
        if complete:
            self._done(number, self._holder.keep(number, self._holder.room(number)), key=key)
        else:
            self._done(number, NOT_INTACT)

    # ------------------------------------------------------------------------------------------- steps

    def _hold(self, order: Hold) -> None:
        """Read the state of an optimiser, and the factors of a regulariser."""
        states: dict[str, Vector] = {}
        penalties: Vector | None = None
        wanted: list[tuple[Vector, OfferedPart]] = []
        for name, form, part in order.states or ():
            states[name] = np.empty(form[1], dtype=vector_type(form))
            wanted.append((states[name], part))
        if order.penalties is not None:
            form, part = order.penalties
            penalties = np.empty(form[1], dtype=vector_type(form))
            wanted.append((penalties, part))
        left = len(wanted)

        def read_one(complete: bool, _: bytes) -> None:
            nonlocal left
            left -= 1
            if not complete:
                self._done(order.number, NOT_INTACT)
            elif not left:
                prepare()

        def prepare() -> None:
            initial = None if order.states is None else states
            self._holder.hold(order.slot, order.optimizer, initial, penalties)
            self._queue.append(order)  # for the models that it needs

        for vector, part in wanted:
            self._finishing[self._read(bytes_of(vector), part.offered, part.address, 0)] = read_one
        if not wanted:
            prepare()

    def _step(self, order: TakeStep) -> None:
        """Take a step, and offer the slice of the next version."""
        plan, holder = order.plan, self._holder
        for shown_key in self._shown:
            self._drop(shown_key)
        self._shown.clear()
        if order.optimizer:
            holder.renew(plan.slot, order.optimizer)
        key = (plan.slot, plan.version + 1)
        out = self._next_model(plan)
        try:
            digest = holder.step(plan, out, order.factor)
        except RunFailed as error:
            self._done(order.number, str(error), final=True)
            return
        self._vectors.wrote(key, holder.first * out.itemsize)
        self._done(order.number, digest=digest, offered=[self._offer_slice(key)])

    def _next_model(self, plan: StepPlan) -> Vector:
        """Return the memory of the model that a step makes, in which this slice of it can be written."""
        key, holder = (plan.slot, plan.version + 1), self._holder
        model = self._vectors.room(key)
        self._vectors.reserve(key, holder.first * model.itemsize, (holder.last - holder.first) * model.itemsize)
        return model

    def _offer_slice(self, key: Key) -> tuple[str, Form, Offered]:
        """Offer the slice of a model to other nodes."""
        vector = self._vectors.room(key)[self._holder.coordinates]
        offered = self._offer(bytes_of(vector))
        self._offered[key] = offered.key
        return "", _form(vector), offered

    def _show(self, order: Show) -> None:
        """Offer the state of an optimiser."""
        offered = []
        for name, vector in self._holder.states(order.slot, order.version).items():
            contiguous = np.ascontiguousarray(vector)
            offered.append((name, _form(contiguous), self._offer(bytes_of(contiguous))))
            self._shown.append(offered[-1][2].key)
        self._done(order.number, offered=offered)


def _models(order: ToHolder) -> list[Key]:
    """Return the models that an order needs."""
    return order.needs if isinstance(order, Hold | TakeStep | MeasureStep) else []


def _messages(order: ToHolder) -> list[int]:
    """Return the numbers of the messages that an order needs."""
    match order:
        case TakeStep(plan=plan) | MeasureStep(plan=plan):
            stale = plan.compensation or ()
            return [number for number, _ in (*plan.messages, *(stale_message.message for stale_message in stale))]
        case Measure(terms=terms):
            return [number for number, _ in terms]
    return []


def _form(vector: Vector) -> Form:
    form = form_of(vector)
    assert form is not None
    return form
