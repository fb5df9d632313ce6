"""The system calls that anyk's processes make, carried out by the simulated kernel; any other raises."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import mmap as real_mmap
import os as real_os
import signal as real_signal
import subprocess as real_subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from greenlet import GreenletExit

from anyk.clusters.processes import forkserver, helper_program, memory, processes, reports, shared_worker
from anyk.clusters.remote import handles, losses, remote, workforce
from anyk.clusters.remote import worker as remote_worker

from . import fake_mpi, fake_ray, fleet
from .kernel import EndOf, Kernel, Memory, MemoryFile, Open, Pipe, ReadEnd, SocketEnd, WriteEnd


class Time:
    """The part of ``time`` that anyk uses."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def monotonic(self) -> float:
        return self._kernel.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self._kernel.call("sleep")
        self._kernel.wait(lambda: False, seconds)


class _Os:
    """The part of ``os`` that anyk's processes use."""

    SCHED_BATCH = 3
    WNOHANG = real_os.WNOHANG
    O_RDONLY = real_os.O_RDONLY
    waitstatus_to_exitcode = staticmethod(lambda status: status)
    sched_param = staticmethod(lambda priority: priority)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.fork_fails: Callable[[], bool] = lambda: False
        self.memory_lacks: Callable[[], bool] = lambda: False
        self.mpi: Any = None

    @property
    def environ(self) -> dict[str, str]:
        return self._kernel.current.environ

    def getpid(self) -> int:
        return self._kernel.current.pid

    def getppid(self) -> int:
        parent = self._kernel.current.parent
        return 1 if parent is None else parent.pid

    def setsid(self) -> None:
        self._kernel.current.session = self._kernel.current.pid

    def sched_setscheduler(self, *_: Any) -> None:
        pass

    def _exit(self, status: int) -> None:
        if self._kernel.over:
            raise GreenletExit
        self._kernel.exit(status)

    def pipe(self) -> tuple[int, int]:
        kernel = self._kernel
        kernel.call("pipe")
        pipe = Pipe(kernel.capacity)
        return kernel.current.descriptor(ReadEnd(pipe)), kernel.current.descriptor(WriteEnd(pipe))

    def set_blocking(self, number: int, blocking: bool) -> None:
        file = self._kernel.file(number)
        assert isinstance(file, (ReadEnd, WriteEnd))
        file.blocking = blocking

    def close(self, number: int) -> None:
        self._kernel.file(number).drop()
        del self._kernel.current.files[number]

    def write(self, number: int, data: bytes) -> int:
        kernel, file = self._kernel, self._kernel.file(number)
        assert isinstance(file, WriteEnd)
        kernel.call("write", number, len(data))
        pipe = file.pipe
        room = lambda: not pipe.readers or pipe.capacity - len(pipe.data) >= len(data)  # noqa: E731
        if not room():
            if not file.blocking:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            kernel.wait(room)
        if not pipe.readers:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        pipe.data += data
        kernel.call("written", number)
        return len(data)

    def read(self, number: int, most: int) -> bytes:
        kernel, file = self._kernel, self._kernel.file(number)
        assert isinstance(file, ReadEnd)
        kernel.call("read", number)
        if not (file.blocking or file.readable()):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        kernel.wait(file.readable)
        data = bytes(file.pipe.data[:most])
        del file.pipe.data[: len(data)]
        return data

    def kill(self, pid: int, number: int) -> None:
        process = self._kernel.processes.get(pid)
        if process is None or process.reaped:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        self._kernel.call("kill", pid, int(number))
        self._kernel.kill(process, number)

    def killpg(self, session: int, number: int) -> None:
        found = [each for each in self._kernel.processes.values() if each.session == session and not each.ended]
        if not found:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        for process in found:
            self._kernel.kill(process, number)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        kernel = self._kernel
        kernel.call("waitpid")
        children = [each for each in kernel.processes.values() if each.parent is kernel.current and not each.reaped]
        children = [each for each in children if pid in (-1, each.pid)]
        if not children:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        if not options & self.WNOHANG:
            kernel.wait(lambda: any(each.ended for each in children))
        for child in children:
            if child.ended:
                child.reaped = True
                return child.pid, child.status
        return 0, 0

    def waitid(self, kind: int, number: int, options: int) -> Any:
        """Return a child that has ended and stays to be reaped, or None."""
        del kind, number, options
        kernel = self._kernel
        kernel.call("waitid")
        children = [each for each in kernel.processes.values() if each.parent is kernel.current and not each.reaped]
        if not children:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        return next((SimpleNamespace(si_pid=each.pid) for each in children if each.ended), None)

    def pidfd_open(self, pid: int) -> int:
        process = self._kernel.processes.get(pid)
        if process is None or process.reaped:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return self._kernel.current.descriptor(EndOf(process))

    MFD_CLOEXEC = MFD_ALLOW_SEALING = P_ALL = WEXITED = WNOWAIT = 0

    def memfd_create(self, name: str, flags: int) -> int:
        del name, flags
        return self._kernel.current.descriptor(MemoryFile())

    def _memory(self, number: int) -> int:
        file = self._kernel.file(number)
        assert isinstance(file, MemoryFile)
        return file.fd

    def ftruncate(self, number: int, size: int) -> None:
        real_os.ftruncate(self._memory(number), size)

    def fstat(self, number: int) -> Any:
        return real_os.fstat(self._memory(number))

    def pwrite(self, number: int, data: Any, start: int) -> int:
        """Write at once or in two parts, between which others go on, or the writer ends."""
        kernel, file, half = self._kernel, self._memory(number), 0
        if len(data) > 8:  # else it is written at once, to memory that is there already
            if self.memory_lacks():
                raise OSError(errno.ENOSPC, "No space left on device")
            if kernel.choices.choose("schedule", f"{kernel.current.name} writes", 2, kernel.tearing):
                half = len(data) // 2
        real_os.pwrite(file, data[:half], start)
        kernel.call("pwrite")
        return half + real_os.pwrite(file, data[half:], start + half)

    def pread(self, number: int, most: int, start: int) -> bytes:
        if self._kernel.tearing:
            self._kernel.call("pread")
        return real_os.pread(self._memory(number), most, start)

    def posix_fallocate(self, number: int, start: int, length: int) -> None:
        if self.memory_lacks():
            raise OSError(errno.ENOSPC, "No space left on device")
        real_os.posix_fallocate(self._memory(number), start, length)


