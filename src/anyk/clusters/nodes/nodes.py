"""The driver's side of a cluster of machines on each of which torchrun, srun or ssh has started one process."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from anyk.base.arrays import Array
from anyk.base.checks import AtLeastZero, typed
from anyk.base.errors import BadInput, RunFailed, needing
from anyk.base.specs import show_spec
from anyk.clusters.contract import PINNED, Envelope, Key, Report
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.local import Local
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.session import (
    Brief,
    Drop,
    End,
    Give,
    Hello,
    Kill,
    Leave,
    NodeBroken,
    Spawn,
    Told,
    ToNode,
    WorkerEnded,
)
from anyk.clusters.nodes.site import JobPlace, Site, SiteEntry, versions
from anyk.clusters.nodes.wire import PIECE, Offered, bytes_of
from anyk.clusters.processes.memory import MemoryLayout
from anyk.clusters.processes.processes import shared_modules
from anyk.clusters.remote.channel import FAILED
from anyk.clusters.remote.handles import Died
from anyk.clusters.remote.networked import Networked, NetworkedHandle
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.remote.shipping import parcels
from anyk.clusters.remote.wire import refuse, vector_type
from anyk.clusters.steps import Place
from anyk.clusters.waiting import readable
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.problems.data.reader_processes import python_settings
from anyk.protocol import Layout

if TYPE_CHECKING:
    from anyk.clusters.nodes.carrier import DriverCarrier, News

_BUFFERS, _BOX = 4, 1 << 16  # reply buffers, and bytes of the mail box, of a worker
_BEHIND = 64  # messages that a node may not have acknowledged while it is still told what to drop
_FAREWELL = 5.0  # seconds that nodes may take to end
_MOST_LINES = 20  # sentences about processes that were not admitted
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from anyk.clusters.nodes import agent; agent.main()"


class Node:
    """The driver's record of a node in one life."""

    def __init__(self, rank: int, life: bytes, hello: Hello) -> None:
        self.rank, self.life, self.hello = rank, life, hello
        self.told = 0  # number of messages told
        self.taken = 0  # number of the last message that it has acknowledged
        self.run = 0  # the run for which it has been briefed
        self.has: set[Key] = set()  # vectors that it has been told of
        self.vectors: list[Key] = []  # those of them that it may drop
        self.messages: list[bytes] = []  # keys of its workers' messages that are not needed any more


class Hub:
    """What rank 0 has for all clusters of the program: its thread with the sockets, and its records of nodes."""

    def __init__(self, site: Site, port: int) -> None:
        from anyk.clusters.nodes.carrier import DriverCarrier

        place = site.place
        self.size, self.port = place.size, port
        self.nodes: dict[int, Node] = {}
        self.lives: dict[bytes, Node] = {}
        self.runs = self.reads = 0
        self.open: Nodes | None = None
        self._place = place
        self._own: SiteEntry | None = None  # the node of this machine
        self._refused: dict[str, None] = {}
        self._children = 0
        self._child: subprocess.Popen[bytes] | None = None
        self.carrier: DriverCarrier = DriverCarrier(place.host, port, self._find_node)
        self.site = site
        self.entry = SiteEntry(
            rank=0, key=self.carrier.key, life=site.life, versions=versions(), host=place.host, port=self.carrier.port
        )
        self.carrier.start()
        self._start_child()
        site.publish(self.entry)
        self._under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        if self._under_torchrun:  # nothing in the environment tells a static rendezvous from another for certain
            _say(
                "torchrun starts the program of a node again, and leaves the other nodes alone, only with --node-rank, "
                "--master-addr and --max-restarts, not with --rdzv-backend c10d"
            )
        atexit.register(self.end)

    def _find_node(self, key: str) -> SiteEntry | None:
        """Return the entry of a node's public key; called by the thread."""
        own = self._own
        return own if own is not None and own.key == key else self.site.node(key)

    def _start_child(self) -> None:
        """Start the agent of this machine, a program of its own, so that its end or stop is not the driver's."""
        import zmq

        from anyk.clusters.nodes.agent import Child

        public, secret = (key.decode() for key in zmq.curve_keypair())
        self._own = SiteEntry(0, public, os.urandom(8).hex(), versions())
        child = Child(self._place.host, self.port and self.port + 2, [public, secret], self._own.life, self.entry)
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
        if sentence in self._refused or len(self._refused) >= _MOST_LINES:
            return
        self._refused[sentence] = None
        if sentence.startswith("node ") and self.open is not None and self.open.starting:
            raise RunFailed(sentence)
        _say(sentence)

    def _replace_child(self, status: int) -> None:
        assert self._child is not None
        assert self._own is not None
        self._close_child()
        self._lose(self._own.life.encode(), f"its agent has ended (status {status})")
        self._children += 1
        if self._children >= 20:
            raise RunFailed("the agent of rank 0's machine has ended 20 times; see its messages above")
        self._start_child()

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
            _say(f"the program has ended; torchrun may wait up to 300 s for nodes {missing}, which have died")
        failed = hasattr(sys, "last_value")  # with an exception, after which torchrun starts the program again
        if not (failed and self._under_torchrun):
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


