"""Metrics for Prometheus: what is scraped while a run goes on is what the run says."""

import sys
import urllib.request

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import anyk
from anyk.base.errors import MissingPackage
from anyk.cli import main
from anyk.views.exports import Metrics
from anyk.views.exports.prometheus import address

PROBLEM = anyk.problems.from_recipe({"data": "synthetic:rows=240,features=5"})


def scraped(metrics):
    """By name, the values by their labels besides the strategy, as one would read them from the server."""
    with urllib.request.urlopen(metrics.url, timeout=10) as answer:
        body = answer.read().decode()
    samples = {}
    for family in text_string_to_metric_families(body):
        for name, labels, value, *_ in family.samples:
            samples.setdefault(name, {})[labels.get("worker", labels.get("model", ""))] = value
    return samples


@pytest.fixture
def metrics():
    with Metrics(0) as metrics:
        yield metrics


class Scraping(anyk.Callback):
    """Asks the server after each step."""

    def __init__(self, metrics):
        self.metrics, self.found = metrics, []

    def on_step(self, info):
        self.found.append((info, scraped(self.metrics)))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["agc:load=3,wait=2", "async:lr_scale=0.1"])
def test_each_scrape_has_the_numbers_of_the_newest_step(metrics, strategy):
    scraping = Scraping(metrics)
    fleet = anyk.cluster("simulated", workers=6, delays="exp:mean=1", seed=3)
    with anyk.train(PROBLEM, strategy, fleet, steps=8, callbacks=[metrics, scraping]) as run:
        used = dict.fromkeys(range(6), 0)
        for step, (info, samples) in enumerate(scraping.found, 1):
            assert samples["anyk_steps_total"] == {"model": step} and samples["anyk_version"] == {"model": step}
            assert samples["anyk_seconds"]["model"] == pytest.approx(run.history["seconds"][step])
            assert samples["anyk_residual"]["model"] == pytest.approx(run.history["residual"][step])
            assert samples["anyk_staleness"]["model"] == pytest.approx(run.history["staleness"][step])
            assert samples["anyk_workers_used"]["model"] == info.workers
            for worker in {worker for worker, *_ in run.receipt(step).used}:
                used[worker] += 1
            shares = {str(worker): count / step for worker, count in used.items()}
            assert samples["anyk_worker_on_time_share"] == pytest.approx(shares)
            assert set(samples["anyk_worker_losses_total"].values()) == {0.0}
        last = scraped(metrics)
        assert last["anyk_loss"]["model"] == pytest.approx(run.loss)
        assert last["anyk_metric"]["model"] == pytest.approx(run.metric["value"])


def test_lost_workers_are_counted(metrics):
    fleet = anyk.cluster("simulated", workers=3)
    with anyk.train(PROBLEM, "uncoded", fleet, steps=2, callbacks=[metrics]):
        metrics.on_worker_lost(anyk.runs.callbacks.LostInfo(1, 2, 0.5, "killed", False))
        assert scraped(metrics)["anyk_worker_losses_total"] == {"0": 0, "1": 1, "2": 0}


@pytest.mark.slow
def test_each_model_and_each_run_of_a_race_has_its_numbers(metrics):
    fleet = anyk.cluster("simulated", workers=6)
    anyk.train_many([PROBLEM] * 2, "frc:load=3", fleet, steps=3, callbacks=[metrics]).close()
    assert set(scraped(metrics)["anyk_steps_total"].values()) == {3.0}
    anyk.race(PROBLEM, ["uncoded", "frc:load=3"], workers=6, cluster="simulated", steps=4, callbacks=[metrics]).close()
    assert scraped(metrics)["anyk_steps_total"] == {"model": 4.0}


def test_before_a_run_there_is_nothing_and_after_closing_nobody(metrics):
    assert scraped(metrics) == {}
    metrics.close()
    with pytest.raises(OSError):
        scraped(metrics)


def test_what_cannot_be_served_is_one_sentence(metrics, monkeypatch):
    port = int(metrics.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(anyk.BadInput, match=f"metrics cannot be served at 127.0.0.1:{port}; choose another port"):
        Metrics(port)
    with pytest.raises(anyk.BadInput, match="port must be a whole number from 0 to 65535, got 70000"):
        Metrics(70000)
    with pytest.raises(anyk.BadInput, match="--metrics takes PORT or HOST:PORT"):
        address("here")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingPackage, match="serving metrics needs prometheus_client"):
        Metrics(0)


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    words = [
        "train",
        "--data",
        "synthetic:rows=60,features=4",
        "--workers",
        "3",
        "--cluster",
        "simulated",
        "--steps",
        "3",
    ]
    said = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "run"), "--metrics", "0"])
    assert said.exit_code == 0 and "metrics: http://127.0.0.1:" in said.output
    command = ["resume", str(tmp_path / "run"), "--steps", "9", "--metrics", "0", "--mirror", str(tmp_path / "copy")]
    said = CliRunner().invoke(main, command)
    assert said.exit_code == 0 and "metrics: http://127.0.0.1:" in said.output
    with anyk.Run.open(tmp_path / "copy") as copy:
        assert copy.steps == 9
    wrong = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "other"), "--metrics", "x"])
    assert wrong.exit_code == 2 and "PORT or HOST:PORT" in wrong.output and not (tmp_path / "other").exists()
