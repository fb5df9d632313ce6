"""The findings of :func:`anyk.explain` as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from anyk.arrays import Flags
from anyk.delays import DelayModel, parse
from anyk.fleet.explanation.attribution import DRIFT, lower_median, mean_burst, slow_kind
from anyk.fleet.records import Record
from anyk.plain import ByName


@dataclass(frozen=True)
class WorkerCost:
    """The cost of one worker.

    ``cost_seconds``: its Shapley share of the rounds' excess over their medians; ``saves_seconds``: seconds that
    today's strategy would save with this worker at the others' median (None unless it is among the costliest);
    ``relative``: its median over the fleet's; ``individual``: the median of its last quarter of rounds over the median
    of its best quarter; ``straggles``: the share of rounds in which it takes more than 1.5 times the median.
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
    they add up to 1. ``slowdown``: T over the sum of the rounds' medians. ``saves``: seconds that today's strategy
    would save if the costliest 1, 2, 5 and 10 % of workers took the others' median.
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
        """Return all findings as plain values for JSON; a number that is not finite is None."""
        plain: ByName = msgspec.json.decode(msgspec.json.encode(self))
        return plain


_MANY = 5  # workers that are described one by one
_SLOW_ROUND = 1.3  # times the median round
_LONG = 3  # slow rounds in a row
_HEAVY = 2.0  # tail exponent below which the variance is infinite
_MISFIT = 0.1


def sentences(record: Record, explanation: Explanation, straggling: Flags) -> Iterator[str]:
    """Yield the findings as sentences, the most important first."""
    yield from _costs(record, explanation)
    yield from _named(record, explanation, straggling)
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
        why = "; it steps before the median worker is done" if ahead else ""
        yield f"'{explanation.today}' takes {seconds_text(explanation.today_seconds)} s for them{why}"
    if explanation.censored:
        level = lower_median(record.seconds)[:, None]
        cut = (np.asarray(record.censored) & (record.seconds <= level)).any()
        bounded = " also of the rounds' medians," if cut else ""
        yield (
            f"{percent(explanation.censored)} of the times were cut off: the costs are lower bounds,"
            f"{bounded} since how long those workers would have taken is not known"
        )
    yield from record.vanished()


def _named(record: Record, explanation: Explanation, straggling: Flags) -> Iterator[str]:
    total = explanation.seconds
    costs = {worker.worker: worker.cost_seconds for worker in explanation.workers}
    named = explanation.named
    if not named:
        if explanation.apart > 0.01:
            yield "no worker stands out: who is slow changes from round to round"
        return
    if len(named) > _MANY:
        share = sum(costs[name] for name in named) / total
        yield f"{len(named)} workers stand out and cost {percent(share)} of the run: {_listed(named)}"
        named = named[:3]
    for name in named:
        i = record.workers.index(name)
        times = record.seconds[:, i]
        others = lower_median(np.delete(record.seconds, i, axis=1))
        slow = straggling[:, i] if straggling[:, i].any() else np.nan_to_num(times) > others
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nanmedian((times / others)[slow]) if slow.any() else 1.0
        factor = f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"
        yield (
            f"worker {name} costs {percent(costs[name] / total)} of the run: it is {factor} times slower than "
            f"the others in {percent(float(slow.sum() / record.rounds_measured[i]))} of rounds"
        )


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
    first = explanation.workers[0]
    if first.saves_seconds is not None:
        share = first.saves_seconds / today
        if share >= 0.01:
            yield f"with worker {first.worker} at the others' median, today's run would take {percent(share)} less"
        elif len(explanation.named) > 1:
            joint = max(explanation.saves.values()) / today
            yield (
                f"mending worker {first.worker} alone would save {percent(max(share, 0.0))}, as others are as slow; "
                f"mending the costliest 10 % would save {percent(joint)}"
            )
        elif explanation.today != "uncoded":
            why = f"'{explanation.today}' does not wait for it"
            yield f"mending worker {first.worker} would save next to nothing: {why}"
        else:
            yield f"mending worker {first.worker} alone would save next to nothing: others are slow in the same rounds"


def _bursts(record: Record, explanation: Explanation, straggling: Flags) -> Iterator[str]:
    if not straggling.any():
        yield "no worker takes more than 1.5 times a round's median: there are no stragglers to speak of"
        return
    for_good = (straggling.sum(axis=0) > record.rounds_measured / 2) & np.isin(record.workers, explanation.named)
    if for_good.any():
        names = [record.workers[i] for i in np.flatnonzero(for_good)]
        workers, are, them = ("worker", "is", "it") if len(names) == 1 else ("workers", "are", "them")
        yield (
            f"{workers} {_listed(names)} {are} slow for good: smaller shares of the data would suit {them} "
            "(balance=auto)"
        )
    passing = straggling[:, ~for_good]
    if not passing.any():
        return
    length = mean_burst(passing)
    shown = f"{length:.2g}" if length < 10 else f"{length:.0f}"
    plural = "round" if shown == "1" else "rounds"
    if explanation.bursty and length > 1.5:
        yield (
            f"stragglers last {shown} {plural}, longer than chance would have it: codes that span several rounds "
            "(m-sgc, sr-sgc) can make use of that"
        )
    else:
        others = "other " if for_good.any() else ""
        yield f"{others}stragglers last {shown} {plural}: coding within a round is enough"


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
        where = ", ".join(f"{record.rounds[a]} to {record.rounds[b - 1]}" for a, b in waves[:4])
        more = f" and {len(waves) - 4} more times" if len(waves) > 4 else ""
        yield f"all workers slow down together in rounds {where}{more}: no code helps there"
    elif explanation.together > 0.1:
        yield f"rounds in which all are slow take {percent(explanation.together)} of the run: no code helps there"


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
