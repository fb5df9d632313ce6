"""The machines of a job on the cluster ``nodes``: their programs, links and store, and what happens to them."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess as real_subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import zmq as real_zmq

from anyk.base.errors import BadInput
from anyk.clusters.nodes import (
    agent,
    arrivals,
    carrier,
    door,
    holders,
    hub,
    nodes,
    site,
    sliced_messages,
    slices,
    sockets,
    vectors,
    wire,
)

from . import fake_zmq
from .broken import Broken
from .kernel import Kernel, Pipe, Process, ReadEnd, WriteEnd

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
_PORT = 29500
_STRANGER = b"stranger"  # the life of one
_MAY_BE_LATE = 5.0  # seconds after which the driver has noticed that a link is up again
_RESTART = 2.0  # seconds after which torchrun has started a program again


class _Store:
    """The store of a job; one that the driver hosts ends with it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._life = fleet, fleet.stores

    def _call(self, what: str, name: str) -> dict[str, bytes]:
        fleet = self._fleet
        fleet.kernel.call(what, name.partition("/")[2].partition("/")[0])
        here = fleet.host(fleet.kernel.current)
        fleet.kernel.wait(lambda: fleet.network.reachable(here, HOSTS[0]) and not fleet.stopped_store())
        if self._life != fleet.stores:
            raise RuntimeError("the store has ended")
        return fleet.entries

    def check(self, names: list[str]) -> bool:
        return names[0] in self._call("look up", names[0])

    def get(self, name: str) -> bytes:
        entries = self._call("look up", name)
        return entries[name]

    def set(self, name: str, value: bytes) -> None:
        self._call("publish", name)[name] = value


