"""The runs of a training that plans for itself: how each is started, compared with its promise, and resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from anyk.errors import BadInput
from anyk.fleet.plans.check import Checked, check
from anyk.fleet.plans.plan import LEAST_ROUNDS, Plan, plan
from anyk.fleet.records import Record, read
from anyk.plain import ByName, values_of
from anyk.problems.base import Tell
from anyk.protocol import Strategy, models_trained, slot_names
from anyk.runs import Promise, Run, resume, train
from anyk.runs.callbacks import Callback, Callbacks, RunInfo, StepInfo, StopRun
from anyk.runs.folder.config import NAME as RUN
from anyk.runs.folder.config import Count, SharedConfig, read_sealed, write_sealed
from anyk.runs.folder.digests import digests_of
from anyk.runs.folder.folders import empty, locked, new_folder
from anyk.runs.folder.rebuilding import Rebuilt, cluster_like
from anyk.specs import with_keys

NAME = "auto.toml"
_RECORD = "record.npz"  # the record from which the first plan is made
_MISSES = 2  # consecutive misses, after which the fleet is measured and planned for again


class AutoConfig(SharedConfig, frozen=True, kw_only=True):
    """The keys of ``auto.toml`` and their types."""

    models: Count
    measure: Count
    every: Count
    max_load: float
    record: bool = False  # whether it started from a record, which is stored beside it
    uncoded: str = "uncoded"  # the strategy that measures
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
            record = self._latest_record()
            if record is None:
                self._measure()
            else:
                config = self.config
                new_plan = plan(
                    record,
                    today=config.uncoded,
                    **values_of(config, "slope", "max_load", "models"),
                    steps=config.every,
                    among=continues,
                )
                self.tell(f"from step {self._step}: '{new_plan.best.spec}' ({new_plan.verdict}: {new_plan.why})")
                for assumption in new_plan.assumptions:
                    self.tell(f"assumed: {assumption}")
                self._follow(new_plan.promise, record, new_plan)

    def _latest_record(self) -> Record | None:
        """Return the user's record, or the record of the last run; None if the next part has to measure."""
        if not self.done:
            return self.record
        last = self.done[-1]
        if last.promise is not None:
            return None
        try:
            record = read(last.run)
            if len(record.table) >= LEAST_ROUNDS:
                return record
            reason = f"all workers were there in {len(record.table)} rounds; a plan takes {LEAST_ROUNDS}"
        except BadInput as error:
            reason = str(error)
        self.tell(f"at step {last.run.steps} there is no plan yet: {reason}")
        return None

    # --------------------------------------------------------------------------------------- one part

    def _measure(self) -> None:
        """Train uncoded for the rounds that measure the fleet; a round is a step of one of the models.

        If no plan could be made from the last measurement, it takes twice as many rounds.
        """
        models = self.config.models
        failed = next((count for count, part in enumerate(reversed(self.done)) if part.promise), len(self.done))
        uncoded = with_keys(self.config.uncoded, {"models": models} if models > 1 else {})
        upto = self._step - -(self.config.measure << failed) // models
        upto = min(upto, self.config.steps or upto)
        if not self.places:
            self.tell(f"from step {self._step}: measuring {upto - self._step} steps of '{uncoded}'")
        self._add(uncoded, "measure", upto, lambda run: run.steps == upto)

    def _follow(self, promise: Promise, record: Record, new_plan: Plan | None = None) -> None:
        """Train as planned, until a limit is reached or the promise is missed."""
        watcher = _Watcher(promise, self.tell)
        run = self._add(
            promise,
            promise.strategy.partition(":")[0],
            self.config.steps,
            lambda run: run.summary.get("stopped") == watcher.reason,
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
        again = self.places.pop(0) if self.places else None
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
        if again is None:
            run = train(
                strategy=strategy,
                cluster=cluster_like(self.rebuilt.cluster, config, config.seed),
                begin=self.done[-1].run if self.done else None,
                out=None if self.folder is None else self.folder / f"{len(self.done) + 1}-{name}",
                evaluate=config.evaluate,
                **options,
            )
        else:
            run = Run.open(again)
            if last and not complete(run):
                self.tell(f"from step {run.steps}: resuming '{run.config.strategy}'")
                run.close()
                run = resume(again, trust=self.trust, tell=self.tell, **options)
        self.done.append(Part(run))
        self.going = (not last or complete(run)) and run.time_to_target is None and run.steps != limits.steps
        return run

    # --------------------------------------------------------------------------------------- its folder

    def make_folder(self) -> None:
        """Make the training's folder, unless it has none, and store its settings and its record there."""
        if self.folder is None:
            return
        self.config = replace(self.config, digests=digests_of(self.rebuilt.problem, self.rebuilt.cluster, self.config))
        new_folder(self.folder, known=NAME)
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
            if promise is None:
                self._measure()
            elif (record := self._latest_record()) is not None:
                self._follow(promise, record)
            else:
                raise BadInput(f"'{folder}' is incomplete: the run that '{self.places[0]}' was planned from is missing")


def _places(folder: Path) -> list[Path]:
    """Return the folders of the parts, in their order; remove the last if it was killed before its run started."""
    numbers = {place: place.name.partition("-")[0] for place in folder.iterdir() if place.is_dir()}
    places = sorted((place for place, text in numbers.items() if text.isdigit()), key=lambda place: int(numbers[place]))
    if places and not (places[-1] / RUN).exists():
        unstarted = places.pop()
        with locked(unstarted):
            empty(unstarted)
    return places


def continues(strategy: Strategy) -> bool:
    """Return whether a strategy can continue a run of the same number of models."""
    layout = strategy.layout
    return layout.inner is None and layout.slots == slot_names(models_trained(strategy))


class _Watcher(Callback):
    """Compares each ``horizon`` steps of a run with its promise; ends the run if it is missed twice consecutively."""

    def __init__(self, promise: Promise, tell: Tell) -> None:
        self._promise, self._tell = promise, tell
        self._misses, self._taken, self._time = 0, 0, 0.0
        self.reason = f"the promise of '{promise.strategy}' was missed"

    def state_dict(self) -> ByName:
        """Return the state from which a resumed run continues."""
        return {"misses": self._misses, "taken": self._taken, "time": self._time}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`state_dict`."""
        self._misses, self._taken, self._time = state["misses"], state["taken"], state["time"]

    def on_begin(self, info: RunInfo) -> None:
        """End a run that was killed after its promise had been missed."""
        self._end_if_missed()

    def on_step(self, info: StepInfo) -> None:
        """Compare the seconds per step once ``horizon`` steps, of all models together, have been taken."""
        self._taken += 1
        if self._taken < self._promise.horizon:
            return
        took = (info.seconds - self._time) / self._taken
        steps, self._taken, self._time = self._taken, 0, info.seconds
        expected = self._promise.seconds_per_step
        if expected.holds(took):
            self._misses = 0
            return
        self._misses += 1
        self._tell(
            f"at step {info.step}: the last {steps} steps took {took:.3g} s each, promised were {expected.low:.3g} to "
            f"{expected.high:.3g}"
        )
        self._end_if_missed()

    def _end_if_missed(self) -> None:
        if self._misses >= _MISSES:
            raise StopRun(self.reason)
