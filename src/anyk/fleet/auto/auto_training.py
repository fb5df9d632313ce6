"""Training that chooses its strategy: it measures the fleet, plans, checks the promise, and plans again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from anyk.base import Array, AtLeastOne, BadInput, Registry, Spec, Vector, typed, values_of
from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel
from anyk.fleet.auto.parts import NAME, UNCODED, AutoConfig, Part, Parts, continues, read_auto, subfolders, with_models
from anyk.fleet.plans.candidates import build_candidate, ignore, specs_for
from anyk.fleet.plans.plan import LEAST_ROUNDS
from anyk.fleet.records import read
from anyk.fleet.records.reading import Readable
from anyk.optimizers import Optimizer, Schedule
from anyk.problems import Problem, Tell
from anyk.protocol import Workers, shares_computed
from anyk.runs import Evaluate, Run, usual_optimizer
from anyk.runs.api import (
    LIMIT,
    RUN_FILE,
    STEPS,
    USUAL,
    Limits,
    Rebuilt,
    check_callbacks,
    check_evaluation,
    check_plain,
    combine,
    describe,
    fitted,
    read_evaluate,
    rebuild,
    with_callbacks,
    write_sealed,
)
from anyk.strategies import from_spec


@dataclass(frozen=True)
class AutoSettings:
    """The keys of ``--strategy auto:…``; see :func:`train_auto`."""

    measure: int = 10
    every: int = 10
    record: str | None = None
    slope: float | None = None
    max_load: float = 1.0


modes: Registry[AutoSettings] = Registry("mode")
modes.register("auto")(AutoSettings)


@dataclass(frozen=True)
class Auto:
    """The runs of :func:`train_auto`, each started from the previous run's model, with their plans and checks.

    ``left_out``: strategies that were not considered, because they cannot continue another run or follow the fleet.
    """

    parts: tuple[Part, ...]
    left_out: tuple[str, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs, one after another."""
        return tuple(part.run for part in self.parts)

    @property
    def run(self) -> Run:
        """The last run, whose models are the result; its steps count from the first run on, its seconds do not."""
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
    def history(self) -> dict[str, Array]:
        """The :attr:`Run.history <anyk.runs.Run.history>` of all runs, on one clock."""
        return self.history_of(self.run.slot)

    def history_of(self, slot: str) -> dict[str, Array]:
        """Return the :meth:`Run.history_of <anyk.runs.Run.history_of>` of all runs, on one clock."""
        parts: list[dict[str, Array]] = []
        before = 0.0
        for run in self.runs:
            history = run.history_of(slot)
            new = history["step"] > run.begun if parts else history["step"] >= 0  # without the version it started from
            parts.append({name: column[new] for name, column in history.items()})
            parts[-1]["seconds"] += before
            before += run.seconds
        return {name: np.concatenate([history[name] for history in parts]) for name in parts[-1]}

    def report(self) -> dict[str, Any]:
        """Return the runs, plans and promises as plain values for JSON."""
        parts = [
            {
                "strategy": part.run.config.strategy,
                **values_of(part.run, "begun", "steps", "seconds"),
                "plan": part.promise and part.promise.plain(),
                "check": part.checked and part.checked.report(),
            }
            for part in self.parts
        ]
        runs = [run.result() for run in self.runs]
        return {"runs": runs, "parts": parts, "seconds": self.seconds, "left_out": list(self.left_out)}


@typed
def train_auto(
    problem: Problem | Sequence[Problem],
    *,
    workers: int | tuple[int, int] | Workers,
    partitions: AtLeastOne | None = None,
    cluster: str = "processes",
    delays: str | DelayModel = "none",
    seed: int = 0,
    communication: str | DelayModel | Communication = "none",
    record: Readable | None = None,
    measure: Annotated[int, Meta(ge=LEAST_ROUNDS)] = 10,
    every: AtLeastOne = 10,
    slope: float | None = None,
    max_load: float = 1.0,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    optimizer: Optimizer | str | None = None,
    lr: float | str | Schedule | None = None,
    out: str | Path | None = None,
    evaluate: Evaluate | str | None = USUAL,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
    tell: Tell | None = None,
    progress: bool = False,
) -> Auto:
    """Train a model with the strategy that suits the fleet: measure, plan, switch, and keep checking the promise.

    The first ``measure`` steps are taken with two copies of the data, so that measuring costs little if workers are
    late: of each copy that is not needed a lower bound is known. With a ``record`` of the fleet, there are none. From
    the measurements, :func:`anyk.plan` chooses among strategies whose steps are the exact sum and which can continue
    another run, under ``slope`` and ``max_load``. If a strategy is likely to be faster that would have waited longer,
    ``measure`` steps wait for all workers. Plans from thin evidence are renewed when there are twice as many rounds.
    The time of each ``every`` steps is compared with the promise; when it lies outside of the promised interval twice
    consecutively, or once by a factor of 2, the plan is made again from the rounds in which it did. With several
    problems, one model is trained for each, in turn (:func:`anyk.train_many`): codes over several rounds then take
    part, and ``measure``, ``every`` and the promise count the steps of all models together.

    Each part is a run (:func:`anyk.train`) that starts from the model of the previous one, with its own workers and
    clock; no step is lost or taken twice. ``steps``, ``seconds`` and ``target`` are limits of all parts together.
    ``out``: a folder with a run folder for each part, from which :func:`resume_auto` continues. ``tell`` receives
    sentences about measurements, plans and missed promises. See :func:`anyk.train` for the other arguments.

    Raises :class:`~anyk.BadInput` for settings out of range and a record of another number of workers.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> training = train_auto(problem, workers=6, cluster="simulated", delays="bimodal:fast=0.1,slow=1", steps=60)
    >>> [(run.config.strategy, run.begun, run.steps) for run in training.runs]
    [('frc:stragglers=1', 0, 10), ('uncoded', 10, 20), ('frc:stragglers=1', 20, 60)]
    """
    trained, models = combine(problem)
    measured = None if record is None else read(record)
    workers = Workers.of(workers, partitions)
    if measured is not None and len(measured.workers) != workers.most:
        raise BadInput(f"the record is of {len(measured.workers)} workers, and {workers} are to train")
    fleet = build_cluster(cluster, workers=workers.most, delays=delays, seed=seed, communication=communication)
    if fleet.delays.silent and fleet.virtual:
        raise BadInput("on a virtual clock without delays there is nothing to measure; give delays")
    rebuilt, hooks = Rebuilt(trained, usual_optimizer(trained, optimizer, lr), fleet), check_callbacks(callbacks)
    limits = Limits(steps=steps, seconds=seconds, target=target).within(STEPS if target is None else LIMIT)
    first, evaluation = measuring(workers, max_load), read_evaluate(evaluate)
    fitted(trained, with_models(first, models), workers, evaluate=evaluation, target=target)
    check_evaluation(trained, evaluation, limits)
    config = describe(
        AutoConfig,
        problem=trained,
        cluster=fleet,
        workers=workers,
        optimizer=rebuilt.optimizer,
        limits=limits,
        evaluate=evaluation,
        callbacks=hooks,
        models=models,
        measuring=first,
        measure=measure,
        every=every,
        slope=slope,
        max_load=max_load,
        record=record is not None,
    )
    config = replace(config, cluster=cluster)  # as it was asked for: each run builds its own
    folder = None if out is None else Path(out)
    parts = Parts(
        config=config,
        rebuilt=rebuilt,
        folder=folder,
        checkpoint_every=checkpoint_every,
        callbacks=hooks,
        tell=tell or ignore,
        progress=progress,
        record=measured,
    )
    parts.make_folder()
    return _train(parts)


