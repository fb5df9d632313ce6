"""The helper program from which workers are forked: clean, single-threaded, and dead when the driver is.

It imports NumPy, scipy.sparse where the data is sparse, torch where modules are trained, and nothing of the user's, so
a worker starts in milliseconds and can import JAX afresh. It owns the workers: it reaps them, tells the driver who
died, and when the driver's socket closes, for whatever reason, kills them all and goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from anyk.clusters.processes.shared_worker import Shared, SharedMemoryWorker

_PR_SET_PDEATHSIG = 1
_FROM_OUTSIDE, OWN_DOING = 1, 4  # how much a death speaks against its worker
_EVERY = 0.25  # seconds between two counts of the workers' processes
_BEATS = 40  # so many of them between two signs of life


class ForkServer:
    """Forks, reaps and ends workers."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._children: dict[int, tuple[int, int]] = {}  # pid -> (worker, incarnation)
        self._limit = 0  # processes that a worker may start
        self._too_many: dict[int, int] = {}  # workers that were ended for that, and how many they had

    def serve(self) -> None:
        """Do what the driver asks until it hangs up."""
        message, fds = self._receive_start()
        shared = Shared(message, fds)
        self._limit = message["children"]
        for name in message["imports"]:  # here, so that every worker shares them
            importlib.import_module(name)
        due = time.monotonic() + _EVERY
        waker_read, waker_write = os.pipe()
        os.set_blocking(waker_write, False)
        signal.set_wakeup_fd(waker_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy every page it looks at
        counts = 0
        try:
            while True:
                link = self._link.fileno()
                ready, _, _ = select.select([link, waker_read], [], [], max(0.0, due - time.monotonic()))
                if time.monotonic() >= due:
                    self._count()
                    due = time.monotonic() + _EVERY
                    counts += 1
                    if counts % _BEATS == 0:
                        self._link.sendall(b"\n")
                if waker_read in ready:
                    os.read(waker_read, 4096)
                    self._reap()
                if link in ready and not self._obey(shared, (waker_read, waker_write)):
                    return
        finally:
            self._end()

    def _receive_start(self) -> tuple[dict[str, Any], list[int]]:
        size, fds, _, _ = socket.recv_fds(self._link, 8, 16)
        if not size:
            sys.exit(0)  # the driver found that it cannot begin
        data, length = bytearray(), int.from_bytes(size, "little")
        while len(data) < length:
            more = self._link.recv(length - len(data))  # and no byte of what follows, which has a descriptor with it
            if not more:
                sys.exit(0)
            data += more
        return json.loads(data), list(fds)

    def _obey(self, shared: Shared, own: tuple[int, int]) -> bool:
        """Carry out a request, which brings the new worker's doorbell; return False when the driver has hung up."""
        data, fds, _, _ = socket.recv_fds(self._link, 33, 1)
        if not data:
            return False
        for line in data.splitlines():
            worker, incarnation = json.loads(line)
            pid, parent = -1, os.getpid()
            try:
                pid = os.fork()
            except OSError as error:  # it may be possible later
                self._tell_death(worker, incarnation, f"could not be started ({error.strerror})", _FROM_OUTSIDE)
                continue
            finally:
                if pid != 0:
                    os.close(fds[0])
            if pid == 0:
                self._become(shared, worker, incarnation, fds[0], own, parent)
            self._children[pid] = worker, incarnation
            self._tell({"forked": worker, "incarnation": incarnation, "pid": pid})
        return True

    def _become(
        self,
        shared: Shared,
        worker: int,
        incarnation: int,
        doorbell: int,
        own: tuple[int, int],
        forkserver: int,
    ) -> None:
        """In the child: be a worker, and never return into the fork server's code."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._link.fileno(), *own):
                os.close(fd)
            os.setsid()  # what it starts is counted, and ended, with it
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != forkserver:
                    return  # it has ended already; "finally" ends this as well
                # a woken worker waits its turn instead of interrupting the driver that is waking the others
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.environ["ANYK_WORKER"] = str(worker)
            SharedMemoryWorker(shared, worker, incarnation, doorbell).run()
            status = 0
        except BaseException:
            traceback.print_exc()  # a defect of ours: a user's errors are caught and told to the driver
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker, incarnation = self._children.pop(pid, (-1, -1))
            _end_sessions({pid})  # what it has started, and left behind
            code = os.waitstatus_to_exitcode(status)
            why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            blame = _FROM_OUTSIDE if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP) else OWN_DOING
            if pid in self._too_many:
                why = f"started {self._too_many.pop(pid)} processes, which is more than children={self._limit} allows"
                blame = OWN_DOING
            self._tell_death(worker, incarnation, why, blame)

    def _tell_death(self, worker: int, incarnation: int, reason: str, blame: int) -> None:
        self._tell({"died": worker, "incarnation": incarnation, "reason": reason, "blame": blame})

    def _count(self) -> None:
        """End workers that have too many processes: limits of the system do not bind root, and count all workers."""
        counts = Counter(session for _, session in _sessions())
        for pid in self._children:
            started = counts[pid] - 1  # without the worker itself
            if started > self._limit and pid not in self._too_many:
                self._too_many[pid] = started
                os.killpg(pid, signal.SIGKILL)  # all at once, so that none is left to start another

    def _tell(self, message: dict[str, Any]) -> None:
        self._link.sendall(json.dumps(message).encode() + b"\n")

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)  # also wakes the stopped ones
        _end_sessions(self._children.keys())
        for pid in self._children:
            os.waitpid(pid, 0)


def _end_sessions(sessions: Collection[int]) -> None:
    """End all that workers have started, first their groups and then what has made a group of its own."""
    for pid in sessions:
        with contextlib.suppress(ProcessLookupError):  # it may not have come to making a group of its own
            os.killpg(pid, signal.SIGKILL)
    for pid, session in _sessions():
        if session in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _sessions() -> Iterator[tuple[int, int]]:
    """Yield every process and its session; a worker's processes are in the session that bears its number."""
    if sys.platform == "linux":
        pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    else:
        import psutil

        pids = psutil.pids()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or is nobody's business
            yield pid, os.getsid(pid)


def _threads() -> int:
    """Return the number of threads that a fork would lose; jemalloc starts its own again in the child."""
    if sys.platform == "linux":
        count = sum("jemalloc" not in (task / "comm").read_text() for task in Path("/proc/self/task").iterdir())
    else:
        import psutil

        count = int(psutil.Process().num_threads())
    return count


def _preload(modules: Sequence[str]) -> str | None:
    """Import modules that workers are to share; returns why that cannot be, None if it can."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"preload={name}: the module cannot be imported ({type(error).__name__}: {error})"
        if started := _threads() - 1:
            return f"preload={name}: importing it starts {started} threads, which workers cannot share; leave it out"
    return None


def main(fd: int, preload: Sequence[str]) -> None:
    """Entry point: ``fd`` is the socket to the driver, ``preload`` names the modules that workers are to share."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's affair
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    link = socket.socket(fileno=fd)
    try:
        refused = _preload(preload)
        if refused is not None:
            link.sendall(json.dumps({"refused": refused}).encode() + b"\n")
            return
        ForkServer(link).serve()
    except (BrokenPipeError, ConnectionResetError):
        return  # the driver went away in mid-sentence; the workers have been ended
