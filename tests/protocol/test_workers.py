"""Workers: a number or a range, as a value that a run stores and is built from again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import anyk
from anyk.base import specs
from anyk.base.specs import Spec
from anyk.cli import main
from anyk.protocol import Workers

pytestmark = pytest.mark.in_process

PROBLEM = anyk.problems.from_data("synthetic:rows=64,features=3")
TRAIN = ["train", "--data", "synthetic:rows=64,features=3", "--cluster", "simulated", "--steps", "3"]


@pytest.mark.parametrize(
    ("given", "partitions", "workers"),
    [
        (8, None, Workers(most=8)),
        ((2, 8), None, Workers(fewest=2, most=8, partitions=32)),
        ([2, 8], 24, Workers(fewest=2, most=8, partitions=24)),
        (8, 24, Workers(fewest=8, most=8, partitions=24)),
        (Workers.of((2, 8)), None, Workers.of((2, 8))),
        (Workers.of((2, 8)), 40, Workers(fewest=2, most=8, partitions=40)),
    ],
)
def test_numbers_and_ranges_become_one_value(given: Any, partitions: int | None, workers: Workers) -> None:
    assert Workers.of(given, partitions) == workers


@pytest.mark.parametrize("text", ["30", "4..16", "1..1"])
def test_the_text_of_workers_is_what_reads_back(text: str) -> None:
    assert str(Workers.read(text)) == text


@pytest.mark.parametrize("text", ["", "4..", "..4", "4...16", "4..16..64", "4-16", "many", "1.5", "(4, 16)"])
def test_texts_that_state_no_workers_are_refused(text: str) -> None:
    with pytest.raises(anyk.BadInput, match="workers should be a whole number, or a range such as 4..16, got"):
        Workers.read(text)


@pytest.mark.parametrize("given", [(4, 2), (0, 4), (-1, 4), "4..16", 2.5, (1, 2, 3), None, True])
def test_workers_that_cannot_be_are_refused(given: Any) -> None:
    with pytest.raises(anyk.BadInput, match="workers must be"):
        Workers.of(given)


@pytest.mark.parametrize("of", ["uncoded", "compressed:of=uncoded,by=(top-k:share=0.5)", "pasgd:tau=2"])
def test_a_strategy_has_the_workers_it_was_built_for(of: str) -> None:
    workers = Workers(fewest=2, most=4, partitions=12)
    built = anyk.strategy(of, workers=workers)
    assert Workers.of_layout(built.layout) == workers
    assert "fewest" not in built.spec and "partitions" not in built.spec
    assert anyk.strategy(built, workers=workers) is built


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("uncoded:fewest=2", r"give workers=\(2, 4\), or --workers 2..4"),
        ("async:fewest=2", r"give workers=\(2, 4\), or --workers 2..4"),
        ("uncoded:partitions=9", "give partitions=9, or --partitions 9"),
        ("compressed:of=(uncoded:fewest=2),by=sign", r"give workers=\(2, 4\), or --workers 2..4"),
    ],
)
def test_a_range_within_a_strategys_text_is_refused(spec: str, sentence: str) -> None:
    for train in (
        anyk.strategy,
        lambda spec, workers: anyk.race(PROBLEM, [spec], workers=workers, cluster="simulated"),
    ):
        with pytest.raises(anyk.BadInput, match=f"is a setting of the run, not of its strategy; {sentence}"):
            train(spec, workers=4)


def test_a_code_with_partitions_of_its_own_keeps_them() -> None:
    assert anyk.strategy("frc:load=2,partitions=8", workers=4).layout.partitions == 8
    with pytest.raises(anyk.BadInput, match="has its own partitions, which are for a fixed number of workers"):
        anyk.strategy("frc:load=2,partitions=8", workers=(2, 4))


def test_a_run_folder_stores_workers_beside_the_strategy(tmp_path: Path) -> None:
    folder, text = tmp_path / "run", "frc:stragglers=1,  cancel=discard"
    done = CliRunner().invoke(main, [*TRAIN, "--strategy", text, "--workers", "2..4", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    stored = tomllib.loads((folder / "run.toml").read_text())
    assert (stored["strategy"], stored["workers"]) == (text, {"fewest": 2, "most": 4, "partitions": 16})
    with anyk.resume(folder, steps=6) as run:
        assert (run.config.strategy, run.config.workers) == (text, Workers.of((2, 4)))
        assert run.report()["fewest"] == 2 and "2..4 workers" in repr(run)
    assert "the same bits of model" in str(anyk.replay(folder))
    shown = CliRunner().invoke(main, ["show", str(folder)]).output
    assert "workers       2..4\n" in shown and "partitions    16\n" in shown


@pytest.mark.slow
def test_the_text_of_a_strategy_is_split_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, split, texts = "frc:stragglers=1, batch=2", specs._split, list[str]()

    def noting(spec: str) -> tuple[str, dict[str, str]]:
        texts.append(spec)
        return split(spec)

    monkeypatch.setattr(specs, "_split", noting)
    words = [*TRAIN, "--strategy", text, "--workers", "2..4", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert texts.count(text) == 1


def test_a_loop_takes_a_range_and_goes_on_with_it(tmp_path: Path) -> None:
    def loop(steps: int, **workers: Any) -> Any:
        cluster = anyk.clusters.Simulated(4, delays="exp:mean=1", seed=2)
        rounds = anyk.rounds(
            PROBLEM, "frc:stragglers=1", cluster, steps=steps, out=tmp_path / "run", go_on=True, **workers
        )
        for step in rounds:
            step.model -= 0.1 * step.gradient
        return rounds.run

    with loop(3, workers=(2, 4)) as run:
        assert run.config.workers == Workers.of((2, 4))
    for other in ({}, {"workers": (3, 4)}, {"workers": (2, 4), "partitions": 12}):
        with pytest.raises(anyk.BadInput, match="has the (workers|partitions) '"):
            loop(6, **other)
    with loop(6, workers=(2, 4)) as run:
        assert run.steps == 6
    with pytest.raises(anyk.BadInput, match="the cluster has 4 workers, got 6 as the largest number"):
        loop(6, workers=(2, 6))


@pytest.mark.slow
def test_a_plan_on_the_command_line_is_for_a_range(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.toml")
    words = ["plan", "exp:mean=1", "--workers", "3..6", "--slope", "0", "--resamples", "20", "--out", plan]
    assert CliRunner().invoke(main, words).exit_code == 0
    promise = anyk.runs.Promise.load(plan)
    assert promise.workers == Workers.of((3, 6))
    run = anyk.train(PROBLEM, promise, "simulated", delays="exp:mean=1", steps=3)
    assert (run.config.strategy, run.config.workers) == (promise.strategy, promise.workers)
    with pytest.raises(anyk.BadInput, match=r"the plan is for 3..6 workers, got \(2, 6\)"):
        anyk.train(PROBLEM, promise, "simulated", workers=(2, 6))


def test_a_spec_with_further_keys_is_what_its_text_says() -> None:
    spec = Spec("kronecker:left=(frc:load=2) ,split=4")
    more = spec.with_keys({"split": 9, "models": 2})
    assert str(more) == "kronecker:left=(frc:load=2) ,split=4,models=2"
    assert (more.name, more.keys) == (Spec(str(more)).name, Spec(str(more)).keys)
    assert Spec("uncoded: ").with_keys({"models": 2}) == "uncoded:models=2" and spec.with_keys({"split": 9}) is spec
