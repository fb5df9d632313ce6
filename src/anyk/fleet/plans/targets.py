"""Seconds to a target: strategies trained with real gradients on the virtual clock, each at its own learning rate."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from anyk.clusters import Simulated
from anyk.delays.base import Floats
from anyk.errors import BadInput, RunFailed
from anyk.fleet.plans.candidates import Timed, batch_of, build_candidate, count_strategies
from anyk.fleet.plans.measured_fleet import MeasuredFleet, VectorSize
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, Tell
from anyk.runs import train
from anyk.runs.defaults import usual_optimizer
from anyk.runs.evaluation.evaluate import USUAL, Evaluate
from anyk.runs.limits import LIMIT

SEEDS = 5  # besides the one by which strategies and rates are chosen
_CONTESTANTS = 30
_RUNS_EACH = 15  # runs of a contestant, roughly: its rates, twice, and the seeds
_FIRST = 5  # steps of the slowest contestant in the first rung
_LONG = 25.0  # times today's seconds per step, beyond which a strategy is skipped
_RUNG = 3.0  # times the seconds of the rung before
_LATER = 2.0  # times the soonest arrival, after which a contestant is abandoned
_PATIENT = 3.0  # times that, with other seeds
_HOPELESS = 20.0  # times that, after which today's strategy is abandoned
_FARTHEST = 12  # doublings of the learning rate


@dataclass(frozen=True)
class Goal:
    """The goal of a plan: the ``target`` of a problem's metric, with at most ``runs`` runs.

    ``optimizer``: its spec; ``lr``: a number from which learning rates are searched (None: 1 / smoothness), or a
    schedule, which all strategies use unchanged.
    """

    problem: Problem
    target: float
    optimizer: str | None = None
    lr: float | str | None = None
    runs: int = 600
    evaluate: Evaluate | str | None = USUAL

    @cached_property
    def start(self) -> Optimizer:
        """The initial optimiser; raises :class:`~anyk.errors.BadInput` if no learning rate is known."""
        return usual_optimizer(self.problem, self.optimizer, self.lr)

    @property
    def size(self) -> VectorSize:
        """The size of a vector as long as the model."""
        return VectorSize(self.problem.dimension, np.dtype(self.problem.dtype).itemsize)


@dataclass(frozen=True, eq=False)
class Arrival:
    """A strategy's seconds and steps to the target, shape (seeds,), at a learning rate (None: a schedule)."""

    learning_rate: float | None
    seconds: Floats
    steps: Floats


class _Outcome(NamedTuple):
    """The outcome of a run by ``kind``: 0 reached the target (``value``: seconds), 1 not yet (distance), 2 diverged.

    Outcomes are ordered, the best first.
    """

    kind: int
    value: float
    steps: int = 0


