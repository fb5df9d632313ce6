"""The findings of :func:`anyk.explain` as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from anyk.base import ByName, Flags, Floats
from anyk.delays import DelayModel, parse
from anyk.fleet.explanation.attribution import BLOCKS, DRIFT, STRAGGLER, lower_median, mean_burst, slow_kind
from anyk.fleet.records import Record


@dataclass(frozen=True)
class WorkerCost:
    """The cost of one worker.

    ``cost_seconds``: its Shapley share of the rounds' excess over their medians; ``saves_seconds``: seconds that
    today's strategy would save with this worker at the others' median (None unless it is among the costliest);
    ``relative``: its median time over the median worker's in the same rounds; ``individual``: the median of its last
    quarter of rounds over the median of its best quarter; ``straggles``: the share of rounds in which it takes more
    than 1.5 times the median.
    """

    worker: int | str
    cost_seconds: float
    saves_seconds: float | None
    relative: float
    individual: float
    straggles: float


@dataclass(frozen=True)
class Explanation:
    """The findings of :func:`explain` about a fleet record. Seconds are totals over all rounds of the record.

    ``seconds`` (T): if every round waited for all. ``steady`` is the share of T if all rounds were like the median
    round, ``together`` the excess of rounds in which all are slow, ``apart`` the waiting beyond the rounds' medians:
    they add up to 1. ``slowdown``: T over the sum of the rounds' medians. ``named``: the workers that cost more than
    chance explains; none if the record is ``too_short``, as it has six independent ``blocks`` of rounds or fewer.
    ``saves``: seconds that today's strategy would save if the costliest 1, 2, 5 and 10 % of workers took the others'
    median; ``saves_named``: if all that are named did. ``mean_burst``: rounds for which a straggler stays one at a
    time, and ``bursty``, whether these are more than chance explains; ``burst_begins`` and ``burst_stops``: the
    probabilities, in a round, that a worker becomes a straggler and that a straggler ceases to be one. ``drift``: the
    last quarter of the rounds over the first, and ``drifts``, whether chance does not explain it. ``autocorrelation``
    of the median's times, from one round apart. ``heaviness``: the exponent of the tail, infinite variance below 2.
    ``groups``: workers that are slow together, with the mean correlation. ``stages``: each pipeline stage's median
    over the median stage's. ``law``: the spec of the delay model that fits best, and its ``misfit``. ``censored``: the
    share of times that were cut off.
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
    blocks: float
    too_short: bool
    saves: dict[str, float]
    saves_named: float
    mean_burst: float
    bursty: bool
    drift: float
    drifts: bool
    burst_begins: float
    burst_stops: float
    autocorrelation: tuple[float, ...]
    heaviness: float
    groups: tuple[tuple[tuple[int | str, ...], float], ...]
    stages: dict[str, float]
    law: str
    misfit: float
    censored: float
    sentences: tuple[str, ...]

    def report(self) -> dict[str, Any]:
        """Return all findings as plain values for JSON; a number that is not finite is None."""
        plain: ByName = msgspec.json.decode(msgspec.json.encode(self))
        return plain


_MANY = 5  # workers that are described one by one
_LITTLE = 0.01  # share of the run that waiting has to take for a sentence about who causes it
_LASTING = 0.85  # share of rounds in which a worker that is slow for good is slower than the others
_SLIGHTLY = 1.05  # times the others' median
_NEARLY_ALL = 0.9  # share of workers
_SLOW_ROUND = 1.3  # times the median round
_LONG = 3  # slow rounds in a row
_HEAVY = 2.0  # tail exponent below which the variance is infinite
_MISFIT = 0.1


