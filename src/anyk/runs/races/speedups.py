"""Speed-ups of runs over a reference that came equally far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from anyk.problems.base import Floats
from anyk.runs.run import Run
from anyk.specs import parse

_EQUAL = 1e-9  # relative: losses of exact codes differ by rounding alone


class SpeedUp(NamedTuple):
    """The speed-up of a run over a reference.

    ``times``: the reference's seconds over the run's; None if the two cannot be compared. ``at``: the loss that both
    runs reached, or the target; None if jobs were compared. ``at_least``: the reference ended before the target.
    """

    times: float | None
    at: float | None = None
    at_least: bool = False


class Comparison(NamedTuple):
    """Speed-ups of runs ``over`` a reference (its strategy's spec), measured ``by`` the target, the loss or jobs."""

    over: str
    by: Literal["target", "loss", "job"]
    speed_ups: tuple[SpeedUp, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """Return the speed-ups of runs over the run of ``uncoded`` or, without that strategy, over the first run.

    With a target the times to the target are compared; without, the times to the lowest loss that both runs reached.
    Runs of several models are compared by seconds per job (a step of one model), unless they are asynchronous, as a
    step is then one worker's gradient.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> race = anyk.race(problem, ["uncoded", "frc:load=3"], workers=6, cluster="simulated", delays="exp:mean=1",
    ...                  steps=20)
    >>> comparison = compare(race.runs)
    >>> comparison.over, comparison.by, round(comparison.speed_ups[1].times, 2)
    ('uncoded', 'loss', 6.63)
    """
    reference = next((run for run in runs if _waits_for_all(run.config.strategy)), runs[0])
    over = reference.config.strategy
    if any(run.models_trained > 1 for run in runs):
        return Comparison(over, "job", tuple(_by_job(run, reference) for run in runs))
    if any(run.config.target is not None for run in runs):
        return Comparison(over, "target", tuple(_by_target(run, reference) for run in runs))
    return Comparison(over, "loss", tuple(_by_loss(run, reference) for run in runs))


def _waits_for_all(spec: str) -> bool:
    name, values = parse(spec)
    return name in ("uncoded", "sync") and not {"wait", "decoder"} & values.keys()


def _by_job(run: Run, reference: Run) -> SpeedUp:
    """Return the speed-up in seconds per job."""
    mine, others = (None if each.asynchronous else each.seconds_a_job for each in (run, reference))
    return SpeedUp(others / mine if mine and others else None)


def _by_target(run: Run, reference: Run) -> SpeedUp:
    """Return the speed-up in seconds to the target; a lower bound if the reference ended before."""
    mine, others = run.time_to_target, reference.time_to_target
    if not mine:
        return SpeedUp(None)
    times = (reference.seconds if others is None else others) / mine
    return SpeedUp(times, run.config.target, at_least=others is None)


def _by_loss(run: Run, reference: Run) -> SpeedUp:
    """Return the speed-up in seconds to the lowest loss that both reached, if it is below their initial losses."""
    (mine, losses), (others, theirs) = evaluated(run), evaluated(reference)
    if not losses.size or not theirs.size:
        return SpeedUp(None)
    at = max(float(losses.min()), float(theirs.min()))
    bound = at + _EQUAL * abs(at)
    first, other = mine[np.argmax(losses <= bound)], others[np.argmax(theirs <= bound)]
    return SpeedUp(float(other / first), at) if first > 0.0 and other > 0.0 else SpeedUp(None)


def evaluated(run: Run, name: str = "loss", against: str = "seconds") -> tuple[Floats, Floats]:
    """Return seconds (or steps, ``against`` "step") and values of the versions whose column ``name`` is known."""
    history = run.history
    column = history.get(name, np.full(len(history[against]), np.nan))  # a run that failed may have no metric
    good = np.isfinite(column)
    return history[against][good].astype(float), column[good]
