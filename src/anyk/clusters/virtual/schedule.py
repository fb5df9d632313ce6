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
from anyk.protocol import Cancel, Cut, Dispatch, RequestMessage, Task


class TaskSchedule:
    """Records tasks from dispatch to end; ``heap`` contains their next events, ``now`` is the virtual clock."""

    def __init__(self, injection: Injection, compute: Compute | None, store: ComputingStore | None) -> None:
        delays = injection.delays
        self.now = 0.0
        self.newest: dict[str, int] = {}  # newest version of each slot
        self.heap: list[Entry] = []
        self.in_flight: dict[int, InFlight] = {}
        self.cuts: list[Cut] | None = None  # ends of cancelled chunks to report, None if not reported
        self.unwanted: set[int] = set()  # cancelled tasks that continue to their end
        self.cores = None if compute is None else Cores(compute, self.heap, injection.unit)
        self._injection, self._compute, self._store = injection, compute, store
        self._delivered: dict[int, int] = {}  # the number of messages sent by a task of several chunks
        self._free = [0.0] * len(injection.numbers)  # time at which an uninterruptible worker is free again
        self._busy = False  # whether any worker may not be free
        self._uninterruptible = delays.uninterruptible
        self._known_single: Sequence[Task] = ()  # the last tasks verified to have one chunk each
        self._even = True  # whether all workers have had the same number of tasks
        self._simple = delays.by == "task" and delays.per == "task" and not getattr(delays, "slope", 0)
        self._simple &= injection.instant and compute is None

    # ------------------------------------------------------------------------------------------- dispatch

    def dispatch(self, order: Dispatch) -> None:
        """Start tasks on workers."""
        first, workers, chunks, number = order
        if self._simple and self._dispatch_together(first, workers, chunks):
            return
        for task, (worker, work) in enumerate(zip(workers, chunks, strict=True), first):
            self._dispatch_one(task, worker, work, number)

    def _dispatch_together(self, first: int, workers: Sequence[int], chunks: Sequence[Task]) -> bool:
        """Start one-chunk tasks on idle workers, fast, as rounds consist of these; return False for other tasks."""
        if len(workers) == 1:
            if len(chunks[0]) != 1:
                return False
        elif chunks is not self._known_single:
            if any(map((1).__ne__, map(len, chunks))) or any(task[0].send != "done" for task in chunks):
                return False
            self._known_single = chunks
        if chunks[0][0].steps:
            return False
        now, free, heap = self.now, self._free, self.heap
        numbers, stream = self._injection.numbers, self._injection.stream
        version = (self.newest[chunks[0][0].slot],)
        if len(self.newest) > 1 or chunks[0][0].send != "done" or (self._busy and max(free) > now):
            return False
        if len(workers) == len(numbers) and self._even:
            number = numbers[0]
            numbers[:] = [number + 1] * len(numbers)
            delays = stream.row(number)
        elif len(workers) == 1:
            self._even = False
            worker = workers[0]
            number = numbers[worker]
            numbers[worker] = number + 1
            seconds = stream.at(worker, number)
            heappush(heap, (now + seconds, first, worker, 0, DUE))
            self.in_flight[first] = (worker, chunks[0], version, now, seconds, 0.0)  # type: ignore[assignment]  # a plain tuple, as below
            return True
        else:
            self._even = False
            at, delays = stream.at, []
            for worker in workers:
                delays.append(at(worker, numbers[worker]))
                numbers[worker] += 1
        tasks = range(first, first + len(workers))
        heap.extend(zip([now + seconds for seconds in delays], tasks, workers, repeat(0), repeat(DUE), strict=False))
        heapify(heap)
        # as plain tuples, which are created six times faster; readers convert them to InFlight
        plain: Any = zip(workers, chunks, repeat(version), repeat(now), delays, repeat(0.0), strict=False)
        self.in_flight.update(zip(tasks, plain, strict=False))
        return True

    def _dispatch_one(self, task: int, worker: int, chunks: Task, number: int | None) -> None:
        self._even = False
        versions = tuple(self.newest[chunk.slot] for chunk in chunks)
        number = versions[0] if number is None else number
        before, each = self._injection.draw(task, worker, chunks, number, self.now)
        started = max(self.now, self._free[worker])
        self.in_flight[task] = InFlight(worker, chunks, versions, started, before, each)
        if self._store is not None:  # otherwise there are no messages to read
            self._store.begin_task(chunks)
        time = started + before
        for index, chunk in enumerate(chunks):
            if chunk.send == "request":  # computing takes time, but does not queue for a core
                cost = self._cost(self.in_flight[task], chunk.send)
                for done in range(1, len(chunk.partitions) + 1):
                    heappush(self.heap, (time + done * cost, task, worker, index, done))
            time += each * len(chunk.partitions)
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
        now, in_flight, store = self.now, self.in_flight, self._store
        preempt, cuts = order.mode == "preempt", self.cuts
        if preempt:  # a task that continues to its end also transfers its vectors
            self._injection.cancel(order.tasks, now)
        if store is not None and store.requests:
            ended = set(order.tasks)
            store.requests = {key: ask for key, ask in store.requests.items() if key[0] not in ended}
        reading = store is not None and store.readers
        if preempt and not self._uninterruptible and cuts is None and not reading:
            pop = in_flight.pop
            for task in order.tasks:
                pop(task, None)
            for task in order.tasks if self._delivered else ():
                self._delivered.pop(task, None)
        else:
            for task in order.tasks:
                entry = in_flight.get(task)
                if entry is not None:
                    self._cancel_one(task, InFlight._make(entry), preempt, cuts)
        if not in_flight and (self.cores is None or not self.cores.busy):
            self.heap.clear()
            if self.cores is not None:
                self.cores.clear()

    def _cancel_one(self, task: int, entry: InFlight, preempt: bool, cuts: list[Cut] | None) -> None:
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
        if cuts is None:
            return
        due = entry.started + entry.before
        for index, chunk in enumerate(entry.chunks):
            size = len(chunk.partitions)
            cost = self._cost(entry, chunk.send)
            done = min(size, max(0, int((now - due) / cost))) if cost else size * (now >= due)
            due += entry.each * size
            cuts.append(Cut(now, entry.worker, task, index, done, due))

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
