"""The cluster on a virtual clock: it executes commands and yields events in the order of their times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop
from typing import Any

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.checks import check_range, typed
from anyk.base.errors import BadInput
from anyk.base.specs import show_spec
from anyk.clusters.contract import Cluster, Order
from anyk.clusters.injection import ClusterOptions, InFlight
from anyk.clusters.local import Local
from anyk.clusters.store import Elsewhere, VectorStore
from anyk.clusters.virtual.calendar import Calendar, Outage
from anyk.clusters.virtual.computing import ComputingStore
from anyk.clusters.virtual.cores import Compute
from anyk.clusters.virtual.links import LinkReading
from anyk.clusters.virtual.schedule import TaskSchedule
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.protocol import (
    Cancel,
    Cut,
    Dispatch,
    Event,
    Failed,
    Layout,
    Lost,
    MessageProjected,
    Progress,
    ProjectMessage,
    Reply,
    RequestMessage,
    SetAlarm,
    Timing,
)


@typed
class Simulated(Cluster):
    """Workers on a virtual clock; the same seed gives the same events and times everywhere.

    A task takes its injected delay and, with ``compute``, time on one of the machine's cores; otherwise
    computing takes no time. Events at equal times come in the order of their commands. ``outages``: losses of workers,
    and their returns.

    >>> import anyk
    >>> cluster = Simulated(workers=30, delays=anyk.delays.Exponential(mean=0.5), seed=1)
    >>> cluster.virtual
    True
    """

    virtual = True
    name = "simulated"

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        compute: Compute | None = None,
        outages: Sequence[Outage] = (),
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
    ) -> None:
        super().__init__(
            ClusterOptions(workers=workers, delays=delays, seed=seed, byzantine=byzantine, communication=communication)
        )
        for outage in (outages := [Outage(*outage) for outage in outages]):
            check_range("the worker of an outage", outage.worker, 0, workers - 1)
            if not (0 <= outage.time <= (np.inf if outage.back is None else outage.back) and outage.notice >= 0):
                raise BadInput(f"an outage has time, worker, back (not before time) and notice, got {tuple(outage)}")
        if compute is not None:
            compute.check_fleet(workers)
        self.compute = compute
        self.reading: LinkReading | None = None  # how messages are read, without compute; None: they are here when sent
        computing = compute is not None and (compute.task or compute.partition or compute.step)
        times: Any = getattr(self.delays, "times", None)  # if the model is a trace or table
        still = self.delays.silent or (times is not None and not times.any())
        self.passes_time = bool(computing or not still or not self.communication.silent)
        self._outages = tuple(outages)
        self._reset(None)

    def _reset(self, computing: ComputingStore | None) -> None:
        self.computing = computing  # None: without a problem there are no vectors
        self.store = VectorStore() if computing is None else computing
        self._schedule = TaskSchedule(self.injection, self.compute, computing, self.reading)
        self._calendar = Calendar(self._outages)
        self._projections: deque[ProjectMessage] = deque()  # requested projections
        self._commands: dict[type, Callable[[Any], None]] = {
            Dispatch: self._schedule.dispatch,
            Cancel: self._schedule.cancel,
            RequestMessage: self._request,
            ProjectMessage: self._projections.append,
            SetAlarm: self._calendar.alarms.set,
        }

    @property
    def spec(self) -> str:
        costs = {} if self.compute is None else vars(self.compute)
        return show_spec(self.name, {**costs, "byzantine": self.byzantine}, {"byzantine": ()})

    # ------------------------------------------------------------------------------------------- life

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        computing = None
        if partitions is not None:
            computing = ComputingStore(layout, partitions, local, seed=self.seed, byzantine=self.byzantine)
        self.injection.start(layout, None if computing is None else computing.messages)
        self._reset(computing)
        self._schedule.newest = dict.fromkeys(layout.slots, 0)
        return tuple(range(self.workers))

    def close(self) -> None:
        """Do nothing: nothing was started."""

    def now(self) -> float:
        return self._schedule.now

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            **self._schedule.state(),
            **self._calendar.state(),
            "requests": list(self.store.requests.values()),
            "projections": list(self._projections),
        }

    def restore(self, time: float, state: dict[str, Any]) -> None:
        super().restore(time, state)
        self._schedule.restore(time, state)
        for request in map(RequestMessage.from_plain, state["requests"]):
            self.store.requests[request.task, request.chunk] = request
        self._projections.extend(ProjectMessage(*plain) for plain in state["projections"])
        self._calendar.restore(state)

    # ------------------------------------------------------------------------------------------- models and messages

    def publish(self, slot: str, version: int, w: Vector | Elsewhere | None) -> None:
        self._schedule.newest[slot] = version
        if w is not None:
            self.store.publish(slot, version, w)

    # ------------------------------------------------------------------------------------------- commands

    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        self._schedule.cuts = [] if self.report_cuts else None
        for order in orders:
            self._commands[type(order)](order)
        return self._schedule.cuts or ()

    def _request(self, order: RequestMessage) -> None:
        if self._schedule.request(order):
            self._schedule.send(order)

    def step_done(self) -> None:
        if self.compute is not None:
            self._schedule.now += self.compute.step

    def abandon(self, worker: int) -> None:
        self._schedule.forget(worker)
        if self.computing is not None:
            self.computing.states[worker].clear()

    # ------------------------------------------------------------------------------------------- events

    def events(self) -> Iterator[Event | Cut | None]:
        schedule, alarms, outages = self._schedule, self._calendar.alarms, self._calendar.outages
        heap, in_flight, unwanted = schedule.heap, schedule.in_flight, schedule.unwanted
        computes, queues = self.computing is not None, schedule.cores is not None
        event: Event | None
        while True:
            if self._projections:
                yield from self._projected()
            if alarms or outages:
                event = self._calendar_event()
                if event is not None:
                    yield event
                    continue
            if not heap:
                return
            time, task, worker, chunk, kind = heappop(heap)
            entry = schedule.pass_cores(time, task, chunk, kind) if queues else in_flight.get(task)
            if entry is None:
                continue
            if time > schedule.now:
                schedule.now = time
            if not computes and kind < 0 and len(entry[1]) == 1:  # the most frequent case, made fast
                del in_flight[task]
                if unwanted:
                    unwanted.discard(task)
                yield tuple.__new__(Reply, (schedule.now, worker, task, chunk, None, 0))  # twice as fast as Reply()
                continue
            event = self._event(time, task, chunk, kind, InFlight._make(entry))
            if event is not None:
                yield event

    def _calendar_event(self) -> Event | None:
        """Return the next alarm, loss or return if it comes before all events of tasks, else None."""
        schedule = self._schedule
        event = self._calendar.pop(schedule.heap[0][0] if schedule.heap else np.inf, schedule.now)
        if event is not None:
            schedule.now = event.time
            if isinstance(event, Lost):
                self.abandon(event.worker)  # until it returns
        return event

    def _event(self, time: float, task: int, chunk: int, kind: int, entry: InFlight) -> Event | None:
        """Return the event of a heap entry: a message, a finished partition, or None."""
        schedule, computing, worker = self._schedule, self.computing, entry.worker
        if kind >= 0:
            if task not in schedule.unwanted:
                return Progress(time, worker, task, chunk, kind)
            if kind == len(entry.chunks[chunk].partitions) and chunk == len(entry.chunks) - 1:
                del schedule.in_flight[task]  # its message will not be requested
                schedule.unwanted.discard(task)
            return None
        wanted = task not in schedule.unwanted
        ended = schedule.deliver(task, entry)
        if computing is None:
            return Reply(schedule.now, worker, task, chunk)
        fault, bits = None, 0
        if wanted:
            fault, bits = computing.compute(task, chunk, entry.chunks[chunk], entry.versions[chunk], worker)
        if ended:
            computing.end_task(task, entry.chunks)
        if fault is not None:
            return Failed(schedule.now, worker, task, chunk, fault)
        timing = Timing(entry.started, entry.started + entry.before, time, time, bits)
        return Reply(schedule.now, worker, task, chunk, timing)

    def _projected(self) -> Iterator[MessageProjected]:
        """Yield the requested projections of messages, also of those requested in the meantime."""
        while self._projections:
            event = self._project(self._projections.popleft())
            if event is not None:
                yield event

    def _project(self, order: ProjectMessage) -> MessageProjected | None:
        """Return a message's projection; without vectors 0 for honest workers and -100 for Byzantine workers."""
        worker, task, chunk, key = order
        if self.computing is None:
            value: float | None = -100.0 if worker in self.byzantine else 0.0
        else:
            value = self.computing.project(task, chunk, key)
        return None if value is None else MessageProjected(self._schedule.now, worker, task, chunk, value)
