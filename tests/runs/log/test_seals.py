"""Seals in a database of their own: each covers the rows since the one before."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from anyk.runs.log.schema import SCHEMA, TABLES
from anyk.runs.log.seals import Seals

ROW = "INSERT INTO notes (time, kind, text, seq) VALUES (1.0, 'kind', ?, 0)"


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:", isolation_level=None)
    for create in SCHEMA.values():
        database.execute(create)
    yield database
    database.close()


def sealed(db: sqlite3.Connection, *texts: str) -> Seals:
    """Return seals of one row after another."""
    seals = Seals(db)
    for text in texts:
        db.execute(ROW, (text,))
        seals.add()
    return seals


def test_each_write_of_rows_is_sealed_once(db: sqlite3.Connection) -> None:
    seals = sealed(db, "a", "b")
    seals.add()  # nothing new
    assert db.execute("SELECT count(*) FROM seals").fetchone() == (2,)
    assert seals.newest.upto == [2 if name == "notes" else 0 for name in TABLES]
    again = Seals(db)
    assert again.defect() is None and again.newest == seals.newest


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE notes SET text = 'x' WHERE rowid = 1", "number 1, are not what was written"),
        ("UPDATE notes SET text = 'x' WHERE rowid = 2", "number 2, are not what was written"),
        ("DELETE FROM notes WHERE rowid = 2", "number 2, are not what was written"),
        (ROW.replace("?", "'new'"), "it has rows that were not sealed"),
        ("DELETE FROM seals WHERE id = 2", "it has rows that were not sealed"),
        ("DELETE FROM seals WHERE id = 1", "number 1, are not what was written"),
        ("UPDATE seals SET upto = '3'", "'int' object is not subscriptable"),
        ("UPDATE seals SET upto = '[]'", "list index out of range"),
    ],
)
def test_a_changed_row_or_seal_is_found(db: sqlite3.Connection, change: str, found: str) -> None:
    sealed(db, "a", "b")
    db.execute(change)
    assert found in (Seals(db).defect() or "")


def test_a_seal_is_found_again_with_what_it_seals(db: sqlite3.Connection) -> None:
    first = sealed(db, "a").newest
    seals = Seals(db)
    assert seals.defect() is None
    db.execute(ROW, ("b",))
    seals.add()
    assert seals.number(first.seal) == (1, first) and seals.number(seals.newest.seal) == (2, seals.newest)
    assert seals.number("unknown") == (0, Seals(db).newest)
