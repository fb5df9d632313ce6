"""The cluster of processes of this machine: vectors in shared memory, orders in mail boxes, reports through a pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence

import msgspec

from anyk.base.checks import AtLeastZero, typed
from anyk.base.errors import BadInput, RunFailed
from anyk.base.specs import show_spec
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.messages import Messages
from anyk.clusters.processes.helper_program import HELPER_ENDED, Helper
from anyk.clusters.processes.memory import BROKEN, ERROR_BOX, MailBox, MemoryLayout, Segment
from anyk.clusters.processes.reports import Reports
from anyk.clusters.processes.shared_store import SharedStore
from anyk.clusters.processes.shared_worker import Briefing
from anyk.clusters.remote.channel import READY
from anyk.clusters.remote.handles import Died, Notice, WorkerHandle
from anyk.clusters.remote.orders import NOTHING
from anyk.clusters.remote.remote import Remote
from anyk.clusters.remote.shipping import ship
from anyk.clusters.waiting import readable
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.protocol import Layout, Lost

# imported once for all workers if needed, with what using it imports; JAX must not be forked
_SHARED = {"scipy.sparse": ["scipy.sparse"], "torch": ["torch", "numpy.ma", "numpy.random"]}


class _ProcessHandle(WorkerHandle):
    """A worker's record, with its mail box and doorbell."""

    def __init__(self) -> None:
        super().__init__()
        self.box: MailBox | None = None
        self.doorbell = -1

    def close_doorbell(self) -> None:
        """Close the doorbell, if there is one; Ctrl-C at any time does not have it closed twice."""
        doorbell, self.doorbell = self.doorbell, -1
        if doorbell >= 0:
            os.close(doorbell)


