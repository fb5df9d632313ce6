"""The driver's side of workers that run by themselves, on the wall clock: the same wherever they run.

Tasks in flight, messages that have arrived, alarms and deaths are kept here; how orders reach workers and news comes
back is a cluster's own.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.arrivals import Message
from anyk.clusters.contract import Cluster, Order
from anyk.clusters.injection import InFlight
from anyk.clusters.local import Local
from anyk.clusters.messages import WHOLE, Messages
from anyk.clusters.packing import scheme, unpack
from anyk.clusters.remote.comparing import Comparisons
from anyk.clusters.remote.handles import Died, Notice, WorkerHandle, restart_due
from anyk.clusters.remote.losses import Losses
from anyk.clusters.remote.payload import RemotePayload
from anyk.clusters.remote.tasks import Tasks
from anyk.clusters.remote.worker import COMPARED, EVALUATED, FAILED, PROGRESS, REPLY, STOPPED, RunSetup
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Partitions, Vector
from anyk.protocol import (
    Alarm,
    Cancel,
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
    Timing,
)

_IDLE = 0.1  # seconds after which the driver is given a turn though nothing happened

H = TypeVar("H", bound=WorkerHandle)


class Remote(Cluster, Generic[H]):
    """Workers that run by themselves; the base of the clusters on the wall clock. ``handle`` makes a worker's handle.

    A worker that dies is started anew: at once, and after a while that doubles each time it has died without a message
    in between. ``patience``: with so much blame for such deaths it is given up, after 5 crashes in a row, or 20 ends
    that came from outside, as when machines are taken away. No number of deaths with messages in between is too many.
    """

    patience = 20

    def __init__(
        self,
        workers: int,
        handle: type[H],
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
    ) -> None:
        super().__init__(workers, delays=delays, seed=seed, byzantine=byzantine, communication=communication)
        self._handle = handle
        self._handles = [handle() for _ in range(workers)]
        self._news: deque[Notice | Died | ProjectMessage] = deque()  # acted on when the driver comes to it
        self._alarms: dict[str, float] = {}
        self._newest: dict[str, int] = {}
        self._start = time.monotonic()
        self._opened = False

    # ------------------------------------------------------------------------------- what a cluster implements

    @abstractmethod
    def _poll(self, timeout: float) -> None:
        """Wait for news and append it; what the driver has not been told of has not happened, so it is not acted on."""

    @abstractmethod
    def _send_orders(self, worker: int) -> None:
        """Send a worker its newest orders, if it is present."""

    @abstractmethod
    def _spawn(self, worker: int) -> None:
        """Begin a new life of a worker, which will report that it is ready."""

    # ------------------------------------------------------------------------------------------- life

    def _prepare_run(
        self,
        layout: Layout,
        partitions: Partitions | None,
        local: Local | None,
        payload: Callable[[Messages], RemotePayload],
    ) -> tuple[Partitions, RunSetup]:
        """How every :meth:`open` begins; returns the partitions, and what all workers need to know of the run.

        ``payload``: makes what keeps the vectors.
        """
        if partitions is None:
            raise BadInput(f"cluster '{self.name}' needs a problem to work on; for timing alone use 'simulated'")
        if self._opened:
            raise BadInput("this cluster is in use by another run that has not ended; make a cluster for each of them")
        self._handles = [self._handle() for _ in range(self.workers)]
        for known in (self._news, self._alarms, self._newest):
            known.clear()
        messages = Messages(partitions, layout.blocks, self.seed, together=layout.together)
        self.injection.start(layout, messages)
        self._payload = payload(messages)
        self._tasks = Tasks(self._handles, self._payload, uninterruptible=self.delays.uninterruptible)
        self._comparisons = Comparisons(messages.tolerance)
        self.losses = Losses(self._handles, self._payload, partitions.sizes, layout.assignment, self._send_orders)
        self._opened = True
        return partitions, RunSetup(layout.blocks, self.byzantine, self.seed, local, layout.together)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._opened = False  # another run may use it

    def _await_workers(self, within: float) -> tuple[int, ...]:
        """Wait for those that have been spawned to report that they are ready; the run's clock starts then."""
        deadline = time.monotonic() + within
        while not all(handle.present for handle in self._handles):
            self._poll(min(0.5, restart_due(self._handles, self._spawn)))
            while self._news:
                event = self._interpret(self._news.popleft())
                if isinstance(event, Lost) and event.gone:
                    raise RunFailed(f"worker {event.worker} did not start: {event.reason}")
            if time.monotonic() > deadline:
                late = [i for i, handle in enumerate(self._handles) if not handle.present]
                raise RunFailed(f"workers {late} did not load their partitions within {within:.0f} s")
        self._start = time.monotonic()
        return tuple(range(self.workers))

    def now(self) -> float:
        """See :meth:`Cluster.now`."""
        return time.monotonic() - self._start

    def state(self) -> dict[str, Any]:
        """See :meth:`Cluster.state`."""
        return {
            **super().state(),
            "in_flight": self._tasks.state(self._start),
            "alarms": dict(self._alarms),
            "projections": [news for news in self._news if isinstance(news, ProjectMessage)],
            "requests": list(self._payload.requests.values()),
        }

    def restore(self, time_: float, state: dict[str, Any]) -> None:
        """See :meth:`Cluster.restore`; tasks in flight start their delays anew from where the clock was."""
        super().restore(time_, state)
        self._start = time.monotonic() - time_
        self._alarms |= state["alarms"]
        self._news.extend(ProjectMessage(*plain) for plain in state["projections"])
        self._tasks.restore(state["in_flight"], self._start)
        for request in map(RequestMessage.from_plain, state["requests"]):
            self._tasks.request(request)
        for worker in range(self.workers):
            self._send_orders(worker)

    # ------------------------------------------------------------------------------------------- models and messages

    def blank(self, slot: str) -> Vector:
        """See :meth:`Cluster.blank`."""
        return self._payload.blank(slot)

    def publish(self, slot: str, version: int, w: Vector | None) -> None:
        """See :meth:`Cluster.publish`."""
        assert w is not None  # without a problem it is not opened
        self._payload.publish(slot, version, w)
        self._newest[slot] = max(version, self._newest.get(slot, -1))

    def model(self, slot: str, version: int) -> Vector:
        """See :meth:`Cluster.model`."""
        return self._payload.model(slot, version)

    def release(self, slot: str, version: int) -> None:
        """See :meth:`Cluster.release`."""
        self._payload.release(slot, version)

    def message(self, task: int, chunk: int) -> Vector:
        """See :meth:`Cluster.message`."""
        return self._payload.arrived[task, chunk].vector

    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """See :meth:`Cluster.hold`."""
        self._payload.hold(worker, task, chunk, ids, message)

    def combine(
        self, messages: Sequence[tuple[int, int]], weights: Sequence[Any], part: slice = WHOLE
    ) -> NDArray[np.float64]:
        """See :meth:`Cluster.combine`."""
        return self._payload.combine(messages, weights, part)

    def free(self, task: int, chunk: int) -> None:
        """See :meth:`Cluster.free`."""
        self._payload.free(task, chunk)

    def vectors(self) -> dict[str, Vector]:
        """See :meth:`Cluster.vectors`."""
        return self._payload.vectors()

    def take_back(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:
        """See :meth:`Cluster.take_back`."""
        self._payload.take_back(vectors, workers)

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
                    before, each = self.injection.draw(task, worker, chunks, number, self.now())
                    self._tasks.give(task, InFlight(worker, chunks, versions, now, before, each))
                    self._send_orders(worker)  # at once: it can begin while the others are written to
                    touched.pop(worker, None)
            elif isinstance(order, Cancel):
                preempt = order.mode == "preempt"
                if preempt:
                    self.injection.cancel(order.tasks, self.now())
                for task in order.tasks:
                    stopped = self._tasks.cancel(task, preempt=preempt)
                    if stopped is not None:
                        touched[stopped] = None
            elif isinstance(order, RequestMessage):
                if self._tasks.request(order):
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

    def give_up(self, worker: int) -> None:
        """See :meth:`Cluster.give_up`."""
        self._tasks.void(worker)
        self._handles[worker].gone, self._handles[worker].due = True, None
        self.losses.died(worker)

    # ------------------------------------------------------------------------------------------- events

    def events(self) -> Iterator[Event | Cut | None]:
        """See :meth:`Cluster.events`."""
        while True:
            while self._news:
                news = self._news.popleft()
                event = self._interpret(news)
                if event is not None or (isinstance(news, Notice) and news.kind == EVALUATED):
                    yield event
            self.losses.go_on()
            timeout = min(_IDLE, restart_due(self._handles, self._spawn))
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
        """Take in a piece of news; the event that it means, None where it is out of date."""
        if isinstance(news, ProjectMessage):
            value = self._payload.project(news.task, news.chunk, news.key)
            return None if value is None else MessageProjected(self.now(), news.worker, news.task, news.chunk, value)
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
            handle.sent_something()
            return Progress(now, worker, task, chunk, news.done) if task in self._tasks.in_flight else None
        if kind == COMPARED:
            entry = self._tasks.in_flight.get(task)
            if entry is not None:  # of a cancelled one the model may have been overwritten under it
                self._comparisons.check(news, entry)
            return None
        if kind == EVALUATED:
            self.losses.take_in(news)
            return None
        if kind == FAILED:
            self._tasks.settle(task, chunk)
            return Failed(now, worker, task, chunk, news.text)
        if news.done:  # READY, but it could not load
            raise RunFailed(f"worker {worker} could not load its partitions: {news.text}")
        handle.present = True
        self._send_orders(worker)
        return Joined(now, worker)

    def _receive(self, now: float, notice: Notice) -> Reply | Failed | None:
        """A message is in: check that it is what was announced."""
        worker, task, chunk, buffer, start = notice.worker, notice.task, notice.chunk, notice.buffer, self._start
        times = notice.started - start, notice.computing - start, notice.computed - start, notice.sent - start
        timing = Timing(*times, notice.bits)
        payload, handle = self._payload, self._handles[worker]
        handle.sent_something()
        entry = self._tasks.in_flight.get(task)
        if entry is None or chunk not in self._tasks.missing[task]:
            payload.free_buffer(worker, buffer)
            # of a cancelled task: nobody will use it, but the ledger wants to know; of a resumed one: it is in already
            return Reply(now, worker, task, chunk, timing) if entry is None else None
        work = entry.chunks[chunk]
        ids = payload.covered(task, chunk, work)
        size, dtype = payload.messages.length(ids), payload.messages.dtype
        expected = scheme(work.compress).size(size, dtype.itemsize) if work.compress else size
        length, found = payload.contents(notice, expected, np.dtype(np.uint8) if work.compress else dtype)
        if found is None:
            payload.free_buffer(worker, buffer)
            self._tasks.settle(task, chunk)
            return Failed(now, worker, task, chunk, f"wrong length ({length} instead of {expected})")
        if work.compress:
            version = entry.versions[chunk]
            vector = unpack(work, version, self.seed, found, size, dtype, payload.model(work.slot, version))
            payload.free_buffer(worker, buffer)
            payload.arrived[task, chunk] = Message(ids, vector, worker, None)
        else:
            found.flags.writeable = False
            payload.arrived[task, chunk] = payload.keep(notice, ids, found)
        self._tasks.settle(task, chunk)
        if handle.requests:
            handle.requests = [ask for ask in handle.requests if ask[0] != task or ask[1] != chunk]
        return Reply(now, worker, task, chunk, timing)

    def _on_death(self, died: Died) -> Lost:
        """A worker is dead: what it was doing is void, what it sent is not; another takes its place."""
        worker, _, reason, blame = died
        handle = self._handles[worker]
        gone = handle.died(blame, self.patience)
        if gone:
            reason += f", {handle.deaths} times in a row" if handle.deaths > 1 else ""
            self.give_up(worker)
        else:
            self._tasks.void(worker)
            restart_due(self._handles, self._spawn)
        self.losses.died(worker)
        return Lost(self.now(), worker, reason, gone)
