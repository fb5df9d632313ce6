"""What slow workers cost, and why: a fleet record explained in sentences that one can act on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.delays import fit
from anyk.errors import BadInput
from anyk.fleet.explanation import attribution
from anyk.fleet.records import Record, read
from anyk.fleet.simulation import simulate
from anyk.protocol import Strategy
from anyk.runs import Run
from anyk.strategies import strategy as build_strategy

Floats = NDArray[np.float64]
_MATERIAL = 0.01  # share of the run that a worker must cost to be named
_COSTLIEST = 10  # workers of whom it is simulated what a run without their slowness takes


@dataclass(frozen=True)
class WorkerCost:
    """What one worker costs.

    ``cost_seconds``: its Shapley share of the rounds' excess over their medians; ``saves_seconds``: what today's
    strategy would save with this worker at the others' median (None where not among the costliest); ``relative``: its
    median over the fleet's; ``individual``: the median of its last quarter over that of its own best; ``straggles``:
    the share of rounds in which it takes more than 1.5 times the median.
    """

    worker: int | str
    cost_seconds: float
    saves_seconds: float | None
    relative: float
    individual: float
    straggles: float


@dataclass(frozen=True)
class Explanation:
    """What a fleet record says; :func:`explain` makes it. Seconds are those of all rounds of the record.

    ``seconds`` (T): if every round waited for all. Of it ``steady`` is the share if all rounds were like the median
    one, ``together`` what rounds cost more in which all are slow, ``apart`` what is waited beyond the rounds' medians:
    they add up to 1. ``slowdown``: T over the sum of the rounds' medians. ``saves``: what today's strategy would save
    if the costliest 1, 2, 5 and 10 % of workers took the others' median.
    """

    seconds: float
    slowdown: float
    steady: float
    together: float
    apart: float
    today: str
    today_seconds: float
    workers: tuple[WorkerCost, ...]
    named: tuple[int | str, ...]
    saves: dict[str, float]
    mean_burst: float
    bursty: bool
    drift: float
    drifts: bool
    begin: float
    stop: float
    autocorrelation: tuple[float, ...]
    heaviness: float
    groups: tuple[tuple[tuple[int | str, ...], float], ...]
    stages: dict[str, float]
    law: str
    misfit: float
    censored: float
    sentences: tuple[str, ...]

    def report(self) -> dict[str, Any]:
        """All of it as plain values for JSON; a number that is not finite is None."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def explain(
    source: str | Path | Run | Record, *, today: str | Strategy = "uncoded", seed: int = 0, unit: str | None = None
) -> Explanation:
    """What slow workers cost in a measured fleet, who they are, and what kind of slowness it is.

    ``source``: whatever :func:`anyk.fleet.read` reads. ``today``: the strategy in use, simulated on the record.
    ``seed``: of the shuffles against which findings are tested, so that chance leads to a finding of each kind in at
    most 5 % of fleets.

    Raises :class:`~anyk.errors.BadInput` for fewer than two workers or rounds.

    >>> found = explain(Record([[1.0, 1.0, 3.0]] * 5))
    >>> found.slowdown, found.apart, found.workers[0].worker, found.named
    (3.0, 0.6666666666666666, 2, (2,))
    """
    record = read(source, unit=unit)
    times = record.seconds
    if min(times.shape) < 2:
        raise BadInput(f"explaining a fleet needs at least 2 rounds of 2 workers, got {len(times)} x {times.shape[1]}")
    generator = keyed.generator(seed, "explain")
    medians = attribution.lower_median(times)
    total, level = float(np.nanmax(times, axis=1).sum()), float(medians.sum())
    calm = len(medians) * float(np.sort(medians)[(len(medians) - 1) // 2])
    costs = attribution.shares(times)
    out = attribution.stands_out(costs, generator) & (costs.sum(axis=0) >= _MATERIAL * total)
    straggling = attribution.late(times)
    spec, taken, workers, saves = _saving(record, today, costs)
    laws = _laws(record)
    stages = _stages(record)
    begin, stop = attribution.gilbert_elliott(straggling)
    facts: dict[str, Any] = {
        "seconds": total,
        "slowdown": total / level if level else float("inf"),
        "steady": calm / total,
        "together": (level - calm) / total,
        "apart": (total - level) / total,
        "today": spec,
        "today_seconds": taken,
        "workers": tuple(workers),
        "named": tuple(one.worker for one in workers if out[record.workers.index(one.worker)]),
        "saves": saves,
        "mean_burst": attribution.mean_burst(straggling),
        "bursty": bool(straggling.any()) and attribution.exceeds(straggling, attribution.mean_burst, generator),
        "drift": attribution.drift(times),
        "drifts": attribution.exceeds(
            times, lambda rounds: abs(float(np.log(max(attribution.drift(rounds), 1e-12)))), generator
        ),
        "begin": begin,
        "stop": stop,
        "autocorrelation": tuple(attribution.autocorrelation(times)),
        "heaviness": attribution.heaviness(times),
        "groups": tuple(
            (tuple(record.workers[i] for i in members), mean) for members, mean in attribution.groups(times, generator)
        ),
        "stages": stages,
        "law": laws[0],
        "misfit": laws[1],
        "censored": record.cut,
    }
    from anyk.fleet.explanation.sentences import sentences

    return Explanation(**facts, sentences=tuple(sentences(record, facts, straggling)))


def _saving(
    record: Record, today: str | Strategy, costs: Floats
) -> tuple[str, float, list[WorkerCost], dict[str, float]]:
    """Today's strategy and seconds, the workers with the costliest first, and what mending some of them saves."""
    times, total = record.seconds, costs.sum(axis=0)
    spec, taken = _taken(today, record, times)
    order = np.argsort(-total, kind="stable")
    fleet = float(np.nanmedian(times))
    straggles = attribution.late(times).sum(axis=0) / record.seen
    workers = []
    for rank, i in enumerate(order.tolist()):
        mended = _taken(today, record, _at_median(times, [i]))[1] if rank < _COSTLIEST else None
        median = float(np.nanmedian(times[:, i]))
        workers.append(
            WorkerCost(
                record.workers[i],
                float(total[i]),
                None if mended is None else taken - mended,
                median / fleet if fleet else 1.0,
                _own_best(times[:, i]),
                float(straggles[i]),
            )
        )
    saves = {}
    for percent in (1, 2, 5, 10):
        first = order[: max(1, round(len(order) * percent / 100))].tolist()
        saves[f"{percent} %"] = taken - _taken(today, record, _at_median(times, first))[1]
    return spec, taken, workers, saves


def _taken(today: str | Strategy, record: Record, times: Floats) -> tuple[str, float]:
    """The strategy's spec, and the seconds it takes for as many steps as there are rounds (in rounds without gaps)."""
    found = build_strategy(today, workers=len(record.workers)) if isinstance(today, str) else today
    if found.spec == "uncoded":
        return found.spec, float(np.nanmax(times, axis=1).sum())
    if found.layout.workers != len(record.workers):
        raise BadInput(f"'{found.spec}' is for {found.layout.workers} workers; the record has {len(record.workers)}")
    whole = times[np.isfinite(times).all(axis=1)]
    if not len(whole):
        raise BadInput(f"simulating '{found.spec}' needs rounds in which every worker was measured; there is none")
    jobs = len(whole) - found.facts.extra_rounds
    if jobs < 1:
        raise BadInput(f"the record has too few rounds without gaps for '{found.spec}', {len(whole)}")
    return found.spec, float(simulate(found, whole, jobs=jobs)[0].sum())


def _at_median(times: Floats, places: list[int]) -> Floats:
    """The times with those of some workers at the median of the others in the same round."""
    mended = times.copy()
    others = np.delete(times, places, axis=1)
    if others.shape[1]:
        level = attribution.lower_median(others)[:, None]
        mended[:, places] = np.where(np.isfinite(level), np.minimum(mended[:, places], level), mended[:, places])
    return mended


def _own_best(times: Floats) -> float:
    """The median of the last quarter of a worker's times over that of its best quarter."""
    quarters = [float(np.median(part)) for part in np.array_split(times[np.isfinite(times)], 4) if len(part)]
    return quarters[-1] / min(quarters) if quarters and min(quarters) > 0 else 1.0


def _laws(record: Record) -> tuple[str, float]:
    """The law that fits best, and its misfit."""
    known = record.known
    try:
        best = fit(record.seconds[known], censored=np.asarray(record.censored)[known])[0]
    except BadInput:
        return "", float("nan")
    return best.law.spec, best.misfit


def _stages(record: Record) -> dict[str, float]:
    """Of each pipeline stage, the median of its seconds over those of the median stage of the same replica and step."""
    if len(record.stages) < 2:
        return {}
    stacked = np.stack(list(record.stages.values()))
    level = np.sort(stacked, axis=0)[(len(stacked) - 1) // 2]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.nanmedian((stacked / level).reshape(len(stacked), -1), axis=1)
    return {name: float(value) for name, value in zip(record.stages, ratio, strict=True)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value
