"""Training that finds its code itself: uncoded at first, measuring, then with what suits the delays measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel, parse
from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.planning.auto import Continued
from anyk.planning.sequential import Candidate, fit_slope, tune
from anyk.problems.base import Problem
from anyk.training.evaluate import USUAL, Evaluate
from anyk.training.many import train_many
from anyk.training.run import Run
from anyk.training.tracing import measured

_PATIENT = 1e9  # mu of the probe's code: a cut-off that cuts nobody off, so that every time is measured to its end
_LEAST = 1e-6  # seconds that a task is taken to last at least
_UNCODED, _CODED, _CHOSEN = "probe-uncoded", "probe-gc", "run"  # folders of the parts


@dataclass(frozen=True)
class Tuned(Continued):
    """What came of :func:`train_tuned`.

    ``runs``: two of the probe and the one with the code chosen, each begun where the one before stood. ``candidates``:
    the best of each kind with the seconds predicted for as many rounds as were probed, soonest first, and the first is
    the choice; empty where a limit was reached in the probe. ``slope``: seconds that the whole data takes beyond none,
    as fitted.
    """

    runs: tuple[Run, ...]
    candidates: tuple[Candidate, ...]
    slope: float

    @property
    def choice(self) -> Candidate | None:
        """What was trained with after the probe."""
        return self.candidates[0] if self.candidates else None

    @property
    def models(self) -> dict[str, Any]:
        """The final model of each slot."""
        return self.run.models


@typed
def train_tuned(
    problems: Sequence[Problem],
    *,
    workers: int,
    cluster: str = "processes",
    delays: str | DelayModel = "none",
    seed: int = 0,
    communication: str | DelayModel | Communication = "none",
    probe: int = 30,
    load: float = 0.125,
    mu: float = 1.0,
    optimizer: Optimizer | str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    evaluate: Evaluate | str | None = USUAL,
    callbacks: Sequence[Any] = (),
    progress: bool = False,
    before: Callable[[str, Sequence[Candidate]], None] | None = None,
) -> Tuned:
    """Train a model for each of ``problems`` at once: probe for some rounds, choose a code, and switch to it.

    The first half of at least ``probe`` rounds is uncoded, the second coded so that a worker's share of the data is
    about ``load`` (and not less than two parts of n): that tells what load costs. Both wait for all. On the delays so
    measured :func:`tune` replays no coding and every ``gc``, ``sr-sgc`` and ``m-sgc`` that as many models allow,
    with a cut-off at ``1 + mu`` times a round's fastest, and the soonest is trained with from there on. All of them
    give the sums of the whole data, so the models are those of full gradient steps from the beginning.

    A run with a code of its own begins where the one before stands (:func:`anyk.train`), with workers of its own,
    on a clock of its own; no job is under way when one ends. ``steps`` (of each model), ``seconds`` and ``target``
    are of all together: where one is reached in the probe nothing is chosen. ``out``: a folder that gets a run folder
    for each part, of which the last, ``run``, can be resumed. ``before`` is called with each part's strategy, and with
    the candidates when one has been chosen. Otherwise as :func:`anyk.race`.

    Raises :class:`~anyk.errors.BadInput` where steps leave nothing after the probe.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> found = train_tuned([problem] * 2, workers=6, cluster="simulated", delays="bimodal:fast=0.1,slow=1", steps=20)
    >>> found.choice.spec, found.run.begun, found.history_of("model 1")["step"].size
    ('gc:stragglers=4', 16, 21)
    """
    models = len(problems)
    if not problems:
        raise BadInput("there is no problem to train on")
    if workers < 2:
        raise BadInput("a code needs at least 2 workers; with one there is nothing to choose")
    if probe < 2:
        raise BadInput(f"probe must be at least 2 rounds, one at each of two loads, got {probe}")
    if not 0.0 < load <= 1.0:
        raise BadInput(f"load must be a share of the data above 0 and at most 1, got {load:g}")
    if not 0.0 <= mu < float("inf"):
        raise BadInput(f"mu must be a finite number of at least 0, got {mu:g}")
    half = -(-probe // (2 * models))  # steps of each model
    if steps is not None and steps <= 2 * half:
        raise BadInput(
            f"the probe of {2 * half * models} rounds takes {2 * half} steps of each of {models} models; steps must be "
            f"more than that, got {steps}"
        )
    stragglers = min(workers - 1, max(1, round(load * workers) - 1))
    law = parse(delays) if isinstance(delays, str) else delays
    folder = None if out is None else Path(out)
    if folder is not None and folder.exists():
        raise BadInput(f"the folder '{folder}' exists; choose another")
    if law.silent and build_cluster(cluster, workers=workers).virtual:
        raise BadInput("on a virtual clock without delays there is nothing to measure; give delays")
    runs: list[Run] = []

    def part(name: str, spec: str, upto: int | None) -> bool:
        """Train on with another strategy; whether no limit of the whole was reached."""
        run = train_many(
            problems,
            spec,
            build_cluster(cluster, workers=workers, delays=law, seed=seed, communication=communication),
            optimizer=optimizer,
            steps=upto,
            seconds=None if seconds is None else seconds - sum(run.seconds for run in runs),
            target=target,
            begin=runs[-1] if runs else None,
            out=None if folder is None else folder / name,
            evaluate=evaluate,
            callbacks=callbacks,
            progress=progress,
        )
        runs.append(run)
        return run.time_to_target is None and (seconds is None or sum(run.seconds for run in runs) < seconds)

    tables: list[tuple[float, NDArray[np.float64]]] = []
    for name, spec, upto in (
        (_UNCODED, "uncoded", half),
        (_CODED, f"gc:stragglers={stragglers},end=cutoff,mu={_PATIENT:g}", 2 * half),
    ):
        if before is not None:
            before(spec, ())
        if not part(name, spec, upto) or runs[-1].steps < upto:
            return Tuned(tuple(runs), (), float("nan"))
        times, _, share = measured(runs[-1])
        tables.append((share, times))
    slope = max(0.0, fit_slope(tables))  # that more data takes less time is chance
    (lowest, uncoded), (higher, coded) = tables
    rounds = np.vstack([uncoded, np.maximum(coded - (higher - lowest) * slope, _LEAST)])
    candidates = tuple(tune(rounds, models=models, load=lowest, slope=slope, mu=mu))
    if before is not None:
        before(candidates[0].spec, candidates)
    part(_CHOSEN, candidates[0].spec, steps)
    return Tuned(tuple(runs), candidates, slope)
