"""ZeroMQ as far as anyk uses it, over a network whose links can be slow, down, or change bytes, on the simulated kernel.

A connection keeps the order of what is sent on it. While a link is down, what is sent waits, as TCP sends it again; a
connection on which nothing has come for some seconds is closed, with all that is under way, and opened again later. A
process that is stopped receives nothing new, and connects to nobody; one that is killed has sent what it has sent.
"""

from __future__ import annotations

import errno
import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import zmq as real_zmq

from .kernel import Kernel, Process

LATENCY = 0.0005  # seconds that a message usually takes
_LATENCIES = (1.0, 0.0, 5.0, 100.0)  # multiples of it
_SLOW = 400.0  # how many times as long it takes on a slow link
_AGAIN = 0.3  # seconds between two attempts to connect, or to send on a link that is down
_BEAT, _DEAF = 1.0, 4.0  # seconds between two looks at a connection, and of silence after which it is closed
_QUEUE = 1000  # messages that a socket keeps while it is not connected

Parts = Sequence[bytes | memoryview]


class Frame:
    """A part of a message that has arrived; ``user``: whom the gate has admitted at the connection."""

    def __init__(self, data: bytes, user: str = "") -> None:
        self.bytes, self.user = data, user

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.bytes)

    def get(self, name: str) -> str:
        assert name == "User-Id"
        return self.user


class Network:
    """The machines' links; ``host(process)``: the machine of a process."""

    def __init__(self, kernel: Kernel, host: Callable[[Process], str]) -> None:
        self.kernel, self.host = kernel, host
        self.down: dict[str, float] = {}  # machines whose link is down, and since when
        self.slow: set[str] = set()  # machines whose link is slow
        self.spoils: Callable[[], bool] = lambda: False  # whether the next answer is changed on its way
        self.listening: dict[str, Socket] = {}
        self.gates: dict[Process, Socket] = {}
        self.sockets: list[Socket] = []
        self.connections: list[Connection] = []
        self.numbers = Counter[str]()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._changed = False
        self._sent = 0

    def start(self) -> None:
        """Start the process that carries messages."""
        self.kernel.start(self._carry, "network")

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """Have something happen after some seconds."""
        self._sent += 1
        heapq.heappush(self._events, (self.kernel.now + seconds, self._sent, event))
        self._changed = True

    def _carry(self) -> None:
        kernel = self.kernel
        while True:
            left = self._events[0][0] - kernel.now if self._events else None
            kernel.wait(lambda: self._changed, left)
            self._changed = False
            while self._events and self._events[0][0] <= kernel.now:
                heapq.heappop(self._events)[2]()

    def number(self, kind: str) -> int:
        """Return the next number of a kind."""
        self.numbers[kind] += 1
        return self.numbers[kind]

    def reachable(self, one: str, other: str) -> bool:
        """Return whether one machine can reach the other."""
        return one == other or not {one, other} & self.down.keys()

    def latency(self, one: str, other: str) -> float:
        """Return the seconds that the next message between two machines takes."""
        option = self.kernel.choices.choose("load", f"network {one} to {other}", len(_LATENCIES), 0.1)
        slow = _SLOW if {one, other} & self.slow and one != other else 1.0
        return LATENCY * _LATENCIES[option] * slow

    def ended(self, process: Process) -> None:
        """Close what a process had open; its last messages still arrive."""
        for socket in [socket for socket in self.sockets if socket.process is process]:
            socket.close()
        self.gates.pop(process, None)

    def reset(self, host: str) -> bool:
        """Break all connections of a machine to others; return whether there were any."""
        found = [each for each in self.connections if host in each.hosts and each.hosts[0] != each.hosts[1]]
        for connection in found:
            connection.close()
        return bool(found)

    def knock(self, process: Process, address: str) -> str:
        """Return the answer to an attempt to connect: "refused", "accepted" or "none"."""
        host = address.rpartition(":")[0]
        if not self.reachable(self.host(process), host):
            return "none"
        return "accepted" if address in self.listening else "refused"


