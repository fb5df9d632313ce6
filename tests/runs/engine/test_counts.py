"""How stale the messages were that a run used: against receipts, and against the law of asynchronous SGD."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.views import mean_staleness, plot_staleness, staleness_table

PROBLEM = anyk.problems.from_data("synthetic:rows=60,features=4")


def trained(strategy: str, workers: int = 6, steps: int = 40, **rest: Any) -> anyk.Run:
    rest = {"delays": "exp:mean=1", "evaluate": f"every={steps}"} | rest
    return anyk.train(PROBLEM, strategy, "simulated", workers=workers, steps=steps, **rest)


SPECS = ["async", "k-async:k=2", "k-batch-async:k=3", "fedbuff:tau=2,k=2", "agc:load=2,wait=3,snapshot=4", "frc:load=2"]


@pytest.mark.parametrize("spec", SPECS)
def test_counts_are_those_of_the_receipts_and_of_the_steps(spec: str) -> None:
    """Also of messages that are used again; rounds of a code have no others."""
    run = trained(spec)
    receipts = [run.receipt(step).used for step in range(1, run.steps + 1)]
    counts = run.staleness()
    assert counts == dict(sorted(Counter(stale for used in receipts for *_, stale in used).items()))
    by_step = sum(mean * len(used) for mean, used in zip(run.history["staleness"][1:], receipts, strict=True))
    assert mean_staleness(counts) * sum(counts.values()) == pytest.approx(by_step)
    assert (counts.keys() == {0}) == (spec == "frc:load=2")
    assert run.staleness(run.slot) == counts
    with pytest.raises(BadInput, match="has trained no model 'other'; it has "):
        run.staleness("other")


@pytest.mark.slow
def test_staleness_of_exponential_workers_is_geometric() -> None:
    """Each next reply is as likely to be anyone's: (1/n) (1 - 1/n)^s with mean n - 1; the mean is
    that of any delays, as all gaps of a worker add up to the run; equal delays give n - 1 always."""
    n, steps = 6, 1500
    counts = trained("async:lr_scale=0.01", n, steps).staleness()
    assert abs(mean_staleness(counts) - (n - 1)) < 0.2  # the ends of the gaps of n workers, over the steps
    beyond = np.array([sum(count for stale, count in counts.items() if stale >= s) for s in range(15)]) / steps
    law = (1 - 1 / n) ** np.arange(15)
    assert np.abs(beyond - law).max() < 0.05  # 4 standard errors
    even = trained("async:lr_scale=0.01", n, 300, delays="constant:1").staleness()
    assert even[n - 1] == 300 - (n - 1) and max(even) == n - 1


def test_the_models_of_several_are_counted_apart_and_together() -> None:
    run = anyk.train_many([PROBLEM] * 2, "uncoded", "simulated", workers=4, delays="exp:mean=1", steps=5)
    assert run.staleness() == {0: 40} and run.staleness("model 1") == {0: 20}


def test_many_values_are_put_together() -> None:
    table = staleness_table({0: 1, 45: 3})
    assert [row[:2] for row in table.rows if row[1] != "0"] == [["0 to 2", "1"], ["45 to 47", "3"]]
    assert len(table.rows) == 16 and table.rows[-1][3] == "100.0 %"


def test_staleness_from_the_command_line(tmp_path: Any) -> None:
    def cli(*words: Any) -> Any:
        return CliRunner(env={"COLUMNS": ""}).invoke(main, list(map(str, words)))

    folder, picture = tmp_path / "run", tmp_path / "a.png"
    run = trained("async", out=folder)
    result = cli("show", folder, "--staleness", "--picture", picture)
    assert result.exit_code == 0, result.output
    counts = run.staleness()
    assert f"mean staleness {mean_staleness(counts):.4g} versions" in result.output
    assert all(row[0] in result.output and row[1] in result.output for row in staleness_table(counts).rows)
    report = json.loads(cli("show", folder, "--staleness", "--json", "-").stdout)
    assert {row["staleness"]: row["messages"] for row in report["staleness"]} == counts
    (axes,) = plot_staleness(run).axes
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1.0)
    run.close()
    anyk.race(PROBLEM, ["uncoded"], workers=3, cluster="simulated", steps=2, out=tmp_path / "race").close()
    assert "--staleness is for one of its runs" in cli("show", tmp_path / "race", "--staleness").output
