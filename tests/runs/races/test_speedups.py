"""Races over several seeds: each seed is a race of its own, and what is said of all of them hides no seed."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from statistics import median
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import anyk
from anyk.cli import main
from anyk.runs import compare, compare_seeds, mean_over, spread
from anyk.runs.callbacks import Watching
from anyk.views import mean_table, race_notes, race_table, save_race_table

PROBLEM = anyk.problems.from_data("synthetic:rows=200,features=5")
SETTING: dict[str, Any] = {"workers": 6, "cluster": "simulated", "delays": "exp:mean=1", "steps": 8}
BOTH = ["frc:load=3", "uncoded"]
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


def run(*words: Any) -> Any:
    return CliRunner(env={"COLUMNS": ""}).invoke(main, list(map(str, words)))


@pytest.fixture(scope="module")
def raced() -> Any:
    return anyk.race(PROBLEM, BOTH, seed=3, seeds=3, **SETTING)


@pytest.mark.slow
def test_each_seed_is_the_race_with_that_seed(raced):
    assert [raced.title(one) for one in raced.runs][:3] == [
        f"frc:load=3, seed {3}",
        "uncoded, seed 3",
        "frc:load=3, seed 4",
    ]
    alone = anyk.race(PROBLEM, BOTH, seed=4, **SETTING)
    assert [one.seconds for one in raced.runs[2:4]] == [one.seconds for one in alone.runs]
    assert [one.model.tobytes() for one in raced.runs[2:4]] == [one.model.tobytes() for one in alone.runs]


def test_speed_ups_are_over_the_run_with_the_same_seed(raced):
    comparison = compare_seeds(raced.runs)
    coded, uncoded = comparison.strategies
    times = [compare(raced.runs[i : i + 2]).speed_ups[0].times for i in (0, 2, 4)]
    assert coded.speed_up == (median(times), min(times), max(times)) and uncoded.speed_up == (1.0, 1.0, 1.0)
    assert comparison.over == "uncoded" and comparison.speed_ups[2].times == times[1]
    seconds = [one.seconds for one in raced.runs[::2]]
    assert coded.spread(lambda one: one.seconds) == (median(seconds), min(seconds), max(seconds))


def test_the_report_has_every_run_and_every_strategy(raced):
    report = json.loads(json.dumps(raced.report()))
    assert (report["seed"], report["seeds"], [line["seed"] for line in report["runs"]]) == (3, 3, [3, 3, 4, 4, 5, 5])
    coded = report["strategies"][0]
    assert (coded["strategy"], coded["seeds"], coded["reached"]) == ("frc:load=3", 3, None)
    assert coded["speed_up"]["most"] == max(line["speed_up"] for line in report["runs"])


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.floats(0.1, 9.0)), min_size=1, max_size=9))
def test_a_missing_value_is_never_averaged_away(values):
    """The median of times is known only if more than half are (or just half with nothing between), and is theirs."""
    defined = [value for value in values if value is not None]
    late, slow = spread(values), spread(values, missing=-math.inf)
    everywhere = len(defined) == len(values)
    assert (late.most is None) == (slow.least is None) == (not everywhere)
    assert (late.median is None) == (slow.median is None) == (2 * len(defined) <= len(values) and not everywhere)
    if late.median is not None and slow.median is not None:
        assert slow.median <= median(defined) <= late.median
        assert sum(value >= late.median for value in defined) + len(values) - len(defined) >= len(values) / 2


@pytest.mark.slow
def test_a_target_that_some_seeds_miss_is_reported_and_counts():
    """With so little time the reference misses it with half of the seeds: the other's speed-ups are bounds."""
    terms = {"workers": 6, "cluster": "simulated", "delays": "exp:mean=1", "seeds": 4, "target": 0.99}
    needed = sorted(one.seconds for one in anyk.race(PROBLEM, ["uncoded"], **terms).runs)
    result = anyk.race(PROBLEM, ["uncoded", "frc:load=3"], seconds=sum(needed[1:3]) / 2, **terms)
    reference, other = compare_seeds(result.runs).strategies
    times = {one.config.seed: one.time_to_target for one in reference.runs}
    missed = [seed for seed, taken in times.items() if taken is None]
    assert (reference.reached, other.reached, len(missed)) == (2, 4, 2)
    assert reference.spread(lambda one: one.time_to_target).most is None and reference.speed_up.least is None
    bounds = [(times[one.config.seed] or reference.runs[i].seconds) / one.time_to_target
              for i, one in enumerate(other.runs)]  # fmt: skip
    assert other.at_least and other.speed_up.median == pytest.approx(median(bounds))
    table = race_table(result.runs)
    column = table.titles.index("reached")
    assert [row[column] for row in table.rows] == ["2 of 4", "", "", "4 of 4", "", ""]
    assert table.rows[3][-1] == f"> {median(bounds):.1f}x" and table.rows[1][-1] == "–"
    sentence = f"uncoded reached 0.99 with 2 of 4 seeds, not with {missed[0]}, {missed[1]}; "
    assert any(line.startswith(sentence) for line in race_notes(result.runs))
    (axes,) = anyk.views.plot(result.runs).axes
    assert any("target reached with 2 of 4 seeds" in words.get_text() for words in axes.texts)


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, 0.9])
def test_labels_and_table_have_the_same_medians(target):
    terms = {"workers": 6, "cluster": "simulated", "delays": "exp:mean=1", "seeds": 3, "steps": 30, "target": target}
    runs = anyk.race(PROBLEM, BOTH, **terms).runs
    (axes,) = anyk.views.plot(runs).axes
    table = race_table(runs)
    for row in table.rows[::3]:
        (label,) = [words.get_text() for words in axes.texts if words.get_text().startswith(f"{row[0]}   ")]
        cells = dict(zip(table.titles, row, strict=True))
        if target is None:
            seconds, name = re.search(r"(\S+) after", label), runs[0].metric_name
            assert float(seconds[1]) == pytest.approx(float(cells[name]), rel=5e-3)
            column = "seconds"
        else:
            column = f"s to\n{target:g}"
        assert float(re.search(r"(\S+) s\b", label)[1]) == pytest.approx(float(cells[column]), rel=5e-3)
        times = re.search(r"(\S+) times as fast", label)
        cell = cells[next(title for title in table.titles if title.startswith("speed-up"))]
        assert (f"{times[1]}x" if times else "1.0x") == cell


