"""The driver's store of a run's models and messages in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Array, DType, Vector
from anyk.clusters.local import State
from anyk.clusters.messages import Messages
from anyk.clusters.processes.memory import (
    ALIGN,
    FREE,
    FULL,
    HEADER,
    MemoryLayout,
    Segment,
    SharedStates,
    mark_buffer,
    message_bytes,
    model_view,
    order_memory,
)
from anyk.clusters.remote.handles import Notice
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.store import Elsewhere, Message


class _Moved(NamedTuple):
    """The place of a message that was moved from its sender's buffers to other shared memory."""

    offset: int
    size: int


class SharedStore(RemoteStore):
    """Stores versions and messages where workers read and write them.

    All but one of a worker's reply buffers may contain unused messages; further messages are moved.
    """

    def __init__(self, messages: Messages | None, plan: MemoryLayout) -> None:
        super().__init__(messages)
        self._plan = plan
        self._free_copies = list(reversed(range(plan.copies)))
        self._copies: dict[tuple[str, int], int] = {}
        self._reserved: set[int] = set()
        self._occupied: list[set[int]] = [set() for _ in range(plan.workers)]  # reply buffers that contain messages
        self._gaps: dict[int, list[int]] = {}  # free places for moved messages, by size

    def attach(self, models: Segment, replies: Segment, states: Segment) -> None:
        """Set the memory to use; call this first."""
        self._memory, self._replies = models, replies
        size = self._plan.state_bytes
        self.states = [SharedStates(states, worker, size) for worker in range(self._plan.workers) if size]

    def touch(self) -> None:
        """Touch the pages that the first steps will use, so that these steps cause no page faults."""
        plan = self._plan
        for copy in self._free_copies[-3 * len(plan.slots) :]:
            model_view(self._memory, plan, copy)[:] = 0.0
        for worker in range(plan.workers):
            # further buffers are rarely used, and reading them takes memory
            size = min(2, plan.buffers) * plan.buffer_bytes(worker)
            self._replies.array(plan.buffer_at(worker, 0), size // 8, np.dtype(np.int64))[:: 4096 // 8].max(initial=0)

    def blank(self, slot: str) -> Vector:
        plan = self._plan  # only one version is being written at a time, whatever its slot
        if not self._free_copies:  # more versions are in use than expected
            first = self._memory.size // plan.model_bytes
            self._memory.grow((first + plan.workers) * plan.model_bytes)
            self._free_copies = list(reversed(range(first, first + plan.workers)))
        copy = self._free_copies[-1]
        if copy not in self._reserved:
            self._reserve(copy)
            self._reserved.add(copy)
        return model_view(self._memory, plan, copy)

    def _reserve(self, copy: int) -> None:
        """Have memory for a version of a model."""
        self._memory.reserve(copy * self._plan.model_bytes, self._plan.model_bytes)

    def publish(self, slot: str, version: int, w: Vector | Elsewhere) -> None:
        assert not isinstance(w, Elsewhere)
        blank = self.blank(slot)
        if not np.may_share_memory(w, blank):
            blank[:] = w
        self._copies[slot, version] = self._free_copies.pop()

    def release(self, slot: str, version: int) -> None:
        copy = self._copies.pop((slot, version), None)
        if copy is not None:
            self._free_copies.append(copy)
        self._drop_carried(slot, version)

    def model(self, slot: str, version: int) -> Vector:
        return model_view(self._memory, self._plan, self._copies[slot, version])

    def restore_message(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        occupied, plan = self._occupied[worker], self._plan
        if len(occupied) >= plan.buffers - 1:
            super().restore_message(worker, task, chunk, ids, message)
            return
        buffer = next(buffer for buffer in range(plan.buffers) if buffer not in occupied)
        offset = plan.buffer_at(worker, buffer)
        self._replies.reserve(offset, plan.buffer_bytes(worker))
        vector = self._replies.array(offset + HEADER.size, message.size, np.dtype(plan.dtype))
        vector[:] = message
        vector.flags.writeable = False
        mark_buffer(self._replies.memory, offset, FULL, task=task, chunk=chunk, length=message.size)
        occupied.add(buffer)
        self.arrived[task, chunk] = Message(ids, vector, worker, buffer)

    def place(self, slot: str, version: int) -> int:
        return self._copies[slot, version]

    def locate(self, key: tuple[int, int]) -> tuple[int, int]:
        message = self.arrived[key]
        buffer = message.buffer
        if buffer is None:
            buffer = self._move(key, message)
        return buffer.offset if isinstance(buffer, _Moved) else self._plan.buffer_at(message.worker, buffer), 0

    def _move(self, key: tuple[int, int], message: Message) -> _Moved:
        """Move a message from its sender's buffers to other memory that all workers can read."""
        size = message_bytes(message.vector.nbytes)
        gaps = self._gaps.setdefault(size, [])
        if not gaps:
            first = -(-self._replies.size // ALIGN) * ALIGN
            end = first + self._plan.workers * size
            self._replies.grow(end)
            gaps.extend(range(first, end, size))
        buffer = _Moved(gaps.pop(), size)
        self._replies.reserve(buffer.offset, size)
        vector = self._replies.array(buffer.offset + HEADER.size, message.vector.size, message.vector.dtype)
        vector[:] = message.vector
        vector.flags.writeable = False
        self.arrived[key] = message._replace(vector=vector, buffer=buffer)
        return buffer

    def contents(self, notice: Notice, length: int, dtype: DType) -> tuple[int, Array | None]:
        offset = self._plan.buffer_at(notice.worker, notice.buffer)
        state, task, chunk, size = HEADER.unpack_from(self._replies.memory, offset)
        if (state, task, chunk, size) != (FULL, notice.report.task, notice.report.chunk, length):
            return size, None
        return size, self._replies.array(offset + HEADER.size, length, dtype)

    def keep(self, notice: Notice, ids: tuple[int, ...], vector: Vector) -> Message:
        occupied = self._occupied[notice.worker]
        if len(occupied) >= self._plan.buffers - 1 and not self._copy_out(notice.worker):
            vector = vector.copy()
            vector.flags.writeable = False
            self.free_buffer(notice.worker, notice.buffer)
            return Message(ids, vector, notice.worker, None)
        occupied.add(notice.buffer)
        vector.flags.writeable = False
        return Message(ids, vector, notice.worker, notice.buffer)

    def _copy_out(self, worker: int) -> bool:
        """Free a buffer of a worker: move its oldest message that no task reads to the driver's memory.

        Return False if tasks are reading all its messages.
        """
        read = {key for ask in self.requests.values() for key in ask.messages}
        for key, message in self.arrived.items():
            in_buffer = message.worker == worker and isinstance(message.buffer, int)
            if in_buffer and key not in self.readers and key not in read:
                vector = message.vector.copy()
                vector.flags.writeable = False
                self.arrived[key] = message._replace(vector=vector, buffer=None)
                self.free_buffer(worker, message.buffer)
                return True
        return False

    def free_buffer(self, worker: int, buffer: Any) -> None:
        if isinstance(buffer, _Moved):
            self._gaps[buffer.size].append(buffer.offset)
            return
        order_memory()  # what was read from it was read before the worker writes again
        self._mark_free(worker, self._plan.buffer_at(worker, buffer))
        self._occupied[worker].discard(buffer)

    def _mark_free(self, worker: int, offset: int) -> None:
        mark_buffer(self._replies.memory, offset, FREE)

    def void(self, worker: int) -> None:
        """Free the buffer that a worker was writing when it died, and drop its states; messages already sent stay."""
        if self.states:
            self.states[worker].clear()
        for buffer in range(self._plan.buffers):
            if buffer not in self._occupied[worker]:
                self.free_buffer(worker, buffer)

    def saved_states(self, worker: int) -> Mapping[int, State]:
        # the worker may be writing any other; copies, as each mapping of memory takes a file descriptor
        states = self.states[worker]
        tasks = [task for task in self.continued.get(worker, ()) if task in states]
        return {task: {name: vector.copy() for name, vector in states[task].items()} for task in tasks}
