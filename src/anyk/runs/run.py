"""A finished or interrupted run: configuration, history, receipts, model, all read from its log and checkpoint."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from anyk import html
from anyk.checks import typed
from anyk.errors import BadInput, MissingPackage
from anyk.problems.base import Vector
from anyk.problems.data.new_rows import read_rows
from anyk.problems.predicting import Coefficients, Predictor
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.folder import checkpoints, predictors
from anyk.runs.folder.config import Recipe, RunConfig, SharedConfig, read_config
from anyk.runs.log import queries
from anyk.runs.log.receipts import Receipt, logged_receipt
from anyk.runs.log.runlog import RunLog
from anyk.runs.results import Results

if TYPE_CHECKING:
    import pandas


class Run(Results, AbstractContextManager["Run"]):
    """A finished, stopped or interrupted run.

    ``path`` is its folder (None: it was kept in memory), ``config`` how it was set up. The run's log is open until
    the run is closed, as by ``with``, or not needed any more. A copy and a pickled run have the whole log inside.
    """

    def __init__(
        self,
        log: RunLog,
        config: RunConfig,
        *,
        path: Path | None,
        models: dict[str, Vector] | None = None,
        started_with: WarmStart | None = None,
        state: WarmStart | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        self.log, self.config, self.path = log, config, path
        self._models, self._started_with, self._state, self._predictor = models, started_with, state, predictor

    @classmethod
    @typed
    def open(cls, path: str | Path) -> Run:
        """Read a run folder; raises :class:`~anyk.errors.BadInput` if it is none, damaged or of a newer format."""
        folder = Path(path)
        config = read_config(folder)
        seal = checkpoints.seal_of(folder)  # first: a run that is under way has a newer one in a moment
        log = RunLog.reading(folder / "log.sqlite")
        if not log.has_seal(seal):
            log.close(write=False)
            raise BadInput(f"the log of '{folder}' ends before its last checkpoint: it was cut short")
        return cls(log, config, path=folder)

    def __repr__(self) -> str:
        set_up = f"{self.config.strategy} on {self.config.workers} workers, {self.config.cluster}"
        try:
            steps, seconds, loss, metric = self.steps, self.seconds, self.loss, self.metric
        except Exception:  # the log is closed or damaged; a repr is no place to say so
            return f"<Run {set_up}>"
        worth = "" if loss is None else f", loss {loss:.4g}"
        worth += "" if not metric else f", {metric['name']} {metric['value']:.4g}"
        return f"<Run {set_up}: {steps} steps in {seconds:.4g} s{worth}>"

    def _repr_html_(self) -> str:
        """For notebooks: what it was and came to, and its loss against seconds."""
        metric = self.metric or {"name": "metric", "value": None}
        head = ["strategy", "workers", "cluster", "delays", "steps", "seconds", "loss", metric["name"]]
        row: list[Any] = [self.config.strategy, self.config.workers, self.config.cluster, self.config.delays]
        row += [self.steps, f"{self.seconds:.4g}", self.loss and f"{self.loss:.4g}"]
        row += [metric["value"] and f"{metric['value']:.4g}"]
        line = self.history["seconds"], self.history["loss"]
        return html.table(head, [row]) + html.curves({str(row[0]): line}, "loss")

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        new.__dict__ |= self.__dict__ | {"log": copy.copy(self.log)}  # each is closed by itself
        return new

    # ------------------------------------------------------------------------------------------- results

    @property
    def steps(self) -> int:
        """Steps taken."""
        return min(self._versions.values(), default=self.begun)

    @property
    def _versions(self) -> dict[str, int]:
        """The newest version of each model that was trained."""
        return queries.newest(self.log, without=self.config.auxiliary)

    @property
    def models_trained(self) -> int:
        """Models trained at once."""
        return len(self._versions) or 1

    @property
    def jobs(self) -> int:
        """Steps of all models together, since the run began."""
        return sum(version - self.begun for version in self._versions.values())

    @property
    def seconds_a_job(self) -> float | None:
        """Seconds over :attr:`jobs`; None before the first."""
        jobs = self.jobs
        return self.seconds / jobs if jobs else None

    @property
    def best(self) -> float | None:
        """The best metric of any version that was evaluated, of the first model; None without a metric."""
        values = self.history[self.metric_name] if self.metric else np.empty(0)
        values = values[~np.isnan(values)]
        if not values.size:
            return None
        return float(values.max() if self.config.better == "higher" else values.min())

    @property
    def begun(self) -> int:
        """The step at which it began: 0, or the last step of the run that it continues."""
        return 0 if self.config.begin is None else self.config.begin.step

    @property
    def started_with(self) -> WarmStart | None:
        """The state of the earlier run with which it started, if it continues one."""
        if self._started_with is None and self.config.begin is not None and self.path is not None:
            self._started_with = WarmStart.load(self.path)
        return self._started_with

    def warm_start(self) -> WarmStart:
        """Return its state for another run to start with; :class:`~anyk.errors.BadInput` if it is not known."""
        if self._state is None:
            saved = None if self.path is None else checkpoints.newest(self.path, self.log)
            if saved is None:
                raise BadInput(f"'{self.path}' has no checkpoint yet to continue from; resume it")
            self._state = WarmStart.of_saved(saved.state, saved.vectors, auxiliary=self.config.auxiliary)
        return self._state

    @property
    def model(self) -> Vector:
        """The final model (of the first slot)."""
        return self.models[min(slot for slot in self.models if slot not in self.config.auxiliary)]

    @cached_property
    def models(self) -> dict[str, Vector]:
        """The final model of each slot."""
        if self._models is not None:
            return self._models
        if self.path is None:
            raise BadInput("this run kept no model")
        saved = checkpoints.newest(self.path, self.log)
        if saved is None:
            raise BadInput(f"'{self.path}' has no model yet: the run ended before its first checkpoint; resume it")
        return {slot: saved.vectors[f"model/{slot}/{version}"] for slot, version in saved.state["versions"].items()}

    @property
    def predictor(self) -> Predictor:
        """The predictor of the model; raises :class:`~anyk.errors.BadInput` for models of PyTorch and JAX."""
        if self._predictor is None and self.path is not None:
            self._predictor = predictors.load_predictor(self.path, self.config.digests.predictor)
        return predictors.required_predictor(self._predictor)

    def predict(
        self, X: Any, *, probabilities: bool = False, tell: Callable[[str], None] | None = None
    ) -> NDArray[Any]:
        """Return predictions of the (first) final model for rows: the likeliest label or the value, shape (rows,).

        ``X``: a data frame, a dictionary of columns or a file, whose columns are found by name, or an array with the
        columns of the training data in order. Names, categories, scaling and values for
        missing ones are those of the training data. ``probabilities``: those of the classes instead, shape (rows,
        classes), in the order of ``run.predictor.labels``. ``tell`` is called with a sentence where a column of text
        has values that the model has not seen, which then count as none of the known. Raises
        :class:`~anyk.errors.BadInput` where ``X`` does not fit the model, and where no predictor was kept.

        >>> import anyk
        >>> problem = anyk.problems.LogisticRegression([[0.0], [1.0], [2.0], [3.0]], [5, 5, 7, 7], intercept=True)
        >>> run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=200)
        >>> run.predict([[0.5], [2.5]]).tolist(), run.predict([[1.5]], probabilities=True).shape
        ([5, 7], (1, 2))
        """
        predictor = self.predictor
        file = isinstance(X, str | Path)
        rows = read_rows(Path(X), predictor, tell=tell) if file else predictor.matrix(X, "X", tell)
        scores = predictor.scores(self.model, rows)
        return predictor.chances(scores) if probabilities else predictor.decided(scores)

    @property
    def coefficients(self) -> Coefficients:
        """The (first) final model in the units of the input; :class:`~anyk.errors.BadInput` where it is not linear."""
        return self.predictor.coefficients(self.model)

    @cached_property
    def history(self) -> dict[str, NDArray[Any]]:
        """Columns over the steps of the first slot: see :meth:`history_of`."""
        return self.history_of(self.slot)

    def history_of(self, slot: str) -> dict[str, NDArray[Any]]:
        """Columns over the steps: step, seconds, replies, residual, gain, staleness, loss and the metric.

        Loss and metric are NaN where a version was not evaluated.

        >>> import anyk
        >>> run = anyk.train(anyk.problems.from_recipe({"data": "synthetic:rows=60,features=4"}),
        ...                  "uncoded", anyk.clusters.Simulated(3), steps=2)
        >>> run.history_of("model")["step"].tolist()
        [0, 1, 2]
        """
        points = queries.history(self.log, slot)
        names = ("step", "seconds", "replies", "residual", "gain", "staleness", "loss", self.metric_name)
        columns = list(zip(*points, strict=True)) if points else [()] * len(names)
        whole = ("step",)
        return {
            name: np.array(column, dtype=np.int64 if name in whole else np.float64)
            for name, column in zip(names, columns, strict=True)
        }

    @property
    def slot(self) -> str:
        """The first slot that was trained for its own sake."""
        return queries.first_slot(self.log, without=self.config.auxiliary)

    @property
    def comparison(self) -> str:
        """The share of messages that were compared before they were used, and how many differed; empty if none were.

        >>> import anyk
        >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
        >>> anyk.train(problem, "frc:load=2,check=1", "simulated", workers=4, steps=3).comparison
        'compared 100 % of messages, 0 differed'
        """
        ended = self.ledger
        compared, differed = ended.get("compared", 0), ended.get("differed", 0)
        if not compared:
            return ""
        arrived = ended["counted"] + ended["late_counted"] + ended["discarded"]
        return f"compared {min(1.0, compared / arrived):.0%} of messages, {differed} differed".replace("%", " %")

    def receipt(self, version: int, slot: str | None = None) -> Receipt:
        """The receipt of a version; raises :class:`~anyk.errors.BadInput` if there is no such version."""
        slot = slot or self.slot
        config = self.config
        receipt = logged_receipt(self.log, slot, version, workers=config.workers, partitions=config.partitions)
        if receipt is None:
            raise BadInput(f"no version {version} of '{slot}'; the run has 1 to {self.steps}")
        return receipt

    def staleness(self, slot: str | None = None) -> dict[int, int]:
        """Return the number of messages used for each staleness, of one model or of all that were trained.

        Raises :class:`~anyk.errors.BadInput` for a model that the run has not trained.

        >>> import anyk
        >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
        >>> run = anyk.train(problem, "async", "simulated", workers=3, delays="constant:1", steps=30)
        >>> run.staleness()  # in turn, once each has had one
        {0: 1, 1: 1, 2: 28}
        """
        versions = self._versions
        if slot is not None and slot not in versions:
            raise BadInput(f"the run has trained no model '{slot}'; it has {', '.join(versions) or 'none'}")
        total: Counter[int] = Counter()
        for each, counts in queries.staleness(self.log).items():
            if each in versions if slot is None else each == slot:
                total.update(counts)
        return dict(sorted(total.items()))

    def to_frame(self, table: str = "steps") -> pandas.DataFrame:
        """A table of the log as a data frame of pandas; whole numbers that may be missing are of its type Int64.

        ``table``: steps (every version, with its loss and metric), chunks (every task: when it was dispatched, started,
        computed and received, in seconds on the run's clock, and how it ended), events, works (the partitions and
        coefficients of chunks), reuses (messages that later steps used again) or notes.

        Raises :class:`~anyk.errors.BadInput` for another table, :class:`~anyk.errors.MissingPackage` without pandas.

        >>> import anyk
        >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
        >>> run = anyk.train(problem, "uncoded", "simulated", workers=2, delays="constant:1", steps=3)
        >>> run.to_frame("chunks").groupby("ending").size().to_dict()
        {'cancelled': 2, 'counted': 6}
        """
        columns = queries.columns(self.log, table)
        try:
            import pandas
        except ImportError:
            raise MissingPackage("pandas", "data", "a data frame") from None
        frame = pandas.DataFrame(columns)
        return frame.astype({name: "Int64" for name in queries.COUNTS if name in frame})

    def result(self) -> dict[str, Any]:
        """The run's line of a race's JSON."""
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

    def report(self) -> dict[str, Any]:
        """Set-up and result in the shape that ``--json`` writes."""
        return setup(self.config) | {"runs": [self.result()]}

    def close(self) -> None:
        """Close the log."""
        self.log.close(write=False)


def setup(config: SharedConfig) -> dict[str, Any]:
    """Return the part of the JSON that is common to all runs of a race."""
    problem = config.problem or Recipe()
    return {
        "data": problem.data or problem.problem,
        "workers": config.workers,
        "delays": config.delays,
        "cluster": config.cluster,
        "seed": config.seed,
        "environment": config.environment or None if isinstance(config, RunConfig) else None,
    }
