"""The runs of a training that plans for itself: how each is begun, held against its promise, and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from anyk.clusters import Cluster
from anyk.errors import BadInput
from anyk.fleet.plans.check import Checked, check
from anyk.fleet.plans.plan import Plan, plan
from anyk.fleet.records import Record, read
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem
from anyk.protocol import Strategy, models_trained, slot_names
from anyk.runs import Evaluate, Promise, Run, resume, train
from anyk.runs.callbacks import Callback, Callbacks, RunInfo, StepInfo, StopRun
from anyk.runs.folder.config import NAME as RUN
from anyk.runs.folder.config import Count, SharedConfig, read_sealed
from anyk.runs.folder.folders import empty, locked
from anyk.specs import with_keys

NAME = "auto.toml"
FORMAT = 1
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


def read_auto(folder: Path) -> dict[str, Any]:
    """The configuration of such a folder, checked: it may be anybody's."""
    if not (folder / NAME).is_file():
        raise BadInput(f"'{folder}' is not a folder of train_auto: it has no {NAME}; to resume a run: anyk.resume")
    return read_sealed(folder / NAME, AutoConfig, f"the training '{folder}'", FORMAT)


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
        """The promise with which it was begun."""
        return promise_of(self.run)


def promise_of(run: Run) -> Promise | None:
    """The promise with which a run was begun."""
    kept = run.config.get("plan")
    return None if kept is None else Promise.of_plain(kept, f"the plan of the run '{run.path}'")


@dataclass(frozen=True)
class Shared:
    """What all parts have in common."""

    problem: Problem
    optimizer: Optimizer
    cluster: Callable[[], Cluster]
    evaluate: Evaluate | None
    checkpoint_every: float
    callbacks: Callbacks
    tell: Callable[[str], None]
    progress: bool
    trust: bool = False


class Limits(NamedTuple):
    """Of all parts together."""

    steps: int | None
    seconds: float | None
    target: float | None


