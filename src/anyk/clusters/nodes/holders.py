"""The driver's side of the nodes that hold slices."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from anyk.base.arrays import DType, Vector
from anyk.base.errors import RunFailed
from anyk.clusters.nodes.arrivals import Announced
from anyk.clusters.nodes.node import DriverOfNodes
from anyk.clusters.nodes.session import Collect, CollectAlso, Done, Measure, Release, ToHolder
from anyk.clusters.nodes.wire import Offered

DRIVER = -1  # the rank of the driver's process, which is not that of its node
PATIENCE = 2.0  # seconds without a sign of life after which a slice is left to its other copy; two signs of life
MOST_BEHIND = 3  # steps that a copy may lag behind the other one
_PAUSE, _LONGEST_PAUSE = 2.0, 64.0  # seconds until a copy that lagged is made up to date again; longer each time


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


class _Question:
    """What all who hold a slice are asked, until each has answered or holds it no more.

    ``keep``: messages that are needed for the answers. ``late`` is told the answers of slices that had one.
    """

    def __init__(
        self, asked: set[tuple[int, int]], keep: Sequence[SlicedMessage], late: Callable[[int, int, Done], None] | None
    ) -> None:
        self.open = asked  # slices and ranks
        self.keep, self.late = keep, late
        self.answers: dict[int, tuple[int, Done]] = {}  # the first of each slice, with the rank


Answers = dict[int, tuple[int, Done]]  # by slice: who answered first, and what


class Holders:
    """Asks the nodes that hold slices, and has them collect messages.

    Each slice is held by as many of the nodes ``ranks`` as there are ``copies``, which carry out the same orders: the
    one at the place of its number and the one that follows. Whichever answers first is taken. One that gives no sign of life, or lags behind, holds its
    slices no more until it is made up to date (:meth:`returning`). ``suspended`` is told who holds a slice no more.
    """

    def __init__(
        self,
        cluster: DriverOfNodes,
        slices: Sequence[tuple[int, int]],
        dtype: DType,
        copies: int,
        ranks: Sequence[int] = (),
    ) -> None:
        self._cluster, self._dtype, self.copies, self.dimension = cluster, dtype, copies, slices[-1][1]
        self.slices = {number: own for number, own in enumerate(slices) if own[0] < own[1]}
        ranks = ranks or range(len(slices))
        self._homes = {
            number: [ranks[(number + copy) % len(ranks)] for copy in range(copies)] for number in self.slices
        }
        self.ranks = {number: list(homes) for number, homes in self._homes.items()}  # who holds a slice now
        self.suspended: Callable[[int, int], None] = lambda slice_number, rank: None
        self._number = 0
        self._questions: dict[int, _Question] = {}
        self._messages: weakref.WeakValueDictionary[int, SlicedMessage] = weakref.WeakValueDictionary()
        self._pauses: dict[int, tuple[float, float]] = {}  # by rank: until when, and how long the next one is

    def held_by(self, rank: int) -> dict[int, tuple[int, int]]:
        """Return the coordinates of the slices that a node may hold."""
        return {number: own for number, own in self.slices.items() if rank in self._homes[number]}

    def bytes_at(self, slice_number: int) -> tuple[int, int]:
        """Return the first byte of a slice in a vector, and the one after its last."""
        first, last = self.slices[slice_number]
        return first * self._dtype.itemsize, last * self._dtype.itemsize

    # ------------------------------------------------------------------------------------------- questions

    def ask(
        self,
        order: Callable[[int, int, int], ToHolder],
        *,
        keep: Sequence[SlicedMessage] = (),
        late: Callable[[int, int, Done], None] | None = None,
    ) -> Answers:
        """Have all holders carry out ``order(run, number, slice)``; return the first answer for each slice.

        ``keep``: messages that they need for it. ``late`` is told further answers, with slice and rank. Raises
        :class:`~anyk.RunFailed` with the reason if it cannot be done.
        """
        _, question = self._begin(order, self._pairs(), keep, late)
        self._cluster.wait_until(lambda: len(question.answers) == len(self.slices))
        return {number: question.answers[number] for number in self.slices}

    def ask_all(self, order: Callable[[int, int, int], ToHolder]) -> None:
        """Have all holders carry out an order, and wait for all of them."""
        _, question = self._begin(order, self._pairs())
        self._cluster.wait_until(lambda: not question.open)

    def ask_one(self, slice_number: int, rank: int, order: Callable[[int, int, int], ToHolder]) -> Done | None:
        """Have one node carry out an order for a slice; return its answer, None if it gives none or could not."""
        number, question = self._begin(order, [(slice_number, rank)])
        self._cluster.wait_until(lambda: not question.open or self._cluster.silence(rank) > PATIENCE)
        self._questions.pop(number, None)
        return question.answers.get(slice_number, (rank, None))[1]

    def _pairs(self) -> list[tuple[int, int]]:
        return [(number, rank) for number, ranks in self.ranks.items() for rank in ranks]

    def _begin(
        self,
        order: Callable[[int, int, int], ToHolder],
        pairs: Iterable[tuple[int, int]],
        keep: Sequence[SlicedMessage] = (),
        late: Callable[[int, int, Done], None] | None = None,
    ) -> tuple[int, _Question]:
        self._number += 1
        number, asked = self._number, list(pairs)
        question = self._questions[number] = _Question(set(asked), keep, late)
        for slice_number, rank in asked:
            self._cluster.tell_rank(rank, order(self._cluster.run, number, slice_number))
        return number, question

    def squared_norm(self, terms: Sequence[tuple[SlicedMessage, float]]) -> float:
        """Return the squared norm of a weighted sum of messages."""
        weights = [(message.number, weight) for message, weight in terms]
        answers = self.ask(
            lambda run, number, slice_number: Measure(run, number, slice_number, weights),
            keep=[message for message, _ in terms],
        )
        return sum(square for _, done in answers.values() for square in done.squares)

    def on_done(self, rank: int, done: Done) -> None:
        """Take in an answer of a holder."""
        message, question = self._messages.get(done.number), self._questions.get(done.number)
        if message is not None:
            self._collected(message, rank, done)
        elif question is not None and (done.slice, rank) in question.open:
            self._answered(done.number, question, rank, done)

    def _answered(self, number: int, question: _Question, rank: int, done: Done) -> None:
        question.open.discard((done.slice, rank))
        if not question.open:
            del self._questions[number]
        if done.failure and not done.final and self._has_other(done.slice, rank):
            self.suspend(done.slice, rank)  # it need not be that the other copy cannot do it
        elif done.failure:
            raise RunFailed(done.failure if done.final else f"node {rank}: {done.failure}")
        elif done.slice not in question.answers:
            question.answers[done.slice] = rank, done
        else:
            first, before = question.answers[done.slice]
            if (done.digest, done.squares) != (before.digest, before.squares):
                raise RunFailed(
                    f"nodes {first} and {rank} took the same step to different models: their processors compute unlike "
                    "bits, or one of them is damaged; copies=2 needs nodes of the same kind"
                )
            if question.late is not None:
                question.late(done.slice, rank, done)

    # ------------------------------------------------------------------------------------------- copies

    def _has_other(self, slice_number: int, rank: int) -> bool:
        """Return whether another node can go on with a slice without ``rank``."""
        return any(
            self._can_go_on(slice_number, other, without=rank) for other in self.ranks[slice_number] if other != rank
        )

    def _can_go_on(self, slice_number: int, rank: int, without: int | None = None) -> bool:
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

    def look(self) -> None:
        """Leave slices to their other copy whose node gives no sign of life; call this often."""
        if self.copies == 1:
            return
        for slice_number, ranks in self.ranks.items():
            if len(ranks) > 1:
                silences = {rank: self._cluster.silence(rank) for rank in ranks}
                last = max(ranks, key=silences.__getitem__)
                has_joined = silences[last] < math.inf
                is_silent = silences[last] > PATIENCE > min(silences.values())
                if has_joined and is_silent and self._has_other(slice_number, last):
                    self.suspend(slice_number, last)

    def suspend_who_lags(self) -> None:
        """Leave slices to their other copy whose node is too many steps behind."""
        steps = [question for question in self._questions.values() if question.late is not None]
        for slice_number, rank in self._pairs():
            behind = sum((slice_number, rank) in question.open for question in steps)
            if behind >= MOST_BEHIND and self._has_other(slice_number, rank):
                self.suspend(slice_number, rank)
                self._pause(rank)

    def _pause(self, rank: int) -> None:
        _, pause = self._pauses.get(rank, (0.0, _PAUSE))
        self._pauses[rank] = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE)

    def lose(self, rank: int) -> list[int]:
        """Note that a node has died; return the slices that nobody holds any more."""
        held = [number for number, ranks in self.ranks.items() if rank in ranks]
        lost = [number for number in held if not self._has_other(number, rank)]
        if not lost:
            for number in self._homes:
                self._forget_holder(number, rank)
            for number, other in self._pairs():  # some may have been about to read from it
                if not self._can_go_on(number, other) and self._has_other(number, other):
                    self.suspend(number, other)
        return lost

    def suspend(self, slice_number: int, rank: int) -> None:
        """Have a node hold a slice no more, which another one holds."""
        assert self._has_other(slice_number, rank)
        self._cluster.tell_rank(rank, Release(self._cluster.run, 0, slice_number))
        self._forget_holder(slice_number, rank)

    def _forget_holder(self, slice_number: int, rank: int) -> None:
        if rank in self.ranks[slice_number]:
            self.ranks[slice_number].remove(rank)
        for number, question in list(self._questions.items()):
            question.open.discard((slice_number, rank))
            if not question.open:
                del self._questions[number]
        for message in list(self._messages.values()):
            message.have.get(slice_number, set()).discard(rank)
            self._note_arrival(message)
        self.suspended(slice_number, rank)

    def returning(self) -> list[tuple[int, int]]:
        """Return slices and nodes that could hold them again, once they are made up to date."""
        now = time.monotonic()
        return [
            (number, rank)
            for number, homes in self._homes.items()
            for rank in homes
            if rank not in self.ranks[number]
            and now > self._pauses.get(rank, (0.0, _PAUSE))[0]
            and self._cluster.can_hold(rank)
            and self._can_go_on(number, rank)
        ]

    def put_off(self, slice_number: int, rank: int) -> None:
        """Have a node that could not be made up to date not hold a slice for now."""
        self._pause(rank)
        if self._cluster.silence(rank) < math.inf:
            self._cluster.tell_rank(rank, Release(self._cluster.run, 0, slice_number))

    def resume(self, slice_number: int, rank: int) -> None:
        """Have a node hold a slice again, which has the state before the next step."""
        self.ranks[slice_number].append(rank)
        for message in self._messages.values():
            self._have_collect(message, slice_number, rank)

    # ------------------------------------------------------------------------------------------- messages

    def collect(self, dtype: DType, size: int, source: MessageSource, free: Callable[[], None]) -> SlicedMessage:
        """Have each holder read its slice of a message; ``free``: frees the memory of the source."""
        if size != self.dimension or dtype != self._dtype:
            raise RunFailed(f"a message of {size:,} numbers of type {dtype} does not lie in slices")
        self._number += 1
        message = self._messages[self._number] = SlicedMessage(self._number, dtype, size, source)
        message.frees.append(free)
        weakref.finalize(message, self._forget, self._cluster.run, message.number, message.frees)
        for slice_number, rank in self._pairs():
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

    def _have_collect(self, message: SlicedMessage, slice_number: int, rank: int) -> None:
        run, (start, end) = self._cluster.run, self.bytes_at(slice_number)
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

    def _collected(self, message: SlicedMessage, rank: int, done: Done) -> None:
        """Note that a holder has its slice of a message, or cannot have it."""
        if rank not in self.ranks[done.slice]:
            return
        if not done.failure:
            message.have.setdefault(done.slice, set()).add(rank)
            if done.slice not in message.givers:
                givers = [source.worker for source in message.sources if source.offered.key == done.key]
                message.givers[done.slice] = givers[0] if givers else message.sources[0].worker
            self._note_arrival(message)
        elif not message.over:
            message.over, message.failure = True, done.failure
            self._cluster.collected(message.number, done.failure)
        elif not message.failure and self._has_other(done.slice, rank):
            self.suspend(done.slice, rank)

    def _note_arrival(self, message: SlicedMessage) -> None:
        if not message.over and all(self._is_secured(message, number) for number in self.slices):
            message.over = True
            self._cluster.collected(message.number, "")

    def _is_secured(self, message: SlicedMessage, slice_number: int) -> bool:
        """Return whether a slice of a message is held, and would still be there if any one node were lost.

        Until all copies have it, those that lack it may read it from its sources.
        """
        have = message.have.get(slice_number, set())
        sources = {source.rank for source in message.sources}
        enough = min(self.copies, len(sources.union(self.ranks[slice_number])))
        return bool(have) and len(have | sources) >= enough

    def begin(self, first: Announced, dtype: DType, size: int) -> tuple[int, SlicedMessage]:
        """Bring a message (:class:`~anyk.clusters.nodes.arrivals.Receiver`)."""
        message = self.collect(dtype, size, _source(first), first.free)
        return message.number, message

    def also(self, number: int | None, content: SlicedMessage, message: Announced) -> None:
        """Bring a message from a further node as well; None: it is here, and its memory is kept as long."""
        content.frees.append(message.free)
        source = _source(message)
        content.sources.append(source)
        for slice_number, rank in self._pairs():
            if rank not in content.have.get(slice_number, ()):
                self._have_collect_also(content, slice_number, rank, source)
        self._note_arrival(content)

    def stop(self, number: int) -> None:
        """Wait no more for a message; its slices are dropped with it."""

    def entered(self, message: Announced) -> None:
        """Do nothing: a source is freed with the last reference to the message."""

    def _forget(self, run: int, number: int, frees: Sequence[Callable[[], None]]) -> None:
        if run != self._cluster.run:
            return  # it has ended
        for rank in {rank for ranks in self._homes.values() for rank in ranks}:
            self._cluster.drop_slice(rank, number)
        for free in frees:
            free()


def _source(message: Announced) -> MessageSource:
    return MessageSource(message.worker, message.rank, message.address, message.offered)