class Fleet:
    """The machines of a world's job: rank 0's driver is the world's, the others' programs run here.

    ``lasting``: the store is not the driver's, and is there after its end.
    """

    def __init__(self, kernel: Kernel, *, lasting: bool, pieces: int) -> None:
        self.kernel, self.lasting, self.pieces = kernel, lasting, pieces
        self.network = fake_zmq.Network(kernel, self.host)
        self.entries: dict[str, bytes] = {}
        self.stores = 0  # how many have ended
        self.said: list[str] = []
        self.size = len(HOSTS)
        self.driver: Process | None = None
        self._hosts: dict[Process, str] = {}
        self._lives = [0] * self.size
        self._left = [False] * self.size  # whether a driver has had its program end
        self._numbers = 0
        self.unlike: set[Process] = set()  # programs that have other versions
        self.other_version = False  # whether the next program that is started has
        self.deceived = False  # whether a node has taken a stranger for its driver
        self._cuts: dict[str, float] = {}  # when a machine's link was last up again
        self.zmq = fake_zmq.module(self.network)

    def host(self, process: Process) -> str:
        """Return the machine of a process."""
        return self._hosts[process.leader]

    def place(self, rank: int) -> site.JobPlace:
        return site.JobPlace(rank, self.size, HOSTS[0], _PORT, HOSTS[rank], b"secret")

    def stopped_store(self) -> bool:
        return not self.lasting and self.driver is not None and self.driver.stopped

    def begin(self) -> None:
        """Note that the current process is the driver; start the others' programs, unless they wait for it."""
        driver = self.driver = self.kernel.current
        self._hosts[driver] = HOSTS[0]
        driver.environ = {"RANK": "0"}
        hub._hub = None
        if not any(self._lives):
            self.network.start()
        for rank in range(1, self.size):
            if not self._lives[rank] or self._left[rank]:
                self.start(rank)

    def start(self, rank: int) -> None:
        """Start the program of a rank, as its launcher does."""
        name = f"node {rank}.{self._lives[rank]}"
        self._lives[rank] += 1
        self._left[rank] = False

        def program() -> None:
            try:
                reason = agent.serve(site.Site(self.place(rank)), 0)
            except BadInput as error:
                reason = str(error)
            self.said.append(f"node {rank} ends: {reason}")
            sys.exit(1 if reason else 0)

        process = self._start(program, name, HOSTS[rank])
        process.environ = {"RANK": str(rank)}
        if self.other_version:
            self.unlike.add(process)
            self.other_version = False

    def _start(self, program: Callable[[], None], name: str, host: str) -> Process:
        process = self.kernel.start(program, name)
        self._hosts[process] = host
        return process

    def versions(self) -> dict[str, str]:
        """Return what the current process has."""
        return {"anyk": "2" if self.kernel.current.leader in self.unlike else "1"}

    def check(self) -> None:
        """Raise :class:`Broken` if somebody takes part who must not."""
        own = hub._hub
        if self.deceived:
            raise Broken("strangers", "a node has taken a stranger for its driver")
        if own is not None:
            if _STRANGER in own.carrier._admitted:
                raise Broken("strangers", "a stranger was admitted")
            joined = {self.kernel.processes[node.hello.pid] for node in own.nodes.values()}
            if joined & self.unlike:
                raise Broken("versions", "a node with other versions has joined")

    def watch(self, driver: carrier.DriverCarrier) -> None:
        """Raise :class:`Broken` where a driver takes a node for dead that is there, or hears what no node sends."""
        bury = driver._bury

        def buried(life: bytes, reason: str) -> None:
            node = driver._nodes[life]
            if life == _STRANGER:
                raise Broken("strangers", "a stranger was admitted")
            if node.hello is None or reason.startswith("it sent what"):
                raise Broken("lives", f"node {node.rank} is taken for dead: {reason}")
            host, hello = HOSTS[node.rank], node.hello
            if reason.startswith("it could not be reached"):
                gone = host in self.network.down or self.kernel.now < self._cuts.get(host, -1.0) + _MAY_BE_LATE
            else:
                others = [each.hello for each in driver._nodes.values() if each is not node and each.hello is not None]
                gone = hello.address not in self.network.listening or hello.pid in [other.pid for other in others]
            if not gone:
                raise Broken("lives", f"node {node.rank} is taken for dead ({reason}), and is there")
            bury(life, reason)

        driver._bury = buried  # type: ignore[method-assign]

    def machine(self, rank: int) -> list[Process]:
        """Return the processes of a machine but the driver."""
        living = [each for each in self.kernel.processes.values() if not each.ended and each.leader is each]
        found: list[Process] = []
        for process in living:
            above: Process | None = process
            while above is not None and above is not self.driver:
                if self._hosts.get(above) == HOSTS[rank]:
                    found.append(process)
                    break
                above = above.parent
        return found

    def on_end(self, process: Process) -> None:
        """Note the end of a process."""
        self.network.ended(process)
        if process is self.driver and not self.lasting:
            self.stores += 1
            self.entries.clear()
        if process.name.startswith("node ") and process.leader is process:
            rank = int(process.name[5:].partition(".")[0])
            self._left[rank] = not process.status
            self.network.at(_RESTART, lambda: self._start_again(rank, certainly=bool(process.status)))

    def _start_again(self, rank: int, *, certainly: bool) -> None:
        """Start a program that has ended; one that has left in order, only if there is a new driver."""
        if certainly or (self._left[rank] and self.driver is not None and not self.driver.ended):
            self.start(rank)

    # ------------------------------------------------------------------------------------------- what happens

    def kill(self, rank: int, *, other_version: bool = False) -> bool:
        """Kill a machine's agent; whatever it has started ends with it.

        ``other_version``: the program that is started instead has other versions, once.
        """
        self.other_version = other_version
        found = [each for each in self.machine(rank) if each.name.startswith(("node", "agent"))]
        for process in found:
            self.kernel.kill(process, signal.SIGKILL)
        return bool(found)

    def stop(self, rank: int, seconds: float) -> bool:
        """Stop all processes of a machine for some seconds, but the driver."""
        found = [each for each in self.machine(rank) if not each.stopped]
        for process in found:
            self.kernel.kill(process, signal.SIGSTOP)

        def wake() -> None:
            for process in found:
                self.kernel.kill(process, signal.SIGCONT)

        self.network.at(seconds, wake)
        return bool(found)

    def cut(self, rank: int, seconds: float) -> bool:
        """Have a machine's link be down for some seconds."""
        host = HOSTS[rank]
        if host in self.network.down:
            return False
        self.network.down[host] = self.kernel.now

        def up() -> None:
            del self.network.down[host]
            self._cuts[host] = self.kernel.now

        self.network.at(seconds, up)
        return True

    def second(self, rank: int) -> bool:
        """Start a second program of a rank, on another machine."""

        def program() -> None:
            agent.serve(site.Site(self.place(rank)), 0)

        self._start(program, f"second {rank}", HOSTS[rank])
        return True

    def stranger(self, what: str) -> bool:
        """Have somebody who does not know the job's secret do something on its network."""
        self._start(
            {"entry": self._forge, "replay": self._replay, "join": self._intrude, "garbage": self._babble}[what],
            "stranger",
            "10.0.0.9",
        )
        return True

    def _forge(self) -> None:
        """Pose as the driver."""
        made = self.zmq.Context().socket(real_zmq.ROUTER)
        made.bind("tcp://10.0.0.9:*")
        port = int(made.getsockopt_string(real_zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.entries["anyk/driver"] = self._entry("driver", 0, "forged", "10.0.0.9", port, secret=b"guessed")
        self.kernel.wait(lambda: bool(made.inbox), 10.0)
        self.deceived = bool(made.inbox)

    def _replay(self) -> None:
        """Write the driver's entry of a former job with the same secret."""
        self.entries["anyk/driver"] = self._entry("driver", 0, "former", HOSTS[0], 1, secret=b"secret")

    def _intrude(self) -> None:
        """Pose as a node."""
        if hub._hub is None:
            return
        entry = hub._hub.entry
        public, secret = self.zmq.curve_keypair()
        name = f"node/{public.hex()}"
        self.entries[f"anyk/{name}"] = self._entry(name, 1, _STRANGER.decode(), secret=b"guessed", key=public.decode())
        made = self.zmq.Context().socket(real_zmq.DEALER)
        made.curve_serverkey, made.curve_publickey, made.curve_secretkey = entry.key.encode(), public, secret
        made.setsockopt(real_zmq.IDENTITY, _STRANGER)
        made.connect(f"tcp://{entry.host}:{entry.port}")
        made.send(b"hello")
        self.kernel.wait(lambda: False, 5.0)

    def _babble(self) -> None:
        """Send garbage to all who listen without encryption."""
        for address, listener in list(self.network.listening.items()):
            if not listener.curve_server and address.partition(":")[0] in HOSTS:
                made = self.zmq.Context().socket(real_zmq.DEALER)
                made.connect(f"tcp://{address}")
                for parts in ([b"x"], [b"key", bytes(24)], [b"a"] * 9, [b""]):
                    made.send_multipart(parts)
        self.kernel.wait(lambda: False, 1.0)

    def _entry(
        self,
        name: str,
        rank: int,
        life: str,
        host: str = "",
        port: int = 0,
        *,
        secret: bytes,
        key: str = "public key 0",
    ) -> bytes:
        entry = site.SiteEntry(rank, key, life, {"anyk": "1"}, self.size, host, port)
        return site.signed(secret, name, msgspec.json.encode(entry))

    def slow(self, rank: int, seconds: float) -> bool:
        """Have a machine's link be slow for some seconds."""
        self.network.slow.add(HOSTS[rank])
        self.network.at(seconds, lambda: self.network.slow.discard(HOSTS[rank]))
        return True

    def reset(self, rank: int) -> bool:
        """Break all connections of a machine to others."""
        return self.network.reset(HOSTS[rank])

    # ------------------------------------------------------------------------------------------- what anyk calls

    def unique(self, size: int) -> bytes:
        """Return bytes that no other call returns."""
        self._numbers += 1
        return self._numbers.to_bytes(8, "little").rjust(size, b"\0")

    def connect(self, own: site.Site, within: float = 300.0) -> _Store:
        """Return the store, in place of :meth:`anyk.clusters.nodes.site.Site._connect`."""
        kernel, here = self.kernel, HOSTS[own.place.rank]

        def there() -> bool:
            up = self.lasting or (self.driver is not None and not self.driver.ended and not self.driver.stopped)
            return up and self.network.reachable(here, HOSTS[0])

        kernel.call("connect to the store")
        if not kernel.wait(there, within):
            raise BadInput("the store cannot be reached")
        return _Store(self)

    def create_connection(self, address: tuple[str, int], seconds: float) -> Any:
        """Connect to a port, as a probe does."""
        kernel = self.kernel
        kernel.call("connect")
        answer = self.network.knock(kernel.current.leader, f"{address[0]}:{address[1]}")
        kernel.wait(lambda: False, seconds if answer == "none" else fake_zmq.LATENCY)
        if answer == "none":
            raise TimeoutError
        if answer == "refused":
            raise ConnectionRefusedError
        return SimpleNamespace(close=lambda: None)


class _Agent:
    """The agent of rank 0's machine: another process that runs :func:`anyk.clusters.nodes.agent.main`."""

    fleet: Fleet
    started = 0

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **_: Any) -> None:
        del command
        kernel, fleet = self.fleet.kernel, self.fleet
        driver = kernel.current
        pipe = Pipe(1 << 20)
        number = driver.descriptor(WriteEnd(pipe))
        process = self._process = kernel.start(agent.main, f"agent 0.{fleet.network.number('agent')}", driver)
        fleet._hosts[process] = HOSTS[0]
        process.environ, process.session = dict(env), process.pid
        assert process.descriptor(ReadEnd(pipe)) == 3
        self.pid, self._status = process.pid, None

        def write(data: bytes) -> None:
            pipe.data += data

        def close() -> None:
            file = driver.files.pop(number, None)
            if file is not None:
                file.drop()

        self.stdin = SimpleNamespace(write=write, flush=lambda: kernel.call("started", process.pid), close=close)

    def poll(self) -> int | None:
        self._process.reaped = self._process.ended
        return self._process.status if self._process.ended else None

    def kill(self) -> None:
        self.fleet.kernel.kill(self._process, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self.fleet.kernel.call("wait for", self.pid)
        if not self.fleet.kernel.wait(lambda: self._process.ended, timeout):
            raise real_subprocess.TimeoutExpired("agent", timeout or 0.0)
        return int(self.poll() or 0)


class _Event:
    """An event between threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._happened = kernel, False

    def set(self) -> None:
        self._happened = True

    def wait(self, seconds: float) -> bool:
        self._kernel.call("wait for a thread")
        return self._kernel.wait(lambda: self._happened, seconds)


class _System:
    """The part of ``sys`` that agents use."""

    modules, path, argv, executable, exit = sys.modules, sys.path, ["train.py"], sys.executable, staticmethod(sys.exit)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.stderr = io.StringIO()

    @property
    def stdin(self) -> Any:
        end = self._kernel.current.files[3]
        assert isinstance(end, ReadEnd)

        def readline() -> bytes:
            self._kernel.wait(lambda: b"\n" in end.pipe.data)
            line, _, _ = bytes(end.pipe.data).partition(b"\n")
            del end.pipe.data[: len(line) + 1]
            return line

        return SimpleNamespace(buffer=SimpleNamespace(readline=readline), fileno=lambda: 3)


@contextlib.contextmanager
def installed(fleet: Fleet, time: Any, os: Any, readable: Any, crashed: Callable[[], None]) -> Iterator[None]:
    """Let the kernel carry out what the cluster ``nodes`` asks of the system while the context lasts."""
    kernel, zmq = fleet.kernel, fleet.zmq

    def thread(target: Callable[..., None], args: Sequence[Any] = (), daemon: bool = False) -> Any:
        del daemon
        leader = kernel.current.leader
        return SimpleNamespace(
            start=lambda: kernel.start(lambda: target(*args), f"{leader.name} thread", thread_of=leader)
        )

    def start(own: carrier.Carrier) -> None:
        leader = kernel.current.leader
        threads[own] = kernel.start(own.run, f"{leader.name} carrier", thread_of=leader)

    def join(own: carrier.Carrier, within: float) -> None:
        kernel.wait(lambda: threads[own].ended, within)

    kernel.on_end = fleet.on_end
    threads: dict[carrier.Carrier, Process] = {}
    secrets = SimpleNamespace(token_bytes=fleet.unique, token_hex=lambda size: fleet.unique(size).hex())
    os.urandom = fleet.unique
    threading = SimpleNamespace(Thread=thread, Event=lambda: _Event(kernel))
    versions = fleet.versions
    system = _System(kernel)
    signals = SimpleNamespace(signal=lambda *_: None, SIGINT=signal.SIGINT, SIG_IGN=signal.SIG_IGN)
    subprocess = SimpleNamespace(
        Popen=type("Popen", (_Agent,), {"fleet": fleet}),
        PIPE=real_subprocess.PIPE,
        TimeoutExpired=real_subprocess.TimeoutExpired,
    )
    ends = SimpleNamespace(register=lambda end: None, unregister=lambda end: None)
    say = fleet.said.append
    finalizers: list[Any] = []

    def finalize(*arguments: Any) -> None:
        finalizers.append(weakref.finalize(*arguments))

    replaced: list[tuple[Any, dict[str, Any]]] = [
        (carrier, {"zmq": zmq, "os": os, "time": time, "secrets": secrets, "versions": versions,
                   "encode": lambda key: key, "traceback": SimpleNamespace(print_exc=crashed),
                   "socket": SimpleNamespace(create_connection=fleet.create_connection)}),
        (sockets, {"zmq": zmq, "time": time,
                   "parse_monitor_message": lambda frames: {"event": int.from_bytes(frames[0], "little"), "value": 0}}),
        (agent, {"zmq": zmq, "os": os, "time": time, "versions": versions, "readable": readable, "sys": system,
                 "threading": threading, "signal": signals, "say": say, "machine": lambda: fleet.host(kernel.current)}),
        (hub, {"os": os, "time": time, "versions": versions, "readable": readable, "sys": system, "atexit": ends,
               "signal": signals, "subprocess": subprocess, "say": say, "threading": threading}),
        (nodes, {"os": os, "time": time, "say": say}),
        (site, {"time": time, "secrets": secrets}),
        (site.Site, {"_connect": lambda own, within=300.0: fleet.connect(own, within)}),
        (site.JobPlace, {"from_environment": lambda address="": fleet.place(0)}),
        (vectors, {"time": time}),
        (door, {"say": say}),
        (arrivals, {"PIECE": fleet.pieces}),
        (wire, {"PIECE": fleet.pieces}),
        (slices, {"PIECE": fleet.pieces}),
        (holders, {"time": time}),
        (sliced_messages,
         {"weakref": SimpleNamespace(finalize=finalize, WeakValueDictionary=weakref.WeakValueDictionary)}),
        (carrier.Carrier, {"start": start, "join": join, "is_alive": lambda own: not threads[own].ended}),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        # threading.Thread is the carrier's base: only what it starts by itself is replaced
        stack.enter_context(mock.patch.object(carrier, "threading", threading))
        before = sys.modules["zmq"]  # patching the dictionary would forget what is imported meanwhile
        sys.modules["zmq"] = zmq
        stack.callback(lambda: sys.modules.update(zmq=before))
        for module, names in replaced:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
        try:
            yield
        finally:
            hub._hub = None
            for each in finalizers:  # of messages of drivers that were killed: they would keep all that these refer to
                each.detach()
