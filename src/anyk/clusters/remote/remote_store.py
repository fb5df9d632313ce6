"""The vectors of a run whose workers run by themselves: how workers find them, and how messages come in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.contract import Key
from anyk.clusters.remote.handles import Notice
from anyk.clusters.store import Message, Place, VectorStore
from anyk.problems.base import Vector
from anyk.protocol import Chunk


class RemoteStore(VectorStore):
    """Vectors that travel with the orders that need them: workers know them by their keys."""

    def vector(self, key: Key) -> Vector | None:
        """Return the vector of a key, while there is one."""
        first, second = key
        if isinstance(first, str):
            return self._models.get((first, second))
        message = self.arrived.get((first, second))
        return None if message is None else message.vector

    def place(self, slot: str, version: int) -> int:
        """Return the place at which workers find a model version."""
        del slot
        return version

    def locate(self, key: Place) -> tuple[int, int]:
        """Return the place at which workers find the message of another."""
        return key

    def contents(self, notice: Notice, length: int, dtype: np.dtype[Any]) -> tuple[int, NDArray[Any] | None]:
        """Return the length of what was sent, and the array if it is the message announced, of the length expected."""
        vector: NDArray[Any] = notice.buffer
        return vector.size, vector if vector.shape == (length,) and vector.dtype == dtype else None

    def keep(self, notice: Notice, ids: tuple[int, ...], vector: Vector) -> Message:
        """Keep a message that has arrived."""
        return Message(ids, vector, notice.worker)

    def free_buffer(self, worker: int, buffer: Any) -> None:
        """Let a buffer be used again; an array goes with its last reference."""

    def _drop(self, place: Place) -> None:
        message = self.arrived.pop(place, None)
        if message is not None and message.buffer is not None:
            self.free_buffer(message.worker, message.buffer)

    def covered(self, task: int, index: int, chunk: Chunk) -> tuple[int, ...]:
        """Return the partitions that a chunk's message covers."""
        request = self.requests.get((task, index))
        if request is None:
            return chunk.covers
        inside = [j for key in request.messages for j in self.arrived[key].ids]
        return tuple(dict.fromkeys([*request.partitions, *inside]))

    def clear(self) -> None:
        """Let go of all vectors."""
        self.arrived.clear()
        self._models.clear()
