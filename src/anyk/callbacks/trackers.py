"""A run reported elsewhere: as messages of Python's logging, as event files of TensorBoard, as a run of MLflow."""

from __future__ import annotations

import logging
import time as clock
from pathlib import Path
from typing import Annotated, Any

from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput, MissingPackage, as_bad_input, needing
from anyk.base.plain import ByName, values_of
from anyk.base.specs import Folder
from anyk.callbacks.lookup import registry
from anyk.runs.callbacks import Callback, EndInfo, EvaluationInfo, LostInfo, RunInfo, StepInfo

Address = Annotated[str | None, "a destination"]


@registry.register("log")
@typed
class Logging(Callback):
    """Writes a run as messages of Python's logging.

    Its start and end, evaluations and every ``every``-th step (INFO), lost workers (WARNING) and the error of a failed
    run (ERROR), under ``logger``. The settings of ``logging`` decide which messages appear where; the command
    line shows them unless they are set up.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=3, steps=20, callbacks=[Logging(every=10)])
    """

    def __init__(self, every: AtLeastOne = 1, logger: str = "anyk.run") -> None:
        self._every, self.logger = every, logging.getLogger(logger)

    def on_begin(self, info: RunInfo) -> None:
        self._metric = info.metric
        location = "in memory" if info.path is None else info.path
        self.logger.info("%s begins at step %d (%s, %s)", info.strategy, info.step, info.config.cluster, location)

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._every == 0:
            self.logger.info(
                "step %d of %s at %.3f s: %d workers, residual %.3g, staleness %.3g",
                info.step,
                info.slot,
                info.seconds,
                info.workers,
                info.residual,
                info.staleness,
            )

    def on_evaluation(self, info: EvaluationInfo) -> None:
        self.logger.info("step %d of %s: %s", info.step, info.slot, _values(info, self._metric))

    def on_worker_lost(self, info: LostInfo) -> None:
        fate = "abandoned" if info.gone else "lost"
        self.logger.warning(
            "worker %d %s at step %d, %.3f s: %s", info.worker, fate, info.step, info.seconds, info.reason
        )

    def on_end(self, info: EndInfo) -> None:
        if info.error is None:
            self.logger.info("ended at step %d, %.3f s: %s", info.step, info.seconds, _values(info, self._metric))
        else:
            kind = type(info.error).__name__
            self.logger.error("ended at step %d, %.3f s: %s: %s", info.step, info.seconds, kind, info.error)


def _values(info: EvaluationInfo | EndInfo, metric: str) -> str:
    values = {"loss": info.loss, metric: info.metric}
    return ", ".join(f"{name} {value:.6g}" for name, value in values.items() if value is not None) or "not evaluated"


@registry.register("mlflow")
@typed
class MLflow(Callback):
    """Logs settings as parameters, and steps and evaluations as metrics, of a run of MLflow.

    ``experiment``: its name, by default ``Default``; ``tracking_uri``: address, such as
    ``sqlite:////shared/mlflow.db``, by default MLflow's own setting or else the database ``mlflow.db`` in the current
    folder. Every ``every``-th step is logged. Each run of a race, and each part of a resumed run, is a run of MLflow's,
    named by its strategy; it ends as FINISHED, FAILED or KILLED. Needs the package ``mlflow``, or ``mlflow-skinny``
    with the packages for its database: ``pip install '.[mlflow]'``.

    Raises :class:`~anyk.BadInput` for an address that MLflow refuses.
    """

    def __init__(self, experiment: str | None = None, *, tracking_uri: Address = None, every: AtLeastOne = 1) -> None:
        self._client = _client(tracking_uri)
        self._experiment, self._every = experiment or "Default", every
        self._run: str | None = None

    def on_begin(self, info: RunInfo) -> None:
        self._metric = info.metric
        experiment = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(str(number), run_name=info.title or info.strategy).info.run_id
        for key, value in info.settings.items():
            self._client.log_param(self._run, key, value)

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._every == 0:
            self._log(info.slot, _figures(info), info.step)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        self._log(info.slot, {"loss": info.loss, self._metric: info.metric}, info.step)

    def on_end(self, info: EndInfo) -> None:
        if self._run is not None:
            killed = isinstance(info.error, KeyboardInterrupt)
            status = "FINISHED" if info.error is None else "KILLED" if killed else "FAILED"
            self._client.set_terminated(self._run, status)
            self._run = None

    def _log(self, slot: str, values: ByName, step: int) -> None:
        for name, value in values.items():
            if value is not None:
                self._client.log_metric(self._run, f"{_of(slot)}{name}", float(value), step=step)


def _client(uri: str | None) -> Any:
    try:
        import mlflow

        return mlflow.MlflowClient(uri)
    except ImportError:  # of MLflow or of a package for its database
        raise MissingPackage("MLflow", "mlflow", "callbacks.MLflow") from None
    except mlflow.exceptions.MlflowException as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise BadInput(
            f"MLflow cannot log to {'its default address' if uri is None else repr(uri)}: {reason}; on disk it logs to "
            "a database, as in tracking_uri='sqlite:///mlflow.db'"
        ) from None


@registry.register("tensorboard")
@typed
class TensorBoard(Callback):
    """Writes event files that ``tensorboard --logdir FOLDER`` shows: scalars against steps, settings as text.

    ``train/residual``, ``train/staleness``, ``train/workers`` and ``train/seconds`` (of the run's clock) for every
    ``every``-th step, ``loss`` and the metric for every evaluation, ``workers lost`` if any were lost. Each run
    of a race has a folder of its own in ``folder``. Needs the package ``tensorboard``: ``pip install
    '.[tensorboard]'``.
    """

    def __init__(self, folder: Folder, *, every: AtLeastOne = 1) -> None:
        with needing("TensorBoard", "tensorboard", "callbacks.TensorBoard"):
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self._open = EventFileWriter
        self._folder, self._every = Path(folder), every
        self._writer: Any = None

    def on_begin(self, info: RunInfo) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._metric, self._lost = info.metric, 0
        with as_bad_input(f"the folder '{self._folder}' cannot be written"):
            self._writer = self._open(str(self._folder / info.title if info.title else self._folder))
        rows = "".join(f"| {key} | {value} |\n" for key, value in info.settings.items())
        self._add(text_pb("settings", f"| setting | value |\n| --- | --- |\n{rows}"), info.step)

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._every == 0:
            figures = {f"train/{_of(info.slot)}{name}": value for name, value in _figures(info).items()}
            self._scalars(figures, info.step)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        values = {"loss": info.loss, self._metric: info.metric}
        scalars = {f"{_of(info.slot)}{name}": value for name, value in values.items() if value is not None}
        self._scalars(scalars, info.step)

    def on_worker_lost(self, info: LostInfo) -> None:
        self._lost += 1
        self._scalars({"workers lost": self._lost}, info.step)

    def on_end(self, info: EndInfo) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _scalars(self, values: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(Summary(value=scalars), step)

    def _add(self, summary: object, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=clock.time(), step=step, summary=summary))


def _figures(info: StepInfo) -> dict[str, float]:
    """Return the figures of a step by name."""
    return values_of(info, "residual", "staleness", "workers", "seconds")


def _of(slot: str) -> str:
    """Return the prefix of a model's tags, which is empty unless there are several models."""
    return "" if slot == "model" else f"{slot}/"