@typed
class Processes(Remote[_ProcessHandle]):
    """Processes on this machine (default); byzantine: 3/7; children: processes each may start; preload: modules.

    Injected ``delays`` are real waiting, interrupted when the task is cancelled with ``preempt`` (unless the model is
    ``uninterruptible``), and computing comes after. A worker that dies is replaced; one that crashes five times in a
    row without a message is abandoned. If the helper program that starts them ends, it and all workers are replaced.
    Data, models and messages exist once, in shared memory without a name; when the driver ends, for whatever reason, so
    does everything else.

    ``preload``: modules that take long to import, such as ``transformers``: the helper program imports them once, and
    all workers share them. Modules that start threads are refused, as a fork would lose these.
    ``children``: the most processes that a worker may have at once, such as the loaders of a ``DataLoader``; a worker
    with more is ended, with all its processes. A process that starts a session (``setsid``), as a server does, is
    neither counted nor ended.
    ``spoiled``: a folder in which a file called ``nan`` or ``corrupt`` has a worker spoil one message, to test a run.

    Raises :class:`~anyk.BadInput` on other systems than Linux and macOS, or without enough shared memory.

    >>> Processes(workers=4).spec
    'processes'
    """

    name = "processes"
    workers_here = True
    patience_at_start = 120.0
    store: SharedStore

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
        children: AtLeastZero = 64,
        preload: Sequence[str] = (),
        spoiled: str = "",
    ) -> None:
        options = ClusterOptions(
            workers=workers,
            delays=delays,
            seed=seed,
            byzantine=byzantine,
            communication=communication,
            spoiled=spoiled,
        )
        super().__init__(options, _ProcessHandle)
        self.children, self.preload = children, tuple(preload)
        if not sys.platform.startswith(("linux", "darwin")):
            raise BadInput(f"cluster 'processes' runs on Linux and macOS, not on {sys.platform}; use 'simulated'")
        self._segments: list[Segment] = []
        self._reports = Reports(self._kinds)
        self._helper = Helper(workers, self.preload, self.patience_at_start)

    @property
    def spec(self) -> str:
        values = {
            "byzantine": self.byzantine,
            "children": self.children,
            "preload": self.preload,
            "spoiled": self.spoiled,
        }
        return show_spec(self.name, values, {"byzantine": (), "children": 64, "preload": (), "spoiled": ""})

    @property
    def helper(self) -> int | None:
        """The process number of the helper program that starts the workers; None if it is not running."""
        return self._helper.pid

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:
        self._helper.start()

    def start_workers(self) -> tuple[int, ...]:
        present = super().start_workers()
        self.store.touch()
        self._start = time.monotonic()
        return present

    def new_store(self, messages: Messages, layout: Layout) -> SharedStore:
        lengths = [messages.length(tuple(covered)) for covered in layout.covers or layout.assignment]
        self._plan = MemoryLayout.of(layout, messages.partitions, lengths)
        return SharedStore(messages, self._plan)

    def mapped(self, layout: Layout, partitions: Partitions, lengths: Sequence[int]) -> int:
        plan = MemoryLayout.of(layout, partitions, lengths)
        return plan.models_size + plan.replies_size

    def ship(self, partitions: Partitions) -> None:
        self.prepare()
        buffers = ship(partitions)
        self._plan.check_room(sum(buffer.nbytes for buffer in buffers))
        self._segments = [Segment.create(0, "data")]
        self.share(self._segments[0].store(buffers), shared_modules(buffers))

    def share(self, places: Sequence[tuple[int, int]], imports: Sequence[str]) -> None:
        """Make a run's memory besides its data (in the first segment, at ``places``), and brief the helper program."""
        plan = self._plan
        models = Segment.create(plan.models_size, "models")
        replies = Segment.create(plan.replies_size, "replies")
        mail = Segment.create(plan.workers * (plan.box + ERROR_BOX), "mail")
        states = Segment.create(0, "states")
        self._segments += [models, replies, mail, states]
        self.store.attach(models, replies, states)
        self._reports.open(plan, mail)
        briefing = Briefing(
            layout=plan,
            setup=self.setup,
            assignment=self.assignment,
            children=self.children,
            imports=list(imports),
            places=list(places),
            sizes=[segment.size for segment in self._segments],
        )
        packed = msgspec.json.encode(briefing, enc_hook=float)
        self._segments.append(Segment.create(0, "briefing"))
        self._segments[-1].store([memoryview(packed)])
        self._helper.brief(len(packed), [*[segment.fd for segment in self._segments], self._reports.write_fd])
        for i, handle in enumerate(self.handles):
            handle.box = MailBox(mail, plan.box_at(i), plan.box)

    def spawn(self, worker: int) -> None:
        """Have the helper program fork a worker, with its own doorbell."""
        handle = self.handles[worker]
        handle.incarnation += 1
        assert handle.box is not None
        handle.box.put(NOTHING)  # instead of its predecessor's orders
        handle.close_doorbell()
        theirs, handle.doorbell = os.pipe()
        try:
            os.set_blocking(handle.doorbell, False)
            self._helper.fork(worker, handle.incarnation, theirs)
        finally:  # also on Ctrl-C
            os.close(theirs)
        self._hear_helper()  # otherwise each side could wait for the other to read

    def _replace_helper(self) -> None:
        """Replace the helper program, which has ended together with all workers; the new one restarts them."""
        status = self._helper.reap()
        if status > 0 and not any(handle.present for handle in self.handles):
            raise RunFailed(
                f"the helper program that starts workers ended immediately (status {status}); see its message above"
            )
        for pid in self.pids.values():
            _await_end(pid)  # no old worker may write into memory that new ones use
        self._take(self._reports.drain())
        self._helper.replace()
        for worker, handle in enumerate(self.handles):
            if handle.incarnation >= 0 and handle.due is None and not handle.gone:
                self.news.append(Died(worker, handle.incarnation, HELPER_ENDED, 0))

    def close(self) -> None:
        for handle in self.handles:
            handle.close_doorbell()
            handle.present = False
        self._helper.close()
        self._reports.close()
        for segment in self._segments:
            segment.close()
        self._segments = []

    # ------------------------------------------------------------------------------------------- commands and events

    def send_orders(self, worker: int) -> None:
        handle = self.handles[worker]
        if handle.present:
            self.forward(worker, self._tasks.orders(handle))

    def forward(self, worker: int, orders: bytes) -> None:
        """Put packed orders into a worker's mail box, and wake it."""
        handle = self.handles[worker]
        if handle.box is None:
            return
        handle.box.put(orders)
        # a full doorbell has rung already; if it is closed, the worker is dead, which the helper will report
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(handle.doorbell, b"!")

    def fds(self) -> tuple[int, int]:
        """Return the descriptors on which news arrives: of reports, and of the helper program."""
        return self._reports.fd, self._helper.fileno()

    def poll(self, timeout: float) -> None:
        reports, link = self.fds()
        ready = readable([reports, link], timeout)
        if reports in ready:
            self._take(self._reports.read())
        if link in ready or self._helper.gone:
            self._hear_helper()
            if self._helper.gone:
                self._replace_helper()
        else:
            self._helper.end_if_silent()

    def end_worker(self, worker: int) -> None:
        self._helper.end(worker, self.handles[worker].incarnation)

    def _take(self, notices: Iterable[Notice]) -> None:
        """Take in reports of workers."""
        for notice in notices:
            worker, report = notice.worker, notice.report
            if report.kind == READY and not report.done and notice.incarnation == self.handles[worker].incarnation:
                if not 0 < report.bits < 1 << 31:
                    raise RunFailed(f"the process number of worker {worker} {BROKEN}")
                self.pids[worker] = report.bits  # the helper program's line about it may come later
            self.news.append(notice)

    def _hear_helper(self) -> None:
        """Take in what the helper program has reported."""
        for news in self._helper.news():
            if news.forked < 0:
                self._take(self._reports.drain())
                self.news.append(Died(news.worker, news.incarnation, news.reason, news.blame))
            elif news.incarnation == self.handles[news.worker].incarnation:
                self.pids[news.worker] = news.pid

    def on_death(self, died: Died) -> Lost:
        self.pids.pop(died.worker, None)
        self.store.void(died.worker)
        return super().on_death(died)


def shared_modules(buffers: Sequence[memoryview]) -> list[str]:
    """Return the modules that workers are to share, by the bytes of the object that they get."""
    needed = [name for name in _SHARED if name in sys.modules and name.encode() in bytes(buffers[0])]
    return [module for name in needed for module in _SHARED[name]]


def _await_end(pid: int) -> None:
    """Wait until an orphaned worker has ended; on other systems than Linux, kill it."""
    if not hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            if os.getsid(pid) == pid:  # a worker leads a session; another process that has its number now hardly does
                os.kill(pid, signal.SIGKILL)
        return
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    readable([fd], 10.0)  # with a limit: it may be stuck in the kernel
    os.close(fd)
