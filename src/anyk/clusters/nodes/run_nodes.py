"""The nodes of a run: where they are, what they have been told of, and what the driver reads from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anyk.base.errors import RunFailed, StateLost
from anyk.clusters.contract import Key
from anyk.clusters.nodes.driver_store import DriverStore
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.hub import Hub
from anyk.clusters.nodes.node import Node
from anyk.clusters.nodes.session import SILENCE, Drop, Locate, ToNode
from anyk.clusters.nodes.wire import Offered

_TURN = 0.25  # seconds between two looks while the driver waits for nodes
_BEHIND = 64  # messages that a node may not have acknowledged while it is still told what to drop


class RunNodes:
    """The nodes of a run (:class:`~anyk.clusters.nodes.node.DriverOfNodes`).

    ``run``: its number, 0 if none is open. ``store``: of its vectors. ``holders``: of slices, if there are any, and
    ``lost``: why some of them are lost. ``works(rank)``: whether a worker of a node is present. ``arrived`` is called
    with the number of a message that is at its holders, and why it could not be.
    """

    store: DriverStore

    def __init__(self, hub: Hub, works: Callable[[int], bool], arrived: Callable[[int, str], None]) -> None:
        self._hub, self.carrier = hub, hub.carrier
        self._works, self._arrived = works, arrived
        self._awaited: dict[int, bool | None] = {}  # reads for which the driver waits; None: not over
        self.run = 0
        self.holders: Holders | None = None
        self.lost = ""

    # ------------------------------------------------------------------------------------------- telling

    def address_of(self, rank: int) -> str:
        """Return the address at which a node offers bytes."""
        return self._holder(rank).hello.address

    def tell_rank(self, rank: int, order: ToNode) -> None:
        """Tell a node something."""
        self._hub.tell(self._holder(rank), order)

    def _holder(self, rank: int) -> Node:
        if self.lost:
            raise StateLost(self.lost)
        return self._hub.nodes[rank]

    def locate(self, rank: int, keys: Sequence[Key]) -> None:
        """Tell a node where it reads vectors, if it has not been told."""
        self.locate_at(self._holder(rank), keys)

    def locate_at(self, node: Node, keys: Sequence[Key]) -> None:
        """Tell a node where it reads vectors, if it has not been told."""
        fresh = [(key, self.store.parts(key, node.rank)) for key in keys if key not in node.has]
        if fresh:
            node.has.update(key for key, _ in fresh)
            self._hub.tell(node, Locate(self.run, fresh))

    def locate_again(self, key: Key) -> None:
        """Tell the nodes that need a vector that it is read elsewhere from now on."""
        for node in self._hub.nodes.values():
            if key in node.has:
                self._hub.tell(node, Locate(self.run, [(key, self.store.parts(key, node.rank))]))

    def drop_slice(self, rank: int, number: int) -> None:
        """Have a node drop its slice of a message with the next news that it gets."""
        if rank in self._hub.nodes:
            self._hub.nodes[rank].slices.append(number)

    def tidy(self) -> None:
        """Tell nodes which vectors and messages are needed no more; one that does not listen is told later."""
        gone, self.store.gone = self.store.gone, []
        for node in self._hub.nodes.values():
            node.vectors += [key for key in gone if key in node.has]
            node.has.difference_update(gone)
            if (node.vectors or node.messages or node.slices) and node.told - node.taken < _BEHIND:
                self._hub.tell(node, Drop(self.run, node.vectors, node.messages, node.slices))
                node.vectors, node.messages, node.slices = [], [], []

    # ------------------------------------------------------------------------------------------- how they are

    def silence(self, rank: int) -> float:
        """Return the seconds since a node's last sign of life; infinity if it is dead."""
        node = self._hub.nodes.get(rank)
        return math.inf if node is None else self.carrier.silence(node.life)

    def offers_at(self, rank: int, address: str) -> bool:
        """Return whether a node offers bytes at an address, in the life in which it did before."""
        node = self._hub.nodes.get(rank)
        return node is not None and node.hello.address == address

    def can_hold(self, rank: int) -> bool:
        """Return whether a node takes part in the run and has taken in all that it was told."""
        node = self._hub.nodes.get(rank)
        if node is None or node.run != self.run or node.taken < node.told or self.carrier.silence(node.life) > SILENCE:
            return False
        return self._works(rank)

    def collected(self, number: int, failure: str) -> None:
        """Note that the slices of a message are at their holders, or that one could not get it."""
        self._arrived(number, failure)

    # ------------------------------------------------------------------------------------------- waiting and reading

    def poll(self, timeout: float) -> None:
        """Take in what nodes tell within ``timeout`` seconds, and who is silent."""
        self._hub.poll(timeout)
        if self.holders is not None:
            self.holders.look()

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Take in what nodes tell until something is done."""
        while not done():
            self.poll(_TURN)

    def read_now(
        self, wanted: Sequence[tuple[memoryview, Offered, str]], moved: Callable[[], bool] = lambda: False
    ) -> bool:
        """Read what nodes offer, and wait for it; stop and return False once it has ``moved`` elsewhere.

        Raises :class:`~anyk.RunFailed` if it cannot be read.
        """
        self.tidy()
        sources: dict[int, str] = {}
        for memory, offered, address in wanted:
            number = self._hub.next_read()
            self._awaited[number] = None
            self.carrier.read(number, memory, offered, [address])
            sources[number] = address
        try:
            self.wait_until(lambda: moved() or all(self._is_over(*read) for read in sources.items()))
            if moved():
                return False
            if any(self._awaited[number] is None for number in sources):
                raise RunFailed(
                    "a node was lost with a vector that the driver needs; resume the run from its last checkpoint, "
                    "which --supervise does by itself"
                )
            if not all(self._awaited[number] for number in sources):
                raise RunFailed("the driver could not read a vector of the nodes intact")
            return True
        finally:
            for number in sources:
                if self._awaited.pop(number) is None:
                    self.carrier.stop(number)

    def _is_over(self, number: int, address: str) -> bool:
        """Return whether a read of an address has ended, or never will."""
        addresses = [self.carrier.address, *(node.hello.address for node in self._hub.nodes.values())]
        return self._awaited[number] is not None or address not in addresses

    def finished(self, number: int, complete: bool) -> bool:
        """Note the end of a read; return whether the driver waits for it here."""
        if number not in self._awaited:
            return False
        self._awaited[number] = complete
        return True
