"""Folders made to keep their readers busy end in one sentence, soon."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.runs.folder.config import NAME, read_config, write_plain
from anyk.runs.log.following import Following

pytestmark = pytest.mark.timeout(60, method="thread")
COMMANDS = (["verify", "run"], ["show", "run"], ["resume", "run", "--steps", "6", "--quiet"])
DEEP = "compressed:of=(" * 3000 + "uncoded" + ")" * 3000
BUSY = "instr(hex(zeroblob(400000000)), 'x') + instr(hex(zeroblob(400000000)), 'y') = 0"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    anyk.train(problem, "frc:load=2", "simulated", workers=4, steps=4, out=folder).close()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def told(command: list[str]) -> str:
    """The sentence with which a command ends, or nothing."""
    done = CliRunner().invoke(main, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
    assert done.exit_code in (0, 1, 2)
    return done.output if done.exit_code else ""


SETTINGS: dict[str, dict[str, Any]] = {
    "a million workers": {"workers": 10**6},
    "2^53 workers": {"workers": 2**53},
    "2^53 partitions": {"partitions": 2**53},
    "a deep strategy": {"strategy": DEEP},
    "deep delays": {"delays": "mixture:a=(" * 4000 + "exp:mean=1" + ")" * 4000},
    "deep communication": {"communication": "(" * 100_000},
    "a deep cluster": {"cluster": "simulated:cores=" + "(" * 100_000},
    "a deep optimiser": {"optimizer": "gd:lr=" + "(" * 50_000 + ")" * 50_000},
    "a deep evaluation": {"evaluate": "every=(" * 5_000},
    "deep data": {"problem": {"data": "shards:files=(" * 5_000}},
    "long numbers": {"cluster": "simulated:cores=" + "9" * 100_000},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", SETTINGS.values(), ids=list(SETTINGS))
def test_settings_that_would_take_for_ever_are_refused(change: dict[str, Any], folder: Path) -> None:
    write_plain(folder / NAME, read_config(folder).plain() | change)
    for command in COMMANDS:
        sentence = told(command)
        if command[0] == "resume" and "workers" in change:
            assert "workers" in sentence


TEXTS = {
    "dotted keys": b"x" + b".a" * 300_000 + b" = 1\n",
    "quoted keys": b'x."a"' + b'. "a"' * 200_000 + b" = 1\n",
    "dotted tables": b"[x" + b".a" * 300_000 + b"]\n",
    "arrays of tables": b"[[x" + b". a" * 300_000 + b"]]\n",
    "long": b"#" * (1 << 23),
    "deep arrays": b"x = " + b"[" * 100_000,
    "deep tables": b"x = " + b"{a=" * 100_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_toml_that_would_take_for_ever_is_refused(text: bytes, folder: Path) -> None:
    for file in (NAME, "race.toml"):
        (folder / file).write_bytes(text)
    for command in COMMANDS:
        assert told(command)


def test_settings_with_dots_in_their_texts_are_read(folder: Path) -> None:
    dots = "a.b.c.d.e.f.g.h.i.j.k.l"
    plain = read_config(folder).plain() | {"digests": {"code": {dots: "0" * 64}, "plugins": [dots, dots]}}
    write_plain(folder / NAME, plain)
    assert dict(read_config(folder).digests.code) == {dots: "0" * 64}


SCHEMAS = {
    "a condition": f"CREATE TABLE more (a INTEGER CHECK ({BUSY}))",
    "a view": f"CREATE VIEW more AS {ENDLESS} x FROM c",
    "a view of a table's name": f"ALTER TABLE updates RENAME TO other; CREATE VIEW updates AS {ENDLESS} x AS slot FROM c",
    "a trigger of a table's name": "CREATE TRIGGER notes AFTER INSERT ON works BEGIN DELETE FROM works; END",
    "an index": f"CREATE INDEX more ON notes (text) WHERE {BUSY}",
}


@pytest.mark.parametrize("sql", SCHEMAS.values(), ids=list(SCHEMAS))
def test_logs_that_compute_are_refused(sql: str, folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "log.sqlite")) as log:
        log.execute("DELETE FROM notes")
        log.executescript(sql)
        if "CHECK" in sql:
            log.execute("PRAGMA ignore_check_constraints=ON")
            log.executemany("INSERT INTO more VALUES (?)", [(1,)] * 50)
        log.commit()
    for command in COMMANDS:
        assert "its tables are not those of a run log" in told(command)
    with Following(folder) as followed, pytest.raises(anyk.BadInput, match="its tables are not those"):
        followed.run()
