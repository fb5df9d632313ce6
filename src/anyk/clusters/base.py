"""What a cluster is; the conformance suite in :mod:`anyk.testing` is its definition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from anyk.checks import check_workers
from anyk.clusters.local import Local
from anyk.clusters.packing import scheme
from anyk.delays import Communication, DelayModel, DelayStream, NoDelay, Traffic, parse
from anyk.delays import communication as lines
from anyk.errors import BadInput
from anyk.problems.base import Partitions, Vector
from anyk.protocol import Cancel, Chunk, Cut, Dispatch, Event, Layout, ProjectMessage, RequestMessage, SetAlarm, Task
from anyk.specs import show

Order = Dispatch | Cancel | RequestMessage | ProjectMessage | SetAlarm  # the commands that clusters carry out


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

    ``workers``: n. ``delays``, ``seed``: injected delays, a law or its spec, drawn for the n-th task of a worker from
    (seed, worker, n).
    ``communication``: how long vectors are under way besides. ``byzantine``: workers that send -100 times
    what they should, to study codes against them.
    ``virtual``: whether time is simulated. Message vectors and model versions live in the cluster: the driver names
    them by (task, chunk) and (slot, version).
    """

    virtual: bool = False
    recorded: bool = False  # whether its events come from a log
    name: str = ""

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
        self.delays = NoDelay() if delays is None else parse(delays)
        self.seed = seed
        self.report_cuts = True  # whether events() should tell what became of cancelled chunks
        self.communication = lines(NoDelay() if communication is None else communication)
        self._stream = DelayStream(self.delays, seed, workers)
        self._lines = None if self.communication.silent else self.communication.stream(seed, workers)
        self.sized_like: Cluster = self  # whose vectors say what is under way, where there is no problem here
        self._bytes = 0, 0  # of a model, of a number
        self._readers: dict[tuple[int, int], int] = {}  # messages that tasks begin from, and how many do
        self._spent: set[tuple[int, int]] = set()  # those of them that nobody else needs any more
        self._numbers = [0] * workers  # tasks dispatched to each worker so far
        self._repeats: list[tuple[int, int]] = [(-1, 0)] * workers  # (version, tasks dispatched on it)
        self._total = 1  # partitions of the data
        self.shares: Sequence[int] | None = None  # their relative sizes, if not all the same

    def __repr__(self) -> str:
        drawn = f"delays {self.delays.spec}, communication {self.communication.spec}, seed {self.seed}"
        return f"<{type(self).__name__} {self.spec}: {self.workers} workers, {drawn}>"

    @property
    def spec(self) -> str:
        """The short form, without workers, delays and seed."""
        return show(self.name, {"byzantine": self.byzantine}, {"byzantine": ()})

    @property
    def passes_time(self) -> bool:
        """Whether anything takes time, so that a limit of seconds comes."""
        return True

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:  # noqa: B027  # most clusters have nothing to do here
        """Begin what can begin before the data is ready; optional."""

    @abstractmethod
    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        """Start the workers with their partitions; returns who is present.

        ``layout``: what the strategy needs laid out. ``partitions`` is None when only timing is asked (simulated
        clusters). ``local``: how workers take local steps, where they do. The run's clock starts at 0.
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
        if self._lines is not None:
            self._lines.turns = {task: (begin, end) for task, begin, end in state["turns"]}

    def state(self) -> dict[str, Any]:
        """The tasks in flight, alarms and counts from which :meth:`restore` goes on, as plain data."""
        turns = {} if self._lines is None else self._lines.turns
        return {
            "numbers": list(self._numbers),
            "repeats": list(self._repeats),
            "turns": [[task, *turn] for task, turn in turns.items()],
        }

    @property
    def tasks(self) -> int:
        """As many as the worker with the most has been given; so many delays have been drawn."""
        return max(self._numbers)

    def skip(self, tasks: int) -> None:
        """Draw delays as if every worker had been given so many tasks; called after :meth:`open`."""
        self._numbers[:] = [tasks] * self.workers

    # ------------------------------------------------------------------------------------------- models and messages

    @abstractmethod
    def blank(self, slot: str) -> Vector:
        """A buffer for a slot's next version; :meth:`publish` it when it is written."""

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

    def free(self, task: int, chunk: int) -> None:
        """A message that arrived is needed no more, or only until the tasks that begin from it have ended."""
        if self._readers and (task, chunk) in self._readers:
            self._spent.add((task, chunk))
        else:
            self._drop(task, chunk)

    @abstractmethod
    def _drop(self, task: int, chunk: int) -> None:
        """Forget a message."""

    def _begins(self, chunks: Task) -> None:
        """A task is under way that begins from messages."""
        for chunk in chunks:
            for _, task, index, _ in chunk.mix:
                self._readers[task, index] = self._readers.get((task, index), 0) + 1

    def _ended(self, chunks: Task) -> None:
        """It is no more."""
        for chunk in chunks if self._readers else ():
            for _, task, index, _ in chunk.mix:
                left = self._readers.get((task, index), 0) - 1
                if left > 0:
                    self._readers[task, index] = left
                elif self._readers.pop((task, index), None) is not None and (task, index) in self._spent:
                    self._spent.discard((task, index))
                    self._drop(task, index)

    def vectors(self) -> dict[str, Vector]:
        """What :meth:`state` cannot hold: messages that only tasks under way need, and the workers' own state."""
        return {f"read/{task}/{chunk}": self.message(task, chunk) for task, chunk in sorted(self._spent)}

    def take_back(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:
        """Take in what :meth:`vectors` gave, before :meth:`restore`; ``workers`` says whose task is whose."""
        for key, vector in vectors.items():
            kind, *rest = key.split("/")
            if kind == "read":
                task, chunk = map(int, rest)
                self.hold(workers.get(task, 0), task, chunk, (), vector)
                self._spent.add((task, chunk))

    # ------------------------------------------------------------------------------------------- commands and events

    @abstractmethod
    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """Carry out commands, in order; returns what is known at once of chunks cut off (virtual clusters: all)."""

    @abstractmethod
    def give_up(self, worker: int) -> None:
        """Give a worker up for good: its tasks end without an event, and it causes none any more."""

    @abstractmethod
    def events(self) -> Iterator[Event | Cut | None]:
        """What happens, in order; None now and then while nothing does, so that the driver can tidy up."""

    def newer(self, slot: str, version: int) -> None:  # noqa: B027  # publish() does it where there are vectors
        """A slot has reached a version that has no vector; delays may depend on it."""

    def step_done(self) -> None:  # noqa: B027  # on a real clock it has taken what it has taken
        """The driver has taken a step; a virtual clock may count what that costs."""

    # ------------------------------------------------------------------------------------------- delays

    def _hold(self, task: int, worker: int, chunks: Task, version: int) -> tuple[float, float]:
        """Seconds held up before the next task of a worker and before each of its partitions; counts the task."""
        number = self._numbers[worker]
        self._numbers[worker] = number + 1
        stream = self._stream
        away = 0.0
        if self._lines is not None:
            away = self._lines.seconds(task, worker, number, self._traffic(worker, chunks), self.now())
        if stream.silent:
            return away, 0.0
        if chunks[0].steps:
            return away + self._hold_local(worker, chunks), 0.0
        known, count = self._repeats[worker]
        repeat = count if known == version else 0
        self._repeats[worker] = (version, repeat + 1)
        partitions = sum(len(chunk.partitions) for chunk in chunks)
        before, each = stream.for_task(
            worker,
            number=number,
            version=version,
            repeat=repeat,
            partitions=partitions,
            relative_load=self._relative_load(chunks),
        )
        return away + before, each

    def _relative_load(self, chunks: Task) -> float:
        """The share of the data that a task covers."""
        if self.shares is None:
            return sum(len(chunk.partitions) for chunk in chunks) / self._total
        return sum(self.shares[j] for chunk in chunks for j in chunk.partitions) / sum(self.shares)

    def _hold_local(self, worker: int, chunks: Task) -> float:
        """Local steps are held up one by one, by the delays of their numbers: as many draws as there are gradients."""
        total = 0.0
        for chunk in chunks:
            share = len(chunk.partitions) if self.delays.per == "load" else 1
            for step in range(chunk.repeat, chunk.repeat + chunk.steps):
                if self.delays.by == "item":
                    seconds = self.delays.item_draw(self.seed, worker, step, 0)
                else:
                    seconds = self._stream.at(worker, step)
                total += share * self.delays.at_load(seconds, self._relative_load((chunk,)))
        return total

    def _traffic(self, worker: int, chunks: Task) -> Traffic:
        """What a task exchanges: models that it reads, and messages that it sends."""
        model, number = self.sized_like._bytes
        neighbours, size = 0, 0
        slots = set()
        for chunk in chunks:
            if chunk.mix:  # its own model is there already
                neighbours += sum(other != worker for other, *_ in chunk.mix)
                if chunk.share:  # the centre's model, and its own to the centre
                    slots.add(chunk.slot)
                    size += model
            else:
                slots.add(chunk.slot)
                length = self.sized_like._length(chunk)
                size += scheme(chunk.compress).size(length, number) if chunk.compress else number * length
        return Traffic(neighbours, model, bool(slots), size + len(slots) * model)

    @abstractmethod
    def _length(self, chunk: Chunk) -> int:
        """Numbers in a chunk's message; 0 where there is no problem."""
