"""What the driver knows of workers that run by themselves, on the wall clock: the same wherever they run.

Tasks in flight, messages that have arrived, alarms and deaths are kept here; how orders reach workers and news comes
back is a cluster's own.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.contract import Cluster, Order
from anyk.clusters.injection import InFlight
from anyk.clusters.local import Local
from anyk.clusters.messages import Messages
from anyk.clusters.orders import pack_orders, pack_work
from anyk.clusters.packing import scheme, unpack
from anyk.clusters.readers import Readers
from anyk.clusters.worker import (
    COMPARED,
    FAILED,
    NO_TASK,
    PREEMPT,
    PROGRESS,
    REPLY,
    STOPPED,
    UNINTERRUPTIBLE,
    RunSetup,
)
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Partitions, Vector
from anyk.problems.replicas import SINGLE, differing, marks_apart
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

_BODIES = 4096  # different tasks whose bytes are remembered
_COMPARED = 256  # gradients that are remembered to compare others with
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before a worker is started again that has died twice in a row; at most
_IDLE = 0.1  # seconds after which the driver is given a turn though nothing happened


class Notice(NamedTuple):
    """What a worker has sent, as it comes in; times are those of the driver's clock."""

    at: float
    kind: int
    worker: int
    task: int
    chunk: int
    buffer: Any  # where a message lies
    done: int
    incarnation: int
    started: float
    computing: float
    computed: float
    sent: float
    bits: int
    text: str = ""


class Died(NamedTuple):
    """A worker has ended; ``blame``: how much that speaks against it, 4 for a crash, 1 where it may have been well."""

    worker: int
    incarnation: int
    reason: str
    blame: int = 1


class Message(NamedTuple):
    """A message that has arrived."""

    ids: tuple[int, ...]
    vector: Vector
    worker: int
    buffer: Any  # where it lies besides, for other workers to read; None: nowhere


class WorkerHandle:
    """What the driver knows of one worker, and the newest orders it has been given."""

    def __init__(self) -> None:
        self.incarnation = -1
        self.present = False
        self.blame = 0  # for its deaths since its last message
        self.deaths = 0
        self.due: float | None = None  # when it is to be started anew, if it is not alive
        self.gone = False  # given up for good
        self.preempt = False  # whether what the worker may still be doing is to be dropped
        self.clock = 0.0  # what its clock shows more than the driver's
        self.collects: list[Any] = []
        self.forget()

    def forget(self) -> None:
        """It has nothing to do."""
        self.task = NO_TASK
        self.times = 0.0, 0.0, 0.0  # start, delay before, delay each
        self.chunks: Task = ()
        self.body = b"[]"
        self.positions: list[int] = []
        self.collects = []


P = TypeVar("P", bound=WorkerHandle)


