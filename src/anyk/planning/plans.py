"""What to run on a measured fleet, what that gains, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import codes, keyed
from anyk.clusters import Simulated
from anyk.clusters.virtual.cores import Compute
from anyk.delays import DelayModel, Table
from anyk.errors import BadInput, RunFailed
from anyk.planning import attribution as of
from anyk.planning.explaining import explain
from anyk.planning.resampling import block_length, resampled
from anyk.planning.sequential import fit_slope
from anyk.protocol import Strategy
from anyk.recording import Record, read
from anyk.strategies import registry
from anyk.strategies import strategy as build_strategy
from anyk.training import Driver, Run, session

Floats = NDArray[np.float64]
_LEAST = 1e-6  # seconds that a task takes at least
_GAIN = 0.03  # below it nothing is worth changing
_TIE = 0.01
_SEEN = 0.95  # share of a candidate's steps that measured times must decide
_FAR = 1e3  # times as long: what is known to be cut off might take
_FEW, _INDEPENDENT = 30, 10.0  # rounds, and blocks, below which the evidence is thin
_LAW_ROUNDS = 400  # rounds drawn of a delay law


@dataclass(frozen=True)
class Estimate:
    """A median with the 5 % and 95 % ends of a prediction interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """A strategy that could be run.

    ``seconds_per_step`` and ``gain`` (1 - its seconds over today's) for a run as long as was asked for; ``load``: the
    largest share of the data that a worker computes in a step; ``exact``: whether a step is as good as today's.
    ``probability_best``: in how many resamples it came out best of those that compete; ``optimism``: what was added to
    the promise since the best of many looks better than it is; ``seen``: the share of its steps that measured times
    decide.
    """

    spec: str
    family: str
    exact: bool
    seconds_per_step: Estimate
    gain: Estimate
    load: float
    probability_best: float
    optimism: float
    seen: float
    residual: float | None = None
    staleness: float | None = None
    samples_per_step: float | None = None
    seconds_to_target: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class Plan:
    """What to run: :func:`plan` makes it. ``verdict`` is change or nothing, ``evidence`` enough, thin or none.

    ``candidates`` compete, the fastest first; ``others`` make steps that are not the exact sum, and are not
    ranked. ``dropped``: (worker, gain of today's strategy without it), of the costliest.
    """

    verdict: str
    why: str
    evidence: str
    horizon: int
    assumptions: tuple[str, ...]
    today: Choice
    best: Choice
    candidates: tuple[Choice, ...]
    others: tuple[Choice, ...]
    dropped: tuple[int | str, float] | None
    record: dict[str, Any]
    fleet: dict[str, Any]

    def report(self) -> dict[str, Any]:
        """All of it as plain values for JSON."""
        return {"version": 1, "interval": "prediction", "compared_by": "seconds_per_step", **asdict(self)}


