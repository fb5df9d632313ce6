"""A measured fleet: the seconds of its workers for tasks of any size, and for rounds of any strategy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from anyk import codes
from anyk.base import BadInput, Flags, Floats, keyed_generator, parse_spec
from anyk.clusters import Compute, Simulated
from anyk.compression import compressor
from anyk.delays import DelayModel, TableDelays, Trace
from anyk.fleet.explanation import attribution
from anyk.fleet.records import Record, read
from anyk.fleet.records.reading import Readable
from anyk.fleet.simulation import drive, for_jobs
from anyk.optimizers import optimizer as build_optimizer
from anyk.protocol import Strategy, Workers, shares_computed
from anyk.runs import LogWriter, RunLog
from anyk.runs.api import mean_update, newest_versions, transfers, used_works, works
from anyk.strategies import strategy as build_strategy

_OWN = 2  # vectors that a worker needs to compute a message: the model, and the sum of gradients


class VectorSize(NamedTuple):
    """The length of a vector and the bytes of each number; savings of compressors hardly depend on the length."""

    length: int = 1_000_000
    itemsize: int = 8

    @property
    def bytes(self) -> int:
        """Bytes of a vector."""
        return self.length * self.itemsize

    def compressed(self, by: str) -> float:
        """Return the size of a compressed vector as a share of the original."""
        return compressor(by).size(self.length, self.itemsize) / self.bytes


USUAL = VectorSize()


def vectors_sent(log: RunLog, blocks: int, size: VectorSize) -> float | None:
    """Return the vectors that workers receive and send for a step, by the log of a run; None without steps.

    Every task counts with the models that it reads, from the driver or from neighbours, and with its message, as if
    none were cancelled. The first tasks of a run do not count, because not all workers are given new ones at an
    asynchronous step.
    """
    steps = max(newest_versions(log).values(), default=0)
    if not steps:
        return None
    first = 1 if steps > 1 else 0
    total, read = 0.0, set()
    for chunk in transfers(log, first, steps - 1):
        neighbours = json.loads(chunk.mix or "[]")
        total += sum(other != chunk.worker for other, *_ in neighbours)  # its own model is there already
        if neighbours and not chunk.share:
            continue
        read.add((chunk.task, chunk.slot))
        total += 1.0 if neighbours else (size.compressed(chunk.compress) if chunk.compress else 1.0) / blocks
    return float((total + len(read)) / (steps - first))


def vectors_held(strategy: Strategy, state: int) -> int:
    """Return the vectors that a worker stores at most: to compute, for its own model and optimiser, and as feedback.

    ``state``: vectors of the run's optimiser.

    >>> import anyk
    >>> [vectors_held(anyk.strategy(spec, workers=4), state=1) for spec in ("uncoded", "pasgd", "pasgd:inner=adamw")]
    [2, 5, 6]
    """
    vectors, inner = _OWN, strategy.layout.inner
    if inner is not None:
        vectors += _OWN + (build_optimizer(inner, lr=1.0).vectors if inner else state)
    name, values = parse_spec(strategy.spec)
    return vectors + (name == "compressed" and compressor(values["by"].strip("()")).feedback)


_LEAST = 1e-6  # seconds that a task takes at least
_SAMPLED_ROUNDS = 400  # of a delay model
_QUARTERS = 4
_POLISHED = 10  # sweeps of the median polish that fills gaps
_FITTED = 30  # rounds from which on a slope is fitted for each worker
_APART = 1.3  # times as slow as the others: a difference that is mentioned


@dataclass(frozen=True)
class Quality:
    """Means over steps: ``residual``, ``staleness``, ``samples`` (a share of the data), ``vectors`` sent; or None."""

    residual: float | None
    staleness: float | None
    samples: float | None
    vectors: float | None


@dataclass(frozen=True, eq=False)
class MeasuredFleet:
    """Measured times and how they grow with load.

    ``times``: seconds, shape (rounds, workers), of tasks that cover the share ``load`` of the data; ``censored``: times
    that are lower bounds. A task's seconds are a fixed part and load times ``slope``, the seconds for the whole data:
    of each worker, shape (workers,), or of the typical worker, with each worker's in proportion to its
    :func:`slowness`. If a task took less than its slope predicts, all of it counts as computing. ``driver``: seconds of
    every step besides the workers' times; ``crowding``: workers for each core that they share with the driver.
    ``readings``: further fleets that the record may equally well be of.

    >>> fleet = MeasuredFleet(np.tile([1.0, 1.0, 2.0], (8, 1)), np.zeros((8, 3), bool), load=1 / 3, slope=3.0)
    >>> fleet.slopes.tolist(), fleet.seconds(np.array([1 / 3, 1 / 3, 1 / 6]))[0].round(9).tolist()
    ([3.0, 3.0, 6.0], [1.0, 1.0, 1.0])
    """

    times: Floats
    censored: Flags
    load: float
    slope: float | Floats
    driver: float = 0.0
    crowding: float = 1.0
    readings: tuple[MeasuredFleet, ...] = ()

    @cached_property
    def slopes(self) -> Floats:
        """Seconds that each worker computes on the whole data, shape (workers,)."""
        if isinstance(self.slope, np.ndarray):
            return self.slope
        return self.slope * slowness(self.times)

    @cached_property
    def _rate(self) -> Floats:
        """Seconds for the whole data in each round, so that the fixed part is not negative, shape (rounds, workers)."""
        slopes = np.broadcast_to(self.slopes, self.times.shape)
        return np.minimum(slopes, self.times / self.load) if self.load else slopes

    @property
    def fixed(self) -> Floats:
        """Seconds of each task besides computing, shape (rounds, workers)."""
        return self.times - self.load * self._rate

    def seconds(self, loads: Floats) -> Floats:
        """Return the seconds of tasks that cover shares ``loads`` (workers,) of the data, shape (rounds, workers)."""
        return np.maximum(_LEAST, self.times + (loads - self.load) * self._rate)

    def taking(self, times: Floats) -> MeasuredFleet:
        """Return the fleet with other times, and the same slopes."""
        return replace(self, times=times, slope=self.slopes)

    def growing_as(self, other: MeasuredFleet) -> MeasuredFleet:
        """Return the fleet with its own fixed parts, and the load and slopes of another."""
        times = self.fixed + other.load * other.slopes
        return MeasuredFleet(
            times=times, censored=self.censored, load=other.load, slope=other.slopes, driver=self.driver
        )

    def adapt(self, strategy: Strategy) -> Strategy:
        """Return a strategy as it runs once it has adapted to this fleet."""
        adapted = strategy.facts.adapted
        return strategy if adapted is None else adapted(self.times, self.slopes, self.load)

    def durations(self, strategy: Strategy) -> Floats:
        """Return the seconds of each round under a strategy, shape (rounds,)."""
        seconds = self.closed_form(strategy)
        return self.simulate(strategy) if seconds is None else seconds

    def closed_form(self, strategy: Strategy) -> Floats | None:
        """Return :meth:`durations` in closed form; None if the strategy has none."""
        strategy = self.adapt(strategy)
        seconds = strategy.facts.durations(self.seconds(loads_of(strategy)), self._rate)
        return None if seconds is None else seconds + self.driver

    def simulate(self, strategy: Strategy, log: LogWriter | None = None) -> Floats:
        """Return :meth:`durations` by the virtual clock, which may keep a log."""
        strategy = self.adapt(strategy)
        jobs = len(self.times) - strategy.facts.extra_rounds
        return np.diff(drive(for_jobs(strategy, jobs), self.cluster(strategy), jobs, log)[0])

    def cluster(self, strategy: Strategy, seed: int = 0) -> Simulated:
        """Return the virtual clock on which a strategy has the measured rounds, repeatedly."""
        workers, layout, code = self.times.shape[1], strategy.layout, code_of(strategy)
        loads = loads_of(strategy)
        seconds, compute = self.seconds(loads), None
        if code is not None and code.policy().rounds != "coded":  # a part counts when it is computed
            a_partition = tuple((self.slopes / layout.partitions).tolist())
            compute = Compute(task=0.0, partition=a_partition, step=self.driver, cores=workers)
            delays = TableDelays(np.maximum(0.0, seconds - loads * self.slopes), by="round")
        elif code is not None and code.messages > 1:  # in order, which cores do not heed
            delays = TableDelays(seconds / [len(assigned) for assigned in layout.assignment], by="round", per="load")
        else:  # a strategy without rounds gives its workers task after task
            delays = TableDelays(seconds, by="round" if strategy.facts.exact else "task")
        if compute is None and self.driver:
            compute = Compute(task=0.0, partition=0.0, step=self.driver, cores=workers)
        return Simulated(workers, delays=delays, compute=compute, seed=seed)

    def from_round(self, number: int, parts: int) -> MeasuredFleet:
        """Return the fleet with its rounds rotated to start at ``number / parts`` of the record."""
        first = number * len(self.times) // parts
        fleet = self.taking(np.roll(self.times, -first, axis=0))
        return replace(fleet, censored=np.roll(self.censored, -first, axis=0))

    def quality(self, strategy: Strategy, size: VectorSize = USUAL) -> Quality:
        """Return the composition of steps under a strategy; of steps that are not exact, by the virtual clock."""
        facts = strategy.facts
        if facts.exact and facts.vectors_sent is not None:
            return Quality(residual=0.0, staleness=0.0, samples=1.0, vectors=facts.vectors_sent)
        log = LogWriter()
        self.simulate(strategy, log)
        residual, staleness, steps = mean_update(log)
        layout = self.adapt(strategy).layout
        samples = None
        if layout.inner is None and steps:
            sizes = layout.shares or (1,) * layout.partitions
            assigned = {number: sum(sizes[j] for j in work.partitions) for number, work in works(log).items()}
            used = used_works(log)
            samples = sum(count * assigned[work] for work, count in used.items()) / (sum(sizes) * steps)
        return Quality(
            residual=residual, staleness=staleness, samples=samples, vectors=vectors_sent(log, layout.blocks, size)
        )

    def alone(self, spec: str, workers: Workers | None = None) -> float:
        """Return the mean seconds of a step under one strategy; ``workers``: their range and partitions, if any."""
        most = self.times.shape[1]
        workers = Workers(most=most) if workers is None else replace(workers, most=most)
        return float(self.durations(build_strategy(spec, workers=workers)).mean())

    def without(self, places: Sequence[int]) -> MeasuredFleet:
        """Return the fleet without some workers."""
        times, censored = np.delete(self.times, places, axis=1), np.delete(self.censored, places, axis=1)
        return MeasuredFleet(
            times=times, censored=censored, load=self.load, slope=np.delete(self.slopes, places), driver=self.driver
        )


def loads_of(strategy: Strategy) -> Floats:
    """Return the share of the data that each worker computes in a step, shape (workers,)."""
    return np.asarray(shares_computed(strategy), dtype=float)


def code_of(strategy: Strategy) -> codes.Code | None:
    """Return the code whose rounds a strategy runs, if there is one."""
    code = vars(strategy).get("code")
    return code if isinstance(code, codes.Code) else None


# ------------------------------------------------------------------------------------------- slowness


def slowness(times: Floats) -> Floats:
    """Return each worker's lasting slowness: its median over the (lower) median worker's, shape (workers,).

    Differences that chance explains are shrunk by empirical Bayes (James and Stein 1961): logarithms of the medians
    within three standard errors are shrunk together, by the share of noise in their mean square. The noise is
    estimated from the medians of quarters of the rounds.

    >>> slowness(np.tile([1.0, 1.0, 2.0, 2.0], (8, 1))).tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    logs, noise = _medians(np.log(np.maximum(times, _LEAST)))
    return np.exp(_shrink(logs - typical_value(logs), noise))


