"""The thread that owns a process's sockets: control between driver and nodes, and bytes between all of them.

Signs of life, acknowledgements and pieces go on whatever the program computes. The program passes functions to the
thread (:meth:`Carrier.do`), which carries them out in order, and reads the news that the thread leaves for it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import queue
import secrets
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
import zmq
from zmq.utils.z85 import encode

from anyk.base.errors import BadInput
from anyk.clusters.nodes.session import (
    BEAT,
    Answer,
    Hello,
    NodeWatch,
    Session,
    ToDriver,
    ToNode,
    from_driver,
    from_node,
)
from anyk.clusters.nodes.site import SiteEntry, difference, versions
from anyk.clusters.nodes.sockets import Sockets, at
from anyk.clusters.nodes.wire import ByteSource, Frames, Offered, Offers, Reads, digests_of

_TICK = 200  # milliseconds between two looks at what is late
_PROBE = 0.5  # seconds that a system may take to accept a connection
_OVER = b"over"  # what the driver answers a life that it has taken for dead
_TAKEN = b"taken"  # and one whose rank another program has
_LONGEST_REQUEST = 1 << 16  # bytes that a stranger may have this process store
NOT_ADMITTED = "the driver did not admit this node: see its message there"
STARTED_AGAIN = "its program was started again"
_MOST_STRANGERS = 100  # of whom the program is told at once
RANK_TAKEN = "another program with the same RANK is a node of this job"


class NodeJoined(NamedTuple):
    """A node has begun a life."""

    rank: int
    life: bytes
    hello: Hello


class Heard(NamedTuple):
    """The other side has sent a message."""

    life: bytes
    message: Any


class Taken(NamedTuple):
    """A node has acknowledged its messages up to a number."""

    life: bytes
    number: int


class Gone(NamedTuple):
    """The other side has died, or has taken this one for dead."""

    life: bytes
    reason: str


class ReadFinished(NamedTuple):
    """A read is over; ``key``: that under which most of its bytes were offered."""

    number: int
    complete: bool
    key: bytes


class Refused(NamedTuple):
    """A process was not admitted."""

    sentence: str


News = NodeJoined | Heard | Taken | Gone | ReadFinished | Refused


def is_address(text: str) -> bool:
    """Return whether a text is an address as :func:`at` returns it.

    >>> is_address("[::1]:5"), is_address("10.0.0.1:x"), is_address("somewhere")
    (True, False, False)
    """
    host, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return port.isascii() and port.isdecimal() and 0 < int(port) < 65536


class Carrier(threading.Thread):
    """Offers and reads bytes over plain TCP; its two kinds speak with the other side over an encrypted connection."""

    def __init__(self, host: str, port: int = 0) -> None:
        super().__init__(daemon=True)
        self.sockets = Sockets()
        self._news: deque[News] = deque()
        self._strangers: set[Refused] = set()  # of whom the program has not read
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self._waker = os.pipe()  # for the thread
        self.fd, self._ring = os.pipe()  # for the program: readable if there are news
        for descriptor in (self._wake, self._waker, self.fd, self._ring):
            os.set_blocking(descriptor, False)
        self.ended = False
        self._beat_at = 0.0
        self._sources: dict[str, zmq.Socket[bytes]] = {}
        self._bytes = self.sockets.new(zmq.ROUTER, most=_LONGEST_REQUEST)
        self.address = at(host, self.sockets.bind(self._bytes, host, port))
        self.sockets.guard(self._bytes, self.address, self._tell_of_stranger)
        self.offers = Offers(self._answer)
        self.reads = Reads(self._request, lambda *end: self.tell_program(ReadFinished(*end)), time.monotonic)
        self.sockets.listen(self._bytes, self._on_request)

    # ------------------------------------------------------------------------------------------- for the program

    def do(self, order: Callable[[], None]) -> None:
        """Have the thread carry out an order, after all earlier ones."""
        self._orders.put(order)
        with contextlib.suppress(BlockingIOError):  # it has been woken already
            os.write(self._waker, b"!")

    def report(self, sentence: str) -> None:
        """Tell the program of a stranger; any thread may call this."""
        self.do(lambda: self._tell_of_stranger(sentence))

    def news(self) -> list[News]:
        """Return what has happened since the last call."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass
        self._strangers.clear()
        return [self._news.popleft() for _ in range(len(self._news))]

    def offer(self, data: memoryview) -> Offered:
        """Offer bytes under a new secret key; they must not change until the key is dropped."""
        offered = Offered(secrets.token_bytes(16), len(data), digests_of(data))
        self.do(lambda: self.offers.put(offered.key, data))
        return offered

    def drop(self, key: bytes) -> None:
        """Withdraw bytes that were offered."""
        self.do(lambda: self.offers.drop(key))

    def read(self, number: int, into: memoryview, offered: Offered, sources: Sequence[str], first: int = 0) -> None:
        """Begin to read from processes, by their addresses, what one of them offers, from its byte ``first`` on."""
        from_each = [ByteSource(address, offered.key) for address in sources]

        def begin() -> None:
            self.reads.begin(number, into, offered.digests, from_each, first)
            self._connect_sources()

        self.do(begin)

    def read_also(self, number: int, address: str, key: bytes) -> None:
        """Read from a further process as well."""

        def add() -> None:
            self.reads.add_source(number, ByteSource(address, key))
            self._connect_sources()

        self.do(add)

    def stop(self, number: int) -> None:
        """Stop a read."""
        self.do(lambda: self.reads.stop(number))

    def stop_now(self, number: int) -> None:
        """Stop a read, and return when nothing is written any more to where it was read."""
        stopped = threading.Event()

        def stop() -> None:
            self.reads.stop(number)
            stopped.set()

        self.do(stop)
        while not (stopped.wait(1.0) or self.ended or not self.is_alive()):
            pass

    def end(self, within: float = 5.0) -> None:
        """End the thread, and close everything."""
        if not self.ended:
            self.do(self._end)
            self.join(within)
            for descriptor in (self._wake, self._waker, self.fd, self._ring):
                os.close(descriptor)

    # ------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a bug of anyk: the program must not wait for ever
            traceback.print_exc()
            self.tell_program(Gone(b"", f"{type(error).__name__}: {error}"))
        self.sockets.close_all()

    def _serve(self) -> None:
        while not self.ended:
            if self.sockets.read(_TICK, also=self._wake):
                self._carry_out()
            self.reads.look()
            self.look()
            if (now := time.monotonic()) >= self._beat_at:
                self._beat_at = now + BEAT
                self.beat()
                self._close_idle()

    def _carry_out(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._orders.get_nowait()()

    def _end(self) -> None:
        self.ended = True

    def beat(self) -> None:
        """Give signs of life; called every second."""

    def look(self) -> None:
        """See who is silent; called often."""

    def tell_program(self, news: News) -> None:
        """Leave news for the program, of the same stranger only once until it has read them."""
        if isinstance(news, Refused):
            if news in self._strangers or len(self._strangers) >= _MOST_STRANGERS:
                return
            self._strangers.add(news)
        self._news.append(news)
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b"!")

    def _tell_of_stranger(self, sentence: str) -> None:
        self.tell_program(Refused(sentence))

    # ------------------------------------------------------------------------------------------- bytes

    def _on_request(self, frames: list[Any]) -> None:
        who, *request = [frame.bytes for frame in frames]
        if not self.offers.asked(who, request):
            self._tell_of_stranger(f"somebody sent {self.address} what no node of this job sends; it was ignored")

    def _answer(self, who: bytes, frames: Frames) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._bytes.send_multipart([who, *frames], zmq.NOBLOCK, copy=False)

    def _request(self, address: str, frames: Frames) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._sources[address].send_multipart(list(frames), zmq.NOBLOCK)

    def _connect_sources(self) -> None:
        """Connect to the processes that reads have come to need; a read waits until they are connected."""
        for address in self.reads.addresses - self._sources.keys():
            source = self._sources[address] = self.sockets.new(zmq.DEALER)

            def on(event: int, address: str = address) -> None:
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self.reads.connected(address)
                else:
                    self.reads.disconnected(address)

            def arrived(frames: list[Any], address: str = address) -> None:
                self.reads.arrived(address, [frame.buffer for frame in frames])

            self.sockets.watch(source, on)
            self.sockets.listen(source, arrived)
            source.connect(f"tcp://{address}")

    def _close_idle(self) -> None:
        """Close the connections to processes that no read needs any more."""
        for address in self._sources.keys() - self.reads.addresses - self.living():
            self.sockets.close(self._sources.pop(address))
            self.reads.disconnected(address)
            self.reads.forget(address)

    def living(self) -> set[str]:
        """Return the addresses of processes that are likely to be read from again."""
        return set(self._sources)

    def probe(self, address: str, on: Callable[[Answer], None]) -> None:
        """Try to connect to a process, and have the thread pass on the answer."""

        def knock() -> None:
            answer: Answer = "none"
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PROBE).close()
                answer = "accepted"
            except ConnectionRefusedError:
                answer = "refused"
            except OSError:
                pass
            if not self.ended:
                self.do(lambda: on(answer))

        threading.Thread(target=knock, daemon=True).start()


