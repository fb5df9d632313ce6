"""Fleet records: every source on a small file as its own documentation lays it out, and what cannot be one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.fleet.records import Record, joined, read


def same(one: Record, other: Record) -> bool:
    tables = [(one.seconds, other.seconds), *((one.parts[name], other.parts[name]) for name in one.parts)]
    alike = all(np.array_equal(a, b, equal_nan=True) for a, b in tables)
    names = (one.workers, one.rounds, one.load) == (other.workers, other.rounds, other.load)
    return alike and names and np.array_equal(one.censored & one.measured, other.censored & other.measured)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 99), st.booleans())
def test_a_record_is_written_and_read_back(rounds: int, workers: int, seed: int, named: bool) -> None:
    import tempfile

    random = np.random.default_rng(seed)
    seconds = random.exponential(size=(rounds, workers)) + 1e-9
    gaps = random.random(seconds.shape) < 0.3
    gaps[:, :][np.arange(rounds), random.integers(0, workers, rounds)] = False
    gaps[random.integers(0, rounds), :] = False
    seconds[gaps] = np.nan
    names = tuple(f"host-{i},a" for i in range(workers)) if named else tuple(range(3, 3 + workers))
    parts = {"compute": seconds / 2}
    cut = random.random(seconds.shape) < 0.2
    record = Record(seconds, cut, names, tuple(range(5, 5 + rounds)), load=0.25, parts=parts)
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("npz", "csv", "parquet"):
            record.save(Path(folder) / f"x.{ending}")
            assert same(record, read(Path(folder) / f"x.{ending}")), ending


def test_joined_records_match_workers_by_name() -> None:
    one, two = Record([[1.0, 2.0]], workers=(1, 2)), Record([[4.0, 3.0]], workers=(3, 2))
    record = joined([one, two])
    assert record.workers == (1, 2, 3) and record.gaps == 2
    assert np.array_equal(record.seconds, [[1.0, 2.0, np.nan], [np.nan, 3.0, 4.0]], equal_nan=True)
    assert record.vanished() == ["worker 1 is not measured after round 0"]
    with pytest.raises(BadInput, match="at different loads"):
        joined([Record([[1.0]], load=0.5), Record([[1.0]], load=0.25)])


def test_a_long_table_may_have_gaps_and_any_usual_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Iteration,Rank,Duration (ms),note\n7,0,1500,1\n7,1,250,2\n9,1,500,3\n")
    record = read(tmp_path / "a.csv")
    assert (record.workers, record.rounds) == ((0, 1), (7, 9))
    assert np.array_equal(record.seconds, [[1.5, 0.25], [np.nan, 0.5]], equal_nan=True)
    assert (
        "milliseconds" in record.summary and "'note' not used" in record.summary and "1 time missing" in record.summary
    )
    (tmp_path / "b.csv").write_text("step,client,seconds\n0,b,1\n0,a,2\n")
    assert read(tmp_path / "b.csv").workers == ("a", "b") and read(tmp_path / "b.csv").seconds.tolist() == [[2.0, 1.0]]


def operations(file: Path) -> None:
    """Two replicas of two stages; replica 1 is slow in stage 1 of step 4, and only computation counts."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        (dp, stage, step, kind, 2.0 + 3.0 * (dp == 1 and stage == 1 and step == 4 and kind == "backward-compute"))
        for dp in (0, 1) for stage in (0, 1) for step in (3, 4) for kind in ("forward-compute", "backward-compute")
    ]  # fmt: skip
    rows += [(0, 0, 3, "forward-send", 90.0), (0, 0, 4, "params-all-gather", 90.0)]
    dp, stage, step, kind, duration = zip(*rows, strict=True)
    parquet.write_table(
        pyarrow.table(
            {"dp_rank": dp, "stage": stage, "rank": [0] * len(rows), "step": step,
             "optype": pyarrow.array(kind).dictionary_encode(), "start_ts": [0.0] * len(rows), "duration": duration}
        ), file,
    )  # fmt: skip


def test_operations_of_pipelined_training(tmp_path: Path) -> None:
    operations(tmp_path / "ops.parquet")
    record = read(tmp_path / "ops.parquet")
    assert record.seconds.tolist() == [[4.0, 4.0], [4.0, 7.0]] and record.rounds == (3, 4)
    assert record.stages["1"].tolist() == [[4.0, 4.0], [4.0, 7.0]] and record.stages["0"][1, 1] == 4.0


def task(stage: int, executor: str, launch: int, finish: int, reason: str = "Success") -> str:
    return json.dumps(
        {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Stage Attempt ID": 0, "Task Type": "ResultTask",
         "Task End Reason": {"Reason": reason}, "Task Info": {"Task ID": 1, "Index": 0, "Attempt": 0,
         "Launch Time": launch, "Executor ID": executor, "Host": "h", "Finish Time": finish, "Failed": False}}
    )  # fmt: skip