@pytest.mark.slow
def test_the_picture_draws_medians_in_bands(raced, tmp_path):
    (axes,) = anyk.views.plot(raced.runs, tmp_path / "a.png", of="loss").axes
    assert len(axes.collections) == 2
    x, middle = axes.lines[0].get_data()
    runs = [one.history for one in raced.runs[::2]]
    curves = np.array([np.interp(x, one["seconds"], one["loss"]) for one in runs])
    assert set(np.concatenate([one["seconds"] for one in runs])) - {0.0} <= set(x)
    np.testing.assert_allclose(middle, np.median(curves, axis=0), rtol=1e-12)
    edges = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert edges.max() == pytest.approx(curves.max()) and edges.min() == pytest.approx(curves.min())
    words = " ".join(label.get_text() for label in axes.texts)
    assert "seeds 3 to 5" in words and "bands: least to largest" in words


# ------------------------------------------------------------------------------------------- means and their tables


def test_the_interval_of_a_mean_is_that_of_students_t():
    """The quantile 4.302653 of two degrees of freedom is in every printed table."""
    half = 4.302653 / math.sqrt(3)
    assert mean_over([3.0, 1.0, 2.0]) == pytest.approx((2.0, 2.0 - half, 2.0 + half), rel=1e-6)
    assert mean_over([2.0] * 5) == (2.0, 2.0, 2.0)
    assert mean_over([2.0]) == (2.0, None, None)
    assert mean_over([2.0, None, 3.0]) == mean_over([]) == mean_over([math.inf]) == (None, None, None)