def typical_value(values: Floats) -> float:
    """Return the lower median of values without nan."""
    return float(np.quantile(values, 0.5, method="lower"))


def _medians(values: Floats) -> tuple[Floats, float]:
    """Return the median of each column, and the variance of the medians, estimated from quarters of the rows."""
    parts = np.array_split(values, min(_QUARTERS, len(values)))
    quarters = np.stack([np.median(quarter, axis=0) for quarter in parts])
    quarters = quarters - np.median(quarters, axis=1)[:, None]  # a change of all columns is no difference
    noise = float(quarters.var(axis=0, ddof=1).mean() / len(parts)) if len(parts) > 1 else 0.0
    return np.median(values, axis=0), noise


def _shrink(differences: Floats, noise: float) -> Floats:
    """Return differences, those within three standard errors shrunk by the share of noise in them."""
    near = differences**2 <= 9.0 * noise
    spread = float((differences[near] ** 2).mean()) if near.any() else 0.0
    return np.where(near, max(0.0, 1.0 - noise / spread) if spread else 0.0, 1.0) * differences


# ------------------------------------------------------------------------------------------- growth with load


def fleet_of(
    record: Record,
    other: Readable | None = None,
    slope: float | None = None,
    unit: str | None = None,
) -> tuple[MeasuredFleet, list[str], bool]:
    """Return a record's fleet, assumptions in place of measurements, and whether its slope was assumed.

    ``slope``: seconds that a typical worker computes on the whole data; by default it is fitted to ``other``, a
    record at another load, or taken from the record's compute stamps, or else a task is assumed to be computing only.
    """
    filled = completed(record)
    times, censored = filled.times, filled.censored
    load = 1.0 / times.shape[1] if record.load is None else record.load
    only = () if record.strategy is None else record.remarks[1:]  # which rounds of a run with a changing fleet
    assumptions = [f"all workers are there, as in the record: {remark}" for remark in only]
    if record.load is None:
        assumptions.append(f"each worker computed 1/{times.shape[1]} of the data in the record")
    slopes, assumed = _slope(record, times, other, load, unit) if slope is None else (slope, [])
    assumptions += assumed
    fleet = MeasuredFleet(
        times=times, censored=censored, load=load, slope=slopes, driver=record.driver or 0.0, crowding=record.crowding
    )
    readings = []
    if record.crowding > 1.0 and record.driver:
        assumptions.append(
            f"{record.crowding:.3g} workers share a core, and with the driver; the intervals reach from a driver that "
            "never waits for a core to one that always does, and to workers that all finish their tasks"
        )
    if filled.gaps:
        assumptions.append(
            f"{filled.gaps:,} of {times.size:,} times are missing; such a worker is as fast as usual in that round, "
            "or, at the other end of the intervals, absent until its next measured round"
        )
        readings.append(replace(fleet, times=filled.absent, slope=fleet.slopes))
    measured = isinstance(slopes, np.ndarray)
    if not measured and slopes and float(np.ptp(np.log(fleet.slopes))) > math.log(_APART):
        assumptions.append(
            "workers that are always slow compute slowly, or, at the other end of the intervals, only reply late, as "
            "over a slow link"
        )
        readings.append(replace(fleet, slope=np.full(times.shape[1], float(slopes))))
    return replace(fleet, readings=tuple(readings)), assumptions, bool(assumed)


