"""Training that finds its strategy itself: measured, planned, checked as it goes on, and planned again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk import specs
from anyk.checks import typed
from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel, parse
from anyk.errors import BadInput
from anyk.planning.candidates import built, specs_for
from anyk.planning.plans import Plan, plan
from anyk.planning.promises import Checked, check
from anyk.problems.base import Problem, Vector, ensure_problem
from anyk.problems.many import ManyProblems
from anyk.protocol import Strategy, slot_names
from anyk.recording import Record, read
from anyk.specs import with_keys
from anyk.strategies import strategy as build_strategy
from anyk.training import Promise, Run, train
from anyk.training.callbacks import Callback, RunInfo, StepInfo, StopRun
from anyk.training.limits import LIMIT, STEPS

_UNCODED = "uncoded"
_LEAST = 5  # rounds that a plan takes
_MISSES = 2  # in a row, after which the plan is made again


@dataclass(frozen=True)
class Settings:
    """The keys of ``--strategy auto:…``; see :func:`train_auto`."""

    measure: int = 30
    every: int = 100
    record: str | None = None
    slope: float | None = None
    max_load: float = 1.0


modes: specs.Registry[Settings] = specs.Registry("mode")
modes.register("auto")(Settings)


@dataclass(frozen=True)
class Part:
    """A run of :func:`train_auto`: one that measures has neither ``plan`` nor ``checked``."""

    run: Run
    plan: Plan | None = None
    checked: Checked | None = None


@dataclass(frozen=True)
class Auto:
    """The runs of :func:`train_auto`, each begun where the one before stood, with their plans and checks.

    ``left_out``: strategies that were not looked at, since they cannot continue another run.
    """

    parts: tuple[Part, ...]
    left_out: tuple[str, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs, one after another."""
        return tuple(part.run for part in self.parts)

    @property
    def run(self) -> Run:
        """The last run, whose models are the result; its steps count from the beginning, its seconds do not."""
        return self.runs[-1]

    @property
    def seconds(self) -> float:
        """Seconds of all runs together."""
        return sum(run.seconds for run in self.runs)

    @property
    def model(self) -> Vector:
        """The final model."""
        return self.run.model

    @property
    def models(self) -> dict[str, Vector]:
        """The final model of each slot."""
        return self.run.models

    @property
    def history(self) -> dict[str, NDArray[Any]]:
        """As :attr:`Run.history <anyk.training.Run.history>`, over all runs and on one clock."""
        return self.history_of(self.run.slot)

    def history_of(self, slot: str) -> dict[str, NDArray[Any]]:
        """As :meth:`Run.history_of <anyk.training.Run.history_of>`, over all runs and on one clock."""
        parts: list[dict[str, NDArray[Any]]] = []
        before = 0.0
        for run in self.runs:
            part = run.history_of(slot)
            new = part["step"] > run.begun if parts else part["step"] >= 0  # it began with the last of the one before
            parts.append({name: column[new] for name, column in part.items()})
            parts[-1]["seconds"] += before
            before += run.seconds
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[-1]}

    def report(self) -> dict[str, Any]:
        """The runs, plans and promises as plain values for JSON."""
        parts = [
            {
                "strategy": part.run.config["strategy"],
                "begun": part.run.begun,
                "steps": part.run.steps,
                "seconds": part.run.seconds,
                "plan": None if part.plan is None else part.plan.promise.plain(),
                "check": None if part.checked is None else part.checked.report(),
            }
            for part in self.parts
        ]
        runs = [run.result() for run in self.runs]
        return {"runs": runs, "parts": parts, "seconds": self.seconds, "left_out": list(self.left_out)}


