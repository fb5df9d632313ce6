"""Verdicts from numbers, results kept by their settings, data that is missing, and three items at small size."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from anyk.base import BadInput
from anyk.cli import main
from anyk_papers import (
    Criterion,
    Lab,
    Order,
    Percentage,
    Ratio,
    Row,
    Table,
    Value,
    Verdict,
    items,
    overall,
    reproduce,
    reproduce_all,
)
from anyk_papers.item_table import cases, crossing
from anyk_papers.pictures import Bars, Lines, band

pytestmark = [pytest.mark.in_process, pytest.mark.slow]

TABLE = Table((
    Row({"code": "a"}, {"seconds": [1.0, 3.0]}), Row({"code": "b"}, {"seconds": [4.0, 4.0]}),
    Row({"code": "c"}, {"seconds": [float("inf"), 1.0]}),
))  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        (Ratio("", 2.0, lambda t: 2.4), "holds"),
        (Ratio("", 2.0, lambda t: 2.6), "holds in part"),
        (Ratio("", 2.0, lambda t: 2.6, least=True), "holds"),
        (Ratio("", 2.0, lambda t: 2.4, within=0.1), "holds in part"),
        (Ratio("", 0.5, lambda t: 2.0), "does not hold"),
        (Ratio("", 3.0, lambda t: float("inf"), least=True), "does not hold"),
        (Percentage("", 16.0, lambda t: 12.0), "holds"),
        (Percentage("", 16.0, lambda t: 0.5), "holds in part"),  # sooner, if only by half a per cent
        (Percentage("", 16.0, lambda t: -2.0), "does not hold"),
        (Percentage("", 0.4, lambda t: 3.0, within=1.0), "holds in part"),
        (Value("", 7.927568, lambda t: 7.92756812), "holds"),
        (Value("", 7.927568, lambda t: 7.9276), "does not hold"),
        (Value("", 1.5, lambda t: 1.55, within=0.05), "holds"),
    ],
)
def test_a_number_is_met_within_the_tolerance_of_its_claim(claim: Value, word: str) -> None:
    assert claim.judge(TABLE).word == word


def test_a_verdict_shows_the_tolerance_and_what_the_paper_says() -> None:
    claim = Ratio("b over a", 2.2, lambda t: t.mean("seconds", code="b") / t.mean("seconds", code="a"), " times")
    assert claim.judge(TABLE) == (
        "b over a", "2.2 times", "2 times (test: within 25 %: printed with one digit)", "holds"
    )  # fmt: skip
    exact = Value("P H_P", 21.742857142857, lambda t: 21.742857, says="P log P")
    assert exact.judge(TABLE)[1:3] == ("P log P", "21.742857 (test: equal to 1e-06)")
    assert "(test: within 5 points: few runs)" in Percentage("", 3.0, lambda t: 2, reason="few runs").judge(TABLE).here


def test_orders_and_criteria() -> None:
    order = Order("slower", ("b", "a"), lambda t: [t.mean("seconds", code=code) for code in ("b", "a")])
    assert order.judge(TABLE) == ("slower", "b > a", "4 > 2", "holds")
    back = Order("slower", ("a", "b"), lambda t: [t.mean("seconds", code=code) for code in ("a", "b")])
    assert back.judge(TABLE) == ("slower", "a > b", "2, 4", "does not hold")
    assert Criterion("one", "1", lambda t: (False, "0")).judge(TABLE) == ("one", "1", "0", "does not hold")
    words = ["holds", "does not hold", "holds in part"]
    assert [overall([Verdict("", "", "", word)] * 2) for word in words] == words  # type: ignore[arg-type]
    assert overall([Verdict("", "", "", "holds"), Verdict("", "", "", "holds in part")]) == "holds in part"


def test_what_was_never_reached_is_said_in_words() -> None:
    for codes, value in ((("c", "c"), "nan"), (("c", "a"), "inf")):
        seconds = [TABLE.mean("seconds", code=code) for code in codes]
        with np.errstate(invalid="ignore"):
            found = float(np.divide(*seconds))
        assert f"{found}" == value
        assert Ratio("sooner", 3.0, lambda t, found=found: found).judge(TABLE).here == "no number: not reached"
    order = Order("slower", ("c", "a"), lambda t: [t.mean("seconds", code=code) for code in ("c", "a")])
    assert order.judge(TABLE).here == "never > 2"


def test_cells_say_the_spread_and_what_never_happens() -> None:
    assert TABLE.cells(["code", "seconds"]) == [["a", "2 (1 to 3)"], ["b", "4"], ["c", "never"]]
    rows = list(csv.DictReader(TABLE.csv().splitlines()))
    assert [(row["code"], row["seed"], float(row["seconds"])) for row in rows[:3]] == [
        ("a", "0", 1),
        ("a", "1", 3),
        ("b", "0", 4),
    ]
    assert json.dumps(TABLE.plain(), allow_nan=False)
    with pytest.raises(BadInput, match="0 rows of the table have"):
        TABLE.row(code="d")


def test_bands_and_crossings() -> None:
    a = np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0])
    b = np.array([0.5, 3.0]), np.array([2.0, 2.0])
    x, middle, low, high = band([a, b, b])
    assert (x[0], x[-1]) == (0.5, 2.0) and (middle == 2.0).all() and low[0] == 0.5 and (high == 2.0).all()
    assert crossing(*a, 0.5) == 1.0 and crossing(*a, 9.0) == float("inf")
    assert crossing(*a, 0.5, better=np.less_equal) == 0.0
    assert cases(a=[1, 2], b=["x"]) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]


def test_covered_lines_and_zeros_on_a_log_axis_are_seen() -> None:
    from matplotlib.figure import Figure

    rows = [Row({"code": code, "x": x}, {"y": [y]}) for code, ys in CURVES.items() for x, y in enumerate(ys)]
    axes = Figure().subplots()
    Lines("x", ("y",), "x", "y", by="code", log="y").draw(axes, Table(tuple(rows)))
    drawn = {line.get_label(): line for line in axes.get_lines()}
    below, above = drawn["hidden"], drawn["hiding"]
    assert below.get_linewidth() > above.get_linewidth() + 2.0 and below.get_zorder() == above.get_zorder()
    assert np.isnan(drawn["exact"].get_ydata()[:2]).all() and axes.get_ylim()[0] > 1e-3
    marks = [line for line in axes.get_lines() if line.get_marker() == "v" and len(line.get_xdata())]
    assert [mark.get_xdata().tolist() for mark in marks] == [[0.0, 1.0]]  # of the exact code alone
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [*CURVES, "zero"]


CURVES = {"hidden": [0.1, 0.2, 0.4], "hiding": [0.1, 0.2, 0.4], "exact": [0.0, 1e-33, 0.01]}


def test_bars_stand_side_by_side_and_none_for_missed_targets() -> None:
    from matplotlib.figure import Figure

    rows = (Row({"code": "a"}, {"near": [2.0], "far": [3.0]}), Row({"code": "b"}, {"near": [4.0], "far": [np.nan]}))
    axes = Figure().subplots()
    Bars("near", "times sooner", further=("far",)).draw(axes, Table(rows))
    assert [round(bar.get_height(), 9) for bar in axes.patches] == [2.0, 3.0, 4.0]
    assert len({round(bar.get_x(), 6) for bar in axes.patches}) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["near", "far"]
    assert "never" in [text.get_text() for text in axes.texts]


def test_house_prices_reach_their_target_in_a_quick_look(data_folder: Path) -> None:
    from anyk_papers.gallery.erasurehead_kc import measure

    lab = Lab("erasurehead-kc", quick=True, data_folder=data_folder)
    slowest = measure(lab, {"strategy": "AGC, load 2"}, 0)  # of all strategies that with the largest error
    assert 0 < slowest["to 0.06"] < slowest["to 0.05"]


def measured(lab: Lab, case: Any, seed: int) -> Any:
    with Path(case["log"]).open("a") as log:
        log.write(f"{case['k']}{seed} ")
    return {"value": case["k"] + seed, "curves": {"line": (np.arange(2.0), np.ones(2))}}


def test_results_are_kept_by_their_settings(tmp_path: Path) -> None:
    log = tmp_path / "log"
    wanted = [{"k": k, "log": str(log)} for k in (1, 2)]
    first = Lab("x", seeds=2, keep=tmp_path / "kept").measure(measured, wanted)
    again = Lab("x", seeds=3, keep=tmp_path / "kept").measure(measured, wanted)
    assert log.read_text() == "10 11 20 21 12 22 "  # only the new seed is run
    assert [row.numbers["value"] for row in first] == [[1, 2], [2, 3]]
    assert [row.numbers["value"] for row in again] == [[1, 2, 3], [2, 3, 4]]
    assert again.rows[0].curves["line"][0][1].tolist() == [1.0, 1.0]
    Lab("x", seeds=1, quick=True, keep=tmp_path / "kept").measure(measured, wanted)
    assert log.read_text().endswith("10 20 ")  # another size is another result


def test_every_item_says_what_it_is() -> None:
    names = items()
    assert len(names) == 32
    for name, item in names.items():
        assert name == item.name and item.claims and item.panels and item.columns and item.differs and item.source
        assert item.clock == "none" or item.seeds >= 3


def test_an_item_into_a_folder(tmp_path: Path) -> None:
    made = reproduce("erasurehead-theory", out=tmp_path, quick=True, seeds=2)
    words = [verdict.word for verdict in made.verdicts]
    assert [claim for claim, word in enumerate(words) if word != "holds"] == [1, 6] and len(words) == 9
    row = made.table.row(scheme="exact", load=3)
    assert row.mean("corrected") == pytest.approx(0.3929, abs=5e-5) == pytest.approx(row.mean("simulated"), rel=0.04)
    assert row.mean("printed") == pytest.approx(0.3162, abs=5e-5)
    assert (tmp_path / "erasurehead-theory.png").stat().st_size > 10_000
    plain = json.loads((tmp_path / "erasurehead-theory.json").read_text())
    assert plain["verdict"] == "holds in part" and plain["claims"][1]["verdict"] == "does not hold"
    page = (tmp_path / "erasurehead-theory.md").read_text()
    assert page.startswith("## erasurehead-theory: holds in part") and "](erasurehead-theory.png)" in page


def test_a_quick_look_says_its_own_size_and_not_the_full_one() -> None:
    from anyk_papers.gallery import hetero_codes

    lab = Lab("hetero-codes", seeds=1, quick=True)
    table = lab.measure(hetero_codes.measure, [{"code": "heterogeneous"}, {"code": "FRC"}])
    [unbiased] = [claim for claim in items()["hetero-codes"].claims if claim.text == "the sum is unbiased"]
    assert "over 1000 sets of replies" in unbiased.judge(table).here
    setting = reproduce("sgc-converse", quick=True, seeds=1).setting
    assert setting.endswith("quick: smaller than the paper, and than the title and the differences say")


def test_values_of_the_gallery_at_small_size() -> None:
    zeta = reproduce("coop-easgd", quick=True, seeds=1)
    assert [v.word for v in zeta.verdicts] == ["holds", "holds", "does not hold"]
    assert zeta.table.mean("zeta", alpha=0.2) == pytest.approx(0.8) and zeta.table.mean(
        "zeta", alpha=0.8
    ) == pytest.approx(6.2)
    nested = reproduce("nested-latency", quick=True, seeds=1)
    assert nested.word == "holds"
    law = "10 % are five times slower"
    for code, known in (("s = 0", 4.87), ("s = 1", 3.28), ("s = 3", 4.01), ("s = 7", 8.0), ("nested, binary", 2.29)):
        assert nested.table.mean("seconds", law=law, code=code) == pytest.approx(known, rel=0.08)


def test_a_page_of_items_with_one_whose_data_is_missing(tmp_path: Path) -> None:
    made, missing = reproduce_all(out=tmp_path, names=("erasurehead-theory", "straggle-cdf"), quick=True, seeds=1,
                                  data_folder=tmp_path / "nowhere")  # fmt: skip
    assert [one.item.name for one in made] == ["erasurehead-theory"]
    assert "--data-dir or ANYK_DATA" in missing["straggle-cdf"]
    page = (tmp_path / "gallery.md").read_text()
    assert "0 hold, 1 hold in part, 0 do not hold; 1 could not be run." in page and "| straggle-cdf |" in page


def test_on_the_command_line(tmp_path: Path) -> None:
    listed = CliRunner().invoke(main, ["reproduce"])
    assert listed.exit_code == 0 and "erasurehead-amazon" in listed.output
    out = ["--out", str(tmp_path)]
    done = CliRunner().invoke(main, ["reproduce", "erasurehead-theory", "--quick", "--seeds", "1", *out, "--json", "-"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["verdict"] == "holds in part"
    for arguments, reason in (
        (["erasurehead-theroy"], "no item 'erasurehead-theroy'; did you mean 'erasurehead-theory'?"),
        (["erasurehead-theory", "--seeds", "0"], "seeds must be a whole number of at least 1, got 0"),
        (["coop-easgd", "--out", "/dev/null/x"], "the folder '/dev/null/x' cannot be created"),
        (["erasurehead-theory", "--all"], "--all reproduces every item; leave out 'erasurehead-theory' or --all"),
        (["--all", "--cluster", "processes"], "--all runs each item on its own clock; leave out --cluster"),
        (["straggle-cdf", "--cluster", "processes"], "'straggle-cdf' runs on its own clock (none) only"),
        (["coop-bound", "--quick", "--cluster", "processes"], "which only the simulated cluster shows"),
        (["sgc-table", "--quick", "--data-dir", str(tmp_path)], "'sgc-table' needs lambda-traces/"),
    ):
        failed = CliRunner().invoke(main, ["reproduce", *out, *arguments])
        assert failed.exit_code == 2 and reason in failed.stderr, failed.stderr


def test_an_item_without_its_data_runs_on_a_stand_in(tmp_path: Path) -> None:
    """Covertype: 54 columns of whole numbers and a cover type from 1 to 7; an iteration's mean is that of its law."""
    random = np.random.default_rng(0)
    values = random.integers(0, 4, (900, 54))
    kinds = 1 + (values[:, :3].sum(axis=1) + random.integers(0, 2, 900) > 4)
    kinds[:90] = 3 + random.integers(0, 5, 90)  # other types, which are left out
    np.savetxt(tmp_path / "covtype.data.gz", np.column_stack([values, kinds]), fmt="%d", delimiter=",")
    made = reproduce("erasurehead-covertype", quick=True, seeds=2, data_folder=tmp_path, out=tmp_path / "out")
    faster, same = made.verdicts
    assert faster.word == "holds" and float(made.table.mean("auc", strategy="exact, load 3")) > 0.8
    harmonic = float((1 / np.arange(1, 11)).sum())
    assert made.table.mean("seconds a step", strategy="exact, load 3") == pytest.approx(0.5 * harmonic / 3, rel=0.2)
    assert same.claim.startswith("AGC and the exact code end")


@pytest.mark.parametrize("averaging", [0, 1])
def test_seconds_of_a_step_are_an_average_over_its_steps(averaging: int) -> None:
    """pasgd, tau = 5: 1.715 s a step (E max of 8 averages of 5), and a fifth of the averaging's second."""
    from anyk_papers.gallery.pasgd_runtime import FREE, SLOW, measure

    case = {"what": "tau", "tau": 5, "averaging": (FREE, SLOW)[averaging], "spec": "pasgd:tau=5"}
    found = measure(Lab("x", quick=True), case, 0)
    assert found["closed form"] == pytest.approx(1.715 + 0.2 * averaging, abs=1e-3)
    assert found["simulated"] == pytest.approx(found["closed form"], rel=0.03)


@pytest.mark.parametrize(("module", "install"), [("readjax", "./decompile"), ("jax", r"'\.\[jax\]'")])
def test_an_item_names_what_is_not_installed(
    module: str, install: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    with pytest.raises(BadInput, match=f"jax-decompiler needs {module}.*pip install {install}"):
        reproduce("jax-decompiler", quick=True, seeds=1, out=tmp_path)
