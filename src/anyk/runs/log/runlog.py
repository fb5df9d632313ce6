"""The run log, a record of every event and decision in an SQLite file.

Progress, receipts, histories, replays and delay traces are read from the log; there is no other record. Here is what
reads a log and finds out whether it is damaged; :class:`~anyk.runs.log.log_writer.LogWriter` writes one.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from anyk.base.errors import BadInput, Surroundings, hindered
from anyk.base.plain import ByName
from anyk.protocol import Event
from anyk.runs.log.copies import INSTEAD, copied
from anyk.runs.log.schema import IDS, KINDS, SCHEMA, START, TABLES, Summary, Totals, wrong_rows
from anyk.runs.log.seals import Seals

_NO_TABLES = "its tables are not those of a run log"
LOST = "rows in its write-ahead file cannot be read"


class RunLog:
    """A run's log, in a database that is open; :meth:`reading` opens the log of a run folder."""

    def __init__(self, path: Path | None, db: sqlite3.Connection) -> None:
        self.path, self._db = path, db
        self.totals = Totals()  # of the rows read by :func:`~anyk.runs.log.queries.totals`
        self.lost = False  # whether rows in the write-ahead file could not be read
        self._seals = Seals(db)
        self._closing = weakref.finalize(self, db.close)

    @staticmethod
    def reading(path: Path, *, checked: bool = True, prefix: bool = False) -> RunLog:
        """Open a copy of a log to read it; if ``checked``, raise :class:`~anyk.BadInput` for a damaged log.

        ``prefix``: the last rows may be missing, as after a loss of power. The copy includes the log's write-ahead
        file. So the folder need not be writable, is not changed, and may be written to meanwhile.
        """
        db, lost = copied(path)
        log = RunLog(path, db)
        log.lost = lost
        try:
            log.check_tables()
            if checked:
                log.check(prefix=prefix)
        except BaseException:
            log.close()
            raise
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        with contextlib.closing(sqlite3.connect(":memory:")) as copy:
            try:
                self._db.backup(copy)
            except sqlite3.Error as error:
                raise self._unreadable(error) from None
            plain = bytearray(copy.serialize())
        plain[18:20] = b"\x01\x01"  # without write-ahead log, which does not exist in memory
        return _from_bytes, (bytes(plain), self.path)

    def close(self) -> None:
        """Close the database; safe to call twice."""
        self._closing()

    # ------------------------------------------------------------------------------------------- integrity

    def check(self, *, prefix: bool = False) -> None:
        """Raise :class:`~anyk.BadInput` if the log is damaged; with ``prefix`` the last rows may be missing."""
        lost = LOST if self.lost and not prefix else None
        if (defect := self.check_file() or lost or self.check_seals()) is not None:
            raise BadInput(f"the log '{self.path}' is damaged ({defect}); {INSTEAD}")

    def check_tables(self) -> None:
        """Raise :class:`~anyk.BadInput` unless the log has the tables of a run and nothing else."""
        try:
            has_tables = self._has_tables()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None
        if not has_tables:
            raise BadInput(f"the log '{self.path}' is damaged ({_NO_TABLES}); {INSTEAD}")

    def check_file(self) -> str | None:
        """Return the defect of the SQLite file or its tables; None if there is none."""
        try:
            if not self._has_tables():
                return _NO_TABLES
            lines = [str(row[0]) for row in self._db.execute("PRAGMA quick_check(1)")]
            if lines != ["ok"]:
                return " ".join(lines[0].split())
            for name in TABLES:
                if self._db.execute(f"SELECT 1 FROM {name} WHERE {wrong_rows(name)} LIMIT 1").fetchone():
                    return f"{name} has a row that no run writes"
            msgspec.convert(self.summary(), Summary)
        except Surroundings:
            raise
        except (sqlite3.Error, OverflowError, ValueError, RecursionError) as error:
            if hindered(error):
                raise self._unreadable(error) from None
            return str(error)
        return None

    def _has_tables(self) -> bool:
        """Return whether the log has the tables of a run and nothing else, such as views that compute for ever."""
        objects = self._db.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        return sorted(map(repr, objects)) == sorted(repr(("table", *table)) for table in SCHEMA.items())

    def check_seals(self) -> str | None:
        """Return a sentence on rows that differ from their seals; None if there are none."""
        return self._seals.defect()

    @property
    def seal(self) -> str:
        """The newest seal, of all rows that have been written; empty if none has been."""
        return self._seals.newest.seal

    def has_seal(self, seal: str) -> bool:
        """Return whether the log has all rows up to a seal."""
        return not seal or bool(self.rows("SELECT 1 FROM seals WHERE seal = ?", (seal,)))

    def _unreadable(self, error: Exception) -> BadInput:
        if not self._closing.alive:
            return BadInput("the run is closed; open it again: anyk.Run.open(path)")
        if hindered(error):
            return Surroundings(f"the log '{self.path}' cannot be read ({error}); it may be whole")
        return BadInput(f"the log '{self.path}' cannot be read ({error}); it is damaged")

    # ------------------------------------------------------------------------------------------- reading

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; rows that have not been written yet are missing."""
        return self.select(query, values)[1]

    def select(self, query: str, values: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of a query's columns, and its rows."""
        try:
            cursor = self._db.execute(query, values)
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def table(self, query: str, values: Sequence[Any] = ()) -> list[ByName]:
        """Return the rows of a query as dictionaries."""
        names, rows = self.select(query, values)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def summary(self) -> ByName:
        """Return the values that a run writes when it ends, by name."""
        rows = self.rows("SELECT name, value FROM summary ORDER BY rowid")
        try:
            return {name: json.loads(value) for name, value in rows}
        except RecursionError as error:
            raise self._unreadable(error) from None

    def events(self, kinds: Sequence[str] = ()) -> Iterator[Event]:
        """Return the events (of some kinds), in the order in which the strategy received them."""
        which = f"kind IN ({','.join('?' * len(kinds))})" if kinds else f"kind != '{START}'"
        for time, name, *ids, info in self.rows(
            f"SELECT time, kind, worker, task, chunk, info FROM events WHERE {which} ORDER BY seq", tuple(kinds)
        ):
            kind = KINDS[name]
            try:
                event = msgspec.convert([time, *ids[: IDS[kind]], *json.loads(info or "[]")], kind)
            except (TypeError, ValueError):  # what is no list, or is of other types
                raise _forged(self.path) from None
            yield event

    def started(self) -> tuple[float, tuple[int, ...]]:
        """Return the time when the strategy was started, in seconds on the run's clock, and the workers present."""
        for time, info in self.rows("SELECT time, info FROM events WHERE kind = ?", (START,)):
            try:
                return float(time), tuple(map(int, json.loads(info)[0]))
            except (TypeError, ValueError, LookupError, OverflowError):
                raise _forged(self.path) from None
        raise BadInput(f"the log '{self.path}' does not say when its run started; the run ended before that")


def _forged(path: Path | None) -> BadInput:
    return BadInput(f"the log '{path}' has an event that no run writes")


def _from_bytes(data: bytes, path: Path | None) -> RunLog:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.deserialize(data)
    return RunLog(path, db)
