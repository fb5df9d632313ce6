"""The runs of a training that plans for itself: how each is started, compared with its promise, and resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from anyk.base import BadInput, ByName, Spec, values_of
from anyk.fleet.plans.check import Checked, check
from anyk.fleet.plans.judging import Choice
from anyk.fleet.plans.measured_fleet import code_of
from anyk.fleet.plans.plan import LEAST_ROUNDS, Plan, plan
from anyk.fleet.records import Record, read
from anyk.problems import Tell
from anyk.protocol import Strategy, Workers, models_trained, slot_names
from anyk.runs import Promise, Run, resume, train
from anyk.runs.api import (
    RUN_FILE,
    Callback,
    Callbacks,
    Count,
    Rebuilt,
    RunInfo,
    SharedConfig,
    StepInfo,
    StopRun,
    cluster_like,
    digests_of,
    empty,
    fitted,
    locked,
    new_folder,
    read_evaluate,
    read_sealed,
    write_sealed,
)
from anyk.strategies import strategy as build_strategy

NAME = "auto.toml"
UNCODED = "uncoded"  # the strategy that waits for all workers
_RECORD = "record.npz"  # the record from which the first plan is made
_MISSES = 2  # consecutive misses, after which the fleet is planned for again
_MISSED = "the promise was missed"
_BY_FAR_MISSED = "the promise was missed by far"
_BETTER_KNOWN = "the fleet is better known now"
_ENDS = (_MISSED, _BY_FAR_MISSED, _BETTER_KNOWN)  # reasons for which a part ends and another one follows
_HORIZONS = {_MISSED: _MISSES, _BY_FAR_MISSED: 1}  # comparisons that missed the promise
_BY_FAR = 2.0  # times an end of the promised interval
_MOST_DOUBLINGS = 6  # largest number of times that the steps between two comparisons are doubled
_SETTLING = 20  # rounds in which a strategy may adapt to the fleet
_TIE = 0.01  # strategies within it are equally good
_WORTH = 0.03  # gain from which on a strategy is tried, although its gain is not certain
_DOUBTFUL = 0.05  # gain from which on all workers are waited for, to measure what was cut off


class AutoConfig(SharedConfig, frozen=True, kw_only=True):
    """The keys of ``auto.toml`` and their types."""

    models: Count
    measure: Count
    every: Count
    max_load: float
    record: bool = False  # whether it started from a record, which is stored beside it
    measuring: Spec = Spec(UNCODED)  # the strategy that measures first
    slope: float | None = None


def read_auto(folder: Path) -> AutoConfig:
    """Return the configuration of a training's folder, checked, as its author may be unknown."""
    if not (folder / NAME).is_file():
        raise BadInput(f"'{folder}' is not a folder of train_auto: it has no {NAME}; to resume a run: anyk.resume")
    return read_sealed(folder / NAME, AutoConfig, f"the training '{folder}'")


@dataclass(frozen=True)
class Part:
    """A run of :func:`anyk.train_auto`; a run that measures has no promise.

    ``plan``: the plan that the run follows, unless it was made before an interruption; ``checked``: the comparison of
    the run with its promise.
    """

    run: Run
    plan: Plan | None = None
    checked: Checked | None = None

    @property
    def promise(self) -> Promise | None:
        """The promise with which it was started."""
        return self.run.config.plan


