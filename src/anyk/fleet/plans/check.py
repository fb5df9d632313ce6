"""Whether a run kept what its plan promised and, if not, which part of the promise broke."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from anyk.checks import typed
from anyk.errors import BadInput, RunFailed
from anyk.fleet.explanation.sentences import seconds_text
from anyk.fleet.plans.measured import Fleet, fleet_of, loads_of
from anyk.fleet.plans.origins import found_again
from anyk.fleet.plans.plan import plan
from anyk.fleet.records import Record, read
from anyk.plain import to_plain
from anyk.runs import Promise, Run
from anyk.runs.folder.digests import with_plugins
from anyk.runs.folder.promise import Estimate
from anyk.runs.log.queries import waits_of_steps
from anyk.strategies import strategy as build_strategy

_GRID = 2.0**30  # parts of a second to which all is rounded, so that parts add up to the last bit
_SAME = 1e-9  # within which two loads are one
_WORDS = {
    "luck": "the record's rounds were not what was promised of them",
    "delays": "its workers' times besides computing were {} than the record's",
    "load": "computing took {} than the plan took it to",
    "times": "its workers were {} than in the record",
    "anyk": "what the driver adds to its workers' times made it {}",
    "steps": "it took another number of steps than promised",
}


@dataclass(frozen=True)
class Figures:
    """Seconds a step, steps, and seconds in all, promised or measured."""

    seconds_per_step: float
    steps: float
    seconds: float


@dataclass(frozen=True)
class Checked:
    """The outcome of a promise, as :func:`check` finds it.

    ``interval``: of the promised seconds in all. ``parts``: seconds that add up exactly to measured minus promised:
    luck, delays, load, anyk and steps, or times in place of delays and load where the run cannot tell them apart; None
    where the promise held, or where it cannot be split, and then ``sentence`` says why. ``broke``: the largest of them.
    ``added``: seconds that passed besides the workers' times by the log's own stamps, to hold against the part anyk.
    ``replan``: the strategy that a plan made from the run would have now, where that is another.
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
        """All of it as plain values for JSON."""
        plain: dict[str, Any] = to_plain(self)
        return plain


@typed
def check(
    run: Run | str | Path,
    *,
    record: str | Path | Record | None = None,
    again: bool = True,
    tell: Callable[[str], None] | None = None,
) -> Checked:
    """Hold a run against the promise of the plan that it was begun with.

    Promised are the seconds to the plan's target or, where it has none or the run is not there, seconds a step, for as
    many steps as the run took. Outside of the interval, the difference is split:
    *delays* (times besides computing, of the record or of the run) and *load* (how computing grows with it, as planned
    or as the run's stamps say), each by its mean effect over all orders, found by simulation; *luck* is the record's
    own simulation minus the promise, *anyk* what the run took beyond the simulation of its own times. ``record``: the
    one that the plan was made from, where it is not found again. ``again``: whether to plan again from the run,
    where the promise did not hold; ``tell`` hears of each strategy that has to be simulated for that.

    Raises :class:`~anyk.errors.BadInput` for a run without a plan or without steps, and for a record that is not the
    plan's.

    >>> import anyk
    >>> fleet = anyk.fleet.Record([[4, 1, 1], [1, 4, 1], [1, 1, 4]] * 4)
    >>> promise = anyk.plan(fleet, slope=0.0, resamples=50).promise
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = anyk.train(problem, promise, "simulated", delays="constant:3")
    >>> found = check(run, record=fleet)
    >>> found.held, found.broke, found.parts["delays"], sum(found.parts.values()) == 36.0 - 12.0
    (False, 'delays', 24.0, True)
    """
    if not isinstance(run, Run):
        with Run.open(run) as opened:
            return check(opened, record=record, again=again, tell=tell)
    promise = promise_of(run)
    steps = run.jobs
    if not steps:
        raise BadInput("the run has taken no step yet; there is nothing to hold against its plan")
    expected = promise.seconds_per_step
    arrived = _arrived(promise, run)
    measured = arrived or Figures(run.seconds / steps, steps, _exact(run.seconds))
    if arrived and promise.arrival and promise.steps_to_target:
        interval = promise.arrival
        promised = Figures(expected.median, promise.steps_to_target, _exact(interval.median))
    else:
        interval = Estimate(expected.median * steps, expected.low * steps, expected.high * steps)
        promised = Figures(expected.median, steps, _exact(interval.median))
    held = interval.holds(measured.seconds)
    remarks = _remarks(promise, steps, arrived is not None)
    if held:
        sentence = _sentence(promise, measured, interval, None)
        return Checked(promised, interval, measured, True, None, None, None, None, sentence, remarks)
    try:
        split = Split(promise, run, record)
        parts = split.parts(promised, measured)
    except BadInput as error:
        if record is not None:
            raise
        sentence = f"{_sentence(promise, measured, interval, None)}; why cannot be told: {error}"
        return Checked(promised, interval, measured, False, None, None, None, None, sentence, remarks)
    late = measured.seconds > promised.seconds
    broke = max(parts, key=lambda name: parts[name] if late else -parts[name])
    replan, said = _another(promise, split, broke, tell) if again else (None, "")
    sentence = _sentence(promise, measured, interval, (broke, parts[broke])) + said
    added = _added(run)
    return Checked(promised, interval, measured, False, parts, broke, replan, added, sentence, remarks)


