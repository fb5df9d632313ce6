"""The cost of slow workers and its causes: a fleet record explained in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anyk.base import AtLeastZero, BadInput, Floats, keyed_generator, typed
from anyk.delays import fit
from anyk.fleet.explanation import attribution
from anyk.fleet.explanation.sentences import Explanation, WorkerCost, sentences
from anyk.fleet.records import Record, read
from anyk.fleet.records.reading import Readable
from anyk.fleet.simulation import simulate
from anyk.protocol import Strategy
from anyk.strategies import strategy as build_strategy

_MATERIAL = 0.01  # share of the run that a worker must cost to be named
_COSTLIEST = 10  # workers for which a run without their slowness is simulated


@typed
def explain(
    source: Readable,
    *,
    today: str | Strategy = "uncoded",
    seed: AtLeastZero = 0,
    round: str | None = None,
    worker: str | None = None,
    seconds: str | None = None,
    unit: str | None = None,
) -> Explanation:
    """Return the cost of slow workers in a measured fleet, their names, and the kind of their slowness.

    ``source``: a source of :func:`anyk.fleet.read`, whose columns and ``unit`` may be named as there. ``today``: the
    strategy in use, simulated on the record.
    ``seed`` of the shuffles against which findings are tested, so that chance leads to a finding of each kind in at
    most 5 % of fleets.

    Raises :class:`~anyk.BadInput` for fewer than two workers or rounds.

    >>> explanation = explain(Record([[1.0, 1.0, 3.0]] * 8))
    >>> explanation.slowdown, explanation.apart, explanation.workers[0].worker, explanation.named
    (3.0, 0.6666666666666666, 2, (2,))
    """
    record = read(source, unit=unit, round=round, worker=worker, seconds=seconds)
    return _explained(record, today, seed)


def _explained(record: Record, today: str | Strategy, seed: int) -> Explanation:
    """Return the explanation of a record."""
    times = record.seconds
    if min(times.shape) < 2:
        raise BadInput(f"explaining a fleet needs at least 2 rounds of 2 workers, got {len(times)} x {times.shape[1]}")
    n = len(record.workers)
    strategy = build_strategy(today, workers=n) if isinstance(today, str) else today
    generator = keyed_generator(seed, "explain")
    medians = attribution.lower_median(times)
    total, level = float(np.nanmax(times, axis=1).sum()), float(medians.sum())
    calm = len(medians) * float(np.quantile(medians, 0.5, method="lower"))
    costs = attribution.shares(times)
    culprits = attribution.culprits(times, generator)
    named = culprits.named & (costs.sum(axis=0) >= _MATERIAL * total)
    straggling = attribution.late(times)
    seconds = _seconds(strategy, times)
    order = np.argsort(-costs.sum(axis=0), kind="stable").tolist()
    law, misfit = _best_fit(record)
    burst_begins, burst_stops = attribution.gilbert_elliott(straggling)
    explanation = Explanation(
        seconds=total,
        slowdown=total / level if level else float("inf"),
        steady=calm / total,
        together=(level - calm) / total,
        apart=(total - level) / total,
        today=strategy.spec,
        today_seconds=seconds,
        workers=_worker_costs(record, strategy, seconds, costs, order),
        named=tuple(record.workers[i] for i in order if named[i]),
        blocks=culprits.blocks,
        too_short=culprits.too_short,
        saves={
            f"{percent} %": seconds - _seconds(strategy, at_median(times, order[: max(1, round(n * percent / 100))]))
            for percent in (1, 2, 5, 10)
        },
        saves_named=seconds - _seconds(strategy, at_median(times, np.flatnonzero(named).tolist())),
        mean_burst=attribution.mean_burst(straggling),
        bursty=bool(straggling.any()) and attribution.exceeds(straggling, attribution.mean_burst, generator),
        drift=attribution.drift(times),
        drifts=attribution.drifts(times),
        burst_begins=burst_begins,
        burst_stops=burst_stops,
        autocorrelation=tuple(attribution.autocorrelation(times)),
        heaviness=attribution.heaviness(times),
        groups=tuple(
            (tuple(record.workers[i] for i in members), mean) for members, mean in attribution.groups(times, generator)
        ),
        stages=_stages(record),
        law=law,
        misfit=misfit,
        censored=record.cut,
        sentences=(),
    )
    return replace(explanation, sentences=tuple(sentences(record, explanation, straggling)))


def _worker_costs(
    record: Record, strategy: Strategy, seconds: float, costs: Floats, order: Sequence[int]
) -> tuple[WorkerCost, ...]:
    """Return the costs of all workers in this ``order``, the costliest first; ``seconds``: of today's strategy."""
    times, total = record.seconds, costs.sum(axis=0)
    slowness = attribution.slowness_of(times)
    straggles = attribution.late(times).sum(axis=0) / record.rounds_measured
    saved = [seconds - _seconds(strategy, at_median(times, [i])) for i in order[:_COSTLIEST]]
    return tuple(
        WorkerCost(
            worker=record.workers[i],
            cost_seconds=float(total[i]),
            saves_seconds=saved[rank] if rank < len(saved) else None,
            relative=float(slowness[i]),
            individual=_own_best(times[:, i]),
            straggles=float(straggles[i]),
        )
        for rank, i in enumerate(order)
    )


