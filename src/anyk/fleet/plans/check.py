"""Runs compared with the promises of their plans, and the causes of broken promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import BadInput, RunFailed, as_bad_input, to_plain, typed, values_of
from anyk.delays import parse as parse_delays
from anyk.fleet.explanation.sentences import seconds_text
from anyk.fleet.plans.measured_fleet import MeasuredFleet, completed, fleet_of, loads_of, sample_record
from anyk.fleet.plans.plan import plan
from anyk.fleet.records import Record, read
from anyk.problems import Tell
from anyk.runs import Promise, Run
from anyk.runs.api import Estimate, RecordOrigin, waits_of_steps, with_plugins
from anyk.strategies import strategy as build_strategy

_GRID = 2.0**30  # parts of a second to which seconds are rounded, so that sums are exact
_SAME = 1e-9  # largest difference of loads that count as equal
_WORDS = {
    "luck": "the record's rounds differ from the promise made from them",
    "delays": "its workers' times besides computing were {} than the record's",
    "load": "computing took {} than planned",
    "times": "its workers were {} than in the record",
    "anyk": "the driver's own time made it {}",
    "steps": "it took another number of steps than promised",
}


@dataclass(frozen=True)
class Figures:
    """Seconds per step, steps, and total seconds, promised or measured."""

    seconds_per_step: float
    steps: float
    seconds: float


@dataclass(frozen=True)
class Checked:
    """The result of :func:`check`.

    ``interval``: the promised interval of the total seconds. ``parts``: seconds that add up exactly to measured minus
    promised: luck, delays, load, anyk and steps, or times in place of delays and load if the run cannot separate them;
    None if the promise held, or if the difference cannot be split for the reason in ``sentence``. ``broke``: the
    largest part. ``added``: seconds besides the workers' times by the log's own stamps, to compare with the part anyk.
    ``replan``: the strategy that a plan made from the run would choose, if it is another.
    """

    promised: Figures
    interval: Estimate
    measured: Figures
    held: bool
    parts: Mapping[str, float] | None
    broke: str | None
    replan: str | None
    added: float | None
    sentence: str
    remarks: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        return dict(to_plain(self))


@typed
def check(
    run: Run | str | Path,
    *,
    record: str | Path | Record | None = None,
    again: bool = True,
    tell: Tell | None = None,
) -> Checked:
    """Compare a run with the promise of the plan that it was started with.

    The promise is the seconds to the plan's target or, if there is none or the run has not reached it, the seconds per
    step, for the steps that the run took. Outside of the interval, the difference is split: *delays* (times besides
    computing, in the record or in the run) and *load* (how computing grows with it, as planned or by the run's
    stamps), each by its mean effect over all orders, computed by simulation; *luck* is the simulation of the record
    minus the promise, *anyk* the run's time minus the simulation of its own times. ``record``: the record of the plan,
    if it has been moved. ``again``: whether to plan again from the run if the promise did not hold; ``tell`` receives
    the spec of each strategy that has to be simulated for that.

    Raises :class:`~anyk.BadInput` for a run without a plan or without steps, and for a record that is not the
    plan's.

    >>> import anyk
    >>> fleet = anyk.fleet.Record([[4, 1, 1], [1, 4, 1], [1, 1, 4]] * 4)
    >>> promise = anyk.plan(fleet, slope=0.0, resamples=50).promise
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = anyk.train(problem, promise, "simulated", delays="constant:3")
    >>> checked = check(run, record=fleet)
    >>> checked.held, checked.broke, checked.parts["delays"], sum(checked.parts.values()) == 36.0 - 12.0
    (False, 'delays', 24.0, True)
    """
    if not isinstance(run, Run):
        with Run.open(run) as opened:
            return check(opened, record=record, again=again, tell=tell)
    promise = promise_of(run)
    steps = run.jobs
    if not steps:
        raise BadInput("the run has taken no step yet; there is nothing to compare with its plan")
    expected, arrived = promise.seconds_per_step, _arrived(promise, run)
    measured = arrived or Figures(run.seconds / steps, steps, _exact(run.seconds))
    if arrived and promise.arrival and promise.steps_to_target:
        interval = promise.arrival
        promised = Figures(expected.median, promise.steps_to_target, _exact(interval.median))
    else:
        interval = Estimate(expected.median * steps, expected.low * steps, expected.high * steps)
        promised = Figures(expected.median, steps, _exact(interval.median))
    sentence = _sentence(promise, measured, interval)
    remarks = _remarks(promise, steps, arrived is not None)
    within = interval.holds(measured.seconds)
    outcome = Checked(
        promised=promised,
        interval=interval,
        measured=measured,
        held=within,
        parts=None,
        broke=None,
        replan=None,
        added=None,
        sentence=sentence,
        remarks=remarks,
    )
    if within:
        return outcome
    try:
        split = Split(promise, run, record)
        parts = split.parts(promised, measured)
    except BadInput as error:
        if record is not None:
            raise
        return replace(outcome, sentence=f"{sentence}; the cause is unknown: {error}")
    late = measured.seconds > promised.seconds
    broke = max(parts, key=lambda name: parts[name] if late else -parts[name])
    replan, advice = _plan_again(promise, split, broke, tell) if again else (None, "")
    sentence += _cause(broke, parts[broke], measured.steps) + advice
    added = None if (waited := waits_of_steps(run.log)) is None else run.seconds - waited
    return replace(outcome, parts=parts, broke=broke, replan=replan, added=added, sentence=sentence)


def promise_of(run: Run) -> Promise:
    """Return the promise that a run was started with; raise :class:`~anyk.BadInput` if there is none."""
    promise = run.config.plan
    if promise is None:
        name = "the run" if run.path is None else f"the run '{run.path}'"
        raise BadInput(f"{name} was not started with a plan; start one with: anyk train --plan plan.toml")
    return promise


def _exact(seconds: float) -> float:
    return round(seconds * _GRID) / _GRID


def _arrived(promise: Promise, run: Run) -> Figures | None:
    """Return the figures of the run to the promised target; None if it has another target or has not reached it."""
    if promise.target is None or run.config.target != promise.target or run.time_to_target is None:
        return None
    seconds, history = run.time_to_target, run.history
    steps = int(history["step"][np.searchsorted(history["seconds"], seconds)]) - run.begun
    return Figures(seconds / max(1, steps), steps, _exact(seconds))


def _remarks(promise: Promise, steps: int, arrived: bool) -> tuple[str, ...]:
    if arrived:
        return ()
    if promise.target is not None:
        return (f"the run has not reached the target of {promise.target:g}: seconds of a step are compared",)
    if steps == promise.horizon:
        return ()
    return (f"the interval was made for a run of {promise.horizon} steps; this one has taken {steps}",)


# ------------------------------------------------------------------------------------------- the split


class Split:
    """The strategy on the fleet of the plan and on the fleet of the run."""

    def __init__(self, promise: Promise, run: Run, record: str | Path | Record | None) -> None:
        with with_plugins(run.config, f"the run '{run.path}'"):
            self.strategy = build_strategy(promise.strategy, workers=promise.workers)
        planned = _find_record(promise.record, promise.workers.most, record)
        filled, driver = completed(planned), planned.driver or 0.0
        slopes = np.array(promise.slopes)
        self.planned = MeasuredFleet(
            times=filled.times, censored=filled.censored, load=promise.record.load, slope=slopes, driver=driver
        )
        self.record = read(run)
        self.own, self.apart = self._own()

    def _own(self) -> tuple[MeasuredFleet, bool]:
        """Return the run's own fleet, and whether its delays and its load can be separated.

        It has the planned driver's time, so that a difference of drivers is no difference of delays.
        """
        fleet, apart = self._measured()
        return replace(fleet, driver=self.planned.driver), apart

    def _measured(self) -> tuple[MeasuredFleet, bool]:
        if "compute" in self.record.parts:
            fleet, _, guessed = fleet_of(self.record)
            if not guessed:
                return fleet, True
        fleet, _, _ = fleet_of(self.record, slope=0.0)
        # with equal loads the growth of times does not matter
        same = np.abs(loads_of(self.strategy) - self.planned.load).max() <= _SAME
        return (fleet.growing_as(self.planned) if same else fleet), bool(same)

    def parts(self, promised: Figures, measured: Figures) -> dict[str, float]:
        """Return the parts of measured minus promised, as :func:`check` defines them."""

        def total(changed: dict[str, bool]) -> float:
            steps = measured.steps if changed["steps"] else promised.steps
            delays = self.own if changed["times" if "times" in changed else "delays"] else self.planned
            load = delays if "times" in changed else self.own if changed["load"] else self.planned
            fleet = delays if load is delays else delays.growing_as(load)
            return self._pace(fleet) * steps

        names = ("delays", "load", "steps") if self.apart else ("times", "steps")
        start = total(dict.fromkeys(names, False))
        parts = {"luck": _exact(start - promised.seconds)}
        parts |= {name: _exact(value) for name, value in mean_effects(total, names).items()}
        parts["anyk"] = measured.seconds - promised.seconds - sum(parts.values())
        return parts

    def _pace(self, fleet: MeasuredFleet) -> float:
        with as_bad_input(f"'{self.strategy.spec}' cannot be simulated on the measured rounds", RunFailed):
            return float(fleet.durations(self.strategy).mean())

    def again(self, broke: str) -> Record:
        """Return the run's record to plan again from; the plan's if the run's is censored and only its load differs."""
        if broke != "load" or not self.record.cut:
            return self.record
        fleet = self.planned.growing_as(self.own)
        computing = np.broadcast_to(fleet.load * fleet.slopes, fleet.times.shape)
        return Record(fleet.times, fleet.censored, load=fleet.load, parts={"compute": computing})


