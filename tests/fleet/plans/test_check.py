"""Plans that are saved, run and checked: what a promise says, whether it held, and which part of it did not."""

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.fleet.plans.check import mean_effects
from anyk.fleet.records import Record
from anyk.runs import Promise

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


@pytest.mark.slow
def test_a_plan_file_holds_what_is_run_and_promised(plan: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    plan.save(file)
    promise = Promise.load(file)
    assert promise == plan.promise and (promise.strategy, promise.horizon, promise.workers.most) == (
        plan.best.spec,
        60,
        N,
    )
    assert promise.seconds_per_step.low <= 1.0 <= promise.seconds_per_step.high and promise.today.strategy == "uncoded"
    plain = tomllib.loads(file.read_text())
    assert plain["record"]["digest"] == plan.record.digest and "learning_rate" not in plain
    other_plan = anyk.plan(Record(wandering(), load=1 / N), slope=0.0, resamples=50)
    assert other_plan.promise == promise  # by its seed


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
        (_changed(lambda v: v.update(workers="six")), "Expected `object`, got `str` in 'workers'".replace("`", "'")),
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


@pytest.mark.slow
def test_a_run_with_a_plan_has_its_strategy_workers_and_steps(plan: Any, tmp_path: Path) -> None:
    run = anyk.train(problem(), plan.promise, "simulated", out=tmp_path / "run")
    assert (run.config.strategy, run.config.workers.most, run.steps) == (plan.best.spec, N, 60)
    with anyk.Run.open(tmp_path / "run") as saved_run:
        assert saved_run.config.plan == plan.promise
    further = anyk.train(problem(), plan.promise, "simulated", begin=run)
    assert further.steps == 120
    with pytest.raises(BadInput, match="the plan is for 6 workers, got 7"):
        anyk.train(problem(), plan.promise, "simulated", workers=7)
    with pytest.raises(BadInput, match="the plan is for 6 workers, got 5"):
        anyk.train(problem(), plan.promise, anyk.clusters.Simulated(5))
    with pytest.raises(BadInput, match="the plan is for 6 workers, got 12 partitions"):
        anyk.train(problem(), plan.promise, "simulated", partitions=12)


def test_train_with_a_plan_on_the_command_line(plan: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    plan.save(file)
    done = invoke("train", "--plan", file, *DATA, "--steps", 5, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    with anyk.Run.open(tmp_path / "run") as run:
        assert (run.config.strategy, run.config.workers.most, run.steps) == (plan.best.spec, N, 5)
    for option, sentence in (
        (("--strategy", "frc:load=2"), "leave out --strategy, or --plan"),
        (("--workers", f"2..{N}"), f"is for 6 workers, got --workers 2..{N}"),
        (("--partitions", 12), "is for 6 workers, got --partitions 12"),
        (("--workers", 7), "is for 6 workers, got --workers 7"),
        (("--models", 2), "is for one model"),
    ):
        failed = invoke("train", "--plan", file, *DATA, *option)
        assert failed.exit_code == 2 and sentence in failed.output and not (tmp_path / "runs").exists()
    result = invoke("train", "--plan", file, *DATA, "--settings")
    assert plan.best.spec in result.output


# ------------------------------------------------------------------------------------------- checked


@pytest.fixture(scope="module")
def record(tmp_path_factory: Any) -> Any:
    file = tmp_path_factory.mktemp("fleet") / "fleet.npz"
    Record(wandering(), load=1 / N).save(file)
    return file


def run_of(plan: Any, cluster: Any = "simulated", **more: Any) -> Any:
    return anyk.train(problem(), plan.promise, cluster, **more)


def parts_of(plan: Any, record: Any, *given_: Any, **more: Any) -> tuple[Any, dict[str, float]]:
    """What check finds, and its parts in seconds a step, of which the sum is exactly the difference."""
    verdict = anyk.check(run_of(plan, *given_, **more), record=record)
    assert verdict.parts is not None and not verdict.held
    assert sum(verdict.parts.values()) == verdict.measured.seconds - verdict.promised.seconds  # to the last bit
    return verdict, {name: seconds / verdict.measured.steps for name, seconds in verdict.parts.items()}


@pytest.mark.slow
def test_a_promise_that_holds_has_no_cause(plan: Any, record: Any) -> None:
    cluster = anyk.clusters.Simulated(N, delays=anyk.delays.TableDelays(wandering(), by="round"))
    verdict = anyk.check(run_of(plan, cluster))
    assert verdict.held and verdict.parts is verdict.broke is verdict.replan is None and verdict.remarks == ()
    assert verdict.measured.seconds == verdict.promised.seconds == 60.0 and verdict.sentence.startswith(
        "held: a step took 1 s"
    )
    short = anyk.check(run_of(plan, cluster, steps=10))
    assert short.held and "made for a run of 60 steps; this one has taken 10" in short.remarks[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "delays", "broke", "expected"),
    [  # the plan's strategy computes two of six partitions and was promised 1 s
        ("simulated", "constant:3", "delays", {"delays": 2.0}),
        ("simulated:partition=0.5,cores=6", "constant:1", "load", {"load": 1.0}),
        ("simulated:partition=20,cores=6", "constant:1", "load", {"load": 40.0}),
        ("simulated:step=0.5", "constant:1", "anyk", {"anyk": 0.5}),
        ("simulated:partition=0.5,step=0.25,cores=6", "constant:0.5", "load", {"load": 1.0, "delays": -0.5, "anyk": 0.25}),
    ],
)  # fmt: skip
def test_what_broke_is_what_was_changed(
    plan: Any, record: Any, cluster: str, delays: str, broke: str, expected: Any
) -> None:
    verdict, parts = parts_of(plan, record, cluster, delays=delays)
    full = dict.fromkeys(("luck", "delays", "load", "anyk", "steps"), 0.0) | expected
    assert verdict.broke == broke and parts == pytest.approx(full, abs=1e-6) and set(parts) == set(full)
    assert verdict.added == pytest.approx(expected.get("anyk", 0.0) * 60, abs=1e-6)
    assert verdict.sentence.startswith("not held: a step took ") and "the plan would " in verdict.sentence
    assert (verdict.replan is not None) == ("partition=20" in cluster)  # two of six partitions are dear then


@pytest.mark.slow
def test_indistinguishable_delays_and_load_are_one_part(plan: Any, record: Any) -> None:
    _, parts = parts_of(plan, record, "simulated", delays="bimodal:fast=0.5,slow=3,probability=0.2,per=load", seed=4)
    assert set(parts) == {"luck", "times", "steps", "anyk"} and parts["anyk"] == pytest.approx(0.0, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=8, max_size=8), st.permutations(["delays", "load", "steps"]))
def test_mean_effects_add_up_and_are_shapley_values(totals: list[float], names: list[str]) -> None:
    def total(made: dict[str, bool]) -> float:
        return totals[sum(made[name] << i for i, name in enumerate(("delays", "load", "steps")))]

    effects = mean_effects(total, tuple(names))
    assert sum(effects.values()) == pytest.approx(totals[7] - totals[0], abs=1e-9)
    t = totals  # corners by bits: delays 1, load 2, steps 4
    delays = (t[1] - t[0]) / 3 + (t[3] - t[2]) / 6 + (t[5] - t[4]) / 6 + (t[7] - t[6]) / 3
    assert effects["delays"] == pytest.approx(delays, abs=1e-9)


def test_what_cannot_be_checked(plan: Any, record: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="was not started with a plan; start one with: anyk train --plan"):
        anyk.check(anyk.train(problem(), "uncoded", "simulated", workers=3, steps=1))
    run = run_of(plan, delays="constant:3", steps=5)
    without = anyk.check(run)  # the plan was made from a record in memory
    assert not without.held and without.parts is None and "the cause is unknown: the plan was made" in without.sentence
    other = Record(wandering(30), load=1 / N)
    with pytest.raises(BadInput, match="the record given is not the record that the plan was made from"):
        anyk.check(run, record=other)


@pytest.mark.slow
def test_the_record_is_found_again_or_missed_in_a_sentence(record: Any, tmp_path: Path) -> None:
    file = tmp_path / "here.npz"
    file.write_bytes(record.read_bytes())
    of_file = anyk.plan(file, slope=0.0, resamples=20)
    run = run_of(of_file, delays="constant:3", steps=5, out=tmp_path / "run")
    assert anyk.check(run).broke == "delays"
    file.rename(tmp_path / "there.npz")
    lines = invoke("check", tmp_path / "run", "--quiet")
    assert (
        lines.exit_code == 0 and lines.output.count("\n") == 2 and "is missing; give its present place" in lines.output
    )
    result = invoke("check", tmp_path / "run", "--record", tmp_path / "there.npz", "--quiet", "--json", "-")
    report = json.loads(result.stdout)
    assert {"promised", "measured", "held", "parts", "broke", "replan"} <= set(report) and report["broke"] == "delays"
    assert sum(report["parts"].values()) == report["measured"]["seconds"] - report["promised"]["seconds"]
    law = anyk.delays.parse("constant:1")
    drawn_ = anyk.plan(law, workers=2, slope=0.0, resamples=20)
    assert anyk.check(run_of(drawn_, delays="constant:3", steps=5)).parts is not None


@pytest.mark.slow
def test_a_run_with_a_plan_ends_with_its_check(record: Any, tmp_path: Path) -> None:
    result = invoke("plan", record, "--slope", 0, "--quiet", "-o", tmp_path / "plan.toml", "--resamples", 20)
    assert result.exit_code == 0 and f"plan: {tmp_path / 'plan.toml'}" in result.output
    words = ["train", "--plan", tmp_path / "plan.toml", *DATA, "--out", tmp_path / "run", "--delays"]
    done = invoke(*words, f"trace:{record}", "--json", tmp_path / "run.json")
    assert done.exit_code == 0 and "\nheld: a step took 1 s" in done.output, done.output
    assert json.loads((tmp_path / "run.json").read_text())["check"]["held"] is True
