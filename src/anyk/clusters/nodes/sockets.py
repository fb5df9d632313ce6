"""A process's sockets: what is set on them, who watches them, and what is done when they can be read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from anyk.base.errors import BadInput
from anyk.clusters.nodes.door import HANDSHAKE, Door, DoorEvent

_LARGEST = 1 << 26  # bytes of a message that an admitted process may have this one store
_ZAP = "inproc://zeromq.zap.01"  # where libzmq asks whether to admit a key (RFC 27)
_EVENTS: dict[int, DoorEvent] = {
    zmq.EVENT_ACCEPTED: "accepted",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "over",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "over",  # of which the gate has told
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "silent",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "refused",
    zmq.EVENT_DISCONNECTED: "ended",
}


def at(host: str, port: int) -> str:
    """Return an address as ``host:port``.

    >>> at("::1", 5)
    '[::1]:5'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Sockets:
    """The sockets of one thread."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._readers: dict[zmq.Socket[bytes], Callable[[], None]] = {}  # what to do if a socket can be read
        self._monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}

    def new(self, kind: int, most: int = _LARGEST) -> zmq.Socket[bytes]:
        """Return a socket that notices within seconds that its connection is lost, and opens it again.

        ``most``: bytes of a message; whoever sends longer ones is disconnected.
        """
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, most)
        socket.ipv6 = True
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4000)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, 2000)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * HANDSHAKE))
        return socket

    def new_gate(self) -> zmq.Socket[bytes]:
        """Return the socket that is asked whether to admit a process."""
        socket = self._context.socket(zmq.REP)
        socket.linger = 0
        socket.bind(_ZAP)
        return socket

    def bind(self, socket: zmq.Socket[bytes], host: str, port: int) -> int:
        """Have a socket listen at one address of this machine; return its port, any free one for 0."""
        try:
            socket.bind(f"tcp://{at(host, port) if port else at(host, 0).replace(':0', ':*')}")
        except zmq.ZMQError as error:
            raise BadInput(f"cluster 'nodes' cannot listen at {at(host, port)}: {error.strerror}") from None
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def listen(self, socket: zmq.Socket[bytes], on: Callable[[list[Any]], None]) -> None:
        """Pass each message of a socket to a function, in :meth:`read`."""

        def read() -> None:
            with contextlib.suppress(zmq.Again):
                while True:
                    on(socket.recv_multipart(zmq.NOBLOCK, copy=False))

        self._readers[socket] = read

    def watch(self, socket: zmq.Socket[bytes], on: Callable[[int], None]) -> None:
        """Pass the events of a socket's connection to a function."""
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        monitor = self._monitors[socket] = socket.get_monitor_socket(events)
        self.listen(monitor, lambda frames: on(parse_monitor_message([frame.bytes for frame in frames])["event"]))

    def guard(self, socket: zmq.Socket[bytes], address: str, tell: Callable[[str], None]) -> None:
        """Tell a sentence about each stranger who connects to a listening socket."""
        door = Door(address, tell, time.monotonic)
        monitor = self._monitors[socket] = socket.get_monitor_socket(sum(_EVENTS))

        def look(frames: list[Any]) -> None:
            happened = parse_monitor_message([frame.bytes for frame in frames])
            if (event := _EVENTS.get(int(happened["event"]))) is not None:
                door.happened(event, int(happened["value"]))

        self.listen(monitor, look)

    def read(self, milliseconds: int, also: int) -> bool:
        """Wait until there is something to read, and pass it on; return whether the descriptor ``also`` can be read."""
        poller = zmq.Poller()
        for reader in (*self._readers, also):
            poller.register(reader, zmq.POLLIN)
        can_be_read = [reader for reader, _ in poller.poll(milliseconds)]
        for reader in can_be_read:
            if (read := self._readers.get(reader)) is not None:
                with contextlib.suppress(zmq.ZMQError):  # another reader may have closed it
                    read()
        return also in can_be_read

    def close(self, socket: zmq.Socket[bytes]) -> None:
        """Close a socket, and what watches it."""
        monitor = self._monitors.pop(socket)
        socket.disable_monitor()
        for closed in (socket, monitor):
            del self._readers[closed]
            closed.close()

    def close_all(self) -> None:
        """Close everything."""
        self._context.destroy(linger=0)
