"""Processes, pipes, sockets and signals of one simulated machine, in one thread and on a virtual clock.

A process is a greenlet. Each call into the kernel may let another process go on, and each may be a process's last: one
that is killed is never continued, so that none of its code runs, as on a real machine.
"""

from __future__ import annotations

import contextlib
import errno
import mmap as real_mmap
import os as real_os
import signal as real_signal
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from .choices import Choices

PIPE = 65536  # bytes that a pipe holds
_TICK = 2e-6  # seconds that a call takes


class Deadlock(AssertionError):
    """No process can ever continue."""


class Endless(AssertionError):
    """A run takes more calls than it may."""


class Open:
    """An open file, counted by the descriptors that refer to it."""

    def __init__(self) -> None:
        self.references = 0

    def take(self) -> None:
        self.references += 1

    def drop(self) -> None:
        self.references -= 1
        if not self.references:
            self.release()

    def release(self) -> None:
        """Free the file after its last descriptor."""

    def readable(self) -> bool:
        return False


class Pipe:
    """A pipe's bytes, and how many ends it has."""

    def __init__(self, capacity: int) -> None:
        self.data, self.capacity = bytearray(), capacity
        self.readers = self.writers = 1


class ReadEnd(Open):
    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe, self.blocking = pipe, True

    def release(self) -> None:
        self.pipe.readers = 0

    def readable(self) -> bool:
        return bool(self.pipe.data) or not self.pipe.writers


class WriteEnd(Open):
    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe, self.blocking = pipe, True

    def release(self) -> None:
        self.pipe.writers = 0


class SocketEnd(Open):
    """One end of a pair; ``inbox``: parts that have arrived, each with the files sent along."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.inbox: deque[tuple[bytearray, list[Open]]] = deque()
        self.capacity, self.peer, self.closed, self.timeout = capacity, self, False, None

    def release(self) -> None:
        self.closed = True
        for _, files in self.inbox:
            for file in files:
                file.drop()
        self.inbox.clear()

    def readable(self) -> bool:
        return bool(self.inbox) or self.peer.closed

    def room(self) -> int:
        return self.capacity - sum(len(data) for data, _ in self.inbox)


class MemoryFile(Open):
    """Memory without a name; a real one, so that arrays can be mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = real_os.memfd_create("world")

    def release(self) -> None:
        real_os.close(self.fd)


