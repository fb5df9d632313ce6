"""Workers that share no memory with the driver: orders carry the vectors they need, unless the worker has them."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.arrivals import Message
from anyk.clusters.messages import Messages
from anyk.clusters.remote.driver import Remote
from anyk.clusters.remote.handles import Notice, WorkerHandle
from anyk.clusters.remote.orders import OrderReader
from anyk.clusters.remote.payload import RemotePayload
from anyk.clusters.remote.shipping import unship
from anyk.clusters.remote.worker import ASKED, NO_TASK, READY, REPLY, Orders, RunSetup, Times, Worker
from anyk.errors import RunFailed
from anyk.problems.base import Vector

Key = tuple[str | int, int]  # a model as (slot, version), a message as (task, chunk)


def machine() -> str:
    """An identity of this machine's clock, which differs between machines."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node()


class Envelope(NamedTuple):
    """A mail of the driver: orders, the keys of the vectors they need, and of those enclosed."""

    number: int  # counts a worker's envelopes; older ones than the last received are out of date
    orders: bytes
    needs: tuple[Key, ...]
    fresh: tuple[Key, ...]


class WireMessage(NamedTuple):
    """A mail of a worker; the vector of a message travels beside it. Times are on the worker's clock."""

    kind: int
    task: int
    chunk: int = 0
    done: int = 0
    started: float = 0.0
    computing: float = 0.0
    computed: float = 0.0
    sent: float = 0.0
    bits: int = 0
    text: str = ""


class NetworkedHandle(WorkerHandle):
    """Also what has been sent and what waits: at most one envelope is under way, and none is queued."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.has: frozenset[Key] = frozenset()  # what the worker has after the last envelope
        self.owed = False  # whether there are newer orders to send
        self.here = True  # whether its clock is the driver's


class NetworkedPayload(RemotePayload):
    """Models and messages as arrays of the driver, which travel with the orders that need them."""

    def __init__(self, messages: Messages) -> None:
        super().__init__(messages)
        self._models: dict[tuple[str, int], Vector] = {}
        self._blanks: dict[str, Vector] = {}

    def blank(self, slot: str) -> Vector:
        """See :meth:`RemotePayload.blank`."""
        if slot not in self._blanks:
            self._blanks[slot] = np.empty(self.messages.partitions.dimension, dtype=self.messages.dtype)
        return self._blanks[slot]

    def publish(self, slot: str, version: int, w: Vector) -> None:
        """See :meth:`RemotePayload.publish`."""
        blank = self.blank(slot)
        if w is not blank:
            blank[:] = w
        del self._blanks[slot]  # workers may be reading it until long after its release: it is never written again
        self._models[slot, version] = blank

    def model(self, slot: str, version: int) -> Vector:
        """See :meth:`RemotePayload.model`."""
        return self._models[slot, version]

    def release(self, slot: str, version: int) -> None:
        """See :meth:`RemotePayload.release`."""
        self._models.pop((slot, version), None)

    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """See :meth:`RemotePayload.hold`."""
        self.arrived[task, chunk] = Message(ids, message, worker, message)

    def vector(self, key: Key) -> Vector | None:
        """The vector of a key, while there is one."""
        first, second = key
        if isinstance(first, str):
            return self._models.get((first, second))
        message = self.arrived.get((first, second))
        return None if message is None else message.vector

    def place(self, slot: str, version: int) -> int:
        """See :meth:`RemotePayload.place`; workers know versions by their numbers."""
        return version

    def locate(self, key: tuple[int, int]) -> tuple[int, int]:
        """See :meth:`RemotePayload.locate`; workers know messages by task and chunk."""
        return key

    def contents(self, notice: Notice, length: int, dtype: np.dtype[Any]) -> tuple[int, NDArray[Any] | None]:
        """See :meth:`RemotePayload.contents`; the buffer of a notice is the array that came with it."""
        vector: NDArray[Any] = notice.buffer
        good = vector.shape == (length,) and vector.dtype == dtype
        return vector.size, vector if good else None

    def keep(self, notice: Notice, ids: tuple[int, ...], vector: Vector) -> Message:
        """See :meth:`RemotePayload.keep`."""
        return Message(ids, vector, notice.worker, vector)

    def free_buffer(self, worker: int, buffer: Any) -> None:
        """The array goes with its last reference."""

    def clear(self) -> None:
        """Let go of all of it."""
        self.arrived.clear()
        self._models.clear()


N = TypeVar("N", bound=NetworkedHandle)


class Networked(Remote[N]):
    """The driver's side of clusters without shared memory; its :meth:`open` makes a :class:`NetworkedPayload`."""

    _payload: NetworkedPayload

    def __init__(self, workers: int, handle: type[N], **options: Any) -> None:
        super().__init__(workers, handle, **options)
        self.pids: dict[int, int] = {}

    @abstractmethod
    def _listens(self, worker: int) -> bool:
        """Whether the last envelope has been received, so that another may be sent."""

    @abstractmethod
    def _send(self, worker: int, envelope: Envelope) -> None:
        """Send an envelope with the vectors of its fresh keys."""

    def _send_orders(self, worker: int) -> None:
        handle = self._handles[worker]
        if not handle.present:
            return
        handle.owed = not self._listens(worker)
        if handle.owed:
            return
        needs: dict[Key, None] = {}
        for chunk, version in zip(handle.chunks, handle.positions[len(handle.chunks) :], strict=True):
            needs[chunk.slot, version] = None
            needs.update(((task, index), None) for _, task, index, _ in chunk.mix)
        for *_, gathered in handle.requests:
            needs.update(((task, index), None) for task, index, *_ in gathered)
        if handle.question is not None:
            needs[ASKED, handle.question[1]] = None
        # what is gone was needed by a task that has ended since
        there = tuple(key for key in needs if self._payload.vector(key) is not None)
        handle.number += 1
        fresh = tuple(key for key in there if key not in handle.has)
        self._send(worker, Envelope(handle.number, self._tasks.orders(handle), there, fresh))
        handle.has = frozenset(there)

    def _renew(self, handle: N) -> None:
        """A new life of a worker begins with nothing."""
        handle.incarnation += 1
        handle.has = frozenset()
        handle.owed = False

    def _notice(self, worker: int, incarnation: int, wire: WireMessage, buffer: Any) -> Notice:
        """A worker's message as a notice, in the driver's time."""
        handle = self._handles[worker]
        if wire.kind == READY and not wire.done:
            where, pid = wire.text.rsplit(" ", 1)
            self.pids[worker] = int(pid)
            handle.here = where == machine()
            handle.clock = 0.0 if handle.here else wire.sent - time.monotonic()
        if not handle.here:  # messages take time; the least delayed one so far says best what its clock shows
            handle.clock = max(handle.clock, wire.sent - time.monotonic())
        late = handle.clock
        times = wire.started - late, wire.computing - late, wire.computed - late, wire.sent - late
        return Notice(
            time.monotonic(),
            wire.kind,
            worker,
            wire.task,
            wire.chunk,
            buffer,
            wire.done,
            incarnation,
            *times,
            wire.bits,
            wire.text,
        )