class Connection:
    """A connection of a DEALER to a ROUTER that are both there."""

    def __init__(self, network: Network, client: Socket, server: Socket, user: str) -> None:
        self.network, self.ends, self.user = network, (client, server), user
        self.identity = client.options.get(real_zmq.IDENTITY) or b"\0%d" % network.number("identity")
        self.hosts = network.host(client.process), network.host(server.process)
        self.ways: tuple[deque[Parts | None], deque[Parts | None]] = deque(), deque()
        self.open = True
        self._deaf = 0.0
        network.connections.append(self)
        network.at(_BEAT, self._look)

    def send(self, sender: Socket, parts: Parts | None) -> None:
        """Send a message, or, for None, that this side has ended."""
        direction = self.ends.index(sender)
        self.ways[direction].append(parts)
        self.network.at(self.network.latency(*self.hosts), lambda: self._deliver(direction))

    def _deliver(self, direction: int) -> None:
        network, way = self.network, self.ways[direction]
        if not (self.open and way):
            return
        receiver = self.ends[1 - direction]
        if not network.reachable(*self.hosts):
            network.at(_AGAIN, lambda: self._deliver(direction))
            return
        parts = way.popleft()
        if parts is None:
            self.close()
            return
        data = [bytes(part) for part in parts]  # its memory leaves the sender now, not when it was sent
        if len(data) == 2 and len(data[1]) > 3 and not self.user and direction and network.spoils():
            data[1] = bytes([data[1][0] ^ 64]) + data[1][1:]
        if not direction:
            data.insert(0, self.identity)
        receiver.inbox.append([Frame(part, self.user) for part in data])

    def _look(self) -> None:
        network = self.network
        if not self.open:
            return
        deaf = not network.reachable(*self.hosts) or any(end.process.stopped for end in self.ends)
        self._deaf = self._deaf + _BEAT if deaf else 0.0
        if self._deaf >= _DEAF:
            self.close()
        else:
            network.at(_BEAT, self._look)

    def close(self) -> None:
        """Close the connection; what is under way is lost."""
        if not self.open:
            return
        self.open = False
        self.network.connections.remove(self)
        client, server = self.ends
        if server.peers.get(self.identity) is self:
            del server.peers[self.identity]
        if client.connection is self:
            client.connection = None
            client.tell_monitor(real_zmq.EVENT_DISCONNECTED)
            client.attempt_soon()


