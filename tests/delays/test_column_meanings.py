"""Tables of times: which columns are rounds, workers and seconds, by name, by value or as the user says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.fleet.records import Record, read, read_all

pytestmark = pytest.mark.in_process

ROUNDS, WORKERS = 60, 6
TIMES = 0.2 * np.exp(np.random.default_rng(0).normal(0, 0.05, (ROUNDS, WORKERS)))
TIMES[:, 4] *= 2
CLOCK = np.cumsum(TIMES.max(axis=1))


def long(head: str, cells: Any) -> str:
    rows = [",".join(map(str, cells(t, i))) for t in range(ROUNDS) for i in range(WORKERS)]
    return "\n".join([head, *rows]) + "\n"


def wide(head: str, table: Any) -> str:
    return "\n".join([head, *(",".join(f"{value:.6f}" for value in row) for row in table)]) + "\n"


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.slow
@pytest.mark.parametrize("round_name", ["global_step", "batch_idx", "t"])
@pytest.mark.parametrize("worker_name", ["client_id", "hostname", "podName", "gpu"])
@pytest.mark.parametrize("seconds_name", ["training_time", "elapsed_time", "time_s"])
def test_usual_names_of_long_tables(round_name: str, worker_name: str, seconds_name: str, tmp_path: Path) -> None:
    head = f"{round_name},{worker_name},loss,tokens,{seconds_name}"
    record = read(written(tmp_path, long(head, lambda t, i: (t, i, 2.0 / (1 + t), 4096, TIMES[t, i]))))
    assert record.workers == tuple(range(WORKERS)) and np.array_equal(record.seconds, TIMES)
    assert f"from the columns '{round_name}', '{worker_name}', '{seconds_name}'" in record.summary
    assert "'loss', 'tokens' not used" in record.summary


@pytest.mark.parametrize(
    ("head", "cells", "worker"),
    [
        ("step,rank,time,duration", lambda t, i: (t, i, CLOCK[t], TIMES[t, i]), 4),
        ("step,rank,elapsed,value", lambda t, i: (t, i, CLOCK[t] + i, TIMES[t, i]), 4),
        ("step,rank,timestamp,dur_ns", lambda t, i: (t, i, 1.7e9 + t, TIMES[t, i] * 1e9), 4),
        ("stepId,workerName,durationMs", lambda t, i: (t, f"gpu-{i}", TIMES[t, i] * 1e3), "gpu-4"),
        ("epoch,batch,rank,step_time", lambda t, i: (t // 10, t % 10, i, TIMES[t, i]), 4),
        ("step,node,local_rank,step_time_us", lambda t, i: (t, f"n{i // 3}", i % 3, TIMES[t, i] * 1e6), "n1/1"),
        ("round,worker,seconds", lambda t, i: (f"round {t}", f"w{i}", TIMES[t, i]), "w4"),
    ],
)
def test_clocks_units_and_pairs_of_columns(head: str, cells: Any, worker: int | str, tmp_path: Path) -> None:
    record = read(written(tmp_path, long(head, cells)))
    assert np.allclose(record.seconds, TIMES, rtol=1e-12) and record.workers[4] == worker
    assert anyk.explain(record).named == (worker,)


REFUSED = [
    (long("step,rank,time", lambda t, i: (t, i, CLOCK[t])), "column 'time' .* grows from round to round like a clock"),
    (long("step,rank,elapsed", lambda t, i: (t, i, CLOCK[t % 30])), "column 'elapsed' .* like a clock"),
    (long("step,rank,duration", lambda t, i: (t, i, TIMES[t, i] * 1e8)), "nothing says in which unit; give unit=ns"),
    (long("step,rank,start,end", lambda t, i: (t, i, CLOCK[t], CLOCK[t] + 1)), "none is known to be the seconds: 'ste"),
    (long("step,rank,compute_time,step_time", lambda t, i: (t, i, 1, 2)), "2 columns that may be the seconds: 'comp"),
    (long("step,who,took", lambda t, i: (t, i, TIMES[t, i])), "no column is known to name the worker: .* --worker"),
    (long("step,gpu,took", lambda t, i: (t, 50.5 + i, TIMES[t, i])), "column 'gpu' .* names no workers: it has 50.5"),
    (long("rank,loss,took", lambda t, i: (i, 0.5, TIMES[t, i])), "no column that is known to be the round"),
    (wide("node-a,node-b,max", np.c_[TIMES[:, :2], TIMES[:, :2].max(axis=1)]), "column 'max' .* is no worker's"),
    (wide("node-a,node-b,worst", np.c_[TIMES[:, :2], TIMES[:, :2].max(axis=1)]), "'worst' beside those of workers"),
    (wide("h1,h2,h3", np.c_[TIMES[:, :2], TIMES[:, :2].max(axis=1)]), "column 'h3' .* is the largest of the others"),
    (wide("h1,h2,h3", np.c_[TIMES[:, :2], np.full(ROUNDS, 4.0)]), "column 'h3' .* is the same in all rows"),
    (
        wide("step,data_time,forward,backward", np.c_[np.arange(ROUNDS), TIMES[:, :3]]),
        "column 'data_time' .* no worker",
    ),
    (wide("step,foo,bar,baz", np.c_[np.arange(ROUNDS), TIMES[:, :2], 900 + TIMES[:, 2]]), "do not look like workers"),
    (wide("loss_rank0,loss_rank1", TIMES[:, :2]), "column 'loss_rank0' .* by its name"),
    (wide("p50,p90,p99", TIMES[:, :3]), "column 'p50' .* is no worker's"),
    (wide("round0,round1,round2", TIMES[:, :3]), "column 'round0' .* is no worker's"),
    (wide("w0,w1", np.cumsum(TIMES[:, :2], axis=0)), "column 'w0' .* rises in every row, like a clock"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_what_is_no_duration_or_no_worker_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=why) as error:
        read(written(tmp_path, text))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "names",
    [
        ["rank1", "rank2", "rank3", "rank4", "rank5", "rank6"],
        ["w10", "w9", "w8", "w7", "w6", "w5"],
        ["node-a", "node-b", "node-c", "node-d", "node-e", "node-f"],
        ["10.0.0.9", "10.0.0.1", "10.0.0.2", "10.0.0.7", "10.0.0.3", "10.0.0.11"],
        ["athena", "zeus", "hera", "apollo", "ares", "hermes"],
        ["time_rank0_s", "time_rank1_s", "time_rank3_s", "time_rank2_s", "time_rank5_s", "time_rank4_s"],
    ],
)
def test_the_slow_column_is_named_as_in_the_file(names: list[str], tmp_path: Path) -> None:
    explanation = anyk.explain(written(tmp_path, wide(",".join(names), TIMES)))
    assert explanation.named == (names[4].removesuffix("_s"),)
    assert f"{names[4].removesuffix('_s')} costs" in "\n".join(explanation.sentences)
    guessed = "a guess (--worker names others)" in read(tmp_path / "t.csv").summary
    assert guessed == (names[0] == "athena")


def test_files_with_columns_in_another_order_join_by_name(tmp_path: Path) -> None:
    monday = written(tmp_path, wide("node-a,node-b,node-c", TIMES[:, [0, 1, 4]]), "mon.csv")
    tuesday = written(tmp_path, wide("node-c,node-a,node-b", TIMES[:, [4, 0, 1]]), "tue.csv")
    record = read_all([str(monday), str(tuesday)])
    assert record.workers == ("node-a", "node-b", "node-c")
    assert np.allclose(record.seconds, np.vstack([TIMES[:, [0, 1, 4]]] * 2), atol=1e-6)


def test_files_of_one_worker_each_stand_side_by_side(tmp_path: Path) -> None:
    for i in (10, 2, 3):
        rows = "".join(f"{t},{TIMES[t, i % 6]:.6f}\n" for t in range(i, 50))
        written(tmp_path, "step,step_time\n" + rows, f"rank{i}.csv")
    record = read(tmp_path)
    assert record.workers == ("rank2", "rank3", "rank10") and record.rounds == tuple(range(2, 50))
    assert np.isnan(record.seconds[7, 2]) and record.seconds[8, 2] == pytest.approx(TIMES[10, 4], abs=1e-6)
    files = [str(tmp_path / f"rank{i}.csv") for i in (2, 3, 10)]
    assert np.array_equal(read_all(files).seconds, record.seconds, equal_nan=True)
    assert "3 sources of one worker each, matched by round" in record.summary
    with pytest.raises(BadInput, match="round 2 of worker rank2 is in two of the sources"):
        read_all([files[0], files[0], files[1]])
    with pytest.raises(BadInput, match="no round in common"):
        read_all([files[0], str(written(tmp_path, "step,step_time\n90,1\n91,2\n", "z.csv"))])


@pytest.mark.parametrize("form", ["long", "wide"])
def test_gaps_are_absences(form: str, tmp_path: Path) -> None:
    gaps = (np.arange(ROUNDS)[:, None] + np.arange(WORKERS)) % 7 == 0
    if form == "long":
        table = long("step,rank,seconds", lambda t, i: (t, i, "" if gaps[t, i] else TIMES[t, i]))
    else:
        rows = [",".join("" if gaps[t, i] else repr(float(TIMES[t, i])) for i in range(WORKERS)) for t in range(ROUNDS)]
        table = "\n".join(["0,w1,w2,w3,w4,w5".replace("0,", "w0,"), *rows])
    record = read(written(tmp_path, table))
    assert np.array_equal(record.seconds, np.where(gaps, np.nan, TIMES), equal_nan=True)
    assert f"{gaps.sum()} times missing" in record.summary


@pytest.mark.slow
def test_the_user_names_columns_and_unit(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, long("a,b,when,c", lambda t, i: (t, f"x{i}", CLOCK[t], TIMES[t, i] * 1e9)))
    options = ["--round", "a", "--worker", "b", "--seconds", "c", "--unit", "ns"]
    done = CliRunner().invoke(main, ["explain", "t.csv", *options])
    assert done.exit_code == 0, done.output
    first = done.output.splitlines()[0]
    assert first.startswith("60 rounds x 6 workers, CSV, from the columns 'a', 'b', 'c', 'when' not used, read as nano")
    assert "> x4 " in done.output
    done = CliRunner().invoke(main, ["plan", "t.csv", *options, "--resamples", "20", "-o", "plan.toml", "--quiet"])
    assert done.exit_code == 0 and done.output.splitlines()[0] == first, done.output
    assert 'worker = "b"' in Path("plan.toml").read_text()
    assert anyk.explain("t.csv", round="a", worker="b", seconds="c", unit="ns").named == ("x4",)
    done = CliRunner().invoke(main, ["explain", "t.csv", "--round", "aa", "--worker", "b", "--seconds", "c"])
    assert done.exit_code == 2 and "the column 'aa' given as --round is not there" in done.output
    written(tmp_path, wide("step,p,q,r,max", np.c_[np.arange(ROUNDS), TIMES[:, [0, 4, 1]], TIMES[:, 4]]))
    record = read("t.csv", worker="p,q,r")
    assert record.workers == ("p", "q", "r") and record.rounds[-1] == 59 and anyk.explain(record).named == ("q",)


def test_equally_fast_workers_with_gaps_are_alike() -> None:
    """Three workers are in long rounds only, as where short stages of Spark have few tasks."""
    random = np.random.default_rng(0)
    level = np.where(np.arange(60) % 3 == 0, 20.0, 1.0)
    times = level[:, None] * np.exp(random.normal(0, 0.02, (60, 6)))
    times[level < 10, 3:] = np.nan
    explanation = anyk.explain(Record(times))
    assert all(abs(worker.relative - 1.0) < 0.05 for worker in explanation.workers)
    assert not any("slow kind" in sentence for sentence in explanation.sentences)


def test_names_of_workers_in_an_npz_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    np.savez(file, seconds=np.ones((4, 2)), workers=np.array(["a", "b"]), cores=np.ones(2))
    record = anyk.fleet.read(file)
    assert record.workers == ("a", "b") and "'cores' not used" in record.summary
    np.savez(file, seconds=np.ones((4, 2)), workers=np.array(["a", "b", "c"]))
    with pytest.raises(BadInput, match="'workers' in .* must be a name or number for each column of 'seconds'"):
        anyk.fleet.read(file)


def test_times_of_zero_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a1,a2,a3\n" + "1.5,0,1.25\n2.5,1,1.75\n" * 5)
    assert "5 times of 0 s taken as measured, a guess" in anyk.fleet.read(file).summary


def test_numbers_as_names_of_workers_are_asked_about(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("8080,8081,8082\n" + "1.5,0.5,1.25\n2.5,1,1.75\n" * 5)
    with pytest.raises(BadInput, match="may be names or data; write names that are no numbers, such as worker0"):
        anyk.fleet.read(file)
