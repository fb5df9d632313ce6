"""Finished and interrupted runs: configuration, history, receipts and model, read from log and checkpoint."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anyk.base.arrays import Array, Vectors
from anyk.base.checks import typed, whole
from anyk.base.errors import BadInput, MissingPackage
from anyk.base.html import html_curves, html_table
from anyk.base.plain import ByName
from anyk.base.specs import parse_spec
from anyk.problems.predicting import Predictor
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.folder import checkpoints
from anyk.runs.folder.config import Recipe, RunConfig, SharedConfig, read_config
from anyk.runs.log import queries
from anyk.runs.log.receipts import Receipt, logged_receipt
from anyk.runs.log.runlog import RunLog
from anyk.runs.trained_model import TrainedModel

if TYPE_CHECKING:
    import pandas


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
    """The results of a run: its summary, its clock, its steps, its cost and its notes."""

    log: RunLog
    config: RunConfig

    @cached_property
    def summary(self) -> ByName:
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
    def begun(self) -> int:
        """The step at which the run started: 0, or the last step of the run that it continues."""
        return 0 if self.config.begin is None else self.config.begin.step

    @property
    def steps(self) -> int:
        """The number of steps, of all models; with a limit of seconds, of the slowest model."""
        return min(self._versions.values(), default=self.begun)

    @property
    def _versions(self) -> dict[str, int]:
        """The newest version of each trained model, by slot."""
        return queries.newest_versions(self.log, without=self.config.auxiliary)

    @property
    def models_trained(self) -> int:
        """The number of models trained simultaneously."""
        return len(self._versions) or 1

    @property
    def jobs(self) -> int:
        """The number of steps of all models together, since the run started."""
        return sum(version - self.begun for version in self._versions.values())

    @property
    def seconds_a_job(self) -> float | None:
        """Seconds for each of the :attr:`jobs`; None before the first."""
        jobs = self.jobs
        return self.seconds / jobs if jobs else None

    @property
    def floor_seconds(self) -> float | None:
        """Seconds of the same steps with the same delays if nothing else takes time."""
        return self.summary.get("floor_seconds")

    @property
    def loss(self) -> float | None:
        """The loss of the final model."""
        return self.summary.get("loss")

    @property
    def metric(self) -> ByName | None:
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
        times = queries.mean_times(self.log)
        _, values = parse_spec(self.config.delays)
        by_load = values.get("per") == "load" or values.get("slope", "0") != "0"
        return Cost(widest / self.config.partitions, times.computing, times.waiting, by_load=by_load)

    @property
    def notes(self) -> list[ByName]:
        """The log's notes, with ``time``, ``kind`` and ``text``: lost workers, unused messages, why the run stopped."""
        return queries.notes(self.log)


