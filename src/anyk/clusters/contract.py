"""The interface that every cluster implements; the conformance suite in :mod:`anyk.testing` defines its behaviour.

Clusters on the wall clock derive from :class:`~anyk.clusters.remote.remote.Remote`; if their workers share no memory
with the driver, from :class:`~anyk.clusters.remote.networked.Networked` and
:class:`~anyk.clusters.remote.networked.NetworkedWorker`. What remains is their abstract methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Self

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput
from anyk.base.html import html_table
from anyk.base.made_with import MadeWith
from anyk.base.specs import show_spec
from anyk.clusters.injection import ClusterOptions, Injection
from anyk.clusters.local import Local
from anyk.clusters.store import Elsewhere, VectorStore
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.protocol import Cancel, Cut, Dispatch, Event, Layout, ProjectMessage, RequestMessage, SetAlarm

Order = Dispatch | Cancel | RequestMessage | ProjectMessage | SetAlarm  # the commands that clusters carry out
Key = tuple[str | int, int]  # a model as (slot, version), a message as (task, chunk)

PINNED = 8  # versions of a slot that the driver may keep in addition to the versions that tasks use


class Cluster(ABC):
    """Workers that carry out commands and report events; as a context manager, it leaves nothing behind.

    ``virtual``: whether time is simulated. Message vectors and model versions live in the cluster's ``store``: the
    driver refers to them by (task, chunk) and (slot, version). A cluster that only simulates times has none.
    """

    virtual: bool = False
    recorded: bool = False  # whether events are read from a log
    name: str = ""
    workers: MadeWith[int] = MadeWith()
    seed: MadeWith[int] = MadeWith()
    byzantine: MadeWith[tuple[int, ...]] = MadeWith()
    spoiled: MadeWith[str] = MadeWith()
    delays: MadeWith[DelayModel] = MadeWith()
    communication: MadeWith[Communication] = MadeWith()
    workers_here: bool = False  # whether workers are processes of this machine and share its memory
    in_slices: bool = False  # whether models lie in slices elsewhere, and the driver reads them when it is asked to
    in_run: bool = False  # whether a run has it now
    passes_time: bool = True  # whether anything takes time; otherwise a limit in seconds is never reached

    def __init__(self, options: ClusterOptions) -> None:
        self.workers, self.seed, self.byzantine = options.workers, options.seed, tuple(options.byzantine)
        self.spoiled = options.spoiled
        self.injection = Injection(options)
        self.delays, self.communication = self.injection.delays, self.injection.communication
        self.report_cuts = True  # whether to report how far cancelled chunks came
        self.store = VectorStore()

    def __repr__(self) -> str:
        injected = f"delays {self.delays.spec}, communication {self.communication.spec}, seed {self.seed}"
        return f"<{type(self).__name__} {self.spec}: {self.workers} workers, {injected}>"

    def _repr_html_(self) -> str:
        """Return the settings as a table, for notebooks."""
        head = ["cluster", "workers", "delays", "communication", "seed"]
        return html_table(head, [[self.spec, self.workers, self.delays.spec, self.communication.spec, self.seed]])

    @property
    def spec(self) -> str:
        """The cluster's spec, without workers, delays, communication, seed and outages."""
        return show_spec(self.name, {"byzantine": self.byzantine}, {"byzantine": ()})

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:  # noqa: B027  # optional
        """Start everything that needs no data yet; optional."""

    @abstractmethod
    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        """Start the workers with their partitions, and the run's clock at 0; return the workers that are present.

        ``layout``: the strategy's set-up. ``partitions``: None if only times are simulated. ``local``: how workers take
        local steps, None if they take none.
        """

    def mapped(self, layout: Layout, partitions: Partitions, lengths: Sequence[int]) -> int:
        """Return the bytes of address space that models and messages take in the driver; 0 if not mapped in advance.

        ``lengths``: the length of each worker's longest message.
        """
        return 0

    @abstractmethod
    def close(self) -> None:
        """Stop everything that the cluster has started; calling it twice is safe."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def now(self) -> float:
        """Return the time on the run's clock, in seconds."""

    def restore(self, time: float, state: dict[str, Any]) -> None:
        """Continue at ``time`` from the result of :meth:`state`; call :meth:`open` and :meth:`publish` before.

        Tasks in flight are resumed with their previous delays.
        """
        self.injection.restore(state)

    def state(self) -> dict[str, Any]:
        """Return the tasks in flight, alarms and sample counts for :meth:`restore`, as plain data."""
        return self.injection.state()

    # ------------------------------------------------------------------------------------------- models and messages

    @abstractmethod
    def publish(self, slot: str, version: int, w: Vector | Elsewhere | None) -> None:
        """Announce a version, written to a ``store.blank``; tasks dispatched later use the newest version.

        ``w`` is None if only times are simulated: delays may still depend on the version.
        """

    # ------------------------------------------------------------------------------------------- commands and events

    @abstractmethod
    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """Carry out commands in order; return how far cancelled chunks came, if already known (virtual clusters)."""

    @abstractmethod
    def abandon(self, worker: int) -> None:
        """Abandon a worker: its tasks end without an event, and no further event comes from it."""

    def drain(self, workers: Collection[int]) -> None:
        """Have these workers leave when their tasks have ended, and stay away; others may return.

        Raises :class:`~anyk.BadInput` if the cluster cannot do that.
        """
        raise BadInput(f"cluster '{self.name}' cannot drain workers; processes, nodes and ray can")

    @abstractmethod
    def events(self) -> Iterator[Event | Cut | None]:
        """Yield events in order, and None from time to time while idle, so that the driver can tidy up."""

    def step_done(self) -> None:  # noqa: B027  # a real clock has advanced by itself
        """Advance a virtual clock by the cost of the driver's step."""


# ----------------------------------------------------------------------------------------------- transport of messages


class Envelope(NamedTuple):
    """A message of the driver: orders, the keys of the vectors that they need, and of the vectors enclosed."""

    number: int  # counts a worker's envelopes; only the newest one received is valid
    orders: bytes
    needs: tuple[Key, ...]
    fresh: tuple[Key, ...]


class Report(NamedTuple):
    """A report of a worker; its vector travels separately. ``kind`` is a constant of ``remote/channel.py``.

    Times are on the worker's clock: start of the task, start and end of computing, sending of the report.
    """

    kind: int
    task: int
    chunk: int = 0
    done: int = 0  # finished partitions; for READY and EVALUATED: 1 if it failed
    started: float = 0.0
    computing: float = 0.0
    computed: float = 0.0
    sent: float = 0.0
    bits: int = 0  # a digest, or the value of a loss
    text: str = ""