class Remote(Cluster, Generic[P]):
    """Workers that run by themselves; the base of the clusters on the wall clock.

    A worker that dies is started anew: at once, and after a while that doubles each time it has died without a message
    in between. ``patience``: with so much blame for such deaths it is given up, after 5 crashes in a row, or 20 ends
    that came from outside, as when machines are taken away. No number of deaths with messages in between is too many.
    """

    patience = 20

    def __init__(
        self,
        workers: int,
        handles: list[P],
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
    ) -> None:
        super().__init__(workers, delays=delays, seed=seed, byzantine=byzantine, communication=communication)
        self._handles = handles
        self._news: deque[Notice | Died | ProjectMessage] = deque()  # taken in when the driver comes to it
        self._alarms: dict[str, float] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._asked: dict[tuple[int, int], RequestMessage] = {}  # requests that have not been answered
        self._missing: dict[int, set[int]] = {}  # chunks of a live task that have neither arrived nor failed
        self._arrived: dict[tuple[int, int], Message] = {}
        self._newest: dict[str, int] = {}
        self._bodies: dict[Task, bytes] = {}
        self._readers = Readers()
        self._start = time.monotonic()
        self._taken = False
        self._compared: dict[tuple[Any, ...], tuple[int, int]] = {}  # who computed which partition, and its mark

    # --------------------------------------------------------------------------------------- what a cluster implements

    @abstractmethod
    def _poll(self, timeout: float) -> None:
        """Wait for news and append it; what the driver has not been told of has not happened, so it is not acted on."""

    @abstractmethod
    def _send_orders(self, worker: int) -> None:
        """Tell a worker its newest orders, if it is present."""

    @abstractmethod
    def _spawn(self, worker: int) -> None:
        """Begin a new life of a worker, which will say that it is ready."""

    @abstractmethod
    def _place(self, slot: str, version: int) -> int:
        """Where workers find a model version."""

    @abstractmethod
    def _locate(self, key: tuple[int, int], message: Message) -> tuple[int, int]:
        """Where workers find another's message; raises :class:`~anyk.errors.RunFailed` where they no longer can."""

    @abstractmethod
    def _contents(self, notice: Notice, length: int, dtype: np.dtype[Any]) -> tuple[int, NDArray[Any] | None]:
        """The length of what was sent, and the array, if it is the message announced and has the length expected."""

    @abstractmethod
    def _keep_message(self, notice: Notice, ids: tuple[int, ...], vector: Vector) -> Message:
        """Keep a message."""

    @abstractmethod
    def _free_buffer(self, worker: int, buffer: Any) -> None:
        """Nobody needs any more what lies there."""

    # ------------------------------------------------------------------------------------------- life

    def _prepare_run(
        self, layout: Layout, partitions: Partitions | None, local: Local | None
    ) -> tuple[Partitions, RunSetup]:
        """How every :meth:`open` begins; returns the partitions, and what all workers need to know of the run."""
        if partitions is None:
            raise BadInput(f"cluster '{self.name}' needs a problem to work on; for timing alone use 'simulated'")
        if self._taken:
            raise BadInput("this cluster is in use already; make one for each run")
        self._taken = True
        self._messages = Messages(partitions, layout.blocks, self.seed)
        self._slots = layout.slots
        self._dtype = self._messages.dtype
        self.injection.start(layout, self._messages)
        return partitions, RunSetup(layout.blocks, self.byzantine, self.seed, local)

    def _await_workers(self, within: float) -> tuple[int, ...]:
        """Wait for those that have been spawned to say that they are ready; the run's clock starts then."""
        deadline = time.monotonic() + within
        while not all(handle.present for handle in self._handles):
            self._poll(min(0.5, self._restart_due()))
            while self._news:
                event = self._interpret(self._news.popleft())
                if isinstance(event, Lost) and event.gone:
                    raise RunFailed(f"worker {event.worker} did not start: {event.reason}")
            if time.monotonic() > deadline:
                late = [i for i, handle in enumerate(self._handles) if not handle.present]
                raise RunFailed(f"workers {late} did not load their partitions within {within:.0f} s")
        self._messages.add_up([])
        self._start = time.monotonic()
        return tuple(range(self.workers))

    def now(self) -> float:
        """See :meth:`Cluster.now`."""
        return time.monotonic() - self._start

    def state(self) -> dict[str, Any]:
        """See :meth:`Cluster.state`."""
        live = [
            (task, entry._replace(started=entry.started - self._start), sorted(self._missing[task]))
            for task, entry in self._in_flight.items()
        ]
        projections = [news for news in self._news if isinstance(news, ProjectMessage)]
        asked = list(self._asked.values())
        return super().state() | {
            "live": live,
            "alarms": dict(self._alarms),
            "projections": projections,
            "asked": asked,
        }

    def restore(self, time_: float, state: dict[str, Any]) -> None:
        """See :meth:`Cluster.restore`; tasks in flight start their delays anew from where the clock was."""
        super().restore(time_, state)
        self._start = time.monotonic() - time_
        self._alarms |= state["alarms"]
        self._news.extend(ProjectMessage(*measure) for measure in state["projections"])
        for task, plain, missing in state["live"]:
            entry = InFlight.from_plain(plain)
            self._assign(task, entry._replace(started=entry.started + self._start))
            self._missing[task] = set(missing)
        for plain in state["asked"]:
            self._ask(RequestMessage.from_plain(plain))
        for worker in range(self.workers):
            self._send_orders(worker)

    # ------------------------------------------------------------------------------------------- messages

    def message(self, task: int, chunk: int) -> Vector:
        """See :meth:`Cluster.message`."""
        return self._arrived[task, chunk].vector

    def combine(self, messages: Sequence[tuple[int, int]], weights: Sequence[Any]) -> NDArray[np.float64]:
        """See :meth:`Cluster.combine`."""
        found = [self._arrived[key] for key in messages]
        return self._messages.add_up([(m.ids, m.vector, weight) for m, weight in zip(found, weights, strict=True)])

    def free(self, task: int, chunk: int) -> None:
        """See :meth:`Cluster.free`."""
        self._readers.free(task, chunk, self._drop)

    def vectors(self) -> dict[str, Vector]:
        """See :meth:`Cluster.vectors`."""
        return self._readers.vectors(self.message)

    def take_back(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:
        """See :meth:`Cluster.take_back`."""
        self._readers.take_back(vectors, workers, self.hold)

    def _drop(self, task: int, chunk: int) -> None:
        message = self._arrived.pop((task, chunk), None)
        if message is not None and message.buffer is not None:
            self._free_buffer(message.worker, message.buffer)

    # ------------------------------------------------------------------------------------------- commands

    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """See :meth:`Cluster.execute`; a worker is sent one order, the newest."""
        touched: dict[int, None] = {}
        for order in orders:
            if isinstance(order, Dispatch):
                now = time.monotonic()
                for task, (worker, chunks) in enumerate(zip(order.workers, order.chunks, strict=True), order.task):
                    versions = tuple([self._newest[chunk.slot] for chunk in chunks])
                    number = versions[0] if order.round is None else order.round
                    self._assign(
                        task,
                        InFlight(
                            worker,
                            chunks,
                            versions,
                            now,
                            *self.injection.draw(task, worker, chunks, number, self.now()),
                        ),
                    )
                    self._send_orders(worker)  # at once: it can begin while the others are written to
                    touched.pop(worker, None)
            elif isinstance(order, Cancel):
                if order.mode == "preempt":
                    self.injection.cancel(order.tasks, self.now())
                for task in order.tasks:
                    entry = self._in_flight.pop(task, None)
                    self._missing.pop(task, None)
                    if entry is None:
                        continue
                    self._readers.end(entry.chunks, self._drop)
                    if self._asked:
                        self._asked = {key: ask for key, ask in self._asked.items() if key[0] != task}
                    handle = self._handles[entry.worker]
                    handle.preempt = order.mode == "preempt"
                    if handle.task == task:
                        handle.forget()
                        if handle.preempt:
                            touched[entry.worker] = None
            elif isinstance(order, RequestMessage):
                if self._ask(order):
                    touched[order.worker] = None
            elif isinstance(order, ProjectMessage):
                self._news.append(order)
            elif order.time is None:
                self._alarms.pop(order.name, None)
            else:
                self._alarms[order.name] = order.time
        for worker in touched:
            self._send_orders(worker)
        return ()

    def _ask(self, order: RequestMessage) -> bool:
        """Have a worker make a message; False when it has nothing to make it of any more."""
        if order.task not in self._in_flight:
            return False
        gathered = []
        for key, weight in zip(order.messages, order.weights, strict=True):
            message = self._arrived[key]
            gathered.append([*self._locate(key, message), message.vector.size, message.ids, weight])
        self._handles[order.worker].collects.append(
            [order.task, order.chunk, order.partitions, order.coefficients, gathered]
        )
        self._asked[order.task, order.chunk] = order
        return True

    def _ids(self, entry: InFlight, task: int, chunk: int) -> tuple[int, ...]:
        """The partitions that a message covers."""
        order = self._asked.get((task, chunk))
        if order is None:
            return entry.chunks[chunk].covers
        inside = [j for key in order.messages for j in self._arrived[key].ids]
        return tuple(dict.fromkeys([*order.partitions, *inside]))

    def _assign(self, task: int, entry: InFlight) -> None:
        """Make a task the newest of its worker; it is sent by :meth:`_send_orders`."""
        self._in_flight[task] = entry
        self._readers.begin(entry.chunks)
        self._missing[task] = set(range(len(entry.chunks)))
        handle = self._handles[entry.worker]
        chunks = entry.chunks
        if chunks is not handle.chunks:
            body = self._bodies.get(chunks)
            if body is None and chunks[0].steps:  # every task its own: not worth remembering
                body = pack_work(tuple([self._placed(chunk) for chunk in chunks]))
            elif body is None:
                if len(self._bodies) >= _BODIES:
                    self._bodies.clear()
                body = self._bodies[chunks] = pack_work(chunks)
            handle.chunks, handle.body = chunks, body
        handle.task, handle.times = task, (entry.started, entry.before, entry.each)
        handle.positions = [
            self._place(chunk.slot, version) for chunk, version in zip(chunks, entry.versions, strict=True)
        ]
        handle.positions += entry.versions

    def _placed(self, chunk: Chunk) -> Chunk:
        """A chunk that says where the messages it begins from lie, in place of their tasks."""
        places = []
        for worker, task, index, weight in chunk.mix:
            first, second = self._locate((task, index), self._arrived[task, index])
            places.append((worker, first, second, weight))
        return chunk._replace(mix=tuple(places))

    def _orders(self, handle: P) -> bytes:
        """What a worker is told, as bytes."""
        flags = PREEMPT * handle.preempt | UNINTERRUPTIBLE * self.delays.uninterruptible
        start, before, each = handle.times
        return pack_orders(
            handle.task, flags, (start + handle.clock, before, each), handle.body, handle.positions, handle.collects
        )

    # ------------------------------------------------------------------------------------------- events

    def events(self) -> Iterator[Event | Cut | None]:
        """See :meth:`Cluster.events`."""
        while True:
            while self._news:
                event = self._interpret(self._news.popleft())
                if event is not None:
                    yield event
            timeout = min(_IDLE, self._restart_due())
            if self._alarms:
                name = min(self._alarms, key=lambda key: (self._alarms[key], key))
                timeout = min(timeout, self._alarms[name] - self.now())
                if timeout <= 0:
                    del self._alarms[name]
                    yield Alarm(self.now(), name)
                    continue
            self._poll(timeout)
            if not self._news:
                yield None

    def _interpret(self, news: Notice | Died | ProjectMessage) -> Event | Cut | None:
        """What a piece of news means, and what it changes here; None where it is out of date."""
        if isinstance(news, ProjectMessage):
            worker, task, chunk, key = news
            message = self._arrived.get((task, chunk))
            if message is None:
                return None
            return MessageProjected(
                self.now(), worker, task, chunk, self._messages.project(message.ids, message.vector, key)
            )
        handle = self._handles[news.worker]
        if news.incarnation != handle.incarnation or handle.gone or handle.due is not None:
            return None
        if isinstance(news, Died):
            return self._on_death(news)
        kind, worker, task, chunk = news.kind, news.worker, news.task, news.chunk
        now = news.at - self._start
        if kind == REPLY:
            return self._receive(now, news)
        if kind == STOPPED:
            return Cut(now, worker, task, chunk, news.done, None)
        if kind == PROGRESS:
            handle.blame = handle.deaths = 0
            return Progress(now, worker, task, chunk, news.done) if task in self._in_flight else None
        if kind == COMPARED:
            self._compare(news)
            return None
        if kind == FAILED:
            self._settle(task, chunk)
            return Failed(now, worker, task, chunk, news.text)
        if news.done:  # READY, but it could not load
            raise RunFailed(f"worker {worker} could not load its partitions: {news.text}")
        handle.present = True
        self._send_orders(worker)
        return Joined(now, worker)

    def _compare(self, notice: Notice) -> None:
        """Raise :class:`~anyk.errors.RunFailed` where two workers have computed different gradients of a partition."""
        entry = self._in_flight.get(notice.task)
        if entry is None:
            return  # cancelled: its model may have been overwritten under it
        chunk, version = entry.chunks[notice.chunk], entry.versions[notice.chunk]
        key = chunk.slot, version, notice.done, chunk.batch, chunk.repeat
        other, bits = self._compared.setdefault(key, (notice.worker, notice.bits))
        apart = marks_apart(bits, notice.bits)
        if other != notice.worker and not apart <= max(self._messages.tolerance, SINGLE):
            raise RunFailed(differing(other, notice.worker, notice.done, version, apart))
        if len(self._compared) > _COMPARED:
            del self._compared[next(iter(self._compared))]

    def _settle(self, task: int, chunk: int) -> None:
        """A chunk has arrived or failed; a task of which none is missing is live no more."""
        missing = self._missing.get(task)
        self._asked.pop((task, chunk), None)
        if missing is not None:
            missing.discard(chunk)
            if not missing:
                self._readers.end(self._in_flight.pop(task).chunks, self._drop)
                del self._missing[task]

    def _receive(self, now: float, notice: Notice) -> Reply | Failed | None:
        """A message is in: check that it is what was announced."""
        worker, task, chunk, buffer, start = notice.worker, notice.task, notice.chunk, notice.buffer, self._start
        times = notice.started - start, notice.computing - start, notice.computed - start, notice.sent - start
        timing = Timing(*times, notice.bits)
        handle = self._handles[worker]
        handle.blame = handle.deaths = 0
        entry = self._in_flight.get(task)
        if entry is None or chunk not in self._missing[task]:
            self._free_buffer(worker, buffer)
            # of a cancelled task: nobody will use it, but the ledger wants to know; of a resumed one: it is in already
            return Reply(now, worker, task, chunk, timing) if entry is None else None
        ids, work = self._ids(entry, task, chunk), entry.chunks[chunk]
        size, dtype = self._messages.length(ids), self._dtype
        if work.compress:
            expected = scheme(work.compress).size(size, dtype.itemsize)
            length, found = self._contents(notice, expected, np.dtype(np.uint8))
        else:
            expected = size
            length, found = self._contents(notice, size, dtype)
        if found is None:
            self._free_buffer(worker, buffer)
            self._settle(task, chunk)
            return Failed(now, worker, task, chunk, f"wrong length ({length} instead of {expected})")
        if work.compress:
            version = entry.versions[chunk]
            vector = unpack(work, version, self.seed, found, size, dtype, self.model(work.slot, version))
            self._free_buffer(worker, buffer)
            self._arrived[task, chunk] = Message(ids, vector, worker, None)
        else:
            found.flags.writeable = False
            self._arrived[task, chunk] = self._keep_message(notice, ids, found)
        self._settle(task, chunk)
        if handle.collects:
            handle.collects = [ask for ask in handle.collects if ask[0] != task or ask[1] != chunk]
        return Reply(now, worker, task, chunk, timing)

    def _on_death(self, died: Died) -> Lost:
        """A worker is dead: what it was doing is void, what it sent is not; another takes its place."""
        worker, _, reason, blame = died
        handle = self._handles[worker]
        handle.blame += blame
        handle.deaths += blame > 0
        gone = handle.blame >= self.patience
        if gone:
            reason += f", {handle.deaths} times in a row" if handle.deaths > 1 else ""
            self.give_up(worker)
        else:
            self._forget(worker)
            wait = _PAUSE * 2.0 ** (handle.deaths - 2) if handle.deaths > 1 else 0.0
            handle.due = time.monotonic() + min(wait, _LONGEST_PAUSE)
            self._restart_due()
        return Lost(self.now(), worker, reason, gone)

    def give_up(self, worker: int) -> None:
        """See :meth:`Cluster.give_up`."""
        self._forget(worker)
        self._handles[worker].gone, self._handles[worker].due = True, None

    def _forget(self, worker: int) -> None:
        """What a worker was doing is void."""
        handle = self._handles[worker]
        handle.present = False
        for task in [task for task, entry in self._in_flight.items() if entry.worker == worker]:
            self._readers.end(self._in_flight.pop(task).chunks, self._drop)
            del self._missing[task]
            self._asked = {key: ask for key, ask in self._asked.items() if key[0] != task}
        handle.forget()

    def _restart_due(self) -> float:
        """Start the workers anew whose time has come; returns the seconds until the next one's."""
        now, soonest = time.monotonic(), float("inf")
        for worker, handle in enumerate(self._handles):
            if handle.due is not None:
                if handle.due <= now:
                    handle.due = None
                    self._spawn(worker)
                else:
                    soonest = min(soonest, handle.due - now)
        return soonest