class Parts:
    """The parts so far, and how the next one is trained. ``going``: no limit has been reached."""

    def __init__(
        self, shared: Shared, config: Mapping[str, Any], folder: Path | None, record: Record | None = None
    ) -> None:
        self._shared, self._config, self._folder, self._record = shared, config, folder, record
        self._limits = Limits(*(config.get(name) for name in Limits._fields))
        models = config["models"]
        self._uncoded = with_keys(_UNCODED, {"models": models} if models > 1 else {})
        self.done: list[Part] = []
        self.going = True

    @property
    def _step(self) -> int:
        return self.done[-1].run.steps if self.done else 0

    def train(self) -> None:
        """Measure, plan and follow the plan in turn, until a limit has been reached."""
        while self.going:
            known = self._known()
            if known is None:
                self._measure()
            else:
                config = self._config
                made = plan(
                    known,
                    today=_UNCODED,
                    slope=config.get("slope"),
                    max_load=config["max_load"],
                    models=config["models"],
                    steps=config["every"],
                    among=continues,
                )
                self._shared.tell(f"from step {self._step}: '{made.best.spec}' ({made.verdict}: {made.why})")
                for assumption in made.assumptions:
                    self._shared.tell(f"assumed: {assumption}")
                self._follow(made.promise, known, made)

    def _known(self) -> Record | None:
        """What the next part is planned from: the record given, or the run that has just measured; None to measure."""
        if not self.done:
            return self._record
        run = self.done[-1].run
        return read(run) if promise_of(run) is None else None

    # --------------------------------------------------------------------------------------- one part

    def _measure(self, again: Path | None = None, *, last: bool = True) -> None:
        """Train uncoded for the rounds that measure the fleet, each a step of one of the models."""
        upto = self._step - -self._config["measure"] // self._config["models"]
        upto = min(upto, self._limits.steps or upto)
        if again is None:
            self._shared.tell(f"from step {self._step}: measuring {upto - self._step} steps of '{self._uncoded}'")
            run = self._begun(self._uncoded, "measure", upto)
        else:
            run = Run.open(again)
            if last and run.steps < upto:
                run = self._resumed(run, upto)
        self._add(Part(run), whole=not last or run.steps == upto)

    def _follow(
        self,
        promise: Promise,
        record: Record,
        made: Plan | None = None,
        again: Path | None = None,
        *,
        last: bool = True,
    ) -> None:
        """Train as planned, until a limit is reached or the promise was missed."""
        watcher = _Watcher(promise, self._shared.tell)
        if again is None:
            run = self._begun(promise, promise.strategy.partition(":")[0], self._limits.steps, watcher)
        else:
            run = Run.open(again)
            if last and run.summary.get("stopped") != watcher.reason:
                run = self._resumed(run, self._limits.steps, watcher)
        checked = check(run, record=record, again=False) if run.jobs else None
        self._add(Part(run, made, checked), whole=not last or run.summary.get("stopped") == watcher.reason)

    def _add(self, part: Part, *, whole: bool) -> None:
        """Another part follows if this one is ``whole``, not cut short by a limit, and has reached none itself."""
        self.done.append(part)
        self.going = whole and part.run.time_to_target is None and part.run.steps != self._limits.steps

    def _options(self, upto: int | None, watcher: _Watcher | None) -> dict[str, Any]:
        shared, (_, seconds, target) = self._shared, self._limits
        callbacks = shared.callbacks if watcher is None else shared.callbacks.also(watcher)
        left = None if seconds is None else seconds - sum(part.run.seconds for part in self.done)
        return {
            "optimizer": shared.optimizer,
            "steps": upto,
            "seconds": left,
            "target": target,
            "callbacks": callbacks,
            "checkpoint_every": shared.checkpoint_every,
            "progress": shared.progress,
        }

    def _begun(self, what: str | Promise, name: str, upto: int | None, watcher: _Watcher | None = None) -> Run:
        return train(
            self._shared.problem,
            what,
            self._shared.cluster(),
            begin=self.done[-1].run if self.done else None,
            out=None if self._folder is None else self._folder / f"{len(self.done) + 1}-{name}",
            evaluate=self._shared.evaluate,
            **self._options(upto, watcher),
        )

    def _resumed(self, run: Run, upto: int | None, watcher: _Watcher | None = None) -> Run:
        shared = self._shared
        shared.tell(f"from step {run.steps}: going on with '{run.config['strategy']}'")
        run.close()
        assert run.path is not None
        options = self._options(upto, watcher)
        return resume(run.path, problem=shared.problem, trust=shared.trust, tell=shared.tell, **options)

    # --------------------------------------------------------------------------------------- its folder

    @classmethod
    def of_folder(cls, shared: Shared, config: Mapping[str, Any], folder: Path) -> Parts:
        """The parts in a folder, of which the last has gone on to its end."""
        record = read(folder / _RECORD) if config.get("record") else None
        parts = cls(shared, config, folder, record)
        places = _places(folder)
        for place in places:
            last = place == places[-1]
            with Run.open(place) as run:
                promise = promise_of(run)
            if promise is None:
                parts._measure(place, last=last)
            else:
                known = parts._known()
                if known is None:
                    raise BadInput(f"'{folder}' is not whole: the run that '{place}' was planned from is gone")
                parts._follow(promise, known, again=place, last=last)
        return parts


def keep_record(record: Record, folder: Path) -> Record:
    """Keep the record that training begins with in its folder, and read it as it will be read again."""
    record.save(folder / _RECORD)
    return read(folder / _RECORD)


def _places(folder: Path) -> list[Path]:
    """The folders of the parts, in their order; one that was killed before it began is removed."""
    places = sorted(
        (one for one in folder.iterdir() if one.is_dir() and one.name.partition("-")[0].isdigit()),
        key=lambda one: int(one.name.partition("-")[0]),
    )
    if places and not (places[-1] / RUN).exists():
        unborn = places.pop()
        with locked(unborn):
            empty(unborn)
    return places


def continues(strategy: Strategy) -> bool:
    """Whether a strategy can go on from a run of as many models."""
    layout = strategy.layout
    return layout.inner is None and layout.slots == slot_names(models_trained(strategy))


class _Watcher(Callback):
    """Holds every so many steps of a run against its promise, and ends the run when that is missed twice in a row."""

    def __init__(self, promise: Promise, tell: Callable[[str], None]) -> None:
        self._promise, self._tell = promise, tell
        self._misses, self._taken, self._time = 0, 0, 0.0
        self.reason = f"the promise of '{promise.strategy}' was missed"

    def state_dict(self) -> dict[str, Any]:
        """What a run that is resumed goes on with."""
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
