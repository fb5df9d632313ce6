"""What rank 0 has for all clusters of its program: sockets, nodes, and the agent of its own machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.nodes.door import Said, say
from anyk.clusters.nodes.node import Node
from anyk.clusters.nodes.session import Done, Leave, NodeBroken, Told, ToNode, WorkerEnded
from anyk.clusters.nodes.site import JobPlace, Site, SiteEntry, need_packages, other_size, versions
from anyk.clusters.waiting import readable
from anyk.problems.data.reader_processes import python_settings

if TYPE_CHECKING:
    from anyk.clusters.nodes.carrier import DriverCarrier, News

_FAREWELL = 5.0  # seconds that nodes may take to end
_MOST_ENDS, _WITHIN = 20, 600.0  # ends of the agent on this machine with which a run ends, within so many seconds
_LOOK = 2.0  # seconds between two looks whether the store still has the driver's entry
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from anyk.clusters.nodes import agent; agent.main()"


class OpenRun(Protocol):
    """What a hub tells the cluster whose run is open."""

    @property
    def run(self) -> int:
        """Its number."""
        ...

    def node_joined(self, node: Node) -> None:
        """Take in that a node has begun a life."""
        ...

    def node_has_taken(self, node: Node) -> None:
        """Take in that a node has acknowledged messages."""
        ...

    def node_died(self, node: Node, reason: str) -> None:
        """Take in that a node's life is over."""
        ...

    def on_message(self, node: Node, message: Told | WorkerEnded | Done | NodeBroken) -> None:
        """Take in a message of a node."""
        ...

    def on_read(self, number: int, complete: bool) -> None:
        """Take in the end of a read."""
        ...

    def close(self) -> None:
        """End the run."""
        ...


