"""The results of a run, read from its log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from anyk.runs.folder.config import RunConfig
from anyk.runs.log import queries
from anyk.runs.log.runlog import RunLog
from anyk.specs import parse


@dataclass(frozen=True)
class Cost:
    """The cost of a run's tasks.

    ``load``: the largest share of the data that a task covered. ``computing``, ``waiting``: mean seconds of computing a
    chunk, and of the injected delay before. ``by_load``: whether the delays depend on the load.
    """

    load: float
    computing: float
    waiting: float
    by_load: bool


class Results:
    """The results of a run: its summary, its clock, its cost and its notes."""

    log: RunLog
    config: RunConfig

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The values that were written when the run ended, such as floor, loss and metric."""
        return self.log.summary()

    @property
    def asynchronous(self) -> bool:
        """Whether steps used gradients of older versions."""
        return queries.totals(self.log).stalest > 0

    @property
    def seconds(self) -> float:
        """Seconds until the last version, on the run's clock."""
        return queries.totals(self.log).time

    @property
    def floor_seconds(self) -> float | None:
        """Seconds of the same steps with the same delays if nothing else takes time."""
        return self.summary.get("floor_seconds")

    @property
    def loss(self) -> float | None:
        """The loss of the final model."""
        return self.summary.get("loss")

    @property
    def metric(self) -> dict[str, Any] | None:
        """The ``name`` and ``value`` of the final model's metric."""
        return self.summary.get("metric")

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics of the final model, by name, such as the metric and values to compare it with."""
        return dict(self.summary.get("metrics") or {})

    @property
    def time_to_target(self) -> float | None:
        """Seconds until the first version that reached the target; None if no version did."""
        return self.summary.get("time_to_target")

    @property
    def ledger(self) -> dict[str, int]:
        """The number of chunks for each ending."""
        return dict(self.summary.get("ledger", {}))

    @property
    def metric_name(self) -> str:
        """The name of the metric."""
        return str((self.metric or {}).get("name") or "metric")

    @cached_property
    def cost(self) -> Cost:
        """The cost of the run's tasks."""
        widest = max((len(work.partitions) for work in queries.works(self.log).values()), default=0)
        computing, waiting = queries.mean_times(self.log)
        _, values = parse(self.config.delays)
        by_load = values.get("per") == "load" or values.get("slope", "0") != "0"
        return Cost(widest / self.config.partitions, computing, waiting, by_load)

    @property
    def notes(self) -> list[dict[str, Any]]:
        """The log's notes, with ``time``, ``kind`` and ``text``: lost workers, unused messages, why the run stopped."""
        return self.log.table("SELECT time, kind, text FROM notes ORDER BY seq, time")
