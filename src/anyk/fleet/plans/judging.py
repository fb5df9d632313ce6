"""Candidates on a measured fleet, with prediction intervals, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.fleet.plans.candidates import Paces, candidates_for, paces_of, specs_for
from anyk.fleet.plans.measured import Fleet, loads_of
from anyk.fleet.plans.prices import USUAL, vectors_held
from anyk.fleet.plans.resampling import Resampled, block_length, resampled
from anyk.fleet.plans.targets import SEEDS, Arrival, Contest, Goal
from anyk.protocol import Strategy, share_stored
from anyk.runs.folder.promise import Estimate

__all__ = ["Asked", "Choice", "Estimate", "Judgement", "headline", "in_short", "pareto", "specs_for"]

Floats = NDArray[np.float64]
_GAIN = 0.03  # below it nothing is worth changing
_TIE = 0.01  # what is no nearer is as good
_MOMENTUM = 1  # vectors of the usual optimiser's state
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
    holds); vectors as long as the model: ``vectors`` sent in a step, at most (``bytes_per_step`` where the problem is
    known), and ``vectors_held`` by a worker.
    What steps are made of: mean ``residual`` and ``staleness``, and ``samples_per_step``, a share of the data.

    Of a plan with a target: the ``learning_rate`` at which it comes there soonest, ``steps_to_target`` and seconds
    (``arrival``); ``gain`` is of these. None (and a ``gain`` of nan) where it was not trained, or given up.
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
    vectors_held: int | None = None
    bytes_per_step: float | None = None
    residual: float | None = None
    staleness: float | None = None
    samples_per_step: float | None = None
    learning_rate: float | None = None
    steps_to_target: float | None = None
    arrival: Estimate | None = None

    @property
    def measured(self) -> bool:
        """Whether measured times decide enough of its steps."""
        return self.seen >= _SEEN

    @property
    def seconds_to_target(self) -> float | None:
        """The median of ``arrival``."""
        return None if self.arrival is None else self.arrival.median


@dataclass(frozen=True)
class Asked:
    """The request that a plan answers; see :func:`plan`."""

    today: str
    max_load: float
    memory: float
    models: int
    steps: int | None
    resamples: int
    burst: float
    seed: int
    everything: bool
    tell: Callable[[str], None] | None
    among: Callable[[Strategy], bool] | None = None
    goal: Goal | None = None
    batch: int | None = None
    exact: bool = False
    max_staleness: float | None = None


class _Spread(NamedTuple):
    """Logarithms of seconds: on the record (candidates,), in its resamples, and of future runs relative to the record.

    The last two are of shape (resamples, candidates).
    """

    center: Floats
    past: Floats
    future: Floats

    def deviations(self, i: int) -> Floats:
        """Of a future run from what the record says."""
        return np.asarray(self.past[:, i] - self.center[i] + self.future[:, i])


class Judgement:
    """Candidates on a fleet with their intervals, and what follows."""

    def __init__(self, fleet: Fleet, asked: Asked) -> None:
        self.fleet, self._seed = fleet, asked.seed
        rounds = len(fleet.times)
        made = candidates_for(
            asked.today,
            fleet,
            max_load=asked.max_load,
            memory=asked.memory,
            models=asked.models,
            batch=asked.batch,
            everything=(asked.everything or asked.goal is not None) and not asked.exact,
            among=asked.among,
        )
        self._today, goal = next(iter(made)), asked.goal
        size, self._state = (USUAL, _MOMENTUM) if goal is None else (goal.size, goal.start.vectors)
        self._paces = self._within(paces_of(fleet, made, asked.seed, asked.tell, size), asked.max_staleness)
        self.specs = [spec for spec in made if spec in self._paces.series]
        self._made = made
        table = np.stack([self._paces.series[spec] for spec in self.specs])
        self.left_out = tuple(self._paces.left_out)
        self.horizon = asked.steps or rounds
        self._arrivals: dict[str, Arrival] | None = None
        if goal is not None:
            self._arrivals = self._contest(goal, asked.tell)
            self.horizon = asked.steps or max(1, round(float(np.median(self._arrivals[self._today].steps))))
        self.block = self._block(table[self.specs.index(self._today)], rounds, asked.burst)
        drawn = resampled(rounds, self.horizon, self.block, asked.resamples, keyed.generator(asked.seed, "plan"))
        self.thin = rounds < _FEW or drawn.effective < _INDEPENDENT
        self._decide(table, drawn, goal)

    def _contest(self, goal: Goal, tell: Callable[[str], None] | None) -> dict[str, Arrival]:
        """How strategies come to the target."""
        made = {spec: self._made[spec] for spec in self.specs}
        contest = Contest(self.fleet, made, self._paces, goal, self._today, tell)
        arrivals = contest.arrivals()
        self.left_out += tuple(contest.left_out)
        return arrivals

    def _within(self, paces: Paces, most: float | None) -> Paces:
        """Without strategies, other than today's, whose messages are staler than ``most``."""
        if most is not None:
            for spec in [spec for spec in paces.series if spec != self._today]:
                if (paces.quality[spec].staleness or 0.0) > most:
                    del paces.series[spec]
        return paces

    @staticmethod
    def _block(today: Floats, rounds: int, burst: float) -> int:
        """The largest of Politis and White's, the cube root of the rounds and twice the mean burst; at most a third."""
        longest: float = max(block_length(today), float(np.cbrt(rounds)), 2.0 * burst)
        return max(1, min(math.ceil(longest), rounds // 3))

    def _decide(self, table: Floats, drawn: Resampled, goal: Goal | None) -> None:
        at, paces = self.specs.index(self._today), self._paces
        pace = _Spread(np.log(table.mean(axis=1)), *drawn.spread(table))
        whole = pace if self._arrivals is None else self._to_target(pace, drawn)
        competing = self._competing(at)
        picks = np.array(competing)[whole.past[:, competing].argmin(axis=1)]
        bias = float((whole.past[np.arange(len(whole.past)), picks] - whole.center[picks]).mean())
        unsure = float(whole.center[picks].std())
        best_count = np.bincount(picks, minlength=len(self.specs)) / len(picks)

        def choice(i: int, shift: float, unsure: float) -> Choice:
            spec = self.specs[i]
            own = (shift, unsure) if whole is pace else (0.0, 0.0)
            seconds = self._estimate(drawn, pace.deviations(i), pace.center[i] + own[0], own[1])
            gap = whole.center[i] - whole.center[at] + shift
            taken = self._estimate(drawn, whole.deviations(i) - whole.deviations(at), gap, unsure)
            if whole is pace:
                taken = _capped(taken, float((table[i] / table[at]).max()) * math.exp(shift))
            if paces.seen[spec] < _SEEN or paces.seen[self._today] < _SEEN:
                seconds, taken = self._unmeasured(spec, seconds, taken)
            made = self._choice(spec, seconds, taken, float(best_count[i]), shift)
            if self._arrivals is not None:
                made = self._arriving(made, self._estimate(drawn, whole.deviations(i), whole.center[i] + shift, unsure))
            if goal is not None and made.vectors is not None:
                made = replace(made, bytes_per_step=made.vectors * goal.size.bytes)
            return made

        optimism = max(0.0, -bias), unsure
        choices = {}
        for i in range(len(self.specs)):  # with a target, only the best is chosen for what seeds it had
            flattered = whole is pace and i in competing and i != at
            choices[i] = choice(i, *(optimism if flattered else (0.0, 0.0)))

        def key(i: int) -> float:
            return (choices[i].arrival or choices[i].seconds_per_step).median

        order = sorted(competing, key=lambda i: (key(i), choices[i].load))
        ties = [i for i in order if key(i) <= (1.0 + _TIE) * key(order[0])]
        winner = min(ties, key=lambda i: (round(choices[i].load, 9), choices[i].vectors or 0.0))
        if whole is not pace and winner != at:
            choices[winner] = choice(winner, *optimism)
        self.today, self._first = choices[at], choices[winner]
        self.candidates = tuple(choices[i] for i in order)
        rest = [i for i in choices if i not in competing]
        self.others = tuple(choices[i] for i in sorted(rest, key=lambda i: choices[i].seconds_per_step.median))
        steps = np.exp(whole.center - pace.center)
        self._halves = [
            1.0 - float(half[winner].mean() * steps[winner] / (half[at].mean() * steps[at]))
            for half in np.array_split(table, 2, axis=1)
        ]

    def _arriving(self, made: Choice, arrival: Estimate) -> Choice:
        """With what is known of its way to the target."""
        assert self._arrivals is not None
        one = self._arrivals.get(made.spec)
        if one is None:
            return made
        steps = float(np.median(one.steps))
        return replace(made, learning_rate=one.learning_rate, arrival=arrival, steps_to_target=steps)

    def _competing(self, at: int) -> list[int]:
        """Of the strategies those that today's is compared with, and today's."""
        seen, arrivals = self._paces.seen, self._arrivals
        # without a target nothing competes with steps that are not exact: theirs are of other progress
        exact = self._made[self._today].facts.exact
        return [
            i
            for i, spec in enumerate(self.specs)
            if i == at
            or (
                seen[spec] >= _SEEN
                and (exact and self._made[spec].facts.exact if arrivals is None else spec in arrivals)
            )
        ]

    def _to_target(self, pace: _Spread, drawn: Resampled) -> _Spread:
        """Seconds to the target in place of those of a step; nan where a strategy does not come there.

        Seeds are resampled as rounds are: all of them for the record, one for the future, the same for all strategies,
        and deviations are widened as Student's t does for so few.
        """
        from scipy.stats import t

        assert self._arrivals is not None
        random = keyed.generator(self._seed, "seeds")
        resamples = len(pace.past)
        drawn_seeds, one = random.integers(0, SEEDS, (resamples, SEEDS)), random.integers(0, SEEDS, resamples)
        wider = float(np.sqrt(SEEDS / (SEEDS - 1.0)) * t.ppf(0.95, SEEDS - 1) / 1.645)
        center, past, future = np.full_like(pace.center, np.nan), pace.past.copy(), pace.future.copy()
        for i, spec in enumerate(self.specs):
            if spec in self._arrivals:
                logs = np.log(self._arrivals[spec].seconds)
                center[i] = logs.mean()
                apart = wider * (logs - logs.mean())
                past[:, i] += center[i] - pace.center[i] + apart[drawn_seeds].mean(axis=1)
                future[:, i] += apart[one]
        return _Spread(center, past, future)

    def _choice(self, spec: str, seconds: Estimate, taken: Estimate, best: float, shift: float) -> Choice:
        strategy: Strategy = self._made[spec]
        workers = self.fleet.times.shape[1]
        settled = self.fleet.settled(strategy)
        quality = self._paces.quality[spec]
        gain = Estimate(1.0 - taken.median, 1.0 - taken.high, 1.0 - taken.low)
        return Choice(
            spec,
            spec.partition(":")[0],
            strategy.facts.exact,
            seconds,
            gain if spec != self._today else Estimate(0.0, 0.0, 0.0),
            float(loads_of(settled).max()),
            best,
            shift,
            self._paces.seen[spec],
            workers * seconds.median,
            share_stored(strategy),
            quality.vectors,
            vectors_held=vectors_held(strategy, self._state),
            residual=quality.residual,
            staleness=quality.staleness,
            samples_per_step=quality.samples,
        )

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
            float(np.exp(center)),
            float(np.exp(center - math.hypot(low, more))),
            float(np.exp(center + math.hypot(high, more))),
        )

    @property
    def best(self) -> Choice:
        """The soonest (within 1 %, that of the least load), or today's strategy where nothing is better."""
        return self._first if self.verdict()[0] == "change" else self.today

    def verdict(self) -> tuple[Literal["change", "nothing"], str, Literal["enough", "thin", "none"]]:
        """Change or nothing, why, and how good the evidence is."""
        evidence: Literal["enough", "thin"] = "thin" if self.thin else "enough"
        if self._paces.seen[self._today] < _SEEN:
            why = f"how long steps of '{self._today}' take is not known, as too many times were cut off"
            return "nothing", why, "none"
        if len(self.candidates) == 1:
            return (
                "nothing",
                f"no strategy makes steps that are worth as much as those of '{self._today}'",
                evidence,
            )
        first, to_target = self._first, "" if self._arrivals is None else " to the target"
        if first.spec == self._today:
            return (
                "nothing",
                f"'{self._today}' is the soonest{to_target} of {len(self.candidates)} strategies",
                evidence,
            )
        interval = f"{100 * first.gain.low:.0f} to {100 * first.gain.high:.0f} %"
        if min([first.gain.low, *(self._halves if self.thin else ())]) >= _GAIN:
            return (
                "change",
                f"'{first.spec}' would take {100 * first.gain.median:.0f} % less{to_target} ({interval})",
                evidence,
            )
        gain = f"the best, '{first.spec}', would gain {100 * first.gain.median:.0f} %{to_target} ({interval})"
        little = f", which is less than {100 * _GAIN:.0f} %" if first.gain.median < _GAIN else ", which is not sure"
        return "nothing", gain + little, evidence


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


def headline(verdict: str, today: Choice) -> str:
    """Return the advice in a few words; there is none if the steps of today's strategy were not measured."""
    if not today.measured:
        return "no advice"
    return "change" if verdict == "change" else f"stay with '{today.spec}'"


def in_short(judged: Judgement) -> str:
    """Return the advice and the reason for it."""
    verdict, why, _ = judged.verdict()
    return why if verdict == "change" else f"{headline(verdict, judged.today)}, {why}"


def pareto(choices: Sequence[Choice]) -> list[Choice]:
    """Those than which none is both sooner and of less load or memory; the soonest first."""
    front: list[Choice] = []
    prices: list[tuple[float, float]] = []
    for choice in sorted(choices, key=lambda one: ((one.arrival or one.seconds_per_step).median, one.load)):
        price = (choice.load, choice.memory)
        if all(any(mine < known - 1e-12 for mine, known in zip(price, other, strict=True)) for other in prices):
            front.append(choice)
            prices.append(price)
    return front