@typed
def resume_auto(
    path: str | Path,
    *,
    problem: Problem | Sequence[Problem] | None = None,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    trust: bool = False,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
    tell: Tell | None = None,
    progress: bool = False,
) -> Auto:
    """Continue a training in a folder of :func:`train_auto` as if it had never been interrupted, or with new limits.

    The part that was interrupted is resumed from its last checkpoint, and the following parts are measured, planned
    and checked as before. On a simulated cluster the result equals, bit for bit, the result of a training without the
    interruption. See :func:`anyk.resume` for the other arguments.

    Raises :class:`~anyk.BadInput` for a folder that ``train_auto`` has not made or that is damaged.
    """
    folder = Path(path)
    config, of = read_auto(folder), f"the training '{folder}'"
    check_plain(*folder.iterdir())
    limits = Limits(steps=steps, seconds=seconds, target=target)
    if limits:
        config = replace(config, **vars(limits.within((config.steps or 0) + LIMIT)))
    trained = None if problem is None else combine(problem)[0]
    rebuilt = rebuild(folder, config, of, call="anyk.resume_auto", problem=trained, optimizer=optimizer, trust=trust)
    check_evaluation(rebuilt.problem, read_evaluate(config.evaluate), config.limits)
    hooks = check_callbacks(callbacks)
    config = with_callbacks(config, hooks.specs)
    write_sealed(folder / NAME, config)
    parts = Parts(
        config=config,
        rebuilt=rebuilt,
        folder=folder,
        checkpoint_every=checkpoint_every,
        callbacks=hooks,
        tell=tell or ignore,
        progress=progress,
        trust=trust,
    )
    parts.restore(folder)
    return _train(parts)


def open_auto(folder: Path) -> Auto:
    """Return a training as its folder has it, without continuing it; its parts are not compared with their promises.

    Raises :class:`~anyk.BadInput` for a folder that :func:`train_auto` has not made, or without a part.
    """
    config = read_auto(folder)
    parts = tuple(Part(Run.open(run)) for run in subfolders(folder) if (run / RUN_FILE).exists())
    if not parts:
        raise BadInput(
            f"the training '{folder}' was killed before its first run began; resume it: anyk resume {folder}"
        )
    return Auto(parts, left_out(config.workers, config.models))


def _train(parts: Parts) -> Auto:
    """Train until a limit has been reached."""
    parts.train()
    config = parts.config
    return Auto(tuple(parts.done), left_out(config.workers, config.models))


def measuring(workers: Workers, max_load: float) -> Spec:
    """Return the strategy that measures a fleet: two copies of the data, if these are possible, as no copy may be dear.

    In each round all workers of which a copy is needed are measured, and a lower bound of the others.

    >>> measuring(Workers(most=6), 1.0), measuring(Workers.of((2, 6)), 1.0), measuring(Workers(most=6), 0.2)
    ('frc:stragglers=1', 'frc:stragglers=1', 'uncoded')
    """
    copies = Spec("frc:stragglers=1")
    try:
        strategy = from_spec(copies, workers)
    except BadInput:
        return Spec(UNCODED)
    return copies if max(shares_computed(strategy)) <= max_load + 1e-12 else Spec(UNCODED)


def left_out(workers: Workers, models: int = 1) -> tuple[str, ...]:
    """Return the names of the strategies that exist for the largest number of workers but cannot take part.

    They cannot continue a run, train ``models`` models, or follow workers that join and leave.
    """
    possible: dict[str, bool] = {}
    for spec in specs_for(workers.most):
        name = spec.partition(":")[0]
        try:
            from_spec(spec, Workers(most=workers.most))
        except BadInput:
            continue
        possible.setdefault(name, False)
        with contextlib.suppress(BadInput):
            possible[name] |= continues(build_candidate(spec, workers, models))
    return tuple(sorted(name for name, good in possible.items() if not good))
