"""The driver's store of vectors on the wall clock, with the places at which workers find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyk.base.arrays import Array, DType, Vector
from anyk.clusters.contract import Key
from anyk.clusters.remote.handles import Notice
from anyk.clusters.steps import Place
from anyk.clusters.store import Message, VectorStore


class RemoteStore(VectorStore):
    """Stores vectors that are sent with the orders that need them; workers refer to them by their keys."""

    def vector(self, key: Key) -> Vector | None:
        """Return the vector of a key; None if it has been released."""
        first, second = key
        if isinstance(first, str):
            return self._models.get((first, second))
        message = self.arrived.get((first, second))
        return None if message is None else message.vector

    def place(self, slot: str, version: int) -> int:
        """Return the place at which workers find a model version."""
        return version

    def orders_of(self, slot: str, version: int) -> Sequence[Any] | None:
        """Return what orders say of the values that a version carries: numbers, arrays, and places of their pieces."""
        carried = self.carried.get((slot, version))
        if carried is None:
            return None
        return carried.numbers, carried.places, [self.place(*key) for key in carried.stored]

    def locate(self, key: Place) -> tuple[int, int]:
        """Return the place at which workers find another worker's message."""
        return key

    def contents(self, notice: Notice, length: int, dtype: DType) -> tuple[int, Array | None]:
        """Return the length of the array sent, and the array itself if it is the message expected, else None."""
        vector: Array = notice.buffer
        return vector.size, vector if vector.shape == (length,) and vector.dtype == dtype else None

    def keep(self, notice: Notice, ids: tuple[int, ...], vector: Vector) -> Message:
        """Return a message that has arrived, to be stored; nobody may change it from now on."""
        vector.flags.writeable = False
        return Message(ids, vector, notice.worker)

    def free_buffer(self, worker: int, buffer: Any) -> None:
        """Release a buffer for reuse; an array is freed with its last reference."""

    def _drop(self, key: Place) -> None:
        message = self.arrived.pop(key, None)
        if message is not None and message.buffer is not None:
            self.free_buffer(message.worker, message.buffer)

    def clear(self) -> None:
        """Drop all vectors."""
        self.arrived.clear()
        self._models.clear()
        self.carried.clear()