class _Select:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def readable(self, descriptors: Sequence[int], seconds: float | None = None) -> set[int]:
        kernel = self._kernel
        kernel.call("select")
        files = [(number, kernel.file(number)) for number in descriptors]
        kernel.wait(lambda: any(file.readable() for _, file in files), seconds)
        return {number for number, file in files if file.readable()}


class _Socket:
    """A socket of a pair."""

    kernel: Kernel

    def __init__(self, fileno: int) -> None:
        self._number = fileno

    @property
    def _end(self) -> SocketEnd:
        end = self.kernel.file(self._number)
        assert isinstance(end, SocketEnd)
        return end

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        if self._number >= 0:
            self._end.drop()
            del self.kernel.current.files[self._number]
            self._number = -1

    def settimeout(self, seconds: float | None) -> None:
        self._end.timeout = seconds

    def setblocking(self, blocking: bool) -> None:
        self._end.timeout = None if blocking else 0.0

    def sendall(self, data: bytes, files: Sequence[Open] = ()) -> None:
        self.kernel.call("send", len(data))
        size = self._end.capacity // 2  # Linux splits only what is longer
        for start in range(0, len(data), size):
            self._send(bytes(data[start : start + size]), files if not start else ())
        self.kernel.call("sent")

    def _send(self, part: bytes, files: Sequence[Open]) -> None:
        end, peer = self._end, self._end.peer
        if not self.kernel.wait(lambda: peer.closed or peer.room() >= len(part), end.timeout):
            raise TimeoutError(errno.EAGAIN, "timed out")
        if peer.closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        for file in files:
            file.take()
        peer.inbox.append((bytearray(part), list(files)))

    def recv_with(self, size: int) -> tuple[bytes, list[Open]]:
        end = self._end
        self.kernel.call("receive")
        if end.timeout == 0.0 and not end.readable():
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if not self.kernel.wait(end.readable, end.timeout):
            raise TimeoutError(errno.EAGAIN, "timed out")
        if not end.inbox:
            return b"", []
        data, files = end.inbox[0]
        part = bytes(data[:size])
        del data[: len(part)]
        if data:
            end.inbox[0] = data, []
        else:
            end.inbox.popleft()
        return part, files

    def recv(self, size: int) -> bytes:
        data, files = self.recv_with(size)
        for file in files:
            file.drop()
        return data


class _SocketModule:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.socket = type("socket", (_Socket,), {"kernel": kernel})

    def socketpair(self) -> tuple[_Socket, _Socket]:
        one, other = SocketEnd(4 * self._kernel.capacity), SocketEnd(4 * self._kernel.capacity)
        one.peer, other.peer = other, one
        current = self._kernel.current
        return self.socket(current.descriptor(one)), self.socket(current.descriptor(other))

    def send_fds(self, sock: _Socket, buffers: Sequence[bytes], fds: Sequence[int]) -> None:
        sock.sendall(b"".join(buffers), [self._kernel.file(number) for number in fds])

    def recv_fds(self, sock: _Socket, size: int, most: int) -> tuple[bytes, list[int], int, None]:
        data, files = sock.recv_with(size)
        numbers = []
        for file in files[:most]:
            numbers.append(self._kernel.current.descriptor(file))
            file.drop()
        return data, numbers, 0, None


