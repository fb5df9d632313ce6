"""Training that finds its strategy itself: measured, planned, checked as it goes on, and planned again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from anyk import specs
from anyk.checks import AtLeastOne, typed
from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel, parse
from anyk.errors import BadInput
from anyk.fleet.auto.parts import NAME, AutoConfig, Part, Parts, SharedSettings, continues, read_auto, save_record
from anyk.fleet.plans.candidates import build_candidate, specs_for
from anyk.fleet.records import Record, read
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, Vector
from anyk.protocol import models_trained
from anyk.runs import Run, usual_optimizer
from anyk.runs.callbacks import check_callbacks
from anyk.runs.evaluation.evaluate import USUAL, Evaluate, check_evaluation, read_evaluate
from anyk.runs.folder.config import write_sealed
from anyk.runs.folder.digests import digests_of, with_callbacks
from anyk.runs.folder.folders import check_plain, new_folder
from anyk.runs.folder.rebuilding import Rebuilt, describe, rebuild
from anyk.runs.limits import LIMIT, STEPS, Limits
from anyk.runs.many_models import combine
from anyk.strategies.construction import from_spec


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
        """The :attr:`Run.history <anyk.runs.Run.history>` of all runs, on one clock."""
        return self.history_of(self.run.slot)

    def history_of(self, slot: str) -> dict[str, NDArray[Any]]:
        """Return the :meth:`Run.history_of <anyk.runs.Run.history_of>` of all runs, on one clock."""
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
                "strategy": part.run.config.strategy,
                "begun": part.run.begun,
                "steps": part.run.steps,
                "seconds": part.run.seconds,
                "plan": part.promise and part.promise.plain(),
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
    measure: Annotated[int, Meta(ge=5)] = 30,  # a plan takes 5 rounds
    every: AtLeastOne = 100,
    slope: float | None = None,
    max_load: float = 1.0,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    optimizer: Optimizer | str | None = None,
    out: str | Path | None = None,
    evaluate: Evaluate | str | None = USUAL,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
    tell: Callable[[str], None] | None = None,
    progress: bool = False,
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
    folder that gets a run folder for each part, and with which :func:`resume_auto` goes on. ``tell`` hears, in
    sentences, of what is measured, planned and missed. The rest is as for :func:`anyk.train`.

    Raises :class:`~anyk.errors.BadInput` for settings out of range and a record of another number of workers.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> found = train_auto(problem, workers=6, cluster="simulated", delays="bimodal:fast=0.1,slow=1", steps=60)
    >>> [(run.config.strategy, run.begun, run.steps) for run in found.runs]
    [('uncoded', 0, 30), ('bcc:batches=2', 30, 60)]
    """
    trained, models = combine(problem)
    law = parse(delays)
    fleet_record = None if record is None else _read_record(record, workers)
    fleet = build_cluster(cluster, workers=workers, delays=law, seed=seed, communication=communication)
    if law.silent and fleet.virtual:
        raise BadInput("on a virtual clock without delays there is nothing to measure; give delays")
    limits = Limits(steps, seconds, target).within(STEPS if target is None else LIMIT)
    optimizer, hearing = usual_optimizer(trained, optimizer), check_callbacks(callbacks)
    config = describe(
        AutoConfig,
        trained,
        fleet,
        optimizer,
        limits,
        read_evaluate(evaluate),
        hearing,
        cluster=cluster,
        models=models,
        measure=measure,
        every=every,
        slope=slope,
        max_load=max_load,
        record=fleet_record is not None,
    )
    folder = None if out is None else Path(out)
    if folder is not None:
        config = replace(config, digests=digests_of(trained, fleet, config))
        new_folder(folder, known=NAME)
        fleet_record = fleet_record and save_record(fleet_record, folder)
        write_sealed(folder / NAME, config)
    rebuilt = Rebuilt(trained, optimizer, fleet)
    shared = SharedSettings(config, rebuilt, folder, checkpoint_every, hearing, tell, progress)
    return _trained(Parts(shared, fleet_record), config)


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
    tell: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Auto:
    """Go on with a folder of :func:`train_auto` as if it had never been interrupted, or with new limits.

    The part that was interrupted is resumed from its last checkpoint, and what comes after it is measured, planned and
    checked as before. On a simulated cluster the result is bit for bit that of a training never interrupted. All else
    is as in :func:`anyk.resume`.

    Raises :class:`~anyk.errors.BadInput` for a folder that is not one of ``train_auto`` or is damaged.
    """
    folder = Path(path)
    config, of = read_auto(folder), f"the training '{folder}'"
    check_plain(*folder.iterdir())
    limits = Limits(steps, seconds, target)
    if limits:
        config = replace(config, **vars(limits.within((config.steps or 0) + LIMIT)))
    trained = None if problem is None else combine(problem)[0]
    rebuilt = rebuild(folder, config, of, call="anyk.resume_auto", problem=trained, optimizer=optimizer, trust=trust)
    check_evaluation(rebuilt.problem, read_evaluate(config.evaluate), config.limits)
    hearing = check_callbacks(callbacks)
    config = with_callbacks(config, hearing.specs)
    write_sealed(folder / NAME, config)
    shared = SharedSettings(config, rebuilt, folder, checkpoint_every, hearing, tell, progress, trust)
    return _trained(Parts.of_folder(shared, folder), config)


def _trained(parts: Parts, config: AutoConfig) -> Auto:
    """Train until a limit has been reached."""
    parts.train()
    return Auto(tuple(parts.done), left_out(config.workers, config.models))


def left_out(workers: int, models: int = 1) -> tuple[str, ...]:
    """The strategies, by name, that exist for so many workers and cannot continue another run of so many models."""
    possible: dict[str, bool] = {}
    for spec in specs_for(workers):
        name = spec.partition(":")[0]
        try:
            one = from_spec(spec, workers)
        except BadInput:
            continue
        with contextlib.suppress(BadInput):
            one = build_candidate(spec, workers, models)
        possible[name] = possible.get(name, False) or (continues(one) and models_trained(one) == models)
    return tuple(sorted(name for name, good in possible.items() if not good))


def _read_record(source: str | Path | Run | Record, workers: int) -> Record:
    record = read(source)
    if len(record.workers) != workers:
        raise BadInput(f"the record is of {len(record.workers)} workers, and {workers} are to train")
    return record