@dataclass
class Parts:
    """The settings that all parts share, the parts that are ``done``, and the training of the next one.

    ``tell`` receives sentences for the user. ``record``: the record that the first plan is made from, if the user gave
    a record. ``places``: folders of parts that are still to be restored. ``going``: no limit has been reached.
    """

    config: AutoConfig
    rebuilt: Rebuilt
    folder: Path | None
    checkpoint_every: float
    callbacks: Callbacks
    tell: Tell
    progress: bool
    trust: bool = False
    record: Record | None = None
    done: list[Part] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    going: bool = True

    @property
    def _step(self) -> int:
        return self.done[-1].run.steps if self.done else 0

    def train(self) -> None:
        """Measure, plan and follow the plan in turn, until a limit has been reached."""
        while self.going:
            record = self._evidence()
            if record is None:
                self._measure(self.config.measuring)
                continue
            today = self.done[-1].run.config.strategy if self.done else UNCODED
            planned = self._plan(record, today)
            if planned.evidence == "none" and self.done and self.done[-1].promise is not None:
                self._measure(self.config.measuring)  # its strategy cuts off so much that it cannot be judged
                continue
            rivals = unmeasured_rivals(planned)
            if rivals and not self._waited_for_all():
                self.tell(f"at step {self._step}: '{rivals[0].spec}' may be faster, but too many times were cut off")
                self._measure(UNCODED)
                continue
            self.tell(f"from step {self._step}: '{planned.best.spec}' ({planned.verdict}: {planned.why})")
            for assumption in planned.assumptions:
                self.tell(f"assumed: {assumption}")
            self._follow(planned.promise, record, planned)

    def _plan(self, record: Record, today: str) -> Plan:
        """Return the plan from a record; it follows what is the fastest, even if the evidence is thin.

        A choice that is wrong is noticed after a few steps, and better evidence comes with them.
        """
        planned = plan(
            record,
            today=today,
            **values_of(self.config, "workers", "slope", "max_load", "models"),
            steps=self._horizon(),
            among=self._possible,
        )
        fastest = planned.candidates[0].seconds_per_step.median
        ties = [one for one in planned.candidates if one.seconds_per_step.median <= (1.0 + _TIE) * fastest]
        first = min(ties, key=lambda one: round(one.load, 9))
        if planned.verdict == "change" or not planned.today.measured or first.gain.median < _WORTH:
            return planned
        reason = f"'{first.spec}' would take {100 * first.gain.median:.0f} % less, which is not sure, but soon will be"
        return dataclasses.replace(planned, verdict="change", best=first, why=reason)

    def _possible(self, strategy: Strategy) -> bool:
        """Return whether a strategy can continue the training on its problem, and its promises were not refuted."""
        if strategy.spec in self._refuted() or not continues(strategy):
            return False
        config = self.config
        evaluate, target = read_evaluate(config.evaluate), config.limits.target
        try:
            fitted(self.rebuilt.problem, strategy, config.workers, evaluate=evaluate, target=target)
        except BadInput:
            return False
        return True

    def _refuted(self) -> set[str]:
        """Return the strategies that took far longer than promised in two parts running: plans misjudge them here."""
        followed = [part for part in self.done if part.promise is not None]
        slow = [_took_far_longer(part) for part in followed]
        return {
            part.run.config.strategy
            for (part, first), (successor, second) in pairwise(zip(followed, slow, strict=True))
            if first and second and part.run.config.strategy == successor.run.config.strategy
        }

    def _confirmed(self, record: Record, promise: Promise) -> Promise | None:
        """Return a promise from better evidence for the same strategy; None if another one should be tried.

        It is the same promise if the strategy cuts off so much that its own run tells nothing.
        """
        planned = self._plan(record, promise.strategy)
        if planned.evidence == "none":
            return promise
        other = planned.best.spec != promise.strategy or (unmeasured_rivals(planned) and not self._waited_for_all())
        return None if other else planned.promise

    def _horizon(self) -> int:
        """Return the steps after which time is compared with the next promise.

        They are twice as many for each plan that was missed although the next one chose the same strategy.
        """
        followed = [part for part in self.done if part.promise is not None]
        misses = 0
        for part, successor in pairwise(followed):
            same = part.run.config.strategy == successor.run.config.strategy
            misses = misses + 1 if same and _missed(part) else misses if same else 0
        return self.config.every << min(misses, _MOST_DOUBLINGS)

    def _evidence(self) -> Record | None:
        """Return the user's record, or the latest rounds of the last run; None if the next part has to measure.

        After a run that missed its promise, because the fleet has changed, only the rounds in which it did count.
        """
        if not self.done:
            return self.record
        last = self.done[-1]
        if not _tells(last.run.config.strategy, self.config.workers):
            return None
        try:
            record = read(last.run)
            horizons = _HORIZONS.get(_ended(last))
            if last.promise is not None and horizons is not None:
                record = latest(record, last.promise.horizon * horizons)
            elif _settling(last.run.config.strategy, self.config.workers):
                record = latest(record, len(record.rounds) - _SETTLING)
            if len(record.rounds) >= LEAST_ROUNDS:
                return record
            reason = f"all workers were there in {len(record.rounds)} rounds; a plan takes {LEAST_ROUNDS}"
        except BadInput as error:
            reason = str(error)
        self.tell(f"at step {last.run.steps} there is no plan yet: {reason}")
        return None

    def _waited_for_all(self) -> bool:
        """Return whether a run has waited for all workers since a promise was last missed."""
        uncoded = with_models(UNCODED, self.config.models)
        for part in reversed(self.done):
            if part.run.config.strategy == uncoded:
                return True
            if part.promise is not None and _missed(part):
                return False
        return self.record is not None

    # --------------------------------------------------------------------------------------- one part

    def _measure(self, strategy: str) -> None:
        """Train for the rounds that measure the fleet; a round is a step of one of the models.

        If no plan could be made from the last measurement, it takes twice as many rounds.
        """
        models = self.config.models
        strategy = with_models(strategy, models)
        measured = (part.promise is None and part.run.config.strategy == strategy for part in reversed(self.done))
        failed = sum(takewhile(bool, measured))
        upto = self._step - -(self.config.measure << failed) // models
        upto = min(upto, self.config.steps or upto)
        if not self.places:
            self.tell(f"from step {self._step}: measuring {upto - self._step} steps of '{strategy}'")
        self._add(strategy, "measure", upto, lambda run: run.steps == upto)

    def _follow(self, promise: Promise, record: Record, new_plan: Plan | None = None) -> None:
        """Train as planned, until a limit is reached, the promise is missed or thin evidence has become better."""
        settling = _SETTLING if _settling(promise.strategy, promise.workers) else 0
        watcher = _Watcher(promise, self.tell, settling, len(record.rounds), self._confirmed)
        run = self._add(
            promise,
            promise.strategy.partition(":")[0],
            self.config.steps,
            lambda run: run.summary.get("stopped") in _ENDS,
            watcher,
        )
        self.done[-1] = Part(run, new_plan, check(run, record=record, again=False) if run.jobs else None)

    def _add(
        self,
        strategy: str | Promise,
        name: str,
        upto: int | None,
        complete: Callable[[Run], bool],
        *watchers: Callback,
    ) -> Run:
        """Add a part: a new run, or the next run in the training's folder, where the last run is resumed.

        Another part follows if this one is ``complete`` and has reached no limit of the training.
        """
        earlier_folder = self.places.pop(0) if self.places else None
        config, limits, last = self.config, self.config.limits, not self.places
        options: ByName = {
            "problem": self.rebuilt.problem,
            "optimizer": self.rebuilt.optimizer,
            "steps": upto,
            "seconds": None if limits.seconds is None else limits.seconds - sum(part.run.seconds for part in self.done),
            "target": limits.target,
            "callbacks": self.callbacks.also(*watchers),
            **values_of(self, "checkpoint_every", "progress"),
        }
        if earlier_folder is None:
            run = train(
                strategy=strategy,
                workers=config.workers,
                cluster=cluster_like(self.rebuilt.cluster, config, config.seed),
                begin=self.done[-1].run if self.done else None,
                out=None if self.folder is None else self.folder / f"{len(self.done) + 1}-{name}",
                evaluate=config.evaluate,
                **options,
            )
        else:
            run = Run.open(earlier_folder)
            if last and not complete(run):
                self.tell(f"from step {run.steps}: resuming '{run.config.strategy}'")
                run.close()
                run = resume(earlier_folder, trust=self.trust, tell=self.tell, **options)
        self.done.append(Part(run))
        self.going = (not last or complete(run)) and run.time_to_target is None and run.steps != limits.steps
        return run

    # --------------------------------------------------------------------------------------- its folder

    def make_folder(self) -> None:
        """Make the training's folder, unless it has none, and store its settings and its record there."""
        if self.folder is None:
            return
        self.config = replace(self.config, digests=digests_of(self.rebuilt.problem, self.rebuilt.cluster, self.config))
        new_folder(self.folder, settings=NAME)
        if self.record is not None:
            self.record.save(self.folder / _RECORD)
            self.record = read(self.folder / _RECORD)  # as it will be read again
        write_sealed(self.folder / NAME, self.config)

    def restore(self, folder: Path) -> None:
        """Add the parts in a folder, and resume the last one to its end."""
        self.record = read(folder / _RECORD) if self.config.record else None
        self.places = _places(folder)
        while self.places:
            with Run.open(self.places[0]) as run:
                promise = run.config.plan
                strategy = run.config.strategy
            if promise is None:
                self._measure(strategy)
            elif (record := self._evidence()) is not None:
                self._follow(promise, record)
            else:
                raise BadInput(f"'{folder}' is incomplete: the run that '{self.places[0]}' was planned from is missing")


