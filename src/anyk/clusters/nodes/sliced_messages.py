"""Messages of workers whose slices are collected by the nodes that hold them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from anyk.base.arrays import DType, Vector
from anyk.base.errors import RunFailed
from anyk.clusters.nodes.arrivals import Announced
from anyk.clusters.nodes.node import PATIENCE, DriverOfNodes
from anyk.clusters.nodes.placement import Placement
from anyk.clusters.nodes.session import Collect, CollectAlso, Done
from anyk.clusters.nodes.wire import Offered, bytes_of

DRIVER = -1  # the rank of the driver's process, which is not that of its node


class MessageSource(NamedTuple):
    """A process that offers a whole message of a worker; ``rank``: its node's."""

    worker: int
    rank: int
    address: str
    offered: Offered


class SlicedMessage:
    """A message whose slices are at their holders, and from where the whole of it can be read.

    When nothing refers to it any more, its slices are dropped and the memory of its sources is freed.
    """

    def __init__(self, number: int, dtype: DType, size: int, source: MessageSource) -> None:
        self.number, self.dtype, self.size, self.shape = number, dtype, size, (size,)
        self.sources = [source]
        self.frees: list[Callable[[], None]] = []  # the memory of all sources
        self.have: dict[int, set[int]] = {}  # ranks of the nodes that have it, by slice
        self.givers: dict[int, int] = {}  # by slice, the worker whose replica was read first
        self.over = False  # whether it is where no single node's loss can take it, or has failed
        self.failure = ""
        self.whole: Vector | None = None  # once the driver has read it


