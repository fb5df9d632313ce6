"""Races: what is compared with what, and tables that can be read at any width."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tomllib
from typing import Any

import matplotlib.colors
import matplotlib.text
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import anyk
import anyk.cli
from anyk.base.specs import parse_spec
from anyk.cli import main
from anyk.runs import compare
from anyk.runs.callbacks import Watching
from anyk.runs.folder.config import write_plain
from anyk.runs.races.race import charged, racers
from anyk.views import Columns, race_table
from anyk.views.result_tables import load_notes

pytestmark = pytest.mark.slow

PROBLEM = anyk.problems.from_data("synthetic:rows=200,features=5")


def run(*words: str, width: int | None = None) -> Any:
    return CliRunner(env={"COLUMNS": "" if width is None else str(width)}).invoke(main, list(words))


def raced(*strategies: str, workers: int = 6, **rest: Any) -> Any:
    rest = {"cluster": "simulated", "delays": "exp:mean=1", "steps": 20, "optimizer": anyk.optimizers.GD()} | rest
    return anyk.race(PROBLEM, strategies, workers=workers, **rest)


def printed(table: Columns, width: int = 1000) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table, soft_wrap=True)
    return captured.get()


def test_speed_ups_are_over_uncoded_or_else_the_first():
    result = raced("frc:load=3", "uncoded:wait=5", "uncoded", target=0.9)
    comparison = compare(result.runs)
    assert (comparison.over, comparison.by) == ("uncoded", "target")
    seconds = result.runs[2].time_to_target
    assert [one.times for one in comparison.speed_ups] == [seconds / run.time_to_target for run in result.runs]
    assert compare(result.runs[:2]).over == "frc:load=3"
    assert "vs uncoded\n" in printed(race_table(result.runs))


def test_without_a_target_the_loss_that_both_reached_counts():
    """20 updates of async are no 20 steps: it is compared at the loss to which they brought it."""
    result = raced("uncoded", "frc:load=3", "async:lr_scale=0.1", delays="exp:mean=1,by=round")
    comparison = compare(result.runs)
    uncoded, coded, loose = (run.history for run in result.runs)
    assert comparison.by == "loss" and comparison.speed_ups[0].times == 1.0
    assert comparison.speed_ups[1].times == pytest.approx(uncoded["seconds"][-1] / coded["seconds"][-1])
    best_loss = loose["loss"].min()
    assert comparison.speed_ups[2].at == best_loss
    reached = uncoded["seconds"][np.argmax(uncoded["loss"] <= best_loss)]
    assert comparison.speed_ups[2].times == reached / loose["seconds"][np.argmax(loose["loss"] <= best_loss)]


def test_unlike_numbers_of_models_are_compared_by_the_job():
    result = raced("gc:stragglers=1", "m-sgc:B=1,W=2,lambda=1", "async", workers=8)
    gc, both, _ = result.runs
    assert [(run.models_trained, run.jobs) for run in result.runs] == [(1, 20), (2, 40), (1, 20)]
    comparison = compare(result.runs)
    assert comparison.by == "job"
    assert comparison.speed_ups[1].times == (gc.seconds / 20) / (both.seconds / 40)
    assert comparison.speed_ups[2].times is None  # a step of async is one worker's gradient
    table = printed(race_table(result.runs))
    assert "jobs" in table and f"{both.seconds / 40:.3f}" in table
    report = result.report()
    assert (report["speed_up_over"], report["speed_up_by"]) == ("gc:stragglers=1", "job")
    assert [line["speed_up"] for line in report["runs"]] == [one.times for one in comparison.speed_ups]


def test_a_reference_that_missed_the_target_gives_a_bound():
    uncoded, coded = raced("uncoded", "frc:load=3", target=1.0, steps=None, seconds=40.0).runs
    assert uncoded.time_to_target is None and coded.time_to_target is not None
    speed_ups = compare([uncoded, coded]).speed_ups
    assert speed_ups[0].times is None and speed_ups[1].at_least
    assert speed_ups[1].times == uncoded.seconds / coded.time_to_target
    assert f"> {speed_ups[1].times:.1f}x" in printed(race_table([uncoded, coded]))


def test_a_run_that_ended_below_its_target_shows_its_best():
    problem = anyk.problems.from_data("digits")
    result = anyk.race(problem, ["async:lr_scale=0.4"], workers=30, cluster="simulated", delays="exp:mean=1", target=0.9,
                       steps=3000, optimizer=anyk.optimizers.GD(lr=0.17))  # fmt: skip
    only = result.runs[0]
    assert only.best == np.nanmax(only.history["accuracy"]) and only.result()["best"] == only.best
    assert "best" not in printed(race_table([only]))
    only.summary["metric"] = {"name": "accuracy", "value": 0.89}  # as on processes, where the end comes a little later
    table = printed(race_table([only]))
    assert "best" in table and "0.89" in table and f"{only.best:.4g}" in table


def test_one_run_has_no_speed_up():
    assert "speed-up" not in printed(race_table(raced("uncoded").runs))


def test_default_racers_exist_for_every_number_of_workers():
    for workers in range(1, 130):
        built = [anyk.strategy(spec, workers=workers) for spec in racers(workers)]
        assert len({one.spec for one in built}) == len(built) == (4 if workers > 1 else 2)
    for workers in (2, 5, 10):
        assert all(math.isfinite(run.loss) for run in raced(*racers(workers), workers=workers).runs)


ROWS = [["frc:load=3", "1.234", "10.1x"], ["agc:load=3,wait=11", "123.45", "1.0x"], ["agc:load=3,wait=21", "1", "2.0x"]]


@pytest.mark.parametrize("width", [12, 24, 30, 36, 40, 80])
def test_tables_show_whole_numbers_and_rows_at_every_width(width):
    table = printed(Columns(["strategy", "seconds\nin all", "speed-up"], ROWS), width)
    names = ["frc:load=3", "agc:load=3,wait=11", "agc:load=3,wait=21"]
    for row in ROWS:
        for number in row[1:]:
            assert any(number in line.split() for line in table.splitlines())
    heads = [line.split()[0] for line in table.splitlines() if not line.startswith(" ")]
    if width >= 40:
        assert all(name in table for name in names)
    assert len(set(heads)) == len(heads)
    if width >= 36:
        assert max(map(len, table.splitlines())) <= width


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


# ------------------------------------------------------------------------------------------------ the folder

SMALL = (
    "--data",
    "synthetic:rows=120,features=5",
    "--workers",
    "6",
    "--cluster",
    "simulated",
    "--delays",
    "exp:mean=1",
)


def losses(folder: Any) -> dict[str, float]:
    race = anyk.Race.open(folder)
    result = {str(run.config.strategy): run.loss for run in race.runs}
    race.close()
    return result


def test_a_race_is_shown_redrawn_and_extended(tmp_path):
    folder = tmp_path / "race"
    two = ("--strategy", "uncoded", "--strategy", "frc:load=3")
    done = run("race", *SMALL, *two, "--steps", "6", "--out", str(folder), "--quiet")
    assert done.exit_code == 0, done.output
    result = run("show", str(folder), "--picture", str(tmp_path / "again.png"), "--json", str(tmp_path / "r.json"))
    assert result.exit_code == 0, result.output
    table = done.output[done.output.index("strategy  ") :].partition("picture")[0]
    assert (
        table in result.output and "delays        exp:mean=1" in result.output and "not finished" not in result.output
    )
    assert (tmp_path / "again.png").read_bytes()[:4] == b"\x89PNG"
    assert [line["steps"] for line in json.loads((tmp_path / "r.json").read_text())["runs"]] == [6, 6]
    more = run("resume", str(folder), "--add", "agc:load=3,wait=1", "--quiet")
    assert more.exit_code == 0, more.output
    assert list(losses(folder)) == ["uncoded", "frc:load=3", "agc:load=3,wait=1"]
    longer = run("resume", str(folder), "--steps", "9", "--json", "-", "--quiet")
    assert [line["steps"] for line in json.loads(longer.stdout)["runs"]] == [9, 9, 9]
    assert (
        "steps must be a whole number of at least 1 or None, got 0" in run("resume", str(folder), "--steps", "0").output
    )
    assert "'uncoded' is in the race already" in run("resume", str(folder), "--add", "uncoded").output
    assert "--step is for one of its runs" in run("show", str(folder), "--step", "2").output
    assert "--add is for the folder of a race" in run("resume", str(folder / "uncoded"), "--add", "sync").output
    assert f"go on with it: anyk resume {folder}" in run("race", *SMALL, "--out", str(folder)).output


def test_an_interrupted_race_goes_on_to_the_same_models(tmp_path):
    setting: dict[str, Any] = {"workers": 6, "cluster": "simulated", "delays": "exp:mean=1", "steps": 12}
    specs = ["uncoded", "frc:load=3", "agc:load=3,wait=1"]
    uninterrupted = anyk.race(PROBLEM, specs, out=tmp_path / "whole", **setting)

    def interrupt(driver: Any, evaluator: Any) -> None:
        del evaluator
        if driver.strategy.spec == "frc:load=3" and driver.step == 5:
            driver.interrupt()

    with pytest.raises(KeyboardInterrupt):
        anyk.race(PROBLEM, specs, out=tmp_path / "cut", callbacks=[Watching(interrupt)], **setting)
    cut_race = anyk.Race.open(tmp_path / "cut")
    assert [run.steps for run in cut_race.runs] == [12, 5] and cut_race.waiting == ("agc:load=3,wait=1",)
    cut_race.close()
    outcome = run("show", str(tmp_path / "cut"))
    assert f"not finished: frc:load=3, agc:load=3,wait=1; go on with: anyk resume {tmp_path / 'cut'}" in outcome.output
    heard: list[str] = []
    resumed = anyk.resume_race(tmp_path / "cut", before=heard.append)
    assert heard == specs[1:]
    assert [run.model.tobytes() for run in resumed.runs] == [run.model.tobytes() for run in uninterrupted.runs]
    for result in (uninterrupted, resumed):
        result.close()


def test_ctrl_c_in_a_race_prints_results_and_a_way_to_go_on(tmp_path, monkeypatch):
    from anyk.views import LiveProgress

    folder = tmp_path / "race"

    def interrupt(self: Any, info: Any) -> None:
        if info.driver.strategy.spec == "frc:load=3" and info.step == 2:
            info.driver.interrupt()

    with monkeypatch.context() as patched:
        patched.setattr(LiveProgress, "on_step", interrupt)
        cut = run(
            "race", *SMALL, "--strategy", "uncoded", "--strategy", "frc:load=3", "--steps", "4", "--out", str(folder)
        )
    assert cut.exit_code == 130
    assert "uncoded " in cut.output and f"interrupted; go on with: anyk resume {folder}\n" in cut.output
    resumed = run("resume", str(folder), "--quiet")
    assert resumed.exit_code == 0 and f"picture: {folder / 'race.png'}" in resumed.output
    assert [*losses(folder)] == ["uncoded", "frc:load=3"]


def test_a_run_that_fails_does_not_end_the_race(tmp_path):
    result = run("race", "--data", "synthetic:task=regression", "--cluster", "simulated", "--workers", "4", "--lr", "1e9",
                 "--optimizer", "gd", "--steps", "50", "--strategy", "uncoded", "--strategy", "async:lr_scale=1e-9",
                 "--delays", "exp:mean=1", "--out", str(tmp_path / "race"))  # fmt: skip
    assert result.exit_code == 1, result.output
    assert "uncoded failed: " in result.output and "diverged at step" in result.output
    runs = anyk.Race.open(tmp_path / "race").runs
    assert runs[1].steps == 50
    assert [one.times for one in compare(runs).speed_ups] == [None, None]  # one never fell below where it began


def test_a_folder_with_several_runs_is_shown_as_they_began(tmp_path):
    small = [*SMALL, "--models", "2", "--strategy", "auto:measure=12", "--steps", "9", "--quiet"]
    assert run("train", *small, "--out", str(tmp_path / "t")).exit_code == 0
    result = run("show", str(tmp_path / "t"))
    assert result.exit_code == 0, result.output
    with anyk.Race.open(tmp_path / "t") as parts:
        first, second = (run.config.strategy for run in parts.runs)
    assert first == "frc:stragglers=1,models=2" and result.output.index(first) < result.output.index(second)
    assert "nothing was left to do at step 9" in run("resume", str(tmp_path / "t")).output


@pytest.mark.parametrize(
    ("was", "becomes", "sentence"),
    [
        ('uncoded = "uncoded"', 'uncoded = "../elsewhere"', "is damaged (Expected `str` matching regex"),
        ("most = 6", 'most = "six"', "Expected `int`, got `str`"),
        ("format = 1", "format = 2", "has format 2, this anyk reads up to 1"),
        ("format = 1", "format =", "is damaged"),
        (
            'data = "synthetic:rows=120,features=5"',
            'problem = "evil.py:make"',
            "may belong to somebody else; if it is yours",
        ),
    ],
)
def test_a_damaged_or_hostile_race_folder_is_refused(was, becomes, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('sentinel', 'w')\n")
    assert run("race", *SMALL, "--strategy", "uncoded", "--steps", "2", "--out", "r", "--quiet").exit_code == 0
    config = (tmp_path / "r" / "race.toml").read_text()
    assert was in config
    (tmp_path / "r" / "race.toml").write_text(config.replace(was, becomes))
    edited = run("resume", "r", "--add", "frc:load=3")
    early = "problem" not in becomes  # found before the digest is looked at
    assert edited.exit_code == 2 and (sentence if early else "was edited") in edited.output, edited.output
    if becomes != "format =":  # as a stranger would who knows how the file is made
        write_plain(tmp_path / "r" / "race.toml", tomllib.loads(config.replace(was, becomes)))
    for command in (["resume", "r", "--add", "frc:load=3"], ["show", "r"]):
        result = run(*command)
        assert not (tmp_path / "sentinel").exists()
        if command[0] == "resume" or "evil" not in becomes:
            assert result.exit_code == 2 and sentence in result.output, result.output


def test_a_problem_of_ones_own_is_named_again_or_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import anyk\nmake = lambda: anyk.testing.Squares(12)\n")
    first = run("race", "--problem", "mine.py:make", "--lr", "0.1", *SMALL[2:], "--strategy", "uncoded", "--steps", "2",
                "--out", "r", "--quiet")  # fmt: skip
    assert first.exit_code == 0, first.output
    refused = run("resume", "r", "--add", "frc:load=2")
    assert refused.exit_code == 2 and "--trust" in refused.output
    for spec, way in (("frc:load=2", ["--trust"]), ("frc:load=3", ["--problem", "mine.py:make"])):
        extended = run("resume", "r", "--add", spec, *way, "--quiet")
        assert extended.exit_code == 0, extended.output
    config = (tmp_path / "r" / "race.toml").read_text()
    digest = hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()
    (tmp_path / "r" / "race.toml").write_text(config.replace(digest, "0" * 64))
    assert "race.toml' is damaged or was edited" in run("resume", "r", "--add", "frc:load=6", "--trust").output
    write_plain(tmp_path / "r" / "race.toml", tomllib.loads(config.replace(digest, "0" * 64)))
    assert "recorded 00000000" in run("resume", "r", "--add", "frc:load=6", "--trust").output


def test_models_are_for_all_strategies_or_for_none(tmp_path):
    words = ["race", *SMALL, "--models", "2", "--steps", "4", "--quiet", "--out", str(tmp_path / "r"), "--json", "-"]
    done = run(*words, "--strategy", "gc:stragglers=1", "--strategy", "m-sgc:B=1,W=2,lambda=1")
    assert done.exit_code == 0, done.output
    assert [(line["models"], line["jobs"]) for line in json.loads(done.stdout)["runs"]] == [(2, 8), (2, 8)]
    bad = run(*words, "--strategy", "async")
    assert bad.exit_code == 2 and "'async' trains 1 model and cannot race with 2 models" in bad.output


# ------------------------------------------------------------------------------------------------ before and after


@pytest.mark.parametrize(
    "words",
    [
        ("race", *SMALL), ("train", *SMALL), ("show", "RUN"), ("resume", "RUN"), ("list", "codes"), ("codes", "show", "bibd"),
        ("codes", "compare", "uncoded"), ("list", "graphs"), ("graphs", "show", "ring"), ("strategies", "show", "async"),
        ("list", "delays"), ("list",), ("cluster", "check", "processes"),
        ("trace", "show", "t.npz"), ("decompile", "math:sin"),
    ],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_found_before_the_work(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = anyk.cli.main
    for word in words[:2]:
        command = getattr(command, "commands", {}).get(word, command)
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options
    for option in {"--json", "--picture"} & options:
        result = run(*words, option, "nowhere/x.png")
        assert result.exit_code == 2 and "there is no folder 'nowhere'" in result.output, result.output
        assert len(result.output.splitlines()) == 1 and not list(tmp_path.iterdir())
    if "--picture" in options:
        assert "should end in .png, .pdf or .svg" in run(*words, "--picture", "x.jgp").output


def test_a_race_without_matplotlib_or_bokeh_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "bokeh.document", None)
    monkeypatch.delenv("ANYK_RACE_PAGE")
    result = run("race", *SMALL, "--steps", "2", "--quiet", "--out", str(tmp_path / "r"))
    assert result.exit_code == 0 and "speed-up" in result.output
    assert "no picture: " in result.output and "plot]" in result.output
    assert "no report: " in result.output and "report]" in result.output
    for asked, extra in (
        (("--picture", "x.png"), "plot]"),
        (("--page", "x.html"), "report]"),
        (("--page", "x.png"), ".html, got"),
    ):
        refused = run("race", *SMALL, "--steps", "2", "--quiet", *asked)
        assert refused.exit_code == 2 and extra in refused.output and "speed-up" not in refused.output


def test_a_limit_of_a_clock_that_stands_still_is_refused(tmp_path):
    np.savez(tmp_path / "still.npz", seconds=np.zeros((3, 6)))
    for delays in ("none", f"trace:{tmp_path / 'still.npz'}"):
        result = run("train", *SMALL[:-1], delays, "--seconds", "3", "--target", "1", "--out", str(tmp_path / "r"))
        assert result.exit_code == 2 and "a limit of 3 seconds is never reached" in result.output, result.output
    assert not (tmp_path / "r").exists()
    for cluster in ("simulated:partition=0.1", "simulated"):
        words = ("--cluster", cluster, "--communication", "constant:0.5" if cluster == "simulated" else "none")
        assert (
            run("train", *SMALL[:-1], "none", *words, "--seconds", "3", "--out", str(tmp_path / cluster)).exit_code == 0
        )


def test_a_target_out_of_reach_ends_at_a_reported_limit(tmp_path, monkeypatch):
    for module in ("spec", "training"):
        monkeypatch.setattr(f"anyk.runs.{module}.LIMIT", 30)
    monkeypatch.setattr("anyk.views.result_tables.LIMIT", 30)
    data = ("--data", "synthetic:rows=120,features=5,task=regression", *SMALL[2:])
    result = run("train", *data, "--target", "1e-30", "--out", str(tmp_path / "r"), "--quiet")
    assert result.exit_code == 0, result.output
    assert "uncoded did not reach 1e-30 in 30 steps, the default limit" in result.output
    further = run("resume", str(tmp_path / "r"), "--target", "1e-29", "--json", "-", "--quiet")
    assert json.loads(further.stdout)["runs"][0]["steps"] == 60


def test_load_that_costs_nothing_is_reported(tmp_path):
    free = raced("uncoded", "frc:load=3").runs
    assert "load costs nothing here (0.167 to 0.5 of the data per worker)" in "\n".join(load_notes(free))
    for options in ({"delays": "exp:mean=1,per=load"}, {"cluster": "simulated:partition=0.5,cores=6"}):
        assert load_notes(raced("uncoded", "frc:load=3", **options).runs) == []
    little = load_notes(raced("uncoded", "frc:load=3", cluster="simulated:partition=0.001,cores=6").runs)
    assert len(little) == 1 and "next to nothing here" in little[0] and "computing takes 3 ms" in little[0]
    assert load_notes(raced("uncoded", "uncoded:wait=4").runs) == []  # they have the same load
    name, values = parse_spec(charged("simulated", PROBLEM, workers=6))
    assert name == "simulated" and 0 < float(values["partition"]) < 1 and values["cores"] == "6"
    for cluster in ("simulated:task=1", "processes"):
        assert charged(cluster, PROBLEM, workers=6) == cluster


def test_a_receipt_names_every_worker(tmp_path):
    folder = str(tmp_path / "run")
    assert run("train", *SMALL, "--strategy", "frc:load=3", "--steps", "8", "--out", folder, "--quiet").exit_code == 0
    receipts = [anyk.Run.open(folder).receipt(step) for step in range(1, 9)]
    for one in receipts:
        used = [row[0] for row in one.used]
        assert sorted([*used, *(cut.worker for cut in one.cut_off), *one.spare, *one.rest]) == list(range(6))
    step = next(i for i, one in enumerate(receipts, 1) if one.spare)
    assert (
        f"{len(receipts[step - 1].spare)} in time but not needed: workers"
        in run("show", folder, "--step", str(step)).output
    )
    assert run("train", *SMALL, "--steps", "2", "--out", folder + "2", "--quiet").exit_code == 0
    assert "no worker was cut off" in run("show", folder + "2", "--step", "1").output


def test_docstrings_are_printed_as_plain_text():
    for words in (("strategies", "show", "k-async:k=2", "--workers", "8"), ("codes", "show", "bibd", "--workers", "7")):
        result = run(*words, width=60)
        assert result.exit_code == 0
        assert "``" not in result.output and "===" not in result.output and ":class:" not in result.output
    table = run("strategies", "show", "k-async:k=2", "--workers", "8", width=60).output
    assert "- k-async: a worker that replied before the step: waits; at\n  the step: these k workers" in table
    assert "any 1 straggler\n" in run("codes", "show", "frc:stragglers=1", "--workers", "6").output


def test_codes_are_compared_with_a_picture_on_request_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("codes", "compare", "uncoded", "--workers", "4", "--sets", "3")
    assert result.exit_code == 0 and "picture" not in result.output and not list(tmp_path.iterdir())


def test_a_screen_without_our_signs_gets_plain_ones(tmp_path):
    """Else a run of hours would end in a UnicodeEncodeError where its result should be."""
    small = [*SMALL, "--steps", "2", "--target", "1", "--strategy", "uncoded", "--strategy", "frc:load=3"]
    words = [sys.executable, "-m", "anyk", "race", *small, "--out", str(tmp_path / "r")]
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "70"}
    done = subprocess.run(words, env=ascii_only, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    output = done.stdout.decode("ascii")
    assert "- uncoded\n" in output and "    -" in output and "?" not in output


# ------------------------------------------------------------------------------------------------ the picture


def labels(axes):
    """The labels of a picture's lines, by strategy."""
    return {label.get_text().split("   ")[0]: label for label in axes.texts if "   " in label.get_text()}


