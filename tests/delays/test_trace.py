"""Measured delays: every file format, what row and column mean, other loads, and what is wrong with a bad file."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk import delays
from anyk.base.errors import BadInput
from anyk.delays import DelayStream, Trace

pytestmark = pytest.mark.in_process

TABLE = np.array([[0.1, 0.2, 0.3], [1.1, 1.2, 1.3], [2.1, 2.2, 2.3], [3.1, 3.2, 3.3]])


@pytest.fixture
def file(tmp_path: Path) -> str:
    np.savez(tmp_path / "t.npz", seconds=TABLE, load=0.25)
    return str(tmp_path / "t.npz")


def text(table: np.ndarray, header: str | None = None) -> str:
    lines = [] if header is None else [header]
    return "\n".join(lines + [",".join(map(repr, row)) for row in table.tolist()]) + "\n"


# ------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("form", ["npz", "csv", "csv with a header", "csv.gz", "parquet", "npz of whole numbers"])
def test_every_format_holds_rounds_by_workers(form: str, tmp_path: Path) -> None:
    table = TABLE
    if form == "npz":
        file = tmp_path / "t.npz"
        np.savez(file, seconds=table)
    elif form == "npz of whole numbers":
        file, table = tmp_path / "t.npz", np.arange(12.0).reshape(4, 3)
        np.savez(file, seconds=table.astype(np.int32))
    elif form == "parquet":
        pandas = pytest.importorskip("pandas")
        file = tmp_path / "t.parquet"
        pandas.DataFrame(table, columns=["a", "b", "c"]).to_parquet(file)
    elif form == "csv.gz":
        file = tmp_path / "t.csv.gz"
        file.write_bytes(gzip.compress(text(table, "a,b,c").encode()))
    else:
        file = tmp_path / "t.csv"
        file.write_text(text(table, "worker 0,worker 1,worker 2" if "header" in form else None))
    trace = Trace(str(file))
    for worker in range(3):
        assert trace.draws(0, worker, 0, 4).tolist() == table[:, worker].tolist()
    assert trace.load_measured is None


def test_a_single_column_or_row_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("0.5\n1.5\n")
    assert Trace(str(tmp_path / "one.csv")).draws(0, 0, 0, 3).tolist() == [0.5, 1.5, 0.5]
    (tmp_path / "row.csv").write_text("0.5,1.5\n")
    assert Trace(str(tmp_path / "row.csv")).draws(0, 1, 0, 2).tolist() == [1.5, 1.5]


def test_the_home_folder_may_be_written_short(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path(file).parent))
    assert Trace("~/t.npz").draws(0, 0, 0, 1)[0] == 0.1


# ------------------------------------------------------------------------------------------- meaning


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 5000), st.integers(0, 40), st.integers(0, 9), st.integers(0, 2))
def test_draw_t_is_row_t_modulo_rounds(
    tmp_path_factory: pytest.TempPathFactory, start: int, count: int, seed: int, worker: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "modulo.npz"
    if not file.exists():
        np.savez(file, seconds=TABLE)
    drawn = Trace(str(file)).draws(seed, worker, start, count)
    assert drawn.tolist() == [TABLE[(start + i) % 4, worker] for i in range(count)]


def test_items_draw_from_the_column_rounds_and_tasks_take_rows(file: str) -> None:
    asked = {"number": 7, "version": 5, "repeat": 0, "partitions": 1, "relative_load": 0.25}
    for by, row in (("task", 3), ("round", 1)):
        stream = DelayStream(Trace(file, by=by), seed=1, workers=3)  # type: ignore[arg-type]
        assert stream.for_task(2, **asked) == (TABLE[row, 2], 0.0)
    trace = Trace(file, by="item")
    drawn = [trace.item_draw(1, 2, version, 0) for version in range(400)]
    counts = np.array([drawn.count(value) for value in TABLE[:, 2].tolist()])
    assert counts.sum() == 400 and np.abs(counts - 100).max() < 4 * (400 * 0.25 * 0.75) ** 0.5
    assert drawn == [trace.item_draw(1, 2, version, 0) for version in range(400)]


def test_quantiles_are_the_columns_own(file: str) -> None:
    u = np.array([0.0, 0.2499, 0.25, 0.5, 0.75, 1 - 2**-53])
    assert Trace(file).seconds(u, 1).tolist() == [0.2, 0.2, 1.2, 2.2, 3.2, 3.2]


def test_another_load_costs_the_slope_more_or_less(file: str) -> None:
    """delay(L) = max(1 us, delay + (L - L0) slope): spikes keep their size, whatever the load."""
    trace = Trace(file, slope=2.0)
    assert trace.load_measured == 0.25
    assert trace.at_load(1.1, 0.25) == 1.1
    assert trace.at_load(1.1, 0.75) == pytest.approx(2.1) and trace.at_load(101.1, 0.75) == pytest.approx(102.1)
    assert trace.at_load(1.1, 0.0) == pytest.approx(0.6)
    assert trace.at_load(0.1, 0.0) == 1e-6
    assert Trace(file).at_load(0.1, 1.0) == 0.1  # no slope, no change
    assert Trace(file, slope=2.0, load=0.75).at_load(1.1, 0.25) == pytest.approx(0.1)  # what is given beats the file
    stream = DelayStream(trace, seed=1, workers=3)
    seconds, item_seconds = stream.for_task(1, number=2, version=0, repeat=0, partitions=3, relative_load=0.5)
    assert seconds == pytest.approx(2.2 + 0.25 * 2.0) and item_seconds == 0.0


def test_the_load_may_be_given_where_the_file_is_silent(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text(TABLE))
    file = str(tmp_path / "t.csv")
    assert Trace(file, slope=1.0, load=0.5).at_load(1.0, 1.0) == 1.5
    with pytest.raises(BadInput, match=r"does not say its load; give load=… \(share of the data\) with slope"):
        Trace(file, slope=1.0)


def test_the_fleet_may_not_be_wider(file: str) -> None:
    Trace(file).check_fleet(3)
    with pytest.raises(BadInput, match=r"the trace '.*t.npz' has 3 workers, fewer than the fleet's 4"):
        Trace(file).check_fleet(4)
    with pytest.raises(BadInput, match=r"has 3 workers, fewer than the fleet's 30"):
        DelayStream(Trace(file), seed=0, workers=30)


# ------------------------------------------------------------------------------------------- what a table means

ROUNDS = 6
WIDE = np.random.default_rng(3).exponential(size=(ROUNDS, 3)).round(3)


def rows(header: str, lines: list[list[float | int | str]]) -> str:
    return "\n".join([header] * bool(header) + [",".join(map(str, line)) for line in lines]) + "\n"


def long(header: str, order: tuple[int, int, int] = (0, 1, 2), scale: float = 1.0) -> str:
    lines = [[r, w, float(WIDE[r, w] * scale)] for w in range(3) for r in range(ROUNDS)]
    return rows(header, [[line[i] for i in order] for line in lines])


MEANINGS = [
    ("w0,w1,w2", rows("w0,w1,w2", WIDE.tolist()), ""),
    ("index of pandas", rows(",0,1,2", [[r, *WIDE[r].tolist()] for r in range(ROUNDS)]), "row numbers in the first"),
    ("index by name", rows("round,a,b,c", [[r + 7, *WIDE[r].tolist()] for r in range(ROUNDS)]), "row numbers in the"),
    ("index from 1", rows("", [[r + 1, *WIDE[r].tolist()] for r in range(ROUNDS)]), "row numbers in the first"),
    ("index of another name", rows("nr,a,b,c", [[r, *WIDE[r].tolist()] for r in range(ROUNDS)]), "row numbers in the"),
    ("long", long("round,worker,seconds"), "from the columns 'round', 'worker', 'seconds'"),
    ("long, turned", long("Rank,Duration_ms,Step", (1, 2, 0), 1000), "'Step', 'Rank', 'Duration_ms', read as milli"),
    ("names of workers", long("round,worker,time").replace(",0,", ",a,"), "from the columns"),
    ("out of order", rows("worker 10,worker 2,worker 1", WIDE[:, [2, 1, 0]].tolist()), "in the order of the workers'"),
    ("ms", rows("w0 (ms),w1 (ms),w2 (ms)", (WIDE * 1000).tolist()), "read as milliseconds"),
]


@pytest.mark.parametrize(("kind", "content", "remark"), MEANINGS, ids=[m[0] for m in MEANINGS])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_is_recognised_and_told(kind: str, content: str, remark: str, form: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(content)
    if form == "parquet":
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(file, header=0 if content[0].isalpha() or content[0] == "," else None)
        frame.columns = frame.columns.astype(str)
        frame.to_parquet(tmp_path / "t.parquet")
        file = tmp_path / "t.parquet"
    trace = Trace(str(file))
    expected = WIDE if kind != "names of workers" else WIDE[:, [1, 2, 0]]  # 1, 2 and a
    np.testing.assert_allclose(trace.times, expected, rtol=1e-12)
    said = f"t.{form}: 6 rounds x 3 workers{', ' * bool(remark)}{remark}"
    assert trace.summary.startswith(said) or remark in trace.summary
    assert trace.summary.endswith(f"median {np.median(WIDE):.3g} s, longest {WIDE.max():.3g} s")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            long(""),
            r"looks like a long table, one row for each round and worker; name its columns round, worker and sec",
        ),
        (long("a,b,c"), r"looks like a long table"),
        (long("round,worker,seconds") + "0,1,5.5\n", r"round 0 of worker 1 is there 2 times"),
        (long("round,worker,seconds") + "0,3,5.5\n", r"round 1 of worker 3 is missing"),
        (
            long("time stamp,worker,seconds"),
            r"has no column that is known to be the round, as round, step or iteration",
        ),
        (
            long("step,who,ms"),
            r"round 0 is there 3 times in .* but no column is known to name the worker: 'step', 'who'",
        ),
        (rows("at,b,c", [[1.7e9 + r, 1, 2] for r in range(15)]), r"column 'at' .* rises in every row, like a clock"),
        (rows("w0,w1,load", WIDE.tolist()), r"column 'load' of .* is no worker's, by its name \('load'\); remove it"),
        (rows("w0_s,w1_ms,w2_s", WIDE.tolist()), r"are in different units; convert them"),
        (rows("when,w1", [["monday", 1], ["tuesday", 2]]), r"column 'when' holds text, such as 'monday'; remove it"),
        (rows("a,2,c", WIDE.tolist()), r"may be names or data"),
    ],
)
def test_a_table_that_may_mean_something_else_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(BadInput, match=sentence):
        Trace(str(tmp_path / "t.csv"))


def test_the_unit_may_be_given_and_is_asked_after(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows("", (WIDE * 1000).tolist()))
    assert "read as seconds (if these are milliseconds, give unit=ms)" in Trace(str(tmp_path / "t.csv")).summary
    trace = delays.parse(f"trace:{tmp_path / 't.csv'},unit=ms")
    assert isinstance(trace, Trace)
    np.testing.assert_allclose(trace.times, WIDE)
    assert trace.summary.count("milliseconds") == 1
    np.savez(tmp_path / "t.npz", seconds=WIDE * 1e6)
    np.testing.assert_allclose(Trace(str(tmp_path / "t.npz"), unit="us").times, WIDE)


@pytest.mark.slow
def test_measured_traces_are_understood(data_folder: Path) -> None:
    files = sorted((data_folder / "lambda-traces").glob("*.npz"))
    assert files and all("256 workers" in Trace(str(file)).summary for file in files)
    for file in (data_folder / "llm-traces").glob("*.parquet"):  # one row an operation
        with pytest.raises(BadInput, match="of worker .* (is there .* times|is missing)|holds text"):
            Trace(str(file))


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyk.tables.input_files._DEFAULT", 100_000)
    np.savez_compressed(tmp_path / "t.npz", seconds=np.ones((1000, 30)))
    with pytest.raises(
        BadInput, match=r"t.npz unpacks to 0.00024 GB, but the limit is 0.0001 GB; if you trust the file"
    ):
        Trace(str(tmp_path / "t.npz"))
    assert Trace(str(tmp_path / "t.npz"), max_gb=1).times.shape == (1000, 30)


def test_a_relative_name_is_found_from_another_folder(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run records must be found by whoever resumes it elsewhere, also where a folder's name has a comma."""
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "a, (b) = c"
    odd.mkdir()
    for name in ("t.npz", "a, (b) = c/t.npz"):
        np.savez(name, seconds=TABLE)
        spec = Trace(name).spec
        monkeypatch.chdir("/")
        rebuilt = delays.parse(spec)
        assert isinstance(rebuilt, Trace) and rebuilt.file == str(tmp_path / name)
        monkeypatch.chdir(tmp_path)