def subfolders(folder: Path) -> list[Path]:
    """Return the folders of the parts, in their order."""
    numbers = {subfolder: subfolder.name.partition("-")[0] for subfolder in folder.iterdir() if subfolder.is_dir()}
    return sorted(
        (subfolder for subfolder, number in numbers.items() if number.isdigit()),
        key=lambda subfolder: int(numbers[subfolder]),
    )


def _places(folder: Path) -> list[Path]:
    """Return the folders of the parts, in their order; remove the last if it was killed before its run started."""
    places = subfolders(folder)
    if places and not (places[-1] / RUN_FILE).exists():
        unstarted = places.pop()
        with locked(unstarted):
            empty(unstarted)
    return places


def continues(strategy: Strategy) -> bool:
    """Return whether a strategy can continue a run of the same number of models."""
    layout = strategy.layout
    return layout.inner is None and layout.slots == slot_names(models_trained(strategy))


def latest(record: Record, count: int) -> Record:
    """Return the last ``count`` rounds of a record; all of them if it has no more.

    >>> latest(Record([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), 2).rounds
    (1, 2)
    """
    if count >= len(record.rounds):
        return record
    return dataclasses.replace(
        record,
        seconds=record.seconds[-count:],
        censored=np.asarray(record.censored)[-count:],
        rounds=record.rounds[-count:],
        parts={name: table[-count:] for name, table in record.parts.items()},
        stages={name: table[-count:] for name, table in record.stages.items()},
    )


