"""The cluster of Ray actors."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from anyk.base.arrays import Array, DType, Vector
from anyk.base.checks import AtLeastOne, NonnegativeNumber, typed
from anyk.base.errors import BadInput, needing
from anyk.base.made_with import MadeWith
from anyk.base.specs import show_spec
from anyk.clusters.contract import Envelope, Key, Report
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.local import Local
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.arrivals import Announced
from anyk.clusters.nodes.session import Told
from anyk.clusters.nodes.slices import COMPRESSED, check_slices, not_in_slices
from anyk.clusters.ray.actor import Actor, unpack_announced
from anyk.clusters.ray.answers import Unanswered, answer
from anyk.clusters.ray.connection import (
    Connection,
    machine_of,
    machines_drained,
    one_line,
    ray_module,
)
from anyk.clusters.ray.machines import Machines
from anyk.clusters.ray.sliced_run import SlicedRun
from anyk.clusters.ray.slices import ObjectSlices
from anyk.clusters.remote.handles import Departure, Died, Notice
from anyk.clusters.remote.networked import Networked, NetworkedHandle
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.remote.shipping import parcels, ship, single_parcels
from anyk.clusters.remote.wire import refuse, unpack_reports
from anyk.clusters.store import Message
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.protocol import Dispatch, Layout

_LOOKS = 1.0  # seconds between two looks for machines that are being drained
_COPIES = "each slice is held once on 'ray'; copies=2 is an option of 'nodes'"


class _ActorHandle(NetworkedHandle):
    """A worker's record, with its actor and pending calls."""

    def __init__(self) -> None:
        super().__init__()
        self.actor: Any = None
        # calls of exchange, and of receive for orders during an exchange
        self.methods: dict[str, Callable[..., Any]] = {}
        self.pending: set[str] = set()  # methods whose calls have not returned


class _ObjectStore(RemoteStore):
    """Stores models and messages, which actors read from Ray's object store."""

    def __init__(self, messages: Messages) -> None:
        super().__init__(messages)
        self._objects: dict[tuple[str, int], Any] = {}  # model versions

    def object(self, key: Key) -> tuple[int, Any]:
        """Return the place of a vector: the index in an object (-1: the object itself), and the object's reference."""
        ray = ray_module()
        first, second = key
        if isinstance(first, str):
            if (first, second) not in self._objects:
                self._objects[first, second] = ray.put(self._models[first, second])
            return -1, self._objects[first, second]
        message = self.arrived[first, second]
        if not isinstance(message.buffer, tuple):  # not in a worker's object: decompressed, or from a checkpoint
            message = self.arrived[first, second] = message._replace(buffer=(-1, ray.put(message.vector)))
        index, reference = message.buffer
        return index, reference

    def release(self, slot: str, version: int) -> None:
        super().release(slot, version)
        self._objects.pop((slot, version), None)

    def contents(self, notice: Notice, length: int, dtype: DType) -> tuple[int, Array | None]:
        return super().contents(notice._replace(buffer=notice.buffer[2]), length, dtype)

    def keep(self, notice: Notice, ids: tuple[int, ...], vector: Vector) -> Message:
        return super().keep(notice, ids, vector)._replace(buffer=notice.buffer[:2])

    def clear(self) -> None:
        super().clear()
        self._objects.clear()


