"""Plans: the strategy to run on a measured fleet, its gain, and how certain the gain is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from anyk.base import (
    AtLeastOne,
    AtLeastZero,
    BadInput,
    ByName,
    Nonnegative,
    PositiveShare,
    RunFailed,
    Spec,
    html_table,
    html_text,
    keyed_generator,
    to_plain,
    typed,
    values_of,
)
from anyk.delays import DelayModel, SecondsOrZero
from anyk.fleet.explanation import attribution
from anyk.fleet.explanation.explaining import at_median, explain
from anyk.fleet.explanation.sentences import Explanation
from anyk.fleet.plans.candidates import Request, ignore
from anyk.fleet.plans.judging import Choice, Judgement, gain_text, headline, in_short, interval_text, pareto
from anyk.fleet.plans.measured_fleet import MeasuredFleet, fleet_of, sample_record, slowness, typical_value
from anyk.fleet.plans.targets import Goal
from anyk.fleet.records import Record, read
from anyk.fleet.records.reading import Readable
from anyk.optimizers import split_rate
from anyk.problems import Problem, Tell, ensure_problem
from anyk.protocol import Strategy, Workers, models_trained
from anyk.runs import Evaluate, Promise, Run
from anyk.runs.api import USUAL, Limits, RecordOrigin, Today, check_limits, read_evaluate
from anyk.strategies import strategy as build_strategy

WorkersGiven = int | tuple[int, int] | Workers | None
LEAST_ROUNDS = 5  # of a record, in which all workers were measured
_PROBED = 30  # rounds
_REPAIRED = 3  # workers at most
_MODEST = 0.25  # largest load by default if the time of computing is not known
_PROMISED = (  # what a promise has in common with its plan
    "workers",
    "horizon",
    "verdict",
    "evidence",
    "why",
    "slopes",
    "max_load",
    "memory",
    "assumptions",
    "record",
    "target",
    "optimizer",
)
_PROMISED_OF_THE_BEST = ("learning_rate", "seconds_per_step", "gain", "arrival", "steps_to_target")
_FAR = 1000.0  # factor between the ends of an interval from which on the upper end is not printed


@dataclass(frozen=True)
class Advice:
    """A change of the fleet, and the share of a step's time that it saves ``today``'s strategy and the ``best`` one.

    Each is compared with itself on the fleet without the change. None: the strategy does not exist for the changed
    number of workers.
    """

    what: str
    today: float | None
    best: float | None


def advice(
    fleet: MeasuredFleet,
    names: Sequence[int | str],
    costliest: int,
    named: Iterable[int],
    specs: tuple[str, str],
    workers: Workers,
    seed: int,
) -> tuple[Advice, ...]:
    """Return the savings by changes of the fleet under today's and the best strategy, ``specs``; workers by column."""
    seconds = {spec: fleet.alone(spec, workers) for spec in specs}

    def gain(changed: MeasuredFleet, spec: str) -> float | None:
        try:
            return 1.0 - changed.alone(spec, workers) / seconds[spec]
        except (BadInput, RunFailed):
            return None

    changes = [(f"worker {names[costliest]} left out", fleet.without([costliest]))] if len(names) > 2 else []
    changes += [(f"worker {names[i]} repaired", repaired(fleet, i)) for i in list(named)[:_REPAIRED]]
    changes += [(f"{count} spare worker{'s' * (count > 1)}", with_spares(fleet, count, seed)) for count in (1, 2)]
    return tuple(Advice(what, gain(changed, specs[0]), gain(changed, specs[1])) for what, changed in changes)


def repaired(fleet: MeasuredFleet, column: int) -> MeasuredFleet:
    """Return the fleet with one worker at the median of the others in the rounds in which it is slower."""
    slopes = fleet.slopes.copy()
    slopes[column] = min(slopes[column], typical_value(np.delete(slopes, column)))
    return replace(fleet, times=at_median(fleet.times, [column]), slope=slopes)


def with_spares(fleet: MeasuredFleet, count: int, seed: int) -> MeasuredFleet:
    """Return the fleet with further workers of typical speed, delayed in each round like another, sampled by key."""
    rounds, workers = fleet.times.shape
    places = keyed_generator(seed, "spares").integers(0, workers, (rounds, count))
    relative = fleet.times / slowness(fleet.times)
    times = np.hstack([fleet.times, np.take_along_axis(relative, places, axis=1)])
    censored = np.hstack([fleet.censored, np.take_along_axis(fleet.censored, places, axis=1)])
    slopes = np.append(fleet.slopes, [typical_value(fleet.slopes)] * count)
    return MeasuredFleet(times=times, censored=censored, load=fleet.load, slope=slopes, driver=fleet.driver)