class Hub:
    """What rank 0 has for all clusters of the program: its thread with the sockets, and its records of nodes."""

    def __init__(self, site: Site, port: int) -> None:
        from anyk.clusters.nodes.carrier import DriverCarrier

        self.site = site
        self.size, self.port = site.place.size, port
        self.nodes: dict[int, Node] = {}
        self.lives: dict[bytes, Node] = {}
        self.runs = self._reads = 0
        self.open: OpenRun | None = None
        self.starting = False  # whether workers of a run are being started for the first time
        self.goes_on = False  # whether this program will be started again
        self._own: SiteEntry | None = None  # the node of this machine
        self.said = Said()
        self._ended: deque[float] = deque(maxlen=_MOST_ENDS)  # when agents of this machine have ended
        self._child: subprocess.Popen[bytes] | None = None
        self.carrier: DriverCarrier = DriverCarrier(site.place.host, port, self._find_node)
        self.entry = SiteEntry(
            rank=0,
            key=self.carrier.key,
            life=site.life,
            versions=versions(),
            size=self.size,
            host=site.place.host,
            port=self.carrier.port,
        )
        self.carrier.start()
        self._start_child()
        site.publish(self.entry)
        threading.Thread(target=self._keep_entry, daemon=True).start()
        self._under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        if self._under_torchrun:  # nothing in the environment tells a static rendezvous from another for certain
            say(
                "torchrun starts the program of a node again, and leaves the other nodes alone, only with --node-rank, "
                "--master-addr and --max-restarts, not with --rdzv-backend c10d"
            )
        atexit.register(self.end)

    def _find_node(self, key: str) -> SiteEntry | None:
        """Return the entry of a node's public key; called by the thread."""
        own = self._own
        if own is not None and own.key == key:
            return own
        entry = self.site.node(key)
        if entry is not None and not (0 < entry.rank < self.size == entry.size):
            raise BadInput(other_size(entry.rank, entry.size, self.size))
        return entry

    def _start_child(self) -> None:
        """Start the agent of this machine, a program of its own, so that its end or stop is not the driver's."""
        import zmq

        from anyk.clusters.nodes.agent import Child

        public, secret = (key.decode() for key in zmq.curve_keypair())
        self._own = SiteEntry(0, public, os.urandom(8).hex(), versions(), self.size)
        child = Child(self.site.place.host, self.port and self.port + 2, [public, secret], self._own.life, self.entry)
        environment, path = python_settings()
        self._child = subprocess.Popen(
            [sys.executable, "-c", _BOOT, path],
            stdin=subprocess.PIPE,
            stdout=2,
            env=environment,
            process_group=0,  # Ctrl-C in the terminal then reaches only the driver
        )
        assert self._child.stdin is not None
        self._child.stdin.write(msgspec.json.encode(child) + b"\n")
        self._child.stdin.flush()

    def next_read(self) -> int:
        """Return a number for a read."""
        self._reads += 1
        return self._reads

    def tell(self, node: Node, message: ToNode) -> None:
        """Tell a node something."""
        node.told += 1
        self.carrier.tell(node.life, message)

    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for news, and take them in."""
        readable([self.carrier.fd], timeout)
        for news in self.carrier.news():
            self._take_in(news)
        if self._child is not None and (status := self._child.poll()) is not None:
            self._replace_child(status)

    def _take_in(self, news: News) -> None:
        from anyk.clusters.nodes.carrier import Gone, Heard, NodeJoined, ReadFinished, Refused, Taken

        run = self.open
        match news:
            case Gone(b"", reason):
                raise RunFailed(f"the thread that speaks with the nodes has failed: {reason}")
            case Gone(life, reason):
                self._lose(life, reason)
            case Refused(sentence):
                self._refuse(sentence)
            case NodeJoined(rank, life, hello):
                node = self.nodes[rank] = self.lives[life] = Node(rank, life, hello)
                if run is not None:
                    run.node_joined(node)
            case Taken(life, number) if life in self.lives:
                self.lives[life].taken = number
                if run is not None:
                    run.node_has_taken(self.lives[life])
            case Heard(life, message) if run is not None and life in self.lives and message.run == run.run:
                run.on_message(self.lives[life], message)
            case ReadFinished(number, complete) if run is not None:
                run.on_read(number, complete)

    def _lose(self, life: bytes, reason: str) -> None:
        node = self.lives.pop(life, None)
        if node is not None and self.nodes.get(node.rank) is node:
            del self.nodes[node.rank]
            if self.open is not None:
                self.open.node_died(node, reason)

    def _refuse(self, sentence: str) -> None:
        """Say once that a process was not admitted; a node of this job with other versions ends the start of a run."""
        if sentence.startswith("node ") and self.starting:
            raise RunFailed(sentence)
        self.said.say(sentence)

    def _keep_entry(self) -> None:
        """Have the store name this driver as long as it lives, whoever else writes there."""
        while not self.carrier.ended:
            time.sleep(_LOOK)
            with contextlib.suppress(RuntimeError):  # the store does not answer
                if not self.site.has(self.entry) and not self.carrier.ended:
                    self.site.publish(self.entry)
                    sentence = (
                        "somebody has removed rank 0's entry from the store at MASTER_ADDR, or written another one (a "
                        "stranger, or a second program with RANK=0); it was written again"
                    )
                    self.carrier.report(sentence)

    def _replace_child(self, status: int) -> None:
        assert self._child is not None
        assert self._own is not None
        self._close_child()
        life = self._own.life.encode()
        self._ended.append(time.monotonic())
        if len(self._ended) == _MOST_ENDS and self._ended[-1] - self._ended[0] < _WITHIN:
            raise RunFailed(
                f"the agent of rank 0's machine has ended {_MOST_ENDS} times within {_WITHIN:.0f} s; see its messages "
                "above"
            )
        self._start_child()
        self._lose(life, f"its agent has ended (status {status})")

    def _close_child(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
            self._child.wait()
            self._child = None

    def end(self) -> None:
        """Have all nodes leave, as this program ends."""
        atexit.unregister(self.end)
        if self.open is not None:
            self.open.close()
        missing = [rank for rank in range(self.size) if rank not in self.nodes]
        if missing and self._under_torchrun:
            say(f"the program has ended; torchrun may wait up to 300 s for nodes {missing}, which have died")
        failed = hasattr(sys, "last_value")  # with an exception, after which torchrun starts the program again
        if not (self.goes_on or (failed and self._under_torchrun)):
            for node in self.nodes.values():
                self.tell(node, Leave())
        until = time.monotonic() + _FAREWELL
        with contextlib.suppress(RunFailed):
            while any(node.taken < node.told for node in self.nodes.values()) and time.monotonic() < until:
                self.poll(0.05)
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(2 * _FAREWELL)
            self._child.kill()
            self._child.wait()
            self._child = None
        self.carrier.end()


_hub: Hub | None = None


def join_nodes(address: str = "", port: int = 0) -> Hub:
    """Turn this process into a node, unless its rank is 0: work until the driver ends, then exit.

    ``address``: this machine's address to listen at. Raises :class:`~anyk.BadInput` if no launcher started the
    program, or a package of the extra is missing.
    """
    global _hub
    if _hub is None:
        place = JobPlace.from_environment(address)
        need_packages("cluster 'nodes'")
        from anyk.clusters.nodes import agent

        site = Site(place)
        if place.rank:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
            reason = agent.serve(site, port and port + 1)
            if reason:
                say(f"node {place.rank} ends: {reason}")
            raise SystemExit(1 if reason else 0)
        _hub = Hub(site, port)
    return _hub


def nodes_of_job() -> int:
    """Return the number of nodes that the launcher has started; raise :class:`~anyk.BadInput` if there was none."""
    return JobPlace.from_environment().size
