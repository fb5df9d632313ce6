"""Candidates on a measured fleet, with prediction intervals, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.planning.candidates import candidates_for, paces_of, specs_for
from anyk.planning.fleets import Fleet, loads_of
from anyk.planning.resampling import Resampled, block_length, resampled
from anyk.protocol import Strategy
from anyk.training.promise import Estimate

__all__ = ["Asked", "Choice", "Estimate", "Judgement", "in_short", "pareto", "specs_for"]

Floats = NDArray[np.float64]
_GAIN = 0.03  # below it nothing is worth changing
_TIE = 0.01
_SEEN = 0.95  # share of a candidate's steps that measured times must decide
_FEW, _INDEPENDENT = 30, 10.0  # rounds, and blocks, below which the evidence is thin


@dataclass(frozen=True)
class Choice:
    """A strategy that could be run.

    ``seconds_per_step`` and ``gain`` (1 - its seconds over today's) for a run as long as was asked for; ``load``: the
    largest share of the data that a worker computes in a step; ``exact``: whether a step is as good as today's.
    ``probability_best``: in how many resamples it came out best of those that compete; ``optimism``: what was added to
    the promise since the best of many looks better than it is; ``seen``: the share of its steps that measured times
    decide; where that is too little, seconds and gain are those of the least and the largest continuation of the times
    that were cut off. Its price: ``worker_seconds`` of a step, ``memory`` (the largest share of the data that a worker
    holds) and ``vectors`` as long as the model that are sent in a step (``bytes_per_step`` where the problem is known).
    What steps are made of: mean ``residual`` and ``staleness``, and ``samples_per_step``, a share of the data.
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
    worker_seconds: float
    memory: float
    vectors: float | None = None
    bytes_per_step: float | None = None
    residual: float | None = None
    staleness: float | None = None
    samples_per_step: float | None = None
    seconds_to_target: float | None = None
    learning_rate: float | None = None

    @property
    def measured(self) -> bool:
        """Whether measured times decide enough of its steps."""
        return self.seen >= _SEEN


@dataclass(frozen=True)
class Asked:
    """The request that a plan answers; see :func:`plan`."""

    today: str
    max_load: float
    memory: float
    models: int
    steps: int
    resamples: int
    burst: float
    seed: int
    everything: bool
    tell: Callable[[str], None] | None
    among: Callable[[Strategy], bool] | None = None


class Judgement:
    """Candidates on a fleet with their intervals, and what follows."""

    def __init__(self, fleet: Fleet, asked: Asked) -> None:
        self.fleet = fleet
        rounds = len(fleet.times)
        made = candidates_for(
            asked.today, fleet, max_load=asked.max_load, memory=asked.memory, models=asked.models,
            everything=asked.everything, among=asked.among,
        )  # fmt: skip
        self._today = next(iter(made))
        self._paces = paces_of(fleet, made, asked.seed, asked.tell)
        self.left_out = tuple(self._paces.left_out)
        self.specs = [spec for spec in made if spec in self._paces.series]
        self._made = made
        table = np.stack([self._paces.series[spec] for spec in self.specs])
        self.block = self._block(table[self.specs.index(self._today)], rounds, asked.burst)
        drawn = resampled(rounds, asked.steps, self.block, asked.resamples, keyed.generator(asked.seed, "plan"))
        self.thin = rounds < _FEW or drawn.effective < _INDEPENDENT
        self._decide(table, drawn)

    @staticmethod
    def _block(today: Floats, rounds: int, burst: float) -> int:
        """The largest of Politis and White's, the cube root of the rounds and twice the mean burst; at most a third."""
        longest: float = max(block_length(today), float(np.cbrt(rounds)), 2.0 * burst)
        return max(1, min(math.ceil(longest), rounds // 3))

    def _decide(self, table: Floats, drawn: Resampled) -> None:
        at, paces = self.specs.index(self._today), self._paces
        past, future = drawn.spread(table)
        center = np.log(table.mean(axis=1))
        exact = self._made[self._today].exact  # else nothing competes: the progress of inexact steps differs
        competing = [
            i for i, spec in enumerate(self.specs)
            if i == at or (exact and self._made[spec].exact and paces.seen[spec] >= _SEEN)
        ]  # fmt: skip
        picks = np.array(competing)[past[:, competing].argmin(axis=1)]
        bias = float((past[np.arange(len(past)), picks] - center[picks]).mean())
        unsure = float(center[picks].std())
        best_count = np.bincount(picks, minlength=len(self.specs)) / len(picks)
        choices = {}
        for i, spec in enumerate(self.specs):
            chosen = i in competing and i != at
            shift = -min(0.0, bias) if chosen else 0.0
            seconds = self._estimate(drawn, past[:, i] - center[i] + future[:, i], center[i] + shift, unsure * chosen)
            ratio = (past[:, i] - past[:, at] - center[i] + center[at]) + (future[:, i] - future[:, at])
            taken = self._estimate(drawn, ratio, center[i] - center[at] + shift, unsure * chosen)
            taken = _capped(taken, float((table[i] / table[at]).max()) * math.exp(shift))
            if paces.seen[spec] < _SEEN or paces.seen[self._today] < _SEEN:
                seconds, taken = self._unmeasured(spec, seconds, taken)
            choices[i] = self._choice(spec, seconds, taken, float(best_count[i]), shift)
        order = sorted(competing, key=lambda i: (choices[i].seconds_per_step.median, choices[i].load))
        least = choices[order[0]].seconds_per_step.median
        ties = [i for i in order if choices[i].seconds_per_step.median <= (1.0 + _TIE) * least]
        winner = min(ties, key=lambda i: (round(choices[i].load, 9), choices[i].vectors or 0.0))
        self.today, self._first = choices[at], choices[winner]
        self.candidates = tuple(choices[i] for i in order)
        rest = [i for i in choices if i not in competing]
        self.others = tuple(choices[i] for i in sorted(rest, key=lambda i: choices[i].seconds_per_step.median))
        self._halves = [1.0 - float(half[winner].mean() / half[at].mean()) for half in np.array_split(table, 2, axis=1)]

    def _choice(self, spec: str, seconds: Estimate, taken: Estimate, best: float, shift: float) -> Choice:
        strategy: Strategy = self._made[spec]
        workers = self.fleet.times.shape[1]
        settled = self.fleet.settled(strategy)
        quality = self._paces.quality[spec]
        gain = Estimate(1.0 - taken.median, 1.0 - taken.high, 1.0 - taken.low)
        return Choice(
            spec, spec.partition(":")[0], strategy.exact, seconds,
            gain if spec != self._today else Estimate(0.0, 0.0, 0.0), float(loads_of(settled).max()), best, shift,
            self._paces.seen[spec], workers * seconds.median, strategy.share_held, strategy.vectors_sent,
            residual=quality.residual, staleness=quality.staleness, samples_per_step=quality.samples,
        )  # fmt: skip

    def _unmeasured(self, spec: str, seconds: Estimate, taken: Estimate) -> tuple[Estimate, Estimate]:
        """From the least to the largest of what times that were cut off may have been, with the interval of either."""
        paces = self._paces
        own = [paces.series[spec], *paces.imputed[spec]]
        now = [paces.series[self._today], *paces.imputed[self._today]]
        versions = max(len(own), len(now))
        means = np.array([own[min(v, len(own) - 1)].mean() for v in range(versions)])
        ratios = means / np.array([now[min(v, len(now) - 1)].mean() for v in range(versions)])
        return _between(seconds, means), _between(taken, ratios)

    @staticmethod
    def _estimate(drawn: Resampled, deviations: Floats, center: float, unsure: float) -> Estimate:
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
        if self._paces.seen[self._today] < _SEEN:
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


def _capped(one: Estimate, most: float) -> Estimate:
    """A ratio of two runs' seconds that is no larger than in the worst round: a ratio of sums lies between its terms'.

    Logarithms of means that rare stalls rule are skewed, and widened by Student's t they go far beyond that: to 20
    times as long where no round took longer.
    """
    return Estimate(one.median, one.low, max(one.median, min(one.high, most)))


def _between(one: Estimate, values: Floats) -> Estimate:
    """An interval around a value, spread over several that it may be."""
    low, high = one.low / one.median, one.high / one.median
    return Estimate(float(np.median(values)), float(values.min() * low), float(values.max() * high))


def in_short(judged: Judgement) -> str:
    """The verdict and why."""
    verdict, why, _ = judged.verdict()
    return f"{verdict}; {why}"


def pareto(choices: Sequence[Choice]) -> list[Choice]:
    """Those than which none is both sooner and of less load or memory; the soonest first."""
    front: list[Choice] = []
    prices: list[tuple[float, float]] = []
    for choice in sorted(choices, key=lambda one: (one.seconds_per_step.median, one.load)):
        price = (choice.load, choice.memory)
        if all(any(mine < known - 1e-12 for mine, known in zip(price, other, strict=True)) for other in prices):
            front.append(choice)
            prices.append(price)
    return front
