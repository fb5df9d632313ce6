"""A cluster on a virtual clock: gradients are real, time is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.checks import typed
from anyk.clusters.contract import Cluster, Order
from anyk.clusters.injection import InFlight
from anyk.clusters.local import Local, LocalSteps, State, mixed
from anyk.clusters.messages import Messages, checked, describe, reverse_attack
from anyk.clusters.packing import pack, unpack
from anyk.clusters.readers import Readers
from anyk.delays import Communication, DelayModel
from anyk.delays.models import MOST
from anyk.errors import BadInput
from anyk.problems.base import Partitions, Vector
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Cut,
    Dispatch,
    Event,
    Failed,
    Joined,
    Layout,
    Lost,
    MessageProjected,
    Progress,
    ProjectMessage,
    Reply,
    RequestMessage,
    Task,
    Timing,
)
from anyk.specs import show


@typed
@dataclass(frozen=True)
class Compute:
    """What computing costs on the machine that is simulated, in seconds; tasks queue for ``cores``.

    ``task``: fixed cost of a message; ``partition``: cost of each partial gradient; ``step``: what the driver does
    between a step's last reply and the next dispatch.
    """

    task: float
    partition: float
    step: float
    cores: int

    def __post_init__(self) -> None:
        for name in ("task", "partition", "step"):
            seconds = getattr(self, name)
            if not 0.0 <= seconds <= MOST:
                raise BadInput(f"{name} (seconds of computing) must be from 0 to {MOST:g}, got {seconds:g}")
        if self.cores < 1:
            raise BadInput(f"cores must be at least 1, got {self.cores}")


class Outage(NamedTuple):
    """A worker is lost at ``time`` and joins again at ``back`` (None: never, it is given up)."""

    time: float
    worker: int
    back: float | None = None


@typed
class Simulated(Cluster):
    """Workers on a virtual clock; the same seed gives the same events and times everywhere.

    A task takes its injected delay and, with ``compute``, a turn on one of the machine's cores; without, computing
    and communication take no time. What is due at equal times comes in the order in which it was asked for. ``outages``
    are workers lost and found.

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
        super().__init__(workers, delays=delays, seed=seed, byzantine=byzantine, communication=communication)
        for outage in outages:
            if not 0 <= outage.worker < workers:
                raise BadInput(f"an outage names worker {outage.worker}; workers are 0 to {workers - 1}")
        self.compute = compute
        self._outages = tuple(outages)
        computing = compute is not None and (compute.task or compute.partition or compute.step)
        times: Any = getattr(self.delays, "times", None)  # of a trace or table
        still = self.delays.silent or (times is not None and not times.any())
        self.passes_time = bool(computing or not still or not self.communication.silent)
        self._simple = self.delays.by == "task" and self.delays.per == "task" and not getattr(self.delays, "slope", 0)
        self._simple &= self.communication.silent
        self._reset()

    def _reset(self) -> None:
        n = self.workers
        self._now = 0.0
        # (time, worker, task, chunk, done): a chunk's end, or with done >= 0 a partition's
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._outages_due: list[tuple[float, int, int, float]] = []  # (time, 0 lost | 1 joined, worker, back)
        for outage in self._outages:
            heappush(self._outages_due, (outage.time, 0, outage.worker, np.inf if outage.back is None else outage.back))
        self._alarms: dict[str, float] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._unwanted: set[int] = set()  # cancelled tasks that are left to finish
        self._delivered: dict[int, int] = {}  # messages that tasks of several chunks have sent
        self._free = [0.0] * n  # when a worker that does not listen is free again
        self._busy = False  # whether any may not be
        self._known_single: Sequence[Task] = ()  # chunks last found to be one a task
        self._even = True  # whether all workers have been given equally many tasks
        self._slack = self.delays.uninterruptible
        self._waiting_for_core: deque[tuple[int, int]] = deque()
        self._on_core: dict[tuple[int, int], float] = {}
        self._messages: Messages | None = None
        self._models: dict[tuple[str, int], Vector] = {}
        self._newest: dict[str, int] = {}
        self._arrived: dict[tuple[int, int], tuple[tuple[int, ...], Vector]] = {}
        self._projections: deque[ProjectMessage] = deque()
        self._asked: dict[tuple[int, int], RequestMessage] = {}  # requests for messages that add up others
        self._gradients: dict[tuple[str, int], dict[tuple[int, int, int], Vector]] = {}
        self._local: LocalSteps | None = None
        self._states: list[dict[int, State]] = [{} for _ in range(n)]  # of optimisers, by the task that left them
        self._readers = Readers()

    @property
    def spec(self) -> str:
        """See :attr:`Cluster.spec`; outages have no spec."""
        costs = {} if self.compute is None else vars(self.compute)
        return show(self.name, {**costs, "byzantine": self.byzantine}, {"byzantine": ()})

    # ------------------------------------------------------------------------------------------- life

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        """See :meth:`Cluster.open`."""
        self._reset()
        if partitions is not None:
            self._messages = Messages(partitions, layout.blocks, self.seed)
            self._local = None if local is None else LocalSteps(self._messages, local)
            for held, covered in zip(layout.assignment, layout.covers or layout.assignment, strict=True):
                partitions.load(held)
                self._messages.length(tuple(covered))  # refuses what cannot be sent
        self.injection.start(layout, self._messages)
        self._newest = dict.fromkeys(layout.slots, 0)
        return tuple(range(self.workers))

    def close(self) -> None:
        """Nothing was started."""

    def now(self) -> float:
        """See :meth:`Cluster.now`."""
        return self._now

    def state(self) -> dict[str, Any]:
        """See :meth:`Cluster.state`."""
        return super().state() | {
            "heap": [entry for entry in sorted(self._heap) if entry[1] in self._in_flight or entry[4] == -3],
            "asked": [[list(key), order] for key, order in self._asked.items()],
            "projections": list(self._projections),
            "live": list(self._in_flight.items()),
            "unwanted": sorted(self._unwanted),
            "delivered": list(self._delivered.items()),
            "free": list(self._free),
            "alarms": dict(self._alarms),
            "outages_due": [(t, kind, w, None if back == np.inf else back) for t, kind, w, back in self._outages_due],
            "cores": [[task, chunk] for task, chunk in self._on_core],
            "queue": [[task, chunk] for task, chunk in self._waiting_for_core],
        }

    def restore(self, time: float, state: dict[str, Any]) -> None:
        """See :meth:`Cluster.restore`."""
        super().restore(time, state)
        self._now = time
        self._heap[:] = [(t, task, worker, chunk, done) for t, task, worker, chunk, done in state["heap"]]
        self._in_flight |= {task: InFlight.from_plain(plain) for task, plain in state["live"]}
        for entry in self._in_flight.values() if self._messages is not None else ():
            self._readers.begin(entry.chunks)
        self._unwanted |= set(state["unwanted"])
        self._delivered |= dict(state["delivered"])
        self._projections.extend(ProjectMessage(*plain) for plain in state["projections"])
        for (task, chunk), plain in state["asked"]:
            worker, _, _, partitions, coefficients, messages, weights = plain
            given = tuple((a, b) for a, b in messages)
            self._asked[task, chunk] = RequestMessage(
                worker, task, chunk, tuple(partitions), tuple(coefficients), given, tuple(weights)
            )
        self._free = list(state["free"])
        self._busy = True
        self._even = len(set(self.injection.numbers)) == 1
        self._alarms |= state["alarms"]
        outages_due = [(t, kind, w, np.inf if back is None else back) for t, kind, w, back in state["outages_due"]]
        self._outages_due[:] = outages_due
        heapify(self._outages_due)
        self._on_core |= dict.fromkeys(map(tuple, state["cores"]), 0.0)
        self._waiting_for_core.extend((task, chunk) for task, chunk in state["queue"])

    # ------------------------------------------------------------------------------------------- models and messages

    def blank(self, slot: str) -> Vector:
        """See :meth:`Cluster.blank`."""
        assert self._messages is not None
        return np.empty(self._messages.partitions.dimension, dtype=self._messages.dtype)

    def publish(self, slot: str, version: int, w: Vector | None) -> None:
        """See :meth:`Cluster.publish`."""
        self._newest[slot] = version
        if w is not None:
            self._models[slot, version] = w

    def model(self, slot: str, version: int) -> Vector:
        """See :meth:`Cluster.model`."""
        return self._models[slot, version]

    def release(self, slot: str, version: int) -> None:
        """See :meth:`Cluster.release`."""
        self._models.pop((slot, version), None)
        self._gradients.pop((slot, version), None)

    def message(self, task: int, chunk: int) -> Vector:
        """See :meth:`Cluster.message`."""
        return self._arrived[task, chunk][1]

    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """See :meth:`Cluster.hold`."""
        del worker
        self._arrived[task, chunk] = ids, message

    def combine(self, messages: Sequence[tuple[int, int]], weights: Sequence[Any]) -> NDArray[np.float64]:
        """See :meth:`Cluster.combine`."""
        assert self._messages is not None
        found = [self._arrived[key] for key in messages]
        return self._messages.add_up([(ids, m, weight) for (ids, m), weight in zip(found, weights, strict=True)])

    def free(self, task: int, chunk: int) -> None:
        """See :meth:`Cluster.free`."""
        self._readers.free(task, chunk, self._drop)

    def _drop(self, task: int, chunk: int) -> None:
        self._arrived.pop((task, chunk), None)

    def vectors(self) -> dict[str, Vector]:
        """See :meth:`Cluster.vectors`."""
        return self._readers.vectors(self.message) | {
            f"state/{worker}/{task}/{name}": vector
            for worker, states in enumerate(self._states)
            for task, state in states.items()
            for name, vector in state.items()
        }

    def take_back(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:
        """See :meth:`Cluster.take_back`."""
        self._readers.take_back(vectors, workers, self.hold)
        for key, vector in vectors.items():
            kind, *rest = key.split("/")
            if kind == "state":
                self._states[int(rest[0])].setdefault(int(rest[1]), {})[rest[2]] = vector

    def _work_locally(self, task: int, chunk: Chunk, version: int, worker: int) -> Vector:
        """A chunk's local steps; the state they leave is kept for the worker's next task."""
        assert self._local is not None
        states = self._states[worker]
        models = [self._arrived[other, index][1] for _, other, index, _ in chunk.mix]
        start = mixed(chunk, self._models[chunk.slot, version], models)
        model, left = self._local.run(chunk, start, None if chunk.compress else states.get(chunk.state))
        if not chunk.compress:
            self._keep_state(worker, task, chunk, left)
        return np.array(model)

    def _keep_state(self, worker: int, task: int, chunk: Chunk, left: State) -> None:
        """What a worker may go on from: what this task left, and, if that is not used, what it began with."""
        states = self._states[worker]
        self._states[worker] = {t: state for t, state in states.items() if t == chunk.state} | {task: left}

    def _encode(self, task: int, index: int, chunk: Chunk, version: int, worker: int) -> tuple[str | None, int]:
        """Compute a chunk's message on arrival (a cancelled one costs nothing); (fault, digest)."""
        messages = self._messages
        if messages is None:
            return None, 0
        if chunk.steps:
            try:
                out = self._work_locally(task, chunk, version, worker)
            except Exception as error:  # as below
                return describe(error), 0
            return self._arrive(task, index, chunk, chunk.covers, out, worker, version)
        known = self._gradients.setdefault((chunk.slot, version), {})  # replicas share what they compute
        w = self._models[chunk.slot, version].view()
        w.flags.writeable = False
        try:
            keys = [(j, chunk.batch, chunk.repeat) for j in chunk.partitions]
            for key in keys:
                if key not in known:  # a copy: its buffer may be the problem's own
                    known[key] = np.array(messages.partial_gradient(key[0], w, chunk, version))
            asked = self._asked.pop((task, index), None)
            ids = chunk.partitions
            if asked is not None:
                ids = tuple(dict.fromkeys([*ids, *(j for place in asked.messages for j in self._arrived[place][0])]))
            out = np.empty(messages.length(ids), dtype=w.dtype)
            if asked is not None or not ids:
                out[:] = 0.0
            for item, (key, coefficient) in enumerate(zip(keys, messages.split(chunk.coefficients), strict=True)):
                if asked is None:
                    messages.add(out, ids, item, coefficient, known[key])
                else:
                    messages.add_message(out, ids, key[:1], known[key], coefficient)
            for place, weight in zip(asked.messages, asked.weights, strict=True) if asked is not None else ():
                messages.add_message(out, ids, *self._arrived[place], weight)
        except Exception as error:  # a user's problem may raise anything; on a real worker it would, too
            return describe(error), 0
        why, bits = self._arrive(task, index, chunk, ids, out, worker, version)
        if why is not None:
            known.clear()  # what is asked for again is computed again
        return why, bits

    def _arrive(
        self, task: int, index: int, chunk: Chunk, ids: tuple[int, ...], out: Vector, worker: int, version: int
    ) -> tuple[str | None, int]:
        """A message is made: (fault, digest)."""
        if worker in self.byzantine:
            reverse_attack(out)
        why, bits = checked(out)
        if why is not None:
            return why, bits
        if not chunk.compress:
            self._arrived[task, index] = ids, out
            return None, bits
        base = self._models[chunk.slot, version]
        payload, left = pack(chunk, version, self.seed, out, base, self._states[worker].get(chunk.state))
        self._keep_state(worker, task, chunk, left)
        self._arrived[task, index] = ids, unpack(chunk, version, self.seed, payload, out.size, out.dtype, base)
        return None, keyed.digest(payload)

    # ------------------------------------------------------------------------------------------- commands

    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """See :meth:`Cluster.execute`."""
        cuts: list[Cut] = []
        for order in orders:
            kind = type(order)
            if kind is Dispatch:
                self._dispatch(order)  # type: ignore[arg-type]
            elif kind is Cancel:
                self._cancel(order, cuts)  # type: ignore[arg-type]
            elif kind is RequestMessage:
                if self._ask(order):  # type: ignore[arg-type]
                    sent = self._now + (self.compute.task if self.compute is not None else 0.0)
                    heappush(self._heap, (sent, order.task, order.worker, order.chunk, -2))  # type: ignore[union-attr]
            elif kind is ProjectMessage:
                self._projections.append(order)  # type: ignore[arg-type]
            elif order.time is None:  # type: ignore[union-attr]
                self._alarms.pop(order.name, None)  # type: ignore[union-attr]
            else:
                self._alarms[order.name] = order.time  # type: ignore[union-attr]
        return cuts

    def _ask(self, order: RequestMessage) -> bool:
        """Note what a chunk's message is to be made of; False when the task is no more."""
        entry = self._in_flight.get(order.task)
        if entry is None:
            return False
        live = InFlight._make(entry)
        chunks = list(live.chunks)
        chunks[order.chunk] = chunks[order.chunk]._replace(partitions=order.partitions, coefficients=order.coefficients)
        self._in_flight[order.task] = live._replace(chunks=tuple(chunks))
        if order.messages and self._messages is not None:
            self._asked[order.task, order.chunk] = order
        return True

    def step_done(self) -> None:
        """The driver has taken a step; with ``compute`` that took time."""
        if self.compute is not None:
            self._now += self.compute.step

    def _dispatch(self, order: Dispatch) -> None:
        first, workers, chunks, number = order
        if self._simple and self.compute is None and self._dispatch_together(first, workers, chunks):
            return
        for task, (worker, work) in enumerate(zip(workers, chunks, strict=True), first):
            self._dispatch_one(task, worker, work, number)

    def _dispatch_together(self, first: int, workers: Sequence[int], chunks: Sequence[Task]) -> bool:
        """Tasks of one chunk for workers that are idle: what rounds are made of, and therefore fast."""
        if len(workers) == 1:
            if len(chunks[0]) != 1:
                return False
        elif chunks is not self._known_single:
            if any(map((1).__ne__, map(len, chunks))) or any(task[0].send != "done" for task in chunks):
                return False
            self._known_single = chunks
        if chunks[0][0].steps:
            return False
        now, free, heap = self._now, self._free, self._heap
        numbers, stream = self.injection.numbers, self.injection.stream
        version = (self._newest[chunks[0][0].slot],)
        if len(self._newest) > 1 or chunks[0][0].send != "done" or (self._busy and max(free) > now):
            return False
        if len(workers) == self.workers and self._even:
            number = numbers[0]
            numbers[:] = [number + 1] * self.workers
            held = stream.row(number)
        elif len(workers) == 1:
            self._even = False
            worker = workers[0]
            number = numbers[worker]
            numbers[worker] = number + 1
            seconds = stream.at(worker, number)
            heappush(heap, (now + seconds, first, worker, 0, -1))
            self._in_flight[first] = (worker, chunks[0], version, now, seconds, 0.0)  # type: ignore[assignment]
            return True
        else:
            self._even = False
            at, held = stream.at, []
            for worker in workers:
                held.append(at(worker, numbers[worker]))
                numbers[worker] += 1
        tasks = range(first, first + len(workers))
        heap.extend(zip([now + seconds for seconds in held], tasks, workers, repeat(0), repeat(-1), strict=False))
        heapify(heap)
        # as plain tuples, which are made six times faster; whoever reads one makes it an InFlight
        plain: Any = zip(workers, chunks, repeat(version), repeat(now), held, repeat(0.0), strict=False)
        self._in_flight.update(zip(tasks, plain, strict=False))
        return True

    def _dispatch_one(self, task: int, worker: int, chunks: Task, number: int | None) -> None:
        self._even = False
        versions = tuple(self._newest[chunk.slot] for chunk in chunks)
        before, each = self.injection.draw(task, worker, chunks, versions[0] if number is None else number, self._now)
        started = max(self._now, self._free[worker])
        self._in_flight[task] = InFlight(worker, chunks, versions, started, before, each)
        if self._messages is not None:  # else nothing is read
            self._readers.begin(chunks)
        time = started + before
        for index, chunk in enumerate(chunks):
            if chunk.send == "request":  # computing is counted, but does not queue for a core
                cost = each + (self.compute.partition if self.compute is not None else 0.0)
                for done in range(1, len(chunk.partitions) + 1):
                    heappush(self._heap, (time + done * cost, task, worker, index, done))
            time += each * len(chunk.partitions)
            if chunk.send == "done":
                heappush(self._heap, (time, task, worker, index, -1))

    def _cancel(self, order: Cancel, cuts: list[Cut]) -> None:
        now, live = self._now, self._in_flight
        preempt = order.mode == "preempt"
        if preempt:  # who is left to finish in vain exchanges in vain, too
            self.injection.cancel(order.tasks, now)
        if self._asked:
            ended = set(order.tasks)
            self._asked = {key: ask for key, ask in self._asked.items() if key[0] not in ended}
        if preempt and not self._slack and not self.report_cuts and not self._readers.counts:
            pop = live.pop
            for task in order.tasks:
                pop(task, None)
            self._delivered.clear() if not live else None
        else:
            for task in order.tasks:
                entry = live.get(task)
                if entry is not None:
                    self._cancel_one(task, InFlight._make(entry), now, preempt, cuts)
        if not live and not self._on_core:
            self._heap.clear()
            self._waiting_for_core.clear()

    def _cancel_one(self, task: int, entry: InFlight, now: float, preempt: bool, cuts: list[Cut]) -> None:
        if (not preempt or self._slack) and entry.started <= now:
            end = self._busy_until(entry, now) if preempt else self._end(entry)
            if end > self._free[entry.worker]:
                self._free[entry.worker] = end
                self._busy = True
            if not preempt and end > now:
                self._unwanted.add(task)  # it finishes, and its messages, which nobody computes, are dropped
                return
        del self._in_flight[task]
        self._readers.end(entry.chunks, self._drop)
        self._delivered.pop(task, None)
        if not self.report_cuts:
            return
        due = entry.started + entry.before
        for index, chunk in enumerate(entry.chunks):
            size = len(chunk.partitions)
            done = min(size, max(0, int((now - due) / entry.each))) if entry.each else 0
            due += entry.each * size
            cuts.append(Cut(now, entry.worker, task, index, done, due))

    def _end(self, entry: InFlight) -> float:
        return entry.started + entry.before + entry.each * sum(len(chunk.partitions) for chunk in entry.chunks)

    def _busy_until(self, entry: InFlight, now: float) -> float:
        """When a worker that cannot be interrupted in a delay notices that it was told to stop."""
        held = entry.started + entry.before
        if now <= held or not entry.each:
            return held
        return min(held + entry.each * -(-(now - held) // entry.each), self._end(entry))

    # ------------------------------------------------------------------------------------------- events

    def events(self) -> Iterator[Event | Cut | None]:
        """See :meth:`Cluster.events`; ends when nothing can happen any more."""
        heap, live, outages_due = self._heap, self._in_flight, self._outages_due
        computing = self.compute is not None
        simple = self._messages is None
        while True:
            if self._projections:
                measured = self._project(self._projections.popleft())
                if measured is not None:
                    yield measured
                continue
            if self._alarms or outages_due:
                other = self._other_event(heap[0][0] if heap else np.inf)
                if other is not None:
                    yield other
                    continue
            if not heap:
                return
            time, task, worker, chunk, done = heappop(heap)
            entry = live.get(task)
            if computing:
                if done == -3:
                    self._leave_core(time, task, chunk)
                    if entry is None:
                        continue
                elif entry is not None and done == -1:
                    self._join_core(time, task, chunk, InFlight._make(entry))
                    continue
            if entry is None:
                continue
            if time > self._now:
                self._now = time
            if simple and done < 0:  # payload-free, and of one chunk
                chunks = entry[1]
                if len(chunks) == 1:
                    del live[task]
                    yield Reply(self._now, worker, task, chunk)
                    continue
            entry = InFlight._make(entry)
            if done >= 0:
                if task not in self._unwanted:
                    yield Progress(time, worker, task, chunk, done)
                elif done == len(entry.chunks[chunk].partitions) and chunk == len(entry.chunks) - 1:
                    del live[task]  # finished in vain; nobody will ask for its message
                    self._unwanted.discard(task)
                continue
            if len(entry.chunks) == 1:
                del live[task]
            else:
                self._delivered[task] = self._delivered.get(task, 0) + 1
                if self._delivered[task] == len(entry.chunks):
                    del live[task], self._delivered[task]
            if self._messages is None:
                yield Reply(self._now, worker, task, chunk)
                continue
            if task in self._unwanted:
                if task not in live:
                    self._unwanted.discard(task)
                    self._readers.end(entry.chunks, self._drop)
                yield Reply(
                    self._now, worker, task, chunk, Timing(entry.started, entry.started + entry.before, time, time)
                )
                continue
            why, bits = self._encode(task, chunk, entry.chunks[chunk], entry.versions[chunk], worker)
            if task not in live:
                self._readers.end(entry.chunks, self._drop)
            if why is not None:
                yield Failed(self._now, worker, task, chunk, why)
                continue
            timing = Timing(entry.started, entry.started + entry.before, time, time, bits)
            yield Reply(self._now, worker, task, chunk, timing)

    def give_up(self, worker: int) -> None:
        """See :meth:`Cluster.give_up`."""
        self._free[worker] = 0.0
        for task in [task for task, entry in self._in_flight.items() if entry[0] == worker]:
            self._readers.end(self._in_flight.pop(task)[1], self._drop)
        self._states[worker] = {}

    def _project(self, order: ProjectMessage) -> MessageProjected | None:
        """A message's projection; without payload 0 from who is honest and something else from a Byzantine worker."""
        worker, task, chunk, key = order
        if self._messages is None:
            return MessageProjected(self._now, worker, task, chunk, -100.0 if worker in self.byzantine else 0.0)
        found = self._arrived.get((task, chunk))
        return (
            None
            if found is None
            else MessageProjected(self._now, worker, task, chunk, self._messages.project(*found, key))
        )

    def _other_event(self, before: float) -> Event | None:
        """The first alarm or outage, if it comes no later than ``before``."""
        name = min(self._alarms, key=lambda key: (self._alarms[key], key), default=None)
        alarm = self._alarms[name] if name is not None else np.inf
        outage = self._outages_due[0][0] if self._outages_due else np.inf
        if min(alarm, outage) > before or min(alarm, outage) == np.inf:
            return None
        if name is not None and alarm <= outage:
            del self._alarms[name]
            self._now = max(self._now, alarm)
            return Alarm(self._now, name)
        time, kind, worker, back = heappop(self._outages_due)
        self._now = max(self._now, time)
        if kind:
            return Joined(self._now, worker)
        self.give_up(worker)  # for now
        if back != np.inf:
            heappush(self._outages_due, (max(back, self._now), 1, worker, np.inf))
        return Lost(self._now, worker, "simulated outage", gone=back == np.inf)

    # ------------------------------------------------------------------------------------------- cores

    def _join_core(self, time: float, task: int, chunk: int, entry: InFlight) -> None:
        """A chunk's delay is over: it computes as soon as a core is free."""
        assert self.compute is not None
        if len(self._on_core) >= self.compute.cores:
            self._waiting_for_core.append((task, chunk))
            return
        work = entry.chunks[chunk]
        cost = self.compute.task + self.compute.partition * len(work.partitions) * max(1, work.steps)
        self._on_core[task, chunk] = time
        heappush(self._heap, (max(time, self._now) + cost, task, entry.worker, chunk, -3))

    def _leave_core(self, time: float, task: int, chunk: int) -> None:
        del self._on_core[task, chunk]
        while self._waiting_for_core:
            next_task, next_chunk = self._waiting_for_core.popleft()
            entry = self._in_flight.get(next_task)
            if entry is not None:
                self._join_core(time, next_task, next_chunk, InFlight._make(entry))
                return