def probe(today: Choice, choices: Iterable[Choice]) -> str | None:
    """Return the run that would measure times that were cut off, and its cost; None if nothing is missing."""
    unknown = [choice for choice in choices if choice.exact and not choice.measured]
    waiting = next((choice for choice in (today, *unknown) if choice.spec == "uncoded"), None)
    if not unknown and today.measured:
        return None
    cost = ""
    if waiting is not None:
        low, high = (_PROBED * seconds for seconds in (waiting.seconds_per_step.low, waiting.seconds_per_step.high))
        longest = f"to {high:.3g} s" if high < _FAR * low else "s or far longer"
        cost = f" in {low:.3g} {longest}, where today's strategy takes"
        cost += f" {_PROBED * today.seconds_per_step.median:.3g} s" if today.measured else " as long"
    return (
        f"too many times were cut off to judge {len(unknown) + (not today.measured)} strategies; a run that waits for "
        f"all would tell: anyk train … --strategy uncoded --steps {_PROBED} --out probe{cost}, then anyk plan probe"
    )


@dataclass(frozen=True)
class FleetSummary:
    """The fleet that a plan was made for.

    ``slowest``: the five costliest workers; ``named``: the workers that cost more than chance explains; ``mean_burst``:
    the mean number of rounds that stragglers last; ``apart``: the share of the time spent waiting beyond the rounds'
    medians; ``driver``: seconds of a step besides the workers' times, None if the record does not tell.
    """

    workers: int
    rounds: int
    slowest: list[int | str]
    named: list[int | str]
    mean_burst: float
    apart: float
    driver: float | None = None


@dataclass(frozen=True)
class Plan:
    """The strategy to run, made by :func:`plan`. ``verdict`` is change or nothing, ``evidence`` enough, thin or none.

    ``candidates`` compete, the fastest first; ``others`` are not ranked, because their steps are not the exact sum or
    were not measured. ``advice``: the gains of changing the fleet itself; ``probe``: the run that would measure times
    that were cut off, if they are too many. The plan was made from ``record`` and ``fleet``. ``slopes``: seconds that
    each worker computes on the whole data. ``read_as``: what the source was read as.
    """

    verdict: Literal["change", "nothing"]
    why: str
    evidence: Literal["enough", "thin", "none"]
    horizon: int
    assumptions: tuple[str, ...]
    workers: Workers
    today: Choice
    best: Choice
    candidates: tuple[Choice, ...]
    others: tuple[Choice, ...]
    advice: tuple[Advice, ...]
    probe: str | None
    record: RecordOrigin
    fleet: FleetSummary
    slopes: tuple[float, ...]
    max_load: float
    memory: float = 1.0
    metric: str | None = None
    target: float | None = None
    optimizer: str | None = None
    read_as: str = ""

    @property
    def promise(self) -> Promise:
        """The strategy to run and its promised time, for :func:`anyk.train` and :meth:`save`."""
        best, today = self.best, self.today
        return Promise(
            strategy=Spec(best.spec),
            **values_of(self, *_PROMISED),
            **values_of(best, *_PROMISED_OF_THE_BEST),
            today=Today(today.spec, today.seconds_per_step, today.arrival),
        )

    def save(self, path: str | Path) -> None:
        """Write the :attr:`promise` as TOML; :meth:`anyk.runs.Promise.load` reads it back."""
        self.promise.save(path)

    def _repr_html_(self) -> str:
        """Return the verdict and the strategies that none beats in both time and load, with 90 % intervals, as HTML."""
        rows = []
        for choice in pareto([*self.candidates, self.today]):
            seconds = choice.arrival or choice.seconds_per_step
            rows.append([choice.spec, interval_text(seconds), gain_text(choice, self.today), f"{choice.load:.3g}"])
        advice = headline(self.verdict, self.today)
        sentence = f"{advice}: {self.why}; for a run of {self.horizon:,} steps; evidence: {self.evidence}"
        title = "seconds a step" if self.target is None else "seconds to the target"
        return html_table(["strategy", title, "gain", "load"], rows) + html_text(sentence)

    def report(self) -> dict[str, Any]:
        """Return the plan as plain values for JSON."""
        plain = to_plain(self)
        for name in ("candidates", "others"):
            plain[name] = [_plain(choice) for choice in vars(self)[name]]
        compared_by = "seconds_per_step" if self.target is None else "seconds_to_target"
        plain |= {"today": _plain(self.today), "best": _plain(self.best)}
        return {"version": 1, "interval": "prediction", "compared_by": compared_by, **plain}


