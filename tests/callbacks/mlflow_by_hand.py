"""What MLflow reads of what the callback has written; run by hand where mlflow is installed (CI does without).

MLFLOW_ALLOW_FILE_STORE=true python tests/callbacks/mlflow_by_hand.py
"""

import contextlib
import tempfile

import mlflow

import anyk


class Faulty(anyk.Callback):
    def on_step(self, info):
        if info.step == 3:
            raise ZeroDivisionError


def main():
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    with tempfile.TemporaryDirectory() as folder:
        uri = f"file://{folder}"
        asked = {"workers": 4, "delays": "exp:mean=1", "steps": 5}
        keep = anyk.callbacks.MLflow("mine", tracking_uri=uri)
        run = anyk.train(problem, "frc:load=2", "simulated", callbacks=[keep], **asked)
        with contextlib.suppress(ZeroDivisionError):
            anyk.train(problem, "uncoded", "simulated", callbacks=[keep, Faulty()], **asked)
        client = mlflow.MlflowClient(uri)
        found = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
        failed, finished = sorted(found, key=lambda one: one.info.status)
        assert (failed.info.status, finished.info.status) == ("FAILED", "FINISHED")
        assert finished.info.run_name == finished.data.params["strategy"] == "frc:load=2"
        for name, column in {"loss": "loss", "auc": "auc", "seconds": "seconds", "staleness": "staleness"}.items():
            history = client.get_metric_history(finished.info.run_id, name)
            assert [one.value for one in history] == [run.history[column][one.step] for one in history] and history
        assert [one.step for one in client.get_metric_history(failed.info.run_id, "residual")] == [1, 2, 3]
    print("MLflow reads what was written")


if __name__ == "__main__":
    main()
