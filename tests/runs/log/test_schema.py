"""Folders that were forged with care: digests and seals are right, and what they cover is not what anyk writes.

Any command ends in its result or in one sentence, soon and within a bounded memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import anyk
from anyk.cli import main
from anyk.runs.folder import checkpoints
from anyk.runs.log.schema import TABLES

EXAMPLES = int(os.environ.get("ANYK_EXAMPLES", "80"))
# a page takes two seconds on a busy machine; what hangs is ended, also with many examples
pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 + 5 * EXAMPLES, method="thread")]
MOST = 64 << 20  # bytes that reading a folder of some kilobytes may take
DATA = "synthetic:rows=60,features=4"

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
FEWER = {
    "report": 8,
    "plan": 5,
    "resume": 3,
    "explain": 2,
}  # commands that take seconds get a fraction of the examples; all read the same log
COMMANDS = [
    ["show", "run"], ["show", "run", "--step", "2"], ["show", "run", "--staleness"], ["verify", "run"],
    ["replay", "run"], ["check", "run"], ["coefficients", "run"], ["trace", "record", "run", "--out", "x.npz"],
    ["export", "run", "--to", "csv", "-o", "tables"], ["export", "run", "--to", "perfetto", "-o", "x.json"],
    ["resume", "run", "--steps", "8", "--quiet"], ["explain", "run"], ["record", "run", "-o", "r.csv"],
    ["plan", "run", "--resamples", "20", "--slope", "0", "--steps", "5"], ["predict", "run", "rows.csv"],
    ["report", "run", "-o", "page.html"],
]  # fmt: skip
VALUES: list[Any] = [
    None, 0, -1, 1, 7, 10**6, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -1e300, 1e308, float("inf"), "", "x", "[]",
    "{}", "[[]]", "[1e999]", "[-1]", "[9999999]", '["x"]', "[null]", "[" * 5000, "9" * 5000, "\0", "é" * 300, b"",
    b"\xff\x00", "null", "NaN", "[NaN]", "1e999",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for name, strategy in (("run", "frc:load=2"), ("other", "async"), ("third", "pasgd:tau=2")):
        anyk.train(
            anyk.problems.from_data(DATA), strategy, anyk.cluster("simulated", workers=4, delays="exp:mean=1", seed=1),
            steps=6, optimizer=anyk.optimizers.GD(lr=0.1), out=folder / name, checkpoint_every=0.0,
        ).close()  # fmt: skip
    return folder


def seal(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> None:
    """Seal all rows of a log anew, and write a checkpoint that belongs to it, with a change of its state."""
    saved = checkpoints.load(folder)
    assert saved is not None
    state, vectors, *_ = saved
    with contextlib.closing(sqlite3.connect(folder / "log.sqlite")) as db:
        db.execute("DELETE FROM seals")
        db.execute("DELETE FROM checkpoints WHERE seq = (SELECT max(seq) FROM checkpoints)")
        db.commit()
    log = anyk.runs.LogWriter(folder / "log.sqlite")
    log.flush()
    digest = checkpoints.save(folder, json.dumps(change(state | {"seal": log.seal})), vectors)
    (folder / checkpoints.OLDER).unlink(missing_ok=True)
    log.checkpoint(state["seq"], digest)
    log.close()


def call(line: list[str], about: object) -> None:
    """Call a command, which must end in its result or one sentence within the memory that it may take."""
    tracemalloc.start()
    try:
        result = CliRunner().invoke(main, line)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.exception is None or isinstance(result.exception, SystemExit), (about, line, result.exception)
    assert result.exit_code in (0, 1, 2), (about, line, result.exit_code)
    if result.exit_code == 2:
        assert len([message for message in result.stderr.splitlines() if message.startswith("anyk:")]) == 1, (
            result.stderr
        )
    assert peak < MOST, (about, line, peak)


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
def test_rows_that_are_sealed_and_wrong(
    line: list[str], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("a,b,c,d\n1,2,3,4\n")
    for of in ("run", "other"):  # what is imported on first use takes memory
        shutil.copytree(made / of, "run", dirs_exist_ok=True)
        CliRunner().invoke(main, line)
    columns = [(table, column.split()[0]) for table, named in TABLES.items() for column in named.split(", ")]

    @settings(fuzz, max_examples=EXAMPLES // FEWER.get(line[0], 1))
    @given(
        of=st.sampled_from(["run", "other", "third"]),
        changes=st.lists(
            st.tuples(st.sampled_from(columns), st.sampled_from(VALUES), st.integers(-1, 9)), min_size=1, max_size=2
        ),
    )
    @example(of="run", changes=[(("works", "send"), 0, 0)])  # seldom found: the log is read for the next task only
    @example(of="run", changes=[(("events", "info"), "3", 1)])  # JSON, but no list
    def forge(of: str, changes: list[tuple[tuple[str, str], Any, int]]) -> None:
        for left in ("run", "tables"):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(made / of, "run")
        with contextlib.closing(sqlite3.connect("run/log.sqlite")) as db:
            for (table, column), value, row in changes:
                one = f" WHERE rowid = (SELECT rowid FROM {table} LIMIT 1 OFFSET {row})" if row >= 0 else ""
                with contextlib.suppress(sqlite3.Error, OverflowError):  # it is the number of a row
                    db.execute(f"UPDATE {table} SET {column} = ?{one}", (value,))
            db.commit()
        try:
            seal(Path("run"))
        except Exception:
            return  # which nobody can seal
        call(line, changes)

    forge()


def test_a_folder_that_is_sealed_anew_is_whole(made: Path, tmp_path: Path) -> None:
    """Or the tests here would only meet what is noticed at once."""
    shutil.copytree(made / "run", tmp_path / "run")
    seal(tmp_path / "run")
    damaged = {check.name for check in anyk.verify(tmp_path / "run").checks if check.whole is False}
    assert damaged <= {"the one before"}  # the checkpoint that is not needed