@pytest.mark.parametrize("of", ["metric", "loss"])
def test_the_picture_names_each_strategy_with_its_result(of, tmp_path):
    runs = raced("uncoded", "frc:load=3", "async:lr_scale=0.1", "dpsgd", "bgc:load=2", target=0.9).runs
    figure = anyk.views.plot(runs, tmp_path / "a.png", of=of)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"  # the slowest takes several times as long as the fastest
    assert not figure.legends and axes.get_legend() is None
    words = [label.get_text() for label in axes.texts]
    for phrase in ("injected delay, exp:mean=1", "speed compared with uncoded"):
        assert any(phrase in label for label in words), phrase
    named_labels = labels(axes)
    assert set(named_labels) == {run.config.strategy for run in runs}
    frc = named_labels["frc:load=3"].get_text()
    assert "times as fast" in frc and ("loss" in frc) == (of == "loss")
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in named_labels.values()]
    assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i])
    assert all(box.y0 >= axes.bbox.y1 for box in boxes)  # above the curves
    for label in axes.texts:
        box = label.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, label


def test_lines_differ_by_more_than_their_colours():
    specs = ["uncoded", "frc:load=3", "frc:load=2", "async:lr_scale=0.1", "dpsgd", "bgc:load=2", "uncoded:wait=3"]
    (axes,) = anyk.views.plot(raced(*specs, target=0.9).runs).axes
    curves = [line for line in axes.lines if line.get_marker() != "None" and line.get_transform() == axes.transData]
    assert len({line.get_marker() for line in curves}) == len(curves) == len(specs)
    dashes = [line.get_linestyle() for line in curves]
    assert all(one != other for one, other in zip(dashes, dashes[1:], strict=False))