@typed
class Ray(Networked[_ActorHandle]):
    """Ray actors with cpus and gpus each, on the Ray cluster at an address (auto) or a local one; nodes: a/b.

    ``address``: of a running Ray cluster (``auto``: the one this machine belongs to); without one, and if ``ray.init``
    has not been called, a local one is started, and stopped at the end. ``cpus``, ``gpus``: processors that Ray
    reserves for each worker. ``nodes``: addresses of machines to use in turn; by default workers are spread over all.
    ``resources``, ``runtime_env``, ``placement_group``: further options of each worker's actor: a dictionary of custom
    resources, a dictionary, and a placement group, used instead of ``nodes``. A spec cannot contain these three, so a
    resumed run does not have them.
    ``slices``: with ``"nodes"`` an actor on each machine that has workers holds a slice of sums, models and the
    optimiser's state, which then do not pass through the driver; the run ends if one of these actors dies.
    ``spoiled``: a folder in which a file called ``nan`` or ``corrupt`` has a worker spoil one message, to test a run.

    An actor that dies, alone or with its machine, is replaced as soon as Ray has the resources. A worker whose actor
    dies twenty times in a row without a message, or five times cannot be created, is abandoned.

    Raises :class:`~anyk.BadInput` if Ray is missing, the address does not answer or the cluster lacks the
    resources.
    """

    name = "ray"
    slices: MadeWith[str] = MadeWith()

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
        address: str = "",
        cpus: NonnegativeNumber = 1.0,
        gpus: NonnegativeNumber = 0.0,
        nodes: Sequence[str] = (),
        resources: dict[str, float] | None = None,
        runtime_env: dict[str, Any] | None = None,
        placement_group: Any = None,
        slices: Literal["", "nodes"] = "",
        copies: AtLeastOne = 1,
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
        super().__init__(options, _ActorHandle)
        self._machines = Machines(
            addresses=tuple(nodes), cpus=cpus, gpus=gpus, resources=resources or {}, placement_group=placement_group
        )
        if not isinstance(runtime_env or {}, dict):
            raise BadInput(f"runtime_env must be a dictionary as Ray takes it, got {runtime_env!r}")
        self.resources, self._runtime_env = resources or {}, runtime_env
        if copies > 1:
            raise BadInput(_COPIES)
        self.slices, self.in_slices = slices, bool(slices)
        if slices:
            with needing("blake3", "ray", "slices=nodes"):
                import blake3  # noqa: F401
        self._sliced: SlicedRun | None = None  # with slices, during a run
        self.address, self.cpus, self.gpus, self.nodes = address, cpus, gpus, tuple(nodes)
        self._connection = Connection(address)
        self._look_at = 0.0  # time at which to look for machines that are being drained
        # method, worker, incarnation and the objects with slices of a message, by reference
        self._calls: dict[Any, tuple[str, int, int, Sequence[Any]]] = {}

    @property
    def spec(self) -> str:
        values = {
            "address": self.address,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "slices": self.slices,
            "byzantine": self.byzantine,
            "spoiled": self.spoiled,
        }
        defaults = {"address": "", "cpus": 1.0, "gpus": 0.0, "nodes": (), "slices": "", "byzantine": (), "spoiled": ""}
        return show_spec(self.name, values, defaults)

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:
        self._connection.open(
            ray_module(),
            processors=max(1, int(np.ceil(self.workers * self.cpus))),
            resources={name: amount * self.workers for name, amount in self.resources.items()},
        )

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        if self.slices and partitions is not None:
            check_slices(layout, partitions, self.name)
        return super().open(layout, partitions, local)

    def new_store(self, messages: Messages, layout: Layout) -> RemoteStore:
        if not self.slices:
            return _ObjectStore(messages)
        self.prepare()
        self._sliced = SlicedRun(
            messages,
            [messages.length(tuple(covered)) for covered in layout.covers or layout.assignment],
            max(1, min(self.workers, self._machines.count(ray_module()))),
            poll=self.poll,
            enter=self._enter,
            patience=self.patience_at_start,
        )
        return self._sliced.store

    def start_workers(self) -> tuple[int, ...]:
        present = super().start_workers()
        if self._sliced is not None:
            found = [machine_of(self.handles[worker].actor) for worker in present]
            machines = list(dict.fromkeys(filter(None, found))) or list(self._machines.ids(ray_module()).values())
            self._sliced.start(machines, self.store.messages.dtype, self._runtime_env)
            self._start = time.monotonic()  # holders take seconds to start
        return present

    def ship(self, partitions: Partitions) -> None:
        single = single_parcels(partitions) if self.fewest < self.workers else []
        shipped = [single[0]] * self.workers if single else parcels(partitions, self.assignment)
        separate, shared = sum(parcel[0].nbytes for parcel in shipped), sum(buffer.nbytes for buffer in shipped[0][1:])
        # data for all workers, such as frozen parameters, outweighs partitions
        if not single and separate > shared and separate > shipped[0][0].nbytes:
            shipped = [ship(partitions)] * self.workers
        self.prepare()
        ray = ray_module()
        self._machines.check(ray, self.fewest)
        # Ray itself limits the threads of an actor's linear algebra to its number of processors
        groups = {"orders": 1, "news": 1}
        options = {"resources": self.resources, "runtime_env": self._runtime_env, "concurrency_groups": groups}
        self._kind = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, **options)(Actor)
        stored: dict[tuple[int, int], Any] = {}  # partitions of several workers are stored once
        self._shipped = [[_put(ray, buffer, stored) for buffer in parcel] for parcel in shipped]
        self._single = [[_put(ray, buffer, stored) for buffer in parcel] for parcel in single]

    def spawn(self, worker: int) -> None:
        ray = ray_module()
        handle = self.renew(worker)
        if handle.actor is not None:
            ray.kill(handle.actor, no_restart=True)  # it may only have been unreachable
        placed = self._kind.options(scheduling_strategy=self._machines.strategy(ray, worker))
        assigned = [0] if self._single else list(self.assignment[worker])
        handle.actor = placed.remote(worker, self.setup, assigned, self._single, *self._shipped[worker])
        actor, news, orders = handle.actor, {"concurrency_group": "news"}, {"concurrency_group": "orders"}
        if self._sliced is None:
            handle.methods = {
                "exchange": actor.exchange.options(**news).remote,
                "receive": actor.receive.options(**orders).remote,
            }
        else:
            exchange = actor.exchange_parts.options(**news, num_returns=1 + len(self._sliced.ends)).remote
            handle.methods = {
                "exchange": partial(exchange, self._sliced.ends),
                "receive": actor.receive_parts.options(**orders).remote,
            }
        handle.pending.clear()
        self._call(worker, "exchange")

    def _call(self, worker: int, method: str, *arguments: Any) -> None:
        handle = self.handles[worker]
        handle.pending.add(method)
        returned = handle.methods[method](*arguments)
        head, *parts = returned if isinstance(returned, list) else [returned]
        self._calls[head] = method, worker, handle.incarnation, parts

    def close(self) -> None:
        ray = sys.modules.get("ray")
        self._calls.clear()
        if self._sliced is not None:
            self._sliced.close()
        if self._opened:
            self.store.clear()
        self._sliced = None
        self.news.clear()
        for handle in self.handles:
            handle.present = False
            if handle.actor is not None and ray is not None and ray.is_initialized():
                ray.kill(handle.actor, no_restart=True)
            handle.actor = None
            handle.methods.clear()
        self._shipped, self._single = [], []
        self._connection.close(ray)

    # ------------------------------------------------------------------------------------------- orders

    def listens(self, worker: int) -> bool:
        return len(self.handles[worker].pending) < 2

    def send(self, worker: int, envelope: Envelope) -> None:
        method = "receive" if "exchange" in self.handles[worker].pending else "exchange"
        if isinstance(self.store, ObjectSlices):
            parts = [self.store.references(key) for key in envelope.fresh]
            packed = pickle.dumps((envelope, list(map(len, parts)), self.store.messages.dtype.str))
            self._call(worker, method, packed, [reference for references in parts for reference in references])
            return
        assert isinstance(self.store, _ObjectStore)
        vectors = [self.store.object(key) for key in envelope.fresh]
        packed = pickle.dumps((envelope, [index for index, _ in vectors]))  # Ray's own serialisation is slow
        self._call(worker, method, packed, *(reference for _, reference in vectors))

    def _dispatch(self, order: Dispatch) -> None:
        if self.slices and any(chunk.compress for chunks in order.chunks for chunk in chunks):
            raise not_in_slices(COMPRESSED, self.name)
        super()._dispatch(order)

    # ------------------------------------------------------------------------------------------- news

    def poll(self, timeout: float) -> None:
        ray = ray_module()
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + _LOOKS
            self._find_departures()
        questioned = {worker for worker, handle in enumerate(self.handles) if handle.question is not None}
        busy = {entry.worker for entry in self._tasks.in_flight.values()}
        self._ask_for_news(busy | questioned | self._leaving.keys())  # who leaves may have been ended
        sliced = self._sliced
        if sliced is not None:
            sliced.look()
        calls = [*self._calls, *(sliced.actors.calls if sliced is not None else ())]
        if not calls:
            time.sleep(min(timeout, 0.01))
            self._ask_for_news(range(self.workers))
            return
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        if not done:
            done, _ = ray.wait(calls, num_returns=1, timeout=max(timeout, 0.001))
        if not done:  # no news: also check workers without a task, which may have died
            self._ask_for_news(range(self.workers))
        for reference in done:
            if reference in self._calls:
                self._answered(ray, reference)
            elif sliced is not None:
                sliced.actors.returned(reference)
        if sliced is not None:
            sliced.stop_unneeded(self._tasks.in_flight.__contains__)

    def _find_departures(self) -> None:
        """Report the workers whose machines Ray is draining."""
        present = {worker: handle.actor for worker, handle in enumerate(self.handles) if handle.present}
        for worker, seconds in machines_drained(present).items():
            self.news.append(Departure(worker, self.handles[worker].incarnation, seconds))

    def end_worker(self, worker: int) -> None:
        ray_module().kill(self.handles[worker].actor, no_restart=True)

    def _ask_for_news(self, workers: Iterable[int]) -> None:
        for worker in workers:
            handle = self.handles[worker]
            if handle.present and "exchange" not in handle.pending:
                self._call(worker, "exchange")

    def _answered(self, ray: Any, reference: Any) -> None:
        method, worker, incarnation, parts = self._calls.pop(reference)
        handle = self.handles[worker]
        if incarnation != handle.incarnation:
            return
        try:
            packed = answer(ray, reference, self.patience_at_start)
            news: list[tuple[Report, Array | None]] = []
            told: list[Told] = []
            if packed and self._sliced is not None:  # receive returns nothing
                told = unpack_announced(packed)
            elif packed:
                news = unpack_reports(packed)
        except Unanswered as error:  # it died, its reports are lost, or Ray cannot place it
            blame = 4 if error.at_start else 1  # other deaths have unknown causes
            self.news.append(Died(worker, incarnation, one_line(error), blame))
            return
        except ValueError as error:
            refuse(worker, error)
        handle.pending.remove(method)
        for index, (report, vector) in enumerate(news):
            buffer = None if vector is None else (index, reference, vector)
            self.news.append(self.notice(worker, incarnation, report, buffer))
        for message in told:
            if message.offered is None:
                self.news.append(self.notice(worker, incarnation, message.report, None))
            elif self._sliced is not None:
                needed = message.report.task in self._tasks.in_flight
                self._sliced.announce(worker, incarnation, message, parts, needed=needed)
        if handle.owed:
            self.send_orders(worker)

    def _enter(self, message: Announced, content: Any, failure: str) -> None:
        """Note the arrival of a message, or why it has failed."""
        self.news.append(self.notice(message.worker, message.incarnation, message.outcome(failure), content))


def _put(ray: Any, buffer: memoryview, stored: dict[tuple[int, int], Any]) -> Any:
    """Return a reference to bytes in Ray's store; ``stored``: references to reuse, by address and size."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    key = (array.ctypes.data, array.size)
    if key not in stored:
        stored[key] = ray.put(array)
    return stored[key]