def plan(
    source: str | Path | Run | Record | DelayModel, *, workers: int | None = None, today: str = "uncoded",
    slope: float | None = None, other: str | Path | Run | Record | None = None, steps: int | None = None,
    max_load: float = 1.0, everything: bool = False, seed: int = 0, resamples: int = 400, unit: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Plan:  # fmt: skip
    """Which strategy to run on a fleet, among those whose steps are worth the same, and what that gains.

    ``source``: what :func:`anyk.recording.read` reads, or a delay law (then ``workers`` says how many). ``today``: the
    strategy in use. A task's seconds are a fixed part and ``slope`` (seconds for the whole data) times its load:
    ``slope`` is given, or fitted to a second record, ``other``, at another load; else it is assumed that all of a
    task's time is computing, and the plan says what follows if half of it is. ``steps``: of the run that the promise is
    for; left out, as many as the record has rounds. ``max_load``: the largest share of the data that a worker may
    compute. ``everything``: look also at strategies whose steps are not the exact sum; they are not ranked.
    ``tell`` hears of each strategy that has to be simulated.

    Raises :class:`~anyk.errors.BadInput` for a record without rounds in which all workers were measured, or fewer than
    5 of them.

    >>> times = np.ones((60, 12))
    >>> times[np.arange(60), np.arange(60) % 12] = 10.0
    >>> found = plan(Record(times, load=1 / 12), slope=0.0)
    >>> found.verdict, found.best.spec, round(found.best.gain.median, 3)
    ('change', 'frc:stragglers=1', 0.9)
    """
    if not 0.0 < max_load <= 1.0:
        raise BadInput(f"max_load must be above 0 and at most 1 (all of the data), got {max_load:g}")
    if resamples < 20:
        raise BadInput(f"resamples must be at least 20, got {resamples}")
    record = _drawn(source, workers, seed) if isinstance(source, DelayModel) else read(source, unit=unit)
    whole = record.known.all(axis=1)
    times = record.table
    rounds, n = times.shape
    if rounds < 5 or n < 2:
        raise BadInput(
            f"a plan takes 5 rounds or more in which all of 2 workers or more were measured; got {rounds} x {n}"
        )
    horizon = rounds if steps is None else steps
    if horizon < 1:
        raise BadInput(f"steps must be at least 1, got {steps}")
    load = 1.0 / n if record.load is None else record.load
    assumptions = [] if record.load is not None else [f"each worker computed 1/{n} of the data in the record"]
    slope, said = _slope(record, other, slope, times, load, unit)
    assumptions += said
    if not whole.all():
        assumptions.append(f"{int((~whole).sum())} rounds in which a worker is missing left out")
    fleet = Fleet(times, np.asarray(record.censored)[whole], load, slope)
    found = explain(record, today=today, seed=seed)
    if found.drifts and not 1 / of.DRIFT < found.drift < of.DRIFT:
        change = f"the last quarter of its rounds takes {found.drift:.2g} times as long as the first"
        assumptions.append(f"the fleet will be as it was on average, though it drifts: {change}")
    asked = Asked(today, max_load, horizon, resamples, found.mean_burst, seed, everything, tell)
    judged = Judgement(fleet, asked)
    verdict, why, evidence = judged.verdict()
    if said and slope:
        half = Judgement(Fleet(times, fleet.censored, load, slope / 2), replace(asked, everything=False, tell=None))
        assumptions.append(f"if only half of that time is computing: {_in_short(half)}")
    first = found.workers[0].worker
    less = fleet.without(record.workers.index(first), today)
    dropped = None if less is None else (first, 1.0 - less / judged.today.seconds_per_step.median)
    return Plan(
        verdict, why, evidence, horizon, tuple(assumptions), judged.today, judged.best, judged.candidates,
        judged.others, dropped,
        {"digest": record.digest, "censored": record.cut, "block": judged.block},
        {"workers": n, "rounds": rounds, "slowest": [one.worker for one in found.workers[:5]],
         "named": list(found.named), "mean_burst": found.mean_burst},
    )  # fmt: skip


def _drawn(law: DelayModel, workers: int | None, seed: int) -> Record:
    if workers is None:
        raise BadInput("to plan for a delay law, say for how many workers")
    law.check_fleet(workers)
    times = np.stack([law.draws(seed, i, 0, _LAW_ROUNDS) for i in range(workers)], axis=1)
    return Record(times, load=1.0 / workers, remarks=(f"{_LAW_ROUNDS} rounds drawn of {law.spec}",))


def _slope(
    record: Record, other: Any, given: float | None, times: Floats, load: float, unit: str | None
) -> tuple[float, list[str]]:
    """Seconds for the whole data, and what was assumed for want of them."""
    if given is not None:
        if not math.isfinite(given) or given < 0:
            raise BadInput(f"slope must be at least 0 seconds for the whole data, got {given:g}")
        return given, []
    if other is not None:
        second = read(other, unit=unit)
        if record.load is None or second.load is None or record.load == second.load:
            raise BadInput("a slope takes two records that say their loads, and different ones; or give slope=…")
        if second.seconds.shape[1] != times.shape[1]:
            raise BadInput(f"the records have {times.shape[1]} and {second.seconds.shape[1]} workers; they must agree")
        return max(0.0, fit_slope(sorted([(record.load, times), (second.load, second.table)], key=lambda x: x[0]))), []
    level = float(np.median(of.lower_median(times)))
    said = (
        f"all of a task's {level:.3g} s is computing (slope {level / load:.3g} s for the whole data): nothing tells "
        "how times grow with load; give the slope, or a second record at another load"
    )
    return level / load, [said]


@dataclass(frozen=True, eq=False)
class Fleet:
    """Measured times (rounds x workers, seconds, at ``load``), and how they grow: ``slope`` s for the whole data."""

    times: Floats
    censored: NDArray[np.bool_]
    load: float
    slope: float

    def durations(self, strategy: Strategy, *, far: bool = False) -> Floats:
        """Seconds of each round under a strategy; ``far``: if those that were cut off had taken much longer."""
        times = np.where(self.censored, self.times * _FAR, self.times) if far else self.times
        shares = _loads(strategy)
        shifted = np.maximum(_LEAST, times + (shares - self.load) * self.slope)
        closed = strategy.durations(shifted)
        if closed is not None:
            return closed
        rounds = len(times)
        jobs = rounds - (strategy.for_jobs(rounds).rounds_for(rounds) - rounds)
        driven = strategy.for_jobs(jobs)
        if _sends_parts(strategy):  # a message comes when its part has been computed
            fixed = np.maximum(0.0, times - self.load * self.slope)
            compute = Compute(0.0, self.slope / strategy.layout.partitions, 0.0, times.shape[1])
            cluster = Simulated(times.shape[1], delays=Table(fixed, by="round"), compute=compute)
        else:
            # a strategy without rounds gives its workers task after task
            cluster = Simulated(times.shape[1], delays=Table(shifted, by="round" if strategy.exact else "task"))
        ends = [0.0]
        driver = Driver(driven, cluster, steps=jobs, on_step=lambda driver: ends.append(driver.time))
        with session(driver):
            driver.run()
        return np.asarray(np.diff(ends))

    def without(self, place: int, spec: str) -> float | None:
        """Mean seconds of a step without one worker; None where no such strategy exists for the others."""
        kept = np.delete(self.times, place, axis=1), np.delete(self.censored, place, axis=1)
        try:
            return Fleet(*kept, self.load, self.slope).alone(spec) if kept[0].shape[1] > 1 else None
        except BadInput:
            return None

    def alone(self, spec: str) -> float:
        """Mean seconds of a step under one strategy."""
        return float(self.durations(build_strategy(spec, workers=self.times.shape[1])).mean())


def _loads(strategy: Strategy) -> Floats:
    """The share of the data that each worker computes in a step."""
    layout = strategy.layout
    sizes = np.asarray(layout.shares or (1,) * layout.partitions, dtype=np.float64)
    return np.asarray([sizes[list(held)].sum() / sizes.sum() for held in layout.assignment])


def _sends_parts(strategy: Strategy) -> bool:
    code = getattr(strategy, "code", None)
    return isinstance(code, codes.Code) and (code.messages > 1 or code.policy().rounds != "coded")


def specs_for(workers: int) -> Iterator[str]:
    """Every spec that a code or strategy of the registries gives for planning, of those that can be built."""
    for entry in (*registry, *codes.registry):
        grid = entry.grid(workers) if entry.grid is not None else (entry.name,)
        yield from grid


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for; see :func:`plan`."""

    today: str
    max_load: float
    steps: int
    resamples: int
    burst: float
    seed: int
    everything: bool
    tell: Callable[[str], None] | None


class Judgement:
    """Candidates on a fleet with their intervals, and what follows."""

    def __init__(self, fleet: Fleet, asked: Asked) -> None:
        self.fleet = fleet
        rounds, n = fleet.times.shape
        self._today = build_strategy(asked.today, workers=n).spec
        made = {self._today: build_strategy(asked.today, workers=n)}
        for spec in specs_for(n):
            try:
                strategy = build_strategy(spec, workers=n)
            except BadInput:
                continue  # it does not exist for so many workers
            wanted = strategy.exact or asked.everything
            if wanted and _loads(strategy).max() <= asked.max_load + 1e-12:
                made.setdefault(strategy.spec, strategy)
        series, self._seen = self._measured(made, asked.tell)
        self.specs = [spec for spec in made if spec in series]
        self._made = made
        table = np.stack([series[spec] for spec in self.specs])
        self.block = self._block(table[self.specs.index(self._today)], rounds, asked.burst)
        drawn = resampled(rounds, asked.steps, self.block, asked.resamples, keyed.generator(asked.seed, "plan"))
        self.thin = rounds < _FEW or drawn.effective < _INDEPENDENT
        self._decide(table, drawn)

    def _measured(
        self, made: dict[str, Strategy], tell: Callable[[str], None] | None
    ) -> tuple[dict[str, Floats], dict[str, float]]:
        """Seconds of each round under each strategy, and the share of them that measured times decide."""
        series: dict[str, Floats] = {}
        seen: dict[str, float] = {}
        rounds = len(self.fleet.times)
        for spec, strategy in made.items():
            if tell is not None and strategy.durations(self.fleet.times[:1]) is None:
                tell(spec)
            try:
                found = self.fleet.durations(strategy)
                far = self.fleet.durations(strategy, far=True) if self.fleet.censored.any() else found
            except (BadInput, RunFailed):
                if spec == self._today:
                    raise
                continue
            if np.isfinite(found).all() and found.mean() > 0:
                seen[spec] = float((np.abs(far - found) <= 1e-9 * found).mean())
                series[spec] = found if len(found) == rounds else np.resize(found, rounds)
        return series, seen

    @staticmethod
    def _block(today: Floats, rounds: int, burst: float) -> int:
        """The largest of Politis and White's, the cube root of the rounds and twice the mean burst; at most a third."""
        longest: float = max(block_length(today), float(np.cbrt(rounds)), 2.0 * burst)
        return max(1, min(math.ceil(longest), rounds // 3))

    def _decide(self, table: Floats, drawn: Any) -> None:
        at = self.specs.index(self._today)
        past, future = drawn.spread(table)
        center = np.log(table.mean(axis=1))
        loads = {spec: float(_loads(self._made[spec]).max()) for spec in self.specs}
        exact = self._made[self._today].exact  # else nothing competes: the progress of inexact steps differs
        competing = [
            i for i, spec in enumerate(self.specs)
            if i == at or (exact and self._made[spec].exact and self._seen[spec] >= _SEEN)
        ]  # fmt: skip
        picks = np.array(competing)[past[:, competing].argmin(axis=1)]
        bias = float((past[np.arange(len(past)), picks] - center[picks]).mean())
        unsure = float(center[picks].std())
        best_count = {i: float((picks == i).mean()) for i in competing}
        choices = {}
        for i, spec in enumerate(self.specs):
            chosen = i in competing and i != at
            shift = -min(0.0, bias) if chosen else 0.0
            seconds = self._estimate(drawn, past[:, i] - center[i] + future[:, i], center[i] + shift, unsure * chosen)
            ratio = (past[:, i] - past[:, at] - center[i] + center[at]) + (future[:, i] - future[:, at])
            taken = self._estimate(drawn, ratio, center[i] - center[at] + shift, unsure * chosen)
            gain = Estimate(1.0 - taken.median, 1.0 - taken.high, 1.0 - taken.low)
            choices[i] = Choice(
                spec, spec.partition(":")[0], self._made[spec].exact, seconds,
                gain if i != at else Estimate(0.0, 0.0, 0.0), loads[spec],
                best_count.get(i, 0.0), shift, self._seen[spec],
            )  # fmt: skip
        order = sorted(competing, key=lambda i: (choices[i].seconds_per_step.median, choices[i].load))
        least = choices[order[0]].seconds_per_step.median
        ties = [i for i in order if choices[i].seconds_per_step.median <= (1.0 + _TIE) * least]
        winner = min(ties, key=lambda i: (choices[i].load, choices[i].seconds_per_step.median))
        self.today, self._first = choices[at], choices[winner]
        self.candidates = tuple(choices[i] for i in order)
        rest = [i for i in choices if i not in competing]
        self.others = tuple(choices[i] for i in sorted(rest, key=lambda i: choices[i].seconds_per_step.median))
        self._halves = [1.0 - float(half[winner].mean() / half[at].mean()) for half in np.array_split(table, 2, axis=1)]

    @staticmethod
    def _estimate(drawn: Any, deviations: Floats, center: float, unsure: float) -> Estimate:
        low, high = drawn.widened(deviations)
        more = 1.645 * unsure
        return Estimate(
            float(np.exp(center)), float(np.exp(center - math.hypot(low, more))),
            float(np.exp(center + math.hypot(high, more))),
        )  # fmt: skip

    @property
    def best(self) -> Choice:
        """The soonest (within 1 %, that of the least load), or today's strategy where nothing is better."""
        return self._first if self.verdict()[0] == "change" else self.today

    def verdict(self) -> tuple[str, str, str]:
        """Change or nothing, why, and how good the evidence is."""
        evidence = "thin" if self.thin else "enough"
        if self._seen[self._today] < _SEEN:
            return "nothing", "today's own steps are not measured: too many times were cut off", "none"
        if len(self.candidates) == 1:
            return (
                "nothing",
                f"no strategy makes steps that are worth as much as those of '{self._today}'",
                evidence,
            )
        first = self._first
        if first.spec == self._today:
            return "nothing", f"'{self._today}' is the soonest of {len(self.candidates)} strategies", evidence
        sure = first.gain.low >= _GAIN
        if self.thin:
            sure = sure and min(self._halves) >= _GAIN
        interval = f"{100 * first.gain.low:.0f} to {100 * first.gain.high:.0f} %"
        if sure:
            return "change", f"'{first.spec}' would take {100 * first.gain.median:.0f} % less ({interval})", evidence
        why = f"the best, '{first.spec}', would gain {100 * first.gain.median:.0f} %, and that is not sure ({interval})"
        return "nothing", why, evidence


def _in_short(judged: Judgement) -> str:
    verdict, why, _ = judged.verdict()
    return f"{verdict}; {why}"


def pareto(choices: Sequence[Choice]) -> list[Choice]:
    """Those than which none is both sooner and of less load, the soonest first."""
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda one: (one.seconds_per_step.median, one.load)):
        if not front or choice.load < front[-1].load - 1e-12:
            front.append(choice)
    return front
