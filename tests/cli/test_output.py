"""What commands and reports print and write, in tables, as JSON and in the settings of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def write(name: str, rows: list[str]) -> None:
    Path(name).write_text("\n".join(["x,y", *rows]) + "\n")


def test_a_spec_with_a_bare_colon_is_written_readably() -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    anyk.train(problem, "frc:", "simulated", workers=4, steps=2, out="run").close()
    run = anyk.resume("run", steps=4)
    assert (run.config.strategy, run.steps) == ("frc:load=2", 4)


def test_json_has_no_nan_for_a_metric_that_is_not_defined() -> None:
    write("few.csv", ["1,0", "2,1", "3,0", "4,1"])
    words = ("train", "--data", "file", "--data-file", "few.csv", "--workers", "2", "--cluster", "simulated")
    output = call(*words, "--steps", "3", "--quiet", "--json", "-")
    row = json.loads(output, parse_constant=pytest.fail)["runs"][0]
    assert row["metrics"]["auc"] is None and row["metrics"]["accuracy"] is not None


def test_metrics_of_different_data_have_their_own_columns() -> None:
    write("classes.csv", [f"{i % 7},{i % 2}" for i in range(40)])
    write("numbers.csv", [f"{i % 7},{i * 1.5}" for i in range(40)])
    for name in ("classes", "numbers"):
        call("train", "--data", "file", "--data-file", f"{name}.csv", "--workers", "2", "--cluster", "simulated",
             "--steps", "3", "--quiet", "--out", f"runs/{name}")  # fmt: skip
    lines = [line.split() for line in call("show", "runs").splitlines()]
    titles = next(line for line in lines if line[:1] == ["strategy"])
    one, other = (line for line in lines if line[:1] == ["uncoded"])
    shown_cells = {
        title: (one[i], other[i]) for i, title in enumerate(titles) if title in ("auc", "accuracy", "mse", "R²")
    }
    assert {title: [cell == "–" for cell in cells] for title, cells in shown_cells.items()} == {
        "auc": [False, True],
        "mse": [True, False],
        "accuracy": [False, True],
        "R²": [True, False],
    }


@pytest.mark.parametrize("wrong", [None, 3, "runs/train-1", Path("runs"), [3]])
def test_what_is_no_run_gets_a_sentence(wrong: object) -> None:
    with pytest.raises(BadInput, match="runs and races"):
        anyk.report(wrong, "page.html")  # type: ignore[arg-type]
    if not isinstance(wrong, str | Path):
        with pytest.raises(BadInput, match="path must be a string or a Path"):
            anyk.verify(wrong)  # type: ignore[arg-type]