class SlicedMessages:
    """Has the nodes that hold slices collect messages, each its slices of them.

    This is a :class:`~anyk.clusters.nodes.arrivals.Receiver`. ``numbers``: of questions and messages, each one once.
    """

    def __init__(self, cluster: DriverOfNodes, placement: Placement, numbers: Iterator[int]) -> None:
        self._cluster, self._placement, self._numbers = cluster, placement, numbers
        self._messages: weakref.WeakValueDictionary[int, SlicedMessage] = weakref.WeakValueDictionary()

    # ------------------------------------------------------------------------------------------- collecting

    def collect(self, dtype: DType, size: int, source: MessageSource, free: Callable[[], None]) -> SlicedMessage:
        """Have each holder read its slice of a message; ``free``: frees the memory of the source."""
        if size != self._placement.dimension or dtype != self._placement.dtype:
            raise RunFailed(f"a message of {size:,} numbers of type {dtype} does not lie in slices")
        number = next(self._numbers)
        message = self._messages[number] = SlicedMessage(number, dtype, size, source)
        message.frees.append(free)
        weakref.finalize(message, self._forget, self._cluster.run, number, message.frees)
        for slice_number, rank in self._placement.pairs():
            self._have_collect(message, slice_number, rank)
        return message

    def collect_now(self, dtype: DType, size: int, source: MessageSource, free: Callable[[], None]) -> SlicedMessage:
        """Have each holder read its slice of a message, and wait for it.

        Raises :class:`~anyk.RunFailed` if one of them cannot.
        """
        message = self.collect(dtype, size, source, free)
        self._cluster.wait_until(lambda: message.over)
        if message.failure:
            raise RunFailed(message.failure)
        return message

    def begin(self, first: Announced, dtype: DType, size: int) -> tuple[int, SlicedMessage]:
        """Bring a message."""
        message = self.collect(dtype, size, _source(first), first.free)
        return message.number, message

    def also(self, number: int | None, content: SlicedMessage, message: Announced) -> None:
        """Bring a message from a further node as well; None: it is here, and its memory is kept as long."""
        content.frees.append(message.free)
        source = _source(message)
        content.sources.append(source)
        for slice_number, rank in self._placement.pairs():
            if rank not in content.have.get(slice_number, ()):
                self._have_collect_also(content, slice_number, rank, source)
        self._note_arrival(content)

    def stop(self, number: int) -> None:
        """Wait no more for a message; its slices are dropped with it."""

    def entered(self, message: Announced) -> None:
        """Do nothing: a source is freed with the last reference to the message."""

    def _have_collect(self, message: SlicedMessage, slice_number: int, rank: int) -> None:
        run, (start, end) = self._cluster.run, self._placement.bytes_at(slice_number)
        first, *others = message.sources
        offered = first.offered.slice(start, end)
        self._cluster.tell_rank(
            rank, Collect(run, message.number, slice_number, first=start, offered=offered, address=first.address)
        )
        for source in others:
            self._have_collect_also(message, slice_number, rank, source)

    def _have_collect_also(self, message: SlicedMessage, slice_number: int, rank: int, source: MessageSource) -> None:
        order = CollectAlso(
            self._cluster.run, message.number, slice_number, key=source.offered.key, address=source.address
        )
        self._cluster.tell_rank(rank, order)

    # ------------------------------------------------------------------------------------------- who has them

    def knows(self, number: int) -> bool:
        """Return whether a message has this number, and is in use."""
        return number in self._messages

    def collected(self, rank: int, done: Done) -> bool:
        """Note that a holder has its slice of a message, or cannot have it.

        Return False if it cannot have what others have, and cannot go on with the slice.
        """
        message = self._messages[done.number]
        if rank not in self._placement.ranks[done.slice]:
            return True
        if done.failure and not message.over:
            message.over, message.failure = True, done.failure
            self._cluster.collected(message.number, done.failure)
        elif done.failure:
            return bool(message.failure)
        else:
            message.have.setdefault(done.slice, set()).add(rank)
            if done.slice not in message.givers:
                givers = [source.worker for source in message.sources if source.offered.key == done.key]
                message.givers[done.slice] = givers[0] if givers else message.sources[0].worker
            self._note_arrival(message)
        return True

    def _note_arrival(self, message: SlicedMessage) -> None:
        if not message.over and all(self._is_secured(message, number) for number in self._placement.slices):
            message.over = True
            self._cluster.collected(message.number, "")

    def _is_secured(self, message: SlicedMessage, slice_number: int) -> bool:
        """Return whether a slice of a message is held, and would still be there if any one node were lost.

        Until all copies have it, those that lack it may read it from its sources.
        """
        have = message.have.get(slice_number, set())
        sources = {source.rank for source in message.sources}
        enough = min(self._placement.copies, len(sources.union(self._placement.ranks[slice_number])))
        return bool(have) and len(have | sources) >= enough

    def suffice(self, slice_number: int, rank: int, without: int | None = None) -> bool:
        """Return whether a node has its slice of each message that counts, or can read it from others."""
        return all(
            not message.over
            or message.failure
            or rank in message.have.get(slice_number, ())
            or any(source.rank != without and self.offers(source) for source in message.sources)
            for message in self._messages.values()
        )

    def offers(self, source: MessageSource) -> bool:
        """Return whether a source is still there."""
        return source.rank == DRIVER or self._cluster.offers_at(source.rank, source.address)

    def read(self, message: SlicedMessage) -> Vector:
        """Read a whole message from one of its sources, or from the next one if that falls silent or is lost."""
        vector = np.empty(message.size, dtype=message.dtype)
        sources = sorted(filter(self.offers, message.sources), key=self._silence) or message.sources
        for source in sources:
            wanted = [(bytes_of(vector), source.offered, source.address)]
            if self._cluster.read_now(wanted, moved=partial(self._has_moved, source, sources[-1])):
                break
        return vector

    def _has_moved(self, source: MessageSource, last: MessageSource) -> bool:
        is_lost = not self.offers(source) or self._silence(source) > PATIENCE
        return is_lost and source is not last

    def _silence(self, source: MessageSource) -> float:
        return 0.0 if source.rank == DRIVER else self._cluster.silence(source.rank)

    def hand_over(self, slice_number: int, rank: int) -> None:
        """Have a node collect its slice of all messages in use."""
        for message in self._messages.values():
            self._have_collect(message, slice_number, rank)

    def forget(self, slice_number: int, rank: int) -> None:
        """Note that a node does not hold a slice any more."""
        for message in list(self._messages.values()):
            message.have.get(slice_number, set()).discard(rank)
            self._note_arrival(message)

    def _forget(self, run: int, number: int, frees: Sequence[Callable[[], None]]) -> None:
        if run != self._cluster.run:
            return  # it has ended
        for rank in {rank for homes in self._placement.homes.values() for rank in homes}:
            self._cluster.drop_slice(rank, number)
        for free in frees:
            free()


def _source(message: Announced) -> MessageSource:
    return MessageSource(message.worker, message.rank, message.address, message.offered)
