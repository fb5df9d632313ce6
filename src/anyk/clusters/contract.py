"""The contract of a cluster; the conformance suite in :mod:`anyk.testing` is its definition.

Clusters whose workers share no memory with the driver derive from :class:`~anyk.clusters.remote.networked.Networked`
and :class:`~anyk.clusters.remote.networked.NetworkedWorker`, and implement :class:`Transport`,
:class:`NetworkTransport` and :class:`WorkerTransport`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from anyk import html
from anyk.clusters.injection import ClusterOptions, Injection
from anyk.clusters.local import Local
from anyk.clusters.messages import WHOLE
from anyk.clusters.store import VectorStore
from anyk.problems.base import Partitions, Vector
from anyk.protocol import Cancel, Cut, Dispatch, Event, Layout, ProjectMessage, RequestMessage, SetAlarm
from anyk.specs import show

Order = Dispatch | Cancel | RequestMessage | ProjectMessage | SetAlarm  # the commands that clusters carry out
Key = tuple[str | int, int]  # a model as (slot, version), a message as (task, chunk)

PINNED = 8  # versions of a slot that the driver may keep from being released besides those that tasks are on


class Cluster(ABC):
    """Workers that carry out commands and report events; used as a context manager, it leaves nothing behind.

    ``virtual``: whether time is simulated. Message vectors and model versions live in the cluster's ``store``: the
    driver names them by (task, chunk) and (slot, version). Without a problem there are none.
    """

    virtual: bool = False
    recorded: bool = False  # whether its events come from a log
    name: str = ""
    workers_here: bool = False  # whether its workers are processes of this machine, which share its memory
    passes_time: bool = True  # whether anything takes time, so that a limit of seconds is ever reached

    def __init__(self, options: ClusterOptions) -> None:
        self.workers, self.seed, self.byzantine = options.workers, options.seed, tuple(options.byzantine)
        self.injection = Injection(options)
        self.delays, self.communication = self.injection.delays, self.injection.communication
        self.report_cuts = True  # whether events() should report what became of cancelled chunks
        self.store = VectorStore()

    def __repr__(self) -> str:
        injected = f"delays {self.delays.spec}, communication {self.communication.spec}, seed {self.seed}"
        return f"<{type(self).__name__} {self.spec}: {self.workers} workers, {injected}>"

    def _repr_html_(self) -> str:
        """Return the settings as a table, for notebooks."""
        head = ["cluster", "workers", "delays", "communication", "seed"]
        return html.table(head, [[self.spec, self.workers, self.delays.spec, self.communication.spec, self.seed]])

    @property
    def spec(self) -> str:
        """The short form, without workers, delays, communication, seed and outages."""
        return show(self.name, {"byzantine": self.byzantine}, {"byzantine": ()})

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:  # noqa: B027  # most clusters have nothing to do here
        """Start what can start before the data is ready; optional."""

    @abstractmethod
    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        """Start the workers with their partitions, and the run's clock at 0; return the workers that are present.

        ``layout``: the strategy's set-up. ``partitions`` is None when only timing is asked for (simulated
        clusters). ``local``: how workers take local steps, if they do.
        """

    def mapped(self, layout: Layout, partitions: Partitions, lengths: Sequence[int]) -> int:
        """Return the bytes of addresses that models and messages take in the driver; 0 if they are not mapped ahead.

        ``lengths``: the longest message of each worker.
        """
        del layout, partitions, lengths
        return 0

    @abstractmethod
    def close(self) -> None:
        """End everything that was started; safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def now(self) -> float:
        """Return the seconds on the run's clock."""

    def restore(self, time: float, state: dict[str, Any]) -> None:
        """Continue at ``time`` from what :meth:`state` returned; called after :meth:`open` and the :meth:`publish`es.

        Tasks that were in flight are resumed with the delays they had.
        """
        del time
        self.injection.restore(state)

    def state(self) -> dict[str, Any]:
        """Return the tasks in flight, alarms and draws from which :meth:`restore` continues, as plain data."""
        return self.injection.state()

    # ------------------------------------------------------------------------------------------- models and messages

    def blank(self, slot: str) -> Vector:
        """Return a buffer for a slot's next version; :meth:`publish` it when it is written."""
        return self.store.blank(slot)

    @abstractmethod
    def publish(self, slot: str, version: int, w: Vector | None) -> None:
        """Make a version known, written to a :meth:`blank`; tasks dispatched from now on use the newest.

        Without a problem there is no vector, only the version, on which delays may depend.
        """

    def model(self, slot: str, version: int) -> Vector:
        """Return a model version that has been published and not released; read-only."""
        return self.store.model(slot, version)

    def release(self, slot: str, version: int) -> None:
        """Release a version that is no longer needed."""
        self.store.release(slot, version)

    def message(self, task: int, chunk: int) -> Vector:
        """Return a message that has arrived and has not been freed; read-only."""
        return self.store.arrived[task, chunk].vector

    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """Take in a saved message of a worker as if it had arrived."""
        self.store.hold(worker, task, chunk, ids, message)

    def combine(
        self, messages: Sequence[tuple[int, int]], weights: Sequence[Any], part: slice = WHOLE
    ) -> NDArray[np.float64]:
        """Return the weighted sum of messages, in the order given, of the coordinates in ``part``, as a new array.

        Several threads may call it simultaneously, each for a different part.
        """
        return self.store.combine(messages, weights, part)

    def free(self, task: int, chunk: int) -> None:
        """Free a message that is no longer needed, or only until the tasks that begin from it have ended."""
        self.store.free(task, chunk)

    def vectors(self) -> dict[str, Vector]:
        """Return the vectors of :meth:`state`: messages only tasks under way need, and the workers' own state."""
        return self.store.vectors()

    def take_back(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:
        """Restore :meth:`vectors`, before :meth:`restore`; ``workers``: the sender of each task's messages."""
        self.store.take_back(vectors, workers)

    # ------------------------------------------------------------------------------------------- commands and events

    @abstractmethod
    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """Carry out commands, in order; return the cancelled chunks whose end is known now (virtual clusters: all)."""

    @abstractmethod
    def give_up(self, worker: int) -> None:
        """Abandon a worker: its tasks end without an event, and it causes no further ones."""

    @abstractmethod
    def events(self) -> Iterator[Event | Cut | None]:
        """Yield events in order, and None now and then while nothing happens, so that the driver can tidy up."""

    def step_done(self) -> None:  # noqa: B027  # on a real clock the step has taken its time
        """Count what the driver's step has cost on a virtual clock."""


# ----------------------------------------------------------------------------------------------- transport of messages


class Envelope(NamedTuple):
    """A message of the driver: orders, the keys of the vectors they need, and the keys of the enclosed vectors."""

    number: int  # counts a worker's envelopes; those before the last received are out of date
    orders: bytes
    needs: tuple[Key, ...]
    fresh: tuple[Key, ...]


class Report(NamedTuple):
    """A message of a worker, beside which its vector travels; ``kind`` is one of those in ``remote/worker.py``.

    Times are on the worker's clock: when its task was taken, its computing began and ended, the report was sent.
    """

    kind: int
    task: int
    chunk: int = 0
    done: int = 0  # partitions that are finished; of READY and EVALUATED whether it failed
    started: float = 0.0
    computing: float = 0.0
    computed: float = 0.0
    sent: float = 0.0
    bits: int = 0  # a digest, or the value of a loss
    text: str = ""


class Transport(ABC):
    """The driver's side of workers that run by themselves."""

    @abstractmethod
    def ship(self, partitions: Partitions) -> None:
        """Prepare what the workers of a run will receive: ``setup``, their ``assignment`` and its partitions."""

    @abstractmethod
    def spawn(self, worker: int) -> None:
        """Start a new life of a worker, which must report that it is ready; networked: call ``renew(worker)`` first."""

    @abstractmethod
    def send_orders(self, worker: int) -> None:
        """Send a worker its newest orders, if it is present."""

    @abstractmethod
    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for reports, and append a ``Notice`` of each, or ``Died``, to ``news``."""


class NetworkTransport(ABC):
    """The driver's side of workers that share no memory with it."""

    @abstractmethod
    def listens(self, worker: int) -> bool:
        """Return whether the worker has received the last envelope; until then newer orders replace each other."""

    @abstractmethod
    def send(self, worker: int, envelope: Envelope) -> None:
        """Send an envelope with the vectors of its fresh keys (``store.vector``), without waiting."""


class WorkerTransport(ABC):
    """The worker's side of a transport, which passes every envelope to ``receive``."""

    @abstractmethod
    def transmit(self, report: Report, vector: NDArray[Any] | None) -> None:
        """Send the driver a report, with its vector if it has one."""

    @abstractmethod
    def listen(self, until: float | None) -> None:
        """Wait for an envelope, at most until a time; raise ``Disconnected`` when the driver has gone."""