def _plain(choice: Choice) -> ByName:
    plain = {**to_plain(choice), "seconds_to_target": choice.seconds_to_target}
    return plain if math.isfinite(choice.gain.median) else plain | {"gain": None}


@typed
def plan(
    source: Readable | DelayModel,
    *,
    workers: int | tuple[int, int] | Workers | None = None,
    partitions: int | None = None,
    today: str | None = None,
    slope: SecondsOrZero | None = None,
    other: Readable | None = None,
    steps: AtLeastOne | None = None,
    max_load: PositiveShare | None = None,
    memory: PositiveShare = 1.0,
    models: AtLeastOne = 1,
    everything: bool = False,
    seed: AtLeastZero = 0,
    resamples: Annotated[int, msgspec.Meta(ge=20)] = 400,
    round: str | None = None,
    worker: str | None = None,
    seconds: str | None = None,
    unit: str | None = None,
    problem: Problem | None = None,
    target: float | None = None,
    optimizer: str | None = None,
    lr: float | str | None = None,
    runs: Annotated[int, msgspec.Meta(ge=30)] = 600,
    evaluate: Evaluate | str | None = USUAL,
    batch: AtLeastZero | None = None,
    exact: bool = False,
    max_staleness: Nonnegative | None = None,
    tell: Tell | None = None,
    among: Callable[[Strategy], bool] | None = None,
) -> Plan:
    """Return the strategy to run on a fleet, and its gain over today's strategy.

    Strategies compete if their steps are the exact sum, by the seconds of a step. With a ``problem`` and a ``target``
    of its metric all compete, by the seconds to the target: they are trained with real gradients on the virtual clock,
    on the measured rounds, each with a learning rate of its own.

    ``source``: a source of :func:`anyk.fleet.read`, whose columns ``round``, ``worker``, ``seconds`` and ``unit`` may
    be named, or a delay model of ``workers`` workers. ``workers`` may be a range of which all workers were
    measured, and ``partitions`` as for :func:`anyk.train`: only strategies that can follow it compete (default: those
    of the run if the source is a run). ``today``: the strategy in
    use (default: the strategy of the run if the source is a run, else ``uncoded``). A task's seconds are a fixed part
    and ``slope`` (seconds for the whole data) times its load. The slope is given, or fitted to a second record,
    ``other``, at another load; else all of a task's time is assumed to be computing, and the plan also reports the
    result if half of it is. ``steps`` of the run that the promise is for (default: the rounds of the record, or
    today's steps to the target). ``max_load`` and ``memory``: the largest share of the data that a worker may compute
    in a step, and store (default: no limit; for a delay model whose tasks take no time to compute, a quarter or two
    even shares, whichever is more). ``models``: trained simultaneously, a step each in turn. ``everything``: include
    strategies with inexact steps; without a target they are not ranked. ``among`` returns whether a strategy may be
    chosen. ``tell`` receives the spec of each strategy that has to be simulated.

    With a target: ``optimizer`` (a spec), ``lr``, from which learning rates are searched, and ``evaluate`` as for
    :func:`anyk.train`; ``runs``: at most. ``batch``: the samples of a step, all workers together (default: today's; 0:
    all of the data). ``exact``: only strategies with exact steps; ``max_staleness``: the largest mean staleness.

    Raises :class:`~anyk.BadInput` for a record with fewer than 5 rounds in which all workers were measured, and
    for a target that no strategy reaches.

    >>> import numpy as np
    >>> times = np.tile(1.0 + 9.0 * np.eye(12), (5, 1))
    >>> best = plan(Record(times, load=1 / 12), slope=0.0)
    >>> best.verdict, best.best.spec, round(best.best.gain.median, 3)
    ('change', 'frc:stragglers=1', 0.9)
    """
    goal = _goal(problem=problem, target=target, optimizer=optimizer, lr=lr, runs=runs, evaluate=evaluate)
    reading: ByName = {"round": round, "worker": worker, "seconds": seconds, "unit": unit}
    record = _complete_record(source, workers, seed, reading)
    fleet = _workers_of(record, workers, partitions)
    if today is None:
        today = record.strategy or "uncoded"
        models = models if models > 1 else models_trained(build_strategy(today, workers=fleet))
    if goal is not None and models > 1:
        raise BadInput(f"a plan for a target is for one model, got models={models} (today's strategy is '{today}')")
    inexact = (everything or goal is not None) and not exact
    unlimited = max_load is None
    if max_load is None:
        max_load = _usual_load(source, len(record.workers), slope)
    request = Request(
        today=today,
        workers=fleet,
        max_load=max_load,
        memory=memory,
        models=models,
        steps=steps,
        resamples=resamples,
        seed=seed,
        inexact=inexact,
        tell=tell or ignore,
        among=among,
        batch=batch,
        max_staleness=max_staleness,
    )
    answer = _answer(
        request=request, goal=goal, record=record, source=source, other=other, slope=slope, reading=reading
    )
    if not isinstance(source, DelayModel):
        return answer
    limit = (_without_computing(source, max_load),) if unlimited and max_load < 1.0 else ()
    return replace(answer, assumptions=(*answer.assumptions, *_without_mean(source, record), *limit))


