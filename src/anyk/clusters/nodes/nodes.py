"""The driver's side of a cluster of machines on each of which torchrun, srun or ssh has started one process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from anyk.base.checks import AtLeastZero, typed
from anyk.base.errors import SUPERVISED, BadInput, RunFailed, StateLost
from anyk.base.made_with import MadeWith
from anyk.base.specs import show_spec
from anyk.clusters.contract import Envelope
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.local import Local
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.arrivals import Announced, Arrivals, DriverReceiver, announced_vector
from anyk.clusters.nodes.door import say
from anyk.clusters.nodes.driver_store import DriverStore
from anyk.clusters.nodes.holders import MOST_BEHIND, Holders
from anyk.clusters.nodes.hub import join_nodes
from anyk.clusters.nodes.node import Node
from anyk.clusters.nodes.run_nodes import RunNodes
from anyk.clusters.nodes.session import (
    NOT_INTACT,
    Brief,
    Done,
    End,
    Give,
    Kill,
    NodeBroken,
    Spawn,
    Told,
    WorkerEnded,
)
from anyk.clusters.nodes.sliced_store import SlicedStore
from anyk.clusters.nodes.slices import COMPRESSED, SliceCopies, check_slices, cut, not_in_slices
from anyk.clusters.nodes.wire import Offered
from anyk.clusters.processes.memory import MemoryLayout
from anyk.clusters.processes.processes import shared_modules
from anyk.clusters.remote.channel import REPLY
from anyk.clusters.remote.handles import Died, Notice
from anyk.clusters.remote.networked import Networked, NetworkedHandle
from anyk.clusters.remote.shipping import parcels
from anyk.clusters.remote.wire import refuse
from anyk.clusters.remote.workforce import OTHERS
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.protocol import Dispatch, Layout

_TURN = 0.25  # seconds between two looks while the driver waits for nodes


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

    ``slices``: with ``"nodes"`` each node holds a slice of sums, models and the optimiser's state, which then do not
    pass through rank 0; the run ends if a node dies, and with ``copies=2``, each slice at two nodes, if both of one die
    at once. ``address``: rank 0's address, by default that from which MASTER_ADDR is reached. ``port``: for control,
    and the two after it for bytes (nodes: the one after it); by default any that are free. ``spoiled``: as for
    ``processes``, a folder that all nodes see.

    Raises :class:`~anyk.BadInput` without a launcher, without ANYK_SECRET between machines, or if a package of the
    extra is missing.
    """

    name = "nodes"
    slices: MadeWith[str] = MadeWith()
    copies: MadeWith[int] = MadeWith()

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
        slices: Literal["", "nodes"] = "",
        copies: SliceCopies = 1,
        address: str = "",
        port: AtLeastZero = 0,
        spoiled: str = "",
    ) -> None:
        options = ClusterOptions(
            workers=workers,
            delays=delays,
            seed=seed,
            byzantine=byzantine,
            communication=communication,
            spoiled=spoiled,
        )
        super().__init__(options, NodeHandle)
        if copies > 1 and not slices:
            raise BadInput("copies=2 is the number of nodes that hold each slice, and needs slices=nodes")
        self.slices, self.copies, self.address, self.port = slices, copies, address, port
        self.in_slices = bool(slices)
        self._hub = join_nodes(address, port)
        self._nodes = RunNodes(self._hub, works=self._has_worker_at, arrived=self._collected)
        self.carrier = self._hub.carrier

    @property
    def spec(self) -> str:
        values = {
            "slices": self.slices,
            "copies": self.copies,
            "address": self.address,
            "port": self.port,
            "byzantine": self.byzantine,
            "spoiled": self.spoiled,
        }
        defaults = {"slices": "", "copies": 1, "address": "", "port": 0, "byzantine": (), "spoiled": ""}
        return show_spec(self.name, values, defaults)

    store: DriverStore

    @property
    def run(self) -> int:
        """The number of the run that is open, 0 if none is."""
        return self._nodes.run

    @property
    def _holders(self) -> Holders | None:
        return self._nodes.holders

    # ------------------------------------------------------------------------------------------- life

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        if self._hub.open not in (None, self):
            raise BadInput("the nodes are busy with another run; close its cluster first")
        if self.slices and partitions is not None:
            check_slices(layout, partitions, self.name)
        self._hub.starting = True
        try:
            return super().open(layout, partitions, local)
        finally:
            self._hub.starting = False

    def new_store(self, messages: Messages, layout: Layout) -> DriverStore:
        lengths = [messages.length(tuple(covered)) for covered in layout.covers or layout.assignment]
        self._layout, self._lengths = layout, lengths
        self._used = range(min(self._hub.size, self.workers))  # ranks of nodes that have workers
        nodes = self._nodes
        nodes.holders, nodes.lost = None, ""
        if not self.slices:
            self.arrivals = Arrivals(DriverReceiver(self.carrier, self._hub.next_read), self._enter)
            nodes.store = DriverStore(messages, self.carrier)
            return nodes.store
        if len(self._used) < self.copies:
            raise BadInput("copies=2 needs workers on two nodes at least")
        ranks = self._ranks_of_holders()
        cuts = cut(messages.partitions.dimension, messages.dtype.itemsize, len(ranks))
        nodes.holders = Holders(nodes, cuts, messages.dtype, self.copies, ranks)
        self.arrivals = Arrivals(nodes.holders.messages, self._enter)
        nodes.store = SlicedStore(messages, nodes, nodes.holders)
        return nodes.store

    def _has_worker_at(self, rank: int) -> bool:
        return any(self.handles[worker].present for worker in self._workers_of(rank))

    def _workers_of(self, rank: int) -> range:
        """Return the workers of a node."""
        return range(rank, self.workers, self._hub.size)

    def _collected(self, number: int, failure: str) -> None:
        self.arrivals.finished(number, failure)

    def _ranks_of_holders(self) -> list[int]:
        """Return the nodes that are to hold slices: all that have workers, or those that a changing fleet starts with.

        Raises :class:`~anyk.RunFailed` if there are too few of them.
        """
        used = list(self._used)
        if self.fewest == self.workers:
            return used
        joined: list[int] = []
        start = last = time.monotonic()
        while len(joined) < len(used):
            workers = sum(worker % self._hub.size in joined for worker in range(self.workers))
            is_enough = workers >= self.fewest and len(joined) >= self.copies
            if is_enough and time.monotonic() > last + OTHERS:
                missing = [rank for rank in used if rank not in joined]
                say(f"the model lies in slices at nodes {joined}; {missing} have not joined, and will get workers only")
                break
            if time.monotonic() > start + self.patience_at_start:
                raise self._not_joined(used)
            self._hub.poll(_TURN)
            before, joined = joined, [rank for rank in used if rank in self._hub.nodes]
            last = time.monotonic() if joined != before else last
        return joined

    def _not_joined(self, ranks: Iterable[int]) -> RunFailed:
        """Return the error that some of the nodes have not joined in time."""
        missing = [rank for rank in ranks if rank not in self._hub.nodes]
        return RunFailed(
            f"nodes {missing} have not joined within {self.patience_at_start:.0f} s: are they started, with the "
            "same ANYK_SECRET, and do they reach this machine's ports?"
        )

    def ship(self, partitions: Partitions) -> None:
        hub = self._hub
        self._nodes.run = hub.runs = hub.runs + 1
        used = self._used
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
                    offers[id(buffer)] = self.carrier.offer(buffer.cast("B"))
            self._shipped.append(buffers)
            data = [offers[id(buffer)] for buffer in buffers]
            self._briefs[rank] = Brief(
                run=self.run,
                address=self.carrier.address,
                layout=self._memory_of(rank, partitions),
                setup=self.setup,
                assignment=self.assignment,
                imports=shared_modules(buffers),
                data=data,
                holds={} if self._holders is None else self._holders.placement.at(rank),
            )
        self._data = [offered.key for offered in offers.values()]
        hub.open = self

    def _partitions_of(self, rank: int) -> tuple[int, ...]:
        """Return the partitions that are assigned to workers of a node."""
        return tuple(sorted({j for worker in self._workers_of(rank) for j in self.assignment[worker]}))

    def _memory_of(self, rank: int, partitions: Partitions) -> MemoryLayout:
        """Return the layout of a node's shared memory; workers of other nodes take none."""
        workers_here = self._workers_of(rank)
        lengths = [length if worker in workers_here else 0 for worker, length in enumerate(self._lengths)]
        plan = MemoryLayout.of(self._layout, partitions, lengths)
        longer = MOST_BEHIND if self.copies > 1 else 0  # a copy that lags needs messages for longer
        return replace(plan, buffers=plan.buffers + longer, state_bytes=0)  # workers' states are not read from nodes

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
            node.slices.clear()
        self.arrivals.close()
        for key in self._data:
            self.carrier.drop(key)
        self._briefs, self._shipped, self._data = {}, [], []
        self._nodes.run = 0
        for handle in self.handles:
            handle.present = False
        self.store.clear()
        self.news.clear()

    def _refuse_late_workers(self) -> Any:
        if any(rank not in self._hub.nodes for rank in self._briefs):
            raise self._not_joined(self._briefs)
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
        for worker in self._workers_of(node.rank):
            handle = self.handles[worker]
            waits = handle.due is not None or (worker, handle.incarnation) in dead  # the driver will start it
            if handle.incarnation >= 0 and not handle.gone and not waits:
                self._start_on(node, worker)

    def node_died(self, node: Node, reason: str) -> None:
        """Note that a node has died with its workers."""
        self._lose_node(node, f"node {node.rank} was lost", reason)

    def _node_broke(self, node: Node, reason: str) -> None:
        """End the start of a run, or go on without a node that cannot take part, until it can."""
        if self._hub.starting:
            raise RunFailed(f"node {node.rank}: {reason}")
        self._lose_node(node, f"node {node.rank} cannot take part", reason)
        node.run = 0  # it needs all again
        for collection in (node.has, node.vectors, node.messages, node.slices):
            collection.clear()

    def _lose_node(self, node: Node, what: str, reason: str) -> None:
        """Note that the workers of a node have ended; that ends the run if nobody else holds its slices."""
        if self._holders is not None and node.run == self.run and self._holders.lose(node.rank):
            self._nodes.lost = (
                f"{what} with its slice of the model ({reason}); resume the run from its last checkpoint, which "
                "--supervise does by itself"
            )
            self._hub.goes_on = SUPERVISED in os.environ
            raise StateLost(self._nodes.lost)
        for worker in self._workers_of(node.rank):
            handle = self.handles[worker]
            if handle.incarnation >= 0 and handle.due is None and not handle.gone:
                self.news.append(Died(worker, handle.incarnation, f"{what}: {reason}"))

    def end_worker(self, worker: int) -> None:
        node = self.node_of(worker)
        if node is not None:
            self._hub.tell(node, Kill(self.run, worker))

    # ------------------------------------------------------------------------------------------- orders

    def _dispatch(self, order: Dispatch) -> None:
        if self.slices and any(chunk.compress for chunks in order.chunks for chunk in chunks):
            raise not_in_slices(COMPRESSED, self.name)
        self._tidy()  # so that models that workers are to read take the memory of what is needed no more
        super()._dispatch(order)

    def listens(self, worker: int) -> bool:
        node = self.node_of(worker)
        return node is None or node.taken >= self.handles[worker].envelope

    def send(self, worker: int, envelope: Envelope) -> None:
        node = self.node_of(worker)
        if node is None:
            return  # its death will be noticed
        needs = list(envelope.needs)
        self._nodes.locate_at(node, needs)
        self._hub.tell(node, Give(self.run, worker, envelope.orders, needs))
        self.handles[worker].envelope = node.told

    def node_has_taken(self, node: Node) -> None:
        """Send the newest orders of workers whose node has acknowledged the ones before."""
        for worker in self._workers_of(node.rank):
            if self.handles[worker].owed and self.listens(worker):
                self.send_orders(worker)

    # ------------------------------------------------------------------------------------------- news

    def poll(self, timeout: float) -> None:
        self._tidy()
        self._nodes.poll(timeout)
        self.arrivals.stop_unneeded(self._tasks.in_flight.__contains__)

    def _tidy(self) -> None:
        """Tell nodes which vectors and messages are needed no more; one that does not listen is told later."""
        for index in range(len(self.news)):
            self.news[index] = self._without_unneeded(self.news[index])
        self._nodes.tidy()

    def _without_unneeded(self, news: Any) -> Any:
        """Return news of a worker, without its message if no task in flight waits for it, as it is only counted."""
        if not isinstance(news, Notice) or news.report.kind != REPLY or news.report.task in self._tasks.in_flight:
            return news
        return news._replace(buffer=np.empty(0))

    def on_message(self, node: Node, message: Told | WorkerEnded | Done | NodeBroken) -> None:
        """Take in a message of a node in this run."""
        if isinstance(message, NodeBroken):
            self._node_broke(node, message.reason)
            return
        if isinstance(message, Done):
            if self._holders is not None:
                self._holders.on_done(node.rank, message)
            return
        worker = message.worker
        if not 0 <= worker < self.workers or worker % self._hub.size != node.rank:
            refuse(worker, f"a message by node {node.rank}")
        if isinstance(message, WorkerEnded):
            self.news.append(Died(worker, message.incarnation, message.reason, message.blame))
        elif message.offered is None:
            self.news.append(self.notice(worker, message.incarnation, message.report, None))
        else:
            self._announce(node, message)

    def _announce(self, node: Node, told: Told) -> None:
        """Have an announced message brought to where it is added up."""
        worker, report, offered = told.worker, told.report, told.offered
        assert offered is not None
        try:
            kind, size = announced_vector(told, self._lengths[worker] * self.store.messages.dtype.itemsize)
        except ValueError as error:
            refuse(worker, error)
        free = partial(node.messages.append, offered.key)
        message = Announced(told, rank=node.rank, address=node.hello.address, free=free)
        if report.task in self._tasks.in_flight:
            self.arrivals.announce(message, kind, size)
        else:
            self._enter(message, np.empty(0), "")
            message.free()

    def _enter(self, message: Announced, content: Any, failure: str) -> None:
        """Note the arrival of a message, or why it has failed."""
        self.news.append(self.notice(message.worker, message.incarnation, message.outcome(failure), content))

    def on_read(self, number: int, complete: bool) -> None:
        """Take in the end of a read."""
        if not self._nodes.finished(number, complete):
            self.arrivals.finished(number, "" if complete else NOT_INTACT)
