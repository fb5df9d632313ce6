"""The runs of a training that plans for itself: how each is started, compared with its promise, and resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyk.errors import BadInput
from anyk.fleet.plans.check import Checked, check
from anyk.fleet.plans.plan import Plan, plan
from anyk.fleet.records import Record, read
from anyk.protocol import Strategy, models_trained, slot_names
from anyk.runs import Promise, Run, resume, train
from anyk.runs.callbacks import Callback, Callbacks, RunInfo, StepInfo, StopRun
from anyk.runs.folder.config import NAME as RUN
from anyk.runs.folder.config import Count, SharedConfig, read_sealed
from anyk.runs.folder.folders import empty, locked
from anyk.runs.folder.rebuilding import Rebuilt, cluster_like
from anyk.specs import with_keys

NAME = "auto.toml"
_RECORD = "record.npz"  # the one given, of which the first plan is made
_UNCODED = "uncoded"
_MISSES = 2  # in a row, after which the plan is made again


class AutoConfig(SharedConfig, frozen=True, kw_only=True):
    """The keys of ``auto.toml`` and their types."""

    models: Count
    measure: Count
    every: Count
    max_load: float
    record: bool = False  # whether it began with a record, which is kept beside
    slope: float | None = None


def read_auto(folder: Path) -> AutoConfig:
    """Return the configuration of such a folder, checked, as it may be a stranger's."""
    if not (folder / NAME).is_file():
        raise BadInput(f"'{folder}' is not a folder of train_auto: it has no {NAME}; to resume a run: anyk.resume")
    return read_sealed(folder / NAME, AutoConfig, f"the training '{folder}'")


@dataclass(frozen=True)
class Part:
    """A run of :func:`anyk.train_auto`; one that measures has no promise.

    ``plan``: with which it was begun, unless that was before an interruption; ``checked``: whether it kept its promise.
    """

    run: Run
    plan: Plan | None = None
    checked: Checked | None = None

    @property
    def promise(self) -> Promise | None:
        """The promise with which it was started."""
        return self.run.config.plan


@dataclass(frozen=True)
class SharedSettings:
    """The settings that all parts share; ``tell`` receives sentences for the user."""

    config: AutoConfig
    rebuilt: Rebuilt
    folder: Path | None
    checkpoint_every: float
    callbacks: Callbacks
    tell: Callable[[str], None] | None
    progress: bool
    trust: bool = False

    def say(self, text: str) -> None:
        """Tell the user a sentence."""
        if self.tell is not None:
            self.tell(text)