def test_a_race_of_several_seeds_is_a_table_of_numbers(raced, tmp_path):
    save_race_table(raced.runs, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        coded, uncoded = csv.DictReader(file)
    losses = [one.loss for one in raced.runs[::2]]
    statistics = [float(coded[f"loss_{statistic}"]) for statistic in ("mean", "low", "high", "median", "least", "most")]
    assert statistics == pytest.approx([*mean_over(losses), median(losses), min(losses), max(losses)])
    ups = [compare(raced.runs[i : i + 2]).speed_ups[0].times for i in (0, 2, 4)]
    assert float(coded["speed_up_mean"]) == pytest.approx(np.mean(ups)) and float(uncoded["speed_up_mean"]) == 1.0
    report = raced.report()["strategies"][0]
    assert (
        report["loss"]["mean"] == pytest.approx(statistics[0]) and report["seconds"]["low"] < report["seconds"]["high"]
    )


@pytest.mark.slow
def test_a_race_of_several_seeds_is_a_table_for_latex(tmp_path):
    specs = ["uncoded", "uncoded:wait=4,scaling=marginal", "async:lr_scale=0.1"]
    result = anyk.race(PROBLEM, specs, workers=6, cluster="simulated", delays="exp:mean=1", steps=5, seeds=2)
    save_race_table(result.runs, tmp_path / "a.tex")
    table = (tmp_path / "a.tex").read_text()
    rows = [line.split(" & ") for line in table.splitlines() if line.endswith(r"\\")]
    assert [row[0] for row in rows[1:]] == ["uncoded", "uncoded:wait=4,scaling=marginal", r"async:lr\_scale=0.1"]
    assert len({len(row) for row in rows}) == 1 and r"$\pm$" in rows[1][3] and "Student's t" in table
    cells = mean_table(result.runs).rows[0]
    assert [cell.replace("±", r"$\pm$") for cell in cells[:-1]] == rows[1][:-1]


@pytest.mark.parametrize("name", ["a.txt", "a", "missing/a.csv", "."])
def test_a_table_that_cannot_be_written_is_refused_first(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["race", "--seeds", "2", "--cluster", "simulated", "--steps", "2", "--table", name]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and done.stderr.startswith("anyk: ") and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_race_with_seeds_is_one_folder(tmp_path):
    """Cut in the second seed, it is shown as far as it went, and goes on to what it would have been."""
    uninterrupted = anyk.race(PROBLEM, BOTH, seeds=2, out=tmp_path / "whole", **SETTING)

    def interrupt(driver: Any, evaluator: Any) -> None:
        del evaluator
        if driver.step == 3 and (tmp_path / "cut" / "frc-load=3_seed=1").is_dir():
            driver.interrupt()

    with pytest.raises(KeyboardInterrupt):
        anyk.race(PROBLEM, BOTH, seeds=2, out=tmp_path / "cut", callbacks=[Watching(interrupt)], **SETTING)
    result = run("show", tmp_path / "cut")
    assert result.exit_code == 0, result.output
    assert (
        f"not finished: frc:load=3, seed 1, uncoded, seed 1; go on with: anyk resume {tmp_path / 'cut'}"
        in result.output
    )
    heard: list[str] = []
    anyk.resume_race(tmp_path / "cut", before=heard.append).close()
    assert heard == ["frc:load=3, seed 1", "uncoded, seed 1"]
    with anyk.Race.open(tmp_path / "cut") as race:
        assert [one.model.tobytes() for one in race.runs] == [one.model.tobytes() for one in uninterrupted.runs]
    uninterrupted.close()
    assert "race.toml, 4 of 4 runs begun" in run("verify", tmp_path / "cut").output


@pytest.mark.slow
def test_seeds_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # pictures are drawn elsewhere
    folder = tmp_path / "race"
    words = ("race", *SMALL, "--strategy", "uncoded", "--strategy", "frc:load=3", "--steps", 4, "--out", folder)
    done = run(*words, "--seeds", 2, "--seed", 7)
    assert done.exit_code == 0 and "· frc:load=3, seed 8" in done.output, done.output
    table = done.output[done.output.index("strategy,") :].partition("no picture")[0]
    assert table.count("  largest") == 2
    result = run("show", folder, "--json", tmp_path / "r.json")
    assert table in result.output and "seeds         2" in result.output
    more = run("resume", folder, "--seeds", 3, "--add", "agc:load=3,wait=1", "--json", "-", "--quiet")
    report = json.loads(more.stdout)
    assert [(line["strategy"], line["seeds"]) for line in report["strategies"]] == [
        ("uncoded", 3), ("frc:load=3", 3), ("agc:load=3,wait=1", 3),
    ]  # fmt: skip
    before = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert [line["loss"] for line in before[:2]] == [line["loss"] for line in report["runs"][:2]]
    assert "cannot become 2; give a larger number" in run("resume", folder, "--seeds", 2).output
    assert "--seeds is for the folder of a race" in run("resume", folder / "uncoded", "--seeds", 2).output
    narrow = CliRunner(env={"COLUMNS": "30"}).invoke(main, ["show", str(folder)]).output
    assert "medians over the seeds" in narrow and len([line for line in narrow.splitlines() if "  seeds " in line]) == 6
    assert "seeds must be a whole number of at least 1, got 0" in run("race", *SMALL, "--seeds", 0).output
    assert "seeds          3 " in run("race", *SMALL, "--seeds", 3, "--settings").output