def promise_of(run: Run) -> Promise:
    """The promise that a run was begun with; raises :class:`~anyk.errors.BadInput` where nothing was."""
    kept = run.config.get("plan")
    if kept is None:
        where = "the run" if run.path is None else f"the run '{run.path}'"
        raise BadInput(f"{where} was not begun with a plan; begin one with: anyk train --plan plan.toml")
    return Promise.of_plain(kept, f"the plan of '{run.path}'")


def _exact(seconds: float) -> float:
    return round(seconds * _GRID) / _GRID


def _arrived(promise: Promise, run: Run) -> Figures | None:
    """What the run took to the promised target; None where it has another target, or none, or is not there."""
    if promise.target is None or run.config.get("target") != promise.target or run.time_to_target is None:
        return None
    seconds, history = run.time_to_target, run.history
    steps = int(history["step"][np.searchsorted(history["seconds"], seconds)]) - run.begun
    return Figures(seconds / max(1, steps), steps, _exact(seconds))


def _remarks(promise: Promise, steps: int, arrived: bool) -> tuple[str, ...]:
    if arrived:
        return ()
    if promise.target is not None:
        return (f"the run has not come to the target of {promise.target:g}: seconds of a step are compared",)
    if steps == promise.horizon:
        return ()
    return (f"the interval was made for a run of {promise.horizon} steps; this one has taken {steps}",)


# ------------------------------------------------------------------------------------------- the split


class Split:
    """The fleet that was planned for and the run's own, and the strategy on both."""

    def __init__(self, promise: Promise, run: Run, record: str | Path | Record | None) -> None:
        with with_plugins(run.config, f"the run '{run.path}'"):
            self.strategy = build_strategy(promise.strategy, workers=promise.workers)
        found = found_again(promise.record, promise.workers, record)
        whole = found.known.all(axis=1)
        censored = np.asarray(found.censored)[whole]
        self.planned = Fleet(found.table, censored, promise.record.load, np.array(promise.slopes))
        self.record = read(run)
        self.own, self.apart = self._own()

    def _own(self) -> tuple[Fleet, bool]:
        """The run's own fleet, and whether its delays and its load can be told apart."""
        if "compute" in self.record.parts:
            fleet, _, guessed = fleet_of(self.record)
            if not guessed:
                return fleet, True
        fleet, _, _ = fleet_of(self.record, slope=0.0)
        same = np.abs(loads_of(self.strategy) - self.planned.load).max() <= _SAME  # how times grow does not matter then
        return (fleet.growing_as(self.planned) if same else fleet), bool(same)

    def parts(self, promised: Figures, measured: Figures) -> dict[str, float]:
        """The parts of measured minus promised; see :func:`check`."""

        def total(own: dict[str, bool]) -> float:
            steps = measured.steps if own["steps"] else promised.steps
            delays = self.own if own["times" if "times" in own else "delays"] else self.planned
            load = delays if "times" in own else self.own if own["load"] else self.planned
            fleet = delays if load is delays else delays.growing_as(load)
            return self._pace(fleet) * steps

        names = ("delays", "load", "steps") if self.apart else ("times", "steps")
        start = total(dict.fromkeys(names, False))
        found = {"luck": _exact(start - promised.seconds)}
        found |= {name: _exact(value) for name, value in mean_effects(total, names).items()}
        found["anyk"] = measured.seconds - promised.seconds - sum(found.values())
        return found

    def _pace(self, fleet: Fleet) -> float:
        try:
            return float(fleet.durations(self.strategy).mean())
        except RunFailed as error:
            raise BadInput(f"'{self.strategy.spec}' cannot be simulated on the measured rounds ({error})") from None

    def again(self, broke: str) -> Record:
        """The record to plan again from: the run's or, where that is cut off and only its load differs, the plan's."""
        if broke != "load" or not self.record.cut:
            return self.record
        fleet = self.planned.growing_as(self.own)
        computing = np.broadcast_to(fleet.load * fleet.slopes, fleet.times.shape)
        return Record(fleet.times, fleet.censored, load=fleet.load, parts={"compute": computing})