def _usual_load(source: Readable | DelayModel, workers: int, slope: float | None) -> float:
    """Return the largest load that a plan allows: below 1 for a delay model, unless the time of computing is given."""
    if not isinstance(source, DelayModel) or slope:
        return 1.0
    return min(max(_MODEST, 2.0 / workers), (workers - 1.0) / workers)


def _without_mean(law: DelayModel, record: Record) -> tuple[str, ...]:
    """Return a sentence about a delay model without a mean."""
    if not any(law.expected(i) == math.inf for i in range(len(record.workers))):
        return ()
    return (
        f"the mean of '{law.spec}' does not exist: the longest of the {len(record.rounds)} sampled rounds decides the "
        "seconds of strategies that wait for every worker, and a longer one will come",
    )


def _without_computing(law: DelayModel, max_load: float) -> str:
    return (
        f"no worker computes more than {max_load:.3g} of the data (--max-load): '{law.spec}' tells how late workers "
        "are, but not how long they compute; if computing took no time, each could compute everything, and one would "
        "be enough; give the time (--slope)"
    )


def _complete_record(source: Readable | DelayModel, workers: WorkersGiven, seed: int, reading: ByName) -> Record:
    """Return the record of a source; raise BadInput if no plan can be made from it."""
    if isinstance(source, DelayModel):
        record = sample_record(source, None if workers is None else Workers.of(workers).most, seed)
    else:
        record = read(source, **reading)
    rounds, n = record.seconds.shape
    if rounds < LEAST_ROUNDS or n < 2:
        raise BadInput(f"a plan takes {LEAST_ROUNDS} rounds or more of 2 workers or more; got {rounds} x {n}")
    fewest = int(record.rounds_measured.argmin())
    if record.rounds_measured[fewest] < LEAST_ROUNDS:
        raise BadInput(
            f"a plan takes {LEAST_ROUNDS} times or more of every worker; worker {record.workers[fewest]} has "
            f"{record.rounds_measured[fewest]}; leave such workers out, or measure longer"
        )
    if np.asarray(record.censored)[record.measured].all():
        raise BadInput(
            "every time of the record is cut off, so nothing is known of how long tasks take; record a run "
            "that waits for all: anyk train … --strategy uncoded"
        )
    return record


def _workers_of(record: Record, workers: WorkersGiven, partitions: int | None) -> Workers:
    """Return the workers to plan for: those given, else those of the run that was recorded, else those measured."""
    measured = len(record.workers)
    planned = Workers.of(workers or record.fleet or measured, partitions)
    if planned.most != measured:
        raise BadInput(f"a record knows its workers: it has {measured}, got {planned}")
    return planned


