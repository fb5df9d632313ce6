"""The helper program from which workers are forked: single-threaded, and it ends with the driver.

It imports NumPy, scipy.sparse if the data is sparse, torch if modules are trained, and no code of the user, so a worker
starts in milliseconds and can import JAX itself. It is the workers' parent: it reaps them, reports deaths to the
driver, and when the driver's socket closes, for whatever reason, kills all workers and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from anyk.clusters.processes.memory import MESSAGE
from anyk.clusters.processes.shared_worker import Shared, SharedMemoryWorker
from anyk.clusters.waiting import readable, signal_name

_PR_SET_PDEATHSIG = 1
_FROM_OUTSIDE, OWN_DOING = 1, 4  # the blame for a death: by a signal from outside, or a crash
_EVERY = 0.25  # seconds between two counts of the workers' processes
_BEATS = 40  # counts between two signs of life


class ForkServer:
    """Forks, reaps and ends workers."""

    def __init__(self, link: socket.socket, shared: Shared) -> None:
        self._link, self._shared = link, shared
        self._waker = os.pipe()  # written to when a child has ended
        self._children: dict[int, tuple[int, int]] = {}  # pid -> (worker, incarnation)
        self._limit = shared.briefing.children
        self._too_many: dict[int, int] = {}  # pid of workers ended for exceeding the limit -> number of processes

    def serve(self) -> None:
        """Carry out the driver's requests until it closes the socket."""
        for name in self._shared.briefing.imports:  # once, so that all workers share them
            importlib.import_module(name)
        due = time.monotonic() + _EVERY
        woken, waker = self._waker
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy every page that it visits
        counts = 0
        try:
            while True:
                link = self._link.fileno()
                ready = readable([link, woken], max(0.0, due - time.monotonic()))
                if time.monotonic() >= due:
                    self._count()
                    due = time.monotonic() + _EVERY
                    counts += 1
                    if counts % _BEATS == 0:
                        self._link.sendall(b"\n")
                if woken in ready:
                    os.read(woken, 4096)
                    self._reap()
                if link in ready and not self._obey():
                    return
        finally:
            self._end()

    def _obey(self) -> bool:
        """Fork or end a worker on request; return False if the driver has closed the socket.

        A request to fork includes the worker's doorbell.
        """
        data, fds, _, _ = socket.recv_fds(self._link, MESSAGE, 1)
        if not data:
            return False
        for line in data.splitlines():
            worker, incarnation, ends = json.loads(line)
            if ends:  # until it is reaped, nothing else has its number
                for pid, life in self._children.items():
                    if life == (worker, incarnation):
                        os.kill(pid, signal.SIGKILL)
                continue
            try:
                pid = fork(partial(self._become, worker, incarnation, fds[0], os.getpid()))
            except OSError as error:  # forking may succeed later
                self._tell_death(worker, incarnation, f"could not be started ({error.strerror})", _FROM_OUTSIDE)
                continue
            finally:
                os.close(fds[0])
            self._children[pid] = worker, incarnation
            self._tell({"forked": worker, "incarnation": incarnation, "pid": pid})
        return True

    def _become(self, worker: int, incarnation: int, doorbell: int, forkserver: int) -> None:
        """Run the worker in the child, and never return into the fork server's code."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._link.fileno(), *self._waker):
                os.close(fd)
            os.setsid()  # processes that it starts are counted, and ended, with it
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != forkserver:
                    return  # the fork server has ended; "finally" ends this process, too
                # a woken worker waits its turn instead of interrupting the driver that is waking the others
                with contextlib.suppress(PermissionError):  # such as under SCHED_IDLE, which it may not leave
                    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.environ["ANYK_WORKER"] = str(worker)
            own_worker = SharedMemoryWorker(self._shared, worker, incarnation, doorbell)
            signal.signal(signal.SIGTERM, lambda *_: own_worker.leave())
            own_worker.run()
            status = 0
        except BaseException:
            traceback.print_exc()  # a bug of anyk: a user's errors are caught and reported to the driver
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self._children:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            worker, incarnation = self._children.pop(pid, (-1, -1))
            _end_sessions({pid})  # processes that it has left behind; first, as its number is free once it is reaped
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            reason = f"killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
            blame = _FROM_OUTSIDE if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP) else OWN_DOING
            if pid in self._too_many:
                reason = (
                    f"started {self._too_many.pop(pid)} processes, which is more than children={self._limit} allows"
                )
                blame = OWN_DOING
            self._tell_death(worker, incarnation, reason, blame)

    def _tell_death(self, worker: int, incarnation: int, reason: str, blame: int) -> None:
        self._tell({"died": worker, "incarnation": incarnation, "reason": reason, "blame": blame})

    def _count(self) -> None:
        """End workers with too many processes; the system's limits exempt root, and count all workers together."""
        counts = Counter(session for _, session in _sessions())
        for pid in self._children:
            started = counts[pid] - 1  # without the worker itself
            if started > self._limit and pid not in self._too_many:
                self._too_many[pid] = started
                os.killpg(pid, signal.SIGKILL)  # all simultaneously, so that none can start another

    def _tell(self, message: dict[str, Any]) -> None:
        self._link.sendall(json.dumps(message).encode() + b"\n")

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)  # also ends stopped workers
        _end_sessions(self._children.keys())
        for pid in self._children:
            os.waitpid(pid, 0)


