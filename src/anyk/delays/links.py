"""Models of the time that vectors take between driver and workers, or between neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_uniform
from anyk.base.specs import show_spec
from anyk.delays.base import DelayModel, DelayStream
from anyk.delays.trace import Trace

Links = Literal["parallel", "serial", "shared"]


class Traffic(NamedTuple):
    """The exchanges of one task with neighbours and with the driver, and the bytes of their vectors."""

    neighbours: int = 0  # number of neighbours whose models are read
    read: int = 0  # bytes from each neighbour
    driver: bool = False  # whether there is an exchange with the driver
    exchanged: int = 0  # bytes from and to the driver


@value_class
class Communication:
    """The time of a task's exchanges: a ``latency`` for each, and its bytes divided by the ``bandwidth``.

    A task has one exchange with the driver, which sends models and receives messages, or one with each neighbour whose
    model it reads, or both. ``links`` specifies how exchanges at one machine affect each other:

    - ``parallel``: not at all; each has its own link, and a task waits for its longest
      exchange, ``latency + bytes / bandwidth``;
    - ``serial``: a machine has one exchange at a time: a task that reads k neighbours waits k times as long, and of n
      tasks dispatched simultaneously the last waits n times as long for the driver;
    - ``shared``: latencies overlap, but a machine transfers bytes one after another: k neighbours take
      ``latency + k bytes / bandwidth``, and so does the last of k tasks dispatched simultaneously.

    The driver's exchanges follow the order in which tasks are dispatched; a task that is cancelled before its turn has
    none. Only the reader of a model waits, not the neighbour that is read. ``latency`` is a delay model, sampled once
    for each task by (seed, worker, number of the task); ``bandwidth`` is in bytes per second, 0 for unlimited.

    >>> from anyk.delays import NoDelay
    >>> Communication(NoDelay(), bandwidth=1e6, links="serial").spec
    'link:bandwidth=1000000,links=serial'
    """

    latency: DelayModel
    bandwidth: float = 0.0
    links: Links = "parallel"

    def __post_init__(self) -> None:
        latency = self.latency
        slope = latency.slope if isinstance(latency, Trace) else 0.0
        if not latency.is_plain_law or slope:
            raise BadInput(
                "the latency of communication is the same for each task, whatever it computes: by, per, "
                f"uninterruptible and slope have no meaning there, got '{latency.spec}'"
            )
        if self.bandwidth and not 1.0 <= self.bandwidth < float("inf"):
            raise BadInput(f"bandwidth must be at least 1 byte a second, or 0 for unlimited, got {self.bandwidth:g}")

    @property
    def silent(self) -> bool:
        """Whether no exchange takes time."""
        return self.latency.silent and not self.bandwidth

    @property
    def spec(self) -> str:
        """The text from which :func:`anyk.delays.communication` builds an equal object."""
        if not self.bandwidth and self.links == "parallel":
            return self.latency.spec
        spec = self.latency.spec
        latency = {} if self.latency.silent else {"latency": f"({spec})" if ":" in spec else spec}
        values = {**latency, "bandwidth": self.bandwidth, "links": self.links}
        return show_spec("link", values, {"bandwidth": 0.0, "links": "parallel"})

    def stream(self, seed: int, workers: int) -> CommunicationStream:
        """Return the communication of a fleet in one run."""
        return CommunicationStream(self, seed, workers)


class CommunicationStream:
    """The latencies of a fleet in one run, independent of its delays, and the times of the driver's exchanges."""

    def __init__(self, model: Communication, seed: int, workers: int) -> None:
        self._model = model
        latency_seed = int(keyed_uniform(seed, "communication", number=0) * 2**53)
        self._latency = DelayStream(model.latency, latency_seed, workers)
        self.turns: dict[int, tuple[float, float]] = {}  # start and end of tasks' exchanges with the driver

    def seconds(self, task: int, worker: int, number: int, traffic: Traffic, now: float) -> float:
        """Return the seconds after ``now`` until a task, its worker's ``number``-th, has exchanged its vectors."""
        count = traffic.neighbours
        if not count and not traffic.driver:
            return 0.0
        latency = 0.0 if self._latency.silent else self._latency.at(worker, number)
        read, exchange = self._transfer_seconds(traffic.read), self._transfer_seconds(traffic.exchanged)
        links = self._model.links
        if links == "parallel":
            return latency + max(read if count else 0.0, exchange if traffic.driver else 0.0)
        serial = links == "serial"
        neighbours = count * ((latency if serial else 0.0) + read)
        if not traffic.driver:
            return neighbours if serial else latency + neighbours
        start = self._next_turn(now)
        self.turns[task] = start, start + exchange + (latency if serial else 0.0)
        return neighbours + (start - now) + latency + exchange

    def _transfer_seconds(self, size: int) -> float:
        return size / self._model.bandwidth if self._model.bandwidth else 0.0

    def _next_turn(self, now: float) -> float:
        """Return the time at which the driver can start another exchange."""
        self.turns = {task: turn for task, turn in self.turns.items() if turn[1] > now}
        return max((end for _, end in self.turns.values()), default=now)

    def cancel(self, tasks: Iterable[int], now: float) -> None:
        """Remove those exchanges of cancelled tasks that have not started."""
        for task in tasks if self.turns else ():
            if self.turns.get(task, (-1.0, 0.0))[0] >= now:
                del self.turns[task]
