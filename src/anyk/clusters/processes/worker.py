"""A worker process: takes the newest order from its mail box, computes, and leaves its message in shared memory."""

from __future__ import annotations

import json
import os
import pickle
import select
import time
from typing import Any, NamedTuple

import numpy as np

from anyk.clusters.local import Local, LocalSteps, State, mixed
from anyk.clusters.messages import Messages, WrongLength, digest, fault, lie
from anyk.clusters.packing import pack
from anyk.clusters.processes.memory import (
    ERROR_BOX,
    FAILED,
    FREE,
    FULL,
    HEADER,
    ORDER,
    PREEMPT,
    PROGRESS,
    READY,
    RECORD,
    REPLY,
    STOPPED,
    UNINTERRUPTIBLE,
    WRITING,
    Layout,
    MailBox,
    Segment,
    model_view,
)
from anyk.problems.base import Vector
from anyk.protocol import Chunk


class Shared:
    """What all workers of a nursery share: the layout, the segments and the pipe to the driver."""

    def __init__(self, message: dict[str, Any], fds: list[int]) -> None:
        self.layout = Layout.from_plain(message["layout"])
        self.holdings: list[list[int]] = message["holdings"]
        self.places: list[tuple[int, int]] = [tuple(place) for place in message["places"]]
        sizes = message["sizes"]
        self.data, self.models, self.replies, self.mail = (
            Segment(fd, size) for fd, size in zip(fds[:4], sizes, strict=True)
        )
        self.pipe = fds[4]

    def problem(self) -> Any:
        """The partitions, made from the bytes the driver wrote at the start; their arrays stay where they are."""
        views = [memoryview(self.data.memory)[start : start + length] for start, length in self.places]
        # not a peer's or a file's bytes: the driver that started this process wrote them into memory only it shares
        return pickle.loads(views[0], buffers=views[1:])


class _Order(NamedTuple):
    task: int
    flags: int
    start: float
    before: float
    each: float
    chunks: list[Chunk]
    copies: list[int]  # which copy of its slot each chunk reads
    versions: list[int]  # and which version that is
    collects: list[Any]


class _Stop(Exception):
    """Told to stop what is being done."""


