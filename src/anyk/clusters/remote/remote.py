"""The driver's side of clusters on the wall clock, whose workers run independently.

It records tasks in flight, messages that have arrived, alarms and deaths. Each cluster implements how orders reach its
workers and how reports return.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from anyk.arrays import Vector
from anyk.clusters.alarms import Alarms
from anyk.clusters.contract import Cluster, Order
from anyk.clusters.injection import ClusterOptions, InFlight
from anyk.clusters.local import Local
from anyk.clusters.messages import Messages
from anyk.clusters.packing import scheme, unpack
from anyk.clusters.remote.handles import Departure, Died, Notice, WorkerHandle, is_stopped
from anyk.clusters.remote.losses import Losses
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.remote.tasks import Comparisons, OpenTasks
from anyk.clusters.remote.wire import refuse
from anyk.clusters.remote.worker import COMPARED, EVALUATED, FAILED, LEAVING, PROGRESS, READY, REPLY, STOPPED, RunSetup
from anyk.clusters.store import Message
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Partitions
from anyk.protocol import (
    Alarm,
    Cancel,
    Cut,
    Dispatch,
    Event,
    Failed,
    Joined,
    Layout,
    Leaving,
    Lost,
    MessageProjected,
    Progress,
    ProjectMessage,
    Reply,
    RequestMessage,
    SetAlarm,
    Timing,
)

_IDLE = 0.1  # seconds without events after which the driver gets a turn
_OTHERS = 2.0  # seconds that a fleet which may be smaller waits for another worker before it starts
NOTICE = 30.0  # seconds after which a worker that was asked to end is ended, whatever it does

_ABOUT_TASKS = (REPLY, PROGRESS, STOPPED, FAILED, COMPARED)  # kinds of reports
_FOREVER = 1e12  # seconds
_AWAY = float("inf")  # a worker that is due then stays away until it is called back

H = TypeVar("H", bound=WorkerHandle)


class Remote(Cluster, Generic[H]):
    """The base class of clusters on the wall clock. ``handle`` constructs a worker's handle.

    A worker that dies is restarted: immediately, or, if it has sent no message since its last death, after a pause that
    doubles each time. ``patience``: the total blame for deaths without a message in between at which a worker is
    abandoned, after 5 crashes in a row or 20 ends from outside, as when machines are taken away.
    """

    patience = 20
    patience_at_start = 300.0  # seconds that workers may take to start and to load their partitions
    store: RemoteStore

    def __init__(self, options: ClusterOptions, handle: type[H]) -> None:
        super().__init__(options)
        self._handle = handle
        self.handles = [handle() for _ in range(self.workers)]
        self.news: deque[Notice | Died | Departure | ProjectMessage] = deque()  # not yet processed
        self.pids: dict[int, int] = {}  # process numbers of workers, if known
        self._alarms = Alarms()
        self._newest: dict[str, int] = {}
        self._touched: dict[int, None] = {}  # workers whose changed orders have not been sent, in order
        self._leaving: dict[int, float] = {}  # time on the run's clock at which a worker is ended, by worker
        self._drained: set[int] = set()  # workers that are to stay away
        self._start = time.monotonic()
        self._opened = False
        self._commands: dict[type, Callable[[Any], None]] = {
            Dispatch: self._dispatch,
            Cancel: self._cancel,
            RequestMessage: self._request,
            ProjectMessage: self.news.append,
            SetAlarm: self._alarms.set,
        }
        self._news_types: dict[type, Callable[[Any], Event | Cut | None]] = {
            Departure: self._on_departure,
            Notice: lambda notice: self._kinds[notice.report.kind](notice.at - self._start, notice),
            Died: self.on_death,
            ProjectMessage: self._project,
        }
        self._kinds: dict[int, Callable[[float, Notice], Event | Cut | None]] = {
            READY: self._on_ready,
            REPLY: self._on_reply,
            PROGRESS: self._on_progress,
            STOPPED: self._on_stopped,
            FAILED: self._on_failed,
            COMPARED: self._on_compared,
            EVALUATED: lambda _, notice: self.losses.take_in(notice),
            LEAVING: self._on_leaving,
        }

    # --------------------------------------------------------------------------------------- what a cluster implements

    @abstractmethod
    def ship(self, partitions: Partitions) -> None:
        """Prepare the data for a run's workers: ``setup``, their ``assignment`` and the assigned partitions."""

    @abstractmethod
    def spawn(self, worker: int) -> None:
        """Start or restart a worker, which must report that it is ready; networked: call ``renew(worker)`` first."""

    @abstractmethod
    def send_orders(self, worker: int) -> None:
        """Send a worker its newest orders, if it is present."""

    @abstractmethod
    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for news; append a ``Notice`` for each report, and ``Died``, to ``news``.

        It may also append ``Departure`` if it learns that a worker's machine is going to be taken away.
        """

    def end_worker(self, worker: int) -> None:
        """End a worker that is leaving; its death is reported as any other. Optional: needed to drain workers."""
        raise NotImplementedError(f"worker {worker} cannot be ended")

    # ------------------------------------------------------------------------------------------- life

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        if partitions is None:
            raise BadInput(f"cluster '{self.name}' needs a problem to work on; for timing alone use 'simulated'")
        if self._opened:
            raise BadInput("this cluster is in use by another run that has not ended; make a cluster for each of them")
        self.handles = [self._handle() for _ in range(self.workers)]
        for earlier in (self.news, self._alarms, self._newest, self._leaving, self._drained):
            earlier.clear()
        self.fewest = layout.fewest or self.workers
        messages = Messages(partitions, layout.blocks, self.seed, together=layout.together, epochs=layout.epochs)
        self.injection.start(layout, messages)
        self.store = self.new_store(messages, layout)
        self._tasks = OpenTasks(self.handles, self.store, uninterruptible=self.delays.uninterruptible)
        self._comparisons = Comparisons(messages.tolerance)
        self.losses = Losses(self.handles, self.store, partitions.sizes, layout.assignment, self.send_orders)
        self._opened = True
        self.setup = RunSetup(
            blocks=layout.blocks,
            byzantine=self.byzantine,
            seed=self.seed,
            local=local,
            together=layout.together,
            epochs=layout.epochs,
            spoiled=self.spoiled,
        )
        self.assignment = layout.assignment
        try:
            self.ship(partitions)
            return self.start_workers()
        except BaseException:
            self.close()
            raise

    def new_store(self, messages: Messages, layout: Layout) -> RemoteStore:
        """Return the store of a run's vectors."""
        return RemoteStore(messages)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._opened = False  # another run may use the cluster

    def start_workers(self) -> tuple[int, ...]:
        """Spawn the workers, wait until they are ready, and start the run's clock; some may join later."""
        start = last = time.monotonic()
        for worker in range(self.workers):
            self.spawn(worker)
        while (count := sum(handle.present for handle in self.handles)) < self.workers:
            if count >= self.fewest and time.monotonic() > last + _OTHERS:
                break
            self.poll(min(0.5, self._restart_due()))
            while self.news:
                event = self._interpret(self.news.popleft())
                if isinstance(event, Joined):
                    last = time.monotonic()
                if isinstance(event, Lost) and event.gone:
                    raise RunFailed(f"worker {event.worker} did not start: {event.reason}")
            if time.monotonic() > start + self.patience_at_start:
                late = [i for i, handle in enumerate(self.handles) if not handle.present]
                stopped = [(i, pid) for i, pid in self.pids.items() if i in late and is_stopped(pid)]
                advice = "".join(f"; worker {i} is stopped: kill -CONT {pid}" for i, pid in stopped)
                seconds = f"{self.patience_at_start:.0f} s"
                raise RunFailed(f"workers {late} did not load their partitions within {seconds}{advice}")
        self._start = time.monotonic()
        return tuple(worker for worker, handle in enumerate(self.handles) if handle.present)

    def _restart_due(self) -> float:
        """Restart the workers that are due; return the seconds until the next restart."""
        now, soonest = time.monotonic(), _AWAY
        for worker, handle in enumerate(self.handles):
            if handle.due is not None and handle.due <= now:
                handle.due = None
                self.spawn(worker)
            elif handle.due is not None:
                soonest = min(soonest, handle.due - now)
        return soonest

    def now(self) -> float:
        return time.monotonic() - self._start

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "in_flight": self._tasks.state(self._start),
            "alarms": dict(self._alarms),
            "projections": [news for news in self.news if isinstance(news, ProjectMessage)],
            "requests": list(self.store.requests.values()),
        }

    def restore(self, time_: float, state: dict[str, Any]) -> None:
        super().restore(time_, state)
        self._start = time.monotonic() - time_
        self._alarms |= state["alarms"]
        self.news.extend(ProjectMessage(*plain) for plain in state["projections"])
        self._tasks.restore(state["in_flight"], self._start)  # their delays start again
        for request in map(RequestMessage.from_plain, state["requests"]):
            self._tasks.request(request)
        for worker in range(self.workers):
            self.send_orders(worker)

    def publish(self, slot: str, version: int, w: Vector | None) -> None:
        assert w is not None  # open() requires a problem
        self.store.publish(slot, version, w)
        self._newest[slot] = max(version, self._newest.get(slot, -1))

    # ------------------------------------------------------------------------------------------- commands

    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        for order in orders:
            self._commands[type(order)](order)
        for worker in self._touched:
            self.send_orders(worker)
        self._touched.clear()
        return ()

    def _dispatch(self, order: Dispatch) -> None:
        now = time.monotonic()
        for task, (worker, chunks) in enumerate(zip(order.workers, order.chunks, strict=True), order.task):
            versions = tuple([self._newest[chunk.slot] for chunk in chunks])
            number = versions[0] if order.round is None else order.round
            before, each = self.injection.draw(task, worker, chunks, number, self.now())
            self._tasks.give(task, InFlight(worker, chunks, versions, now, before, each))
            self.send_orders(worker)  # immediately: it can start while orders for others are sent
            self._touched.pop(worker, None)

    def _cancel(self, order: Cancel) -> None:
        preempt = order.mode == "preempt"
        if preempt:
            self.injection.cancel(order.tasks, self.now())
        for task in order.tasks:
            worker = self._tasks.cancel(task, preempt=preempt)
            if worker is not None:
                self._touched[worker] = None

    def _request(self, order: RequestMessage) -> None:
        if self._tasks.request(order):
            self._touched[order.worker] = None

    def abandon(self, worker: int) -> None:
        self._tasks.void(worker)
        self.handles[worker].gone, self.handles[worker].due = True, None
        self.losses.died(worker)

    def drain(self, workers: Collection[int]) -> None:
        if type(self).end_worker is Remote.end_worker:
            super().drain(workers)  # which refuses
        before, self._drained = self._drained, set(workers)
        for worker, handle in enumerate(self.handles):
            if worker in self._drained - before:
                self.news.append(Departure(worker, handle.incarnation, NOTICE))
            elif worker in before - self._drained and handle.due == _AWAY:
                handle.due = time.monotonic()

    def _end_leaving(self) -> None:
        """End the workers that are leaving and have no task, or no time left."""
        busy = {entry.worker for entry in self._tasks.in_flight.values()}
        for worker, deadline in self._leaving.items():
            if worker not in busy or self.now() > deadline:
                self.end_worker(worker)

    # ------------------------------------------------------------------------------------------- events

    def events(self) -> Iterator[Event | Cut | None]:
        while True:
            while self.news:
                news = self.news.popleft()
                event = self._interpret(news)
                if event is not None or (isinstance(news, Notice) and news.report.kind == EVALUATED):
                    yield event
            self.losses.go_on()
            if self._leaving:
                self._end_leaving()
            due, name = self._alarms.next()
            timeout = min(_IDLE, self._restart_due(), due - self.now())
            if timeout <= 0:
                del self._alarms[name]
                yield Alarm(self.now(), name)
                continue
            self.poll(timeout)
            if not self.news:
                yield None

    def _interpret(self, news: Notice | Died | Departure | ProjectMessage) -> Event | Cut | None:
        """Process a notice; return its event, None if it is out of date."""
        if not isinstance(news, ProjectMessage):
            handle = self.handles[news.worker]
            if news.incarnation != handle.incarnation or handle.gone or handle.due is not None:
                return None
        if isinstance(news, Notice):
            self._check(news)
        return self._news_types[type(news)](news)

    def _check(self, notice: Notice) -> None:
        """Raise :class:`~anyk.errors.RunFailed` for a report that no worker sends, damaged or made up."""
        worker, report = notice.worker, notice.report
        kind, task, chunk, done, *times, bits, _ = report
        if kind not in self._kinds:
            refuse(worker, f"a report of kind {kind}")
        numbers_fit = all(-1 <= number < 1 << 62 for number in (task, chunk, done)) and -(1 << 63) <= bits < 1 << 63
        if not (numbers_fit and all(abs(time_) < _FOREVER for time_ in times)):  # also NaN is no time
            refuse(worker, "numbers out of range")
        if kind == READY and self.handles[worker].present:
            refuse(worker, "it is ready a second time")
        entry = self._tasks.in_flight.get(task) if kind in _ABOUT_TASKS else None
        if entry is not None and (entry.worker != worker or not 0 <= chunk < len(entry.chunks)):
            refuse(worker, f"a report about chunk {chunk} of task {task}, which it was not given")
        empty = notice.buffer is None or (isinstance(notice.buffer, int) and notice.buffer < 0)
        if (kind == REPLY) == empty:
            refuse(worker, "a message without its numbers, or numbers without a message")

    def _project(self, order: ProjectMessage) -> MessageProjected | None:
        value = self.store.project(order.task, order.chunk, order.key)
        return None if value is None else MessageProjected(self.now(), order.worker, order.task, order.chunk, value)

    def _on_ready(self, now: float, notice: Notice) -> Joined:
        worker = notice.worker
        if notice.report.done:
            raise RunFailed(f"worker {worker} could not load its partitions: {notice.report.text}")
        self.handles[worker].present = True
        self.send_orders(worker)
        if worker in self._drained:
            self.news.append(Departure(worker, notice.incarnation, NOTICE))
        return Joined(now, worker)

    def _on_leaving(self, now: float, notice: Notice) -> Leaving | None:
        if not self.handles[notice.worker].present:
            self.end_worker(notice.worker)  # it is still loading its partitions
        return self._on_departure(Departure(notice.worker, notice.incarnation, NOTICE))

    def _on_departure(self, departure: Departure) -> Leaving | None:
        worker = departure.worker
        if worker in self._leaving or not self.handles[worker].present:
            return None
        deadline = self._leaving[worker] = self.now() + departure.seconds
        return Leaving(self.now(), worker, deadline)

    def _on_stopped(self, now: float, notice: Notice) -> Cut:
        return Cut(now, notice.worker, notice.report.task, notice.report.chunk, notice.report.done, None)

    def _on_progress(self, now: float, notice: Notice) -> Progress | None:
        report = notice.report
        self.handles[notice.worker].sent_something()
        if report.task not in self._tasks.in_flight:
            return None
        return Progress(now, notice.worker, report.task, report.chunk, report.done)

    def _on_compared(self, now: float, notice: Notice) -> None:
        entry = self._tasks.in_flight.get(notice.report.task)
        if entry is not None:  # a cancelled task's model may have been overwritten
            self._comparisons.check(notice, entry)

    def _on_failed(self, now: float, notice: Notice) -> Failed:
        report = notice.report
        self._tasks.settle(report.task, report.chunk)
        return Failed(now, notice.worker, report.task, report.chunk, report.text)

    def _on_reply(self, now: float, notice: Notice) -> Reply | Failed | None:
        """Store a message that has arrived, if it is as announced; return its event."""
        _, worker, _, buffer, (_, task, chunk, _, started, computing, computed, sent, bits, _) = notice
        start, store, handle = self._start, self.store, self.handles[worker]
        timing = Timing(started - start, computing - start, computed - start, sent - start, bits)
        handle.sent_something()
        entry = self._tasks.in_flight.get(task)
        if entry is None or chunk not in self._tasks.missing[task]:
            store.free_buffer(worker, buffer)
            # a cancelled task's message is only counted; a resumed task's message may be a duplicate
            return Reply(now, worker, task, chunk, timing) if entry is None else None
        work = entry.chunks[chunk]
        ids = store.covered(task, chunk, work)
        size, dtype = store.messages.length(ids), store.messages.dtype
        expected = scheme(work.compress).size(size, dtype.itemsize) if work.compress else size
        length, vector = store.contents(notice, expected, np.dtype(np.uint8) if work.compress else dtype)
        if vector is None:
            self._tasks.settle(task, chunk)
            store.free_buffer(worker, buffer)
            return Failed(now, worker, task, chunk, f"wrong length ({length} instead of {expected})")
        if work.compress:
            version = entry.versions[chunk]
            vector = unpack(work, version, self.seed, vector, size, dtype, store.model(work.slot, version))
            store.free_buffer(worker, buffer)
            store.arrived[task, chunk] = Message(ids, vector, worker)
        else:
            vector.flags.writeable = False
            store.arrived[task, chunk] = store.keep(notice, ids, vector)
        self._tasks.settle(task, chunk)
        if self._leaving:
            self._end_leaving()  # before the strategy gives it another task
        if handle.requests:
            handle.requests = [ask for ask in handle.requests if ask[0] != task or ask[1] != chunk]
        return Reply(now, worker, task, chunk, timing)

    def on_death(self, died: Died) -> Lost:
        """End a dead worker's tasks, except for messages already sent; schedule its restart, or abandon it."""
        worker, _, reason, blame = died
        handle = self.handles[worker]
        if self._leaving.pop(worker, None) is not None:
            reason, blame = "left after notice", 0
        gone = handle.died(blame, self.patience)
        if gone:
            reason += f", {handle.deaths} times in a row" if handle.deaths > 1 else ""
            self.abandon(worker)
        else:
            self._tasks.void(worker)
            if worker in self._drained:
                handle.due = _AWAY
            self._restart_due()
        self.losses.died(worker)
        return Lost(self.now(), worker, reason, gone)
