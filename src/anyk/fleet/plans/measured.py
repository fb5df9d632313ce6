"""A measured fleet: what its workers would take for tasks of another size, and for rounds of any strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import codes
from anyk.clusters import Simulated
from anyk.clusters.virtual.cores import Compute
from anyk.delays import DelayModel, Table
from anyk.errors import BadInput
from anyk.fleet.explanation import attribution
from anyk.fleet.plans.prices import USUAL, VectorSize, vectors_sent
from anyk.fleet.records import Record, read
from anyk.fleet.simulation import driven, for_jobs
from anyk.protocol import Strategy, shares_computed
from anyk.runs.log.queries import works
from anyk.runs.log.runlog import RunLog
from anyk.strategies import strategy as build_strategy

Floats = NDArray[np.float64]
_LEAST = 1e-6  # seconds that a task takes at least
_LAW_ROUNDS = 400  # rounds drawn of a delay law
_QUARTERS = 4
_FITTED = 30  # rounds from which on a slope is fitted for each worker
_APART = 1.3  # times as slow as the others: a difference worth a word


@dataclass(frozen=True)
class Quality:
    """Means over steps: ``residual``, ``staleness``, ``samples`` used as a share of the data, ``vectors`` sent.

    None: not known.
    """

    residual: float | None
    staleness: float | None
    samples: float | None
    vectors: float | None


@dataclass(frozen=True, eq=False)
class Fleet:
    """Measured times and how they grow with load.

    ``times``: seconds, rounds x workers, of tasks that cover the share ``load`` of the data; ``censored``: which of
    them are only known to be at least so long. A task's seconds are a fixed part and, for each unit of load, the
    ``slope``: seconds for the whole data, of each worker (shape (workers,)), or of the typical one, and then each
    worker's is in proportion to how slow it is (:func:`slowness`). In a round in which a task took less than its slope
    says, all of it counts as computing.

    >>> fleet = Fleet(np.tile([1.0, 1.0, 2.0], (8, 1)), np.zeros((8, 3), bool), load=1 / 3, slope=3.0)
    >>> fleet.slopes.tolist(), fleet.seconds(np.array([1 / 3, 1 / 3, 1 / 6]))[0].round(9).tolist()
    ([3.0, 3.0, 6.0], [1.0, 1.0, 1.0])
    """

    times: Floats
    censored: NDArray[np.bool_]
    load: float
    slope: float | Floats

    @cached_property
    def slopes(self) -> Floats:
        """Seconds that each worker computes on the whole data."""
        if isinstance(self.slope, np.ndarray):
            return self.slope
        return np.asarray(self.slope * slowness(self.times))

    @cached_property
    def _rate(self) -> Floats:
        """Seconds for the whole data in each round, of which the fixed part is not negative."""
        slopes = np.broadcast_to(self.slopes, self.times.shape)
        return np.asarray(np.minimum(slopes, self.times / self.load) if self.load else slopes)

    @property
    def fixed(self) -> Floats:
        """Seconds of each task besides computing."""
        return np.asarray(self.times - self.load * self._rate)

    def seconds(self, loads: Floats) -> Floats:
        """Seconds of tasks that cover such shares of the data, shape (workers,), in every round."""
        return np.asarray(np.maximum(_LEAST, self.times + (loads - self.load) * self._rate))

    def taking(self, times: Floats) -> Fleet:
        """The fleet with other times, and the same slopes."""
        return replace(self, times=times, slope=self.slopes)

    def growing_as(self, other: Fleet) -> Fleet:
        """The fleet with its own fixed parts, and with computing that takes as long as the other's."""
        return Fleet(self.fixed + other.load * other.slopes, self.censored, other.load, other.slopes)

    def settled(self, strategy: Strategy) -> Strategy:
        """A strategy as it runs once it has come to know this fleet."""
        adapted = strategy.facts.adapted
        return strategy if adapted is None else adapted(self.times, self.slopes, self.load)

    def durations(self, strategy: Strategy) -> Floats:
        """Seconds of each round under a strategy."""
        found = self.closed(strategy)
        return self.simulated(strategy) if found is None else found

    def closed(self, strategy: Strategy) -> Floats | None:
        """The same without the virtual clock; None where the strategy has no such form."""
        strategy = self.settled(strategy)
        return strategy.facts.durations(self.seconds(loads_of(strategy)), self._rate)

    def simulated(self, strategy: Strategy, log: RunLog | None = None) -> Floats:
        """The same on the virtual clock, which may keep a log."""
        strategy = self.settled(strategy)
        jobs = len(self.times) - strategy.facts.extra_rounds
        return np.asarray(np.diff(driven(for_jobs(strategy, jobs), self.cluster(strategy), jobs, log)[0]))

    def cluster(self, strategy: Strategy, seed: int = 0) -> Simulated:
        """The virtual clock on which a strategy meets the measured rounds, again and again."""
        workers = self.times.shape[1]
        loads = loads_of(strategy)
        code = code_of(strategy)
        rounds_of = "coded" if code is None else code.policy().rounds
        if code is not None and rounds_of == "coded" and code.messages > 1:  # in order, which cores do not heed
            share = self.seconds(loads) / np.array([len(held) for held in strategy.layout.assignment])
            return Simulated(workers, delays=Table(share, by="round", per="load"), seed=seed)
        if rounds_of != "coded":  # a part counts when it is computed
            fixed = np.maximum(0.0, self.seconds(loads) - loads * self.slopes)
            each = tuple((self.slopes / strategy.layout.partitions).tolist())
            compute = Compute(0.0, each, 0.0, workers)
            return Simulated(workers, delays=Table(fixed, by="round"), compute=compute, seed=seed)
        # a strategy without rounds gives its workers task after task
        return Simulated(
            workers, delays=Table(self.seconds(loads), by="round" if strategy.facts.exact else "task"), seed=seed
        )

    def from_round(self, part: int, parts: int) -> Fleet:
        """The fleet whose rounds begin that part of the way through the record, and go around."""
        first = part * len(self.times) // parts
        return replace(
            self.taking(np.roll(self.times, -first, axis=0)), censored=np.roll(self.censored, -first, axis=0)
        )

    def quality(self, strategy: Strategy, size: VectorSize = USUAL) -> Quality:
        """What steps under a strategy are made of: for steps that are not exact, as found on the virtual clock."""
        facts = strategy.facts
        if facts.exact and facts.vectors_sent is not None:
            return Quality(0.0, 0.0, 1.0, facts.vectors_sent)
        log = RunLog()
        self.simulated(strategy, log)
        residual, staleness, made = log.rows("SELECT avg(residual), avg(staleness), count(*) FROM updates")[0]
        layout = self.settled(strategy).layout
        samples = None
        if layout.inner is None and made:
            sizes = layout.shares or (1,) * layout.partitions
            held = {number: sum(sizes[j] for j in work.partitions) for number, work in works(log).items()}
            used = log.rows("SELECT work, count(*) FROM chunks WHERE step > 0 GROUP BY work")
            samples = sum(count * held[work] for work, count in used) / (sum(sizes) * made)
        return Quality(residual, staleness, samples, vectors_sent(log, layout.blocks, size))

    def alone(self, spec: str) -> float:
        """Mean seconds of a step under one strategy."""
        return float(self.durations(build_strategy(spec, workers=self.times.shape[1])).mean())

    def without(self, places: Sequence[int]) -> Fleet:
        """The fleet without some workers."""
        kept = np.delete(self.times, places, axis=1), np.delete(self.censored, places, axis=1)
        return Fleet(*kept, self.load, np.delete(self.slopes, places))