class Worker:
    """One worker; :meth:`run` returns when the driver hangs up."""

    def __init__(self, shared: Shared, worker: int, incarnation: int, doorbell: int) -> None:
        layout = self._layout = shared.layout
        self._shared, self._worker, self._incarnation, self._doorbell = shared, worker, incarnation, doorbell
        self._box = MailBox(shared.mail, layout.box_at(worker), layout.box)
        self._box.seen = -1
        self._free = 0.0  # since when it has been idle, if it could not listen before
        self._order: _Order | None = None
        self._next: _Order | None = None
        self._states: dict[int, State] = {}  # of the optimiser, by the task that left them
        self._done: dict[tuple[int, int], dict[int, Vector]] = {}  # finished partial gradients kept for a request
        self._served: set[tuple[int, int]] = set()
        self._since = 0.0, 0.0  # when the task was taken, and when its delay was over
        self._pending: list[Any] = []  # requests for partitions that are not finished yet
        self._reserved: set[int] = set()
        self._known: tuple[bytes, list[Chunk]] = (b"", [])

    def run(self) -> None:
        """Load the partitions, say so, and work."""
        try:
            partitions = self._shared.problem()
            partitions.load(self._shared.holdings[self._worker])
            self._messages = Messages(partitions, self._layout.blocks, self._layout.seed)
            local = self._layout.local
            self._local = None if local is None else LocalSteps(self._messages, Local(*local))
            held = tuple(self._shared.holdings[self._worker])
            self._messages.places(held)
            if held:
                # the first gradient of a process is slow (page faults, caches): better before the clock starts
                self._messages.partial_gradient(held[0], model_view(self._shared.models, self._layout, 0, 0))
            self._slots = {name: i for i, name in enumerate(self._layout.slots)}
        except Exception as error:
            self._complain(error)
            self._tell(READY, -1, done=1)
            return
        self._tell(READY, -1)
        last = -1
        while True:
            order, self._next = self._take() or self._next, None
            if order is None:
                if not self._listen(None):
                    return
                continue
            self._serve(order.collects)
            if order.task <= last:
                continue
            last = order.task
            self._order = order
            self._done.clear()
            self._served.clear()
            self._pending = [ask for ask in order.collects if ask[0] == order.task]
            try:
                self._work(order)
            except _Stop:
                pass
            except EOFError:
                return

    # ------------------------------------------------------------------------------------------- hearing

    def _take(self) -> _Order | None:
        if not self._box.changed():
            return None
        mail = self._box.take()
        task, flags, start, before, each, work, copies, collects = ORDER.unpack_from(mail)
        body = mail[ORDER.size : ORDER.size + work]
        if body != self._known[0]:
            chunks = list(map(Chunk.from_plain, json.loads(body or b"[]")))
            self._known = body, chunks
        at = ORDER.size + work
        positions = np.frombuffer(mail, dtype=np.int64, count=copies, offset=at).tolist()
        asked = json.loads(mail[at + 8 * copies :]) if collects else []
        half = copies // 2
        return _Order(task, flags, start, before, each, self._known[1], positions[:half], positions[half:], asked)

    def _listen(self, until: float | None) -> bool:
        """Wait for the doorbell, at most until a time; False when the driver has hung up."""
        if until is None or select.select([self._doorbell], [], [], max(0.0, until - time.monotonic()))[0]:
            return bool(os.read(self._doorbell, 4096))
        return True

    def _heed(self, done: int, chunk: int) -> None:
        """Between two partitions: look at new orders, serve requests, stop if told to."""
        if not self._box.changed():
            return
        order = self._take()
        assert order is not None
        assert self._order is not None
        self._serve(order.collects)
        if order.task != self._order.task:
            self._next = order
            if order.flags & PREEMPT:
                self._tell(STOPPED, self._order.task, chunk=chunk, done=done)
                raise _Stop

    def _hold(self, until: float, done: int, chunk: int) -> None:
        """An injected delay."""
        assert self._order is not None
        if self._order.flags & UNINTERRUPTIBLE:
            time.sleep(max(0.0, until - time.monotonic()))
            self._free = until
            self._heed(done, chunk)
            return
        while time.monotonic() < until:
            if not self._listen(until):
                raise EOFError
            self._heed(done, chunk)

    # ------------------------------------------------------------------------------------------- working

    def _work(self, order: _Order) -> None:
        started = max(order.start, self._free)
        due = started + order.before
        self._since = started, due
        if order.before:
            self._hold(due, 0, 0)
        for index, (chunk, copy, version) in enumerate(zip(order.chunks, order.copies, order.versions, strict=True)):
            w = model_view(self._shared.models, self._layout, self._slots[chunk.slot], copy)
            w.flags.writeable = False  # it is everybody's

            def between(done: int, index: int = index, first: float = due) -> None:
                if order.each:
                    self._hold(first + order.each * (done + 1), done, index)
                else:
                    self._heed(done, index)

            if not chunk.partitions:
                between(0)
            due += order.each * len(chunk.partitions)
            try:
                if chunk.send == "request":
                    self._keep(order.task, index, chunk, w, between, version)
                    continue
                length = self._messages.length(chunk.covers)
                buffer, out = self._buffer(length, index)
                computing = time.monotonic()
                if chunk.compress:
                    out = np.empty(length, dtype=out.dtype)  # only the payload goes to the buffer
                if chunk.steps:
                    out[:] = self._work_locally(order.task, chunk, w, between)
                else:
                    self._messages.encode(chunk, w, out, between, version=version)
            except BaseException as error:
                if chunk.send == "done":
                    self._give_back()
                if not isinstance(error, Exception) or isinstance(error, (_Stop, EOFError)):
                    raise
                self._complain(error)
                self._tell(FAILED, order.task, chunk=index)
                continue
            packed = (chunk, version, w) if chunk.compress else None
            self._send(order.task, index, buffer, out, started, computing, packed)
        self._free = time.monotonic()  # a task that was not interrupted ends before the next one's delay begins

    def _work_locally(self, task: int, chunk: Chunk, w: Vector, between: Any) -> Vector:
        """Steps of its own, from where the chunk says; the state they leave is kept for the next task."""
        assert self._local is not None
        dtype = np.dtype(self._layout.dtype)
        models = [
            self._shared.replies.array(at + HEADER.size, self._layout.dimension, dtype) for _, at, _, _ in chunk.mix
        ]
        start = mixed(chunk, w, models)
        state = None if chunk.compress else self._states.get(chunk.state)
        model, left = self._local.run(chunk, start, state, between)
        if not chunk.compress:
            self._keep_state(task, chunk, left)
        return model

    def _keep_state(self, task: int, chunk: Chunk, left: State) -> None:
        """What it may go on from: what this task left, and, if that is not used, what it began with."""
        self._states = {t: state for t, state in self._states.items() if t == chunk.state} | {task: left}

    def _keep(self, task: int, index: int, chunk: Chunk, w: Vector, between: Any, version: int) -> None:
        """Finish partitions one by one, keep them, and report each."""
        kept = self._done.setdefault((task, index), {})
        for done, j in enumerate(chunk.partitions):
            between(done)
            if (task, index) in self._served:
                return  # its message has been sent: nobody needs the rest
            kept[j] = self._messages.partial_gradient(j, w, chunk, version)
            self._tell(PROGRESS, task, chunk=index, done=done + 1)
            if self._pending:
                asks, self._pending = self._pending, []
                self._serve(asks)

    def _serve(self, asks: list[Any]) -> None:
        """Send the messages asked for; what is not finished (a resumed run began anew) is served when it is."""
        for ask in asks:
            task, index, partitions, coefficients, gathered = ask
            kept = self._done.get((task, index))
            if kept is None or (task, index) in self._served:
                continue
            if any(j not in kept for j in partitions):
                self._pending.append(ask)
                continue
            self._served.add((task, index))
            ids = tuple(dict.fromkeys([*partitions, *(j for _, _, covered, _ in gathered for j in covered)]))
            buffer, out = self._buffer(self._messages.length(ids), index)
            out[:] = 0.0
            for j, coefficient in zip(partitions, coefficients, strict=True):
                self._messages.add_message(out, ids, (j,), kept[j], coefficient)
            for at, size, covered, weight in gathered:  # other workers' messages, where they lie
                message = self._shared.replies.array(at + HEADER.size, size, np.dtype(self._layout.dtype))
                self._messages.add_message(out, ids, tuple(covered), message, weight)
            self._send(task, index, buffer, out, *self._since)

    # ------------------------------------------------------------------------------------------- telling

    def _buffer(self, length: int, chunk: int) -> tuple[int, Vector]:
        """A free reply buffer, marked as being written; waits while the driver holds them all."""
        layout, memory = self._layout, self._shared.replies.memory
        while True:
            for buffer in range(layout.buffers):
                at = layout.buffer_at(self._worker, buffer)
                if HEADER.unpack_from(memory, at)[0] == FREE:
                    if buffer not in self._reserved:
                        self._shared.replies.reserve(at, layout.buffer_bytes(self._worker))
                        self._reserved.add(buffer)
                    HEADER.pack_into(memory, at, WRITING, -1, -1, 0)
                    return buffer, self._shared.replies.array(at + HEADER.size, length, np.dtype(layout.dtype))
            if not self._listen(time.monotonic() + 0.001):
                raise EOFError
            if self._order is not None:
                self._heed(0, chunk)

    def _give_back(self) -> None:
        """What was being written will not be sent."""
        for buffer in range(self._layout.buffers):
            at = self._layout.buffer_at(self._worker, buffer)
            if HEADER.unpack_from(self._shared.replies.memory, at)[0] == WRITING:
                HEADER.pack_into(self._shared.replies.memory, at, FREE, -1, -1, 0)

    def _send(
        self,
        task: int,
        index: int,
        buffer: int,
        out: Vector,
        started: float,
        computing: float,
        packed: tuple[Chunk, int, Vector] | None = None,
    ) -> None:
        """Say that a message is in its buffer; one that is to be compressed is put there first."""
        if self._worker in self._layout.liars:
            lie(out)
        computed = time.monotonic()
        memory, at = self._shared.replies.memory, self._layout.buffer_at(self._worker, buffer)
        why = fault(out)
        if why is not None:
            HEADER.pack_into(memory, at, FREE, -1, -1, 0)
            self._write_error(why)
            self._tell(FAILED, task, chunk=index)
            return
        if packed is not None:
            chunk, version, base = packed
            payload, left = pack(chunk, version, self._layout.seed, out, base, self._states.get(chunk.state))
            self._keep_state(task, chunk, left)
            memory[at + HEADER.size : at + HEADER.size + payload.size] = payload.tobytes()
            out = payload.view(np.float64)
        HEADER.pack_into(memory, at, FULL, task, index, out.size if packed is None else payload.size)
        self._tell(REPLY, task, chunk=index, buffer=buffer, times=(started, computing, computed), bits=digest(out))

    def _complain(self, error: Exception) -> None:
        self._write_error(str(error) if isinstance(error, WrongLength) else f"{type(error).__name__}: {error}")

    def _write_error(self, text: str) -> None:
        data = text.encode()[: ERROR_BOX - 8]
        at = self._layout.box_at(self._worker) + self._layout.box
        self._shared.mail.memory[at + 8 : at + 8 + len(data)] = data
        self._shared.mail.memory[at : at + 8] = len(data).to_bytes(8, "little")

    def _tell(
        self,
        kind: int,
        task: int,
        *,
        chunk: int = 0,
        buffer: int = -1,
        done: int = 0,
        times: tuple[float, float, float] = (0.0, 0.0, 0.0),
        bits: int = 0,
    ) -> None:
        now = time.monotonic()
        record = RECORD.pack(
            kind, self._worker, task, chunk, buffer, done, self._incarnation, times[0], times[1], times[2], now, bits
        )
        os.write(self._shared.pipe, record)
