"""The driver's side of the nodes that hold slices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from anyk.base.arrays import DType, Vector
from anyk.base.errors import RunFailed
from anyk.clusters.nodes.arrivals import Announced
from anyk.clusters.nodes.node import DriverOfNodes
from anyk.clusters.nodes.session import Collect, CollectAlso, Done, Measure, ToHolder
from anyk.clusters.nodes.wire import Offered


class MessageSource(NamedTuple):
    """A process that offers a whole message."""

    address: str
    offered: Offered


class SlicedMessage:
    """A message whose slices are at their holders, and from where the whole of it can be read.

    When nothing refers to it any more, its slices are dropped and the memory of its sources is freed.
    """

    def __init__(self, number: int, dtype: DType, size: int, source: MessageSource) -> None:
        self.number, self.dtype, self.size, self.shape, self.source = number, dtype, size, (size,), source
        self.frees: list[Callable[[], None]] = []  # the memory of all sources
        self.whole: Vector | None = None  # once the driver has read it


class Holders:
    """Asks the nodes that hold slices, and has them collect messages.

    ``slices``: the first coordinate of each node's slice, and the one after its last.
    """

    def __init__(self, cluster: DriverOfNodes, slices: Sequence[tuple[int, int]], dtype: DType) -> None:
        self._cluster, self._dtype, self.dimension = cluster, dtype, slices[-1][1]
        self.slices = {rank: own for rank, own in enumerate(slices) if own[0] < own[1]}  # by the holder's rank
        self._number = 0
        self._answers: dict[int, dict[int, Done]] = {}  # by number and rank
        self._collecting: dict[int, set[int]] = {}  # ranks that have not collected a message

    def bytes_at(self, rank: int) -> tuple[int, int]:
        """Return the first byte of a holder's slice in a vector, and the one after its last."""
        first, last = self.slices[rank]
        return first * self._dtype.itemsize, last * self._dtype.itemsize

    # ------------------------------------------------------------------------------------------- questions

    def ask(self, order: Callable[[int, int, int], ToHolder]) -> dict[int, Done]:
        """Have each holder carry out ``order(run, number, rank)``; wait for the answers, and return them by rank.

        Raises :class:`~anyk.RunFailed` with the reason if one of them could not.
        """
        self._number += 1
        number = self._number
        return self._ask(number, lambda rank: order(self._cluster.run, number, rank))

    def _ask(self, number: int, order: Callable[[int], ToHolder]) -> dict[int, Done]:
        answers = self._answers.setdefault(number, {})
        for rank in self.slices:
            self._cluster.tell_rank(rank, order(rank))
        try:
            self._cluster.wait_until(lambda: len(answers) == len(self.slices))
        finally:
            del self._answers[number]
        for rank, done in answers.items():
            if done.failure:
                raise RunFailed(done.failure if done.final else f"node {rank}: {done.failure}")
        return {rank: answers[rank] for rank in self.slices}

    def squared_norm(self, terms: Sequence[tuple[SlicedMessage, float]]) -> float:
        """Return the squared norm of a weighted sum of messages."""
        weights = [(message.number, weight) for message, weight in terms]
        answers = self.ask(lambda run, number, rank: Measure(run, number, weights))
        return sum(square for done in answers.values() for square in done.squares)

    def on_done(self, rank: int, done: Done) -> None:
        """Take in an answer of a holder."""
        missing = self._collecting.get(done.number)
        if missing is not None:
            missing.discard(rank)
            if done.failure or not missing:
                del self._collecting[done.number]
                self._cluster.collected(done.number, done.failure)
        elif done.number in self._answers:
            self._answers[done.number][rank] = done

    # ------------------------------------------------------------------------------------------- messages

    def collect(self, dtype: DType, size: int, source: MessageSource, free: Callable[[], None]) -> SlicedMessage:
        """Have each holder read its slice of a message; ``free``: frees the memory of the source."""
        message = self._new_message(dtype, size, source, free)
        self._collecting[message.number] = set(self.slices)
        for rank in self.slices:
            self._cluster.tell_rank(rank, self._collecting_order(message, rank))
        return message

    def collect_now(self, dtype: DType, size: int, source: MessageSource, free: Callable[[], None]) -> SlicedMessage:
        """Have each holder read its slice of a message, and wait for it.

        Raises :class:`~anyk.RunFailed` if one of them cannot.
        """
        message = self._new_message(dtype, size, source, free)
        self._ask(message.number, lambda rank: self._collecting_order(message, rank))
        return message

    def _new_message(self, dtype: DType, size: int, source: MessageSource, free: Callable[[], None]) -> SlicedMessage:
        if size != self.dimension or dtype != self._dtype:
            raise RunFailed(f"a message of {size:,} numbers of type {dtype} does not lie in slices")
        self._number += 1
        message = SlicedMessage(self._number, dtype, size, source)
        message.frees.append(free)
        weakref.finalize(message, self._forget, self._cluster.run, message.number, message.frees)
        return message

    def _collecting_order(self, message: SlicedMessage, rank: int) -> Collect:
        start, end = self.bytes_at(rank)
        offered, address = message.source.offered.slice(start, end), message.source.address
        return Collect(self._cluster.run, message.number, start, offered, address)

    def begin(self, first: Announced, dtype: DType, size: int) -> tuple[int, SlicedMessage]:
        """Bring a message (:class:`~anyk.clusters.nodes.arrivals.Receiver`)."""
        message = self.collect(dtype, size, MessageSource(first.node.hello.address, first.offered), first.free)
        return message.number, message

    def also(self, number: int | None, content: SlicedMessage, message: Announced) -> None:
        """Bring a message from a further node as well; None: it is here, and its memory is kept as long."""
        content.frees.append(message.free)
        for rank in self._collecting.get(content.number, ()):
            order = CollectAlso(self._cluster.run, content.number, message.offered.key, message.node.hello.address)
            self._cluster.tell_rank(rank, order)

    def stop(self, number: int) -> None:
        """Wait no more for a message; its slices are dropped with it."""
        self._collecting.pop(number, None)

    def entered(self, message: Announced) -> None:
        """Do nothing: a source is freed with the last reference to the message."""

    def _forget(self, run: int, number: int, frees: Sequence[Callable[[], None]]) -> None:
        if run != self._cluster.run:
            return  # it has ended
        for rank in self.slices:
            self._cluster.drop_slice(rank, number)
        for free in frees:
            free()
