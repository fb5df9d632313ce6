"""Speed-ups of runs over a reference run, in the time to a target, to a loss or per job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from anyk.arrays import Floats
from anyk.runs.run import Run
from anyk.specs import parse

_EQUAL = 1e-9  # relative: losses of exact codes differ by rounding alone


class SpeedUp(NamedTuple):
    """The speed-up of a run over a reference.

    ``times``: the reference's seconds divided by the run's; None if the two cannot be compared. ``at``: the loss that
    both runs reached, or the target; None if jobs were compared. ``at_least``: the reference ended before the target,
    so that ``times`` is a lower bound.
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
    seconds, base = (None if each.asynchronous else each.seconds_a_job for each in (run, reference))
    return SpeedUp(base / seconds if seconds and base else None)


def _by_target(run: Run, reference: Run) -> SpeedUp:
    """Return the speed-up in seconds to the target; a lower bound if the reference ended before the target."""
    seconds, base = run.time_to_target, reference.time_to_target
    if not seconds:
        return SpeedUp(None)
    times = (reference.seconds if base is None else base) / seconds
    return SpeedUp(times, run.config.target, at_least=base is None)


def _by_loss(run: Run, reference: Run) -> SpeedUp:
    """Return the speed-up in seconds to the lowest loss that both reached, if it is below their initial losses."""
    (times, losses), (base_times, base_losses) = finite_values(run), finite_values(reference)
    if not losses.size or not base_losses.size:
        return SpeedUp(None)
    loss = max(float(losses.min()), float(base_losses.min()))
    bound = loss + _EQUAL * abs(loss)
    seconds, base = times[np.argmax(losses <= bound)], base_times[np.argmax(base_losses <= bound)]
    return SpeedUp(float(base / seconds), loss) if seconds > 0.0 and base > 0.0 else SpeedUp(None)


def finite_values(run: Run, name: str = "loss", against: str = "seconds") -> tuple[Floats, Floats]:
    """Return the seconds (or steps) and the finite values of a column of a run's history.

    ``against``: "seconds" or "step". Versions that were not evaluated have no value.
    """
    history = run.history
    column = history.get(name, np.full(len(history[against]), np.nan))  # a run that failed may have no metric
    finite = np.isfinite(column)
    return history[against][finite].astype(float), column[finite]