class EndOf(Open):
    """Readable once a process has ended."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process

    def readable(self) -> bool:
        return self.process.ended


class Process:
    """A process: a greenlet with descriptors and signals."""

    def __init__(self, kernel: Kernel, pid: int, parent: Process | None, run: Callable[[], object], name: str) -> None:
        self.pid, self.parent, self.name = pid, parent, name
        self.files: dict[int, Open] = {}
        self.environ: dict[str, str] = {}
        self.session = pid if parent is None else parent.session
        self.leader = self  # the process whose thread it is
        self.wakeup = -1
        self.dies_with_parent = self.stopped = self.ended = self.reaped = False
        self.status = 0  # as a signal's negative number or an exit code
        self.ready: Callable[[], bool] | None = None  # what it waits for; None: nothing
        self.until = float("inf")
        self.doing = ""  # its last call
        self.greenlet = greenlet(self._main, parent=kernel.scheduler)
        self._kernel, self._run = kernel, run

    def _main(self) -> None:
        status = 0
        try:
            self._run()
        except SystemExit as end:
            status = int(end.code or 0) if not isinstance(end.code, str) else 1
        except GreenletExit:
            return
        except BaseException as error:
            if self._kernel.over:
                return
            self._kernel.crashes.append((self.name, error))
            status = 1
        if not self._kernel.over:
            self._kernel.end(self, status)

    def descriptor(self, file: Open) -> int:
        number = 3
        while number in self.files:
            number += 1
        self.files[number] = file
        file.take()
        return number


class Kernel:
    """Schedules processes; ``capacity``: bytes that a pipe and a socket hold."""

    def __init__(
        self, choices: Choices, *, preemption: float = 0.0, capacity: int = PIPE, longest: int = 40_000
    ) -> None:
        self.choices, self.preemption, self.capacity = choices, preemption, capacity
        self.now = 0.0
        self.calls, self._longest = 0, longest
        self.processes: dict[int, Process] = {}
        self._living: dict[int, Process] = {}  # those that have not ended
        self.crashes: list[tuple[str, BaseException]] = []
        self.over = False
        self.trace: list[tuple[Any, ...]] = []
        self.on_switch: Callable[[str], None] = lambda _: None  # where faults happen
        self.on_birth: Callable[[str], None] = lambda _: None  # called first by each worker
        self.on_end: Callable[[Process], None] = lambda _: None
        self.tearing = 0.0  # probability that a write to shared memory is seen by halves
        self._ready: deque[Process] = deque()
        self._next_pid = 100
        self._running: Process | None = None
        self.scheduler = getcurrent()

    # ------------------------------------------------------------------------------------------- scheduling

    @property
    def current(self) -> Process:
        """The process that is running."""
        process = self._running
        assert process is not None and getcurrent() is process.greenlet, "no process calls"
        return process

    def start(
        self,
        run: Callable[[], object],
        name: str,
        parent: Process | None = None,
        *,
        thread_of: Process | None = None,
    ) -> Process:
        """Start a process, or a thread, which is one that shares its leader's files and end."""
        process = Process(self, self._next_pid, parent, run, name)
        if thread_of is not None:
            process.leader, process.files, process.environ = thread_of.leader, thread_of.files, thread_of.environ
        self._next_pid += 1
        self.processes[process.pid] = self._living[process.pid] = process
        self._ready.append(process)
        return process

    def run(self, process: Process) -> None:
        """Let all processes run until this one has ended."""
        self.scheduler = getcurrent()
        while not process.ended:
            self._wake()
            runnable = [each for each in self._ready if not each.stopped]
            if not runnable:
                times = [each.until for each in self._alive() if each.ready is not None and not each.stopped]
                soonest = min(times, default=float("inf"))
                if soonest == float("inf"):
                    raise Deadlock(f"no process can continue: {self._describe()}")
                self.now = max(self.now, soonest)
                self.on_switch("clock")
                continue
            chosen = runnable[self.choices.choose("schedule", "next", len(runnable), 4 * self.preemption)]
            self._ready.remove(chosen)
            self._running = chosen
            chosen.greenlet.switch()
            self._running = None

    def _alive(self) -> list[Process]:
        return list(self._living.values())

    def _wake(self) -> None:
        for process in self._alive():
            if process.ready is not None and (process.until <= self.now or process.ready()):
                process.ready = None
                self._ready.append(process)

    def _describe(self) -> str:
        return ", ".join(f"{each.name}{' (stopped)' if each.stopped else ''}" for each in self._alive())

    def call(self, *what: Any) -> None:
        """Note a call of the current process, which may let others go on, and may be its last."""
        if self.over:
            raise GreenletExit
        self.calls += 1
        if self.calls > self._longest:
            raise Endless(f"after {self.calls} calls the run has not ended: {self._describe()}")
        process = self.current
        process.doing = what[0]
        self.now += _TICK
        self.trace.append((round(self.now, 9), process.name, *what))
        self.on_switch(process.name)
        if process.ended or process.stopped or self.choices.choose("schedule", process.name, 2, self.preemption):
            self._switch(process)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block the current process until a condition holds; return whether it does, rather than time is up."""
        process = self.current
        process.until = float("inf") if timeout is None else self.now + max(0.0, timeout)
        while not ready():
            if self.now >= process.until:
                return False
            process.ready = ready
            process.greenlet.parent.switch()
            if self.over:
                raise GreenletExit
        return True

    def _switch(self, process: Process) -> None:
        if not process.ended:
            self._ready.append(process)
        process.greenlet.parent.switch()
        if self.over:
            raise GreenletExit

    # ------------------------------------------------------------------------------------------- processes

    def kill(self, process: Process, number: int) -> None:
        """Send a signal."""
        if process.ended:
            return
        if number in (real_signal.SIGSTOP, real_signal.SIGCONT):
            for each in self._alive():
                if each.leader is process.leader:
                    each.stopped = number == real_signal.SIGSTOP
        elif number in (real_signal.SIGKILL, real_signal.SIGTERM):
            self.trace.append((round(self.now, 9), process.name, "killed", int(number)))
            self.end(process.leader, -number)

    def end(self, process: Process, status: int) -> None:
        """End a process: close its files, tell its parent, and end the children that are bound to it."""
        process.ended, process.status, process.ready, process.stopped = True, status, None, False
        self._living.pop(process.pid, None)
        with contextlib.suppress(ValueError):
            self._ready.remove(process)
        if process.leader is not process:
            return  # a thread
        files, process.files = process.files, {}
        for file in files.values():
            file.drop()
        for thread in list(self._alive()):
            if thread.leader is process:
                self.end(thread, status)
        for child in list(self._alive()):
            if child.parent is process:
                if child.dies_with_parent:
                    self.kill(child, real_signal.SIGKILL)
                child.parent = None
        self.on_end(process)
        parent = process.parent
        if parent is None or parent.ended:
            process.reaped = True
        elif parent.wakeup in parent.files:
            file = parent.files[parent.wakeup]
            assert isinstance(file, WriteEnd)
            file.pipe.data += b"\x11"

    def exit(self, status: int) -> NoReturn:
        """End the current process here and now; none of its code runs any more."""
        process = self.current
        self.end(process.leader, status)
        self._switch(process)
        raise AssertionError("an ended process goes on")

    def close_all(self) -> None:
        """End the simulation: no process runs again, and memory is freed."""
        self.over = True
        for process in self.processes.values():
            for file in process.files.values():
                file.drop()
            process.files = {}
            if process.greenlet:
                with contextlib.suppress(BaseException):
                    process.greenlet.throw(GreenletExit)

    def file(self, number: int) -> Open:
        """Return the current process's open file; raise as the system does if there is none."""
        file = self.current.files.get(number)
        if file is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return file


class Memory(real_mmap.mmap):
    """Shared memory: a write may be seen half done, and a read may happen later."""

    kernel: Kernel

    def __setitem__(self, place: Any, data: Any) -> None:
        kernel = self.kernel
        if (
            isinstance(place, slice)
            and len(data) > 8  # a number is written at once
            and kernel.choices.choose("schedule", f"{kernel.current.name} writes", 2, kernel.tearing)
        ):
            start = place.start or 0
            half = start + len(data) // 2
            super().__setitem__(slice(start, half), data[: half - start])
            kernel.call("torn write")
            super().__setitem__(slice(half, start + len(data)), data[half - start :])
        else:
            super().__setitem__(place, data)
        if kernel.tearing:
            kernel.call("written")

    def __getitem__(self, place: Any) -> Any:
        if self.kernel.tearing:
            self.kernel.call("read")
        return super().__getitem__(place)