@dataclass
class _Node:
    """A node's life, as the driver's thread knows it."""

    rank: int
    session: Session[ToNode]
    watch: NodeWatch
    hello: Hello | None = None
    joined: bool = False  # whether it is its rank's only life

    @property
    def address(self) -> str:
        """The address of its bytes, once it has joined."""
        return self.hello.address if self.hello is not None and self.joined else ""


class DriverCarrier(Carrier):
    """The driver's thread: it admits the nodes whose keys the job's store names, and speaks with them.

    ``find`` returns the entry of the node that has a public key, None if there is none; it raises
    :class:`~anyk.BadInput` if the node must not join.
    """

    def __init__(self, host: str, port: int, find: Callable[[str], SiteEntry | None]) -> None:
        super().__init__(host, port and port + 1)
        self._find = find
        self._nodes: dict[bytes, _Node] = {}
        self._over: dict[bytes, bytes] = {}  # what lives hear that were taken for dead, or turned away
        self._admitted: dict[bytes, int] = {}  # ranks, by lives
        self._gate = self.sockets.new_gate()
        self.sockets.listen(self._gate, self._on_key)
        self._control = self.sockets.new(zmq.ROUTER)
        public, secret = zmq.curve_keypair()
        self._control.curve_server = True
        self._control.curve_secretkey = secret
        self._control.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._control.setsockopt(zmq.ROUTER_HANDOVER, 1)  # of a node's connection that was opened again
        self.key, self.port = public.decode(), self.sockets.bind(self._control, host, port)
        self.sockets.guard(self._control, at(host, self.port), self._tell_of_stranger)
        self.sockets.listen(self._control, self._on_frame)

    def tell(self, life: bytes, message: ToNode) -> None:
        """Send a node a message, each once and in order, unless it has died."""

        def send() -> None:
            if (node := self._nodes.get(life)) is not None:
                node.session.tell(message)

        self.do(send)

    def silence(self, life: bytes) -> float:
        """Return the seconds since a node's last sign of life; infinity if it is over."""
        node = self._nodes.get(life)
        return math.inf if node is None else node.watch.silent

    def _on_key(self, frames: list[Any]) -> None:
        """Admit a process, or do not."""
        version, request, _, peer, _, _, *credentials = (frame.bytes for frame in frames)
        entry, reason = None, f"a process at {peer.decode()} that is not of this job was not admitted"
        if credentials:
            try:
                entry = self._find(encode(credentials[0]).decode())
            except RuntimeError:  # the store does not answer
                pass
            except BadInput as error:
                reason = str(error)
        if entry is not None and (reason := difference(f"node {entry.rank}", entry.versions, versions())):
            entry = None
        if entry is None:
            self.tell_program(Refused(reason))
        else:
            self._admitted[entry.life.encode()] = entry.rank
        status = b"400" if entry is None else b"200"
        user = b"" if entry is None else entry.life.encode()
        self._gate.send_multipart([version, request, status, b"", user, b""])

    def _on_frame(self, frames: list[Any]) -> None:
        if len(frames) != 2 or frames[1].get("User-Id").encode() != frames[0].bytes:
            return  # an admitted node speaks for itself only
        life, data = frames[0].bytes, frames[1].bytes
        if life in self._over:
            self._send(life, self._over[life])
            return
        if life not in self._nodes:
            session = Session[ToNode](lambda sent: self._send(life, sent), time.monotonic)
            self._nodes[life] = _Node(self._admitted[life], session, NodeWatch(time.monotonic))
        node = self._nodes[life]
        node.watch.heard()
        before = node.session.acknowledged
        try:
            body = node.session.take(data)
            message = None if body is None else from_node(body)
        except (msgspec.MsgspecError, ValueError) as error:
            self._bury(life, f"it sent what no node sends ({error})")
            return
        if node.session.acknowledged > before:
            self.tell_program(Taken(life, node.session.acknowledged))
        if isinstance(message, Hello):
            self._meet(life, node, message)
        elif message is not None:
            self.tell_program(Heard(life, message))

    def _meet(self, life: bytes, node: _Node, hello: Hello) -> None:
        """Have a life join once the earlier lives of its rank are known to be over."""
        if not is_address(hello.address) or node.hello is not None:
            self._bury(life, "it sent what no node sends (its greeting)")
            return
        node.hello = hello
        for other, other_node in list(self._nodes.items()):
            earlier = other_node.hello
            if other_node is node or other_node.rank != node.rank or earlier is None:
                continue
            if hello.address == earlier.address or (hello.machine, hello.pid) == (earlier.machine, earlier.pid):
                self._bury(other, STARTED_AGAIN)
            else:
                self.probe(earlier.address, partial(self._judge, life, other))
        self._welcome(life, node)

    def _judge(self, life: bytes, earlier: bytes, answer: Answer) -> None:
        """Have a life join if the earlier one of its rank is not there any more; else turn it away."""
        node, other = self._nodes.get(life), self._nodes.get(earlier)
        if node is None or node.hello is None:
            return
        if other is not None and other.hello is not None and answer == "accepted":
            del self._nodes[life]
            self._over[life] = _TAKEN
            sentence = f"a second program with RANK={node.rank}, at {node.hello.address}, was not admitted"
            self.tell_program(Refused(f"{sentence}: the one at {other.hello.address} is still there; end one of them"))
            return
        if other is not None:
            self._bury(earlier, STARTED_AGAIN)
        self._welcome(life, node)

    def _welcome(self, life: bytes, node: _Node) -> None:
        """Have a life join if it is its rank's only one."""
        if node.hello is not None and [other_node.rank for other_node in self._nodes.values()].count(node.rank) == 1:
            node.joined = True
            self.tell_program(NodeJoined(node.rank, life, node.hello))

    def _send(self, life: bytes, data: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is not connected now; what it needs is sent again
            self._control.send_multipart([life, data], zmq.NOBLOCK)

    def _bury(self, life: bytes, reason: str) -> None:
        """Take a node for dead: whatever it still says is answered with that."""
        del self._nodes[life]
        self._over[life] = _OVER
        self.tell_program(Gone(life, reason))

    def beat(self) -> None:
        for node in self._nodes.values():
            node.session.beat()

    def look(self) -> None:
        for life, node in list(self._nodes.items()):
            if node.watch.due() and node.address:
                self.probe(node.address, node.watch.answered)
            if node.watch.dead:
                self._bury(life, node.watch.dead)

    def living(self) -> set[str]:
        return {node.address for node in self._nodes.values()}


class NodeCarrier(Carrier):
    """A node's thread, which speaks with one life of the driver."""

    def __init__(self, host: str, port: int, keys: tuple[bytes, bytes], life: str, driver: SiteEntry) -> None:
        super().__init__(host, port)
        self.driver = driver.life.encode()
        self._driver_at = at(driver.host, driver.port)
        self._control = self.sockets.new(zmq.DEALER)
        self._control.curve_serverkey = driver.key.encode()
        self._control.curve_publickey, self._control.curve_secretkey = keys
        self._control.setsockopt(zmq.IDENTITY, life.encode())
        self._session = Session[ToDriver](self._send, time.monotonic)
        self._watch = NodeWatch(time.monotonic)
        self._left = False
        self.was_heard = False
        self.sockets.listen(self._control, self._on_frame)
        self.sockets.watch(self._control, self._on_event)
        self._control.connect(f"tcp://{self._driver_at}")

    def tell(self, message: ToDriver) -> None:
        """Send the driver a message, each once and in order."""
        self.do(lambda: self._session.tell(message))

    def _on_event(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.leave(NOT_ADMITTED)

    def _on_frame(self, frames: list[Any]) -> None:
        data = frames[0].bytes
        if data in (_OVER, _TAKEN):
            self.leave("it had taken this node for dead" if data == _OVER else RANK_TAKEN)
            return
        self._watch.heard()
        self.was_heard = True
        body = self._session.take(data)
        if body is not None:
            self._session.acknowledge()  # the driver waits for it before it sends a worker newer orders
            self.tell_program(Heard(self.driver, from_driver(body)))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._control.send(data, zmq.NOBLOCK)

    @property
    def silent(self) -> float:
        """Seconds since the driver's last sign of life."""
        return self._watch.silent

    def leave(self, reason: str) -> None:
        """Have the program end this life."""
        if not (self._left or self.ended):
            self._left = True
            self.tell_program(Gone(self.driver, reason))

    def beat(self) -> None:
        self._session.beat()

    def look(self) -> None:
        if self._watch.due():
            self.probe(self._driver_at, self._watch.answered)
        if self._watch.dead:
            self.leave(self._watch.dead)
