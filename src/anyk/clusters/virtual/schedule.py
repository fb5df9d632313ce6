"""The schedule of the virtual clock: tasks in flight and their next events."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappush
from itertools import repeat
from typing import Any

import msgspec

from anyk.clusters.injection import InFlight, Injection
from anyk.clusters.virtual.computing import ComputingStore
from anyk.clusters.virtual.cores import COMPUTED, DUE, REQUESTED, Compute, Cores, Entry
from anyk.clusters.virtual.links import LinkReading, Links
from anyk.protocol import Cancel, Cut, Dispatch, RequestMessage, Task


class TaskSchedule:
    """Records tasks from dispatch to end; ``heap`` contains their next events, ``now`` is the virtual clock."""

    def __init__(
        self,
        injection: Injection,
        compute: Compute | None,
        store: ComputingStore | None,
        reading: LinkReading | None = None,
    ) -> None:
        delays = injection.delays
        self.now = 0.0
        self.newest: dict[str, int] = {}  # newest version of each slot
        self.heap: list[Entry] = []
        self.in_flight: dict[int, InFlight] = {}
        self.cuts: list[Cut] | None = None  # ends of cancelled chunks to report, None if not reported
        self.unwanted: set[int] = set()  # cancelled tasks that continue to their end
        self.cores: Cores | Links | None = None  # where messages queue when their delays are over
        if compute is not None:
            self.cores = Cores(compute, self.heap, injection.unit)
        elif reading is not None:
            self.cores = Links(reading, self.heap, self.unwanted)
        self._injection, self._compute, self._store = injection, compute, store
        self._delivered: dict[int, int] = {}  # the number of messages sent by a task of several chunks
        self._free = [0.0] * len(injection.numbers)  # time at which an uninterruptible worker is free again
        self._busy = False  # whether any worker may not be free
        self._uninterruptible = delays.uninterruptible
        self._known_single: Sequence[Task] = ()  # the last tasks verified to have one chunk each
        self._even = True  # whether all workers have had the same number of tasks
        self._simple = delays.by == "task" and delays.per == "task" and not getattr(delays, "slope", 0)
        self._simple &= injection.instant and self.cores is None

    # ------------------------------------------------------------------------------------------- dispatch

    def dispatch(self, order: Dispatch) -> None:
        """Start tasks on workers."""
        first, workers, chunks, number = order
        if self._simple and self._can_start_at_once(chunks):
            if len(workers) == 1:
                self._start_single(first, workers[0], chunks[0])
            else:
                self._start_together(first, workers, chunks)
            return
        for task, (worker, work) in enumerate(zip(workers, chunks, strict=True), first):
            self._dispatch_one(task, worker, work, number)

    def _can_start_at_once(self, tasks: Sequence[Task]) -> bool:
        """Return whether tasks have one chunk each, alike and without steps, and all workers are idle.

        Rounds consist of such tasks, which :meth:`_start_together` starts fast.
        """
        chunk = tasks[0][0]
        if chunk.steps or chunk.send != "done" or len(self.newest) > 1:
            return False
        if self._busy and max(self._free) > self.now:
            return False
        if len(tasks) == 1:
            return len(tasks[0]) == 1
        if tasks is self._known_single:
            return True
        if any(map((1).__ne__, map(len, tasks))) or any(task[0].send != "done" for task in tasks):
            return False
        self._known_single = tasks
        return True

    def _start_single(self, task: int, worker: int, chunks: Task) -> None:
        """Start a task of one chunk on an idle worker."""
        self._even = False
        numbers, now = self._injection.numbers, self.now
        number = numbers[worker]
        numbers[worker] = number + 1
        seconds = self._injection.stream.at(worker, number)
        heappush(self.heap, (now + seconds, task, worker, 0, DUE))
        version = (self.newest[chunks[0].slot],)
        self.in_flight[task] = (worker, chunks, version, now, seconds, 0.0)  # type: ignore[assignment]  # a plain tuple, as below

    def _start_together(self, first: int, workers: Sequence[int], tasks: Sequence[Task]) -> None:
        """Start tasks of one chunk each on idle workers."""
        now, heap = self.now, self.heap
        delays = self._draw_for(workers)
        numbers = range(first, first + len(workers))
        heap.extend(zip([now + seconds for seconds in delays], numbers, workers, repeat(0), repeat(DUE), strict=False))
        heapify(heap)
        version = (self.newest[tasks[0][0].slot],)
        # as plain tuples, which are created six times faster; readers convert them to InFlight
        plain: Any = zip(workers, tasks, repeat(version), repeat(now), delays, repeat(0.0), strict=False)
        self.in_flight.update(zip(numbers, plain, strict=False))

    def _draw_for(self, workers: Sequence[int]) -> Sequence[float]:
        """Return the delays of these workers' next tasks, and count the tasks."""
        numbers, stream = self._injection.numbers, self._injection.stream
        if len(workers) == len(numbers) and self._even:
            number = numbers[0]
            numbers[:] = [number + 1] * len(numbers)
            return stream.row(number)
        self._even = False
        delays = []
        for worker in workers:
            delays.append(stream.at(worker, numbers[worker]))
            numbers[worker] += 1
        return delays

    def _dispatch_one(self, task: int, worker: int, chunks: Task, number: int | None) -> None:
        self._even = False
        versions = tuple(self.newest[chunk.slot] for chunk in chunks)
        number = versions[0] if number is None else number
        before, per_partition = self._injection.draw(task, worker, chunks, number, self.now)
        started = max(self.now, self._free[worker])
        self.in_flight[task] = InFlight._make((worker, chunks, versions, started, before, per_partition))
        if self._store is not None:  # otherwise there are no messages to read
            self._store.begin_task(chunks)
        time = started + before
        for index, chunk in enumerate(chunks):
            if chunk.send == "request":  # computing takes time, but does not queue for a core
                cost = self._cost(self.in_flight[task], chunk.send)
                for done in range(1, len(chunk.partitions) + 1):
                    heappush(self.heap, (time + done * cost, task, worker, index, done))
            time += per_partition * len(chunk.partitions)
            if chunk.send == "done":
                heappush(self.heap, (time, task, worker, index, DUE))

    def _cost(self, entry: InFlight, send: str) -> float:
        """Return the seconds for a partition, without waiting for a core."""
        if self._compute is None or send != "request":
            return entry.each
        return entry.each + self._compute.partition_of(entry.worker)

    def request(self, order: RequestMessage) -> bool:
        """Record the contents of a chunk's requested message; return False if its task has ended."""
        if order.task not in self.in_flight:
            return False
        entry = InFlight._make(self.in_flight[order.task])
        chunks = list(entry.chunks)
        chunks[order.chunk] = chunks[order.chunk]._replace(partitions=order.partitions, coefficients=order.coefficients)
        self.in_flight[order.task] = entry._replace(chunks=tuple(chunks))
        if order.messages and self._store is not None:
            self._store.requests[order.task, order.chunk] = order
        return True

    def send(self, order: RequestMessage) -> None:
        """Send a requested message."""
        sent = self.now + (self._compute.task if self._compute is not None else 0.0)
        heappush(self.heap, (sent, order.task, order.worker, order.chunk, REQUESTED))

    # ------------------------------------------------------------------------------------------- ends

    def pass_cores(self, time: float, task: int, chunk: int, kind: int) -> InFlight | None:
        """Let a chunk queue for a core, or leave it; return its task if this is also an event, else None."""
        assert self.cores is not None
        entry = self.in_flight.get(task)
        if kind == COMPUTED:
            self.cores.leave(max(time, self.now), task, chunk, self.in_flight)
        elif entry is not None and kind == DUE:
            self.cores.join(max(time, self.now), task, chunk, InFlight._make(entry))
            return None
        return entry

    def deliver(self, task: int, entry: InFlight) -> bool:
        """Record that a task has sent a message; return whether this was its last, which ends the task."""
        if len(entry.chunks) > 1:
            sent = self._delivered[task] = self._delivered.get(task, 0) + 1
            if sent < len(entry.chunks):
                return False
            del self._delivered[task]
        del self.in_flight[task]
        self.unwanted.discard(task)
        return True

    def cancel(self, order: Cancel) -> None:
        """End tasks, or let them finish without messages; ``cuts`` collects the ends of their chunks."""
        tasks, preempt, store = order.tasks, order.mode == "preempt", self._store
        if preempt:  # a task that continues to its end also transfers its vectors
            self._injection.cancel(tasks, self.now)
        if store is not None and store.requests:
            store.forget_requests(tasks)
        if preempt and self.cuts is None and not self._uninterruptible and not (store is not None and store.readers):
            self._drop_all(tasks)
        else:
            for task in tasks:
                entry = self.in_flight.get(task)
                if entry is not None:
                    self._cancel_one(task, InFlight._make(entry), preempt)
        if not self.in_flight and (self.cores is None or not self.cores.busy):
            self.heap.clear()
            if self.cores is not None:
                self.cores.clear()

    def _drop_all(self, tasks: Sequence[int]) -> None:
        """Drop tasks of which nobody wants to know how far they came, nor reads messages."""
        pop = self.in_flight.pop
        for task in tasks:
            pop(task, None)
        if self._delivered:
            for task in tasks:
                self._delivered.pop(task, None)

    def _cancel_one(self, task: int, entry: InFlight, preempt: bool) -> None:
        now = self.now
        if (not preempt or self._uninterruptible) and entry.started <= now:
            end = entry.busy_until(now) if preempt else entry.end
            if end > self._free[entry.worker]:
                self._free[entry.worker] = end
                self._busy = True
            if not preempt and end > now:
                self.unwanted.add(task)  # it continues, but its messages are neither computed nor delivered
                return
        self._drop(task)
        if self.cuts is not None:
            self._report_cuts(task, entry, self.cuts)

    def _report_cuts(self, task: int, entry: InFlight, cuts: list[Cut]) -> None:
        """Report how far the chunks of a task have come."""
        now, due = self.now, entry.started + entry.before
        for index, chunk in enumerate(entry.chunks):
            size = len(chunk.partitions)
            cost = self._cost(entry, chunk.send)
            done = min(size, max(0, int((now - due) / cost))) if cost else size * (now >= due)
            due += entry.each * size
            cuts.append(Cut._make((now, entry.worker, task, index, done, due)))  # twice as fast as by keyword

    def forget(self, worker: int) -> None:
        """End the tasks of a lost worker."""
        self._free[worker] = 0.0
        for task in [task for task, entry in self.in_flight.items() if entry[0] == worker]:
            self._drop(task)

    def _drop(self, task: int) -> None:
        """Drop a task that has ended before its last message."""
        entry = self.in_flight.pop(task)
        self.unwanted.discard(task)
        self._delivered.pop(task, None)
        if self._store is not None:
            self._store.end_task(task, entry[1])

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return the tasks in flight, as plain data."""
        return {
            "heap": [entry for entry in sorted(self.heap) if entry[1] in self.in_flight or entry[4] == COMPUTED],
            "in_flight": list(self.in_flight.items()),
            "unwanted": sorted(self.unwanted),
            "delivered": list(self._delivered.items()),
            "free": list(self._free),
            "cores": None if self.cores is None else self.cores.state(),
        }

    def restore(self, time: float, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self.now = time
        self.heap[:] = msgspec.convert(state["heap"], list[Entry])
        self.in_flight |= msgspec.convert(state["in_flight"], list[tuple[int, InFlight]])
        if self._store is not None:
            for entry in self.in_flight.values():
                self._store.begin_task(entry.chunks)
        self.unwanted |= set(state["unwanted"])
        self._delivered |= dict(state["delivered"])
        self._free = list(state["free"])
        self._busy = True
        self._even = len(set(self._injection.numbers)) == 1
        if self.cores is not None and state["cores"] is not None:
            self.cores.restore(state["cores"])
