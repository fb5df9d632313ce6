"""Exports: a trace that keeps to the Trace Event Format, and tables that hold what the log holds."""

import gzip
import json
import sys
from collections import Counter, defaultdict

import numpy as np
import pandas
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import MissingPackage
from anyk.cli import main
from anyk.runs.log.fates import FATES, tasks_of
from anyk.runs.log.queries import TABLES
from anyk.views.exports import save_perfetto, save_tables

PROBLEM = anyk.problems.from_recipe({"data": "synthetic:rows=240,features=5"})


def trained(strategy, **more):
    fleet = anyk.cluster(
        "simulated:partition=0.05", workers=6, delays="exp:mean=1", communication="constant:0.2", seed=3
    )
    return anyk.train(PROBLEM, strategy, fleet, steps=12, **more)


@pytest.fixture(scope="module", params=["frc:load=3", "async:lr_scale=0.1", "partial:stragglers=1"])
def run(request):
    with trained(request.param) as run:
        yield run


@pytest.fixture(scope="module")
def trace(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "run.json"
    count = save_perfetto(run, path)
    events = json.loads(path.read_text(encoding="utf-8"))
    assert len(events["traceEvents"]) == count and events["displayTimeUnit"] == "ms"
    return events["traceEvents"]


def test_events_have_the_fields_of_the_format(trace):
    needed = {
        "X": {"name", "ts", "dur", "pid", "tid"},
        "M": {"name", "pid", "args"},
        "C": {"name", "ts", "pid", "args"},
    }
    for event in trace:
        assert needed[event["ph"]] <= event.keys()
        assert event.get("dur", 0) >= 0 and event.get("ts", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())


def test_slices_of_a_track_nest(trace):
    """The format: complete events of one thread must be strictly inside one another, or apart."""
    tracks = defaultdict(list)
    for event in trace:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        stack = []
        for begin, _, end in sorted(slices):
            while stack and stack[-1] <= begin + 2e-3:  # rounding to nanoseconds
                stack.pop()
            assert not stack or end <= stack[-1] + 2e-3
            stack.append(end)


def test_each_task_is_a_slice_named_by_its_fate(trace, run):
    tasks = tasks_of(run)
    names = Counter(event["name"] for event in trace if event["ph"] == "X" and event["name"] in FATES)
    assert names == Counter(FATES[fate] for fate in tasks.fate)
    spent = sum(event["dur"] for event in trace if event["ph"] == "X" and event["name"] == "computing")
    assert spent == pytest.approx(1e6 * tasks.computing.sum(), rel=1e-6, abs=1e-2)
    tracks = {event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    assert {f"worker {i}" for i in range(6)} | {"steps of model"} <= tracks


def test_steps_and_losses_are_those_of_the_history(trace, run):
    steps = [event for event in trace if event["ph"] == "X" and event["name"].startswith("step ")]
    assert [event["ts"] + event["dur"] for event in steps] == pytest.approx((1e6 * run.history["seconds"][1:]).tolist())
    losses = [event["args"]["loss"] for event in trace if event["ph"] == "C" and event["name"] == "loss of model"]
    assert losses == [value for value in run.history["loss"].tolist() if np.isfinite(value)]


def test_a_compressed_trace_is_the_same(run, tmp_path):
    save_perfetto(run, tmp_path / "run.json")
    save_perfetto(run, tmp_path / "run.json.gz")
    assert gzip.decompress((tmp_path / "run.json.gz").read_bytes()) == (tmp_path / "run.json").read_bytes()


def test_frames_hold_what_the_run_says(run):
    steps, chunks = run.to_frame(), run.to_frame("chunks")
    np.testing.assert_array_equal(steps["seconds"], run.history["seconds"])
    np.testing.assert_array_equal(steps["loss"], run.history["loss"])
    ended = chunks.groupby("ending").size().to_dict()
    assert ended == {name: count for name, count in run.ledger.items() if count and name in ended}
    assert chunks["step"].dtype == "Int64" and chunks["step"].notna().sum() == ended["counted"] + ended.get(
        "late_counted", 0
    )
    for version in range(1, run.steps + 1):
        used = chunks[chunks["step"] == version]
        assert sorted(used["task"]) == sorted(task for _, task, _, _ in run.receipt(version).used)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_are_read_back_as_they_were(run, tmp_path, kind):
    counts = save_tables(run, tmp_path / "tables", kind)
    assert set(counts) == set(TABLES)
    for name, count in counts.items():
        read = pandas.read_csv if kind == "csv" else pandas.read_parquet
        back, frame = read(tmp_path / "tables" / f"{name}.{kind}"), run.to_frame(name)
        assert len(back) == count and list(back.columns) == list(frame.columns)
        for column in frame.select_dtypes("float64"):
            np.testing.assert_array_equal(back[column].astype(float), frame[column])


def test_weights_of_blocks_are_their_mean():
    with trained("frc:load=3") as run:
        run.log.rows("UPDATE chunks SET weight = '[1.0, 2.0, 6.0]' WHERE task = 0")
        assert run.to_frame("chunks").set_index("task")["weight"][0] == 3.0


def test_what_cannot_be_exported_is_one_sentence(tmp_path, monkeypatch):
    with trained("uncoded", out=tmp_path / "run") as run:
        with pytest.raises(anyk.BadInput, match="no table 'loss'; it has chunks, steps"):
            run.to_frame("loss")
        with pytest.raises(anyk.BadInput, match="written as .json or .json.gz"):
            save_perfetto(run, tmp_path / "run.txt")
        (tmp_path / "file").write_text("")
        with pytest.raises(anyk.BadInput, match="tables cannot be written"):
            save_tables(run, tmp_path / "file" / "x", "csv")
        ask = CliRunner()
        done = ask.invoke(main, ["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.json")])
        assert done.exit_code == 0 and "ui.perfetto.dev" in done.output and (tmp_path / "out.json").is_file()
        done = ask.invoke(main, ["export", str(tmp_path / "run"), "--to", "csv", "-o", str(tmp_path / "tables")])
        assert done.exit_code == 0 and "steps 13" in done.output
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingPackage, match="a data frame needs pandas"):
            run.to_frame()