@dataclass
class Contest:
    """Successive halving (Jamieson and Talwalkar 2016) over strategies, in virtual seconds.

    All exact strategies take the same steps and are one contestant, represented by the fastest. Each contestant
    searches its learning rate in factors of 2, in the first rung and at the end; the better half continues, with
    today's strategy and the best of each family. The strategies that reach the target are then trained with other
    seeds than the choice used.
    """

    fleet: MeasuredFleet
    timed: dict[str, Timed]
    goal: Goal
    today: str
    tell: Tell | None = None
    omitted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer = self.goal.start
        start = self._optimizer.rate
        self._base = float(start.at(0)) if start.at(0) == start.at(LIMIT) else None  # None: a schedule
        if self._base is None:
            self.omitted.append("every strategy used the schedule of the learning rate unchanged")
        self._pace = {spec: one.mean for spec, one in self.timed.items()}
        exact = [spec for spec, one in self.timed.items() if one.exact and one.measured_share > 0.0]
        self._exact = min(exact, key=self._pace.__getitem__, default=None)
        self._runs = self.goal.runs
        self._outcomes: dict[tuple[str, int, int], tuple[float, _Outcome]] = {}
        self._rates: dict[str, int] = {}

    def _contestants(self) -> list[str]:
        """Return today's strategy, the exact one, and the others: families in turns, most data per second first."""

        def per_sample(spec: str) -> float:
            return self._pace[spec] / max(1e-9, self.timed[spec].quality.samples or 1.0)

        first = [spec for spec in dict.fromkeys((self.today, self._exact)) if spec and self._of(spec) == spec]
        longest = _LONG * self._pace[self.today]
        others = [spec for spec in self._pace if not self.timed[spec].exact and spec not in first]
        slow = sorted({_family(spec) for spec in others if self._pace[spec] > longest})
        others = sorted((spec for spec in others if self._pace[spec] <= longest), key=per_sample)
        if slow:
            self.omitted.append(f"left out, as a step takes over {_LONG:g} times today's: of {', '.join(slow)}")
        families: dict[str, list[str]] = {}
        for spec in others:
            families.setdefault(_family(spec), []).append(spec)
        turns = [spec for turn in range(len(others)) for own in families.values() for spec in own[turn : turn + 1]]
        most = max(3, min(_CONTESTANTS, self.goal.runs // _RUNS_EACH))
        contestants = [*first, *turns]
        if len(contestants) > most:
            self.omitted.append(
                f"{count_strategies(len(contestants) - most)} not trained: {self.goal.runs} runs in all"
            )
        return contestants[:most]

    def _of(self, spec: str) -> str:
        """Return the contestant that represents a strategy."""
        return self._exact if self._exact is not None and self.timed[spec].exact else spec

    def arrivals(self) -> dict[str, Arrival]:
        """Return the arrivals of strategies at the target by spec, without abandoned strategies.

        Raises :class:`~anyk.errors.BadInput` if none arrives, or if the initial model has reached the target.
        """
        contestants = self._contestants()
        self._announce(
            f"training to the target: {count_strategies(len(contestants))}, in at most {self.goal.runs} runs"
        )
        self._rates = dict.fromkeys(contestants, 0)
        seconds = _FIRST * max(self._pace[spec] for spec in contestants)
        outcomes = {spec: self._climb(spec, seconds) for spec in contestants}
        while not any(outcome.kind == 0 for outcome in outcomes.values()):
            if seconds > LIMIT * max(self._pace[spec] for spec in contestants) or self._runs < len(contestants) * (
                SEEDS + 2
            ):
                raise BadInput(self._unreached(outcomes, seconds))
            contestants = self._better_half(outcomes)
            seconds *= _RUNG
            self._announce(f"{count_strategies(len(contestants))} for {seconds:.3g} s")
            outcomes = {spec: self._run(spec, self._rates[spec], 0, seconds) for spec in contestants}
        seconds = _LATER * min(outcome.value for outcome in outcomes.values() if outcome.kind == 0)
        if not seconds:
            metric, target = self.goal.problem.metric, self.goal.target
            raise BadInput(f"the model has {metric} {target:g} before the first step; give another target")
        contestants = self._better_half(outcomes)
        self._announce(f"{count_strategies(len(contestants))} for {seconds:.3g} s, and with other seeds")
        last = {spec: self._climb(spec, seconds) for spec in sorted(contestants, key=outcomes.__getitem__)}
        today, patience = self._of(self.today), seconds
        while last[today].kind != 0 and patience < _HOPELESS * seconds:  # gains are relative to it
            patience *= _RUNG
            last[today] = self._climb(today, patience)
        arrived = sorted((spec for spec in contestants if last[spec].kind == 0), key=last.__getitem__)
        arrivals = {spec: self._arrival(spec, _PATIENT * seconds) for spec in arrived if spec != today}
        if last[today].kind == 0:
            arrivals[today] = self._arrival(today, _PATIENT * patience, required=True)
        else:
            self.omitted.append(
                f"'{self.today}' had not reached the target after {patience:.3g} s: gains are at least as stated"
            )
            steps = patience / self._pace[today]
            arrivals[today] = self._at(today, np.full(SEEDS, patience), np.full(SEEDS, steps))
        return self._by_spec(arrivals)

    def _better_half(self, outcomes: dict[str, _Outcome]) -> list[str]:
        """Return the better half, today's strategy, and the best of each family."""
        order = sorted(outcomes, key=outcomes.__getitem__)
        best = {_family(spec): spec for spec in reversed(order)}
        keep = {*order[: -(-len(order) // 2)], *best.values(), self._of(self.today)}
        return [spec for spec in outcomes if spec in keep]

    def _climb(self, spec: str, seconds: float) -> _Outcome:
        """Search the best learning rate, starting at the last one, until the rates on both sides are worse."""
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
                break  # the rates on the other side are known to be worse
        self._rates[spec] = at
        return best

    def _arrival(self, spec: str, seconds: float, *, required: bool = False) -> Arrival | None:
        """Return the arrival with other seeds; None if a seed misses the target, unless it is ``required``."""
        fixed = self.timed[spec].exact and not batch_of(self.timed[spec].strategy)
        runs = [self._run(spec, self._rates[spec], seed, seconds) for seed in range(1, 2 if fixed else SEEDS + 1)]
        arrived = sum(run.kind == 0 for run in runs)
        if arrived < len(runs):
            came = f"'{spec}' reached the target with {arrived} of {len(runs)} seeds"
            self.omitted.append(f"{came}; the others count as {seconds:.3g} s, the least" if required else came)
            if not required:
                return None
        times = np.array([seconds if run.kind != 0 else run.value for run in runs])
        steps = np.array([float(run.steps) for run in runs])
        return self._at(spec, np.resize(times, SEEDS), np.resize(steps, SEEDS))

    def _at(self, spec: str, seconds: Floats, steps: Floats) -> Arrival:
        return Arrival(self._rate(self._rates[spec]), seconds, steps)

    def _by_spec(self, arrivals: dict[str, Arrival | None]) -> dict[str, Arrival]:
        """Return the arrivals of all strategies that the contestants represent."""
        by_spec = {}
        for spec, pace in self._pace.items():
            arrival = arrivals.get(self._of(spec))
            if arrival is not None:
                exact = self.timed[spec].exact
                by_spec[spec] = replace(arrival, seconds=arrival.steps * pace) if exact else arrival
        return by_spec

    def _unreached(self, outcomes: dict[str, _Outcome], seconds: float) -> str:
        metric, target = self.goal.problem.metric, self.goal.target
        best, outcome = min(outcomes.items(), key=lambda item: item[1])
        sign = -1.0 if self.goal.problem.better == "higher" else 1.0
        reached = f"'{best}' reached {sign * outcome.value:.4g}" if outcome.kind == 1 else "all of them diverged"
        came = f"no strategy reached {metric} {target:g} within {seconds:.3g} s"
        return f"{came}; {reached}; give another target, or more runs"

    def _rate(self, exponent: int) -> float | None:
        return None if self._base is None else float(f"{self._base * 2.0**exponent:.4g}")

    def _run(self, spec: str, exponent: int, seed: int, seconds: float) -> _Outcome:
        """Return the outcome of training for ``seconds``, without training again if a former run shows it."""
        upto, trained = self._outcomes.get((spec, exponent, seed), (0.0, None))
        if trained is not None and (trained.kind != 1 or upto >= seconds):
            return trained if trained.kind != 0 or trained.value <= seconds else _Outcome(1, math.inf)
        self._runs -= 1
        rate = self._rate(exponent)
        optimizer = self._optimizer if rate is None else replace(self._optimizer, lr=rate)
        outcome = self._train(spec, optimizer, seed, seconds)
        if outcome.kind == 2:
            outcome = _Outcome(2, float(exponent))
        self._outcomes[spec, exponent, seed] = seconds, outcome
        return outcome

    def _train(self, spec: str, optimizer: Optimizer, seed: int, seconds: float) -> _Outcome:
        problem, target = self.goal.problem, self.goal.target
        strategy, exact = self.timed[spec].strategy, spec == self._exact
        cluster = self.fleet.from_round(seed, SEEDS + 1).cluster(strategy, seed=seed)
        steps = None
        if exact:  # the times of its steps are known
            workers = strategy.layout.workers
            strategy = build_candidate("uncoded", workers, 1, batch=batch_of(strategy))
            cluster = Simulated(workers, seed=seed)
            steps = max(1, min(LIMIT, round(seconds / self._pace[spec])))
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                run = train(
                    problem,
                    strategy,
                    cluster,
                    optimizer=optimizer,
                    target=target,
                    evaluate=self.goal.evaluate,
                    steps=steps,
                    seconds=None if exact else seconds,
                )
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

    def _announce(self, text: str) -> None:
        if self.tell is not None:
            self.tell(text)


def _family(spec: str) -> str:
    return spec.partition(":")[0]