@dataclass(frozen=True, eq=False)
class Completed:
    """The times of a record without gaps, shape (rounds, workers), and which of them are lower bounds.

    In a missing cell, ``times`` has a worker that is as fast as it usually is, relative to the others of that round;
    ``absent`` has one that starts when its next measured round starts. ``gaps``: the number of missing cells.
    """

    times: Floats
    censored: Flags
    absent: Floats
    gaps: int


def completed(record: Record) -> Completed:
    """Return the times of a record with its gaps filled.

    The times of a round and of a worker are the product of a level of the round, a speed of the worker (by Tukey's
    median polish of the logarithms), and a deviation, which is sampled by key from the worker's own.

    >>> level = np.array([1.0, 1.0, 20.0, 1.0, 1.0, 20.0])[:, None]
    >>> times = level * np.array([1.0, 1.0, 2.0])
    >>> times[[0, 2], 2] = np.nan
    >>> filled = completed(Record(times))
    >>> filled.times[:3, 2].round(9).tolist(), filled.absent[:3, 2].round(9).tolist(), filled.gaps
    ([2.0, 2.0, 40.0], [3.0, 2.0, 40.0], 2)
    """
    seconds, measured, censored = record.seconds, record.measured, np.asarray(record.censored)
    if measured.all():
        return Completed(times=seconds, censored=censored, absent=seconds, gaps=0)
    rows = measured.any(axis=1)
    seconds, measured, censored = seconds[rows], measured[rows], censored[rows]
    logs = np.log(np.maximum(seconds, _LEAST))
    levels, speeds = np.zeros((len(logs), 1)), np.zeros(logs.shape[1])
    for _ in range(_POLISHED):
        levels = np.nanmedian(logs - speeds, axis=1, keepdims=True)
        speeds = np.nanmedian(logs - levels, axis=0)
    usual = levels + speeds
    generator = keyed_generator(0, "gaps")
    times, absent = seconds.copy(), seconds.copy()
    for worker in range(times.shape[1]):
        missing = ~measured[:, worker]
        deviations = (logs - usual)[~missing, worker]
        sampled = generator.choice(deviations, size=int(missing.sum()))
        times[missing, worker] = np.exp(usual[missing, worker] + sampled)
    longest = np.nanmax(seconds, axis=1)
    for worker in range(times.shape[1]):
        waiting, its_next = 0.0, times[-1, worker]
        for t in reversed(range(len(times))):
            if measured[t, worker]:
                waiting, its_next = 0.0, times[t, worker]
            else:
                waiting += longest[t]
                absent[t, worker] = waiting + its_next
    return Completed(times=times, censored=censored, absent=np.maximum(absent, times), gaps=int((~measured).sum()))


