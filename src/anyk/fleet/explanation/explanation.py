"""The result of :func:`anyk.explain`: the cost of slow workers, as numbers and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

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
