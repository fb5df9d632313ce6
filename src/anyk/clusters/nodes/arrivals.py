"""Messages that workers on nodes have announced, on their way to where they are added up."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from anyk.base.arrays import Array, DType
from anyk.clusters.contract import Report
from anyk.clusters.nodes.session import Told
from anyk.clusters.nodes.wire import PIECE, Offered, bytes_of
from anyk.clusters.remote.channel import FAILED
from anyk.clusters.remote.wire import vector_type

if TYPE_CHECKING:
    from anyk.clusters.nodes.carrier import DriverCarrier

Name = tuple[bytes, ...]  # a message's type, and the digests of its bytes


class Announced:
    """A message that a worker has announced."""

    def __init__(self, told: Told, *, rank: int, address: str, free: Callable[[], None]) -> None:
        """``rank``: its node's. ``address``: where its bytes are offered. ``free``: has its memory freed."""
        self.worker, self.incarnation, self.report = told.worker, told.incarnation, told.report
        assert told.offered is not None
        self.offered: Offered = told.offered
        self.rank, self.address, self.free = rank, address, free

    def outcome(self, failure: str) -> Report:
        """Return the worker's report, or for a message that could not be brought that of its failure."""
        report = self.report
        return Report(FAILED, report.task, report.chunk, sent=report.sent, text=failure) if failure else report


def announced_vector(told: Told, most: int) -> tuple[DType, int]:
    """Return type and length of a message that is announced, of at most so many bytes.

    Raises ValueError for what no worker announces.
    """
    offered = told.offered
    assert offered is not None
    if told.form is None:
        raise ValueError("a message without its form")
    kind, size = vector_type(told.form), told.form[1]
    if size * kind.itemsize != offered.size or offered.size > max(most, 64):
        raise ValueError(f"a message of {offered.size} bytes where at most {most} are expected")
    if len(offered.digests) != -(-offered.size // PIECE) or len(offered.key) > 64:
        raise ValueError(f"{len(offered.digests)} digests of {offered.size} bytes")
    return kind, size


class Receiver(Protocol):
    """Brings messages to where they are added up; each content has a number."""

    def begin(self, first: Announced, dtype: DType, size: int) -> tuple[int, Any]:
        """Begin to bring a message; return its number, and what stands for its content."""
        ...

    def also(self, number: int | None, content: Any, message: Announced) -> None:
        """Bring it from a further node as well, whose bytes are the same; None: it is here."""
        ...

    def stop(self, number: int) -> None:
        """Stop."""
        ...

    def entered(self, message: Announced) -> None:
        """Note that a message has been entered."""
        ...


class DriverReceiver:
    """Brings messages to the driver."""

    def __init__(self, carrier: DriverCarrier, number: Callable[[], int]) -> None:
        self._carrier, self._number = carrier, number

    def begin(self, first: Announced, dtype: DType, size: int) -> tuple[int, Array]:
        number, vector = self._number(), np.empty(size, dtype=dtype)
        self._carrier.read(number, bytes_of(vector), first.offered, [first.address])
        return number, vector

    def also(self, number: int | None, content: Array, message: Announced) -> None:
        if number is not None:
            self._carrier.read_also(number, message.address, message.offered.key)

    def stop(self, number: int) -> None:
        self._carrier.stop(number)

    def entered(self, message: Announced) -> None:
        message.free()


class _Arriving:
    """A content that is being brought, for all messages that consist of its bytes."""

    def __init__(self, name: Name, content: Any, first: Announced) -> None:
        self.name, self.content, self.messages = name, content, [first]


class Arrivals:
    """Brings each content once, however many workers send it, from whichever has announced it.

    ``enter`` notes the arrival of a message with its content; None: it has failed, for a reason.
    """

    def __init__(self, receiver: Receiver, enter: Callable[[Announced, Any, str], None]) -> None:
        self._receiver, self._enter = receiver, enter
        self._arriving: dict[int, _Arriving] = {}
        self._numbers: dict[Name, int] = {}
        self._here: weakref.WeakValueDictionary[Name, Any] = weakref.WeakValueDictionary()

    def announce(self, message: Announced, dtype: DType, size: int) -> None:
        """Take in a message that a task in flight waits for."""
        name = (dtype.str.encode(), *message.offered.digests)
        number = self._numbers.get(name)
        if (content := self._here.get(name)) is not None:
            self._receiver.also(None, content, message)
            self._leave(message, content)
        elif number is not None:
            arriving = self._arriving[number]
            arriving.messages.append(message)
            self._receiver.also(number, arriving.content, message)
        else:
            number, content = self._receiver.begin(message, dtype, size)
            self._numbers[name], self._arriving[number] = number, _Arriving(name, content, message)

    def finished(self, number: int, failure: str = "") -> None:
        """Enter the messages whose content has arrived, or failed."""
        arriving = self._arriving.pop(number, None)
        if arriving is None:
            return
        del self._numbers[arriving.name]
        if not failure:
            self._here[arriving.name] = arriving.content
        for message in arriving.messages:
            self._leave(message, None if failure else arriving.content, failure)

    def stop_unneeded(self, needed: Callable[[int], bool]) -> None:
        """Stop bringing what no task waits for (``needed``); such messages are only counted."""
        for number, arriving in list(self._arriving.items()):
            for message in [message for message in arriving.messages if not needed(message.report.task)]:
                arriving.messages.remove(message)
                self._leave(message, np.empty(0))
            if not arriving.messages:
                self._receiver.stop(number)
                del self._arriving[number], self._numbers[arriving.name]

    def _leave(self, message: Announced, content: Any, failure: str = "") -> None:
        self._enter(message, content, failure)
        self._receiver.entered(message)

    def close(self) -> None:
        """Stop everything."""
        for number in self._arriving:
            self._receiver.stop(number)
        self._arriving.clear()
        self._numbers.clear()