def sentences(record: Record, explanation: Explanation, straggling: Flags) -> Iterator[str]:
    """Yield the findings as sentences, the most important first."""
    yield from _costs(record, explanation)
    yield from _named(record, explanation)
    yield from _kinds(record)
    yield from _savings(record, explanation)
    yield from _bursts(record, explanation, straggling)
    yield from _together(record, explanation)
    yield from _stages(explanation)
    if explanation.drifts and not 1 / DRIFT < explanation.drift < DRIFT:
        how = "slower" if explanation.drift > 1 else "faster"
        factor = max(explanation.drift, 1 / explanation.drift)
        yield f"the fleet drifts: the last quarter of the rounds is {factor:.2g} times {how} than the first"
    if explanation.heaviness < _HEAVY:
        yield (
            f"the tail is heavy (exponent {explanation.heaviness:.2g}): rare stalls decide how long runs take, and "
            "forecasts from few rounds are unsure"
        )
    if explanation.law and explanation.misfit > _MISFIT:
        yield (
            f"no simple delay model fits the times well (the best is {rounded(parse(explanation.law), 3)}, misfit "
            f"{explanation.misfit:.2f})"
        )
    elif explanation.law:
        yield f"the times are close to {rounded(parse(explanation.law), 3)} (misfit {explanation.misfit:.2f})"


def _costs(record: Record, explanation: Explanation) -> Iterator[str]:
    total, apart = explanation.seconds, explanation.apart
    yield (
        f"waiting for slow workers takes {percent(apart)} of the {seconds_text(total)} s that {len(record.rounds)} "
        f"rounds take if all are waited for: {seconds_text(apart * total)} s beyond the rounds' medians (slowdown "
        f"{explanation.slowdown:.3g})"
    )
    if explanation.today != "uncoded":
        ahead = explanation.today_seconds < (1 - apart) * total
        reason = "; it steps before the median worker is done" if ahead else ""
        yield f"'{explanation.today}' takes {seconds_text(explanation.today_seconds)} s for them{reason}"
    if explanation.censored:
        level = lower_median(record.seconds)[:, None]
        cut = (np.asarray(record.censored) & (record.seconds <= level)).any()
        bounded = " also of the rounds' medians," if cut else ""
        yield (
            f"{percent(explanation.censored)} of the times were cut off: the costs are lower bounds,"
            f"{bounded} since how long those workers would have taken is not known"
        )
    yield from record.vanished()


def _named(record: Record, explanation: Explanation) -> Iterator[str]:
    total = explanation.seconds
    costs = {worker.worker: worker.cost_seconds for worker in explanation.workers}
    named = explanation.named
    if not named and explanation.apart > _LITTLE:
        first = explanation.workers[0]
        cost = f"{called(first.worker)} costs most, {percent(first.cost_seconds / total)} of the run"
        if explanation.too_short:
            rounds = len(record.rounds)
            parts = max(1, int(explanation.blocks))
            lasting = f", and slowness lasts so long that they count as {parts}" if parts < rounds else ""
            yield (
                f"the record is too short to name anybody: it has {rounds} rounds{lasting}, and naming takes more than "
                f"{BLOCKS} independent ones; {cost}: {_slow_how(record, first.worker, ())}, which may be chance"
            )
        else:
            yield f"no worker is shown to cost more than chance explains; {cost}"
        return
    if len(named) > _MANY:
        share = sum(costs[name] for name in named) / total
        yield f"{len(named)} workers stand out and cost {percent(share)} of the run: {_listed(named)}"
        named = named[:3]
    for name in named:
        how = _slow_how(record, name, explanation.named)
        yield f"{called(name)} costs {percent(costs[name] / total)} of the run: {how}"