# ------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5])
@pytest.mark.parametrize("form", ["npz", "csv"])
@pytest.mark.parametrize("row", [0, 2])
def test_what_is_no_time_is_refused(tmp_path: Path, value: float, form: str, row: int) -> None:
    """Also in the first row of a CSV file, which is not a header because something in it is NaN."""
    table = TABLE.copy()
    table[row, 1] = value
    file = tmp_path / f"t.{form}"
    if form == "npz":
        np.savez(file, seconds=table)
    else:
        file.write_text(text(table))
    location = "worker 1" if form == "npz" else "column 1"
    with pytest.raises(
        BadInput, match=rf"'.*' must hold seconds from 0 to 1e\+09, but {location} has {value:g} in round {row}$"
    ):
        Trace(str(file))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.csv", b"1,2\n3\n", r"t.csv cannot be read as CSV: row 2 has 1 cell, the first has 2"),
        ("t.csv", b"a,b\n1,x\n", r"'.*t.csv' cannot be read as a trace: column 'b' holds text, such as 'x'; remove"),
        ("t.csv", b"a,b\n", r"must be a table of rounds x workers, got a header only"),
        ("t.csv", b"", r"t.csv is empty"),
        ("t.npz", b"not a zip", r"t.npz cannot be read as npz: "),
        ("t.parquet", b"not parquet", r"t.parquet cannot be read as Parquet: "),
        ("t.csv.gz", b"not gzip", r"t.csv.gz cannot be read as CSV: "),
        ("t.txt", b"1,2\n", r"a trace is a .npz, .csv or .parquet file, got '.*t.txt'"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        Trace(str(tmp_path / name))


def test_arrays_of_the_wrong_name_shape_or_kind(tmp_path: Path) -> None:
    np.savez(tmp_path / "name.npz", times=TABLE, load=1.0)
    with pytest.raises(BadInput, match=r"has no array 'seconds' \(rounds x workers\); it has times, load"):
        Trace(str(tmp_path / "name.npz"))
    np.savez(tmp_path / "flat.npz", seconds=TABLE.ravel())
    with pytest.raises(BadInput, match=r"must be a table of rounds x workers, got shape \(12,\)"):
        Trace(str(tmp_path / "flat.npz"))
    np.savez(tmp_path / "empty.npz", seconds=np.zeros((0, 3)))
    with pytest.raises(BadInput, match=r"must be a table of rounds x workers, got shape \(0, 3\)"):
        Trace(str(tmp_path / "empty.npz"))
    np.savez(tmp_path / "objects.npz", seconds=np.array([[{}, None]], dtype=object))
    with pytest.raises(
        BadInput, match="array 'seconds' of .* holds Python objects, which only unpickling"
    ):  # nothing is ever unpickled
        Trace(str(tmp_path / "objects.npz"))


def test_no_file_and_no_partitions(file: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no trace file '/nowhere/t.npz'"):
        delays.parse("trace:/nowhere/t.npz")
    with pytest.raises(BadInput, match="is a folder; give the trace file itself"):
        Trace(str(tmp_path))
    with pytest.raises(BadInput, match=r"^x{100,}….{60,80}: File name too long|^x.* File name too long$") as caught:
        delays.parse(f"trace:{'x' * 3000}.npz")
    assert len(str(caught.value)) < 400
    with pytest.raises(BadInput, match="a trace holds the delays of whole tasks; use slope=… instead of per=load"):
        Trace(file, per="load")


@pytest.mark.parametrize("options", ["slope=inf", "slope=1,load=-3", "slope=1,load=inf"])
def test_a_slope_or_load_that_cannot_be_is_refused(file: str, options: str) -> None:
    """With an infinite slope every lighter task would take a microsecond."""
    with pytest.raises(BadInput, match=r"slope|load"):
        delays.parse(f"trace:{file},{options}")


def test_the_spec_builds_it_again(file: str) -> None:
    for options in ("", ",slope=1.5", ",slope=1.5,load=0.5,by=round,uninterruptible=true"):
        trace = delays.parse(f"trace:{file}{options}")
        assert delays.parse(trace.spec) == trace and trace.spec == f"trace:{_in_order(file, options)}"


def _in_order(file: str, options: str) -> str:
    """The spec's own order of keys: how draws are numbered first, then the model's."""
    settings = dict(option.split("=") for option in options.split(",") if option)
    order = ["by", "per", "uninterruptible", "file", "slope", "load"]
    values = settings | {"file": file}
    return ",".join(f"{key}={values[key]}" for key in order if key in values)


def test_row_numbers_in_an_npz_are_no_worker(tmp_path: Path) -> None:
    table = np.random.default_rng(0).exponential(size=(9, 3))
    np.savez(tmp_path / "t.npz", seconds=np.c_[np.arange(9), table], censored=np.zeros((9, 4), dtype=bool))
    trace = Trace(str(tmp_path / "t.npz"))
    assert np.array_equal(trace.times, table) and trace.censored is not None and trace.censored.shape == table.shape
    assert "row numbers in the first column left out" in trace.summary
