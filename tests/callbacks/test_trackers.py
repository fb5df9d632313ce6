"""What MLflow reads from the database that the callback has written, with the packages of the extra alone."""

import contextlib

import pytest

import anyk


class Faulty(anyk.Callback):
    def on_step(self, info):
        if info.step == 3:
            raise ZeroDivisionError


@pytest.mark.slow
def test_mlflow_reads_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # the default database is in the current folder
    import mlflow

    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    asked = {"workers": 4, "delays": "exp:mean=1", "steps": 5}
    keep = anyk.callbacks.MLflow("mine")
    run = anyk.train(problem, "frc:load=2", "simulated", callbacks=[keep], **asked)
    with contextlib.suppress(ZeroDivisionError):
        anyk.train(problem, "uncoded", "simulated", callbacks=[keep, Faulty()], **asked)
    assert (tmp_path / "mlflow.db").exists()
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    failed, finished = sorted(runs, key=lambda one: one.info.status)
    assert (failed.info.status, finished.info.status) == ("FAILED", "FINISHED")
    assert finished.info.run_name == finished.data.params["strategy"] == "frc:load=2"
    for name, column in {"loss": "loss", "auc": "auc", "seconds": "seconds", "staleness": "staleness"}.items():
        history = client.get_metric_history(finished.info.run_id, name)
        assert [one.value for one in history] == [run.history[column][one.step] for one in history] and history
    assert [one.step for one in client.get_metric_history(failed.info.run_id, "residual")] == [1, 2, 3]


@pytest.mark.slow
def test_an_address_that_mlflow_refuses_is_named_in_a_sentence(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with pytest.raises(anyk.BadInput, match="^MLflow cannot log to 'nowhere:/x': .*; on disk it logs to a database"):
        anyk.callbacks.MLflow(tracking_uri="nowhere:/x")
