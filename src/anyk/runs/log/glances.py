"""Looks into the file of a log that another process is writing, or that was left before its run began."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_OF_RUNS = {"events", "chunks", "updates", "evaluations", "checkpoints"}  # tables with rows once a run has begun
_MAGIC = b"SQLite format 3\0"


class Fault(NamedTuple):
    """An event ``Lost`` or ``Failed``; ``info``: its fields in JSON."""

    number: int
    time: float
    kind: str
    worker: int
    info: str


def is_unused(file: Path) -> bool:
    """Return whether a log has no row of a run; also if the file does not exist, but not if it is no log."""
    if not file.exists():
        return True
    if file.stat().st_size and file.read_bytes()[:16] != _MAGIC:
        return False
    try:
        with _reading(file) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            return not any(db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in tables & _OF_RUNS)
    except sqlite3.Error:
        return False


def count_updates(file: Path) -> int | None:
    """Return the number of updates in a log that is being written; None if it cannot be read at the moment."""
    with contextlib.suppress(sqlite3.Error), _reading(file) as db:
        return int(db.execute("SELECT max(rowid) FROM updates").fetchone()[0] or 0)
    return None


def faults_after(file: Path, number: int) -> list[Fault]:
    """Return the losses and failures after the event of this number; none if the log cannot be read at the moment."""
    query = "SELECT seq, time, kind, worker, info FROM events WHERE seq > ? AND kind IN ('Lost', 'Failed')"
    with contextlib.suppress(sqlite3.Error), _reading(file) as db:
        return [Fault(*row) for row in db.execute(query, (number,))]
    return []


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection]:
    address = f"{file.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=1.0)) as db:
        yield db