class Run(Results, TrainedModel, AbstractContextManager["Run"]):
    """A finished, stopped or interrupted run.

    ``path`` is its folder (None: in memory), ``config`` its settings. The log is open until the run is closed, as by
    ``with``, or is not used any more. A copy and a pickled run contain the complete log.
    """

    def __init__(
        self,
        log: RunLog,
        config: RunConfig,
        *,
        path: Path | None,
        models: Vectors | None = None,
        started_with: WarmStart | None = None,
        state: WarmStart | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        self.log, self.config, self.path = log, config, path
        self._models, self._started_with, self._state, self._predictor = models, started_with, state, predictor

    @classmethod
    @typed
    def open(cls, path: str | Path) -> Run:
        """Read a run folder; raise :class:`~anyk.BadInput` if it is missing, damaged or of a newer format."""
        folder = Path(path)
        config = read_config(folder)
        seal = checkpoints.seal_of(folder)  # before the log: a running process may add a newer one
        log = RunLog.reading(folder / "log.sqlite")
        if not log.has_seal(seal):
            log.close()
            raise BadInput(f"the log of '{folder}' ends before its last checkpoint: it was truncated")
        return cls(log, config, path=folder)

    def __repr__(self) -> str:
        settings = f"{self.config.strategy} on {self.config.workers} workers, {self.config.cluster}"
        try:
            steps, seconds, loss, metric = self.steps, self.seconds, self.loss, self.metric
        except Exception:  # the log is closed or damaged, which a repr does not report
            return f"<Run {settings}>"
        values = "" if loss is None else f", loss {loss:.4g}"
        values += f", {metric['name']} {metric['value']:.4g}" if metric else ""
        return f"<Run {settings}: {steps} steps in {seconds:.4g} s{values}>"

    def _repr_html_(self) -> str:
        """Return a table of settings and results, and the loss against seconds, for notebooks."""
        config, line = self.config, (self.history["seconds"], self.history["loss"])
        head = ["strategy", "workers", "cluster", "delays", "steps", "seconds", "loss", self.metric_name]
        row = config.strategy, str(config.workers), config.cluster, config.delays, *result_cells(self)
        return html_table(head, [row]) + html_curves({config.strategy: line}, "loss")

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        new.__dict__ |= self.__dict__ | {"log": copy.copy(self.log)}  # copies are closed separately
        return new

    # ------------------------------------------------------------------------------------------- results

    @property
    def best(self) -> float | None:
        """The best metric of the first model, over all versions that were evaluated; None without a metric."""
        if not self.metric:
            return None
        return queries.best_metric(self.log, self.slot, self.config.better)

    @cached_property
    def history(self) -> dict[str, Array]:
        """The columns of the first slot's history, as :meth:`history_of` returns them."""
        return self.history_of(self.slot)

    def history_of(self, slot: str) -> dict[str, Array]:
        """Return columns over the steps: step, seconds, replies, residual, gain, staleness, loss and the metric.

        Loss and metric are NaN for versions that were not evaluated.

        >>> import anyk
        >>> run = anyk.train(anyk.problems.from_recipe({"data": "synthetic:rows=60,features=4"}),
        ...                  "uncoded", anyk.clusters.Simulated(3), steps=2)
        >>> run.history_of("model")["step"].tolist()
        [0, 1, 2]
        """
        columns = queries.log_columns(self.log, "steps", slot)
        columns["step"] = columns["step"].astype(np.int64)
        names = "step", "seconds", "replies", "residual", "gain", "staleness", "loss"
        return {name: columns[name] for name in names} | {self.metric_name: columns["metric"]}

    @property
    def slot(self) -> str:
        """The first slot that is not auxiliary."""
        totals = queries.totals(self.log)
        return min({*totals.newest, *totals.evaluated} - {*self.config.auxiliary}, default="model")

    @property
    def comparison(self) -> str:
        """The share of messages that were compared before they were used, and how many differed; empty if none were.

        >>> import anyk
        >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
        >>> anyk.train(problem, "frc:load=2", "simulated", workers=4, steps=3).comparison
        'compared 67 % of messages, 0 differed'
        """
        messages = self.summary.get("messages")
        if messages is None:
            return ""
        arrived = sum(self.ledger[ending] for ending in ("counted", "late_counted", "discarded"))
        percent = min(100.0, 100.0 * messages["compared"] / arrived)
        return f"compared {percent:.0f} % of messages, {messages['differed']} differed"

    def receipt(self, version: int, slot: str | None = None) -> Receipt:
        """Return the receipt of a version; raise :class:`~anyk.BadInput` if there is no such version."""
        slot = slot or self.slot
        config = self.config
        version = whole("version", version)
        receipt = logged_receipt(self.log, slot, version, workers=config.workers.most, partitions=config.partitions)
        if receipt is None:
            raise BadInput(f"no version {version} of '{slot}'; the run has 1 to {self.steps}")
        return receipt

    def staleness(self, slot: str | None = None) -> dict[int, int]:
        """Return the number of messages used, by staleness, for one model or for all.

        Raises :class:`~anyk.BadInput` for a model that the run has not trained.

        >>> import anyk
        >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
        >>> run = anyk.train(problem, "async", "simulated", workers=3, delays="constant:1", steps=30)
        >>> run.staleness()  # workers answer in turn
        {0: 1, 1: 1, 2: 28}
        """
        versions = self._versions
        if slot is not None and slot not in versions:
            raise BadInput(f"the run has trained no model '{slot}'; it has {', '.join(versions) or 'none'}")
        return queries.staleness(self.log, versions if slot is None else [slot])

    def to_frame(self, table: str = "steps") -> pandas.DataFrame:
        """Return a table of the log as a data frame of pandas; integer columns with missing values have type Int64.

        ``table``: steps (every version, with its loss and metric), chunks (the times of every chunk, in seconds on the
        run's clock, and its ending), events, works (the partitions and coefficients of chunks), reuses (messages that
        later steps used again) or notes.

        Raises :class:`~anyk.BadInput` for another table, :class:`~anyk.base.errors.MissingPackage` without pandas.

        >>> import anyk
        >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
        >>> run = anyk.train(problem, "uncoded", "simulated", workers=2, delays="constant:1", steps=3)
        >>> run.to_frame("chunks").groupby("ending").size().to_dict()
        {'cancelled': 2, 'counted': 6}
        """
        columns = queries.log_columns(self.log, table)
        try:
            import pandas
        except ImportError:
            raise MissingPackage("pandas", "data", "a data frame") from None
        frame = pandas.DataFrame(columns)
        return frame.astype({name: "Int64" for name in queries.COUNTS if name in frame})

    def result(self) -> ByName:
        """Return the results in the form that ``--json`` writes."""
        return {
            "strategy": self.config.strategy,
            "steps": self.steps,
            "models": self.models_trained,
            "jobs": self.jobs,
            "seconds": self.seconds,
            "floor_seconds": self.floor_seconds,
            "loss": self.loss,
            "metric": self.metric,
            "metrics": self.metrics,
            "best": self.best,
            "time_to_target": self.time_to_target,
            "replies_used": queries.replies_used(self.log),
            "run": str(self.path) if self.path is not None else None,
        }

    def report(self) -> ByName:
        """Return settings and results in the form that ``--json`` writes."""
        return setup(self.config) | {"runs": [self.result()]}

    def close(self) -> None:
        """Close the log."""
        self.log.close()


def result_cells(run: Run) -> tuple[Any, ...]:
    """Return steps, seconds, loss and metric as cells of a table."""
    value = (run.metric or {}).get("value")
    return run.steps, f"{run.seconds:.4g}", run.loss and f"{run.loss:.4g}", value and f"{value:.4g}"


def setup(config: SharedConfig) -> ByName:
    """Return the settings that all runs of a race share, in the form that ``--json`` writes."""
    problem = config.problem or Recipe()
    return {
        "data": problem.data or problem.problem,
        "workers": config.workers.most,
        "fewest": config.workers.fewest,
        "partitions": config.workers.partitions,
        "delays": config.delays,
        "cluster": config.cluster,
        "seed": config.seed,
        "environment": config.environment or None if isinstance(config, RunConfig) else None,
    }
