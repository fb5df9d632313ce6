"""Injected delays: sampled for each worker's n-th task, before computing and for the transfer of its vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from anyk.base.checks import check_range, check_workers, typed
from anyk.clusters.messages import Messages
from anyk.clusters.packing import scheme
from anyk.delays import Communication, DelayModel, DelayStream, NoDelay, Traffic, parse
from anyk.delays import communication as parse_communication
from anyk.protocol import Layout, Task


class InFlight(NamedTuple):
    """A task that was dispatched to a worker and has not ended, with its injected delays."""

    worker: int
    chunks: Task
    versions: tuple[int, ...]
    started: float  # time from which its delays count
    before: float  # delay before the first partition, in seconds
    each: float  # delay before each partition, in seconds

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> InFlight:
        """Return a task read from JSON."""
        return msgspec.convert(plain, cls)

    @property
    def end(self) -> float:
        """The time at which its delays are over."""
        return self.started + self.before + self.each * sum(len(chunk.partitions) for chunk in self.chunks)

    def busy_until(self, now: float) -> float:
        """Return the time at which a worker whose delays cannot be interrupted notices the cancellation."""
        first = self.started + self.before
        if now <= first or not self.each:
            return first
        return min(first + self.each * -(-(now - first) // self.each), self.end)


@typed
@dataclass(frozen=True)
class ClusterOptions:
    """Settings that all clusters share.

    ``workers``: n. ``delays``: seconds before computing, a delay model or its spec, sampled for the n-th task of a
    worker from (seed, worker, n). ``communication``: additional seconds for the transfer of vectors, depending on the
    bytes that a task exchanges. ``byzantine``: workers that send -100 times the correct message, to study codes.
    ``spoiled``: a folder in which a file called ``nan`` or ``corrupt`` has a worker remove it and spoil one message.
    """

    workers: int
    delays: DelayModel | str | None = None
    seed: int = 0
    byzantine: Sequence[int] = ()
    communication: Communication | DelayModel | str | None = None
    spoiled: str = ""

    def __post_init__(self) -> None:
        check_workers(self.workers)
        for worker in self.byzantine:
            check_range("a worker of byzantine", worker, 0, self.workers - 1)


class Injection:
    """Samples the delays of a cluster's tasks from (seed, worker, n), where n counts the worker's tasks.

    Raises :class:`~anyk.BadInput` if a delay model is for another number of workers.
    """

    def __init__(self, options: ClusterOptions) -> None:
        workers, seed = options.workers, options.seed
        self.delays = NoDelay() if options.delays is None else parse(options.delays)
        self.communication = parse_communication(NoDelay() if options.communication is None else options.communication)
        self.seed = seed
        # whose lengths determine transfer times; None if only times are simulated
        self.messages: Messages | None = None
        self.stream = DelayStream(self.delays, seed, workers)
        self.links = self.communication.stream(seed, workers)
        self.instant = self.communication.silent  # whether vectors take no time
        self.unit = 1.0  # weight of a partition if delays or costs are per partition
        self.numbers = [0] * workers  # tasks dispatched to each worker so far
        # relative sizes of the partitions, if they differ, and their sum or the number of partitions
        self._shares: tuple[int, ...] | None = None
        self._total = workers
        self._repeats = [(-1, 0)] * workers  # (version, tasks dispatched with it)

    def start(self, layout: Layout, messages: Messages | None) -> None:
        """Start a run, with all task counts 0. ``messages``: None to keep the previous lengths."""
        workers = len(self.numbers)
        self._shares = None if layout.shares is None else tuple(layout.shares)
        self._total = layout.partitions if self._shares is None else sum(self._shares)
        self.unit = layout.unit
        if messages is not None:
            self.messages = messages
        self.numbers = [0] * workers
        self._repeats = [(-1, 0)] * workers
        self.links.turns = {}

    @property
    def tasks(self) -> int:
        """The largest number of tasks dispatched to one worker."""
        return max(self.numbers)

    def skip(self, tasks: int) -> None:
        """Continue as if ``tasks`` tasks had been dispatched to every worker; called after :meth:`start`."""
        self.numbers[:] = [tasks] * len(self.numbers)

    def draw(self, task: int, worker: int, chunks: Task, version: int, now: float) -> tuple[float, float]:
        """Sample the seconds before a worker's next task and before each of its partitions; count the task.

        ``version``: the model's version, or the round's number. ``now``: seconds on the run's clock.
        """
        number = self.numbers[worker]
        self.numbers[worker] = number + 1
        travel = 0.0
        if not self.instant:
            travel = self.links.seconds(task, worker, number, self._traffic(worker, chunks), now)
        if self.stream.silent:
            return travel, 0.0
        if chunks[0].steps:
            return travel + self._local_steps(worker, chunks), 0.0
        last, count = self._repeats[worker]
        repeat = count if last == version else 0
        self._repeats[worker] = (version, repeat + 1)
        before, per_partition = self.stream.for_task(
            worker,
            number=number,
            version=version,
            repeat=repeat,
            partitions=sum(len(chunk.partitions) for chunk in chunks),
            relative_load=self._relative_load(chunks),
        )
        return travel + before, per_partition * self.unit

    def cancel(self, tasks: Iterable[int], now: float) -> None:
        """Drop the transfers that cancelled tasks have not started."""
        self.links.cancel(tasks, now)

    def state(self) -> dict[str, Any]:
        """Return the number of samples so far, as plain data."""
        return {
            "numbers": list(self.numbers),
            "repeats": list(self._repeats),
            "turns": [[task, *turn] for task, turn in self.links.turns.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self.numbers = list(state["numbers"])
        self._repeats = [(version, count) for version, count in state["repeats"]]
        self.links.turns = {task: (begin, end) for task, begin, end in state["turns"]}

    def _relative_load(self, chunks: Task) -> float:
        """Return the share of the data that a task covers."""
        if self._shares is None:
            return sum(len(chunk.partitions) for chunk in chunks) / self._total
        return sum(self._shares[j] for chunk in chunks for j in chunk.partitions) / self._total

    def _local_steps(self, worker: int, chunks: Task) -> float:
        """Return the delay of a task's local steps, with one sample for each gradient."""
        total = 0.0
        for chunk in chunks:
            share = len(chunk.partitions) * self.unit if self.delays.per == "load" else 1
            for step in range(chunk.repeat, chunk.repeat + chunk.steps):
                if self.delays.by == "item":
                    seconds = self.delays.item_draw(self.seed, worker, step, 0)
                else:
                    seconds = self.stream.at(worker, step)
                total += share * self.delays.at_load(seconds, self._relative_load((chunk,)))
        return total

    def _traffic(self, worker: int, chunks: Task) -> Traffic:
        """Return the bytes that a task exchanges: the models that it receives, and the messages that it sends."""
        messages = self.messages
        number = 0 if messages is None else messages.dtype.itemsize
        model = 0 if messages is None else messages.partitions.dimension * number
        neighbours, size = 0, 0
        slots = set()
        for chunk in chunks:
            if chunk.mix:  # the worker already has its own model
                neighbours += sum(other != worker for other, *_ in chunk.mix)
                if chunk.share:  # the central model to the worker, and the worker's own to the driver
                    slots.add(chunk.slot)
                    size += model
            else:
                slots.add(chunk.slot)
                length = 0 if messages is None else messages.length(chunk.covers)
                size += scheme(chunk.compress).size(length, number) if chunk.compress else number * length
        return Traffic(neighbours, model, bool(slots), size + len(slots) * model)
