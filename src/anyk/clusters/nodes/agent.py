"""A node's agent: it starts the node's workers, feeds them, and offers their messages; it decides nothing.

Workers are those of ``processes``: children of the agent's helper program, with the node's own shared memory, in which
a model version exists once however many workers need it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import Any

import msgspec
import numpy as np
import zmq

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.contract import Key, Report
from anyk.clusters.nodes.carrier import NOT_ADMITTED, RANK_TAKEN, Gone, Heard, NodeCarrier, ReadFinished, Refused
from anyk.clusters.nodes.door import Said, say
from anyk.clusters.nodes.holding import Holding
from anyk.clusters.nodes.session import (
    PROGRAM_ENDED,
    SILENCE,
    Brief,
    Drop,
    End,
    Give,
    Hello,
    Kill,
    Leave,
    Locate,
    NodeBroken,
    Spawn,
    Told,
    WorkerEnded,
)
from anyk.clusters.nodes.site import Site, SiteEntry, difference, other_size, versions, wait_for
from anyk.clusters.nodes.slices import Holder
from anyk.clusters.nodes.vectors import NodeStore, NodeVectors
from anyk.clusters.nodes.wire import Offered, bytes_of
from anyk.clusters.processes import Processes
from anyk.clusters.processes.memory import FULL, HEADER, MemoryLayout, Segment, places_of
from anyk.clusters.processes.shared_store import SharedStore
from anyk.clusters.remote.channel import READY, REPLY
from anyk.clusters.remote.handles import Died, Notice
from anyk.clusters.remote.networked import machine
from anyk.clusters.remote.orders import Orders, pack, unpack
from anyk.clusters.remote.worker import ASKED
from anyk.clusters.store import CARRIED
from anyk.clusters.waiting import readable

_TURN = 0.25  # seconds after which the agent looks at its helper program in any case
_JOIN = 300.0  # seconds that the driver may take to start
_RETURN = 120.0  # seconds that a driver may take to be started again after it has died
_REMEMBERED = 256  # tasks of a worker whose orders are remembered


class Engine(Processes):
    """The node's own processes, numbered as in the whole run; those of other nodes are not started."""

    store: NodeStore

    def begin(self, brief: Brief, store: NodeStore, data: Segment, places: list[tuple[int, int]]) -> None:
        """Prepare the run's memory; workers are started one by one (:meth:`start_worker`)."""
        self.handles = [self._handle() for _ in range(self.workers)]
        self._plan, self.setup = brief.layout, brief.setup
        self.assignment = [tuple(assigned) for assigned in brief.assignment]
        self.store = store
        self._segments = [data]
        self._plan.check_room(0)  # the data is there already
        self.prepare()
        self.share(places, brief.imports)

    def start_worker(self, worker: int, incarnation: int) -> None:
        """Start a worker in the incarnation that the driver has given it."""
        self.handles[worker].incarnation = incarnation - 1
        self.spawn(worker)

    def announced(self, notice: Notice) -> tuple[int, int]:
        """Return where a worker's message begins in the memory of replies, and the number of its entries."""
        buffer = self._plan.buffer_at(notice.worker, notice.buffer)
        state, task, chunk, size = HEADER.unpack_from(self.replies.memory, buffer)
        if (state, task, chunk) != (FULL, notice.report.task, notice.report.chunk):
            raise RunFailed(f"the message of worker {notice.worker} is not the one that it has announced")
        return buffer + HEADER.size, size

    @property
    def replies(self) -> Segment:
        """The memory of replies."""
        return self._segments[2]

    @property
    def plan(self) -> MemoryLayout:
        """The layout of the memory."""
        return self._plan


class _Run:
    """What an agent knows of a run."""

    def __init__(self, brief: Brief) -> None:
        self.brief = brief
        self.places, size = places_of([part.size for part in brief.data])
        self.data = Segment.create(size, "data")
        try:
            self.data.reserve(0, self.data.size)
        except RunFailed:
            self.data.close()
            raise
        self.data_left: set[int] = set()  # reads of its parts that are not over
        self.engine: Engine | None = None
        self.spawns: dict[int, int] = {}  # incarnations of workers to start once the data is there
        self.store = NodeStore(None, brief.layout)
        self.vectors: NodeVectors
        self.holdings: dict[int, Holding] = {}  # of the slices that the node may hold
        self.gone: list[Key] = []  # vectors that will be dropped once no step waits for them
        self.waiting: dict[int, Give] = {}  # newest orders whose vectors are not all here
        self.packed: dict[int, dict[int, set[int]]] = {}  # chunks whose messages are compressed, by worker and task
        self.kept: dict[bytes, tuple[Vector, int, Any]] = {}  # messages, with worker and buffer, not freed yet


