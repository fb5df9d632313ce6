"""A race: several strategies on the same problem, with the same stragglers, one after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel, parse
from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem
from anyk.strategies import strategy as build_strategy
from anyk.training.comparing import compare
from anyk.training.launch import Watch, train
from anyk.training.run import Run, setup


@dataclass(frozen=True)
class Race:
    """The runs of a race, in the order they were given."""

    runs: tuple[Run, ...]

    def report(self) -> dict[str, Any]:
        """Set-up and results, in the shape that ``--json`` writes."""
        found = compare(self.runs)
        lines = [run.result() | {"speed_up": one.times} for run, one in zip(self.runs, found.speed_ups, strict=True)]
        return setup(self.runs[0].config) | {"speed_up_over": found.over, "speed_up_by": found.by, "runs": lines}


def race(
    problem: Problem,
    strategies: Sequence[str],
    *,
    workers: int,
    cluster: str = "processes",
    delays: str | DelayModel = "none",
    seed: int = 0,
    communication: str | Communication = "none",
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
    before: Callable[[str], None] | None = None,
) -> Race:
    """Train with each of ``strategies`` (specs) on its own cluster with the same delays and seed.

    ``out`` is a folder that gets one run folder for each. Every strategy ends at the first of ``steps``, ``seconds``
    and ``target`` that it reaches. ``before`` is called with each spec in turn.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> result = race(problem, ["uncoded", "frc:load=3"], workers=6, cluster="simulated", delays="exp:mean=1", steps=20)
    >>> uncoded, coded = result.runs
    >>> coded.seconds < uncoded.seconds
    True
    """
    if not strategies:
        raise BadInput("a race needs at least one strategy")
    model = parse(delays) if isinstance(delays, str) else delays
    folders: list[Path | None] = [None] * len(strategies)
    if out is not None:
        folders = [Path(out) / name for name in _folder_names(strategies)]
        for folder in folders:
            if folder is not None and folder.exists():
                raise BadInput(f"the run folder '{folder}' exists; choose another --out")
    for spec in strategies:
        build_strategy(spec, workers=workers)  # all must be good before the first runs
    runs = []
    for spec, folder in zip(strategies, folders, strict=True):
        if before is not None:
            before(spec)
        runs.append(
            train(
                problem,
                spec,
                build_cluster(cluster, workers=workers, delays=model, seed=seed, communication=communication),
                optimizer=optimizer,
                steps=steps,
                seconds=seconds,
                target=target,
                out=folder,
                watch=watch,
            )
        )
    return Race(tuple(runs))


def racers(workers: int) -> tuple[str, ...]:
    """What races where nobody says: waiting for all, an exact code, an approximate one, and not waiting at all.

    >>> racers(30)
    ('uncoded', 'frc:load=3', 'agc:load=3,wait=11', 'async:step=0.05')
    >>> racers(10)
    ('uncoded', 'frc:stragglers=2', 'frc:stragglers=2,wait=4', 'async:step=0.05')
    """
    if workers < 2:
        return ("uncoded", "async:step=0.05")
    stragglers = min(2, workers - 1)
    even = workers % (stragglers + 1) == 0
    exact = f"frc:load={stragglers + 1}" if even else f"frc:stragglers={stragglers}"
    early = f"agc:load={stragglers + 1}" if even else exact
    step = 0.05 if workers <= 30 else float(f"{1.5 / workers:.2g}")  # a gradient is about n versions old
    return ("uncoded", exact, f"{early},wait={max(1, round(workers * 11 / 30))}", f"async:step={step:g}")


def _folder_names(strategies: Sequence[str]) -> list[str]:
    names: list[str] = []
    for spec in strategies:
        name = re.sub(r"[^A-Za-z0-9.=-]+", "-", spec).strip("-")
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names
