"""Training that finds its strategy itself: measured, planned, checked as it goes on, and planned again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import specs
from anyk.checks import typed
from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel, parse
from anyk.delays import settled as settled_law
from anyk.errors import BadInput
from anyk.fleet.auto.parts import FORMAT, NAME, Part, Parts, Shared, continues, keep_record, read_auto
from anyk.fleet.plans.candidates import built, specs_for
from anyk.fleet.records import Record, read
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, Vector, ensure_problem
from anyk.problems.many import ManyProblems
from anyk.protocol import models_trained
from anyk.runs import Run, usual_optimizer
from anyk.runs.callbacks import check_callbacks
from anyk.runs.evaluation.settings import USUAL, Evaluate, read_evaluate, spec_of
from anyk.runs.folder.config import write_sealed
from anyk.runs.folder.digests import digests_of, with_callbacks
from anyk.runs.folder.folders import check_plain, new_folder
from anyk.runs.folder.rebuilding import reopened
from anyk.runs.limits import LIMIT, STEPS
from anyk.strategies.building import from_spec

__all__ = ["Auto", "Part", "Settings", "continues", "left_out", "modes", "resume_auto", "train_auto"]

_LEAST = 5  # rounds that a plan takes


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
        """As :attr:`Run.history <anyk.runs.Run.history>`, over all runs and on one clock."""
        return self.history_of(self.run.slot)

    def history_of(self, slot: str) -> dict[str, NDArray[Any]]:
        """As :meth:`Run.history_of <anyk.runs.Run.history_of>`, over all runs and on one clock."""
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
                "plan": part.run.config.get("plan"),
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
    known = None if record is None else _of_fleet(record, workers)
    fleet = build_cluster(cluster, workers=workers, delays=law, seed=seed, communication=communication)
    if law.silent and fleet.virtual:
        raise BadInput("on a virtual clock without delays there is nothing to measure; give delays")
    if steps is None and seconds is None:
        steps = STEPS if target is None else LIMIT
    optimizer, evaluate = usual_optimizer(trained, optimizer), read_evaluate(evaluate)
    config: dict[str, Any] = {
        "format": FORMAT,
        "anyk": version("anyk"),
        "workers": workers,
        "models": models,
        "cluster": cluster,
        "delays": settled_law(law.spec),
        "communication": settled_law(fleet.communication.spec),
        "seed": seed,
        "optimizer": optimizer.spec,
        "lr": optimizer.rate.spec,
        "problem": trained.recipe(),
        "evaluate": spec_of(evaluate),
        "measure": measure,
        "every": every,
        "slope": slope,
        "max_load": max_load,
        "record": known is not None,
        "steps": steps,
        "seconds": seconds,
        "target": target,
    }
    hearing = check_callbacks(callbacks)
    if hearing.specs:
        config["callbacks"] = list(hearing.specs)
    folder = None if out is None else Path(out)
    if folder is not None:
        config["digests"] = digests_of(trained, fleet, config | {"strategy": "uncoded"})
        new_folder(folder, known=NAME)
        known = known and keep_record(known, folder)
        write_sealed(folder / NAME, config)

    shared = Shared(
        trained, optimizer, _alike(fleet, config), evaluate, checkpoint_every, hearing, tell or _silent, progress
    )
    parts = Parts(shared, config, folder, known)
    parts.train()
    return Auto(tuple(parts.done), left_out(workers, models))


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
    if any(value is not None for value in (steps, seconds, target)):
        if steps is None and seconds is None:
            steps = (config.get("steps") or 0) + LIMIT
        config |= {"steps": steps, "seconds": seconds, "target": target}
    trained = ManyProblems(problem) if isinstance(problem, Sequence) else problem
    again = reopened(folder, config, of, call="anyk.resume_auto", problem=trained, optimizer=optimizer, trust=trust)
    hearing = check_callbacks(callbacks)
    if hearing.specs and list(hearing.specs) != config.get("callbacks"):
        config = with_callbacks(config, hearing.specs)
    write_sealed(folder / NAME, config)

    shared = Shared(
        again.problem,
        again.optimizer,
        _alike(again.cluster, config),
        read_evaluate(config.get("evaluate", "")),
        checkpoint_every,
        hearing,
        tell or _silent,
        progress,
        trust,
    )
    parts = Parts.of_folder(shared, config, folder)
    parts.train()
    return Auto(tuple(parts.done), left_out(config["workers"], config["models"]))


def _alike(fleet: Cluster, config: dict[str, Any]) -> Callable[[], Cluster]:
    """Makes a cluster like this one, for each part another."""
    return lambda: build_cluster(
        config["cluster"],
        workers=config["workers"],
        delays=fleet.delays,
        seed=config["seed"],
        communication=fleet.communication,
    )


def _silent(text: str) -> None:
    del text


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
            one = built(spec, workers, models)
        possible[name] = possible.get(name, False) or (continues(one) and models_trained(one) == models)
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