class Agent:
    """The agent in one life, which ends with the program, or with the driver's life."""

    def __init__(self, carrier: NodeCarrier, *, parent: int = -1) -> None:
        self._carrier = carrier
        self._parent = parent
        self._run: _Run | None = None
        self._reads = 0
        self._said = Said()
        carrier.tell(Hello(carrier.address, machine(), os.getpid()))

    def serve(self) -> str:
        """Work until the driver ends the program (return "") or this life is over (return why)."""
        try:
            while True:
                engine = self._run.engine if self._run is not None else None
                fds = [self._carrier.fd, *([] if engine is None else engine.fds())]
                ready = readable([*fds, self._parent] if self._parent >= 0 else fds, _TURN)
                if self._parent in ready:
                    return "the driver has ended"
                for news in self._carrier.news():
                    match news:
                        case Heard(_, Leave()):
                            return ""
                        case Heard(_, message):
                            self._obey(message)
                        case ReadFinished(number, complete, key):
                            self._on_read(number, complete, key)
                        case Refused(sentence):
                            self._said.say(sentence)
                        case Gone(_, reason):
                            return reason
                self._look()
        finally:
            self._end_run()

    # ------------------------------------------------------------------------------------------- runs

    def _obey(self, message: Any) -> None:
        if isinstance(message, Brief):
            try:
                self._begin(message)
            except (BadInput, RunFailed, OSError) as error:
                self._carrier.tell(NodeBroken(message.run, str(error)))
            return
        run = self._run
        if run is None or message.run != run.brief.run:
            return
        match message:
            case End():
                self._end_run()
            case Spawn(_, worker, incarnation):
                run.spawns[worker] = incarnation
            case Kill(_, worker) if run.engine is not None:
                run.engine.end_worker(worker)
            case Locate(_, vectors):
                for key, parts in vectors:
                    run.vectors.locate(key, parts)
            case Give(_, worker):
                run.waiting[worker] = message
            case Drop(_, vectors, messages, slices):
                self._drop(run, vectors, messages, slices)
            case _:
                run.holdings[message.slice].obey(message)

    def _begin(self, brief: Brief) -> None:
        """Read a new run's data."""
        self._end_run()
        run = self._run = _Run(brief)
        carrier = self._carrier
        run.vectors = NodeVectors(
            store=run.store, layout=brief.layout, address=carrier.address, read=self._read, stop=carrier.stop_now
        )
        for number, (first, last) in brief.holds.items():
            run.holdings[number] = Holding(
                run=brief.run,
                number=number,
                holder=Holder(first, last, np.dtype(brief.layout.dtype), run.store.model),
                vectors=run.vectors,
                read=self._read,
                read_also=carrier.read_also,
                stop=carrier.stop_now,
                offer=carrier.offer,
                drop=carrier.drop,
                own_message=lambda key: run.kept[key][0] if key in run.kept else None,
                tell=carrier.tell,
            )
        view = memoryview(run.data.memory)
        for (start, size), offered in zip(run.places, brief.data, strict=True):
            run.data_left.add(self._read(view[start : start + size], offered, brief.address))

    def _read(self, into: memoryview, offered: Offered, address: str, first: int = 0) -> int:
        """Begin to read what is offered, from the byte ``first`` on; return the number of the read."""
        self._reads += 1
        self._carrier.read(self._reads, into, offered, [address], first)
        return self._reads

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        for number in run.data_left:
            self._carrier.stop_now(number)
        run.vectors.close()
        for holding in run.holdings.values():
            holding.close()
        for key in run.kept:
            self._carrier.drop(key)
        if run.engine is not None:
            run.engine.close()
        else:
            run.data.close()

    def _start(self, run: _Run) -> None:
        """Start the engine: all data is there."""
        engine = Engine(run.brief.layout.workers, seed=run.brief.setup.seed)
        run.engine = engine
        engine.begin(run.brief, run.store, run.data, run.places)

    def _drop(self, run: _Run, vectors: list[Key], messages: list[bytes], slices: list[int]) -> None:
        run.gone += vectors
        self._drop_gone(run)
        for holding in run.holdings.values():
            holding.forget_messages(slices)
        for name in messages:
            self._carrier.drop(name)
            vector, worker, buffer = run.kept.pop(name, (None, 0, None))
            if vector is not None:
                for holding in run.holdings.values():
                    holding.forget_source(vector)
            if buffer is not None:
                run.store.free_buffer(worker, buffer)

    def _drop_gone(self, run: _Run) -> None:
        """Drop the vectors that are needed no more, but those for which a step of this node still waits."""
        holdings = run.holdings.values()
        waits = [key for key in run.gone if any(holding.needs(key) for holding in holdings)]
        for key in run.gone:
            if key not in waits:
                for holding in holdings:
                    holding.forget_model(key)
                run.vectors.drop(key)
        run.gone = waits

    def _on_read(self, number: int, complete: bool, key: bytes) -> None:
        run = self._run
        if run is None:
            return
        if number in run.data_left:
            run.data_left.discard(number)
            if not complete:
                self._carrier.tell(NodeBroken(run.brief.run, "the data that came does not match the driver's digests"))
        elif not any(holding.finished(number, key, complete=complete) for holding in run.holdings.values()):
            run.vectors.finished(number, complete=complete)

    # ------------------------------------------------------------------------------------------- workers

    def _deliver(self, run: _Run, engine: Engine) -> None:
        """Give workers the orders whose vectors are all here, with the places of these vectors.

        What has been dropped was needed by something that has ended.
        """
        for worker, give in list(run.waiting.items()):
            if all(run.vectors.here(key) for key in give.needs if run.vectors.known(key)):
                del run.waiting[worker]
                orders = _placed(unpack(give.orders), engine.store)
                packed = run.packed.setdefault(worker, {})
                packed[orders.task] = {index for index, chunk in enumerate(orders.chunks) if chunk.compress}
                if len(packed) > _REMEMBERED:
                    del packed[next(iter(packed))]
                engine.forward(worker, pack(orders))

    def _look(self) -> None:
        """Do what is due for the run."""
        run = self._run
        if run is None or run.data_left:
            return
        try:
            if run.engine is None:
                self._start(run)
            assert run.engine is not None
            spawns, run.spawns = run.spawns, {}
            for worker, incarnation in spawns.items():
                run.engine.start_worker(worker, incarnation)
            run.engine.poll(0.0)
            while run.engine.news:
                self._tell(run, run.engine, run.engine.news.popleft())
            for holding in run.holdings.values():
                holding.look()
            self._drop_gone(run)
            run.vectors.fetch(key for give in run.waiting.values() for key in give.needs)
            self._deliver(run, run.engine)
        except (BadInput, RunFailed, OSError) as error:
            self._carrier.tell(NodeBroken(run.brief.run, str(error)))
            self._end_run()

    def _tell(self, run: _Run, engine: Engine, news: Any) -> None:
        """Tell the driver what a worker has done."""
        worker, incarnation, number = news.worker, news.incarnation, run.brief.run
        handle = engine.handles[worker]
        if isinstance(news, Died):
            if incarnation == handle.incarnation:
                handle.present = False
                engine.pids.pop(worker, None)
                engine.store.void(worker)
                run.waiting.pop(worker, None)
                self._carrier.tell(WorkerEnded(number, worker, incarnation, news.reason, news.blame))
            return
        report: Report = news.report
        if report.kind == READY and not report.done and incarnation == handle.incarnation:
            handle.present = True
            report = report._replace(text=f"{machine()} {report.bits}", bits=0)
        told = Told(number, worker, incarnation, report)
        if report.kind == REPLY:
            start, size = engine.announced(news)
            packed = report.chunk in run.packed.get(worker, {}).get(report.task, ())
            dtype = np.dtype(np.uint8 if packed else engine.plan.dtype)
            message = engine.store.keep(news, (), engine.replies.array(start, size, dtype))
            told.form = dtype.str, size
            told.offered = self._carrier.offer(bytes_of(message.vector))
            run.kept[told.offered.key] = message.vector, worker, message.buffer
        self._carrier.tell(told)


