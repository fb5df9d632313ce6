"""What a cluster is; the conformance suite in :mod:`anyk.testing` is its definition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from anyk.delays import DelayModel, DelayStream, NoDelay
from anyk.errors import BadInput
from anyk.problems.base import Partitions, Vector
from anyk.protocol import Cancel, Chunk, Collect, Cut, Dispatch, Event, Measure, SetAlarm, Task
from anyk.specs import show

Order = Dispatch | Cancel | Collect | Measure | SetAlarm  # the commands that clusters carry out


PINNED = 8  # versions of a slot that the driver may keep from being released besides those that tasks are on


class InFlight(NamedTuple):
    """A task that a worker has been given and has not ended, with its injected delays."""

    worker: int
    chunks: Task
    versions: tuple[int, ...]
    started: float  # from when its delays count
    before: float  # seconds held up before its first partition
    each: float  # and before every partition

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> InFlight:
        """Read back what JSON made of one."""
        worker, chunks, versions, started, before, each = plain
        return cls(worker, tuple(map(Chunk.from_plain, chunks)), tuple(versions), started, before, each)


class Cluster(ABC):
    """Workers that carry out commands and report events; used as a context manager, it leaves nothing behind.

    ``workers``: n. ``delays``, ``seed``: injected delays, drawn for the n-th task of a worker from (seed, worker, n).
    ``liars``: workers that send -100 times what they should, to study codes against them.
    ``virtual``: whether time is simulated. Message vectors and model versions live in the cluster: the driver names
    them by (task, chunk) and (slot, version).
    """

    virtual: bool = False
    recorded: bool = False  # whether its events come from a log
    name: str = ""

    def __init__(
        self, workers: int, *, delays: DelayModel | None = None, seed: int = 0, liars: Sequence[int] = ()
    ) -> None:
        if workers < 1:
            raise BadInput(f"workers must be at least 1, got {workers}")
        self.liars = tuple(liars)
        if not all(0 <= liar < workers for liar in self.liars):
            raise BadInput(f"liars must be workers 0 to {workers - 1}, got {'/'.join(map(str, self.liars))}")
        self.workers = workers
        self.delays = delays or NoDelay()
        self.seed = seed
        self.report_cuts = True  # whether events() should tell what became of cancelled chunks
        self._stream = DelayStream(self.delays, seed, workers)
        self._numbers = [0] * workers  # tasks dispatched to each worker so far
        self._repeats: list[tuple[int, int]] = [(-1, 0)] * workers  # (version, tasks dispatched on it)
        self._total = 1  # partitions of the data

    @property
    def spec(self) -> str:
        """The short form, without workers, delays and seed."""
        return show(self.name, {"liars": self.liars}, {"liars": ()})

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:  # noqa: B027  # most clusters have nothing to do here
        """Begin what can begin before the data is ready; optional."""

    @abstractmethod
    def open(
        self,
        partitions: Partitions | None,
        *,
        total: int,
        slots: Sequence[str],
        holdings: Sequence[tuple[int, ...]],
        covers: Sequence[tuple[int, ...]] | None = None,
        blocks: int = 1,
    ) -> tuple[int, ...]:
        """Start the workers with their partitions; returns who is present.

        ``total`` is the number of partitions; ``partitions`` is None when only timing is asked (simulated clusters).
        ``covers``: the partitions that each worker's longest message covers, if not those it holds. ``blocks``: each
        message is one of so many parts of the vector. The run's clock starts at 0.
        """

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
        self._numbers = list(state["numbers"])
        self._repeats = [(version, count) for version, count in state["repeats"]]

    def state(self) -> dict[str, Any]:
        """The tasks in flight, alarms and counts from which :meth:`restore` goes on, as plain data."""
        return {"numbers": list(self._numbers), "repeats": list(self._repeats)}

    # ------------------------------------------------------------------------------------------- models and messages

    @abstractmethod
    def blank(self, slot: str) -> Vector:
        """Room for a slot's next version; :meth:`publish` it when it is written."""

    @abstractmethod
    def publish(self, slot: str, version: int, w: Vector) -> None:
        """Make a version known, written to a :meth:`blank`; tasks dispatched from now on use the newest."""

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
    def combine(self, messages: Sequence[tuple[int, int]], weights: Sequence[Any]) -> NDArray[np.float64]:
        """The weighted sum of messages, shape (dimension,), in the order given; overwritten by the next call."""

    @abstractmethod
    def free(self, task: int, chunk: int) -> None:
        """A message that arrived is needed no more."""

    # ------------------------------------------------------------------------------------------- commands and events

    @abstractmethod
    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """Carry out commands, in order; returns what is known at once of chunks cut off (virtual clusters: all)."""

    @abstractmethod
    def events(self) -> Iterator[Event | Cut | None]:
        """What happens, in order; None now and then while nothing does, so that the driver can tidy up."""

    def step_done(self) -> None:  # noqa: B027  # on a real clock it has taken what it has taken
        """The driver has taken a step; a virtual clock may count what that costs."""

    # ------------------------------------------------------------------------------------------- delays

    def _hold(self, worker: int, chunks: Task, version: int) -> tuple[float, float]:
        """Seconds held up before the next task of a worker and before each of its partitions; counts the task."""
        number = self._numbers[worker]
        self._numbers[worker] = number + 1
        stream = self._stream
        if stream.silent:
            return 0.0, 0.0
        known, count = self._repeats[worker]
        repeat = count if known == version else 0
        self._repeats[worker] = (version, repeat + 1)
        partitions = sum(len(chunk.partitions) for chunk in chunks)
        return stream.for_task(
            worker,
            number=number,
            version=version,
            repeat=repeat,
            partitions=partitions,
            relative_load=partitions / self._total,
        )
