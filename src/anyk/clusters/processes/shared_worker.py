"""A worker in a process of this machine: it reads orders from its mail box and writes messages to shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from anyk.base.arrays import Array, Vector
from anyk.clusters.contract import Report
from anyk.clusters.processes.memory import (
    EMPTIED,
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
    mark_buffer,
    model_view,
)
from anyk.clusters.remote.channel import READY, Disconnected
from anyk.clusters.remote.orders import Orders, unpack
from anyk.clusters.remote.shipping import unship
from anyk.clusters.remote.worker import RunSetup, Worker
from anyk.clusters.waiting import readable


class Briefing(msgspec.Struct):
    """The data of a run that all its workers need; the driver writes it into shared memory."""

    layout: MemoryLayout
    setup: RunSetup
    assignment: Sequence[Sequence[int]]
    children: int  # the most processes that a worker may start
    imports: list[str]  # modules to import once for all workers
    places: list[tuple[int, int]]  # of the partitions' buffers
    sizes: list[int]  # of the segments


class Shared:
    """The run's briefing, shared memory and pipe to the driver, common to all workers of a fork server.

    ``size``: of the briefing in bytes; ``fds``: descriptors of five segments, of the briefing and of the pipe.
    """

    def __init__(self, size: int, fds: list[int]) -> None:
        self.briefing = msgspec.json.decode(os.pread(fds[5], size, 0), type=Briefing)
        self.data, self.models, self.replies, self.mail, self.states = map(Segment, fds[:5], self.briefing.sizes)
        self.pipe = fds[6]


class SharedMemoryWorker(Worker[int]):
    """A worker with shared memory; it refers to a message buffer by its number, from 0 to ``layout.buffers - 1``."""

    def __init__(self, shared: Shared, worker: int, incarnation: int, doorbell: int) -> None:
        super().__init__(worker, shared.briefing.setup)
        layout = self._layout = shared.briefing.layout
        self._shared, self._incarnation, self._doorbell = shared, incarnation, doorbell
        self._box = MailBox(shared.mail, layout.box_at(worker), layout.box)
        if layout.state_bytes:
            self._states = SharedStates(shared.states, worker, layout.state_bytes)
        self._reserved: set[int] = set()

    def start(self) -> None:
        shared, briefing = self._shared, self._shared.briefing
        partitions = unship(shared.data.parts(briefing.places))
        self.begin(partitions, briefing.assignment[self.worker], model_view(shared.models, self._layout, 0))

    def changed(self) -> bool:
        return self._box.changed()

    def take(self) -> Orders | None:
        return unpack(self._box.take()) if self._box.changed() else None

    def listen(self, until: float | None) -> None:
        ready = until is None or readable([self._doorbell], max(0.0, until - time.monotonic()))
        if ready and not os.read(self._doorbell, 4096):
            raise Disconnected

    def model(self, slot: str, location: int) -> Vector:
        w = model_view(self._shared.models, self._layout, location)
        w.flags.writeable = False  # other workers read the same memory
        return w

    def message(self, location: tuple[int, int], size: int) -> Vector:
        return self._shared.replies.array(location[0] + HEADER.size, size, self._messages.dtype)

    def reserve_buffer(self, length: int, chunk: int) -> tuple[int, Vector]:
        layout, memory = self._layout, self._shared.replies.memory
        while True:
            for buffer in range(layout.buffers):
                offset = layout.buffer_at(self.worker, buffer)
                state = HEADER.unpack_from(memory, offset)[0]
                if state in (FREE, EMPTIED):
                    if state == EMPTIED or buffer not in self._reserved:
                        self._shared.replies.reserve(offset, layout.buffer_bytes(self.worker))
                        self._reserved.add(buffer)
                    mark_buffer(memory, offset, WRITING)
                    return buffer, self._shared.replies.array(offset + HEADER.size, length, self._messages.dtype)
            self.listen(time.monotonic() + 0.001)
            if self._orders is not None:
                self._check_orders(0, chunk)

    def discard_buffer(self, buffer: int) -> None:
        mark_buffer(self._shared.replies.memory, self._layout.buffer_at(self.worker, buffer), FREE)

    def report(self, report: Report, vector: Array | None = None, buffer: int | None = None) -> None:
        """Write a record into the pipe; the message is in its buffer, or copied there if it is packed into bytes.

        A text goes into the worker's box for errors, and the number of the process with the report that it is ready.
        """
        if vector is not None and buffer is not None:
            memory, offset = self._shared.replies.memory, self._layout.buffer_at(self.worker, buffer)
            if vector.dtype == np.uint8:
                memory[offset + HEADER.size : offset + HEADER.size + vector.size] = vector.tobytes()
            mark_buffer(memory, offset, FULL, task=report.task, chunk=report.chunk, length=vector.size)
        if report.text:
            encoded = report.text.encode(errors="replace")[: ERROR_BOX - 1] + b"\0"
            offset = self._layout.box_at(self.worker) + self._layout.box
            self._shared.mail.memory[offset : offset + len(encoded)] = encoded
        elif report.kind == READY:
            report = report._replace(bits=os.getpid())
        # a record has no text
        record = RECORD.pack(self.worker, self._incarnation, -1 if buffer is None else buffer, *report[:-1])
        try:
            os.write(self._shared.pipe, record)
        except BrokenPipeError:
            raise Disconnected from None
