"""The cluster of processes of this machine: vectors in shared memory, orders in mail boxes, reports through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from anyk.base.checks import AtLeastZero, typed
from anyk.base.errors import BadInput, RunFailed
from anyk.base.specs import show_spec
from anyk.clusters.available import available_memory
from anyk.clusters.contract import PINNED, Report
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.messages import Messages
from anyk.clusters.processes.memory import ERROR_BOX, MESSAGE, RECORD, MailBox, MemoryLayout, Segment
from anyk.clusters.processes.shared_store import SharedStore
from anyk.clusters.processes.shared_worker import Briefing
from anyk.clusters.remote.channel import EVALUATED, FAILED, READY
from anyk.clusters.remote.handles import Died, Notice, WorkerHandle
from anyk.clusters.remote.orders import NOTHING
from anyk.clusters.remote.remote import Remote
from anyk.clusters.remote.shipping import ship
from anyk.clusters.waiting import readable
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.problems.data.reader_processes import python_settings
from anyk.protocol import Layout, Lost

_BUFFERS = 4  # reply buffers per worker; if all but one contain unused messages, further messages are moved
_BOX = 1 << 16  # bytes of a mail box; untouched pages cost nothing
_HELPERS, _WITHIN = 5, 60.0  # the most helper programs that may end within a time in seconds
_SILENCE = 120.0  # seconds without a sign of life after which the helper program is replaced
_ENDING = 10.0  # seconds that the helper program may take to end its workers and itself
_LONGEST = 1 << 20  # bytes of a line of the helper program
_BROKEN = "cannot be read: a process has written over them, or they are damaged; resume the run"
# imported once for all workers if needed, with what using it imports; JAX must not be forked
_SHARED = {"scipy.sparse": ["scipy.sparse"], "torch": ["torch", "numpy.ma", "numpy.random"]}
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from anyk.clusters.processes import forkserver; "
_BOOT += "forkserver.main(int(sys.argv[1]), json.loads(sys.argv[3]))"


class _HelperNews(msgspec.Struct):
    """A line of the helper program: a worker that was forked, or has died, or the reason to refuse the run."""

    refused: str | None = None
    forked: int = -1
    died: int = -1
    incarnation: int = -1
    pid: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)] = -1
    reason: str = ""
    blame: int = 1


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
        self._forkserver: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._segments: list[Segment] = []
        self._pipe = self._into_pipe = -1
        self._helper_gone = False  # whether the helper program is known to have ended
        self._helper_heard = 0.0  # time of the helper program's last sign of life
        self._helpers_ended: list[float] = []
        self._unread = b""

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
        return None if self._forkserver is None else self._forkserver.pid

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:
        # the helper program is started early, as it takes a while to import NumPy
        if self._forkserver is not None:
            return
        ours, theirs = socket.socketpair()
        environment, path = python_settings()
        self._forkserver = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), path, json.dumps(self.preload)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # Ctrl-C in the terminal then reaches only the driver
        )
        theirs.close()
        self._link, self._unread = ours, b""

    def start_workers(self) -> tuple[int, ...]:
        present = super().start_workers()
        self.store.touch()
        self._start = time.monotonic()
        return present

    def new_store(self, messages: Messages, layout: Layout) -> SharedStore:
        lengths = [messages.length(tuple(covered)) for covered in layout.covers or layout.assignment]
        self._plan = self._plan_memory(layout, messages.partitions, lengths)
        return SharedStore(messages, self._plan)

    def _plan_memory(self, layout: Layout, partitions: Partitions, lengths: Sequence[int]) -> MemoryLayout:
        """Return the layout of the shared memory."""
        return MemoryLayout(
            workers=self.workers,
            slots=layout.slots,
            # versions in use: one per worker, the newest, the version being written, versions to be evaluated, and the
            # version whose loss workers are computing
            copies=len(layout.slots) * (self.workers + 2 + PINNED) + 1,
            dimension=partitions.dimension,
            dtype=np.dtype(partitions.dtype).str,
            buffers=_BUFFERS,
            lengths=tuple(lengths),
            box=_BOX,
            # 512 bytes for each coordinate, of which untouched ones cost nothing, in whole MiB
            state_bytes=(partitions.dimension // 2048 + 2 << 20) if layout.stateful else 0,
        )

    def mapped(self, layout: Layout, partitions: Partitions, lengths: Sequence[int]) -> int:
        plan = self._plan_memory(layout, partitions, lengths)
        return plan.models_size + plan.replies_size

    def ship(self, partitions: Partitions) -> None:
        self.prepare()
        buffers = ship(partitions)
        self.check_room(sum(buffer.nbytes for buffer in buffers))
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
        self._mail = mail
        self.store.attach(models, replies, states)
        self._pipe, self._into_pipe = os.pipe()
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
        self._briefing_size = len(packed)
        self._segments.append(Segment.create(0, "briefing"))
        self._segments[-1].store([memoryview(packed)])
        self._brief_helper()
        for i, handle in enumerate(self.handles):
            handle.box = MailBox(mail, plan.box_at(i), plan.box)

    def _brief_helper(self) -> None:
        """Send the helper program the data that all workers need; before that, it forks no worker."""
        self.prepare()
        fds = [*[segment.fd for segment in self._segments], self._into_pipe]
        self._tell_helper(self._briefing_size.to_bytes(8, "little"), fds)
        self._helper_heard = time.monotonic()  # it sends signs of life from now on

    def _tell_helper(self, message: bytes, fds: list[int]) -> None:
        """Send the helper program one message, which it reads together with the descriptors."""
        assert self._link is not None
        self._link.settimeout(self.patience_at_start)
        with contextlib.suppress(OSError):  # it has ended, which _read_helper will notice
            socket.send_fds(self._link, [message], fds)
        self._link.setblocking(False)

    def check_room(self, size: int) -> None:
        """Raise :class:`~anyk.base.errors.BadInput` unless ``size`` bytes of data and the run's buffers have room."""
        plan = self._plan
        required = size + 3 * plan.model_bytes * len(plan.slots) + plan.replies_size // 2
        available = available_memory()
        if available is not None and required > available:
            raise BadInput(
                f"the data and {self.workers} workers' buffers need {required / 2**20:,.0f} MiB of shared memory, "
                f"{available / 2**20:,.0f} MiB are available; use fewer workers, fewer columns or float32"
            )

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
            self._tell_helper(_to_helper([worker, handle.incarnation, False]), [theirs])
        finally:  # also on Ctrl-C
            os.close(theirs)
        while not self._read_helper():
            pass  # otherwise each side could wait for the other to read

    def _replace_helper(self) -> None:
        """Replace the helper program, which has ended together with all workers; the new one restarts them."""
        assert self._forkserver is not None
        assert self._link is not None
        self._link.close()
        self._forkserver.kill()  # it must do nothing more
        status = self._forkserver.wait()
        now = time.monotonic()
        self._helpers_ended = [moment for moment in self._helpers_ended if moment > now - _WITHIN] + [now]
        sentence = "the helper program that starts workers has ended"
        if len(self._helpers_ended) >= _HELPERS:
            raise RunFailed(
                f"{sentence}, {_HELPERS} times within {_WITHIN:.0f} s, and the workers with it; resume the run"
            )
        if status > 0 and not any(handle.present for handle in self.handles):
            raise RunFailed(
                f"the helper program that starts workers ended immediately (status {status}); see its message above"
            )
        for pid in self.pids.values():
            _await_end(pid)  # no old worker may write into memory that new ones use
        self._drain_pipe()
        self._forkserver = self._link = None
        self._brief_helper()
        for worker, handle in enumerate(self.handles):
            if handle.incarnation >= 0 and handle.due is None and not handle.gone:
                self.news.append(Died(worker, handle.incarnation, sentence, 0))

    def close(self) -> None:
        for handle in self.handles:
            handle.close_doorbell()
            handle.present = False
        if self._link is not None:
            self._link.close()  # the helper ends the workers and itself
            self._link = None
        if self._forkserver is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._forkserver.wait(_ENDING)
            self._forkserver.kill()  # if it is still running; the kernel ends its workers with it
            self._forkserver.wait()
            self._forkserver = None
        for fd in (self._pipe, self._into_pipe):
            if fd >= 0:
                os.close(fd)
        self._pipe = self._into_pipe = -1
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
        assert self._link is not None
        return self._pipe, self._link.fileno()

    def poll(self, timeout: float) -> None:
        link = self.fds()[1]
        ready = readable(self.fds(), timeout)
        if self._pipe in ready:
            self._read_records()
        if link in ready or self._helper_gone:
            while not self._read_helper():
                pass
            if self._helper_gone:
                self._helper_gone = False
                self._replace_helper()
        elif time.monotonic() - self._helper_heard > _SILENCE and self._forkserver is not None:
            self._forkserver.kill()  # it is frozen, and would report no death

    def end_worker(self, worker: int) -> None:
        # by its parent, which alone knows whether the number is still this worker's
        self._tell_helper(_to_helper([worker, self.handles[worker].incarnation, True]), [])

    def _drain_pipe(self) -> None:
        """Read all reports; those from before a worker's death still count."""
        while readable([self._pipe], 0.0):
            self._read_records()

    def _read_records(self) -> None:
        data = os.read(self._pipe, RECORD.size * 512)
        now = time.monotonic()
        if len(data) % RECORD.size:
            raise RunFailed(f"reports of workers {_BROKEN}")
        for record in RECORD.iter_unpack(data):
            worker, incarnation, buffer, *values = record
            report = Report(*values)
            if not (0 <= worker < self.workers and -1 <= buffer < self._plan.buffers and report.kind in self._kinds):
                raise RunFailed(f"a report of worker {worker} {_BROKEN}")
            if report.kind == READY and not report.done and incarnation == self.handles[worker].incarnation:
                if not 0 < report.bits < 1 << 31:
                    raise RunFailed(f"the process number of worker {worker} {_BROKEN}")
                self.pids[worker] = report.bits  # the helper program's line about it may come later
            if report.kind == FAILED or (report.kind in (READY, EVALUATED) and report.done):
                report = report._replace(text=self._error(worker))
            self.news.append(Notice(now, worker, incarnation, buffer, report))

    def _read_helper(self) -> bool:
        """Read reports of the helper program; return whether there is nothing more to read."""
        assert self._link is not None
        try:
            data = self._link.recv(1 << 16)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            data = b""
        if not data:
            self._helper_gone = True
            return True
        self._helper_heard = time.monotonic()
        *lines, self._unread = (self._unread + data).split(b"\n")
        try:
            if len(self._unread) > _LONGEST:
                raise ValueError
            # empty lines are signs of life
            received = [msgspec.json.decode(line, type=_HelperNews) for line in lines if line]
        except (msgspec.MsgspecError, ValueError):
            raise RunFailed(f"news of the helper program that starts workers {_BROKEN}") from None
        for news in received:
            if news.refused is not None:
                raise BadInput(news.refused)
            if not 0 <= (worker := max(news.forked, news.died)) < self.workers:
                raise RunFailed(f"news of worker {worker} {_BROKEN}")
            if news.forked < 0:
                self._drain_pipe()
                self.news.append(Died(worker, news.incarnation, news.reason, news.blame))
            elif news.incarnation == self.handles[worker].incarnation:
                self.pids[worker] = news.pid
        return False

    def on_death(self, died: Died) -> Lost:
        self.pids.pop(died.worker, None)
        self.store.void(died.worker)
        return super().on_death(died)

    def _error(self, worker: int) -> str:
        offset = self._plan.box_at(worker) + self._plan.box
        return self._mail.memory[offset : offset + ERROR_BOX].partition(b"\0")[0].decode(errors="replace")


def shared_modules(buffers: Sequence[memoryview]) -> list[str]:
    """Return the modules that workers are to share, by the bytes of the object that they get."""
    needed = [name for name in _SHARED if name in sys.modules and name.encode() in bytes(buffers[0])]
    return [module for name in needed for module in _SHARED[name]]


def _to_helper(request: list[object]) -> bytes:
    """Return a request to the helper program, of a fixed length: worker, incarnation, and whether to end it."""
    return json.dumps(request).ljust(MESSAGE - 1).encode() + b"\n"


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
