"""The vectors that a node's workers need, and where they are read from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from anyk.base.arrays import Array
from anyk.clusters.contract import Key
from anyk.clusters.nodes.session import OfferedPart
from anyk.clusters.nodes.wire import Offered, bytes_of
from anyk.clusters.processes.memory import EMPTIED, HEADER, MemoryLayout, mark_buffer
from anyk.clusters.processes.shared_store import SharedStore
from anyk.clusters.store import Message

# bytes of a model, or a message, whose memory is freed at once; that of others is used again, which is faster
_LARGE = 1 << 26
_RETRY = 1.0  # seconds after which a read that failed is begun again, if its vector is still needed


class NodeStore(SharedStore):
    """The node's models, and messages of workers elsewhere, where its workers read them.

    A message of its own workers that finds too few free buffers is copied; none is moved while others read it.
    """

    def _copy_out(self, worker: int) -> bool:
        return False

    def place(self, slot: str, version: int) -> int:
        return self._copies.get((slot, version), 0)  # what is not there was needed by something that has ended

    def locate(self, key: tuple[int, int]) -> tuple[int, int]:
        return super().locate(key) if key in self.arrived else (0, 0)

    def _reserve(self, copy: int) -> None:
        if self._plan.model_bytes < _LARGE:
            super()._reserve(copy)

    def reserve_part(self, slot: str, version: int, first: int, size: int) -> None:
        """Have memory for ``size`` bytes of a model from the byte ``first`` on; a small one has all it needs."""
        if self._plan.model_bytes >= _LARGE:
            self._memory.reserve(self._copies[slot, version] * self._plan.model_bytes + first, size)

    def release(self, slot: str, version: int) -> None:
        copy = self._copies.get((slot, version))
        super().release(slot, version)
        if copy is not None and self._plan.model_bytes >= _LARGE:
            self._memory.empty(copy * self._plan.model_bytes, self._plan.model_bytes)
            self._reserved.discard(copy)

    def _mark_free(self, worker: int, offset: int) -> None:
        size = self._plan.buffer_bytes(worker)
        if size < _LARGE:
            super()._mark_free(worker, offset)
            return
        self._replies.empty(offset + HEADER.size, size - HEADER.size)
        mark_buffer(self._replies.memory, offset, EMPTIED)


class _Vector:
    """A vector, the parts of it that are missing, and the reads of them."""

    def __init__(self, parts: Sequence[OfferedPart]) -> None:
        self.parts = list(parts)
        self.missing = set(range(len(parts)))
        self.written: set[int] = set()  # first bytes of parts that steps of this node have written
        self.reads: dict[int, int] = {}  # the part that a read brings
        self.again: dict[int, float] = {}  # time at which a read of a part that failed is begun again
        self.memory: Array | None = None


class NodeVectors:
    """Reads vectors into memory in which workers find them.

    ``read`` begins to read what is offered at an address and returns the number of the read; ``stop`` returns when
    nothing more is written. ``address``: the node's own; parts of models there are written by its steps.
    """

    def __init__(
        self,
        store: NodeStore,
        layout: MemoryLayout,
        address: str,
        read: Callable[[memoryview, Offered, str], int],
        stop: Callable[[int], None],
    ) -> None:
        self._store, self._layout, self._address, self._read, self._stop = store, layout, address, read, stop
        self._vectors: dict[Key, _Vector] = {}
        self._keys: dict[int, Key] = {}  # of the vectors that reads are of

    def locate(self, key: Key, parts: Sequence[OfferedPart]) -> None:
        """Note where a vector is read, perhaps from now on elsewhere."""
        vector = self._vectors.setdefault(key, _Vector(()))
        if not vector.parts:
            vector.parts = list(parts)
            vector.missing = {number for number, part in enumerate(parts) if part.first not in vector.written}
            return
        for number in [number for number in vector.missing if vector.parts[number] != parts[number]]:
            self._stop_part(vector, number)
            vector.again.pop(number, None)
        vector.parts = list(parts)

    def wrote(self, key: Key, first: int) -> None:
        """Note that a step has written the part of a model that begins with the byte ``first``."""
        vector = self._vectors[key]
        vector.written.add(first)
        for number in [number for number in vector.missing if vector.parts[number].first == first]:
            self._stop_part(vector, number)
            vector.missing.discard(number)

    def _stop_part(self, vector: _Vector, number: int) -> None:
        for read in [read for read, brings in vector.reads.items() if brings == number]:
            del vector.reads[read], self._keys[read]
            self._stop(read)

    def _is_written_here(self, key: Key, part: OfferedPart) -> bool:
        return isinstance(key[0], str) and part.address == self._address

    def known(self, key: Key) -> bool:
        """Return whether a vector has not been dropped."""
        return key in self._vectors

    def here(self, key: Key) -> bool:
        """Return whether all of a vector is there."""
        vector = self._vectors.get(key)
        return vector is not None and vector.memory is not None and not vector.missing and bool(vector.parts)

    def fetch(self, keys: Iterable[Key]) -> None:
        """Begin to read what is missing of these vectors."""
        now = time.monotonic()
        for key in dict.fromkeys(keys):
            vector = self._vectors.get(key)
            if vector is None:
                continue
            for number in vector.missing - set(vector.reads.values()):
                part = vector.parts[number]
                if now >= vector.again.get(number, now) and not self._is_written_here(key, part):
                    memory = bytes_of(self.room(key))[part.first : part.first + part.offered.size]
                    self.reserve(key, part.first, part.offered.size)
                    read = self._read(memory, part.offered, part.address)
                    vector.reads[read] = number
                    self._keys[read] = key
            if vector.parts and vector.memory is None and not vector.missing:
                self.room(key)

    def finished(self, read: int, *, complete: bool) -> None:
        """Note the end of a read."""
        vector = self._vectors.get(self._keys.pop(read, ("", -1)))
        if vector is None:
            return
        number = vector.reads.pop(read)
        if complete:
            vector.missing.discard(number)
        else:  # withdrawn, because newer orders are on their way, or changed by somebody else
            vector.again[number] = time.monotonic() + _RETRY

    def room(self, key: Key) -> Array:
        """Return the memory of a vector."""
        vector = self._vectors.setdefault(key, _Vector(()))
        if vector.memory is None:
            vector.memory = self._new_room(key, sum(part.offered.size for part in vector.parts))
        return vector.memory

    def reserve(self, key: Key, first: int, size: int) -> None:
        """Have memory for ``size`` bytes of a vector from the byte ``first`` on, before they are written."""
        slot, version = key
        if isinstance(slot, str):
            self._store.reserve_part(slot, version, first, size)

    def _new_room(self, key: Key, size: int) -> Array:
        first, second = key
        store, layout = self._store, self._layout
        if isinstance(first, str):
            store.publish(first, second, store.blank(first))
            return store.model(first, second)
        vector = np.empty(size // layout.itemsize, dtype=layout.dtype)
        store.arrived[first, second] = Message((), vector, -1)
        store.locate((first, second))  # moves it to where workers read it
        moved = store.arrived[first, second].vector
        moved.flags.writeable = True
        return moved

    def drop(self, key: Key) -> None:
        """Forget a vector."""
        vector = self._vectors.pop(key, None)
        if vector is None:
            return
        for read in vector.reads:
            del self._keys[read]
            self._stop(read)
        if vector.memory is not None:
            first, second = key
            if isinstance(first, str):
                self._store.release(first, second)
            else:
                self._store.free(first, second)

    def close(self) -> None:
        """Stop all reads."""
        for read in self._keys:
            self._stop(read)
        self._keys.clear()