def _placed(orders: Orders, store: SharedStore) -> Orders:
    """Return orders with the places of models and messages in the node's memory, instead of their keys."""
    chunks = [
        chunk._replace(mix=tuple((who, *store.locate((task, index)), weight) for who, task, index, weight in chunk.mix))
        for chunk in orders.chunks
    ]
    requests = [
        [*request, [[*store.locate((first, second)), *rest] for first, second, *rest in gathered]]
        for *request, gathered in orders.requests
    ]
    question = orders.question
    if question is not None:
        number, version, *rest = question
        question = [number, store.place(ASKED, version), *rest]
    carried = [
        part and [part[0], part[1], [store.place(f"{CARRIED} {i}", version) for i, version in enumerate(part[2])]]
        for part in orders.carried
    ]
    named = zip(orders.chunks, orders.versions, strict=True)
    places = [store.place(chunk.slot, version) for chunk, version in named]
    return orders._replace(chunks=chunks, places=places, requests=requests, question=question, carried=carried)


# ---------------------------------------------------------------------------------------------------- lives


def serve(site: Site, port: int) -> str:
    """Be a node for one life of the driver after another; return "" if the driver ends the program, else why."""
    rank = site.place.rank
    driver = wait_for(site.driver, _JOIN)
    if driver is None:
        return f"rank 0 has not started its cluster 'nodes' within {_JOIN:.0f} s"
    until = time.monotonic() + _RETURN
    while True:
        if apart := difference(f"node {rank}", versions(), driver.versions):
            return apart
        if driver.size != site.place.size:
            return other_size(rank, site.place.size, driver.size)
        public, secret = zmq.curve_keypair()
        life = os.urandom(8).hex()
        reason = PROGRAM_ENDED
        if _is_published(site, SiteEntry(rank, public.decode(), life, versions(), site.place.size)):
            carrier = NodeCarrier(site.place.host, port, (public, secret), life, driver)
            threading.Thread(target=_look_out, args=(site, carrier, driver), daemon=True).start()
            reason = _live(carrier)
            if reason in ("", NOT_ADMITTED, RANK_TAKEN):
                return reason
            if carrier.was_heard:
                until = time.monotonic() + _RETURN
                say(f"node {rank}: the driver is gone ({reason}); its workers here have ended")
        ended = driver.life if reason == PROGRAM_ENDED else ""
        following = wait_for(partial(site.driver, unlike=ended), max(0.0, until - time.monotonic()))
        if following is None or time.monotonic() > until:
            return f"no driver was heard for {_RETURN:.0f} s (the last: {reason})"
        driver = following


