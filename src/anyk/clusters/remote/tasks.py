"""The driver's record of tasks in flight, and the orders that describe them to workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from anyk.base.errors import RunFailed
from anyk.clusters.injection import InFlight
from anyk.clusters.remote.handles import Notice, WorkerHandle
from anyk.clusters.remote.orders import PREEMPT, UNINTERRUPTIBLE, pack
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.problems.replicas import SINGLE, differing, marks_apart
from anyk.protocol import Chunk, RequestMessage, Task

_CACHED = 4096  # the number of different tasks whose bytes are cached
_REMEMBERED = 256  # the number of gradients stored for comparison


class OpenTasks:
    """Records tasks from dispatch to the arrival of their last message; a worker's handle has its newest task."""

    def __init__(self, handles: Sequence[WorkerHandle], store: RemoteStore, *, uninterruptible: bool) -> None:
        self.in_flight: dict[int, InFlight] = {}
        self.missing: dict[int, set[int]] = {}  # chunks of a task that have neither arrived nor failed
        self._handles, self._store = handles, store
        self._flags = UNINTERRUPTIBLE * uninterruptible
        self._packed: dict[Task, msgspec.Raw] = {}

    def give(self, task: int, entry: InFlight, missing: Iterable[int] | None = None) -> None:
        """Make a task the newest of its worker."""
        chunks = entry.chunks
        self.in_flight[task] = entry
        self._store.begin_task(chunks)
        self.missing[task] = set(range(len(chunks)) if missing is None else missing)
        self._store.continued[entry.worker] = (chunks[0].state,)
        handle = self._handles[entry.worker]
        if chunks is not handle.chunks:
            packed = self._packed.get(chunks)
            if packed is None and chunks[0].steps:  # every such task is different: caching would not help
                packed = msgspec.Raw(pack([self._placed(chunk) for chunk in chunks]))
            elif packed is None:
                if len(self._packed) >= _CACHED:
                    self._packed.clear()
                packed = self._packed[chunks] = msgspec.Raw(pack(chunks))
            handle.chunks, handle.packed_chunks = chunks, packed
        handle.task, handle.times = task, (entry.started, entry.before, entry.each)
        place_of = self._store.place
        handle.places = [place_of(chunk.slot, version) for chunk, version in zip(chunks, entry.versions, strict=True)]
        handle.versions = entry.versions
        handle.carried = ()
        if self._store.carried:
            pairs = zip(chunks, entry.versions, strict=True)
            handle.carried = [self._store.orders_of(chunk.slot, version) for chunk, version in pairs]

    def _placed(self, chunk: Chunk) -> Chunk:
        """Return a chunk whose ``mix`` refers to messages by their places instead of their tasks."""
        locate = self._store.locate
        places = ((worker, *locate((task, index)), weight) for worker, task, index, weight in chunk.mix)
        return chunk._replace(mix=tuple(places))

    def request(self, order: RequestMessage) -> bool:
        """Request a message from a worker; return False if its task has ended."""
        if order.task not in self.in_flight:
            return False
        gathered = []
        for key, weight in zip(order.messages, order.weights, strict=True):
            location = self._store.locate(key)
            message = self._store.arrived[key]
            gathered.append([*location, message.vector.size, message.ids, weight])
        self._handles[order.worker].requests.append(
            [order.task, order.chunk, order.partitions, order.coefficients, gathered]
        )
        self._store.requests[order.task, order.chunk] = order
        return True

    def orders(self, handle: WorkerHandle) -> bytes:
        """Return a worker's newest orders, as bytes."""
        start, before, per_partition = handle.times
        flags = PREEMPT * handle.preempt | self._flags
        head = handle.task, flags, start + handle.clock, before, per_partition
        places, versions = handle.places, handle.versions
        tail = handle.requests, handle.question, handle.carried
        return pack((*head, handle.packed_chunks, places, versions, *tail))

    def settle(self, task: int, chunk: int) -> None:
        """Record that a chunk has arrived or failed; the last chunk ends its task."""
        missing = self.missing.get(task)
        self._store.requests.pop((task, chunk), None)
        if missing is not None:
            missing.discard(chunk)
            if not missing:
                entry = self._end(task)
                if entry is not None:
                    self._store.continued[entry.worker] += (task,)

    def cancel(self, task: int, *, preempt: bool) -> int | None:
        """End a task; return its worker if it needs new orders, else None."""
        entry = self._end(task)
        if entry is None:
            return None
        handle = self._handles[entry.worker]
        handle.preempt = preempt
        if handle.task != task:
            return None
        handle.forget()
        return entry.worker if preempt else None

    def void(self, worker: int) -> None:
        """End the tasks of a worker that is lost."""
        handle = self._handles[worker]
        handle.present = False
        self._store.continued[worker] = ()
        for task in [task for task, entry in self.in_flight.items() if entry.worker == worker]:
            self._end(task)
        handle.forget()

    def _end(self, task: int) -> InFlight | None:
        entry = self.in_flight.pop(task, None)
        self.missing.pop(task, None)
        if entry is not None:
            self._store.end_task(task, entry.chunks)
        return entry

    def state(self, start: float) -> list[Any]:
        """Return the tasks as plain data, with times since ``start``."""
        return [
            (task, entry._replace(started=entry.started - start), sorted(self.missing[task]))
            for task, entry in self.in_flight.items()
        ]

    def restore(self, state: Sequence[Any], start: float) -> None:
        """Continue the tasks that :meth:`state` returned."""
        for task, plain, missing in state:
            entry = InFlight.from_plain(plain)
            self.give(task, entry._replace(started=entry.started + start), missing)


class Comparisons:
    """Checks that workers which compute the same partition's gradient agree, by comparing the gradients' marks."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = max(tolerance, SINGLE)
        self._marks: dict[tuple[Any, ...], tuple[int, int]] = {}

    def check(self, notice: Notice, entry: InFlight) -> None:
        """Raise :class:`~anyk.RunFailed` if two workers have computed different gradients of a partition."""
        worker, report = notice.worker, notice.report
        chunk, version = entry.chunks[report.chunk], entry.versions[report.chunk]
        key = chunk.slot, version, report.done, chunk.batch, chunk.repeat
        other, bits = self._marks.setdefault(key, (worker, report.bits))
        apart = marks_apart(bits, report.bits)
        if other != worker and not apart <= self._tolerance:
            raise RunFailed(differing(other, worker, report.done, version, apart))
        if len(self._marks) > _REMEMBERED:
            del self._marks[next(iter(self._marks))]