def loads_of(strategy: Strategy) -> Floats:
    """The share of the data that each worker computes in a step, shape (workers,)."""
    return np.asarray(shares_computed(strategy), dtype=np.float64)


def code_of(strategy: Strategy) -> codes.Code | None:
    """The code whose rounds a strategy runs."""
    code = vars(strategy).get("code")
    return code if isinstance(code, codes.Code) else None


# ------------------------------------------------------------------------------------------- how slow each worker is


def slowness(times: Floats) -> Floats:
    """How slow each worker is for good: its median over that of the median worker (the lower one), shape (workers,).

    Differences that chance explains are drawn in, as empirical Bayes (James and Stein 1961): of the logarithms of the
    medians, those within three standard errors together by the share of noise in their mean square, the others not.
    The noise is known from the medians of quarters of the rounds.

    >>> slowness(np.tile([1.0, 1.0, 2.0, 2.0], (8, 1))).tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    logs, noise = _medians(np.log(np.maximum(times, _LEAST)))
    return np.asarray(np.exp(_shrunk(logs - np.sort(logs)[(len(logs) - 1) // 2], noise)))


def _medians(values: Floats) -> tuple[Floats, float]:
    """The median of each column, and the variance of such a median by the medians of quarters of the rows."""
    parts = np.array_split(values, min(_QUARTERS, len(values)))
    quarters = np.stack([np.median(part, axis=0) for part in parts])
    quarters = quarters - np.median(quarters, axis=1)[:, None]  # what all do together is no difference between them
    noise = float(quarters.var(axis=0, ddof=1).mean() / len(parts)) if len(parts) > 1 else 0.0
    return np.asarray(np.median(values, axis=0)), noise


def _shrunk(differences: Floats, noise: float) -> Floats:
    """Differences of which those within three standard errors are drawn in by the share of noise in them."""
    near = differences**2 <= 9.0 * noise
    spread = float((differences[near] ** 2).mean()) if near.any() else 0.0
    return np.asarray(np.where(near, max(0.0, 1.0 - noise / spread) if spread else 0.0, 1.0) * differences)


# ------------------------------------------------------------------------------------------- how times grow with load


def fleet_of(
    record: Record, other: Any = None, slope: float | None = None, unit: str | None = None
) -> tuple[Fleet, list[str], bool]:
    """A record's fleet, what was assumed for want of measurements, and whether its slope was.

    ``slope``: seconds that a typical worker computes on the whole data; left out, it is fitted to ``other``, a
    record at another load, or taken from the record's compute stamps, or else all of a task is assumed to be computing.
    """
    times = record.table
    whole = record.known.all(axis=1)
    load = 1.0 / times.shape[1] if record.load is None else record.load
    assumptions = []
    if record.load is None:
        assumptions.append(f"each worker computed 1/{times.shape[1]} of the data in the record")
    found, said = _slope(record, other, slope, times, load, unit)
    assumptions += said
    if not whole.all():
        assumptions.append(f"{int((~whole).sum())} rounds in which a worker is missing left out")
    fleet = Fleet(times, np.asarray(record.censored)[whole], load, found)
    measured = isinstance(found, np.ndarray)
    if not measured and found and float(np.ptp(np.log(fleet.slopes))) > math.log(_APART):
        assumptions.append("workers that are slow for good compute slowly, and do not only reply late")
    return fleet, assumptions, bool(said)


def drawn(law: DelayModel, workers: int | None, seed: int) -> Record:
    """The record of a fleet that follows a delay law."""
    if workers is None:
        raise BadInput("to plan for a delay law, say for how many workers")
    law.check_fleet(workers)
    times = np.stack([law.draws(seed, i, 0, _LAW_ROUNDS) for i in range(workers)], axis=1)
    return Record(times, load=1.0 / workers, remarks=(f"{_LAW_ROUNDS} rounds drawn of {law.spec}",))


def _slope(
    record: Record, other: Any, given: float | None, times: Floats, load: float, unit: str | None
) -> tuple[float | Floats, list[str]]:
    """Seconds for the whole data, and what was assumed for want of them."""
    if given is not None:
        if not math.isfinite(given) or given < 0:
            raise BadInput(f"slope must be at least 0 seconds for the whole data, got {given:g}")
        return given, []
    if other is not None:
        second = read(other, unit=unit)
        if record.load is None or second.load is None or record.load == second.load:
            raise BadInput(
                "a slope takes two records that say their loads, and different ones (anyk record --load says it for "
                "those that do not); or give slope=…"
            )
        if second.seconds.shape[1] != times.shape[1]:
            raise BadInput(f"the records have {times.shape[1]} and {second.seconds.shape[1]} workers; they must agree")
        return _fitted(times, load, second.table, second.load), []
    if "compute" in record.parts and load > 0:
        computing = np.asarray(record.parts["compute"])[record.known.all(axis=1)]
        known = np.isfinite(computing)  # tasks that were cut off have no stamps, and maybe all of a worker's were
        if known.any():
            columns = zip(computing.T, known.T, strict=True)
            typical = np.median(computing[known])
            return np.array([np.median(one[seen]) if seen.any() else typical for one, seen in columns]) / load, []
    level = float(np.median(attribution.lower_median(times)))
    said = (
        f"all of a task's {level:.3g} s is computing (slope {level / load:.3g} s for the whole data): nothing tells "
        "how times grow with load; give the slope (--slope), or a second record at another load (--other)"
    )
    return level / load, [said]


def _fitted(times: Floats, load: float, others: Floats, other_load: float) -> float | Floats:
    """The slope between two records; with enough rounds each worker's, drawn in to what its slowness says by noise."""
    from scipy.stats import trim_mean

    # of the middle half of all times: a stall of 40 s in a hundred tasks of 1 s moves a mean by more than loads do
    apart = other_load - load
    typical = max(0.0, float(trim_mean(others, 0.25, axis=None) - trim_mean(times, 0.25, axis=None)) / apart)
    if min(len(times), len(others)) < _FITTED or not typical:
        return typical
    expected = typical * slowness(times)
    (first, noise), (second, more) = _medians(times), _medians(others)
    differences = (second - first) / apart - expected
    return np.asarray(np.maximum(0.0, expected + _shrunk(differences, (noise + more) / apart**2)))
