"""The nodes that hold slices: who goes on when one of them is lost, silent or late, and who comes back."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

from anyk.base.arrays import DType
from anyk.clusters.nodes.node import PATIENCE, DriverOfNodes
from anyk.clusters.nodes.placement import Placement
from anyk.clusters.nodes.session import Done, Release
from anyk.clusters.nodes.slice_questions import SliceQuestions
from anyk.clusters.nodes.sliced_messages import SlicedMessages

MOST_BEHIND = 3  # steps that a copy may lag behind the other one
_PAUSE, _LONGEST_PAUSE = 2.0, 64.0  # seconds until a copy that lagged is made up to date again; longer each time


class Holders:
    """The nodes that hold slices; they carry out the same orders if there are two copies.

    ``questions`` asks them, ``messages`` has them collect messages, ``placement`` knows who holds what. A node that
    gives no sign of life, or lags behind, holds its slices no more until it is made up to date (:meth:`returning`).
    ``suspended`` is told who holds a slice no more. ``among``: see :class:`~anyk.clusters.nodes.placement.Placement`.
    """

    def __init__(
        self,
        cluster: DriverOfNodes,
        slices: Sequence[tuple[int, int]],
        dtype: DType,
        copies: int,
        among: Sequence[int] = (),
    ) -> None:
        self._cluster = cluster
        numbers = itertools.count(1)
        self.placement = Placement(slices, dtype, copies, among)
        self.messages = SlicedMessages(cluster, self.placement, numbers)
        self.questions = SliceQuestions(cluster, self.placement, numbers)
        self.suspended: Callable[[int, int], None] = lambda slice_number, rank: None
        self._pauses: dict[int, tuple[float, float]] = {}  # by rank: until when, and how long the next one is

    def on_done(self, rank: int, done: Done) -> None:
        """Take in an answer of a holder."""
        if self.messages.knows(done.number):
            if not self.messages.collected(rank, done) and self._has_other(done.slice, rank):
                self.suspend(done.slice, rank)
        elif self.questions.is_asked(done.number, done.slice, rank):
            if done.failure and not done.final and self._has_other(done.slice, rank):
                self.suspend(done.slice, rank)  # it need not be that the other copy cannot do it
            else:
                self.questions.answered(rank, done)

    def _has_other(self, slice_number: int, rank: int) -> bool:
        """Return whether another node can go on with a slice without ``rank``."""
        others = [other for other in self.placement.ranks[slice_number] if other != rank]
        return any(self.messages.suffice(slice_number, other, without=rank) for other in others)

    # ------------------------------------------------------------------------------------------- who is left

    def look(self) -> None:
        """Leave slices to their other copy whose node gives no sign of life; call this often."""
        if self.placement.copies == 1:
            return
        for slice_number, ranks in self.placement.ranks.items():
            if len(ranks) > 1:
                silences = {rank: self._cluster.silence(rank) for rank in ranks}
                last = max(ranks, key=silences.__getitem__)
                has_joined = silences[last] < math.inf
                is_silent = silences[last] > PATIENCE > min(silences.values())
                if has_joined and is_silent and self._has_other(slice_number, last):
                    self.suspend(slice_number, last)

    def suspend_who_lags(self) -> None:
        """Leave slices to their other copy whose node is too many steps behind."""
        for slice_number, rank in self.placement.pairs():
            behind = self.questions.steps_behind(slice_number, rank)
            if behind >= MOST_BEHIND and self._has_other(slice_number, rank):
                self.suspend(slice_number, rank)
                self._pause(rank)

    def lose(self, rank: int) -> list[int]:
        """Note that a node has died; return the slices that nobody holds any more."""
        numbers = [number for number, ranks in self.placement.ranks.items() if rank in ranks]
        lost = [number for number in numbers if not self._has_other(number, rank)]
        if not lost:
            for number in self.placement.homes:
                self._forget_holder(number, rank)
            for number, other in self.placement.pairs():  # some may have been about to read from it
                if not self.messages.suffice(number, other) and self._has_other(number, other):
                    self.suspend(number, other)
        return lost

    def suspend(self, slice_number: int, rank: int) -> None:
        """Have a node hold a slice no more, which another one holds."""
        assert self._has_other(slice_number, rank)
        self._cluster.tell_rank(rank, Release(self._cluster.run, 0, slice_number))
        self._forget_holder(slice_number, rank)

    def _forget_holder(self, slice_number: int, rank: int) -> None:
        if rank in self.placement.ranks[slice_number]:
            self.placement.ranks[slice_number].remove(rank)
        self.questions.forget(slice_number, rank)
        self.messages.forget(slice_number, rank)
        self.suspended(slice_number, rank)

    # ------------------------------------------------------------------------------------------- who comes back

    def returning(self) -> list[tuple[int, int]]:
        """Return slices and nodes that could hold them again, once they are made up to date."""
        now = time.monotonic()
        return [
            (number, rank)
            for number, homes in self.placement.homes.items()
            for rank in homes
            if rank not in self.placement.ranks[number]
            and now > self._pauses.get(rank, (0.0, _PAUSE))[0]
            and self._cluster.can_hold(rank)
            and self.messages.suffice(number, rank)
        ]

    def put_off(self, slice_number: int, rank: int) -> None:
        """Have a node that could not be made up to date not hold a slice for now."""
        self._pause(rank)
        if self._cluster.silence(rank) < math.inf:
            self._cluster.tell_rank(rank, Release(self._cluster.run, 0, slice_number))

    def _pause(self, rank: int) -> None:
        _, pause = self._pauses.get(rank, (0.0, _PAUSE))
        self._pauses[rank] = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE)

    def resume(self, slice_number: int, rank: int) -> None:
        """Have a node hold a slice again, which has the state before the next step."""
        self.placement.ranks[slice_number].append(rank)
        self.messages.hand_over(slice_number, rank)
