"""Races: what is compared with what, and tables that can be read at any width."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import anyk
from anyk.cli import main
from anyk.reports import Columns, race_table
from anyk.training import compare
from anyk.training.racing import racers

PROBLEM = anyk.problems.from_data("synthetic:rows=200,features=5")


def run(*words: str, width: int | None = None) -> Any:
    return CliRunner(env={"COLUMNS": "" if width is None else str(width)}).invoke(main, list(words))


def raced(*strategies: str, workers: int = 6, **rest: Any) -> Any:
    rest = {"cluster": "simulated", "delays": "exp:mean=1", "steps": 20} | rest
    return anyk.race(PROBLEM, strategies, workers=workers, **rest)


def printed(table: Columns, width: int = 1000) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table, soft_wrap=True)
    return captured.get()


def test_speed_ups_are_over_uncoded_wherever_it_stands_else_over_the_first():
    result = raced("frc:load=3", "uncoded:wait=5", "uncoded", target=0.9)
    found = compare(result.runs)
    assert (found.over, found.by) == ("uncoded", "target")
    whole = result.runs[2].time_to_target
    assert [one.times for one in found.speed_ups] == [whole / run.time_to_target for run in result.runs]
    assert compare(result.runs[:2]).over == "frc:load=3"
    assert "vs uncoded\n" in printed(race_table(result.runs))


def test_without_a_target_both_are_taken_at_the_loss_both_reached():
    """20 updates of async are no 20 steps: it is compared at the loss to which they brought it."""
    result = raced("uncoded", "frc:load=3", "async:step=0.1", delays="exp:mean=1,by=round")
    found = compare(result.runs)
    uncoded, coded, loose = (run.history for run in result.runs)
    assert found.by == "loss" and found.speed_ups[0].times == 1.0
    assert found.speed_ups[1].times == pytest.approx(uncoded["seconds"][-1] / coded["seconds"][-1])
    at = loose["loss"].min()
    assert found.speed_ups[2].at == at
    reached = uncoded["seconds"][np.argmax(uncoded["loss"] <= at)]
    assert found.speed_ups[2].times == reached / loose["seconds"][np.argmax(loose["loss"] <= at)]


def test_unlike_numbers_of_models_are_compared_by_the_job():
    result = raced("gc:stragglers=1", "m-sgc:B=1,W=2,lambda=1", "async", workers=8)
    gc, both, _ = result.runs
    assert [(run.models_trained, run.jobs) for run in result.runs] == [(1, 20), (2, 40), (1, 20)]
    found = compare(result.runs)
    assert found.by == "job"
    assert found.speed_ups[1].times == (gc.seconds / 20) / (both.seconds / 40)
    assert found.speed_ups[2].times is None  # a step of async is one worker's gradient
    text = printed(race_table(result.runs))
    assert "jobs" in text and f"{both.seconds / 40:.3f}" in text
    report = result.report()
    assert (report["speed_up_over"], report["speed_up_by"]) == ("gc:stragglers=1", "job")
    assert [line["speed_up"] for line in report["runs"]] == [one.times for one in found.speed_ups]


def test_a_reference_that_missed_the_target_gives_a_bound():
    uncoded, coded = raced("uncoded", "frc:load=3", target=1.0, steps=None, seconds=40.0).runs
    assert uncoded.time_to_target is None and coded.time_to_target is not None
    found = compare([uncoded, coded]).speed_ups
    assert found[0].times is None and found[1].at_least
    assert found[1].times == uncoded.seconds / coded.time_to_target
    assert f"> {found[1].times:.1f}x" in printed(race_table([uncoded, coded]))


def test_a_run_that_ended_below_its_target_shows_its_best():
    problem = anyk.problems.from_data("digits")
    result = anyk.race(problem, ["async:step=0.4"], workers=30, cluster="simulated", delays="exp:mean=1", target=0.9,
                       steps=3000, optimizer=anyk.optimizers.GD(lr=0.17))  # fmt: skip
    only = result.runs[0]
    assert only.best == np.nanmax(only.history["accuracy"]) and only.result()["best"] == only.best
    assert "best" not in printed(race_table([only]))
    only.summary["metric"] = {"name": "accuracy", "value": 0.89}  # as on processes, where the end comes a little later
    text = printed(race_table([only]))
    assert "best" in text and "0.89" in text and f"{only.best:.4g}" in text


def test_one_run_has_no_speed_up():
    assert "speed-up" not in printed(race_table(raced("uncoded").runs))


def test_what_races_by_default_exists_for_every_number_of_workers():
    for workers in range(1, 130):
        built = [anyk.strategy(spec, workers=workers) for spec in racers(workers)]
        assert len({one.spec for one in built}) == len(built) == (4 if workers > 1 else 2)
    for workers in (2, 5, 10):
        assert all(math.isfinite(run.loss) for run in raced(*racers(workers), workers=workers).runs)


ROWS = [["frc:load=3", "1.234", "10.1x"], ["agc:load=3,wait=11", "123.45", "1.0x"], ["agc:load=3,wait=21", "1", "2.0x"]]


@pytest.mark.parametrize("width", [12, 24, 30, 36, 40, 80])
def test_numbers_stand_whole_at_every_width_and_rows_are_told_apart(width):
    text = printed(Columns(["strategy", "seconds\nin all", "speed-up"], ROWS), width)
    names = ["frc:load=3", "agc:load=3,wait=11", "agc:load=3,wait=21"]
    for row in ROWS:
        for number in row[1:]:
            assert any(number in line.split() for line in text.splitlines())
    heads = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    if width >= 40:
        assert all(name in text for name in names)
    assert len(set(heads)) == len(heads)
    if width >= 36:
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    "words",
    [
        ("race", "--cluster", "simulated", "--delays", "exp:mean=1", "--steps", "3", "--workers", "6", "--quiet"),
        ("codes", "compare", "frc:load=3", "graph:load=4", "--workers", "12", "--sets", "5"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_is_printed_has_all_its_numbers_on_a_narrow_screen(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wide, narrow = run(*words), run(*words, width=40)
    assert wide.exit_code == narrow.exit_code == 0, narrow.output
    assert "…" not in wide.output
    digits = lambda text: sorted(word for word in text.split() if word.strip("~≥x")[:1].isdigit())  # noqa: E731
    assert set(digits(wide.output)) <= set(digits(narrow.output))