class Parts:
    """The parts so far, and how the next one is trained. ``going``: no limit has been reached."""

    def __init__(self, shared: SharedSettings, record: Record | None = None) -> None:
        self._shared, self._config, self._record = shared, shared.config, record
        self._limits = shared.config.limits
        models = shared.config.models
        self._uncoded = with_keys(_UNCODED, {"models": models} if models > 1 else {})
        self.done: list[Part] = []
        self.going = True

    @property
    def _step(self) -> int:
        return self.done[-1].run.steps if self.done else 0

    def train(self) -> None:
        """Measure, plan and follow the plan in turn, until a limit has been reached."""
        while self.going:
            record = self._measured()
            if record is None:
                self._measure()
            else:
                config = self._config
                plan_made = plan(
                    record,
                    today=_UNCODED,
                    slope=config.slope,
                    max_load=config.max_load,
                    models=config.models,
                    steps=config.every,
                    among=continues,
                )
                self._shared.say(
                    f"from step {self._step}: '{plan_made.best.spec}' ({plan_made.verdict}: {plan_made.why})"
                )
                for assumption in plan_made.assumptions:
                    self._shared.say(f"assumed: {assumption}")
                self._follow(plan_made.promise, record, plan_made)

    def _measured(self) -> Record | None:
        """Return the record given, or that of the run that has just measured; None if the next part is to measure."""
        if not self.done:
            return self._record
        last = self.done[-1]
        return read(last.run) if last.promise is None else None

    # --------------------------------------------------------------------------------------- one part

    def _measure(self, again: Path | None = None, *, last: bool = True) -> None:
        """Train uncoded for the rounds that measure the fleet, each a step of one of the models."""
        upto = self._step - -self._config.measure // self._config.models
        upto = min(upto, self._limits.steps or upto)
        if again is None:
            self._shared.say(f"from step {self._step}: measuring {upto - self._step} steps of '{self._uncoded}'")
            run = self._start(self._uncoded, "measure", upto)
        else:
            run = Run.open(again)
            if last and run.steps < upto:
                run = self._resume(run, upto)
        self._add(Part(run), whole=not last or run.steps == upto)

    def _follow(
        self,
        promise: Promise,
        record: Record,
        chosen: Plan | None = None,
        again: Path | None = None,
        *,
        last: bool = True,
    ) -> None:
        """Train as planned, until a limit is reached or the promise was missed."""
        watcher = _Watcher(promise, self._shared.say)
        if again is None:
            run = self._start(promise, promise.strategy.partition(":")[0], self._limits.steps, watcher)
        else:
            run = Run.open(again)
            if last and run.summary.get("stopped") != watcher.reason:
                run = self._resume(run, self._limits.steps, watcher)
        checked = check(run, record=record, again=False) if run.jobs else None
        self._add(Part(run, chosen, checked), whole=not last or run.summary.get("stopped") == watcher.reason)

    def _add(self, part: Part, *, whole: bool) -> None:
        """Another part follows if this one is ``whole``, not cut short by a limit, and has reached none itself."""
        self.done.append(part)
        self.going = whole and part.run.time_to_target is None and part.run.steps != self._limits.steps

    def _options(self, upto: int | None, watcher: _Watcher | None) -> dict[str, Any]:
        shared, seconds = self._shared, self._limits.seconds
        callbacks = shared.callbacks if watcher is None else shared.callbacks.also(watcher)
        return {
            "problem": shared.rebuilt.problem,
            "optimizer": shared.rebuilt.optimizer,
            "steps": upto,
            "seconds": None if seconds is None else seconds - sum(part.run.seconds for part in self.done),
            "target": self._limits.target,
            "callbacks": callbacks,
            "checkpoint_every": shared.checkpoint_every,
            "progress": shared.progress,
        }

    def _start(self, strategy: str | Promise, name: str, upto: int | None, watcher: _Watcher | None = None) -> Run:
        folder, config = self._shared.folder, self._config
        return train(
            strategy=strategy,
            cluster=cluster_like(self._shared.rebuilt.cluster, config, config.seed),
            begin=self.done[-1].run if self.done else None,
            out=None if folder is None else folder / f"{len(self.done) + 1}-{name}",
            evaluate=config.evaluate,
            **self._options(upto, watcher),
        )

    def _resume(self, run: Run, upto: int | None, watcher: _Watcher | None = None) -> Run:
        shared = self._shared
        shared.say(f"from step {run.steps}: going on with '{run.config.strategy}'")
        run.close()
        assert run.path is not None
        return resume(run.path, trust=shared.trust, tell=shared.say, **self._options(upto, watcher))

    # --------------------------------------------------------------------------------------- its folder

    @classmethod
    def of_folder(cls, shared: SharedSettings, folder: Path) -> Parts:
        """Return the parts in a folder, the last of them resumed to its end."""
        parts = cls(shared, read(folder / _RECORD) if shared.config.record else None)
        places = _places(folder)
        for place in places:
            last = place == places[-1]
            with Run.open(place) as run:
                promise = run.config.plan
            if promise is None:
                parts._measure(place, last=last)
            else:
                record = parts._measured()
                if record is None:
                    raise BadInput(f"'{folder}' is not whole: the run that '{place}' was planned from is gone")
                parts._follow(promise, record, again=place, last=last)
        return parts


def save_record(record: Record, folder: Path) -> Record:
    """Save the record with which training starts in its folder, and return it as it will be read again."""
    record.save(folder / _RECORD)
    return read(folder / _RECORD)


def _places(folder: Path) -> list[Path]:
    """Return the folders of the parts, in their order; one that was killed before its run started is removed."""
    places = sorted(
        (place for place in folder.iterdir() if place.is_dir() and place.name.partition("-")[0].isdigit()),
        key=lambda place: int(place.name.partition("-")[0]),
    )
    if places and not (places[-1] / RUN).exists():
        unborn = places.pop()
        with locked(unborn):
            empty(unborn)
    return places


def continues(strategy: Strategy) -> bool:
    """Return whether a strategy can continue a run of the same number of models."""
    layout = strategy.layout
    return layout.inner is None and layout.slots == slot_names(models_trained(strategy))


class _Watcher(Callback):
    """Holds every so many steps of a run against its promise, and ends the run when that is missed twice in a row."""

    def __init__(self, promise: Promise, tell: Callable[[str], None]) -> None:
        self._promise, self._tell = promise, tell
        self._misses, self._taken, self._time = 0, 0, 0.0
        self.reason = f"the promise of '{promise.strategy}' was missed"

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a run that is resumed."""
        return {"misses": self._misses, "taken": self._taken, "time": self._time}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._misses, self._taken, self._time = state["misses"], state["taken"], state["time"]

    def on_begin(self, info: RunInfo) -> None:
        """End a run that was killed when its promise had been missed."""
        del info
        self._end_if_missed()

    def on_step(self, info: StepInfo) -> None:
        """Look whether so many steps, of all models together, have been taken, and how long they took."""
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
