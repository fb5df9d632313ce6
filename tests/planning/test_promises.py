"""Plans that are saved, run and checked: what a promise says, whether it held, and which part of it did not."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.errors import BadInput
from anyk.recording import Record
from anyk.training import Promise

N = 6
DATA = ["--data", "synthetic:rows=120,features=4", "--cluster", "simulated", "--quiet"]


def problem() -> Any:
    return anyk.problems.from_data("synthetic:rows=120,features=4")


def wandering(rounds: int = 60, seconds: float = 10.0) -> Any:
    """Each round another worker takes ``seconds``, the others take 1."""
    times = np.ones((rounds, N))
    times[np.arange(rounds), np.arange(rounds) % N] = seconds
    return times


@pytest.fixture(scope="module")
def plan() -> Any:
    return anyk.plan(Record(wandering(), load=1 / N), slope=0.0, resamples=50)


def invoke(*args: Any) -> Any:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_a_plan_file_holds_what_is_run_and_promised(plan: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    plan.save(file)
    found = Promise.load(file)
    assert found == plan.promise and (found.strategy, found.horizon, found.workers) == (plan.best.spec, 60, N)
    assert found.seconds_per_step.low <= 1.0 <= found.seconds_per_step.high and found.today.strategy == "uncoded"
    plain = tomllib.loads(file.read_text())
    assert plain["record"]["digest"] == plan.record["digest"] and "learning_rate" not in plain
    again = anyk.plan(Record(wandering(), load=1 / N), slope=0.0, resamples=50)
    assert again.promise == found  # by its seed


def _changed(change: Any) -> Any:
    def edit(values: Any) -> str:
        values = copy.deepcopy(values)
        change(values)
        return tomli_w.dumps(values)

    return edit


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (_changed(lambda v: v.update(colour="red")), "unknown key 'colour'"),
        (_changed(lambda v: v["record"].update(more=1)), "unknown key 'more' in 'record'"),
        (_changed(lambda v: v.pop("strategy")), "no key 'strategy'"),
        (_changed(lambda v: v["gain"].pop("low")), "no key 'low' in 'gain'"),
        (_changed(lambda v: v.update(version=2)), "a plan of version 2, this anyk reads version 1"),
        (_changed(lambda v: v.update(workers="six")), "Expected `int`, got `str` in 'workers'".replace("`", "'")),
        (_changed(lambda v: v.update(horizon=0)), "Expected 'int' >= 1 in 'horizon'"),
        (_changed(lambda v: v["seconds_per_step"].update(low=99.0)), "must be low, median and high in this order"),
        (lambda v: "strategy = ", "is not a plan: it is broken"),
    ],
)
def test_plan_files_that_are_none_get_one_sentence(plan: Any, tmp_path: Path, edit: Any, why: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(edit(plan.promise.plain()))
    with pytest.raises(BadInput) as caught:
        Promise.load(file)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_what_cannot_be_a_plan_file(plan: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a plan is written as \.toml"):
        plan.save(tmp_path / "plan.json")
    with pytest.raises(BadInput, match="cannot be written"):
        plan.save(tmp_path / "none" / "plan.toml")
    with pytest.raises(BadInput, match="cannot be read"):
        Promise.load(tmp_path / "none.toml")


def test_a_run_with_a_plan_has_its_strategy_workers_and_steps(plan: Any, tmp_path: Path) -> None:
    run = anyk.train(problem(), plan.promise, "simulated", out=tmp_path / "run")
    assert (run.config["strategy"], run.config["workers"], run.steps) == (plan.best.spec, N, 60)
    with anyk.Run.open(tmp_path / "run") as kept:
        assert Promise.of_plain(kept.config["plan"], "the run") == plan.promise
    further = anyk.train(problem(), plan.promise, "simulated", begin=run)
    assert further.steps == 120
    with pytest.raises(BadInput, match="the plan is for 6 workers, got 7"):
        anyk.train(problem(), plan.promise, "simulated", workers=7)
    with pytest.raises(BadInput, match="the plan is for 6 workers, got 5"):
        anyk.train(problem(), plan.promise, anyk.clusters.Simulated(5))


def test_train_with_a_plan_on_the_command_line(plan: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    plan.save(file)
    done = invoke("train", "--plan", file, *DATA, "--steps", 5, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    with anyk.Run.open(tmp_path / "run") as run:
        assert (run.config["strategy"], run.config["workers"], run.steps) == (plan.best.spec, N, 5)
    for option, why in (
        (("--strategy", "frc:load=2"), "leave out --strategy, or --plan"),
        (("--workers", 7), "is for 6 workers, got --workers 7"),
        (("--models", 2), "is for one model"),
    ):
        failed = invoke("train", "--plan", file, *DATA, *option)
        assert failed.exit_code == 2 and why in failed.output and not (tmp_path / "runs").exists()
    shown = invoke("train", "--plan", file, *DATA, "--settings")
    assert plan.best.spec in shown.output
