"""The driver's store of vectors that nodes read."""

from __future__ import annotations

import numpy as np

from anyk.clusters.contract import Key
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.node import Offering
from anyk.clusters.nodes.session import OfferedPart
from anyk.clusters.nodes.wire import Offered, bytes_of
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.steps import Place


class DriverStore(RemoteStore):
    """The driver's vectors, offered to nodes as soon as orders need them."""

    def __init__(self, messages: Messages, carrier: Offering) -> None:
        super().__init__(messages)
        self._carrier = carrier
        self._offered: dict[Key, Offered] = {}
        self.gone: list[Key] = []  # vectors that nodes need no more

    def parts(self, key: Key, rank: int) -> list[OfferedPart]:
        """Return where a node reads a vector."""
        if key not in self._offered:
            vector = self.vector(key)
            assert vector is not None
            self._offered[key] = self._carrier.offer(bytes_of(np.ascontiguousarray(vector)))
        return [OfferedPart(0, self._offered[key], self._carrier.address)]

    def release(self, slot: str, version: int) -> None:
        super().release(slot, version)
        self._withdraw((slot, version))

    def _drop(self, key: Place) -> None:
        super()._drop(key)
        self._withdraw(key)

    def _withdraw(self, key: Key) -> None:
        offered = self._offered.pop(key, None)
        if offered is not None:
            self._carrier.drop(offered.key)
            self.gone.append(key)

    def clear(self) -> None:
        super().clear()
        for key in list(self._offered):
            self._withdraw(key)
