"""A worker in a process of this machine: it reads orders from its mail box and writes messages to shared memory."""

from __future__ import annotations

import os
import select
import time
from typing import Any

import msgspec
import numpy as np

from anyk.arrays import Array, Vector
from anyk.clusters.contract import Report
from anyk.clusters.processes.memory import (
    ERROR_BOX,
    FREE,
    FULL,
    HEADER,
    RECORD,
    WRITING,
    MailBox,
    MemoryLayout,
    Segment,
    SharedStates,
    model_view,
)
from anyk.clusters.remote.orders import Orders, unpack
from anyk.clusters.remote.shipping import unship
from anyk.clusters.remote.worker import Disconnected, RunSetup, Worker


class Shared:
    """The run's settings, shared memory and pipe to the driver, common to all workers of a fork server."""

    def __init__(self, message: dict[str, Any], fds: list[int]) -> None:
        self.layout = msgspec.convert(message["layout"], MemoryLayout)
        self.setup = msgspec.convert(message["setup"], RunSetup)
        self.assignment: list[list[int]] = message["assignment"]
        self.places: list[tuple[int, int]] = [tuple(place) for place in message["places"]]
        sizes = message["sizes"]
        self.data, self.models, self.replies, self.mail, self.states = (
            Segment(fd, size) for fd, size in zip(fds[:5], sizes, strict=True)
        )
        self.pipe = fds[5]

    def read_partitions(self) -> Any:
        """Return the partitions that the driver wrote into shared memory at the start, without copying their arrays."""
        return unship([memoryview(self.data.memory)[start : start + length] for start, length in self.places])


class SharedMemoryWorker(Worker[int]):
    """A worker with shared memory; it refers to a message buffer by its number, from 0 to ``layout.buffers - 1``."""

    def __init__(self, shared: Shared, worker: int, incarnation: int, doorbell: int) -> None:
        super().__init__(worker, shared.setup)
        layout = self._layout = shared.layout
        self._shared, self._incarnation, self._doorbell = shared, incarnation, doorbell
        self._box = MailBox(shared.mail, layout.box_at(worker), layout.box)
        self._box.seen = -1
        if layout.state_bytes:
            self._states = SharedStates(shared.states, worker, layout.state_bytes)
        self._reserved: set[int] = set()

    def start(self) -> None:
        first_model = model_view(self._shared.models, self._layout, 0)
        self.begin(self._shared.read_partitions(), self._shared.assignment[self.worker], first_model)

    def changed(self) -> bool:
        return self._box.changed()

    def take(self) -> Orders | None:
        return unpack(self._box.take()) if self._box.changed() else None

    def listen(self, until: float | None) -> None:
        ready = until is None or select.select([self._doorbell], [], [], max(0.0, until - time.monotonic()))[0]
        if ready and not os.read(self._doorbell, 4096):
            raise Disconnected

    def model(self, slot: str, place: int) -> Vector:
        w = model_view(self._shared.models, self._layout, place)
        w.flags.writeable = False  # other workers read the same memory
        return w

    def message(self, place: tuple[int, int], size: int) -> Vector:
        return self._shared.replies.array(place[0] + HEADER.size, size, self._messages.dtype)

    def reserve_buffer(self, length: int, chunk: int) -> tuple[int, Vector]:
        layout, memory = self._layout, self._shared.replies.memory
        while True:
            for buffer in range(layout.buffers):
                at = layout.buffer_at(self.worker, buffer)
                if HEADER.unpack_from(memory, at)[0] == FREE:
                    if buffer not in self._reserved:
                        self._shared.replies.reserve(at, layout.buffer_bytes(self.worker))
                        self._reserved.add(buffer)
                    HEADER.pack_into(memory, at, WRITING, -1, -1, 0)
                    return buffer, self._shared.replies.array(at + HEADER.size, length, self._messages.dtype)
            self.listen(time.monotonic() + 0.001)
            if self._orders is not None:
                self._check_orders(0, chunk)

    def discard_buffer(self, buffer: int) -> None:
        HEADER.pack_into(self._shared.replies.memory, self._layout.buffer_at(self.worker, buffer), FREE, -1, -1, 0)

    def report(self, report: Report, vector: Array | None = None, buffer: int | None = None) -> None:
        if vector is not None and buffer is not None:
            memory, at = self._shared.replies.memory, self._layout.buffer_at(self.worker, buffer)
            if vector.dtype == np.uint8:
                memory[at + HEADER.size : at + HEADER.size + vector.size] = vector.tobytes()
            HEADER.pack_into(memory, at, FULL, report.task, report.chunk, vector.size)
        if report.text:
            text = report.text.encode()[: ERROR_BOX - 8]
            at = self._layout.box_at(self.worker) + self._layout.box
            self._shared.mail.memory[at + 8 : at + 8 + len(text)] = text
            self._shared.mail.memory[at : at + 8] = len(text).to_bytes(8, "little")
        # a record has no text
        record = RECORD.pack(self.worker, self._incarnation, -1 if buffer is None else buffer, *report[:-1])
        try:
            os.write(self._shared.pipe, record)
        except BrokenPipeError:
            raise Disconnected from None
