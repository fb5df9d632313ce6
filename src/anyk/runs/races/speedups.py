"""Speed-ups of runs over a reference run, in the time to a target, to a loss or per job.

With several seeds: medians and ranges of each strategy, and speed-ups of runs with the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.specs import parse_spec
from anyk.runs.run import Run

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
    name, values = parse_spec(spec)
    return name in ("uncoded", "sync") and not {"wait", "decoder"} & values.keys()


def _by_job(run: Run, reference: Run) -> SpeedUp:
    """Return the speed-up in seconds per job."""
    seconds, base = (None if one_run.asynchronous else one_run.seconds_a_job for one_run in (run, reference))
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


# ------------------------------------------------------------------------------------------- several seeds


class Spread(NamedTuple):
    """The median, least and largest value over seeds; None stands for a missing value."""

    median: float | None
    least: float | None
    most: float | None


def spread(values: Iterable[float | None], *, missing: float = math.inf) -> Spread:
    """Return the spread of at least one value; missing values count as worse than all others.

    ``missing``: inf for a value to be minimised, -inf for a value to be maximised.

    >>> spread([3.0, 1.0, 2.0]), spread([3.0, None, 2.0]).most, spread([1.0, None, None], missing=-math.inf).median
    (Spread(median=2.0, least=1.0, most=3.0), None, None)
    """
    ordered = sorted(missing if value is None or math.isnan(value) else value for value in values)
    return Spread(*(value if math.isfinite(value) else None for value in (median(ordered), ordered[0], ordered[-1])))


CONFIDENCE = 0.95


class Mean(NamedTuple):
    """The mean over seeds, with the ends of its 95 % confidence interval; None stands for a missing value."""

    mean: float | None
    low: float | None
    high: float | None


def mean_over(values: Iterable[float | None]) -> Mean:
    """Return the mean of at least one value with its 95 % confidence interval, by Student's t (Student 1908).

    There is no mean if a value is missing, as the mean of the others would favour whoever missed a target; and no
    interval of a single value.

    >>> mean_over([3.0, 1.0, 2.0]), mean_over([3.0, None]).mean, mean_over([3.0]).low
    (Mean(mean=2.0, low=-0.4841..., high=4.4841...), None, None)
    """
    every = list(values)
    finite = [value for value in every if value is not None and math.isfinite(value)]
    if not finite or len(finite) < len(every):
        return Mean(None, None, None)
    mean = float(np.mean(finite))
    if len(finite) == 1:
        return Mean(mean, None, None)
    from scipy.stats import t

    half = float(t.ppf(0.5 + CONFIDENCE / 2.0, len(finite) - 1) * np.std(finite, ddof=1) / math.sqrt(len(finite)))
    return Mean(mean, mean - half, mean + half)


@dataclass(frozen=True)
class OverSeeds:
    """The runs of a strategy by seed, and the speed-up of each over the reference's run with the same seed.

    A speed-up is None if the reference has not run with that seed.
    """

    strategy: str
    runs: tuple[Run, ...]
    speed_ups: tuple[SpeedUp | None, ...]

    def spread(self, of: Callable[[Run], float | None]) -> Spread:
        """Return the spread over seeds of a value to be minimised, such as seconds or the loss."""
        return spread(map(of, self.runs))

    @property
    def metric(self) -> Spread:
        """The spread of the final models' metric over the seeds."""
        worst = -math.inf if self.runs[0].config.better == "higher" else math.inf
        return spread(((run.metric or {}).get("value") for run in self.runs), missing=worst)

    @property
    def speed_up(self) -> Spread | None:
        """The spread of the speed-ups; None before the reference has run.

        A run that did not come as far as the reference counts as slower than all others.
        """
        times = [speed_up.times for speed_up in self.speed_ups if speed_up is not None]
        return spread(times, missing=-math.inf) if times else None

    @property
    def at_least(self) -> bool:
        """Whether the speed-ups are lower bounds, as the reference missed the target with some seed."""
        return any(speed_up is not None and speed_up.at_least for speed_up in self.speed_ups)

    @property
    def reached(self) -> int | None:
        """The number of seeds with which the target was reached; None without a target."""
        if self.runs[0].config.target is None:
            return None
        return sum(run.time_to_target is not None for run in self.runs)

    def values(self) -> dict[str, list[float | None]]:
        """Return steps, seconds, loss, metric, time to the target and speed-up of each run.

        A speed-up that is only a lower bound, as the reference missed the target, is missing.
        """
        ups = [None if by is None or by.at_least else by.times for by in self.speed_ups]
        return {
            "steps": [float(run.steps) for run in self.runs],
            "seconds": [run.seconds for run in self.runs],
            "loss": [run.loss for run in self.runs],
            "metric": [(run.metric or {}).get("value") for run in self.runs],
            "time_to_target": [run.time_to_target for run in self.runs],
            "speed_up": ups,
        }

    def result(self) -> dict[str, Any]:
        """Return the strategy's results in the form that ``--json`` writes: medians, ranges, and means."""
        spreads = {
            "steps": self.spread(lambda run: run.steps),
            "seconds": self.spread(lambda run: run.seconds),
            "loss": self.spread(lambda run: run.loss),
            "metric": self.metric,
            "time_to_target": self.spread(lambda run: run.time_to_target),
            "speed_up": self.speed_up,
        }
        means = {name: mean_over(values)._asdict() for name, values in self.values().items()}
        plain = {name: value and value._asdict() | means[name] for name, value in spreads.items()}
        return {"strategy": self.strategy, "seeds": len(self.runs), "reached": self.reached} | plain


