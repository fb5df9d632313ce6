"""Candidates on a measured fleet, with prediction intervals, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anyk import codes, keyed
from anyk.errors import BadInput, RunFailed
from anyk.planning.fleets import Fleet, loads_of
from anyk.planning.resampling import block_length, resampled
from anyk.protocol import Strategy
from anyk.strategies import registry
from anyk.strategies import strategy as build_strategy

Floats = NDArray[np.float64]
_GAIN = 0.03  # below it nothing is worth changing
_TIE = 0.01
_SEEN = 0.95  # share of a candidate's steps that measured times must decide
_FAR = 1e3  # times as long: what is known to be cut off might take
_FEW, _INDEPENDENT = 30, 10.0  # rounds, and blocks, below which the evidence is thin


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
            if wanted and loads_of(strategy).max() <= asked.max_load + 1e-12:
                made.setdefault(strategy.spec, strategy)
        self._far = fleet.taking(np.where(fleet.censored, fleet.times * _FAR, fleet.times))
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
            try:
                found = self.fleet.closed(strategy)
                if found is None:
                    if tell is not None:
                        tell(spec)
                    found = self.fleet.simulated(strategy)
                far = self._far.durations(strategy) if self.fleet.censored.any() else found
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
        loads = {spec: float(loads_of(self._made[spec]).max()) for spec in self.specs}
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

    def verdict(self) -> tuple[Literal["change", "nothing"], str, Literal["enough", "thin", "none"]]:
        """Change or nothing, why, and how good the evidence is."""
        evidence: Literal["enough", "thin"] = "thin" if self.thin else "enough"
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


def in_short(judged: Judgement) -> str:
    """The verdict and why."""
    verdict, why, _ = judged.verdict()
    return f"{verdict}; {why}"


def pareto(choices: Sequence[Choice]) -> list[Choice]:
    """Those than which none is both sooner and of less load, the soonest first."""
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda one: (one.seconds_per_step.median, one.load)):
        if not front or choice.load < front[-1].load - 1e-12:
            front.append(choice)
    return front