def sample_record(model: DelayModel, workers: int | None, seed: int) -> Record:
    """Return the record of a fleet whose delays follow a model.

    Raises :class:`~anyk.BadInput` for measured times, which are a record already, and for delays that depend on the
    load of a task or outlast its end: the record of a fleet does not say this.
    """
    if workers is None:
        raise BadInput("to plan for a delay model, give the number of workers")
    if isinstance(model, Trace):
        raise BadInput(
            f"'{model.spec}' holds measured times, which are a record: plan for its file itself, without 'trace:'; a "
            "load that the file does not say is added by anyk record --load"
        )
    if isinstance(model, TableDelays):
        raise BadInput("a table of delays holds measured times: plan for anyk.fleet.Record(times, load=…)")
    if model.per != "task" or model.uninterruptible:
        raise BadInput(
            f"a plan is for delays of whole tasks that can be cut off, got '{model.spec}'; leave out per and "
            "uninterruptible, and give the seconds for the whole data (--slope)"
        )
    model.check_fleet(workers)
    times = np.stack([model.draws(seed, i, 0, _SAMPLED_ROUNDS) for i in range(workers)], axis=1)
    return Record(times, load=1.0 / workers, remarks=(f"{_SAMPLED_ROUNDS} rounds sampled from {model.spec}",))


