"""The results of a run, as its log has them."""

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
    """The cost of a run's tasks: ``load``, the largest share of the data that a task covered; mean seconds of
    ``computing`` and of ``waiting`` out an injected delay before; ``by_load``: whether the delays depend on the load.
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
        """Steps, seconds, floor, loss and metric, as written when the run ended."""
        return self.log.summary()

    @property
    def asynchronous(self) -> bool:
        """Whether steps used gradients of older versions."""
        return queries.stalest(self.log) > 0

    @property
    def seconds(self) -> float:
        """When the last version was made, on the run's clock."""
        return queries.last_time(self.log)

    @property
    def floor_seconds(self) -> float | None:
        """The same strategy for as many steps with the same delays when nothing else takes time."""
        return self.summary.get("floor_seconds")

    @property
    def loss(self) -> float | None:
        """Loss of the final model."""
        return self.summary.get("loss")

    @property
    def metric(self) -> dict[str, Any] | None:
        """Name and value of the final model's metric."""
        return self.summary.get("metric")

    @property
    def metrics(self) -> dict[str, float]:
        """All that the problem measures of the final model, by name: the metric, and what to compare it with."""
        return dict(self.summary.get("metrics") or {})

    @property
    def time_to_target(self) -> float | None:
        """When the first version that reached the target was made; None if none did."""
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
        """Mean seconds of computing and of delays in a task, over those that were finished."""
        widest = max((len(work.partitions) for work in queries.works(self.log).values()), default=0)
        computing, waiting = queries.mean_times(self.log)
        _, values = parse(self.config.delays)
        by_load = values.get("per") == "load" or values.get("slope", "0") != "0"
        return Cost(widest / self.config.partitions, computing, waiting, by_load)

    @property
    def notes(self) -> list[dict[str, Any]]:
        """Workers lost, set aside or given up, and why the run stopped."""
        return self.log.table("SELECT time, kind, text FROM notes ORDER BY seq, time")