def _is_published(site: Site, entry: SiteEntry) -> bool:
    """Publish an entry, unless the store has ended with the driver that it named."""
    try:
        site.publish(entry)
    except RuntimeError:
        return False
    return True


def _look_out(site: Site, carrier: NodeCarrier, driver: SiteEntry) -> None:
    """While the driver is silent, look in the store whether another one has taken its place, perhaps at its port."""
    while not carrier.ended:
        time.sleep(_TURN)
        with contextlib.suppress(BadInput):  # somebody else has written there
            if carrier.silent > SILENCE and site.driver(unlike=driver.life) is not None:
                carrier.leave(PROGRAM_ENDED)
                return


def _live(carrier: NodeCarrier, *, parent: int = -1) -> str:
    """Be a node for one life of the driver; ``parent``: a descriptor that can be read when the driver has ended."""
    carrier.start()
    try:
        return Agent(carrier, parent=parent).serve()
    finally:
        carrier.end()


class Child(msgspec.Struct):
    """What rank 0 tells the agent of its own machine, which needs no store."""

    host: str
    port: int
    keys: list[str]
    life: str
    driver: SiteEntry


def main() -> None:
    """Entry point of the agent of rank 0's machine; it ends when its standard input closes, as when the driver ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    child = msgspec.json.decode(sys.stdin.buffer.readline(), type=Child)
    public, secret = (key.encode() for key in child.keys)
    carrier = NodeCarrier(child.host, child.port, (public, secret), child.life, child.driver)
    sys.exit(1 if _live(carrier, parent=sys.stdin.fileno()) else 0)
