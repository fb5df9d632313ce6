"""The gain from changes of the fleet itself: a worker removed or repaired, spare workers, and an uncut probe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyk import keyed
from anyk.errors import BadInput, RunFailed
from anyk.fleet.explanation.explaining import at_median
from anyk.fleet.plans.judging import Choice
from anyk.fleet.plans.measured_fleet import MeasuredFleet, slowness, typical_value

_PROBED = 30  # rounds
_REPAIRED = 3  # workers at most
_FAR = 1000.0  # factor between the ends of an interval from which on the upper end is not printed


@dataclass(frozen=True)
class Advice:
    """A change of the fleet, and the share of a step's time that it saves ``today``'s strategy and the ``best`` one.

    Each is compared with itself on the fleet without the change. None: the strategy does not exist for the changed
    number of workers.
    """

    what: str
    today: float | None
    best: float | None


def advice(
    fleet: MeasuredFleet,
    names: Sequence[int | str],
    costliest: int,
    named: Iterable[int],
    specs: tuple[str, str],
    seed: int,
) -> tuple[Advice, ...]:
    """Return the savings by changes of the fleet under today's and the best strategy, ``specs``; workers by column."""
    seconds = {spec: fleet.alone(spec) for spec in specs}

    def gain(changed: MeasuredFleet, spec: str) -> float | None:
        try:
            return 1.0 - changed.alone(spec) / seconds[spec]
        except (BadInput, RunFailed):
            return None

    changes = [(f"worker {names[costliest]} left out", fleet.without([costliest]))] if len(names) > 2 else []
    changes += [(f"worker {names[i]} repaired", repaired(fleet, i)) for i in list(named)[:_REPAIRED]]
    changes += [(f"{count} spare worker{'s' * (count > 1)}", with_spares(fleet, count, seed)) for count in (1, 2)]
    return tuple(Advice(what, gain(changed, specs[0]), gain(changed, specs[1])) for what, changed in changes)


def repaired(fleet: MeasuredFleet, place: int) -> MeasuredFleet:
    """Return the fleet with one worker at the median of the others in the rounds in which it is slower."""
    slopes = fleet.slopes.copy()
    slopes[place] = min(slopes[place], typical_value(np.delete(slopes, place)))
    return replace(fleet, times=at_median(fleet.times, [place]), slope=slopes)


def with_spares(fleet: MeasuredFleet, count: int, seed: int) -> MeasuredFleet:
    """Return the fleet with further workers of typical speed, delayed in each round like another, sampled by key."""
    rounds, workers = fleet.times.shape
    places = keyed.generator(seed, "spares").integers(0, workers, (rounds, count))
    relative = fleet.times / slowness(fleet.times)
    times = np.hstack([fleet.times, np.take_along_axis(relative, places, axis=1)])
    censored = np.hstack([fleet.censored, np.take_along_axis(fleet.censored, places, axis=1)])
    return MeasuredFleet(times, censored, fleet.load, np.append(fleet.slopes, [typical_value(fleet.slopes)] * count))


def probe(today: Choice, choices: Iterable[Choice]) -> str | None:
    """Return the run that would measure times that were cut off, and its cost; None if nothing is missing."""
    unknown = [choice for choice in choices if choice.exact and not choice.measured]
    waiting = next((choice for choice in (today, *unknown) if choice.spec == "uncoded"), None)
    if not unknown and today.measured:
        return None
    cost = ""
    if waiting is not None:
        low, high = (_PROBED * seconds for seconds in (waiting.seconds_per_step.low, waiting.seconds_per_step.high))
        longest = f"to {high:.3g} s" if high < _FAR * low else "s or far longer"
        cost = f" in {low:.3g} {longest}, where today's strategy takes"
        cost += f" {_PROBED * today.seconds_per_step.median:.3g} s" if today.measured else " as long"
    return (
        f"too many times were cut off to judge {len(unknown) + (not today.measured)} strategies; a run that waits for "
        f"all would tell: anyk train … --strategy uncoded --steps {_PROBED} --out probe{cost}, then anyk plan probe"
    )