@typed
def train_auto(
    problem: Problem | Sequence[Problem],
    *,
    workers: int,
    cluster: str = "processes",
    delays: str | DelayModel = "none",
    seed: int = 0,
    communication: str | DelayModel | Communication = "none",
    record: str | Path | Run | Record | None = None,
    measure: int = 30,
    every: int = 100,
    slope: float | None = None,
    max_load: float = 1.0,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    tell: Callable[[str], None] | None = None,
    **rest: Any,
) -> Auto:
    """Train a model with the strategy that suits the fleet: measure, plan, switch, and check the promise all along.

    Of several problems a model each is trained, in turn (:func:`anyk.train_many`); then codes over several rounds,
    which need that, take part, and ``measure``, ``every`` and the promise count the steps of all models together.

    The first ``measure`` steps are uncoded, which measures every worker; with a ``record`` of the fleet, none are. From
    what was measured, :func:`anyk.plan` chooses among strategies whose steps are the exact sum and which can continue
    another run, under ``slope`` and ``max_load``. After every ``every`` steps their time is held against the promise;
    when it lies outside of the promised interval twice in a row, the fleet is measured and planned for again.

    Each part is a run that begins where the last one stands (:func:`anyk.train`), with workers of its own on a clock of
    its own; no step is lost or taken twice. ``steps``, ``seconds`` and ``target`` are of all parts together. ``out``: a
    folder that gets a run folder for each part. ``tell`` hears, in sentences, of what is measured, planned and missed.
    The rest is as for :func:`anyk.train`.

    Raises :class:`~anyk.errors.BadInput` for settings out of range and a record of another number of workers.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> found = train_auto(problem, workers=6, cluster="simulated", delays="bimodal:fast=0.1,slow=1", steps=60)
    >>> [(run.config["strategy"], run.begun, run.steps) for run in found.runs]
    [('uncoded', 0, 30), ('frc:stragglers=3', 30, 60)]
    """
    problems = problem if isinstance(problem, Sequence) else [problem]
    if not problems:
        raise BadInput("there is no problem to train on")
    for one in problems:
        ensure_problem(one)
    models = len(problems)
    trained: Problem = ManyProblems(problems) if isinstance(problem, Sequence) else problem
    _check(measure, every)
    law = parse(delays) if isinstance(delays, str) else delays
    if law.silent and build_cluster(cluster, workers=workers).virtual:
        raise BadInput("on a virtual clock without delays there is nothing to measure; give delays")
    folder = None if out is None else Path(out)
    if folder is not None and folder.exists():
        raise BadInput(f"the folder '{folder}' exists; choose another")
    if steps is None and seconds is None:
        steps = STEPS if target is None else LIMIT

    def fleet() -> Cluster:
        return build_cluster(cluster, workers=workers, delays=law, seed=seed, communication=communication)

    told = tell or (lambda _: None)
    training = _Training(trained, models, fleet, _Limits(steps, seconds, target), folder, callbacks, told, rest)
    known = None if record is None else _of_fleet(record, workers)
    while training.going:
        if known is None:
            measured = training.measure(measure)
            known = read(measured) if training.going else None
        if known is not None:
            made = plan(known, slope=slope, max_load=max_load, models=models, steps=every, among=continues)
            training.follow(made, known)
        known = None
    return Auto(tuple(training.parts), left_out(workers, models))


class _Limits(NamedTuple):
    """Of all parts together."""

    steps: int | None
    seconds: float | None
    target: float | None


