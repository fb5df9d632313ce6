"""The cluster of Ray actors."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base.arrays import Array, DType, Vector
from anyk.base.checks import NonnegativeNumber, typed
from anyk.base.errors import BadInput, RunFailed, as_bad_input
from anyk.base.regular_files import LockedFolder, remove_abandoned
from anyk.base.specs import show_spec
from anyk.clusters.contract import Envelope, Key
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.messages import Messages
from anyk.clusters.ray.actor import Actor
from anyk.clusters.ray.answers import Unanswered, answer
from anyk.clusters.ray.connection import knock, loopback, machines_drained, one_line, ray_module, read_token
from anyk.clusters.remote.handles import Departure, Died, Notice
from anyk.clusters.remote.networked import Networked, NetworkedHandle
from anyk.clusters.remote.remote_store import RemoteStore
from anyk.clusters.remote.shipping import parcels, ship, single_parcels
from anyk.clusters.remote.wire import refuse, unpack_reports
from anyk.clusters.store import Message
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.protocol import Layout

_LOOKS = 1.0  # seconds between two looks for machines that are being drained
_FOLDERS = "anykray-"  # the start of the names of the folders of local Ray clusters


class _ActorHandle(NetworkedHandle):
    """A worker's record, with its actor and pending calls."""

    def __init__(self) -> None:
        super().__init__()
        self.actor: Any = None
        self.methods: dict[str, Any] = {}  # the actor's methods exchange, and receive for orders during an exchange
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
    ``spoiled``: a folder in which a file called ``nan`` or ``corrupt`` has a worker spoil one message, to test a run.

    An actor that dies, alone or with its machine, is replaced as soon as Ray has the resources. A worker whose actor
    dies twenty times in a row without a message, or five times cannot be created, is abandoned.

    Raises :class:`~anyk.BadInput` if Ray is missing, the address does not answer or the cluster lacks the
    resources.
    """

    name = "ray"
    store: _ObjectStore

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
        if placement_group is not None and nodes:
            raise BadInput("a placement group determines the workers' machines; omit nodes= or placement_group=")
        if not isinstance(resources or {}, dict) or any(
            name in ("CPU", "GPU") or not isinstance(amount, (int, float)) or not 0 <= amount < float("inf")
            for name, amount in (resources or {}).items()
        ):
            raise BadInput(
                "resources of a worker must be numbers of at least 0 by name (CPU and GPU are cpus= and gpus=), got "
                f"{resources!r}"
            )
        if not isinstance(runtime_env or {}, dict):
            raise BadInput(f"runtime_env must be a dictionary as Ray takes it, got {runtime_env!r}")
        self.resources, self._runtime_env, self._placement_group = resources or {}, runtime_env, placement_group
        self.address, self.cpus, self.gpus, self.nodes = address, cpus, gpus, tuple(nodes)
        self._connected = False  # whether this object, not the program, connected to Ray
        self._folder: LockedFolder | None = None  # the folder of a local Ray cluster that this object started
        self._look_at = 0.0  # time at which to look for machines that are being drained
        self._calls: dict[Any, tuple[str, int, int]] = {}  # method, worker and incarnation, by reference

    @property
    def spec(self) -> str:
        values = {
            "address": self.address,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "byzantine": self.byzantine,
            "spoiled": self.spoiled,
        }
        defaults = {"address": "", "cpus": 1.0, "gpus": 0.0, "nodes": (), "byzantine": (), "spoiled": ""}
        return show_spec(self.name, values, defaults)

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:
        previous = signal.getsignal(signal.SIGTERM)  # Ray replaces the handler
        ray = ray_module()
        if ray.is_initialized():
            current = ray.get_runtime_context().gcs_address
            if self.address not in ("", "auto", current):
                raise BadInput(f"this program is connected to the Ray cluster at '{current}', not '{self.address}'")
            return
        self._connected = True
        try:
            self._connect(ray)
        finally:
            if threading.current_thread() is threading.main_thread() and previous is not None:
                signal.signal(signal.SIGTERM, previous)

    def _connect(self, ray: Any) -> None:
        address = self.address or os.environ.get("RAY_ADDRESS", "")
        if address:
            knock(address)
            with as_bad_input(f"no Ray cluster answers at '{address}'", Exception):
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            return
        remove_abandoned(_FOLDERS, "/tmp")
        self._folder = LockedFolder(_FOLDERS, "/tmp")  # names of sockets must be short
        # Ray lets all users write to its folder, so it has one inside a folder that only this user may enter
        inside = Path(self._folder.name) / "r"
        inside.mkdir()
        try:
            with loopback():
                ray.init(
                    address="local",
                    num_cpus=max(1, int(np.ceil(self.workers * self.cpus))),
                    resources={name: amount * self.workers for name, amount in self.resources.items()},
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _temp_dir=str(inside),
                    _node_ip_address="127.0.0.1",
                    # with Ray's default, 15, workers would starve if other programs run
                    _system_config={"worker_niceness": 0},
                )
        except Exception as error:
            self.close()
            raise RunFailed(f"Ray does not start here: {one_line(error)}") from None
        address = ray.get_runtime_context().gcs_address
        if not address.startswith("127.0.0.1:"):
            self.close()
            raise RunFailed(
                f"Ray {ray.__version__} listens at {address} instead of 127.0.0.1 only; start Ray yourself, "
                "where no other user can reach it, and pass its address=…"
            )

    def new_store(self, messages: Messages, layout: Layout) -> _ObjectStore:
        return _ObjectStore(messages)

    def ship(self, partitions: Partitions) -> None:
        single = single_parcels(partitions) if self.fewest < self.workers else []
        shipped = [single[0]] * self.workers if single else parcels(partitions, self.assignment)
        separate, shared = sum(parcel[0].nbytes for parcel in shipped), sum(buffer.nbytes for buffer in shipped[0][1:])
        # data for all workers, such as frozen parameters, outweighs partitions
        if not single and separate > shared and separate > shipped[0][0].nbytes:
            shipped = [ship(partitions)] * self.workers
        self.prepare()
        ray = ray_module()
        self._check_resources(ray)
        # Ray itself limits the threads of an actor's linear algebra to its number of processors
        groups = {"orders": 1, "news": 1}
        options = {"resources": self.resources, "runtime_env": self._runtime_env, "concurrency_groups": groups}
        self._kind = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, **options)(Actor)
        stored: dict[tuple[int, int], Any] = {}  # partitions of several workers are stored once
        self._shipped = [[_put(ray, buffer, stored) for buffer in parcel] for parcel in shipped]
        self._single = [[_put(ray, buffer, stored) for buffer in parcel] for parcel in single]

    def _check_resources(self, ray: Any) -> None:
        available = ray.cluster_resources()
        for name, amount in (("CPU", self.cpus), ("GPU", self.gpus), *self.resources.items()):
            option = "resources" if name in self.resources else f"{name.lower()}s"
            if amount * self.fewest > available.get(name, 0.0) + 1e-9:
                raise BadInput(
                    f"{self.fewest} workers of {amount:g} {name} each need {amount * self.fewest:g}, the Ray cluster "
                    f"has {available.get(name, 0.0):g}; use fewer workers or a smaller {option}="
                )
        machines = self._machines(ray)
        for address in self.nodes:
            if address not in machines:
                raise BadInput(f"the Ray cluster has no machine '{address}'; it has {', '.join(sorted(machines))}")

    def _machines(self, ray: Any) -> dict[str, str]:
        """Return the node ids of the Ray cluster's live machines, by address."""
        return {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def spawn(self, worker: int) -> None:
        ray = ray_module()
        handle = self.renew(worker)
        if handle.actor is not None:
            ray.kill(handle.actor, no_restart=True)  # it may only have been unreachable
        strategy: Any = "SPREAD"
        machines = self._machines(ray) if self.nodes else {}
        alive = [address for address in self.nodes if address in machines]
        if alive:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            strategy = NodeAffinitySchedulingStrategy(machines[alive[worker % len(alive)]], soft=False)
        if self._placement_group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            strategy = PlacementGroupSchedulingStrategy(self._placement_group)
        placed = self._kind.options(scheduling_strategy=strategy)
        assigned = [0] if self._single else list(self.assignment[worker])
        handle.actor = placed.remote(worker, self.setup, assigned, self._single, *self._shipped[worker])
        handle.methods = {
            "exchange": handle.actor.exchange.options(concurrency_group="news"),
            "receive": handle.actor.receive.options(concurrency_group="orders"),
        }
        handle.pending.clear()
        self._call(worker, "exchange")

    def _call(self, worker: int, method: str, *arguments: Any) -> None:
        handle = self.handles[worker]
        handle.pending.add(method)
        self._calls[handle.methods[method].remote(*arguments)] = method, worker, handle.incarnation

    def close(self) -> None:
        ray = sys.modules.get("ray")
        self._calls.clear()
        if self._opened:
            self.store.clear()
        self.news.clear()
        for handle in self.handles:
            handle.present = False
            if handle.actor is not None and ray is not None and ray.is_initialized():
                ray.kill(handle.actor, no_restart=True)
            handle.actor = None
            handle.methods.clear()
        self._shipped, self._single = [], []
        if self._connected and ray is not None:
            ray.shutdown()  # this also stops a Ray cluster that this object started
            self._connected = False
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            read_token()  # other Ray clusters may use other tokens

    # ------------------------------------------------------------------------------------------- orders

    def listens(self, worker: int) -> bool:
        return len(self.handles[worker].pending) < 2

    def send(self, worker: int, envelope: Envelope) -> None:
        vectors = [self.store.object(key) for key in envelope.fresh]
        packed = pickle.dumps((envelope, [index for index, _ in vectors]))  # Ray's own serialisation is slow
        method = "receive" if "exchange" in self.handles[worker].pending else "exchange"
        self._call(worker, method, packed, *(reference for _, reference in vectors))

    # ------------------------------------------------------------------------------------------- news

    def poll(self, timeout: float) -> None:
        ray = ray_module()
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + _LOOKS
            self._find_departures()
        questioned = {worker for worker, handle in enumerate(self.handles) if handle.question is not None}
        busy = {entry.worker for entry in self._tasks.in_flight.values()}
        self._ask_for_news(busy | questioned | self._leaving.keys())  # who leaves may have been ended
        calls = list(self._calls)
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
            self._answered(ray, reference)

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
        method, worker, incarnation = self._calls.pop(reference)
        handle = self.handles[worker]
        if incarnation != handle.incarnation:
            return
        try:
            packed = answer(ray, reference, self.patience_at_start)
            news = unpack_reports(packed) if packed else []  # receive returns nothing
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
        if handle.owed:
            self.send_orders(worker)


def _put(ray: Any, buffer: memoryview, stored: dict[tuple[int, int], Any]) -> Any:
    """Return a reference to bytes in Ray's store; ``stored``: references to reuse, by address and size."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    key = (array.ctypes.data, array.size)
    if key not in stored:
        stored[key] = ray.put(array)
    return stored[key]
