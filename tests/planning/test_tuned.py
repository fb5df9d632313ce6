"""Training that probes, chooses and switches: exact all the way, the choice that of the grid, resumable after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.errors import BadInput
from anyk.planning import fit_slope, simulate, tune
from anyk.training.tracing import measured

PROBLEMS = [anyk.problems.from_data(f"synthetic:rows=250,features=5,seed={i}") for i in range(4)]


def gradient_descent(problem: Any, steps: int, lr: float) -> Any:
    w, part = problem.initial(), problem.split(1)
    for _ in range(steps):
        w = w - lr * (part.partial_gradient(0, w) / problem.samples + problem.l2 * w)
    return w


@pytest.mark.parametrize(
    ("cluster", "delays"),
    [("simulated", "bimodal:fast=0.1,slow=1,probability=0.1"), ("simulated:partition=2,cores=12", "exp:mean=0.1"),
     ("simulated", "constant:0.5"), ("processes", "bimodal:fast=0.005,slow=0.06,probability=0.1")],
)  # fmt: skip
def test_full_gradient_steps_from_the_beginning(cluster: str, delays: str) -> None:
    heard: list[tuple[str, int]] = []
    found = anyk.train_tuned(
        PROBLEMS, workers=12, cluster=cluster, delays=delays, seed=2, steps=15, optimizer=anyk.optimizers.GD(lr=0.5),
        before=lambda spec, candidates: heard.append((spec, len(candidates))),
    )  # fmt: skip
    for i, problem in enumerate(PROBLEMS):
        assert found.models[f"model {i}"] == pytest.approx(gradient_descent(problem, 15, 0.5), abs=1e-9)
        history = found.history_of(f"model {i}")
        assert history["step"].tolist() == list(range(16)) and (np.diff(history["seconds"]) > 0).all()
    assert found.seconds == sum(run.seconds for run in found.runs)
    assert [run.begun for run in found.runs] == [0, 4, 8] and [run.steps for run in found.runs] == [4, 8, 15]
    assert found.choice is not None
    assert [spec for spec, _ in heard] == ["uncoded", "gc:stragglers=1,end=cutoff,mu=1e+09", found.choice.spec]
    assert [count > 0 for _, count in heard] == [False, False, True]
    for run in found.runs:
        ledger = run.ledger
        assert ledger["dispatched"] == sum(v for k, v in ledger.items() if k not in ("dispatched", "unusable"))
    for run in found.runs[:2]:  # every time of the probe is measured to its end, of every round
        times, censored, _ = measured(run)
        assert times.shape == (16, 12) and not censored.any()


def test_the_choice_is_the_grids_and_the_slope_is_what_load_costs() -> None:
    """Two seconds a partition of twelve are 24 s for the whole data; random delays do not go by load."""
    found = anyk.train_tuned(
        PROBLEMS, workers=12, cluster="simulated:partition=2,cores=12", delays="constant:0.3", steps=9
    )
    assert found.slope == pytest.approx(24.0, rel=1e-9)
    assert found.choice is not None and found.choice.spec == "uncoded"  # a code would compute in vain
    law = "bimodal:fast=0.1,slow=3,probability=0.1"
    found = anyk.train_tuned(PROBLEMS, workers=12, cluster="simulated", delays=law, seed=5, steps=20, probe=40)
    tables = [(load, times) for times, _, load in map(measured, found.runs[:2])]
    assert [load for load, _ in tables] == pytest.approx([1 / 12, 2 / 12])
    assert found.slope == max(0.0, fit_slope(tables))
    rounds = np.vstack([tables[0][1], np.maximum(tables[1][1] - found.slope / 12, 1e-6)])
    assert rounds.shape == (40, 12)
    assert list(found.candidates) == tune(rounds, models=4, load=tables[0][0], slope=found.slope)
    assert found.choice is not None and found.choice.seconds < found.candidates[-1].seconds
    shifted = rounds + (found.choice.load - tables[0][0]) * found.slope
    durations, waits = simulate(found.choice.spec, shifted, jobs=found.choice.jobs)
    assert (durations.sum(), waits) == (pytest.approx(found.choice.seconds), found.choice.waits)


def test_one_model_has_no_rounds_to_spare() -> None:
    found = anyk.train_tuned(
        PROBLEMS[:1],
        workers=6,
        cluster="simulated",
        delays="exp:mean=1",
        steps=40,
        optimizer=anyk.optimizers.GD(lr=0.5),
    )
    assert {one.T for one in found.candidates} == {0} and {one.spec.partition(":")[0] for one in found.candidates} == {
        "frc",
        "gc",
        "uncoded",
    }
    assert found.models["model"] == pytest.approx(gradient_descent(PROBLEMS[0], 40, 0.5), abs=1e-9)


def test_limits_are_of_the_whole() -> None:
    setting: dict[str, Any] = {"workers": 6, "cluster": "simulated", "delays": "constant:1"}
    cut = anyk.train_tuned(PROBLEMS, seconds=20.5, **setting)  # the probe takes 32 rounds
    assert cut.choice is None and len(cut.runs) == 2 and cut.seconds <= 20.5 and np.isnan(cut.slope)
    rest = anyk.train_tuned(PROBLEMS, seconds=52.5, **setting)
    assert rest.choice is not None and len(rest.runs) == 3 and rest.seconds == pytest.approx(52.0)
    reached = anyk.train_tuned(PROBLEMS, target=0.6, **setting)
    assert reached.choice is None and reached.runs[-1].time_to_target is not None


def test_each_part_can_be_resumed(tmp_path: Path) -> None:
    setting: dict[str, Any] = {"workers": 6, "cluster": "simulated", "delays": "exp:mean=0.3", "seed": 1, "probe": 16}
    setting["optimizer"] = anyk.optimizers.Nesterov(lr=0.3)
    whole = anyk.train_tuned(PROBLEMS, steps=14, **setting)
    probed = anyk.train_tuned(PROBLEMS, steps=14, out=tmp_path / "probed", seconds=whole.runs[0].seconds / 2, **setting)
    many = anyk.problems.ManyProblems(PROBLEMS)
    probed.run.close()
    ended = anyk.resume(tmp_path / "probed" / "probe-uncoded", problem=many, steps=2)
    assert all(ended.models[slot].tobytes() == w.tobytes() for slot, w in whole.runs[0].models.items())
    ended.close()
    seconds = whole.runs[0].seconds + whole.runs[1].seconds + whole.run.seconds / 2
    cut = anyk.train_tuned(PROBLEMS, steps=14, out=tmp_path / "cut", seconds=seconds, **setting)
    assert cut.choice == whole.choice and cut.run.steps < 14
    for run in cut.runs:
        run.close()
    resumed = anyk.resume(tmp_path / "cut" / "run", problem=many, steps=14)
    assert all(resumed.models[slot].tobytes() == w.tobytes() for slot, w in whole.models.items())
    assert str(anyk.replay(resumed, problem=many)).endswith("the same bits of model")
    resumed.close()


def test_what_cannot_be_tuned(tmp_path: Path) -> None:
    def fail(sentence: str, problems: Any = PROBLEMS, **rest: Any) -> None:
        with pytest.raises(BadInput, match=sentence):
            anyk.train_tuned(problems, **({"workers": 6, "cluster": "simulated"} | rest))

    fail("there is no problem to train on", [])
    fail("a code needs at least 2 workers", workers=1)
    fail("probe must be at least 2 rounds, one at each of two loads, got 1", probe=1)
    fail("the probe of 32 rounds takes 8 steps of each of 4 models; steps must be more than that, got 8", steps=8)
    fail("load must be a share of the data above 0 and at most 1, got 0", load=0.0)
    fail("mu must be a finite number of at least 0, got -1", mu=-1.0)
    fail("no cluster 'simluated'; did you mean 'simulated'", cluster="simluated")
    fail("the folder '.*' exists; choose another", out=tmp_path)


def test_on_the_command_line(tmp_path: Path) -> None:
    small = ["--data", "synthetic:rows=300,features=5", "--workers", "6", "--cluster", "simulated", "--delays", "exp:mean=1", "--quiet"]  # fmt: skip

    def run(*words: str) -> Any:
        return CliRunner().invoke(main, ["train", *small, *words])

    result = run(
        "--models",
        "2",
        "--probe",
        "12",
        "--steps",
        "9",
        "--out",
        str(tmp_path / "t"),
        "--json",
        str(tmp_path / "t.json"),
    )
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "t.json").read_text())
    assert len(told["runs"]) == 3 and told["runs"][-1]["strategy"].startswith(told["choice"][0]["spec"])
    assert f"> {told['choice'][0]['spec']}" in result.output and f"run: {tmp_path / 't' / 'run'}" in result.output
    further = run(
        "--models",
        "2",
        "--from",
        str(tmp_path / "t" / "run"),
        "--steps",
        "12",
        "--strategy",
        "frc:load=2",
        "--out",
        str(tmp_path / "u"),
    )
    assert further.exit_code == 0, further.output
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "u")])
    assert "begun: at step 9 of" in shown.output.replace("\n", " ")
    both = run("--probe", "4", "--strategy", "uncoded")
    assert both.exit_code == 2 and "--probe finds the strategy itself; leave out --strategy, or --probe" in both.output
    twice = run("--probe", "4", "--from", str(tmp_path / "u"))
    assert twice.exit_code == 2 and "--probe starts a new run; leave out --from, or --probe" in twice.output
    missing = run("--from", str(tmp_path / "none"))
    assert missing.exit_code == 2 and "is not a run folder" in missing.output


def test_where_there_is_nothing_to_measure_nothing_is_probed() -> None:
    with pytest.raises(BadInput, match="on a virtual clock without delays there is nothing to measure"):
        anyk.train_tuned([anyk.testing.Squares(8)] * 2, workers=4, cluster="simulated", probe=4, steps=20)
