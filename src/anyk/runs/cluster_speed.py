"""Measured speed of a cluster without computing: seconds of round trips and steps, and bytes per second."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput
from anyk.clusters.contract import Cluster
from anyk.optimizers import GD
from anyk.problems.base import Index, Tell
from anyk.protocol import Chunk, Combine, Command, Dispatch, Event, Fleet, Layout, Reply, Strategy
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session

SIZES = (100_000, 2_000_000, 50_000_000)  # bytes of a model and of a message
_EMPTY = 8  # bytes of the smallest vector


class Speed(NamedTuple):
    """Median seconds measured with models and messages of ``size`` bytes.

    ``trip``: from sending a model to one worker until its message arrives. ``step``: from sending a model to all
    workers until all messages have arrived and the step is taken. ``floor``: adding up the same number of messages in
    this process, which every cluster has to do.
    """

    size: int
    trip: float
    step: float
    floor: float

    @property
    def ratio(self) -> float:
        """The seconds of a step over the floor."""
        return self.step / self.floor


class ClusterSpeed(NamedTuple):
    """The speed of a cluster: seconds until the workers were ready (``start``), and of a trip of 8 bytes (``latency``).

    ``speeds``: one for each size.
    """

    spec: str
    workers: int
    start: float
    latency: float
    speeds: tuple[Speed, ...]

    def bandwidth(self, speed: Speed) -> float | None:
        """Return bytes per second of a round trip, down and up; None if it takes no longer than the latency."""
        seconds = speed.trip - self.latency
        return 2 * speed.size / seconds if seconds > 0 else None


class _Weightless:
    """A problem, and its partitions, whose gradients are computed before they are requested."""

    dtype: np.dtype[np.floating[Any]] = np.dtype(np.float64)
    l2 = 0.0
    metric = "loss"
    better: Literal["higher", "lower"] = "lower"

    def __init__(self, dimension: int, workers: int) -> None:
        self.dimension, self.samples, self.sizes = dimension, workers, (1,) * workers
        self._gradient = np.empty(0)

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> _Weightless:
        return self

    def load(self, partitions: Sequence[int]) -> None:
        self._gradient = np.ones(self.dimension)

    def support(self, partition: int) -> Index | None:
        return None

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        return self._gradient

    def initial(self) -> Vector:
        return np.zeros(self.dimension)

    def loss(self, w: Vector) -> float:
        return float(w[0])

    def metrics(self, w: Vector) -> dict[str, float]:
        return {}

    def recipe(self) -> dict[str, Any] | None:
        return None


@dataclass(slots=True)
class _Trips:
    """The seconds of finished round trips, and the tasks under way; ``remaining``: trips with one worker."""

    since: float
    remaining: int
    task: int = 0
    trips: list[float] = field(default_factory=list)
    arrived: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Probe(Strategy):
    """Asks one worker after another, ``trips`` times, then all workers simultaneously, until the run ends."""

    workers: int
    trips: int
    State = _Trips
    spec = "probe"

    @property
    def layout(self) -> Layout:
        return Layout(self.workers, self.workers, tuple((i,) for i in range(self.workers)))

    def start(self, fleet: Fleet) -> tuple[_Trips, Sequence[Command]]:
        state = _Trips(fleet.time, self.trips)
        return state, [self._next(state)]

    def _next(self, state: _Trips) -> Dispatch:
        workers = (state.remaining % self.workers,) if state.remaining else tuple(range(self.workers))
        first, state.task = state.task, state.task + len(workers)
        return Dispatch(first, workers, [(Chunk((i,), (1.0,)),) for i in workers])

    def on(self, state: _Trips, event: Event) -> Sequence[Command]:
        if not isinstance(event, Reply):
            return ()
        state.arrived.append((event.task, 0))
        if state.remaining:
            state.trips.append(event.time - state.since)
            state.remaining -= 1
        elif len(state.arrived) < self.workers:
            return ()
        state.since = event.time
        used, state.arrived = state.arrived, []
        return [Combine("model", used, [1.0] * len(used)), self._next(state)]


def cluster_speed(
    make: Callable[[], Cluster],
    *,
    sizes: Sequence[int] = SIZES,
    steps: int = 20,
    tell: Tell | None = None,
) -> ClusterSpeed:
    """Measure the speed of clusters.

    ``make`` returns a new cluster for each size. ``sizes``: of the vectors in bytes. ``steps``: the number of trips and
    of steps; half of it for sizes of 10 MB and more. ``tell`` is called with a line before each measurement. Raises
    :class:`~anyk.BadInput` for a virtual clock.

    >>> import anyk
    >>> speed = cluster_speed(lambda: anyk.clusters.Processes(workers=2), sizes=[8000], steps=3)
    >>> speed.latency > 0, speed.speeds[0].step > 0
    (True, True)
    """
    if steps < 1 or any(size < _EMPTY for size in sizes):
        raise BadInput(f"steps must be at least 1 and sizes at least {_EMPTY} bytes, got {steps} and {list(sizes)}")
    speeds = []
    start = 0.0
    for size in (_EMPTY, *sizes):
        cluster = make()
        if cluster.virtual:
            raise BadInput(f"cluster '{cluster.spec}' has a virtual clock: there is nothing to measure")
        if tell is not None:
            tell(f"{cluster.workers} workers, {size:,} bytes")
        number = steps if size < 10_000_000 else max(1, steps // 2)
        trip, step, ready = _measure(cluster, size // 8, number)
        start = start or ready
        speeds.append(Speed(size=size, trip=trip, step=step, floor=_floor(size // 8, cluster.workers)))
    return ClusterSpeed(
        spec=cluster.spec,
        workers=cluster.workers,
        start=start,
        latency=speeds[0].trip,
        speeds=tuple(speeds[1:]),
    )


def _measure(cluster: Cluster, dimension: int, number: int) -> tuple[float, float, float]:
    """Return median seconds of a round trip and of a step, and seconds until the workers were ready."""
    probe = _Probe(cluster.workers, number)
    ends: list[float] = []
    driver = Driver(
        probe,
        cluster,
        problem=_Weightless(dimension, cluster.workers),
        optimizer=GD(lr=1e-9),
        steps=2 * number + 1,
        on_step=lambda record: ends.append(record.update.time),
    )
    start = time.monotonic()
    with session(driver):
        ready = time.monotonic() - start
        driver.run()
    gathers = np.diff(ends[number - 1 :])[1:]  # the first step touches new memory
    return median(driver.running.state.trips), float(np.median(gathers)), ready


def _floor(dimension: int, workers: int) -> float:
    messages = [np.ones(dimension) for _ in range(min(workers, 4))]
    total = np.empty(dimension)

    def add() -> None:
        total.fill(0.0)
        for i in range(workers):
            np.add(total, messages[i % len(messages)], out=total)

    return median(timeit.repeat(add, number=1, repeat=5))