def _seconds(strategy: Strategy, times: Floats) -> float:
    """Return a strategy's seconds for a step per round (a round without gaps, unless the strategy is uncoded)."""
    spec, workers = strategy.spec, times.shape[1]
    if spec == "uncoded":
        return float(np.nanmax(times, axis=1).sum())
    if strategy.layout.workers != workers:
        raise BadInput(f"'{spec}' is for {strategy.layout.workers} workers; the record has {workers}")
    complete = times[np.isfinite(times).all(axis=1)]
    if not len(complete):
        raise BadInput(f"simulating '{spec}' needs rounds in which every worker was measured; there is none")
    jobs = len(complete) - strategy.facts.extra_rounds
    if jobs < 1:
        raise BadInput(f"the record has too few rounds without gaps for '{spec}', {len(complete)}")
    return float(simulate(strategy, complete, jobs=jobs)[0].sum())


def at_median(times: Floats, places: Sequence[int]) -> Floats:
    """Return the times, with some workers at the median of the others in rounds in which they are slower."""
    repaired = times.copy()
    others = np.delete(times, places, axis=1)
    if others.shape[1]:
        level = attribution.lower_median(others)[:, None]
        repaired[:, places] = np.where(np.isfinite(level), np.minimum(repaired[:, places], level), repaired[:, places])
    return repaired


def _own_best(times: Floats) -> float:
    """Return the median of the last quarter of a worker's times over the median of its best quarter."""
    quarters = [float(np.median(quarter)) for quarter in np.array_split(times[np.isfinite(times)], 4) if len(quarter)]
    return quarters[-1] / min(quarters) if quarters and min(quarters) > 0 else 1.0


def _best_fit(record: Record) -> tuple[str, float]:
    """Return the spec of the delay model that fits best, and its misfit; "" and nan if none can be fitted."""
    measured = record.measured
    try:
        best = fit(record.seconds[measured], censored=np.asarray(record.censored)[measured])[0]
    except BadInput:
        return "", float("nan")
    return best.law.spec, best.misfit


def _stages(record: Record) -> dict[str, float]:
    """Return the median of each pipeline stage's seconds over the median stage's in the same replica and step."""
    if len(record.stages) < 2:
        return {}
    stacked = np.stack(list(record.stages.values()))
    level = np.sort(stacked, axis=0)[(len(stacked) - 1) // 2]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.nanmedian((stacked / level).reshape(len(stacked), -1), axis=1)
    return {name: float(value) for name, value in zip(record.stages, ratio, strict=True)}