def _find_record(source: RecordOrigin, workers: int, instead: str | Path | Record | None) -> Record:
    """Return the record that a plan was made from; raise BadInput if it is missing or has changed."""
    columns = {} if isinstance(instead, Record) else values_of(source, "round", "worker", "seconds")
    if instead is not None:
        record = read(instead, unit=source.unit, **columns)
    elif source.law is not None:
        record = sample_record(parse_delays(source.law), workers, source.seed)
    elif source.path is None:
        raise BadInput("the plan was made from a record in memory; give that record")
    elif not Path(source.path).exists():
        raise BadInput(f"the record '{source.path}' that the plan was made from is missing; give its present place")
    else:
        record = read(source.path, unit=source.unit, **columns)
    if record.digest != source.digest:
        name = "the record given" if instead is not None else f"'{source.path or source.law}'"
        raise BadInput(f"{name} is not the record that the plan was made from: its times have another digest")
    return record


def mean_effects(total: Callable[[dict[str, bool]], float], names: tuple[str, ...]) -> dict[str, float]:
    """Return the mean effect of each of some changes on a total, over all orders of the changes.

    ``total`` is called with the changes that have been applied. The effects add up to the effect of all changes.

    >>> mean_effects(lambda applied: (2 if applied["a"] else 1) * (5 if applied["b"] else 1), ("a", "b"))
    {'a': 3.0, 'b': 6.0}
    """

    @cache
    def total_of(applied: frozenset[str]) -> float:
        return total({name: name in applied for name in names})

    effects = dict.fromkeys(names, 0.0)
    orders = list(permutations(names))
    for order in orders:
        for count, name in enumerate(order):
            before = frozenset(order[:count])
            effects[name] += (total_of(before | {name}) - total_of(before)) / len(orders)
    return effects