def fork(run: Callable[[], object]) -> int:
    """Start a child process that calls a function, which must not return; return the child's number."""
    pid = os.fork()
    if pid == 0:
        run()
    return pid


def _end_sessions(sessions: Collection[int]) -> None:
    """End all processes that workers have started: their process groups, then those in groups of their own."""
    for pid in sessions:
        with contextlib.suppress(ProcessLookupError):  # it may not have created its group yet
            os.killpg(pid, signal.SIGKILL)
    for pid, session in _sessions():
        if session in sessions:
            _end_in_session(pid, session)


def _end_in_session(pid: int, session: int) -> None:
    """End a process if it is in a session; where the system can, no other that gets its number in the meantime."""
    with contextlib.suppress(OSError):  # it has ended
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, signal.SIGKILL)
            return
        descriptor = os.pidfd_open(pid)
        try:
            if os.getsid(pid) == session:  # the descriptor's process, or one of its number that is of the session too
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _sessions() -> Iterator[tuple[int, int]]:
    """Yield each process's pid and session; a worker's processes are in the session whose number is its pid."""
    if sys.platform == "linux":
        pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    else:
        import psutil

        pids = psutil.pids()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or access is denied
            yield pid, os.getsid(pid)


def _threads() -> int:
    """Return the number of threads that a fork would lose; jemalloc restarts its own in the child."""
    if sys.platform == "linux":
        count = sum("jemalloc" not in (task / "comm").read_text() for task in Path("/proc/self/task").iterdir())
    else:
        import psutil

        count = int(psutil.Process().num_threads())
    return count


def _preload(modules: Sequence[str]) -> str | None:
    """Import the modules that workers share; return the reason if that is impossible, else None."""
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            return f"preload={name}: the module cannot be imported ({type(error).__name__}: {error})"
        if started := _threads() - 1:
            return f"preload={name}: importing it starts {started} threads, which workers cannot share; leave it out"
    return None


def main(fd: int, preload: Sequence[str]) -> None:
    """Entry point: ``fd`` is the socket to the driver, ``preload`` the names of the modules that workers share."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    link = socket.socket(fileno=fd)
    try:
        refused = _preload(preload)
        if refused is not None:
            link.sendall(json.dumps({"refused": refused}).encode() + b"\n")
            return
        encoded_size, fds, _, _ = socket.recv_fds(link, 8, 16)
        if encoded_size:  # otherwise the driver could not start the run
            ForkServer(link, Shared(int.from_bytes(encoded_size, "little"), fds)).serve()
    except (BrokenPipeError, ConnectionResetError):
        return  # the driver ended while sending; the workers have been ended