def _ratios(record: Record, name: int | str, named: Sequence[int | str]) -> Floats:
    """Return a worker's times over the median of the others, in its rounds, shape (rounds,).

    Others that are named do not count, unless all of them are.
    """
    i = record.workers.index(name)
    left_out = {i, *(record.workers.index(other) for other in named)}
    if len(left_out) == len(record.workers):
        left_out = {i}
    others = lower_median(np.delete(record.seconds, sorted(left_out), axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = record.seconds[:, i] / others
    return ratios[np.isfinite(record.seconds[:, i]) & np.isfinite(others)]


def _slow_how(record: Record, name: int | str, named: Sequence[int | str]) -> str:
    """Return by how much a worker is slower than the others, and in which share of its rounds, as text."""
    ratios = _ratios(record, name, named)
    if not len(ratios):
        return "it was never measured together with others"
    typical, slower = float(np.median(ratios)), float((ratios > 1.0).mean())
    late = ratios > STRAGGLER
    if slower >= _LASTING and typical > _SLIGHTLY:
        return (
            f"it is {_times(typical)} times slower than the others at the median, and slower in {percent(slower)} of "
            "rounds"
        )
    if late.any():
        return (
            f"it takes over {STRAGGLER:g} times the others' median in {percent(float(late.mean()))} of rounds, and "
            f"{_times(float(np.median(ratios[late])))} times as long there"
        )
    return f"it is slower than the others' median in {percent(slower)} of rounds"


def _times(factor: float) -> str:
    return f"{factor:.2g}" if factor < 99.5 else f"{factor:,.0f}"


def called(name: int | str) -> str:
    """Return a worker's name in a sentence.

    >>> called(3), called("gpu-7"), called("Worker 2")
    ('worker 3', 'worker gpu-7', 'Worker 2')
    """
    return str(name) if str(name).lower().startswith("worker") else f"worker {name}"


def _kinds(record: Record) -> Iterator[str]:
    if (kind := slow_kind(record.seconds)) is not None:
        slow, factor = kind
        fast = len(record.workers) - len(slow)
        yield (
            f"half of the workers or more are of a slow kind: {len(slow)} are {factor:.2g} times slower than the other "
            f"{fast}, so that the median is theirs; larger partitions for the fast ones would help"
        )


def _savings(record: Record, explanation: Explanation) -> Iterator[str]:
    today = explanation.today_seconds
    if not today or not explanation.named:
        return
    first = next(worker for worker in explanation.workers if worker.worker in explanation.named)
    if first.saves_seconds is not None:
        share = first.saves_seconds / today
        if share >= 0.01:
            yield f"with {called(first.worker)} at the others' median, today's run would take {percent(share)} less"
        elif len(explanation.named) > 1:
            joint = max(explanation.saves_named, 0.0) / today
            yield (
                f"mending {called(first.worker)} alone would save {percent(max(share, 0.0))}, as others are as slow; "
                f"mending all {len(explanation.named)} that stand out would save {percent(joint)}"
            )
        elif explanation.today != "uncoded":
            reason = f"'{explanation.today}' does not wait for it"
            yield f"mending {called(first.worker)} would save next to nothing: {reason}"
        else:
            yield f"mending {called(first.worker)} alone would save next to nothing: others are slow in the same rounds"


def _bursts(record: Record, explanation: Explanation, straggling: Flags) -> Iterator[str]:
    for_good = np.array([_for_good(record, explanation, name) for name in record.workers])
    if for_good.any():
        yield _remedy(record, [record.workers[i] for i in np.flatnonzero(for_good)])
    passing = straggling[:, ~for_good]
    if not passing.any():
        others = "other " if for_good.any() else ""
        yield f"no {others}worker takes more than {STRAGGLER:g} times a round's median"
        return
    length = mean_burst(passing)
    rounded = f"{length:.2g}" if length < 10 else f"{length:.0f}"
    plural = "round" if rounded == "1" else "rounds"
    if explanation.bursty and length > 1.5:
        yield (
            f"stragglers last {rounded} {plural}, longer than chance would have it: codes that span several rounds "
            "(m-sgc, sr-sgc) can make use of that"
        )
    else:
        others = "other " if for_good.any() else ""
        yield f"{others}stragglers last {rounded} {plural}: coding within a round is enough"


def _for_good(record: Record, explanation: Explanation, name: int | str) -> bool:
    """Return whether a named worker is slower in most of its rounds, and in each third of them."""
    if name not in explanation.named:
        return False
    ratios = _ratios(record, name, explanation.named)
    thirds = [third for third in np.array_split(ratios, 3) if len(third)]
    return bool(
        len(ratios) and float((ratios > 1.0).mean()) >= _LASTING and all(np.median(t) > _SLIGHTLY for t in thirds)
    )


def _remedy(record: Record, names: Sequence[int | str]) -> str:
    """Return what to do about workers that are slow for good, by the part of their time that is slow if it is known."""
    are, its, them = ("is", "its", "it") if len(names) == 1 else ("are", "their", "them")
    who = called(names[0]) if len(names) == 1 else f"workers {_listed(names)}"
    begin = f"{who} {are} slow for good"
    if "compute" not in record.parts:
        return (
            f"{begin}: if {its} computing is slow, smaller shares of the data would "
            f"suit {them} (balance=auto); if it is a link or a sleep, which this record does not tell, they would not"
        )
    excess = sum(_excess(record, record.seconds, name) for name in names)
    computing = sum(_excess(record, record.parts["compute"], name) for name in names)
    if computing >= 0.5 * excess:
        return f"{begin}, and so is {its} computing: smaller shares of the data would suit {them} (balance=auto)"
    return f"{begin}, but not by computing: smaller shares of the data would not help, look at links and delays"


def _excess(record: Record, table: Floats, name: int | str) -> float:
    """Return the median seconds by which a worker exceeds the others' median in a table of the record."""
    i = record.workers.index(name)
    excess = table[:, i] - lower_median(np.delete(table, i, axis=1))
    measured = excess[~np.isnan(excess)]
    return float(np.median(measured)) if measured.size else 0.0  # a worker that was never there with others


def _together(record: Record, explanation: Explanation) -> Iterator[str]:
    for members, mean in explanation.groups[:3]:
        yield (
            f"workers {_listed(members)} are slow in the same rounds (correlation {mean:.2f}): they may share a "
            "node or a rack, and copies of the same data should not all be there"
        )
    medians = lower_median(record.seconds)
    slow = medians > _SLOW_ROUND * np.median(medians)
    waves = [(start, end) for start, end in spans(slow) if end - start >= _LONG]
    if waves:
        numbers = ", ".join(f"{record.rounds[a]} to {record.rounds[b - 1]}" for a, b in waves[:4])
        more = f" and {len(waves) - 4} more times" if len(waves) > 4 else ""
        if all(_all_slow(record.seconds, a, b) for a, b in waves):
            yield f"all workers slow down together in rounds {numbers}{more}: no code helps there"
        else:
            yield f"half of the workers or more are slow at once in rounds {numbers}{more}: codes help little there"
    elif explanation.together > 0.1:
        yield (
            f"rounds whose median worker is slower than in the median round take {percent(explanation.together)} of "
            "the run: no code helps there"
        )


def _all_slow(times: Floats, start: int, end: int) -> bool:
    """Return whether nearly all workers take longer in these rounds than at the median of the others."""
    outside = np.delete(times, np.arange(start, end), axis=0)
    measured = np.isfinite(outside).any(axis=0) & np.isfinite(times[start:end]).any(axis=0)
    if not measured.any():
        return False
    within = np.nanmedian(times[start:end, measured], axis=0)
    return bool((within > _SLIGHTLY * np.nanmedian(outside[:, measured], axis=0)).mean() >= _NEARLY_ALL)


def _stages(explanation: Explanation) -> Iterator[str]:
    if explanation.stages:
        name, factor = max(explanation.stages.items(), key=lambda item: item[1])
        if factor > 1.1:
            yield (
                f"pipeline stage {name} computes {factor:.3g} times as long as the median stage of the same replica: "
                "layers are divided unevenly, or it holds more (embedding, loss)"
            )


def spans(flags: Flags) -> list[tuple[int, int]]:
    """Return the start and the end of each run of flags that are true.

    >>> spans(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def seconds_text(value: float) -> str:
    """Return seconds as text with three digits, from 100 on without a fraction."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:.0f} %" if share >= 0.095 or not share else f"{100 * share:.1f} %"


def _listed(names: Sequence[int | str]) -> str:
    """Return names as text, consecutive numbers as ranges; at most ten parts."""
    numbers = np.array(sorted(name for name in names if isinstance(name, int)))
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    parts += [str(name) for name in names if not isinstance(name, int)]
    return ", ".join(parts[:10]) + (", …" if len(parts) > 10 else "")


def rounded(model: DelayModel, digits: int) -> str:
    """Return the spec of a delay model with ``digits`` digits."""
    values: ByName = {
        name: float(f"{value:.{digits}g}") for name, value in vars(model).items() if isinstance(value, float)
    }
    return replace(model, **values).spec