def mean_effects(total: Callable[[dict[str, bool]], float], names: tuple[str, ...]) -> dict[str, float]:
    """What each of some changes adds to a total, on average over all orders in which they may be made.

    ``total`` says what it is for the changes that have been made. The effects add up to that of all of them.

    >>> mean_effects(lambda made: (2 if made["a"] else 1) * (5 if made["b"] else 1), ("a", "b"))
    {'a': 3.0, 'b': 6.0}
    """
    known: dict[tuple[bool, ...], float] = {}

    def at(made: dict[str, bool]) -> float:
        key = tuple(made[name] for name in names)
        if key not in known:
            known[key] = total(made)
        return known[key]

    effects = dict.fromkeys(names, 0.0)
    orders = list(permutations(names))
    for order in orders:
        made = dict.fromkeys(names, False)
        for name in order:
            before = at(made)
            made = made | {name: True}
            effects[name] += (at(made) - before) / len(orders)
    return effects


def _added(run: Run) -> float | None:
    """Seconds of the run in which none of the workers was waited for, by the log's stamps; None without rounds."""
    waited = waits_of_steps(run.log)
    return None if waited is None else run.seconds - waited


# ------------------------------------------------------------------------------------------- in words


def _sentence(promise: Promise, measured: Figures, interval: Estimate, broke: tuple[str, float] | None) -> str:
    if promise.arrival is interval:
        what, took, expected = "the target", measured.seconds, interval
    else:
        what, took, expected = "a step", measured.seconds_per_step, promise.seconds_per_step
    promised = f"{seconds_text(expected.median)} s ({seconds_text(expected.low)} to {seconds_text(expected.high)})"
    held = "held" if interval.holds(measured.seconds) else "not held"
    sentence = f"{held}: {what} took {seconds_text(took)} s, promised were {promised}"
    if broke is None:
        return sentence
    name, seconds = broke
    slower = {"delays": ("longer", "shorter"), "load": ("longer", "less")}.get(name, ("slower", "faster"))
    why = _WORDS[name].format(slower[0] if seconds > 0 else slower[1])
    return f"{sentence}; above all, {why} ({seconds / measured.steps:+.3g} s a step)"


def _another(promise: Promise, split: Split, broke: str, tell: Callable[[str], None] | None) -> tuple[str | None, str]:
    """The strategy that a plan would have now, where that is another one, and a sentence about it."""
    if promise.target is not None:
        return None, "; whether the plan would be another one now takes the problem: anyk plan … --target"
    record = split.again(broke)
    try:
        found = plan(
            record,
            today=promise.strategy,
            max_load=promise.max_load,
            memory=promise.memory,
            steps=promise.horizon,
            tell=tell,
        )
    except BadInput as error:
        return None, f"; whether the plan would be another one now cannot be told ({error})"
    if found.verdict == "change":
        return found.best.spec, f"; the plan would now be '{found.best.spec}'"
    cut = ", as far as a log can tell in which slow workers were cut off" if record.cut else ""
    return None, f"; the plan would not be another one now{cut}"