def _say(sentence: str) -> None:
    print(f"anyk: {sentence}", file=sys.stderr, flush=True)


_hub: Hub | None = None


def join_nodes(address: str = "", port: int = 0) -> Hub:
    """Turn this process into a node, unless its rank is 0: work until the driver ends, then exit.

    ``address``: this machine's address to listen at. Raises :class:`~anyk.BadInput` if no launcher started the
    program, or pyzmq or torch is missing.
    """
    global _hub
    if _hub is None:
        place = JobPlace.from_environment(address)
        with needing("pyzmq", "nodes", "cluster 'nodes'"):
            import zmq  # noqa: F401
        from anyk.clusters.nodes import agent

        site = Site(place)
        if place.rank:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
            reason = agent.serve(site, port and port + 1)
            if reason:
                _say(f"node {place.rank} ends: {reason}")
            raise SystemExit(1 if reason else 0)
        _hub = Hub(site, port)
    return _hub


def nodes_of_job() -> int:
    """Return the number of nodes that the launcher has started; raise :class:`~anyk.BadInput` if there was none."""
    return JobPlace.from_environment().size


class NodeStore(RemoteStore):
    """The driver's vectors, offered to nodes as soon as orders need them."""

    def __init__(self, messages: Messages, carrier: DriverCarrier) -> None:
        super().__init__(messages)
        self._carrier = carrier
        self._offered: dict[Key, Offered] = {}
        self.gone: list[Key] = []  # offered vectors that have been dropped

    def offer(self, key: Key) -> Offered:
        """Return the offer of a vector."""
        if key not in self._offered:
            vector = self.vector(key)
            assert vector is not None
            self._offered[key] = self._carrier.offer(bytes_of(np.ascontiguousarray(vector)))
        return self._offered[key]

    def release(self, slot: str, version: int) -> None:
        super().release(slot, version)
        self._withdraw((slot, version))

    def _drop(self, key: Place) -> None:
        super()._drop(key)
        self._withdraw(key)

    def _withdraw(self, key: Key) -> None:
        offered = self._offered.pop(key, None)
        if offered is not None:
            self._carrier.drop(offered.key)
            self.gone.append(key)

    def clear(self) -> None:
        super().clear()
        for key in list(self._offered):
            self._withdraw(key)


class _Announced:
    """A message that a worker has announced."""

    def __init__(self, node: Node, told: Told) -> None:
        self.node, self.worker, self.incarnation, self.report = node, told.worker, told.incarnation, told.report
        assert told.offered is not None
        self.offered = told.offered


class _Reading:
    """A vector that is being read, for all messages that consist of its bytes."""

    def __init__(self, number: int, vector: Array, first: _Announced) -> None:
        self.number, self.vector, self.messages = number, vector, [first]


