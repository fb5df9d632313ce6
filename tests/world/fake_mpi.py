"""MPI as far as anyk uses it: messages between ranks, requests, and the death of a rank, on the simulated kernel.

A message leaves its sender's memory when it is delivered, not when it is sent, as large messages do in MPI: what the
sender changes before shows. Messages of one rank to another do not overtake each other.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from anyk.clusters.mpi import link, mpi, rank_worker

from .kernel import Kernel, Process

_LATENCY = 0.0002  # seconds that a message usually takes
_LATENCIES = (1.0, 0.0, 5.0, 50.0)  # multiples of it
_PAUSE = 1.0  # seconds that a pause without news takes, which is longer than a real one


class MpiError(Exception):
    """What MPI raises for a request whose other side has died, if the library continues then."""


class _Message:
    """A message under way, and where its bytes are."""

    def __init__(self, tag: int, data: Any) -> None:
        self.tag, self.data = tag, memoryview(data).cast("B")
        self.left = False  # whether its memory may be used again
        self.bytes = b""

    def __len__(self) -> int:
        return self.data.nbytes


class _Sending:
    def __init__(self, world: FakeMpi, message: _Message, rank: int) -> None:
        self._world, self._message, self._rank = world, message, rank

    def Test(self) -> bool:
        self._world.kernel.call("test")
        return self._message.left or self._rank in self._world.dead


class _Receiving:
    """A posted receive; messages are matched to receives of their source and tag in order."""

    def __init__(self, world: FakeMpi, mailbox: deque[_Message], buffer: Any, source: int) -> None:
        self._world, self._mailbox = world, mailbox
        self._buffer, self._source = memoryview(buffer).cast("B"), source
        self.done = False

    def Test(self) -> bool:
        self._world.kernel.call("test")
        return self.complete()

    def complete(self) -> bool:
        if not self.done and self._mailbox:
            data = self._mailbox.popleft().bytes
            assert len(data) <= len(self._buffer), "a message is longer than the buffer that awaits it"
            self._buffer[: len(data)] = data
            self.done = True
        if not self.done and self._source in self._world.dead:
            raise MpiError(f"rank {self._source} has failed")
        return self.done

    def Cancel(self) -> None:
        self.done = True

    def Wait(self) -> None:
        """Return: it was cancelled."""


class _Status:
    count = 0

    def Get_count(self, kind: object) -> int:
        return self.count


class FakeMpi:
    """A program's ranks; ``lasting``: the program goes on when one of them dies, as few MPI libraries do."""

    def __init__(self, kernel: Kernel, workers: int, *, lasting: bool) -> None:
        self.kernel, self.size, self._lasting = kernel, workers + 1, lasting
        self.dead: set[int] = set()
        self.changes = [0] * self.size  # messages and deaths that a rank may have noticed
        self._ranks: dict[Process, int] = {kernel.current: 0}
        self._boxes: dict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)
        self._under_way: dict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._ended = False
        kernel.on_end = self._on_end
        self._driver = kernel.current
        for number in range(workers):
            self._ranks[kernel.start(lambda: self._serve(), f"worker {number}.0", kernel.current)] = number + 1

    def _serve(self) -> None:
        self.kernel.on_birth(self.kernel.current.name)
        rank_worker.serve(self)

    def _on_end(self, process: Process) -> None:
        rank = self._ranks.get(process)
        if rank is None or self._ended:
            return
        if process.status == 0 and rank:
            return  # it has left in order
        if self._lasting and rank:
            self.dead.add(rank)
            self.changes[0] += 1
            return
        self.Abort(process.status)

    def Abort(self, status: int) -> None:
        """End all ranks that are left."""
        self._ended = True
        for process in self._ranks:
            if not process.ended:
                self.kernel.kill(process, signal.SIGKILL)

    def finalize(self) -> None:
        """Wait for the other ranks, as MPI does at the end of a rank."""
        self.kernel.wait(lambda: all(process.ended for process, rank in self._ranks.items() if rank))
        self._ended = True

    @property
    def rank(self) -> int:
        return self._ranks[self.kernel.current.leader]

    # ------------------------------------------------------------------------------------------- messages

    def Isend(self, data: Any, dest: int, tag: int) -> _Sending:
        kernel, source = self.kernel, self.rank
        kernel.call("send", dest, tag)
        message = _Message(tag, data)
        line = self._under_way[source, dest]
        line.append(message)
        choice = kernel.choices.choose("load", f"network {source} to {dest}", len(_LATENCIES), 0.2)

        def deliver() -> None:
            kernel.wait(lambda: False, _LATENCY * _LATENCIES[choice])
            kernel.wait(lambda: line[0] is message)
            line.popleft()
            message.bytes, message.left = bytes(message.data), True
            self._boxes[source, dest, tag].append(message)
            self.changes[dest] += 1
            self.changes[source] += 1

        kernel.start(deliver, "network")
        return _Sending(self, message, dest)

    def Irecv(self, buffer: Any, source: int, tag: int) -> _Receiving:
        return _Receiving(self, self._boxes[source, self.rank, tag], buffer, source)

    def Iprobe(self, source: int, tag: int, status: _Status) -> bool:
        self.kernel.call("probe")
        box = self._boxes[source, self.rank, tag]
        status.count = len(box[0]) if box else 0
        return bool(box)

    def Testsome(self, requests: Sequence[_Receiving]) -> list[int] | None:
        self.kernel.call("test some")
        return [place for place, request in enumerate(requests) if request.complete()]

    def pause(self, longest: float = 0.0) -> Callable[..., None]:
        """Return what stands for :class:`~anyk.clusters.mpi.link.Pause`: it ends as soon as there may be news."""
        rank = self.rank
        seen = self.changes[rank]

        def wait(until: float | None = None) -> None:
            nonlocal seen
            self.kernel.call("pause")
            left = _PAUSE if until is None else min(_PAUSE, until - self.kernel.now)
            self.kernel.wait(lambda: self.changes[rank] > seen, left)
            seen = self.changes[rank]

        return wait


