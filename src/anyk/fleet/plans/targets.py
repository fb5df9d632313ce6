"""Seconds to a target: strategies trained with real gradients on the virtual clock, each at its own learning rate."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from anyk.base import BadInput, Floats, RunFailed
from anyk.clusters import Simulated
from anyk.fleet.plans.candidates import Timed, batch_of, build_candidate, count_strategies
from anyk.fleet.plans.measured_fleet import MeasuredFleet, VectorSize
from anyk.optimizers import Optimizer, Schedule
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems import Problem, Tell
from anyk.protocol import Workers
from anyk.runs import Evaluate, train, usual_optimizer
from anyk.runs.api import LIMIT

SEEDS = 5  # number of seeds with which arrivals are measured, besides the seed with which strategies are chosen
_CONTESTANTS = 30  # largest number of contestants
_RUNS_EACH = 15  # approximate number of runs of a contestant: two searches for its learning rate, and the seeds
_FIRST_STEPS = 5  # steps of the slowest contestant in the first rung
_SLOW = 25.0  # a strategy is omitted if a step takes this many times as long as today's
_GROWTH = 3.0  # each rung lasts this many times as long as the previous rung
_PATIENCE = 2.0  # a contestant is abandoned after this many times the seconds of the first to arrive
_SEED_PATIENCE = 3.0  # with other seeds it is abandoned after this many times as long
_TODAY_PATIENCE = 20.0  # today's strategy is abandoned after this many times as long
_MOST_DOUBLINGS = 12  # largest number of times that a learning rate is doubled or halved
_REACHED, _RUNNING, _DIVERGED = 0, 1, 2  # kinds of outcome


@dataclass(frozen=True)
class Goal:
    """The goal of a plan: the ``target`` of a problem's metric, with at most ``runs`` runs.

    ``optimizer``: its spec; ``lr``: a number from which learning rates are searched (None: 1 / smoothness), or a
    schedule, which all strategies use unchanged.
    """

    problem: Problem
    target: float
    optimizer: str | None
    lr: float | str | Schedule | None
    runs: int
    evaluate: Evaluate | str | None

    @cached_property
    def start(self) -> Optimizer:
        """The initial optimiser; raises :class:`~anyk.BadInput` if no learning rate is known."""
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
    """The outcome of a run: it reached the target, was still running, or diverged.

    ``value``: the seconds to the target; the loss, or the metric with a sign such that less is better; or the exponent
    of the learning rate. Sorting puts the best outcome first.
    """

    kind: int
    value: float
    steps: int = 0


@dataclass
class Contest:
    """Successive halving (Jamieson and Talwalkar 2016) over strategies, in virtual seconds.

    All exact strategies take the same steps and are one contestant, represented by the fastest. The learning rate of
    each contestant is searched in factors of 2, in the first rung and at the end. After each rung the better half
    continues, with today's strategy and the best strategy of each family. The strategies that reach the target are then
    trained with seeds that were not used before.
    """

    fleet: MeasuredFleet
    timed: dict[str, Timed]
    goal: Goal
    today: str
    tell: Tell
    omitted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer = self.goal.start
        start = self._optimizer.rate
        self._base = float(start.at(0)) if start.at(0) == start.at(LIMIT) else None  # None: a schedule
        if self._base is None:
            self.omitted.append("every strategy used the schedule of the learning rate unchanged")
        self._pace = {spec: timed.mean for spec, timed in self.timed.items()}
        exact = [spec for spec, timed in self.timed.items() if timed.exact and timed.measured_share > 0.0]
        self._exact = min(exact, key=self._pace.__getitem__, default=None)
        self._runs = self.goal.runs
        self._outcomes: dict[tuple[str, int, int], tuple[float, _Outcome]] = {}
        self._rates = dict.fromkeys(self._pace, 0)  # exponents of learning rates

    def _contestants(self) -> list[str]:
        """Return the contestants: today's strategy, the exact strategy, and then one of each family in turn.

        Within a family, and among families, those with the most data per second are first.
        """

        def per_sample(spec: str) -> float:
            return self._pace[spec] / max(1e-9, self.timed[spec].quality.samples or 1.0)

        first = dict.fromkeys(filter(None, (self._contestant_of(self.today), self._exact)))
        longest = _SLOW * self._pace[self.today]
        others = [spec for spec in self._pace if not self.timed[spec].exact and spec not in first]
        slow = sorted({_family(spec) for spec in others if self._pace[spec] > longest})
        others = sorted((spec for spec in others if self._pace[spec] <= longest), key=per_sample)
        if slow:
            self.omitted.append(f"not trained, as a step takes over {_SLOW:g} times today's: some of {', '.join(slow)}")
        families: dict[str, list[str]] = {}
        for spec in others:
            families.setdefault(_family(spec), []).append(spec)
        turns = [spec for i in range(len(others)) for family in families.values() for spec in family[i : i + 1]]
        most = max(3, min(_CONTESTANTS, self.goal.runs // _RUNS_EACH))
        contestants = [*first, *turns]
        if len(contestants) > most:
            self.omitted.append(
                f"{count_strategies(len(contestants) - most)} not trained: {self.goal.runs} runs in all"
            )
        return contestants[:most]

    def _contestant_of(self, spec: str) -> str:
        """Return the contestant that represents a strategy."""
        return self._exact if self._exact is not None and self.timed[spec].exact else spec

    def arrivals(self) -> dict[str, Arrival]:
        """Return the arrivals of strategies at the target by spec, without abandoned strategies.

        Raises :class:`~anyk.BadInput` if none arrives, or if the initial model has reached the target.
        """
        contestants = self._contestants()
        self.tell(f"training to the target: {count_strategies(len(contestants))}, in at most {self.goal.runs} runs")
        outcomes = self._until_one_arrives(contestants)
        seconds = _PATIENCE * min(outcome.value for outcome in outcomes.values() if outcome.kind == _REACHED)
        if not seconds:
            reached = f"{self.goal.problem.metric} {self.goal.target:g}"
            raise BadInput(f"the model has {reached} before the first step; give another target")
        contestants = self._better_half(outcomes)
        self.tell(f"{count_strategies(len(contestants))} for {seconds:.3g} s, and with other seeds")
        final = {spec: self._search_rate(spec, seconds) for spec in sorted(contestants, key=outcomes.__getitem__)}
        patience = self._wait_for_today(final, seconds)
        today = self._contestant_of(self.today)
        arrived = sorted((spec for spec in contestants if final[spec].kind == _REACHED), key=final.__getitem__)
        arrivals = {spec: self._arrival(spec, _SEED_PATIENCE * seconds) for spec in arrived if spec != today}
        if final[today].kind == _REACHED:
            arrivals[today] = self._arrival(today, _SEED_PATIENCE * patience, required=True)
        else:
            arrivals[today] = self._never_arrived(today, patience)
        return self._by_strategy(arrivals)

    def _until_one_arrives(self, contestants: list[str]) -> dict[str, _Outcome]:
        """Return the outcomes of the last rung, each with the better half of the one before, until one arrives."""
        seconds = _FIRST_STEPS * max(self._pace[spec] for spec in contestants)
        outcomes = {spec: self._search_rate(spec, seconds) for spec in contestants}
        while not any(outcome.kind == _REACHED for outcome in outcomes.values()):
            too_long = seconds > LIMIT * max(self._pace[spec] for spec in contestants)
            if too_long or self._runs < len(contestants) * (SEEDS + 2):
                raise BadInput(self._failure(outcomes, seconds))
            contestants = self._better_half(outcomes)
            seconds *= _GROWTH
            self.tell(f"{count_strategies(len(contestants))} for {seconds:.3g} s")
            outcomes = {spec: self._run(spec, self._rates[spec], 0, seconds) for spec in contestants}
        return outcomes

    def _wait_for_today(self, final: dict[str, _Outcome], seconds: float) -> float:
        """Train today's strategy for longer, as gains are relative to it, and return for how long."""
        today, patience = self._contestant_of(self.today), seconds
        while final[today].kind != _REACHED and patience < _TODAY_PATIENCE * seconds:
            patience *= _GROWTH
            final[today] = self._search_rate(today, patience)
        return patience

    def _never_arrived(self, today: str, patience: float) -> Arrival:
        """Return lower bounds as the arrival of today's strategy."""
        self.omitted.append(
            f"'{self.today}' had not reached the target after {patience:.3g} s: gains are at least as stated"
        )
        steps = patience / self._pace[today]
        rate = self._learning_rate(self._rates[today])
        return Arrival(rate, np.full(SEEDS, patience), np.full(SEEDS, steps))

    def _by_strategy(self, arrivals: Mapping[str, Arrival | None]) -> dict[str, Arrival]:
        """Return the arrivals of all strategies that the contestants represent."""
        by_spec = {}
        for spec, pace in self._pace.items():
            arrival = arrivals.get(self._contestant_of(spec))
            if arrival is not None:
                by_spec[spec] = replace(arrival, seconds=arrival.steps * pace) if self.timed[spec].exact else arrival
        return by_spec

    def _better_half(self, outcomes: dict[str, _Outcome]) -> list[str]:
        """Return the better half, today's strategy, and the best of each family."""
        order = sorted(outcomes, key=outcomes.__getitem__)
        best = {_family(spec): spec for spec in reversed(order)}
        keep = {*order[: -(-len(order) // 2)], *best.values(), self._contestant_of(self.today)}
        return [spec for spec in outcomes if spec in keep]

    def _search_rate(self, spec: str, seconds: float) -> _Outcome:
        """Search the best learning rate, starting at the last rate, until the rates on both sides are worse."""
        exponent = self._rates[spec]
        best = self._run(spec, exponent, 0, seconds)
        if self._base is None:
            return best
        for step in (1, -1):
            start = exponent
            while abs(exponent + step) <= _MOST_DOUBLINGS and self._runs > SEEDS:
                other = self._run(spec, exponent + step, 0, seconds)
                if other[:2] >= best[:2]:
                    break
                best, exponent = other, exponent + step
            if exponent != start:
                break  # the rates on the other side are known to be worse
        self._rates[spec] = exponent
        return best

    def _arrival(self, spec: str, seconds: float, *, required: bool = False) -> Arrival | None:
        """Return the arrival with other seeds; None if a seed misses the target, unless it is ``required``."""
        fixed = self.timed[spec].exact and not batch_of(self.timed[spec].strategy)
        runs = [self._run(spec, self._rates[spec], seed, seconds) for seed in range(1, 2 if fixed else SEEDS + 1)]
        arrived = sum(run.kind == _REACHED for run in runs)
        if arrived < len(runs):
            reached = f"'{spec}' reached the target with {arrived} of {len(runs)} seeds"
            if not required:
                self.omitted.append(reached)
                return None
            self.omitted.append(f"{reached}; the others count as {seconds:.3g} s, a lower bound")
        times = np.array([seconds if run.kind != _REACHED else run.value for run in runs])
        steps = np.array([float(run.steps) for run in runs])
        return Arrival(self._learning_rate(self._rates[spec]), np.resize(times, SEEDS), np.resize(steps, SEEDS))

    def _failure(self, outcomes: dict[str, _Outcome], seconds: float) -> str:
        best, outcome = min(outcomes.items(), key=lambda item: item[1])
        sign = -1.0 if self.goal.problem.better == "higher" else 1.0
        reached = f"'{best}' reached {sign * outcome.value:.4g}" if outcome.kind == _RUNNING else "all diverged"
        failure = f"no strategy reached {self.goal.problem.metric} {self.goal.target:g} within {seconds:.3g} s"
        return f"{failure}; {reached}; give another target, or more runs"

    def _learning_rate(self, exponent: int) -> float | None:
        return None if self._base is None else float(f"{self._base * 2.0**exponent:.4g}")

    def _run(self, spec: str, exponent: int, seed: int, seconds: float) -> _Outcome:
        """Return the outcome of training for ``seconds``, without training again if a former run shows it."""
        trained_for, former = self._outcomes.get((spec, exponent, seed), (0.0, None))
        if former is not None and (former.kind != _RUNNING or trained_for >= seconds):
            return former if former.kind != _REACHED or former.value <= seconds else _Outcome(_RUNNING, math.inf)
        self._runs -= 1
        rate = self._learning_rate(exponent)
        optimizer = self._optimizer if rate is None else build_optimizer(self._optimizer.spec, lr=rate)
        outcome = self._train(spec, optimizer, seed, seconds)
        if outcome.kind == _DIVERGED:
            outcome = _Outcome(_DIVERGED, float(exponent))
        self._outcomes[spec, exponent, seed] = seconds, outcome
        return outcome

    def _train(self, spec: str, optimizer: Optimizer, seed: int, seconds: float) -> _Outcome:
        problem, target = self.goal.problem, self.goal.target
        strategy, exact = self.timed[spec].strategy, spec == self._exact
        cluster = self.fleet.from_round(seed, SEEDS + 1).cluster(strategy, seed=seed)
        steps = None
        if exact:  # it is trained as uncoded: the times of its steps are already known
            workers = strategy.layout.workers
            strategy = build_candidate("uncoded", Workers(most=workers), 1, batch=batch_of(strategy))
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
            return _Outcome(_DIVERGED, 0.0)
        with contextlib.closing(run):
            losses = run.history["loss"]
            value = run.loss if run.metric is None else run.metric["value"]
            grown = losses.size > 0 and not losses[-1] <= max(losses[0], 1e-300) and np.isfinite(losses[0])
            if grown or value is None or not math.isfinite(value):
                return _Outcome(_DIVERGED, 0.0)
            reached = run.time_to_target
            if reached is not None:
                return _Outcome(_REACHED, run.steps * self._pace[spec] if exact else reached, run.steps)
            if problem.better == "higher" and run.metric is not None:
                value = -value
            return _Outcome(_RUNNING, value, run.steps)


def _family(spec: str) -> str:
    return spec.partition(":")[0]
