"""The run log: an append-only record of every event and decision, one SQLite file, and how it is read back.

Everything a run has to say (progress, receipts, history, replay, delay traces) is read from here; there is no second
bookkeeping. Rows are gathered in memory and written together, at least every 0.15 s while a run is being driven.
"""

from __future__ import annotations

import json
import sqlite3
import time as clock
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anyk.errors import BadInput, RunFailed
from anyk.protocol import (
    Alarm,
    Assessed,
    Chunk,
    Compared,
    Event,
    Failed,
    Joined,
    Lost,
    Measured,
    Progress,
    Reply,
    Scattered,
)

_EVERY = 0.15  # seconds between commits
_CHUNKS_KNOWN = 20_000
_LISTS = ("partitions", "coefficients", "mix")  # of a chunk, kept as JSON
_MOST = 5000  # rows gathered before they are written even earlier

_TABLES = {
    "events": "seq INTEGER PRIMARY KEY, time REAL, kind TEXT, worker INTEGER, task INTEGER, chunk INTEGER, info TEXT",
    "works": "id INTEGER PRIMARY KEY, partitions TEXT, coefficients TEXT, slot TEXT, send TEXT, batch INTEGER, "
    "repeat INTEGER, steps INTEGER, mix TEXT, share REAL, state INTEGER, "
    "compress TEXT",
    "chunks": "task INTEGER, chunk INTEGER, worker INTEGER, version INTEGER, work INTEGER, dispatched REAL, "
    "started REAL, computing REAL, computed REAL, sent REAL, received REAL, cancelled REAL, done INTEGER, due REAL, "
    "ending TEXT, slot TEXT, step INTEGER, weight REAL, digest INTEGER, seq INTEGER",
    "updates": "slot TEXT, version INTEGER, time REAL, replies INTEGER, residual REAL, gain REAL, staleness REAL, "
    "stalest INTEGER, scale REAL, digest INTEGER, seq INTEGER",
    "evaluations": "slot TEXT, version INTEGER, time REAL, loss REAL, metric REAL",
    "notes": "time REAL, kind TEXT, text TEXT, seq INTEGER",
    "summary": "name TEXT PRIMARY KEY, value TEXT",
}
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Reply, Progress, Failed, Lost, Joined, Alarm, Measured, Assessed, Compared, Scattered)
}