class NodeHandle(NetworkedHandle):
    """A worker's record, with the envelope that its node has not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.envelope = 0  # the number of the message to its node


@typed
class Nodes(Networked[NodeHandle]):
    """Machines on each of which torchrun, srun or ssh started this program; address, port: where rank 0 listens.

    On all ranks but 0 the program ends with the creation of its first such cluster: these are nodes, and start workers.
    Rank 0 drives, and has a node of its own. Worker w is on node w % nodes. A node that dies is lost with its workers;
    when its program is started again, they join again. One that is stopped, or out of reach for less than 30 s,
    continues where it was.

    ``address``: rank 0's address, by default that from which MASTER_ADDR is reached. ``port``: for control, and the two
    after it for bytes (nodes: the one after it); by default any that are free.

    Raises :class:`~anyk.BadInput` without a launcher, without ANYK_SECRET between machines, or if pyzmq or torch is
    missing.
    """

    name = "nodes"

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
        address: str = "",
        port: AtLeastZero = 0,
    ) -> None:
        options = ClusterOptions(
            workers=workers, delays=delays, seed=seed, byzantine=byzantine, communication=communication
        )
        super().__init__(options, NodeHandle)
        self.address, self.port = address, port
        self._hub = join_nodes(address, port)
        self._carrier = self._hub.carrier
        self.run = 0
        self.starting = False  # whether workers are being started for the first time

    @property
    def spec(self) -> str:
        values = {"address": self.address, "port": self.port, "byzantine": self.byzantine}
        return show_spec(self.name, values, {"address": "", "port": 0, "byzantine": ()})

    store: NodeStore

    # ------------------------------------------------------------------------------------------- life

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        if self._hub.open not in (None, self):
            raise BadInput("the nodes are busy with another run; close its cluster first")
        self.starting = True
        try:
            return super().open(layout, partitions, local)
        finally:
            self.starting = False

    def new_store(self, messages: Messages, layout: Layout) -> NodeStore:
        lengths = [messages.length(tuple(covered)) for covered in layout.covers or layout.assignment]
        self._layout, self._lengths = layout, lengths
        return NodeStore(messages, self._carrier)

    def ship(self, partitions: Partitions) -> None:
        hub = self._hub
        self.run = hub.runs = hub.runs + 1
        self._reading: dict[tuple[bytes, ...], _Reading] = {}
        self._by_number: dict[int, _Reading] = {}
        self._arrived: weakref.WeakValueDictionary[tuple[bytes, ...], Array] = weakref.WeakValueDictionary()
        used = range(min(hub.size, self.workers))
        everything = tuple(range(len(partitions.sizes)))
        assigned = [
            everything if self._layout.fewest else self._partitions_of(rank)  # they may change hands
            for rank in used
        ]
        self._data: list[bytes] = []  # keys of what is offered for this run
        self._shipped: list[Any] = []  # the buffers, which live as long as the offers
        offers: dict[int, Offered] = {}
        self._briefs: dict[int, Brief] = {}
        for rank, buffers in zip(used, parcels(partitions, assigned), strict=True):
            for buffer in buffers:
                if id(buffer) not in offers:
                    offers[id(buffer)] = self._carrier.offer(buffer.cast("B"))
            self._shipped.append(buffers)
            data = [offers[id(buffer)] for buffer in buffers]
            self._briefs[rank] = Brief(
                run=self.run,
                address=self._carrier.address,
                layout=self._memory_of(rank, partitions),
                setup=self.setup,
                assignment=self.assignment,
                imports=shared_modules(buffers),
                data=data,
            )
        self._data = [offered.key for offered in offers.values()]
        hub.open = self

    def _partitions_of(self, rank: int) -> tuple[int, ...]:
        """Return the partitions that are assigned to workers of a node."""
        workers = range(rank, self.workers, self._hub.size)
        return tuple(sorted({j for worker in workers for j in self.assignment[worker]}))

    def _memory_of(self, rank: int, partitions: Partitions) -> MemoryLayout:
        """Return the layout of a node's shared memory; workers of other nodes take none."""
        slots = self._layout.slots
        return MemoryLayout(
            workers=self.workers,
            slots=slots,
            copies=len(slots) * (self.workers + 2 + PINNED) + 1,
            dimension=partitions.dimension,
            dtype=np.dtype(partitions.dtype).str,
            buffers=_BUFFERS,
            lengths=tuple(
                length if worker % self._hub.size == rank else 0 for worker, length in enumerate(self._lengths)
            ),
            box=_BOX,
        )

    def close(self) -> None:
        hub = self._hub
        if hub.open is not self:
            return
        hub.open = None
        for node in hub.nodes.values():
            if node.run == self.run:
                hub.tell(node, End(self.run))
            node.has.clear()
            node.vectors.clear()
            node.messages.clear()
        for number in self._by_number:
            self._carrier.stop(number)
        for key in self._data:
            self._carrier.drop(key)
        self._by_number, self._reading, self._briefs, self._shipped, self._data = {}, {}, {}, [], []
        for handle in self.handles:
            handle.present = False
        self.store.clear()
        self.news.clear()

    def _refuse_late_workers(self) -> Any:
        missing = [rank for rank in self._briefs if rank not in self._hub.nodes]
        if missing:
            raise RunFailed(
                f"nodes {missing} have not joined within {self.patience_at_start:.0f} s: are they started, with the "
                "same ANYK_SECRET, and do they reach this machine's ports?"
            )
        super()._refuse_late_workers()

    # ------------------------------------------------------------------------------------------- nodes and workers

    def node_of(self, worker: int) -> Node | None:
        """Return the node of a worker; None if it has not joined."""
        return self._hub.nodes.get(worker % self._hub.size)

    def spawn(self, worker: int) -> None:
        self.renew(worker)
        self.handles[worker].envelope = 0
        node = self.node_of(worker)
        if node is not None:
            self._start_on(node, worker)

    def _start_on(self, node: Node, worker: int) -> None:
        if node.run != self.run:
            node.run = self.run
            self._hub.tell(node, self._briefs[node.rank])
        self._hub.tell(node, Spawn(self.run, worker, self.handles[worker].incarnation))

    def node_joined(self, node: Node) -> None:
        """Start the workers of a node that has begun a life, unless they are to be started later."""
        dead = {(news.worker, news.incarnation) for news in self.news if isinstance(news, Died)}
        for worker in range(node.rank, self.workers, self._hub.size):
            handle = self.handles[worker]
            waits = handle.due is not None or (worker, handle.incarnation) in dead  # the driver will start it
            if handle.incarnation >= 0 and not handle.gone and not waits:
                self._start_on(node, worker)

    def node_died(self, node: Node, reason: str) -> None:
        """Note that a node has died with its workers."""
        self._lose_workers(node, f"node {node.rank} was lost: {reason}")

    def _node_broke(self, node: Node, reason: str) -> None:
        """End the start of a run, or go on without a node that cannot take part, until it can."""
        if self.starting:
            raise RunFailed(f"node {node.rank}: {reason}")
        node.run = 0  # it needs all again
        self._lose_workers(node, f"node {node.rank}: {reason}")

    def _lose_workers(self, node: Node, reason: str) -> None:
        for worker in range(node.rank, self.workers, self._hub.size):
            handle = self.handles[worker]
            if handle.incarnation >= 0 and handle.due is None and not handle.gone:
                self.news.append(Died(worker, handle.incarnation, reason))

    def end_worker(self, worker: int) -> None:
        node = self.node_of(worker)
        if node is not None:
            self._hub.tell(node, Kill(self.run, worker))

    # ------------------------------------------------------------------------------------------- orders

    def listens(self, worker: int) -> bool:
        node = self.node_of(worker)
        return node is None or node.taken >= self.handles[worker].envelope

    def send(self, worker: int, envelope: Envelope) -> None:
        node = self.node_of(worker)
        if node is None:
            return  # its death will be noticed
        needs = [(key, self.store.offer(key)) for key in envelope.needs]
        node.has.update(envelope.needs)
        self._hub.tell(node, Give(self.run, worker, envelope.orders, needs))
        self.handles[worker].envelope = node.told

    def node_has_taken(self, node: Node) -> None:
        """Send the newest orders of workers whose node has acknowledged the ones before."""
        for worker in range(node.rank, self.workers, self._hub.size):
            if self.handles[worker].owed and self.listens(worker):
                self.send_orders(worker)

    # ------------------------------------------------------------------------------------------- news

    def poll(self, timeout: float) -> None:
        self._tidy()
        self._hub.poll(timeout)
        self._stop_reads()

    def _tidy(self) -> None:
        """Tell nodes which vectors and messages are needed no more; one that does not listen is told later."""
        gone, self.store.gone = self.store.gone, []
        for node in self._hub.nodes.values():
            node.vectors += [key for key in gone if key in node.has]
            node.has.difference_update(gone)
            if (node.vectors or node.messages) and node.told - node.taken < _BEHIND:
                self._hub.tell(node, Drop(self.run, node.vectors, node.messages))
                node.vectors, node.messages = [], []

    def on_message(self, node: Node, message: Told | WorkerEnded | NodeBroken) -> None:
        """Take in a message of a node in this run."""
        if isinstance(message, NodeBroken):
            self._node_broke(node, message.reason)
            return
        worker = message.worker
        if not 0 <= worker < self.workers or worker % self._hub.size != node.rank:
            refuse(worker, f"a message by node {node.rank}")
        if isinstance(message, WorkerEnded):
            self.news.append(Died(worker, message.incarnation, message.reason, message.blame))
        elif message.offered is None:
            self.news.append(self.notice(worker, message.incarnation, message.report, None))
        else:
            self._read(node, message)

    def _read(self, node: Node, told: Told) -> None:
        """Read an announced message, or take what is here if its bytes are the same."""
        worker, report, offered = told.worker, told.report, told.offered
        assert offered is not None
        try:
            if told.form is None:
                raise ValueError("a message without its form")
            kind, size = vector_type(told.form), told.form[1]
            most = self._lengths[worker] * self.store.messages.dtype.itemsize
            if size * kind.itemsize != offered.size or offered.size > max(most, 64):
                raise ValueError(f"a message of {offered.size} bytes where at most {most} are expected")
            if len(offered.digests) != -(-offered.size // PIECE) or len(offered.key) > 64:
                raise ValueError(f"{len(offered.digests)} digests of {offered.size} bytes")
        except ValueError as error:
            refuse(worker, error)
        message = _Announced(node, told)
        name = (kind.str.encode(), *offered.digests)
        if report.task not in self._tasks.in_flight:
            self._enter(message, np.empty(0))
        elif (here := self._arrived.get(name)) is not None:
            self._enter(message, here)
        elif (reading := self._reading.get(name)) is not None:
            reading.messages.append(message)
            self._carrier.read_also(reading.number, node.hello.address, offered.key)
        else:
            self._hub.reads += 1
            vector = np.empty(size, dtype=kind)
            reading = _Reading(self._hub.reads, vector, message)
            self._reading[name] = self._by_number[reading.number] = reading
            self._carrier.read(reading.number, bytes_of(vector), offered, [node.hello.address])

    def _enter(self, message: _Announced, vector: Array | None) -> None:
        """Note the arrival of a message; None: its bytes could not be read."""
        report = message.report
        if vector is None:
            report = Report(FAILED, report.task, report.chunk, sent=report.sent, text="its bytes did not arrive intact")
        self.news.append(self.notice(message.worker, message.incarnation, report, vector))
        message.node.messages.append(message.offered.key)

    def on_read(self, number: int, complete: bool) -> None:
        """Take in the messages of a read that is over."""
        reading = self._by_number.pop(number, None)
        if reading is None:
            return
        name = next(name for name, other in self._reading.items() if other is reading)
        del self._reading[name]
        if complete:
            self._arrived[name] = reading.vector
        for message in reading.messages:
            self._enter(message, reading.vector if complete else None)

    def _stop_reads(self) -> None:
        """Stop reading what no task in flight waits for; such messages are only counted."""
        for name, reading in list(self._reading.items()):
            for message in [m for m in reading.messages if m.report.task not in self._tasks.in_flight]:
                reading.messages.remove(message)
                self._enter(message, np.empty(0))
            if not reading.messages:
                self._carrier.stop(reading.number)
                del self._reading[name], self._by_number[reading.number]
