"""A run as a run of MLflow."""

from __future__ import annotations

from typing import Annotated, Any

from anyk.callbacks.lookup import registry
from anyk.checks import AtLeastOne, typed
from anyk.errors import BadInput, MissingPackage
from anyk.runs.callbacks import Callback, EndInfo, EvaluationInfo, RunInfo, StepInfo

Address = Annotated[str | None, "a destination"]


@registry.register("mlflow")
@typed
class MLflow(Callback):
    """Logs settings as parameters, and steps and evaluations as metrics, of a run of MLflow.

    ``experiment``: its name, by default ``Default``; ``tracking_uri``: address, such as
    ``sqlite:////shared/mlflow.db``, by default MLflow's own setting or else the database ``mlflow.db`` in the current
    folder. Every ``every``-th step is logged. Each run of a race, and each part of a resumed run, is a run of MLflow's,
    named by its strategy; it ends as FINISHED, FAILED or KILLED. Needs the package ``mlflow``, or ``mlflow-skinny``
    with the packages for its database: ``pip install 'anyk[mlflow]'``.

    Raises :class:`~anyk.errors.BadInput` for an address that MLflow refuses.
    """

    def __init__(self, experiment: str | None = None, *, tracking_uri: Address = None, every: AtLeastOne = 1) -> None:
        self._client = _client(tracking_uri)
        self._experiment, self._every = experiment, every
        self._run: str | None = None

    def on_begin(self, info: RunInfo) -> None:
        self._metric = info.metric
        self._run = self._client.create_run(self._experiment_id(), run_name=info.title or info.strategy).info.run_id
        for key, value in info.settings.items():
            self._client.log_param(self._run, key, value)

    def _experiment_id(self) -> str:
        name = self._experiment or "Default"
        experiment = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if experiment is None else experiment.experiment_id)

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._every == 0:
            values = {"residual": info.residual, "staleness": info.staleness, "workers": info.workers}
            self._log(info.slot, values | {"seconds": info.seconds}, info.step)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        self._log(info.slot, {"loss": info.loss, self._metric: info.metric}, info.step)

    def on_end(self, info: EndInfo) -> None:
        if self._run is not None:
            killed = isinstance(info.error, KeyboardInterrupt)
            status = "FINISHED" if info.error is None else "KILLED" if killed else "FAILED"
            self._client.set_terminated(self._run, status)
            self._run = None

    def _log(self, slot: str, values: dict[str, Any], step: int) -> None:
        of = "" if slot == "model" else f"{slot}/"
        for name, value in values.items():
            if value is not None:
                self._client.log_metric(self._run, f"{of}{name}", float(value), step=step)


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