@pytest.mark.parametrize("delay", ["exp:mean=1", "exp:mean=1e-7", "exp:mean=1e7", "constant:1"])
@pytest.mark.parametrize("of", ["metric", "loss"])
def test_no_half_of_the_picture_is_empty(of, delay):
    runs = raced("uncoded", "frc:load=3", "async:lr_scale=0.1", delays=delay, steps=40).runs
    (axes,) = anyk.views.plot(runs, of=of).axes
    places = [axes.transAxes.inverted().transform(axes.transData.transform(line.get_xydata()))
              for line in axes.lines if line.get_transform() == axes.transData]  # fmt: skip
    x, y = np.concatenate(places).T
    inside = (x >= 0.0) & (x <= 1.0) & (y >= 0.0) & (y <= 1.0)
    for along in (x[inside], y[inside]):
        assert along.min() < 0.35 and along.max() > 0.65


@pytest.mark.parametrize("dark", [False, True])
def test_all_of_the_picture_can_be_read_on_its_ground(dark):
    figure = anyk.views.plot(raced("uncoded", "frc:load=3", "dpsgd", "bgc:load=2", target=0.9).runs, dark=dark)
    (axes,) = figure.axes
    ground = luminance(figure.get_facecolor())
    assert (ground < 0.05) == dark and luminance(axes.get_facecolor()) == ground
    words = [label for label in figure.findobj(matplotlib.text.Text) if label.get_text()]
    lines = [line for line in axes.lines if line.get_linestyle() != "None"]
    for artist in [*words, *lines, axes.spines["left"]]:
        colour = artist.get_edgecolor() if artist is axes.spines["left"] else artist.get_color()
        low, high = sorted((ground, luminance(colour)))
        assert (high + 0.05) / (low + 0.05) > 3.0, artist


def luminance(colour):
    """Relative luminance, as the Web Content Accessibility Guidelines define it."""
    parts = np.array(matplotlib.colors.to_rgb(colour))
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


def test_many_runs_can_be_told_apart_in_the_picture(tmp_path):
    runs = raced("uncoded", delays="constant:1").runs
    assert anyk.views.plot(runs).axes[0].get_xscale() == "linear"
    figure = anyk.views.plot(list(runs) * 17, tmp_path / "a.png")
    samples = [line for line in figure.axes[0].lines if line.get_markevery() == [1]]
    assert len({(line.get_color(), line.get_linestyle()) for line in samples}) == 17
