"""The contract of a cluster; the conformance suite in :mod:`anyk.testing` is its definition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anyk import html
from anyk.checks import check_workers
from anyk.clusters.injection import Injection
from anyk.clusters.local import Local
from anyk.clusters.messages import WHOLE
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput
from anyk.problems.base import Partitions, Vector
from anyk.protocol import Cancel, Cut, Dispatch, Event, Layout, ProjectMessage, RequestMessage, SetAlarm
from anyk.specs import show

Order = Dispatch | Cancel | RequestMessage | ProjectMessage | SetAlarm  # the commands that clusters carry out


PINNED = 8  # versions of a slot that the driver may keep from being released besides those that tasks are on


class Cluster(ABC):
    """Workers that carry out commands and report events; used as a context manager, it leaves nothing behind.

    ``workers``: n. ``delays``, ``seed``: injected delays, a law or its spec, drawn for the n-th task of a worker from
    (seed, worker, n).
    ``communication``: how long vectors travel in addition. ``byzantine``: workers that send -100 times the right
    message, to study codes against them.
    ``virtual``: whether time is simulated. Message vectors and model versions live in the cluster: the driver names
    them by (task, chunk) and (slot, version).
    """

    virtual: bool = False
    recorded: bool = False  # whether its events come from a log
    name: str = ""
    workers_here: bool = False  # whether its workers are processes of this machine, which share its memory
    passes_time: bool = True  # whether anything takes time, so that a limit of seconds is ever reached

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
    ) -> None:
        check_workers(workers)
        self.byzantine = tuple(byzantine)
        if not all(0 <= worker < workers for worker in self.byzantine):
            raise BadInput(f"byzantine must be workers 0 to {workers - 1}, got {'/'.join(map(str, self.byzantine))}")
        self.workers = workers
        self.injection = Injection(workers, delays=delays, seed=seed, communication=communication)
        self.delays, self.communication, self.seed = self.injection.delays, self.injection.communication, seed
        self.report_cuts = True  # whether events() should tell what became of cancelled chunks

    def __repr__(self) -> str:
        drawn = f"delays {self.delays.spec}, communication {self.communication.spec}, seed {self.seed}"
        return f"<{type(self).__name__} {self.spec}: {self.workers} workers, {drawn}>"

    def _repr_html_(self) -> str:
        """For notebooks: its settings."""
        head = ["cluster", "workers", "delays", "communication", "seed"]
        return html.table(head, [[self.spec, self.workers, self.delays.spec, self.communication.spec, self.seed]])

    @property
    def spec(self) -> str:
        """The short form, without workers, delays and seed."""
        return show(self.name, {"byzantine": self.byzantine}, {"byzantine": ()})

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:  # noqa: B027  # most clusters have nothing to do here
        """Begin what can begin before the data is ready; optional."""

    @abstractmethod
    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        """Start the workers with their partitions; returns who is present.

        ``layout``: the strategy's set-up. ``partitions`` is None when only timing is asked for (simulated
        clusters). ``local``: how workers take local steps, where they do. The run's clock starts at 0.
        """

    def mapped(self, layout: Layout, partitions: Partitions, lengths: Sequence[int]) -> int:
        """Bytes of addresses that models and messages take in the driver; ``lengths``: each worker's longest message.

        0 where they are not mapped ahead.
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
        """Seconds on the run's clock."""

    def restore(self, time: float, state: dict[str, Any]) -> None:
        """Go on at ``time`` from what :meth:`state` returned; called after :meth:`open` and the :meth:`publish`es.

        Tasks that were in flight are taken up again with the delays they had.
        """
        del time
        self.injection.restore(state)

    def state(self) -> dict[str, Any]:
        """The tasks in flight, alarms and draws from which :meth:`restore` goes on, as plain data."""
        return self.injection.state()

    # ------------------------------------------------------------------------------------------- models and messages

    @abstractmethod
    def blank(self, slot: str) -> Vector:
        """A buffer for a slot's next version; :meth:`publish` it when it is written."""

    @abstractmethod
    def publish(self, slot: str, version: int, w: Vector | None) -> None:
        """Make a version known, written to a :meth:`blank`; tasks dispatched from now on use the newest.

        Without a problem there is no vector, only the version, on which delays may depend.
        """

    @abstractmethod
    def model(self, slot: str, version: int) -> Vector:
        """A model version that has been published and not released; read-only."""

    @abstractmethod
    def release(self, slot: str, version: int) -> None:
        """The version is needed no more."""

    @abstractmethod
    def message(self, task: int, chunk: int) -> Vector:
        """A message that has arrived and has not been freed; read-only."""

    @abstractmethod
    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """Take in a saved message of a worker as if it had arrived."""

    @abstractmethod
    def combine(
        self, messages: Sequence[tuple[int, int]], weights: Sequence[Any], part: slice = WHOLE
    ) -> NDArray[np.float64]:
        """The weighted sum of messages, in the order given, of the coordinates in ``part``: a new array of so many.

        Several threads may call it at once, each for a part of its own.
        """

    @abstractmethod
    def free(self, task: int, chunk: int) -> None:
        """A message that arrived is needed no more, or only until the tasks that begin from it have ended."""

    def vectors(self) -> dict[str, Vector]:
        """The vectors that belong to :meth:`state`: messages only tasks under way need, and the workers' own state."""
        return {}

    def take_back(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:  # noqa: B027
        """Take in what :meth:`vectors` gave, before :meth:`restore`; ``workers``: who made the message of a task."""

    # ------------------------------------------------------------------------------------------- commands and events

    @abstractmethod
    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """Carry out commands, in order; returns what is known at once of chunks cut off (virtual clusters: all)."""

    @abstractmethod
    def give_up(self, worker: int) -> None:
        """Give a worker up for good: its tasks end without an event, and it causes no further ones."""

    @abstractmethod
    def events(self) -> Iterator[Event | Cut | None]:
        """Events in order; None now and then while nothing happens, so that the driver can tidy up."""

    def step_done(self) -> None:  # noqa: B027  # on a real clock it has taken what it has taken
        """The driver has taken a step; a virtual clock may count what that costs."""