def unmeasured_rivals(planned: Plan) -> list[Choice]:
    """Return exact strategies that are likely to be faster than the best, but were cut off too often to tell."""
    most = (1.0 - _DOUBTFUL) * planned.best.seconds_per_step.median
    unknown = [one for one in planned.others if one.exact and not one.measured]
    rivals = [one for one in unknown if one.seconds_per_step.median < most]
    return sorted(rivals, key=lambda one: one.seconds_per_step.median)


def with_models(spec: str, models: int) -> Spec:
    """Return a strategy's spec for several models."""
    return Spec(spec).with_keys({"models": models} if models > 1 else {})


def _settling(spec: str, workers: Workers) -> bool:
    """Return whether a strategy adapts to the fleet in its first rounds."""
    return build_strategy(spec, workers=workers).facts.adapted is not None


def _tells(spec: str, workers: Workers) -> bool:
    """Return whether a strategy's runs tell how long tasks take: not if workers send parts of them on the way."""
    code = code_of(build_strategy(spec, workers=workers))
    return code is None or (code.messages == 1 and code.policy().rounds == "coded")


def _ended(part: Part) -> str:
    """Return why a part ended, which is empty if it reached a limit."""
    return str(part.run.summary.get("stopped") or "")


def _took_far_longer(part: Part) -> bool:
    """Return whether a part ended because its steps took far longer than promised."""
    promise, run = part.promise, part.run
    slow = promise is not None and run.jobs > 0 and run.seconds / run.jobs > promise.seconds_per_step.high
    return slow and _ended(part) == _BY_FAR_MISSED