# ------------------------------------------------------------------------------------------- in words


def _sentence(promise: Promise, measured: Figures, interval: Estimate) -> str:
    if promise.arrival is interval:
        what, took, expected = "the target", measured.seconds, interval
    else:
        what, took, expected = "a step", measured.seconds_per_step, promise.seconds_per_step
    promised = f"{seconds_text(expected.median)} s ({seconds_text(expected.low)} to {seconds_text(expected.high)})"
    verdict = "held" if interval.holds(measured.seconds) else "not held"
    return f"{verdict}: {what} took {seconds_text(took)} s, promised were {promised}"


def _cause(name: str, seconds: float, steps: float) -> str:
    """Return the largest part of the difference in words."""
    slower = {"delays": ("longer", "shorter"), "load": ("longer", "less")}.get(name, ("slower", "faster"))
    cause = _WORDS[name].format(slower[0] if seconds > 0 else slower[1])
    return f"; above all, {cause} ({seconds / steps:+.3g} s a step)"


def _plan_again(promise: Promise, split: Split, broke: str, tell: Tell | None) -> tuple[str | None, str]:
    """Return the strategy that a plan would choose now, if it is another, and a clause about it."""
    if promise.target is not None:
        return None, "; to plan again, give the problem: anyk plan … --target"
    record = split.again(broke)
    try:
        new = plan(
            record,
            today=promise.strategy,
            workers=promise.workers,
            max_load=promise.max_load,
            memory=promise.memory,
            steps=promise.horizon,
            tell=tell,
        )
    except BadInput as error:
        return None, f"; it cannot be planned for again ({error})"
    if new.verdict == "change":
        return new.best.spec, f"; the plan would now be '{new.best.spec}'"
    cut = ", as far as a log shows in which slow workers were cut off" if record.cut else ""
    return None, f"; the plan would be the same now{cut}"
