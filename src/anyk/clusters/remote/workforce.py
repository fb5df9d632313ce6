"""The lives of a cluster's workers on the wall clock: they start, die and are restarted, and leave after a notice."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Collection
from typing import Generic, NoReturn, TypeVar

from anyk.base.errors import RunFailed
from anyk.clusters.contract import Cluster
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.remote.handles import Departure, Died, Notice, WorkerHandle, is_stopped
from anyk.clusters.remote.losses import Losses
from anyk.clusters.remote.tasks import OpenTasks
from anyk.problems.base import Partitions
from anyk.protocol import Cut, Event, Joined, Leaving, Lost, ProjectMessage

OTHERS = 2.0  # seconds that a fleet which may be smaller waits for another worker before it starts
_ALIKE = 5  # ends of a worker for the same reason, before any is ready, after which none is started again
NOTICE = 30.0  # seconds after which a worker that was asked to end is ended, whatever it does
_AWAY = float("inf")  # a worker that is due then stays away until it is called back

H = TypeVar("H", bound=WorkerHandle)
News = Notice | Died | Departure | ProjectMessage


class Workforce(Cluster, Generic[H]):
    """The workers of a cluster on the wall clock. ``handle`` constructs a worker's handle.

    A worker that dies is restarted: immediately, or, if it has sent no message since its last death, after a pause that
    doubles each time. ``patience``: the total blame for deaths without a message in between at which a worker is
    abandoned, after 5 crashes in a row or 20 ends from outside, as when machines are taken away.
    """

    patience = 20
    patience_at_start = 300.0  # seconds that workers may take to start and to load their partitions

    def __init__(self, options: ClusterOptions, handle: type[H]) -> None:
        super().__init__(options)
        self._handle = handle
        self.handles = [handle() for _ in range(self.workers)]
        self.news: deque[News] = deque()  # not yet processed
        self.pids: dict[int, int] = {}  # process numbers of workers, if known
        self._leaving: dict[int, float] = {}  # time on the run's clock at which a worker is ended, by worker
        self._drained: set[int] = set()  # workers that are to stay away
        self._start = time.monotonic()
        # set by open(): the number of workers with which a run starts, and its evaluation and tasks
        self.fewest: int
        self.losses: Losses
        self._tasks: OpenTasks

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

    @abstractmethod
    def _interpret(self, news: News) -> Event | Cut | None:
        """Process a notice; return its event, None if it is out of date."""

    def is_here(self, worker: int) -> bool:
        """Return whether a worker is a process of this machine, where its process number means something."""
        return True

    def now(self) -> float:
        return time.monotonic() - self._start

    # ------------------------------------------------------------------------------------------- start and end

    def start_workers(self) -> tuple[int, ...]:
        """Spawn the workers, wait until they are ready, and start the run's clock; some may join later."""
        start = last = time.monotonic()
        reasons: dict[int, set[str]] = {}
        for worker in range(self.workers):
            self.spawn(worker)
        while (count := sum(handle.present for handle in self.handles)) < self.workers:
            if count >= self.fewest and time.monotonic() > last + OTHERS:
                break
            self.poll(min(0.5, self._restart_due()))
            if self._any_joined(reasons):
                last = time.monotonic()
            if time.monotonic() > start + self.patience_at_start:
                self._refuse_late_workers()
        self._start = time.monotonic()
        return tuple(worker for worker, handle in enumerate(self.handles) if handle.present)

    def _any_joined(self, reasons: dict[int, set[str]]) -> bool:
        """Process the news of workers that start; return whether one has joined.

        ``reasons``: why each has ended so far. Raises :class:`~anyk.RunFailed` if a worker was abandoned, or ends again
        and again for the same reason while none is ready.
        """
        joined = False
        while self.news:
            event = self._interpret(self.news.popleft())
            joined |= isinstance(event, Joined)
            if isinstance(event, Lost):
                seen, deaths = reasons.setdefault(event.worker, set()), self.handles[event.worker].deaths
                seen.add(event.reason)
                none_ready = not any(handle.present for handle in self.handles)
                alike = none_ready and len(seen) == 1 and deaths >= _ALIKE
                if event.gone or alike:
                    times = "" if event.gone else f", {deaths} times in a row"
                    raise RunFailed(f"worker {event.worker} did not start: {event.reason}{times}")
        return joined

    def _refuse_late_workers(self) -> NoReturn:
        late = [worker for worker, handle in enumerate(self.handles) if not handle.present]
        near = {worker: pid for worker, pid in self.pids.items() if worker in late and self.is_here(worker)}
        stopped = [(worker, pid) for worker, pid in near.items() if is_stopped(pid)]
        advice = "".join(f"; worker {worker} is stopped: kill -CONT {pid}" for worker, pid in stopped)
        seconds = f"{self.patience_at_start:.0f} s"
        raise RunFailed(f"workers {late} did not load their partitions within {seconds}{advice}")

    def _on_ready(self, now: float, notice: Notice) -> Joined:
        worker = notice.worker
        if notice.report.done:
            raise RunFailed(f"worker {worker} could not load its partitions: {notice.report.text}")
        self.handles[worker].present = True
        self.send_orders(worker)
        if worker in self._drained:
            self.news.append(Departure(worker, notice.incarnation, NOTICE))
        return Joined(now, worker)

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

    def abandon(self, worker: int) -> None:
        self._tasks.void(worker)
        self.handles[worker].gone, self.handles[worker].due = True, None
        self.losses.died(worker)

    # ------------------------------------------------------------------------------------------- departures

    def drain(self, workers: Collection[int]) -> None:
        if type(self).end_worker is Workforce.end_worker:
            super().drain(workers)  # which refuses
        before, self._drained = self._drained, set(workers)
        for worker, handle in enumerate(self.handles):
            if worker in self._drained - before:
                self.news.append(Departure(worker, handle.incarnation, NOTICE))
            elif worker in before - self._drained and handle.due == _AWAY:
                handle.due = time.monotonic()

    def _on_departure(self, departure: Departure) -> Leaving | None:
        worker = departure.worker
        if worker in self._leaving or not self.handles[worker].present:
            return None
        deadline = self._leaving[worker] = self.now() + departure.seconds
        return Leaving(self.now(), worker, deadline)

    def _on_leaving(self, now: float, notice: Notice) -> Leaving | None:
        if not self.handles[notice.worker].present:
            self.end_worker(notice.worker)  # it is still loading its partitions
        return self._on_departure(Departure(notice.worker, notice.incarnation, NOTICE))

    def _end_leaving(self) -> None:
        """End the workers that are leaving and have no task, or no time left."""
        busy = {entry.worker for entry in self._tasks.in_flight.values()}
        for worker, deadline in self._leaving.items():
            if worker not in busy or self.now() > deadline:
                self.end_worker(worker)