def _missed(part: Part) -> bool:
    """Return whether a part ended because it missed a promise made from enough evidence, or missed it by far."""
    return _ended(part) in _HORIZONS


class _Watcher(Callback):
    """Compares each ``horizon`` steps of a run with its promise; ends the run if missed twice in a row, or by far.

    The first ``settling`` steps, in which a strategy adapts to the fleet, do not count. A promise made from thin
    evidence, of so many ``rounds``, is renewed by ``confirmed`` when there are twice as many of the run itself, and the
    run ends if that returns None.
    """

    def __init__(
        self,
        promise: Promise,
        tell: Tell,
        settling: int,
        rounds: int,
        confirmed: Callable[[Record, Promise], Promise | None],
    ) -> None:
        self._promise, self._tell, self._settling, self._confirmed = promise, tell, settling, confirmed
        self._ignored, self._renewed_at = settling, 2 * rounds
        self._misses, self._taken, self._time, self._jobs = 0, 0, 0.0, 0

    def state_dict(self) -> ByName:
        """Return the state from which a resumed run continues."""
        counts = {"misses": self._misses, "taken": self._taken, "time": self._time, "jobs": self._jobs}
        counts |= {"settling": self._settling, "renewed_at": self._renewed_at}
        return {**counts, "promise": self._promise.plain()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`state_dict`."""
        self._misses, self._taken, self._time, self._jobs = (
            state[name] for name in ("misses", "taken", "time", "jobs")
        )
        self._settling, self._renewed_at = state["settling"], state["renewed_at"]
        self._promise = Promise.of_plain(state["promise"], "the promise in a checkpoint")

    def on_begin(self, info: RunInfo) -> None:
        """End a run that was killed after its promise had been missed."""
        self._info = info
        self._end_if_missed()

    def on_step(self, info: StepInfo) -> None:
        """Compare the seconds per step once ``horizon`` steps, of all models together, have been taken."""
        if self._settling:
            self._settling -= 1
            self._time = info.seconds
            return
        self._taken += 1
        self._jobs += 1
        if self._taken == self._promise.horizon:
            self._compare(info)
        thin = self._promise.evidence == "thin" and _tells(self._promise.strategy, self._promise.workers)
        if thin and self._jobs >= self._renewed_at:
            self._renew()

    def _compare(self, info: StepInfo) -> None:
        took = (info.seconds - self._time) / self._taken
        steps, self._taken, self._time = self._taken, 0, info.seconds
        expected = self._promise.seconds_per_step
        if expected.holds(took):
            self._misses = 0
            return
        far = not expected.low / _BY_FAR <= took <= expected.high * _BY_FAR
        self._misses = _MISSES + 1 if far else self._misses + 1
        self._tell(
            f"at step {info.step}: the last {steps} steps took {took:.3g} s each, promised were {expected.low:.3g} to "
            f"{expected.high:.3g}"
        )
        self._end_if_missed()

    def _end_if_missed(self) -> None:
        if self._misses > _MISSES:
            raise StopRun(_BY_FAR_MISSED)
        if self._misses == _MISSES:
            raise StopRun(_BETTER_KNOWN if self._promise.evidence == "thin" else _MISSED)

    def _renew(self) -> None:
        """Renew a promise that was made from thin evidence, or end the run."""
        self._renewed_at *= 2
        log = self._info.driver.log
        assert log is not None  # every run of train() has one
        log.flush()
        try:
            record = read(Run(log, self._info.config, path=None))
        except BadInput:  # in no round were all workers there
            return
        record = latest(record, len(record.rounds) - self._ignored)
        promise = self._confirmed(record, self._promise)
        if promise is None:
            raise StopRun(_BETTER_KNOWN)
        self._promise = promise