class _Popen:
    """A helper program: another process that runs :func:`forkserver.main`."""

    kernel: Kernel

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int], env: dict[str, str], **_: Any) -> None:
        kernel, driver = self.kernel, self.kernel.current
        number, preload = int(command[3]), json.loads(command[5])
        files = {number: driver.files[number] for number in pass_fds}
        self._process = kernel.start(lambda: forkserver.main(number, preload), "helper", driver)
        self._process.session = self._process.pid
        self._process.environ = dict(env)
        self._process.files = files
        for file in files.values():
            file.take()
        self.pid = self._process.pid
        self.returncode: int | None = None
        kernel.call("started", self.pid)

    def kill(self) -> None:
        if self.returncode is None:
            self.kernel.call("kill", self.pid)
            self.kernel.kill(self._process, real_signal.SIGKILL)

    def poll(self) -> int | None:
        if self._process.ended:
            self._process.reaped, self.returncode = True, self._process.status
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.kernel.call("wait for", self.pid)
        if not self.kernel.wait(lambda: self._process.ended, timeout):
            raise real_subprocess.TimeoutExpired("helper", timeout or 0.0)
        self.poll()
        assert self.returncode is not None
        return self.returncode


@contextlib.contextmanager
def installed(kernel: Kernel, machines: fleet.Fleet | None = None) -> Iterator[_Os]:
    """Let the kernel carry out the calls of all clusters while the context lasts; yield its ``os``.

    ``machines``: those of the cluster ``nodes``.
    """
    time, os, readable = Time(kernel), _Os(kernel), _Select(kernel).readable
    sockets = _SocketModule(kernel)
    subprocess = SimpleNamespace(
        Popen=type("Popen", (_Popen,), {"kernel": kernel}),
        DEVNULL=real_subprocess.DEVNULL,
        TimeoutExpired=real_subprocess.TimeoutExpired,
    )
    signals = {name: getattr(real_signal, name) for name in dir(real_signal) if name.startswith("SIG")}

    def set_wakeup_fd(number: int) -> None:
        kernel.current.wakeup = number

    signal = SimpleNamespace(
        **signals, Signals=real_signal.Signals, signal=lambda *_: None, set_wakeup_fd=set_wakeup_fd
    )
    # an array hides from the garbage collector that it refers to its memory: the memory must not refer to the kernel
    Map = type("Map", (Memory,), {"kernel": weakref.proxy(kernel)})
    maps = SimpleNamespace(
        PAGESIZE=real_mmap.PAGESIZE, mmap=lambda number, size, **more: Map(os._memory(number), size, **more)
    )

    def fork(run: partial[None]) -> int:
        kernel.call("fork")
        if os.fork_fails():
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        helper = kernel.current
        server: forkserver.ForkServer = run.func.__self__  # type: ignore[attr-defined]
        shared, (worker, *rest) = server._shared, run.args
        files = dict(helper.files)

        def child() -> None:
            kernel.on_birth(process.name)
            own = copy.copy(server)
            own._shared = object.__new__(shared_worker.Shared)
            own._shared.__dict__ = shared.__dict__ | {
                name: memory.Segment(segment.fd, segment.size)
                for name, segment in shared.__dict__.items()
                if isinstance(segment, memory.Segment)
            }
            own._become(worker, *rest)

        process = kernel.start(child, f"worker {worker}.{rest[0]}", helper)
        process.environ = dict(helper.environ)
        process.files = files
        for file in files.values():
            file.take()
        return process.pid

    def crashed() -> None:
        error = sys.exc_info()[1]
        if not kernel.over and error is not None:
            kernel.crashes.append((kernel.current.name, error))

    def prctl(option: int, number: int) -> None:
        del option, number
        kernel.current.dies_with_parent = True

    replaced: list[tuple[Any, dict[str, Any]]] = [
        (processes, {"time": time, "os": os, "readable": readable, "signal": signal}),
        (helper_program, {"time": time, "socket": sockets, "subprocess": subprocess}),
        (reports, {"time": time, "os": os, "readable": readable}),
        (forkserver, {"time": time, "os": os, "readable": readable, "socket": sockets, "signal": signal, "fork": fork,
                      "_end_in_session": lambda pid, _: os.kill(pid, 9),
                      "traceback": SimpleNamespace(print_exc=crashed),
                      "gc": SimpleNamespace(collect=lambda: None, freeze=lambda: None),
                      "ctypes": SimpleNamespace(CDLL=lambda _: SimpleNamespace(prctl=prctl)),
                      "_sessions": lambda: [(each.pid, each.session) for each in kernel.processes.values() if not each.ended]}),
        (memory, {"os": os, "mmap": maps, "time": time,
                  "fcntl": SimpleNamespace(fcntl=lambda *_: 0, F_ADD_SEALS=0, F_SEAL_SHRINK=0)}),
        (shared_worker, {"time": time, "os": os, "readable": readable}),
        (remote, {"time": time}),
        (workforce, {"time": time}),
        (handles, {"time": time}),
        (losses, {"time": time}),
        (remote_worker, {"time": time}),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for module, names in replaced:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(fake_ray.installed(kernel, time, os, crashed))
        os.mpi = stack.enter_context(fake_mpi.installed(kernel, time, os, crashed))
        if machines is not None:
            stack.enter_context(fleet.installed(machines, time, os, readable, crashed))
        yield os
