"""The helper program from which workers are forked: clean, single-threaded, and dead when the driver is.

It imports NumPy and scipy.sparse and nothing of the user's, so a worker starts in milliseconds and can import torch or
JAX afresh. It owns the workers: it reaps them, tells the driver who died, and when the driver's socket closes, for
whatever reason, kills them all and goes.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

import numpy  # noqa: F401  # imported here so that every worker shares it
import scipy.sparse  # noqa: F401

from anyk.clusters.processes import worker as worker_module

_PR_SET_PDEATHSIG = 1


class Nursery:
    """Forks, reaps and ends workers."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._children: dict[int, tuple[int, int]] = {}  # pid -> (worker, incarnation)
        self._pending = b""

    def serve(self) -> None:
        """Do what the driver asks until it hangs up."""
        message, fds = self._receive_start()
        shared = worker_module.Shared(message, fds)
        waker_read, waker_write = os.pipe()
        os.set_blocking(waker_write, False)
        signal.set_wakeup_fd(waker_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy every page it looks at
        try:
            while True:
                link = self._link.fileno()
                ready, _, _ = select.select([link, waker_read], [], [])
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

    def _obey(self, shared: worker_module.Shared, own: tuple[int, int]) -> bool:
        """One request, each with the descriptor of the new worker's doorbell; False when the driver hung up."""
        data, fds, _, _ = socket.recv_fds(self._link, 33, 1)
        if not data:
            return False
        for line in data.splitlines():
            worker, incarnation = json.loads(line)
            pid = os.fork()
            if pid == 0:
                self._become(shared, worker, incarnation, fds[0], own)
            os.close(fds[0])
            self._children[pid] = worker, incarnation
            self._tell({"forked": worker, "incarnation": incarnation, "pid": pid})
        return True

    def _become(
        self, shared: worker_module.Shared, worker: int, incarnation: int, doorbell: int, own: tuple[int, int]
    ) -> None:
        """In the child: be a worker, and never return into the nursery's code."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            parent = self._link.fileno()
            for fd in (parent, *own):
                os.close(fd)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                # a woken worker waits its turn instead of interrupting the driver that is waking the others
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.environ["ANYK_WORKER"] = str(worker)
            worker_module.SharedMemoryWorker(shared, worker, incarnation, doorbell).run()
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
            code = os.waitstatus_to_exitcode(status)
            why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            self._tell({"died": worker, "incarnation": incarnation, "reason": why})

    def _tell(self, message: dict[str, Any]) -> None:
        self._link.sendall(json.dumps(message).encode() + b"\n")

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)  # also wakes the stopped ones
        for pid in self._children:
            os.waitpid(pid, 0)


def main(fd: int) -> None:
    """Entry point: ``fd`` is the socket to the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's affair
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        Nursery(socket.socket(fileno=fd)).serve()
    except (BrokenPipeError, ConnectionResetError):
        return  # the driver went away in mid-sentence; the workers have been ended
