"""The transfers of a step on the virtual clock: when a model is here, and when a message has been read.

The formulas of :mod:`anyk.fleet.scaling.network` are of messages that are ready simultaneously. Here each begins to
move when its worker has computed it, while others are still being computed or read:

- A message is read by rank 0 (star), or by all holders, each its slice (slices). Each of them reads what it has to, in
  the order in which messages were announced, at the bandwidth of its link.
- A sum that several workers have announced comes from all of them, each at the bandwidth of its own link. So a message
  that nobody else has arrives no sooner than its worker can send it: to the other holders, that is about (N - 1) / N.
- What a worker of the reading node has computed is here at once.
- The new model takes its time before a task begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyk.base import BadInput, Floats
from anyk.clusters import InFlight
from anyk.delays import Communication, DelayModel, NoDelay, Traffic
from anyk.protocol import Chunk

Key = tuple[Any, ...]
BETWEEN_WORKERS = (
    "messages that go from worker to worker, or are requested in the middle of a task, cannot be predicted, only what "
    "rank 0 or the holders of slices read; take rounds of a code, k-sync, k-async, async or pasgd"
)
_KEPT = 100_000  # sums that are remembered, at the most, while nobody says that they are not needed any more


@dataclass
class _Sum:
    """A sum that is being read: who has it, and how much of it is left, as a share."""

    sources: list[int]
    since: float  # time at which ``left`` was left
    left: float
    arrived: Floats  # time at which each reader's link can have delivered it, shape (readers,)


class MessageReading:
    """Times at which messages have been read.

    ``shares``: of a message, which the first nodes read, shape (readers,): all of it by rank 0, or by each holder the
    slices that it holds. ``rates``: bytes a second that each node sends. ``bandwidth``: bytes a second that a node
    receives. ``size(chunk)``: bytes of a message.
    """

    def __init__(
        self,
        *,
        shares: Floats,
        rates: Floats,
        bandwidth: float,
        size: Callable[[Chunk], float],
    ) -> None:
        self._count, self._shares = len(shares), shares
        self._rates, self._bandwidth, self._size = rates, bandwidth, size
        self.clear()

    def clear(self) -> None:
        """Forget all messages."""
        self._busy_until = np.zeros(self._count)  # each reader's link
        self._sums: dict[Key, _Sum] = {}

    def arrival(self, time: float, task: int, chunk: int, entry: InFlight) -> float:
        """Return the time at which a message that is announced at ``time`` has arrived."""
        work, worker = entry.chunks[chunk], entry.worker
        if work.mix:
            raise BadInput(BETWEEN_WORKERS)
        key: Key = (work.slot, entry.versions[chunk], work.partitions, work.coefficients)
        if work.steps:  # a model after local steps, which no other worker has
            key = (task, chunk)
        size = self._size(work)
        reading = self._sums.get(key)
        if reading is None:
            reading = self._sums[key] = self._begin(worker, time, size)
        elif worker not in reading.sources:
            self._join(reading, worker, time, size)
        to_send = reading.left * size * self._remote(reading)
        sent = time + to_send / float(self._rates[reading.sources].sum())
        return max(sent, float(reading.arrived.max()))

    def _remote(self, reading: _Sum) -> float:
        """Return the share of a sum that is read by nodes which do not have it."""
        own = sum(self._shares[source] for source in reading.sources if source < self._count)
        return float(self._shares.sum() - own)

    def _begin(self, worker: int, time: float, size: float) -> _Sum:
        """Begin to read a sum that nobody else has announced."""
        if len(self._sums) > _KEPT:
            self._sums.clear()
        ends = np.maximum(self._busy_until, time) + size * self._shares / self._bandwidth
        if worker < self._count:
            ends[worker] = self._busy_until[worker]
        self._busy_until = ends
        arrived = ends.copy()
        if worker < self._count:
            arrived[worker] = time
        arrived[self._shares == 0.0] = time  # who holds nothing reads nothing
        return _Sum([worker], time, 1.0, arrived)

    def _join(self, reading: _Sum, worker: int, time: float, size: float) -> None:
        """Go on reading a sum from a further worker as well."""
        remote = size * self._remote(reading)
        if remote > 0.0:
            moved = float(self._rates[reading.sources].sum()) * (time - reading.since)
            reading.left = max(0.0, reading.left - moved / remote)
        reading.since = time
        reading.sources.append(worker)
        if worker < self._count:  # it has the rest of its part on its own node
            spared = reading.left * size * self._shares[worker] / self._bandwidth
            self._busy_until[worker] = max(min(time, self._busy_until[worker]), self._busy_until[worker] - spared)
            reading.arrived[worker] = time


@dataclass(frozen=True, eq=False)
class ModelReading(Communication):
    """The seconds before a task, in which its node reads the new model, and computes.

    ``before``: seconds of each worker, shape (workers,). ``one``: seconds in which one node reads a model from rank 0,
    if nodes do so one after another, as each continues by itself; 0: they do it together, and it is in ``before``.
    """

    latency: DelayModel = field(default_factory=NoDelay)
    before: Floats = field(default_factory=lambda: np.zeros(0))
    one: float = 0.0

    @property
    def silent(self) -> bool:
        return not self.one and not self.before.any()

    def stream(self, seed: int, workers: int) -> Any:
        return _ModelStream(self)


class _ModelStream:
    """The times of one run."""

    def __init__(self, model: ModelReading) -> None:
        self._model = model
        self._free = 0.0  # time at which rank 0's link is free
        self.turns: dict[int, tuple[float, float]] = {}

    def seconds(self, task: int, worker: int, number: int, traffic: Traffic, now: float) -> float:
        """Return the seconds until a task's worker has the model and has computed."""
        before = float(self._model.before[worker])
        if not self._model.one or not worker:
            return before
        self._free = max(self._free, now) + self._model.one
        return self._free - now + before

    def cancel(self, tasks: Iterable[int], now: float) -> None:
        """Do nothing: what has been ordered is read."""