def test_a_spark_event_log(tmp_path: Path) -> None:
    lines = ['{"Event":"SparkListenerLogStart","Spark Version":"3.5.1"}', task(0, "10", 1000, 2500), task(0, "2", 1000, 1200),
             task(0, "2", 1200, 1900), task(1, "2", 3000, 3400), task(1, "10", 3000, 9000, "TaskKilled"),
             '{"Event":"SparkListenerStageCompleted"}']  # fmt: skip
    (tmp_path / "app-1").write_text("\n".join(lines) + "\n")
    record = read(tmp_path / "app-1")
    assert record.workers == (2, 10)
    assert np.array_equal(record.seconds, [[0.9, 1.5], [0.4, np.nan]], equal_nan=True)
    assert "1 tasks that failed or were killed" in record.summary
    (tmp_path / "app-2").write_text(lines[0] + "\n" + lines[1][:-30] + "\n")
    with pytest.raises(BadInput, match="line 2 of .*app-2' is not JSON"):
        read(tmp_path / "app-2")
    (tmp_path / "app-3").write_text(lines[0] + "\n")
    with pytest.raises(BadInput, match="no tasks that succeeded"):
        read(tmp_path / "app-3")


def test_a_run_folder_with_who_was_cut_off(tmp_path: Path) -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    anyk.train(
        problem, "frc:load=3", "simulated", workers=6, delays="exp:mean=1", seed=2, steps=12, out=tmp_path / "run"
    ).close()
    record = read(tmp_path / "run")
    assert record.seconds.shape == (12, 6) and 0 < record.cut < 0.7 and record.load == pytest.approx(0.5)
    assert np.array_equal(read(str(tmp_path / "run")).seconds, record.seconds)


WRONG = [
    ("zeros.csv", "round,worker,seconds\n0,0,0\n1,0,0\n", "all times of the fleet record are 0"),
    ("clock.csv", "round,worker,seconds\n0,0,1\n1,0,-3\n", "worker 0 took -3 s in round 1; its clock may have jumped"),
    ("twice.csv", "round,worker,seconds\n0,0,1\n0,0,3\n", "round 0 of worker 0 is there 2 times"),
    ("text.csv", "round,worker,seconds\n0,0,fast\n0,1,slow\n", "column 'seconds' of .* holds text"),
    ("half.csv", "round,worker,seconds\n0.5,0,1\n1,0,1\n", "must contain whole numbers of rounds"),
    ("loads.csv", "round,worker,seconds,load\n0,0,1,0.5\n1,0,1,0.25\n", "at 2 different loads"),
    ("empty.csv", "", "is empty"),
    ("notes.txt", "hello\n", "is not a fleet record"),
]


@pytest.mark.parametrize(("name", "text", "why"), WRONG)
def test_what_cannot_be_a_record_is_one_sentence(name: str, text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=why) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)
    done = CliRunner().invoke(main, ["explain", str(tmp_path / name)])
    assert done.exit_code == 2 and done.output.count("\n") == 1, done.output


def test_folders_and_tables_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither a run nor written by a recorder"):
        read(tmp_path)
    (tmp_path / "race.toml").write_text("")
    with pytest.raises(BadInput, match="is not a run folder"):
        read(tmp_path)
    for wrong, sentence in (
        ({"seconds": [[1.0, np.nan], [2.0, np.nan]]}, "worker 1 has no times"),
        ({"seconds": [[np.nan]]}, "but has none"),
        ({"seconds": [1.0]}, "rounds x workers"),
        ({"seconds": [[1.0, 2.0]], "workers": ("a", "a")}, "the same name"),
        ({"seconds": [[1.0, 2.0]], "parts": {"compute": np.ones((2, 2))}}, "'compute' must have the shape"),
        (
            {"seconds": [[1.0, 2.0]], "load": 30.0},
            "load is the share of the data that each worker computes, 0 to 1, got 30",
        ),
    ):
        with pytest.raises(BadInput, match=sentence):
            Record(**wrong)  # type: ignore[arg-type]


def test_the_command_joins_checks_and_writes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.csv").write_text("round,worker,seconds\n0,0,1\n0,1,2\n1,0,1\n")
    Path("two.csv").write_text("0.5,0.5\n0.6,0.6\n0.5,0.7\n")
    for out in ("fleet.parquet", "fleet.csv", "fleet.npz"):
        done = CliRunner().invoke(main, ["record", "one.csv", "two.csv", "-o", out])
        assert done.exit_code == 0 and "5 rounds x 2 workers" in done.output and "1 time missing" in done.output
        assert read(out).seconds.shape == (5, 2)
    done = CliRunner().invoke(main, ["record", "one.csv", "-o", "fleet.txt"])
    assert done.exit_code == 2 and "written as .npz, .csv or .parquet" in done.output


def test_the_command_says_the_load_of_records_that_do_not(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, load in (("lean", 0.25), ("full", 0.5)):
        Path(folder).mkdir()
        for worker in range(4):  # as recorders write them on the ranks of a job
            rows = "".join(f"{t},{worker},{0.2 + 2.0 * load}\n" for t in range(40))
            Path(folder, f"worker-{worker}.csv").write_text("round,worker,seconds\n" + rows)
        done = CliRunner().invoke(main, ["record", folder, "--load", str(load), "-o", f"{folder}.csv"])
        assert done.exit_code == 0, done.output
    with pytest.raises(BadInput, match=r"two records with different loads \(anyk record --load adds"):
        anyk.plan("lean", other="full.csv")
    plan = anyk.plan("lean.csv", other="full.csv", resamples=20)
    assert plan.slopes == pytest.approx([2.0] * 4)
    done = CliRunner().invoke(main, ["record", "lean.csv", "--load", "0.5", "-o", "other.csv"])
    assert done.exit_code == 2 and "itself has a load of 0.25, not 0.5" in done.output
