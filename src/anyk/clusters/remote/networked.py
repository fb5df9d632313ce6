"""Clusters without shared memory: orders are sent with the vectors that they need and the worker does not have."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from anyk.base.arrays import Array, Vector
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Envelope, Key, Report
from anyk.clusters.remote.channel import READY
from anyk.clusters.remote.handles import Notice, WorkerHandle
from anyk.clusters.remote.orders import NO_TASK, Orders, unpack
from anyk.clusters.remote.remote import Remote
from anyk.clusters.remote.shipping import unship
from anyk.clusters.remote.wire import refuse
from anyk.clusters.remote.worker import ASKED, RunSetup, Worker


def machine() -> str:
    """Return an identifier of this machine's clock."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node()


class NetworkedHandle(WorkerHandle):
    """A worker's record, with the state of its envelopes: at most one is in transit, and none is queued."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.has: frozenset[Key] = frozenset()  # vectors that the worker has after the last envelope
        self.owed = False  # whether there are newer orders to send
        self.here = True  # whether it is on the driver's machine, with the same clock


N = TypeVar("N", bound=NetworkedHandle)


class Networked(Remote[N]):
    """The driver's side of a cluster without shared memory."""

    @abstractmethod
    def listens(self, worker: int) -> bool:
        """Return whether the worker has received the last envelope; until then only the newest orders are kept."""

    @abstractmethod
    def send(self, worker: int, envelope: Envelope) -> None:
        """Send an envelope with the vectors of its fresh keys (``store.vector``), without waiting."""

    def send_orders(self, worker: int) -> None:
        handle = self.handles[worker]
        if not handle.present:
            return
        handle.owed = not self.listens(worker)
        if handle.owed:
            return
        needs: dict[Key, None] = {}
        for chunk, version in zip(handle.chunks, handle.versions, strict=True):
            needs[chunk.slot, version] = None
            if (carried := self.store.carried.get((chunk.slot, version))) is not None:
                needs.update(dict.fromkeys(carried.stored))
            needs.update(((task, index), None) for _, task, index, _ in chunk.mix)
        for *_, gathered in handle.requests:
            needs.update(((task, index), None) for task, index, *_ in gathered)
        if handle.question is not None:
            needs[ASKED, handle.question[1]] = None
        # a missing vector was needed by a task that has ended
        available = tuple(key for key in needs if self.store.vector(key) is not None)
        handle.number += 1
        fresh = tuple(key for key in available if key not in handle.has)
        self.send(worker, Envelope(handle.number, self._tasks.orders(handle), available, fresh))
        handle.has = frozenset(available)

    def is_here(self, worker: int) -> bool:
        return self.handles[worker].here

    def renew(self, worker: int) -> N:
        """Record that a worker is being started, without any vectors; return its handle."""
        handle = self.handles[worker]
        handle.incarnation += 1
        handle.has = frozenset()
        handle.owed = False
        return handle

    def notice(self, worker: int, incarnation: int, report: Report, buffer: Any) -> Notice:
        """Return a worker's report as a notice, with times on the driver's clock; ``buffer``: its vector, if any."""
        handle = self.handles[worker]
        if report.kind == READY and not report.done:
            machine_name, _, pid = report.text.rpartition(" ")
            if not (pid.isascii() and pid.isdecimal() and len(pid) < 10):
                refuse(worker, "it is ready, but its process has no number")
            self.pids[worker] = int(pid)
            handle.here = machine_name == machine()
            handle.clock = 0.0 if handle.here else report.sent - time.monotonic()
        if not handle.here:  # the message with the shortest delay gives the best estimate of the clock
            handle.clock = max(handle.clock, report.sent - time.monotonic())
        if ahead := handle.clock:
            report = report._replace(
                started=report.started - ahead,
                computing=report.computing - ahead,
                computed=report.computed - ahead,
                sent=report.sent - ahead,
            )
        return Notice(time.monotonic(), worker, incarnation, buffer, report)


class NetworkedWorker(Worker[None]):
    """The worker's side; the cluster must pass every envelope to :meth:`receive`, from any thread."""

    def __init__(self, worker: int, setup: RunSetup, shipped: Sequence[memoryview], assigned: Sequence[int]) -> None:
        super().__init__(worker, setup)
        self._shipped, self._assigned = shipped, assigned
        self.lock = threading.Lock()
        self._number = 0
        self._envelope: Envelope | None = None
        self._vectors: dict[Key, Vector] = {}
        self._needs: dict[int, tuple[Key, ...]] = {}  # vectors needed by tasks that may be running

    @abstractmethod
    def transmit(self, report: Report, vector: Array | None) -> None:
        """Send the driver a report, and its vector if there is one."""

    def receive(self, envelope: Envelope, vectors: Mapping[Key, Vector]) -> None:
        """Take in an envelope; if a newer one has arrived before, only the vectors are used."""
        with self.lock:
            self._vectors.update(vectors)
            if envelope.number > self._number:
                self._number, self._envelope = envelope.number, envelope
                required = {key for needs in self._needs.values() for key in needs} | {*envelope.needs}
                self._vectors = {key: vector for key, vector in self._vectors.items() if key in required}

    def start(self) -> None:
        partitions = unship(self._shipped)
        self.begin(partitions, self._assigned, np.zeros(partitions.dimension, dtype=partitions.dtype))

    def changed(self) -> bool:
        """Return whether there is an envelope whose vectors are all there, also vectors that older ones bring."""
        envelope = self._envelope
        return envelope is not None and all(key in self._vectors for key in envelope.needs)

    def take(self) -> Orders | None:
        with self.lock:
            envelope = self._envelope
            if envelope is None or not NetworkedWorker.changed(self):
                return None
            self._envelope = None
            orders = unpack(envelope.orders)
            working = self._orders.task if self._orders is not None else NO_TASK
            waiting = self._next.task if self._next is not None else NO_TASK
            self._needs = {task: needs for task, needs in self._needs.items() if task in (working, waiting)}
            self._needs[orders.task] = envelope.needs
            return orders

    def model(self, slot: str, location: int) -> Vector:
        w = self._vectors[slot, location]
        w.flags.writeable = False
        return w

    def message(self, location: tuple[int, int], size: int) -> Vector:
        vector = self._vectors[location]
        if vector.size != size:
            raise RunFailed(f"a message of {vector.size} numbers arrived where {size} were announced")
        return vector

    def reserve_buffer(self, length: int, chunk: int) -> tuple[None, Vector]:
        return None, np.empty(length, dtype=self._messages.dtype)

    def discard_buffer(self, buffer: None) -> None:
        """Do nothing: the array is freed with its last reference."""

    def report(self, report: Report, vector: Array | None = None, buffer: None = None) -> None:
        if report.kind == READY and not report.done:
            report = report._replace(text=f"{machine()} {os.getpid()}")
        self.transmit(report, vector)