class _Training:
    """The parts so far, and how the next one is trained."""

    def __init__(
        self, problem: Problem, models: int, fleet: Callable[[], Cluster], limits: _Limits, folder: Path | None,
        callbacks: Sequence[Any], told: Callable[[str], None], rest: dict[str, Any],
    ) -> None:  # fmt: skip
        self._problem, self._fleet, self._limits, self._folder = problem, fleet, limits, folder
        self._models, self._uncoded = models, with_keys(_UNCODED, {"models": models} if models > 1 else {})
        self._callbacks, self._told, self._rest = tuple(callbacks), told, rest
        self.parts: list[Part] = []
        self.going = True  # no limit has been reached

    @property
    def _step(self) -> int:
        return self.parts[-1].run.steps if self.parts else 0

    @property
    def _seconds(self) -> float:
        return sum(part.run.seconds for part in self.parts)

    def measure(self, rounds: int) -> Run:
        """Train uncoded for at least so many rounds, each a step of one of the models."""
        each = -(-rounds // self._models)
        upto = min(self._step + each, self._limits.steps or self._step + each)
        self._told(f"from step {self._step}: measuring {upto - self._step} steps of '{self._uncoded}'")
        run = self._train(self._uncoded, "measure", upto)
        self.parts.append(Part(run))
        self._go_on(run.steps == upto)
        return run

    def follow(self, made: Plan, record: Record) -> None:
        """Train as planned, until a limit is reached or the promise was missed."""
        promise = made.promise
        self._told(f"from step {self._step}: '{promise.strategy}' ({made.verdict}: {made.why})")
        for assumption in made.assumptions:
            self._told(f"assumed: {assumption}")
        watcher = _Watcher(promise, self._told)
        run = self._train(promise, made.best.family, self._limits.steps, watcher)
        checked = check(run, record=record, again=False) if run.jobs else None
        self.parts.append(Part(run, made, checked))
        self._go_on(watcher.missed)

    def _go_on(self, whole: bool) -> None:
        """Whether another part follows: this one is ``whole``, not cut short by a limit, and reached none itself."""
        self.going = whole and self.parts[-1].run.time_to_target is None and self._step != self._limits.steps

    def _train(self, what: str | Promise, name: str, upto: int | None, *also: Callback) -> Run:
        _, seconds, target = self._limits
        return train(
            self._problem, what, self._fleet(), steps=upto, target=target,
            seconds=None if seconds is None else seconds - self._seconds,
            begin=self.parts[-1].run if self.parts else None,
            out=None if self._folder is None else self._folder / f"{len(self.parts) + 1}-{name}",
            callbacks=(*self._callbacks, *also), **self._rest,
        )  # fmt: skip


def continues(strategy: Strategy) -> bool:
    """Whether a strategy can go on from a run of as many models."""
    layout = strategy.layout
    return layout.inner is None and layout.slots == slot_names(strategy.models_trained)


def left_out(workers: int, models: int = 1) -> tuple[str, ...]:
    """The strategies, by name, that exist for so many workers and cannot continue another run of so many models."""
    possible: dict[str, bool] = {}
    for spec in specs_for(workers):
        name = spec.partition(":")[0]
        try:
            one = build_strategy(spec, workers=workers)
        except BadInput:
            continue
        with contextlib.suppress(BadInput):
            one = built(spec, workers, models)
        possible[name] = possible.get(name, False) or (continues(one) and one.models_trained == models)
    return tuple(sorted(name for name, good in possible.items() if not good))


def _check(measure: int, every: int) -> None:
    if measure < _LEAST:
        raise BadInput(f"measure must be at least {_LEAST} steps, from which a plan can be made, got {measure}")
    if every < 1:
        raise BadInput(f"every must be at least 1 step, got {every}")


def _of_fleet(source: str | Path | Run | Record, workers: int) -> Record:
    record = read(source)
    if len(record.workers) != workers:
        raise BadInput(f"the record is of {len(record.workers)} workers, and {workers} are to train")
    return record


class _Watcher(Callback):
    """Holds every so many steps of a run against its promise, and ends the run when that is missed twice in a row."""

    def __init__(self, promise: Promise, told: Callable[[str], None]) -> None:
        self._promise, self._told = promise, told
        self._misses, self._taken, self._time = 0, 0, 0.0

    @property
    def missed(self) -> bool:
        """Whether the promise was missed so often that the run was ended."""
        return self._misses >= _MISSES

    def on_begin(self, info: RunInfo) -> None:
        """Count steps, of all models together, from here."""
        del info
        self._taken = 0

    def on_step(self, info: StepInfo) -> None:
        """Look whether so many steps have been taken, and how long they took."""
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
        self._told(
            f"at step {info.step}: the last {steps} steps took {took:.3g} s each, promised were {expected.low:.3g} to "
            f"{expected.high:.3g}"
        )
        if self.missed:
            raise StopRun(f"the promise of '{self._promise.strategy}' was missed")
