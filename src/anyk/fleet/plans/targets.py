"""Seconds to a target: strategies trained with real gradients on the virtual clock, each with its own learning rate."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.clusters import Simulated
from anyk.errors import BadInput, RunFailed
from anyk.fleet.plans.candidates import Paces, Tell, batch_of, built, counted
from anyk.fleet.plans.measured import Fleet
from anyk.fleet.plans.prices import VectorSize
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem
from anyk.protocol import Strategy
from anyk.runs import train
from anyk.runs.defaults import usual_optimizer
from anyk.runs.evaluation.settings import USUAL, Evaluate, read_evaluate
from anyk.runs.limits import LIMIT, Limits, check_limits

Floats = NDArray[np.float64]
SEEDS = 5  # other than the one by which strategies and rates are chosen
LEAST_RUNS = 30
_CONTESTANTS = 30
_RUNS_EACH = 15  # that a contestant takes, roughly: its rates, twice, and the seeds
_FIRST = 5  # steps of the slowest contestant in the first rung
_LONG = 25.0  # times today's seconds, beyond which a step is not waited for
_RUNG = 3.0  # times the seconds of the rung before
_LATER = 2.0  # times the soonest arrival, after which a contestant is given up
_PATIENT = 3.0  # times that again, with other seeds
_HOPELESS = 20.0  # times the same, after which today's strategy is given up
_FARTHEST = 12  # doublings of the learning rate


@dataclass(frozen=True)
class Goal:
    """What a plan trains to: the ``target`` of a problem's metric, in at most so many ``runs``.

    ``optimizer``: its spec; ``lr``: where learning rates are looked for (None: 1 / smoothness), a number, or a
    schedule, which all strategies take as it is.
    """

    problem: Problem
    target: float
    optimizer: str | None = None
    lr: float | str | None = None
    runs: int = 600
    evaluate: Evaluate | str | None = USUAL

    def check(self) -> None:
        """Raise :class:`~anyk.errors.BadInput` for what cannot be reached."""
        if self.runs < LEAST_RUNS:
            raise BadInput(f"runs must be at least {LEAST_RUNS}, got {self.runs}")
        check_limits(self.problem, Limits(target=self.target))
        asked = read_evaluate(self.evaluate)
        if asked is not None and asked.where == "aside":
            raise BadInput(
                "a plan makes hundreds of short runs, each with its own process to evaluate; leave where=aside out"
            )
        _ = self.start

    @cached_property
    def start(self) -> Optimizer:
        """The optimiser to begin with; :class:`~anyk.errors.BadInput` where no learning rate is known."""
        return usual_optimizer(self.problem, self.optimizer, self.lr)

    @property
    def size(self) -> VectorSize:
        """That of a vector as long as the model."""
        return VectorSize(self.problem.dimension, np.dtype(self.problem.dtype).itemsize)


@dataclass(frozen=True, eq=False)
class Arrival:
    """How a strategy comes to the target: its learning rate (None: the schedule's), and by seed seconds and steps."""

    learning_rate: float | None
    seconds: Floats
    steps: Floats


class _Outcome(NamedTuple):
    """A run: 0 arrived, 1 on the way, 2 diverged; and seconds, the distance or the rate, the least the best."""

    kind: int
    value: float
    steps: int = 0


@dataclass
class Contest:
    """Successive halving (Jamieson and Talwalkar 2016) over strategies, in virtual seconds.

    All exact strategies take the same steps and are one contestant, that of the soonest. Each looks for its learning
    rate in factors of 2, in the first rung and at the end; the better half goes on, with today's strategy and the best
    of each family. Those that arrive are then trained with seeds that had no part in the choice.
    """

    fleet: Fleet
    made: dict[str, Strategy]
    paces: Paces
    goal: Goal
    today: str
    tell: Tell | None = None
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer = self.goal.start
        start = self._optimizer.rate
        self._base = float(start.at(0)) if start.at(0) == start.at(LIMIT) else None  # None: a schedule
        if self._base is None:
            self.left_out.append("the learning rate's schedule was taken as it is for every strategy")
        self._pace = {spec: float(series.mean()) for spec, series in self.paces.series.items()}
        exact = [spec for spec in self._pace if self.made[spec].facts.exact and self.paces.seen[spec] > 0.0]
        self._exact = min(exact, key=self._pace.__getitem__, default=None)
        self._runs = self.goal.runs
        self._known: dict[tuple[str, int, int], tuple[float, _Outcome]] = {}
        self._rates: dict[str, int] = {}

    # --------------------------------------------------------------------------------------- who takes part

    def _contestants(self) -> list[str]:
        """Today's, the exact one, and of each family in turn the one that sees the most data a second."""
        first = [spec for spec in dict.fromkeys((self.today, self._exact)) if spec and self._of(spec) == spec]
        longest = _LONG * self._pace[self.today]
        rest = [spec for spec in self._pace if not self.made[spec].facts.exact and spec not in first]
        slow = sorted({_family(spec) for spec in rest if self._pace[spec] > longest})
        rest = sorted((spec for spec in rest if self._pace[spec] <= longest), key=self._per_sample)
        if slow:
            self.left_out.append(f"left out, as a step takes over {_LONG:g} times today's: of {', '.join(slow)}")
        families: dict[str, list[str]] = {}
        for spec in rest:
            families.setdefault(_family(spec), []).append(spec)
        turns = [spec for turn in range(len(rest)) for own in families.values() for spec in own[turn : turn + 1]]
        most = max(3, min(_CONTESTANTS, self.goal.runs // _RUNS_EACH))
        chosen = [*first, *turns][:most]
        if len(first) + len(turns) > most:
            self.left_out.append(f"{counted(len(first) + len(turns) - most)} not trained: {self.goal.runs} runs in all")
        return chosen

    def _per_sample(self, spec: str) -> float:
        return self._pace[spec] / max(1e-9, self.paces.quality[spec].samples or 1.0)

    def _of(self, spec: str) -> str:
        """The contestant that stands for a strategy."""
        return self._exact if self._exact is not None and self.made[spec].facts.exact else spec

    # --------------------------------------------------------------------------------------- the contest

    def arrivals(self) -> dict[str, Arrival]:
        """By spec how strategies come to the target; those that were given up are missing.

        Raises :class:`~anyk.errors.BadInput` where none comes there.
        """
        going = self._contestants()
        self._told(f"training to the target: {counted(len(going))}, in at most {self.goal.runs} runs")
        self._rates = dict.fromkeys(going, 0)
        seconds = _FIRST * max(self._pace[spec] for spec in going)
        found = {spec: self._climb(spec, seconds) for spec in going}
        while not any(one.kind == 0 for one in found.values()):
            if seconds > LIMIT * max(self._pace[spec] for spec in going) or self._runs < len(going) * (SEEDS + 2):
                raise BadInput(self._unreached(found, seconds))
            going = self._better_half(found)
            seconds *= _RUNG
            self._told(f"{counted(len(going))} for {seconds:.3g} s")
            found = {spec: self._run(spec, self._rates[spec], 0, seconds) for spec in going}
        seconds = _LATER * min(one.value for one in found.values() if one.kind == 0)
        going = self._better_half(found)
        self._told(f"{counted(len(going))} for {seconds:.3g} s, and with other seeds")
        last = {spec: self._climb(spec, seconds) for spec in sorted(going, key=found.__getitem__)}
        today, patience = self._of(self.today), seconds
        while last[today].kind != 0 and patience < _HOPELESS * seconds:  # it must be known what there is to gain
            patience *= _RUNG
            last[today] = self._climb(today, patience)
        arrived = sorted((spec for spec in going if last[spec].kind == 0), key=last.__getitem__)
        arrivals = {spec: self._arrival(spec, _PATIENT * seconds) for spec in arrived if spec != today}
        if last[today].kind == 0:
            arrivals[today] = self._arrival(today, _PATIENT * patience, needed=True)
        else:
            self.left_out.append(
                f"'{self.today}' had not come to the target after {patience:.3g} s: gains are at least so"
            )
            steps = patience / self._pace[today]
            arrivals[today] = self._at(today, np.full(SEEDS, patience), np.full(SEEDS, steps))
        return self._by_spec(arrivals)

    def _better_half(self, found: dict[str, _Outcome]) -> list[str]:
        """The better half, today's, and the best of each family."""
        order = sorted(found, key=found.__getitem__)
        kept = {_family(spec): spec for spec in reversed(order)}
        keep = {*order[: -(-len(order) // 2)], *kept.values(), self._of(self.today)}
        return [spec for spec in found if spec in keep]

    def _climb(self, spec: str, seconds: float) -> _Outcome:
        """Look for the best learning rate from where it was last; the best is inside of what was tried."""
        at = self._rates[spec]
        best = self._run(spec, at, 0, seconds)
        if self._base is None:
            return best
        for step in (1, -1):
            moved = False
            while abs(at + step) <= _FARTHEST and self._runs > SEEDS:
                other = self._run(spec, at + step, 0, seconds)
                if other[:2] >= best[:2]:
                    break
                best, at, moved = other, at + step, True
            if moved:
                break  # on the other side lies where it came from
        self._rates[spec] = at
        return best

    def _arrival(self, spec: str, seconds: float, *, needed: bool = False) -> Arrival | None:
        """With other seeds; None where it does not come to the target with all of them, unless it is needed."""
        fixed = self.made[spec].facts.exact and not batch_of(self.made[spec])
        runs = [self._run(spec, self._rates[spec], seed, seconds) for seed in range(1, 2 if fixed else SEEDS + 1)]
        late = [one.kind != 0 for one in runs]
        if any(late):
            came = f"'{spec}' came to the target with {late.count(False)} of {len(late)} seeds"
            self.left_out.append(f"{came}; the others count as {seconds:.3g} s, the least" if needed else came)
            if not needed:
                return None
        times = np.array([seconds if gone else one.value for one, gone in zip(runs, late, strict=True)])
        steps = np.array([float(one.steps) for one in runs])
        return self._at(spec, np.resize(times, SEEDS), np.resize(steps, SEEDS))

    def _at(self, spec: str, seconds: Floats, steps: Floats) -> Arrival:
        return Arrival(self._rate(self._rates[spec]), seconds, steps)

    def _by_spec(self, arrivals: dict[str, Arrival | None]) -> dict[str, Arrival]:
        """The same for all strategies that a contestant stands for."""
        found = {}
        for spec in self._pace:
            one = arrivals.get(self._of(spec))
            if one is not None and self.made[spec].facts.exact:
                one = Arrival(one.learning_rate, one.steps * self._pace[spec], one.steps)
            if one is not None:
                found[spec] = one
        return found

    def _unreached(self, found: dict[str, _Outcome], seconds: float) -> str:
        metric, target = self.goal.problem.metric, self.goal.target
        best, one = min(found.items(), key=lambda item: item[1])
        sign = -1.0 if self.goal.problem.better == "higher" else 1.0
        reached = f"'{best}' came to {sign * one.value:.4g}" if one.kind == 1 else "all of them diverged"
        came = f"no strategy came to {metric} {target:g} within {seconds:.3g} s"
        return f"{came}; {reached}; give another target, or more runs"

    # --------------------------------------------------------------------------------------- one run

    def _rate(self, exponent: int) -> float | None:
        return None if self._base is None else float(f"{self._base * 2.0**exponent:.4g}")

    def _run(self, spec: str, exponent: int, seed: int, seconds: float) -> _Outcome:
        """Train for so long, or as is known of it."""
        upto, known = self._known.get((spec, exponent, seed), (0.0, None))
        if known is not None and (known.kind != 1 or upto >= seconds):
            return known if known.kind != 0 or known.value <= seconds else _Outcome(1, math.inf)
        self._runs -= 1
        rate = self._rate(exponent)
        optimizer = self._optimizer if rate is None else replace(self._optimizer, lr=rate)
        outcome = self._trained(spec, optimizer, seed, seconds)
        if outcome.kind == 2:
            outcome = _Outcome(2, float(exponent))
        self._known[spec, exponent, seed] = seconds, outcome
        return outcome

    def _trained(self, spec: str, optimizer: Optimizer, seed: int, seconds: float) -> _Outcome:
        problem, target = self.goal.problem, self.goal.target
        strategy, exact = self.made[spec], spec == self._exact
        common: dict[str, Any] = {"optimizer": optimizer, "target": target, "evaluate": self.goal.evaluate}
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                if exact:  # when its steps are taken is known
                    steps = max(1, min(LIMIT, round(seconds / self._pace[spec])))
                    light = built("uncoded", strategy.layout.workers, 1, batch=batch_of(strategy))
                    run = train(problem, light, Simulated(light.layout.workers, seed=seed), steps=steps, **common)
                else:
                    cluster = self.fleet.from_round(seed, SEEDS + 1).cluster(strategy, seed=seed)
                    run = train(problem, strategy, cluster, seconds=seconds, **common)
        except RunFailed:  # values that cannot be evaluated
            return _Outcome(2, 0.0)
        with contextlib.closing(run):
            losses = run.history["loss"]
            value = run.loss if run.metric is None else run.metric["value"]
            grown = losses.size > 0 and not losses[-1] <= max(losses[0], 1e-300) and np.isfinite(losses[0])
            if grown or value is None or not math.isfinite(value):
                return _Outcome(2, 0.0)
            reached = run.time_to_target
            if reached is not None:
                return _Outcome(0, run.steps * self._pace[spec] if exact else reached, run.steps)
            return _Outcome(1, -value if problem.better == "higher" and run.metric is not None else value, run.steps)

    def _told(self, text: str) -> None:
        if self.tell is not None:
            self.tell(text)


def _family(spec: str) -> str:
    return spec.partition(":")[0]