class RunLog:
    """Writes and reads a run's log; without a path it is kept in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.seq = 0  # events so far
        self._works: dict[Chunk, int] = {}
        self._by_identity: dict[int, tuple[int, Chunk]] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}
        self._waiting = 0
        self._last = clock.monotonic()
        try:
            # one thread at a time uses the connection: the driver while it runs, readers after
            self._db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            for name, columns in _TABLES.items():
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
            self._insert = {
                name: f"INSERT INTO {name} VALUES ({','.join('?' * (columns.count(',') + 1))})"
                for name, columns in _TABLES.items()
            }
        except sqlite3.Error as error:
            raise BadInput(f"the log '{path}' cannot be opened: {error}") from None

    # ------------------------------------------------------------------------------------------- writing

    def event(self, event: Event) -> None:
        """One event, in the order in which the strategy was told."""
        self.seq += 1
        kind = type(event)
        row: tuple[Any, ...]
        plain: tuple[Any, ...] = event
        if kind is Reply:
            row = (self.seq, plain[0], "Reply", plain[1], plain[2], plain[3], None)
        elif kind in (Alarm, Assessed, Scattered):
            row = (self.seq, plain[0], kind.__name__, None, None, None, json.dumps(plain[1:]))
        elif kind in (Lost, Joined):
            row = (self.seq, plain[0], kind.__name__, plain[1], None, None, json.dumps(plain[2:]))
        else:
            row = (self.seq, *plain[:1], kind.__name__, *plain[1:4], json.dumps(plain[4:]))
        self._rows["events"].append(row)
        self._waiting += 1

    def work(self, chunk: Chunk) -> int:
        """The number under which a chunk's partitions and coefficients are known."""
        known = self._by_identity.get(id(chunk))  # hashing a chunk costs more than writing its row
        if known is not None:
            return known[0]
        number = self._works.get(chunk)
        if number is None:
            number = self._works[chunk] = len(self._works)
            plain: dict[str, Any] = chunk._asdict()
            for name in _LISTS:
                plain[name] = json.dumps(plain[name])
            row = (number, *plain.values())
            self._rows["works"].append(row)
        if len(self._by_identity) < _CHUNKS_KNOWN:
            self._by_identity[id(chunk)] = number, chunk  # kept alive, so that its identity stays its own
        return number

    def chunk(self, row: tuple[Any, ...]) -> None:
        """One chunk, when it has ended; columns as in the table ``chunks``, without the last."""
        self._rows["chunks"].append((*row, self.seq))
        self._waiting += 1

    def update(self, row: tuple[Any, ...]) -> None:
        """One new version of a slot; columns as in the table ``updates``, without the last."""
        self._rows["updates"].append((*row, self.seq))
        self._waiting += 1

    def evaluation(self, row: tuple[Any, ...]) -> None:
        """Loss and metric of a version."""
        self._rows["evaluations"].append(row)

    def note(self, time: float, kind: str, text: str) -> None:
        """Something a reader should know: a worker set aside, a stop and its reason."""
        self._rows["notes"].append((time, kind, text, self.seq))

    def tidy(self) -> None:
        """Write what has gathered, if it is time."""
        if self._waiting > _MOST or (self._waiting and clock.monotonic() - self._last > _EVERY):
            self.flush()

    def flush(self) -> None:
        """Write what has gathered; raises :class:`~anyk.errors.RunFailed` when the disk does not take it."""
        try:
            self._db.execute("BEGIN")
            for name, rows in self._rows.items():
                if rows:
                    self._db.executemany(self._insert[name], rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise RunFailed(
                f"the run log '{self.path}' cannot be written ({error}); free some space and resume the run"
            ) from None
        for rows in self._rows.values():
            rows.clear()
        self._waiting = 0
        self._last = clock.monotonic()

    def close(self, *, write: bool = True) -> None:
        """Close the file, after writing what has gathered."""
        try:
            if write:
                self.flush()
        finally:
            self._db.close()

    def summarise(self, values: dict[str, Any]) -> None:
        """Write down what the whole run came to, replacing what was said before."""
        try:
            self._db.executemany("INSERT OR REPLACE INTO summary VALUES (?, ?)", [
                (name, json.dumps(value)) for name, value in values.items()
            ])  # fmt: skip
        except sqlite3.Error as error:
            raise RunFailed(f"the run log '{self.path}' cannot be written ({error}); free some space") from None

    def summary(self) -> dict[str, Any]:
        """What :meth:`summarise` wrote."""
        return {name: json.loads(value) for name, value in self.rows("SELECT name, value FROM summary")}

    def truncate(self, seq: int) -> None:
        """Forget everything after event ``seq``: a resumed run goes on from there."""
        with self._db:
            for name in ("events", "chunks", "updates", "notes"):
                self._db.execute(f"DELETE FROM {name} WHERE seq > ?", (seq,))
            self._db.execute(
                "DELETE FROM evaluations WHERE version > "
                "(SELECT coalesce(max(version), 0) FROM updates u WHERE u.slot = evaluations.slot)"
            )
        for number, *plain in self._db.execute("SELECT * FROM works"):
            lists = {i: json.loads(plain[i]) for i in (Chunk._fields.index(name) for name in _LISTS)}
            self._works[Chunk.from_plain([lists.get(i, value) for i, value in enumerate(plain)])] = number
        self.seq = seq

    # ------------------------------------------------------------------------------------------- reading

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Answer a query on what has been written."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise BadInput(f"the log '{self.path}' cannot be read ({error}); it is damaged") from None

    def table(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Answer a query, each row as a dictionary."""
        try:
            cursor = self._db.execute(query, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise BadInput(f"the log '{self.path}' cannot be read ({error}); it is damaged") from None

    def events(self, kinds: Sequence[str] = ()) -> Iterator[Event]:
        """The events (of some kinds), in the order in which the strategy was told."""
        which = f"WHERE kind IN ({','.join('?' * len(kinds))})" if kinds else ""
        for time, kind, worker, task, chunk, info in self.rows(
            f"SELECT time, kind, worker, task, chunk, info FROM events {which} ORDER BY seq", tuple(kinds)
        ):
            rest = json.loads(info) if info else []
            if kind == "Reply":
                yield Reply(time, worker, task, chunk)
            elif kind in ("Alarm", "Assessed", "Scattered"):
                yield _KINDS[kind](time, *rest)
            elif kind in ("Lost", "Joined"):
                yield _KINDS[kind](time, worker, *rest)
            else:
                yield _KINDS[kind](time, worker, task, chunk, *rest)