def _slope(
    record: Record,
    times: Floats,
    other: Readable | None,
    load: float,
    unit: str | None,
) -> tuple[float | Floats, list[str]]:
    """Return the seconds for the whole data, and assumptions in place of measurements."""
    if other is not None:
        second = read(other, unit=unit)
        if record.load is None or second.load is None or record.load == second.load:
            raise BadInput(
                "a slope takes two records with different loads (anyk record --load adds a missing load), or slope=…"
            )
        if second.seconds.shape[1] != times.shape[1]:
            raise BadInput(f"the records have {times.shape[1]} and {second.seconds.shape[1]} workers; they must agree")
        return _fit_slope(times, load, completed(second).times, second.load), []
    computing = _computing(record)
    if computing is not None and load > 0:
        stamped = np.isfinite(computing)  # cancelled tasks have none; perhaps all of a worker were cancelled
        if stamped.any():
            columns = zip(computing.T, stamped.T, strict=True)
            typical = np.median(computing[stamped])
            medians = [np.median(column[mask]) if mask.any() else typical for column, mask in columns]
            return np.array(medians) / load, []
    level = float(np.median(attribution.lower_median(times)))
    assumption = (
        f"all of a task's {level:.3g} s is computing (slope {level / load:.3g} s for the whole data): nothing tells "
        "how times grow with load; give the slope (--slope), or a second record at another load (--other)"
    )
    return level / load, [assumption]


def _computing(record: Record) -> Floats | None:
    """Return the seconds of computing of each task: its own part, or what is neither delay nor transport."""
    besides = [record.parts[name] for name in ("delay", "transport") if name in record.parts]
    if "compute" in record.parts or not besides:
        return record.parts.get("compute")
    return np.maximum(0.0, record.seconds - sum(np.nan_to_num(table) for table in besides))


def _fit_slope(times: Floats, load: float, others: Floats, other_load: float) -> float | Floats:
    """Return the slope between two records; of each worker if there are enough rounds, shrunk to its slowness."""
    from scipy.stats import trim_mean

    # of the middle half of all times: one stall of 40 s in a hundred tasks of 1 s changes a mean more than loads do
    apart = other_load - load
    typical = max(0.0, float(trim_mean(others, 0.25, axis=None) - trim_mean(times, 0.25, axis=None)) / apart)
    if min(len(times), len(others)) < _FITTED or not typical:
        return typical
    expected = typical * slowness(times)
    (first, noise), (second, more) = _medians(times), _medians(others)
    differences = (second - first) / apart - expected
    return np.maximum(0.0, expected + _shrink(differences, (noise + more) / apart**2))