class SeedsComparison(NamedTuple):
    """Strategies over their seeds; ``over`` and ``by`` are as in :class:`Comparison`.

    ``speed_ups``: of all runs, in their order.
    """

    over: str
    by: Literal["target", "loss", "job"]
    strategies: tuple[OverSeeds, ...]
    speed_ups: tuple[SpeedUp | None, ...]


def grouped(runs: Sequence[Run]) -> list[tuple[Run, ...]]:
    """Return the runs of each strategy, if they differ in nothing but their seeds; else each run in its own group."""
    if len({(run.config.strategy, run.config.seed) for run in runs}) < len(runs):  # some differ in other settings
        return [(run,) for run in runs]
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        groups.setdefault(run.config.strategy, []).append(run)
    return [tuple(groups[spec]) for spec in dict.fromkeys(run.config.strategy for run in runs)]


def compare_seeds(runs: Sequence[Run]) -> SeedsComparison:
    """Compare each run with the run of the reference that has the same seed, with the reference of :func:`compare`.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> race = anyk.race(problem, ["uncoded", "frc:load=3"], workers=6, cluster="simulated", delays="exp:mean=1",
    ...                  steps=20, seeds=3)
    >>> uncoded, coded = compare_seeds(race.runs).strategies
    >>> coded.strategy, len(coded.runs), [round(value, 2) for value in coded.speed_up]
    ('frc:load=3', 3, [4.89, 4.49, 6.63])
    """
    groups = grouped(runs)
    over, by, _ = compare([group[0] for group in groups])
    by_seed: dict[int, SpeedUp] = {}
    for seed in {run.config.seed for run in runs}:
        same = [run for group in groups for run in group if run.config.seed == seed]
        paired = compare(same)
        if paired.over == over:
            by_seed.update(zip(map(id, same), paired.speed_ups, strict=True))
    strategies = tuple(
        OverSeeds(group[0].config.strategy, group, tuple(by_seed.get(id(run)) for run in group)) for group in groups
    )
    speed_ups = tuple(by_seed.get(id(run)) for run in runs)
    return SeedsComparison(over=over, by=by, strategies=strategies, speed_ups=speed_ups)