class NetworkedWorker(Worker[None]):
    """The worker's side; :meth:`receive` may be called from another thread than :meth:`run`."""

    def __init__(self, worker: int, setup: RunSetup, shipped: Sequence[memoryview], held: Sequence[int]) -> None:
        super().__init__(worker, setup)
        self._shipped, self._held = shipped, held
        self._read = OrderReader()
        self._lock = threading.Lock()
        self._number = 0
        self._envelope: Envelope | None = None
        self._vectors: dict[Key, Vector] = {}
        self._needs: dict[int, tuple[Key, ...]] = {}  # of the tasks that have been taken and may still be worked on

    @abstractmethod
    def _transmit(self, wire: WireMessage, vector: NDArray[Any] | None) -> None:
        """Send a message, with its vector if it has one."""

    def receive(self, envelope: Envelope, vectors: Mapping[Key, Vector]) -> None:
        """Take in an envelope; of one that newer ones have overtaken only the vectors are kept."""
        with self._lock:
            self._vectors.update(vectors)
            if envelope.number > self._number:
                self._number, self._envelope = envelope.number, envelope
                kept = {key for needs in self._needs.values() for key in needs} | {*envelope.needs}
                self._vectors = {key: vector for key, vector in self._vectors.items() if key in kept}

    def _start(self) -> None:
        partitions = unship(self._shipped)
        self._begin(partitions, self._held, np.zeros(partitions.dimension, dtype=partitions.dtype))

    def _complete(self) -> bool:
        """Whether there is an envelope with all it needs; it may have overtaken another that brings that."""
        envelope = self._envelope
        return envelope is not None and all(key in self._vectors for key in envelope.needs)

    def _changed(self) -> bool:
        return self._complete()

    def _take(self) -> Orders | None:
        with self._lock:
            if not self._complete():
                return None
            envelope, self._envelope = self._envelope, None
            assert envelope is not None
            orders = self._read(envelope.orders)
            working = self._orders.task if self._orders is not None else NO_TASK
            waiting = self._next.task if self._next is not None else NO_TASK
            self._needs = {task: needs for task, needs in self._needs.items() if task in (working, waiting)}
            self._needs[orders.task] = envelope.needs
            return orders

    def _model(self, slot: str, place: int) -> Vector:
        w = self._vectors[slot, place]
        w.flags.writeable = False
        return w

    def _other(self, place: tuple[int, int], size: int) -> Vector:
        vector = self._vectors[place]
        if vector.size != size:
            raise RunFailed(f"a message of {vector.size} numbers came where {size} were announced")
        return vector

    def _buffer(self, length: int, chunk: int) -> tuple[None, Vector]:
        return None, np.empty(length, dtype=self._dtype)

    def _discard_buffer(self, buffer: None) -> None:
        """The array goes with its last reference."""

    def _deliver(self, task: int, index: int, buffer: None, message: NDArray[Any], times: Times, bits: int) -> None:
        wire = WireMessage(REPLY, task, index, 0, *times, time.monotonic(), bits)
        self._transmit(wire, message)

    def _tell(self, kind: int, task: int, *, chunk: int = 0, done: int = 0, text: str = "", bits: int = 0) -> None:
        if kind == READY and not done:
            text = f"{machine()} {os.getpid()}"
        self._transmit(WireMessage(kind, task, chunk, done, sent=time.monotonic(), bits=bits, text=text), None)