def _answer(
    request: Request,
    goal: Goal | None,
    record: Record,
    source: Readable | DelayModel,
    other: Readable | None,
    slope: float | None,
    reading: ByName,
) -> Plan:
    """Return the plan for a request, made from the record of a source; ``other`` and ``slope``: see :func:`plan`."""
    fleet, assumptions, guessed = fleet_of(record, other, slope, reading["unit"])
    causes = explain(record, today=build_strategy(request.today, workers=request.workers), seed=request.seed)
    assumptions += _drift(causes)
    judged = Judgement(fleet, request, goal)
    assumptions += judged.omitted
    if guessed and (goal is None or judged.today.exact):
        half = Judgement(replace(fleet, slope=fleet.slopes / 2), replace(request, inexact=False, tell=ignore), None)
        among_all = "" if goal is None else ", among exact steps"
        assumptions.append(f"if only half of that time is computing{among_all}: {in_short(half)}")
    verdict, reason, evidence = judged.verdict()
    costliest_first = [record.workers.index(cost.worker) for cost in causes.workers]
    named = [column for column in costliest_first if record.workers[column] in causes.named]
    return Plan(
        verdict=verdict,
        why=reason,
        evidence=evidence,
        horizon=judged.horizon,
        assumptions=tuple(assumptions),
        workers=request.workers,
        today=judged.today,
        best=judged.best,
        candidates=judged.candidates,
        others=judged.others,
        advice=advice(
            fleet=fleet,
            names=record.workers,
            costliest=costliest_first[0],
            named=named or costliest_first[:1],
            specs=(judged.today.spec, judged.best.spec),
            workers=request.workers,
            seed=request.seed,
        ),
        probe=probe(judged.today, judged.others),
        record=RecordOrigin(
            digest=record.digest,
            load=fleet.load,
            block=judged.block,
            censored=record.cut,
            seed=request.seed,
            **_origin(source, reading),
        ),
        fleet=FleetSummary(
            workers=len(record.workers),
            rounds=len(fleet.times),
            slowest=[cost.worker for cost in causes.workers[:5]],
            named=list(causes.named),
            mean_burst=causes.mean_burst,
            apart=causes.apart,
            driver=record.driver,
        ),
        slopes=tuple(fleet.slopes.tolist()),
        max_load=request.max_load,
        memory=request.memory,
        metric=None if goal is None else goal.problem.metric,
        target=None if goal is None else goal.target,
        optimizer=None if goal is None else goal.optimizer,
        read_as="" if isinstance(source, DelayModel) else record.summary,
    )


def _drift(causes: Explanation) -> list[str]:
    """Return an assumption about a fleet that becomes slower or faster by more than a little."""
    if not causes.drifts or 1 / attribution.DRIFT < causes.drift < attribution.DRIFT:
        return []
    change = f"the last quarter of its rounds takes {causes.drift:.2g} times as long as the first"
    return [f"the fleet will be as it was on average, though it drifts: {change}"]


def _origin(source: Readable | DelayModel, reading: ByName) -> ByName:
    """Return where a record is from, for :class:`RecordOrigin`: a path with its columns, a delay model, or neither."""
    if isinstance(source, DelayModel):
        return {"law": source.spec}
    path = source.path if isinstance(source, Run) else source if isinstance(source, str | Path) else None
    return {} if path is None else {"path": str(Path(path).expanduser().absolute()), **reading}


def _goal(
    problem: Problem | None,
    target: float | None,
    optimizer: str | None,
    lr: float | str | None,
    runs: int,
    evaluate: Evaluate | str | None,
) -> Goal | None:
    """Return the target to train to, if there is one."""
    if (problem is None) != (target is None):
        missing = "target" if target is None else "problem"
        raise BadInput(f"a plan for a target takes a problem and a target of its metric; the {missing} is missing")
    if problem is None or target is None:
        if optimizer is not None or lr is not None:
            raise BadInput("optimizer and lr are for a plan with a problem and a target")
        return None
    ensure_problem(problem)
    check_limits(problem, Limits(target=target))
    evaluation = read_evaluate(evaluate)
    if evaluation is not None and evaluation.where == "aside":
        raise BadInput(
            "a plan makes hundreds of short runs, each with its own process to evaluate; leave where=aside out"
        )
    plain, rate = (None, lr) if optimizer is None else split_rate(optimizer, lr)
    goal = Goal(problem=problem, target=target, optimizer=plain, lr=rate, runs=runs, evaluate=evaluate)
    _ = goal.start  # raises BadInput without a learning rate
    return goal
