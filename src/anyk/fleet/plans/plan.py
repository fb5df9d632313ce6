"""What to run on a measured fleet, what that gains, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyk import html
from anyk.delays import DelayModel
from anyk.errors import BadInput
from anyk.fleet.explanation import attribution
from anyk.fleet.explanation.explaining import explain
from anyk.fleet.plans.advice import Advice, advice, probe
from anyk.fleet.plans.judging import Asked, Choice, Judgement, headline, in_short, pareto, specs_for
from anyk.fleet.plans.measured import Fleet, drawn, fleet_of
from anyk.fleet.plans.origins import origin
from anyk.fleet.plans.targets import Goal
from anyk.fleet.records import Record, read
from anyk.plain import to_plain
from anyk.problems.base import Problem, ensure_problem
from anyk.protocol import Strategy, models_trained
from anyk.runs import Promise, Run
from anyk.runs.evaluation.settings import USUAL, Evaluate
from anyk.runs.folder.promise import Estimate, Source, Today
from anyk.strategies import strategy as build_strategy

__all__ = ["Choice", "Estimate", "Fleet", "Plan", "pareto", "plan", "specs_for"]


@dataclass(frozen=True)
class Plan:
    """What to run: :func:`plan` makes it. ``verdict`` is change or nothing, ``evidence`` enough, thin or none.

    ``candidates`` compete, the fastest first; ``others`` make steps that are not the exact sum or not measured, and are
    not ranked. ``advice``: what changes of the fleet itself would give; ``probe``: where too many times were cut off,
    the run that would tell. ``slopes``: seconds that each worker computes on the whole data; ``record`` and ``fleet``:
    what the plan was made from.
    """

    verdict: Literal["change", "nothing"]
    why: str
    evidence: Literal["enough", "thin", "none"]
    horizon: int
    assumptions: tuple[str, ...]
    today: Choice
    best: Choice
    candidates: tuple[Choice, ...]
    others: tuple[Choice, ...]
    advice: tuple[Advice, ...]
    probe: str | None
    record: dict[str, Any]
    fleet: dict[str, Any]
    slopes: tuple[float, ...]
    max_load: float
    memory: float = 1.0
    metric: str | None = None
    target: float | None = None
    optimizer: str | None = None

    @property
    def promise(self) -> Promise:
        """The strategy to run and its promised time, for :func:`anyk.train` and :meth:`save`."""
        best, today = self.best, self.today
        return Promise(
            strategy=best.spec,
            workers=self.fleet["workers"],
            learning_rate=best.learning_rate,
            horizon=self.horizon,
            verdict=self.verdict,
            evidence=self.evidence,
            why=self.why,
            slopes=self.slopes,
            max_load=self.max_load,
            memory=self.memory,
            assumptions=self.assumptions,
            seconds_per_step=best.seconds_per_step,
            gain=best.gain,
            today=Today(today.spec, today.seconds_per_step, today.arrival),
            record=Source(**self.record),
            target=self.target,
            optimizer=self.optimizer,
            arrival=best.arrival,
            steps_to_target=best.steps_to_target,
        )

    def save(self, path: str | Path) -> None:
        """Write the :attr:`promise` as TOML; :meth:`anyk.runs.Promise.load` reads it back."""
        self.promise.save(path)

    def _repr_html_(self) -> str:
        """For notebooks: the verdict and, with 90 % intervals, what none other beats in both time and load."""
        rows = []
        for one in pareto([*self.candidates, self.today]):
            seconds, gain = one.arrival or one.seconds_per_step, one.gain
            better = f"{100 * gain.median:.0f} % ({100 * gain.low:.0f} to {100 * gain.high:.0f})"
            better = better if self.today.measured else "not known"
            rows.append(
                [
                    one.spec,
                    f"{seconds.median:.3g} ({seconds.low:.3g} to {seconds.high:.3g})",
                    "today's" if one.spec == self.today.spec else better,
                    f"{one.load:.3g}",
                ]
            )
        advice = headline(self.verdict, self.today)
        text = f"{advice}: {self.why}; for a run of {self.horizon:,} steps; evidence: {self.evidence}"
        what = "seconds a step" if self.target is None else "seconds to the target"
        return html.table(["strategy", what, "gain", "load"], rows) + html.text(text)

    def report(self) -> dict[str, Any]:
        """All of it as plain values for JSON."""
        plain = to_plain(self)
        plain["today"], plain["best"] = _plain(self.today), _plain(self.best)
        for name in ("candidates", "others"):
            plain[name] = [_plain(one) for one in getattr(self, name)]
        compared_by = "seconds_per_step" if self.target is None else "seconds_to_target"
        return {"version": 1, "interval": "prediction", "compared_by": compared_by, **plain}


def _plain(choice: Choice) -> dict[str, Any]:
    plain = {**to_plain(choice), "seconds_to_target": choice.seconds_to_target}
    return plain if math.isfinite(choice.gain.median) else plain | {"gain": None}


def plan(
    source: str | Path | Run | Record | DelayModel,
    *,
    workers: int | None = None,
    today: str | None = None,
    slope: float | None = None,
    other: str | Path | Run | Record | None = None,
    steps: int | None = None,
    max_load: float = 1.0,
    memory: float = 1.0,
    models: int = 1,
    everything: bool = False,
    seed: int = 0,
    resamples: int = 400,
    unit: str | None = None,
    problem: Problem | None = None,
    target: float | None = None,
    optimizer: str | None = None,
    lr: float | str | None = None,
    runs: int = 600,
    evaluate: Evaluate | str | None = USUAL,
    batch: int | None = None,
    exact: bool = False,
    max_staleness: float | None = None,
    tell: Callable[[str], None] | None = None,
    among: Callable[[Strategy], bool] | None = None,
) -> Plan:
    """Which strategy to run on a fleet, and what that gains.

    Strategies compete whose steps are worth the same: those whose steps are the exact sum. With a ``problem`` and a
    ``target`` of its metric all do, by the seconds that they take to it: they are trained with real gradients on the
    virtual clock, on the measured rounds, each with a learning rate of its own.

    ``source``: what :func:`anyk.fleet.read` reads, or a delay law (then ``workers`` says how many). ``today``: the
    strategy in use; left out, that of the run if the source is a run, else ``uncoded``. A task's seconds are a fixed
    part and ``slope`` (seconds for the whole data) times its load:
    ``slope`` is given, or fitted to a second record, ``other``, at another load; else it is assumed that all of a
    task's time is computing, and the plan says what follows if half of it is. ``steps``: of the run that the promise is
    for; left out, as many as the record has rounds or as today's strategy takes to the target. ``max_load``: the
    largest share of the data that a worker may compute in a step, ``memory``: the largest that it may hold.
    ``models``: how many are trained at once, a step each in turn. ``everything``: look also at strategies whose steps
    are not the exact sum; without a target they are not ranked.
    ``among``: whether a strategy may be chosen. ``tell`` hears of each strategy that has to be simulated.

    With a target: ``optimizer`` (a spec) and ``lr``, where learning rates are looked for, as for :func:`anyk.train`;
    ``runs``: so many at most; ``evaluate``: as for :func:`anyk.train`. ``batch``: the samples of a step, all workers
    together (left out, as today's has; 0: all of the data). ``exact``: only strategies whose steps are the exact sum;
    ``max_staleness``: only those whose messages are no staler, on average.

    Raises :class:`~anyk.errors.BadInput` for a record without rounds in which all workers were measured, or fewer than
    5 of them, and for a target that no strategy comes to.

    >>> import numpy as np
    >>> times = np.ones((60, 12))
    >>> times[np.arange(60), np.arange(60) % 12] = 10.0
    >>> found = plan(Record(times, load=1 / 12), slope=0.0)
    >>> found.verdict, found.best.spec, round(found.best.gain.median, 3)
    ('change', 'frc:stragglers=1', 0.9)
    """
    if not 0.0 < max_load <= 1.0:
        raise BadInput(f"max_load must be above 0 and at most 1 (all of the data), got {max_load:g}")
    if not 0.0 < memory <= 1.0:
        raise BadInput(f"memory must be above 0 and at most 1 (all of the data at each worker), got {memory:g}")
    if models < 1:
        raise BadInput(f"models must be at least 1, got {models}")
    if resamples < 20:
        raise BadInput(f"resamples must be at least 20, got {resamples}")
    goal = _goal(problem, target, optimizer, lr, runs, evaluate, models)
    if batch is not None and batch < 0:
        raise BadInput(f"batch must be at least 0 samples a step (0: all of the data), got {batch}")
    if max_staleness is not None and not max_staleness >= 0:
        raise BadInput(f"max_staleness must be at least 0 versions, got {max_staleness:g}")
    record = drawn(source, workers, seed) if isinstance(source, DelayModel) else read(source, unit=unit)
    rounds, n = record.table.shape
    if today is None:
        today = record.strategy or "uncoded"
        models = models if models > 1 else models_trained(build_strategy(today, workers=n))
    if rounds < 5 or n < 2:
        raise BadInput(
            f"a plan takes 5 rounds or more in which all of 2 workers or more were measured; got {rounds} x {n}"
        )
    if np.asarray(record.censored)[record.known].all():
        raise BadInput(
            "every time of the record is cut off, so nothing is known of how long tasks take; record a run "
            "that waits for all: anyk train … --strategy uncoded"
        )
    if steps is not None and steps < 1:
        raise BadInput(f"steps must be at least 1, got {steps}")
    fleet, assumptions, guessed = fleet_of(record, other, slope, unit)
    found = explain(record, today=today, seed=seed)
    if found.drifts and not 1 / attribution.DRIFT < found.drift < attribution.DRIFT:
        change = f"the last quarter of its rounds takes {found.drift:.2g} times as long as the first"
        assumptions.append(f"the fleet will be as it was on average, though it drifts: {change}")
    burst = attribution.passing_burst(attribution.late(fleet.times))
    asked = Asked(
        today,
        max_load,
        memory,
        models,
        steps,
        resamples,
        burst,
        seed,
        everything,
        tell,
        among,
        goal,
        batch,
        exact,
        max_staleness,
    )
    judged = Judgement(fleet, asked)
    verdict, why, evidence = judged.verdict()
    assumptions += judged.left_out
    if guessed and (goal is None or judged.today.exact):
        half = Judgement(replace(fleet, slope=fleet.slopes / 2), replace(asked, everything=False, tell=None, goal=None))
        among_all = "" if goal is None else ", among exact steps"
        assumptions.append(f"if only half of that time is computing{among_all}: {in_short(half)}")
    places = [record.workers.index(one.worker) for one in found.workers]
    named = [place for place in places if record.workers[place] in found.named]
    specs = judged.today.spec, judged.best.spec
    return Plan(
        verdict,
        why,
        evidence,
        judged.horizon,
        tuple(assumptions),
        judged.today,
        judged.best,
        judged.candidates,
        judged.others,
        advice(fleet, record.workers, places[0], named or places[:1], specs, seed),
        probe(judged.today, judged.others),
        {
            "digest": record.digest,
            "censored": record.cut,
            "block": judged.block,
            "load": fleet.load,
            "seed": seed,
            **origin(source, unit),
        },
        {
            "workers": n,
            "rounds": rounds,
            "slowest": [one.worker for one in found.workers[:5]],
            "named": list(found.named),
            "mean_burst": found.mean_burst,
            "apart": found.apart,
        },
        tuple(fleet.slopes.tolist()),
        max_load,
        memory,
        *((None, None, None) if goal is None else (goal.problem.metric, goal.target, goal.optimizer)),
    )


def _goal(
    problem: Problem | None,
    target: float | None,
    optimizer: str | None,
    lr: float | str | None,
    runs: int,
    evaluate: Evaluate | str | None,
    models: int,
) -> Goal | None:
    """What to train to, if anything."""
    if (problem is None) != (target is None):
        missing = "target" if target is None else "problem"
        raise BadInput(f"a plan for a target takes a problem and a target of its metric; the {missing} is missing")
    if problem is None or target is None:
        if optimizer is not None or lr is not None:
            raise BadInput("optimizer and lr are for a plan with a problem and a target")
        return None
    if models > 1:
        raise BadInput(f"a plan for a target is for one model, got models={models}")
    ensure_problem(problem)
    goal = Goal(problem, target, optimizer, lr, runs, evaluate)
    goal.check()
    return goal
