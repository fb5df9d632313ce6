"""Slices of messages that holders read, each from one replica after the other until one was intact."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from anyk.clusters.nodes.session import NOT_INTACT, Collect, Done

_PATIENCE = 1.0  # seconds after which a further replica is read as well


class _Reading:
    """A slice of a message that a holder reads."""

    def __init__(self, order: Collect) -> None:
        self.order = order
        self.left = deque([order.offered.key])  # replicas that it has not been told to read
        self.calls = 0  # that have not returned
        self.asked = 0.0  # time of the last one
        self.over = False  # whether the slice is there, or cannot be had
        self.dropped = False


class SliceReads:
    """The slices that holders read, by number and rank.

    ``read`` has a holder read its slice of the replica that an order names. ``drop`` has a holder drop its slice of a
    message.
    """

    def __init__(self, read: Callable[[int, Collect], None], drop: Callable[[int, int], None]) -> None:
        self._read, self._drop = read, drop
        self._readings: dict[tuple[int, int], _Reading] = {}

    def begin(self, rank: int, order: Collect) -> None:
        """Have a holder read its slice of a message."""
        reading = self._readings[order.number, rank] = _Reading(order)
        self._read_next(rank, reading)

    def also(self, rank: int, number: int, key: bytes) -> None:
        """Have it be read from a further replica, unless the slice is there."""
        reading = self._readings.get((number, rank))
        if reading is not None and not reading.over:
            reading.left.append(key)
            if not reading.calls:
                self._read_next(rank, reading)

    def look(self) -> None:
        """Have slices be read from a further replica that are long in coming."""
        late = time.monotonic() - _PATIENCE
        for (_, rank), reading in list(self._readings.items()):
            if reading.left and not reading.over and reading.asked < late:
                self._read_next(rank, reading)

    def returned(self, rank: int, done: Done) -> bool:
        """Take in what a read has come to; return whether it is the outcome: the first one, or the last failure."""
        reading = self._readings[done.number, rank]
        reading.calls -= 1
        if not reading.over and done.failure == NOT_INTACT and (reading.left or reading.calls):
            if not reading.calls:
                self._read_next(rank, reading)
            return False
        first, reading.over = not reading.over, True
        if not reading.calls:
            del self._readings[done.number, rank]
            if reading.dropped:
                self._drop(rank, done.number)
        return first

    def drop(self, rank: int, number: int) -> None:
        """Have a holder drop its slice of a message, when all reads of it have returned."""
        reading = self._readings.get((number, rank))
        if reading is not None and reading.calls:
            reading.over = reading.dropped = True
            return
        self._readings.pop((number, rank), None)
        self._drop(rank, number)

    def clear(self) -> None:
        """Forget everything."""
        self._readings.clear()

    def _read_next(self, rank: int, reading: _Reading) -> None:
        key = reading.left.popleft()
        self._read(rank, replace(reading.order, offered=reading.order.offered._replace(key=key)))
        reading.calls += 1
        reading.asked = time.monotonic()
