"""The driver's record of a node, and what its cluster does for those that speak with nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from anyk.clusters.contract import Key
from anyk.clusters.nodes.session import Hello, ToNode
from anyk.clusters.nodes.wire import Offered

PATIENCE = 2.0  # seconds without a sign of life after which a slice is left to its other copy; two signs of life


class Node:
    """The driver's record of a node in one life."""

    def __init__(self, rank: int, life: bytes, hello: Hello) -> None:
        self.rank, self.life, self.hello = rank, life, hello
        self.told = 0  # number of messages told
        self.taken = 0  # number of the last message that it has acknowledged
        self.run = 0  # the run for which it has been briefed
        self.has: set[Key] = set()  # vectors that it has been told of
        self.vectors: list[Key] = []  # those of them that it may drop
        self.messages: list[bytes] = []  # keys of its workers' messages that are not needed any more
        self.slices: list[int] = []  # numbers of messages whose slices it need not hold any more


class Offering(Protocol):
    """Offers bytes of the driver's process, at its address."""

    @property
    def address(self) -> str:
        """The address."""
        ...

    def offer(self, data: memoryview) -> Offered:
        """Offer bytes, which must not change."""
        ...

    def drop(self, key: bytes) -> None:
        """Withdraw bytes."""
        ...


class DriverOfNodes(Protocol):
    """The cluster, for those that have nodes hold slices. Its methods raise :class:`~anyk.RunFailed` if one is lost."""

    run: int

    @property
    def carrier(self) -> Offering:
        """Offers the driver's vectors."""
        ...

    def address_of(self, rank: int) -> str:
        """Return the address at which a node offers bytes."""
        ...

    def tell_rank(self, rank: int, order: ToNode) -> None:
        """Tell a node something."""
        ...

    def locate(self, rank: int, keys: Sequence[Key]) -> None:
        """Tell a node where it reads vectors, if it has not been told."""
        ...

    def locate_again(self, key: Key) -> None:
        """Tell the nodes that need a vector that it is read elsewhere from now on."""
        ...

    def silence(self, rank: int) -> float:
        """Return the seconds since a node's last sign of life; infinity if it is dead."""
        ...

    def offers_at(self, rank: int, address: str) -> bool:
        """Return whether a node offers bytes at an address, in the life in which it did before."""
        ...

    def can_hold(self, rank: int) -> bool:
        """Return whether a node takes part in the run and has taken in all that it was told."""
        ...

    def drop_slice(self, rank: int, number: int) -> None:
        """Have a node drop its slice of a message with the next news that it gets."""
        ...

    def collected(self, number: int, failure: str) -> None:
        """Note that the slices of a message are at their holders, or that one could not get it."""
        ...

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Take in what nodes tell until something is done."""
        ...

    def read_now(
        self, wanted: Sequence[tuple[memoryview, Offered, str]], moved: Callable[[], bool] = lambda: False
    ) -> bool:
        """Read what nodes offer, and wait for it; stop and return False once it has ``moved`` elsewhere."""
        ...
