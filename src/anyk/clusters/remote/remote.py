"""The driver's side of clusters on the wall clock, whose workers run independently.

It records tasks in flight, messages that have arrived and alarms. Each cluster implements how orders reach its workers
and how reports return.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput
from anyk.clusters.alarms import Alarms
from anyk.clusters.contract import Order
from anyk.clusters.injection import ClusterOptions, InFlight
from anyk.clusters.local import Local
from anyk.clusters.messages import Messages
from anyk.clusters.packing import scheme, unpack
from anyk.clusters.remote.channel import COMPARED, EVALUATED, FAILED, LEAVING, PROGRESS, READY, REPLY, STOPPED
from anyk.clusters.remote.handles import Departure, Died, Notice
from anyk.clusters.remote.losses import Losses
from anyk.clusters.remote.plausible import check_report
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.remote.tasks import Comparisons, OpenTasks
from anyk.clusters.remote.worker import RunSetup
from anyk.clusters.remote.workforce import H, News, Workforce
from anyk.clusters.store import Elsewhere, Message
from anyk.problems.base import Partitions
from anyk.protocol import (
    Alarm,
    Cancel,
    Cut,
    Dispatch,
    Event,
    Failed,
    Layout,
    MessageProjected,
    Progress,
    ProjectMessage,
    Reply,
    RequestMessage,
    SetAlarm,
    Timing,
)

_IDLE = 0.1  # seconds without events after which the driver gets a turn


class Remote(Workforce[H]):
    """The base class of clusters on the wall clock: it carries out commands, and turns reports into events."""

    store: RemoteStore

    def __init__(self, options: ClusterOptions, handle: type[H]) -> None:
        super().__init__(options, handle)
        self._alarms = Alarms()
        self._newest: dict[str, int] = {}
        self._touched: dict[int, None] = {}  # workers whose changed orders have not been sent, in order
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

    def publish(self, slot: str, version: int, w: Vector | Elsewhere | None) -> None:
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
            before, per_partition = self.injection.draw(task, worker, chunks, number, self.now())
            self._tasks.give(task, InFlight(worker, chunks, versions, started=now, before=before, each=per_partition))
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

    # ------------------------------------------------------------------------------------------- events

    def events(self) -> Iterator[Event | Cut | None]:
        while True:
            while self.news:
                news = self.news.popleft()
                event = self._interpret(news)
                evaluated = isinstance(news, Notice) and news.report.kind == EVALUATED
                del news  # its vector is freed as soon as nothing else needs it
                if event is not None or evaluated:
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

    def _interpret(self, news: News) -> Event | Cut | None:
        """Process a notice; return its event, None if it is out of date."""
        if not isinstance(news, ProjectMessage):
            handle = self.handles[news.worker]
            if news.incarnation != handle.incarnation or handle.gone or handle.due is not None:
                return None
        if isinstance(news, Notice):
            entry = self._tasks.in_flight.get(news.report.task)
            check_report(news, entry, present=self.handles[news.worker].present)
        return self._news_types[type(news)](news)

    def _project(self, order: ProjectMessage) -> MessageProjected | None:
        value = self.store.project(order.task, order.chunk, order.key)
        return None if value is None else MessageProjected(self.now(), order.worker, order.task, order.chunk, value)

    def _on_stopped(self, now: float, notice: Notice) -> Cut:
        report = notice.report
        return Cut(now, notice.worker, report.task, report.chunk, done=report.done, due=None)

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
            base = store.model(work.slot, version)
            vector = unpack(work, version, self.seed, vector, length=size, dtype=dtype, base=base)
            store.free_buffer(worker, buffer)
            store.arrived[task, chunk] = Message(ids, vector, worker)
        else:
            store.arrived[task, chunk] = store.keep(notice, ids, vector)
        self._tasks.settle(task, chunk)
        if self._leaving:
            self._end_leaving()  # before the strategy gives it another task
        if handle.requests:
            handle.requests = [ask for ask in handle.requests if ask[0] != task or ask[1] != chunk]
        return Reply(now, worker, task, chunk, timing)