class Program:
    """The MPI program of a driver, and its ranks' records; ``start`` before and ``end`` after its clusters are used."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._ranks: Any = None

    def start(self, workers: int, *, lasting: bool) -> None:
        world = FakeMpi(self._kernel, workers, lasting=lasting)
        self.world = world
        self._ranks = mpi.Ranks(world)

    def ranks(self) -> Any:
        return self._ranks

    def end(self) -> None:
        """End as at the end of the driver's program."""
        self._ranks.end()
        self.world.finalize()


@contextlib.contextmanager
def installed(kernel: Kernel, time: Any, os: Any, crashed: Callable[[], None]) -> Iterator[Program]:
    """Let the kernel carry out what the ``mpi`` cluster asks of MPI and the clock while the context lasts."""
    program = Program(kernel)

    def pause(longest: float = 0.0) -> Callable[..., None]:
        return program.world.pause()

    class Request:
        Testsome = staticmethod(lambda requests: program.world.Testsome(requests))

    fake = SimpleNamespace(Request=Request, Status=_Status, Exception=MpiError, BYTE=None)
    replaced = [
        (link, {"time": time, "Pause": pause}),
        (mpi, {"time": time, "Pause": pause, "join": lambda: None, "shared_ranks": program.ranks,
               "atexit": SimpleNamespace(register=lambda end: None),
               "sys": SimpleNamespace(stderr=io.StringIO(), stdout=sys.stdout)}),
        (rank_worker, {"time": time, "Pause": pause, "os": os}),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        before = sys.modules.get("mpi4py")  # patching the dictionary would forget what is imported meanwhile
        sys.modules["mpi4py"] = SimpleNamespace(MPI=fake)
        stack.callback(lambda: sys.modules.update(mpi4py=before) if before else sys.modules.pop("mpi4py"))
        for module, names in replaced:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
        yield program