class Socket:
    """A socket; what anyk sets on it and needs no simulation is only kept."""

    curve_server = False
    curve_secretkey = curve_publickey = curve_serverkey = b""

    def __init__(self, network: Network, kind: int) -> None:
        self.network, self.kind = network, kind
        self.process = network.kernel.current.leader
        self.options: dict[int, Any] = {}
        self.inbox: deque[list[Frame]] = deque()
        self.queue: deque[Parts] = deque()  # of a DEALER that is not connected
        self.peers: dict[bytes, Connection] = {}  # of a ROUTER
        self.connection: Connection | None = None  # of a DEALER
        self.asking: dict[bytes, Socket] = {}  # of a gate: those who wait to be admitted
        self.monitor: Socket | None = None
        self.closed = False
        self._address = ""
        network.sockets.append(self)

    def setsockopt(self, option: int, value: Any) -> None:
        self.options[option] = value

    def getsockopt_string(self, option: int) -> str:
        assert option == real_zmq.LAST_ENDPOINT
        return self._address

    def bind(self, endpoint: str) -> None:
        network = self.network
        if endpoint.startswith("inproc"):
            network.gates[self.process] = self
            return
        address = endpoint.removeprefix("tcp://")
        if address.endswith(":*"):
            address = address[:-1] + str(20000 + network.number("port"))
        if address in network.listening:
            raise real_zmq.ZMQError(errno.EADDRINUSE)
        self._address, network.listening[address] = address, self

    def connect(self, endpoint: str) -> None:
        self._address = endpoint.removeprefix("tcp://")
        self.network.at(LATENCY, self._attempt)

    # ------------------------------------------------------------------------------------------- connections

    def attempt_soon(self) -> None:
        """Connect again."""
        if not self.closed:
            self.network.at(_AGAIN, self._attempt)

    def _attempt(self) -> None:
        network = self.network
        if self.closed or self.connection is not None:
            return
        server = network.listening.get(self._address)
        hosts = network.host(self.process), self._address.rpartition(":")[0]
        out_of_reach = server is None or not network.reachable(*hosts) or server.process.stopped
        if server is None or out_of_reach or self.process.stopped:
            self.attempt_soon()
        elif not server.curve_server:
            self._connected(server, "")
        elif self.curve_serverkey == public_key(server.curve_secretkey):
            gate = network.gates[server.process]
            number = b"%d" % network.number("request")
            gate.asking[number] = self
            request = [b"1.0", number, b"", hosts[0].encode(), b"", b"CURVE", self.curve_publickey]
            gate.inbox.append([Frame(part) for part in request])
            network.at(_DEAF, lambda: self._unanswered(gate, number))
        else:  # a handshake that fails, and is tried again
            self.attempt_soon()

    def _unanswered(self, gate: Socket, number: bytes) -> None:
        if gate.asking.pop(number, None) is not None:
            self.attempt_soon()

    def _admit(self, number: bytes, status: bytes, user: str) -> None:
        """Of a gate: admit who has asked, or do not."""
        client = self.asking.pop(number, None)
        if client is None or client.closed:
            return
        server = self.network.listening.get(client._address)
        if status != b"200" or server is None:
            client.tell_monitor(real_zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        else:
            client._connected(server, user)

    def _connected(self, server: Socket, user: str) -> None:
        self.connection = connection = Connection(self.network, self, server, user)
        before = server.peers.pop(connection.identity, None)
        if before is not None:  # ROUTER_HANDOVER
            before.close()
        server.peers[connection.identity] = connection
        self.tell_monitor(real_zmq.EVENT_HANDSHAKE_SUCCEEDED)
        while self.queue:
            connection.send(self, self.queue.popleft())

    def tell_monitor(self, event: int) -> None:
        if self.monitor is not None:
            self.monitor.inbox.append([Frame(int(event).to_bytes(4, "little"))])

    # ------------------------------------------------------------------------------------------- messages

    def send(self, data: bytes, flags: int = 0) -> None:
        self.send_multipart([data], flags)

    def send_multipart(self, parts: Parts, flags: int = 0, copy: bool = True) -> None:
        self.network.kernel.call("send", sum(len(part) for part in parts))
        assert not self.closed
        parts = [bytes(part) for part in parts] if copy else list(parts)
        if self.kind == real_zmq.REP:
            _, number, status, _, user, _ = parts
            self.network.at(LATENCY, lambda: self._admit(bytes(number), bytes(status), bytes(user).decode()))
        elif self.kind == real_zmq.ROUTER:
            connection = self.peers.get(bytes(parts[0]))
            if connection is not None:
                connection.send(self, parts[1:])
            elif self.options.get(real_zmq.ROUTER_MANDATORY):
                raise real_zmq.ZMQError(errno.EHOSTUNREACH)
        elif self.connection is not None:
            self.connection.send(self, parts)
        elif len(self.queue) < _QUEUE:
            self.queue.append(parts)
        else:
            raise real_zmq.Again

    def recv_multipart(self, flags: int, copy: bool) -> list[Frame]:
        self.network.kernel.call("receive")
        if self.closed:
            raise real_zmq.ZMQError(errno.ENOTSOCK)
        if not self.inbox:
            raise real_zmq.Again
        return self.inbox.popleft()

    def get_monitor_socket(self, events: int) -> Socket:
        self.monitor = Socket(self.network, real_zmq.PAIR)
        return self.monitor

    def disable_monitor(self) -> None:
        self.monitor = None

    def close(self) -> None:
        """Close the socket; what it has sent still arrives."""
        if self.closed:
            return
        self.closed = True
        self.network.sockets.remove(self)
        if self.network.listening.get(self._address) is self:
            del self.network.listening[self._address]
        connections = [*self.peers.values(), *([] if self.connection is None else [self.connection])]
        for connection in connections:
            connection.send(self, None)


class _Poller:
    kernel: Kernel

    def __init__(self) -> None:
        self._readers: list[Any] = []

    def register(self, reader: Any, _: int) -> None:
        self._readers.append(reader)

    def poll(self, milliseconds: int) -> list[tuple[Any, int]]:
        kernel = self.kernel
        kernel.call("poll")
        readers = [
            (each, (lambda each=each: bool(each.inbox)) if isinstance(each, Socket) else kernel.file(each).readable)
            for each in self._readers
        ]
        kernel.wait(lambda: any(readable() for _, readable in readers), milliseconds / 1000)
        return [(each, real_zmq.POLLIN) for each, readable in readers if readable()]


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret one."""
    return secret.replace(b"secret", b"public")


def module(network: Network) -> Any:
    """Return what stands for the module ``zmq``."""

    class Context:
        def __init__(self) -> None:
            self._sockets: list[Socket] = []

        def socket(self, kind: int) -> Socket:
            made = Socket(network, kind)
            self._sockets.append(made)
            return made

        def destroy(self, linger: int) -> None:
            del linger
            for socket in self._sockets:
                socket.close()

    def curve_keypair() -> tuple[bytes, bytes]:
        secret = b"secret key %d" % network.number("key")
        return public_key(secret), secret

    names = {name: getattr(real_zmq, name) for name in dir(real_zmq) if name.isupper()}
    return SimpleNamespace(
        **names | {"Context": Context, "Poller": type("Poller", (_Poller,), {"kernel": network.kernel})},
        ZMQError=real_zmq.ZMQError,
        Again=real_zmq.Again,
        Socket=Socket,
        curve_keypair=curve_keypair,
    )
