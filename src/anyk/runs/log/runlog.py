"""The run log, an append-only record of every event and decision in an SQLite file.

Progress, receipts, histories, replays and delay traces are read from the log; there is no other record. Rows are
gathered in memory and written together, at least every 0.15 s while a run is driven. Rows that are written together are
sealed with a digest of these rows and of the seal before. So a flipped bit is found when the log is read, and a
checkpoint, which names the newest seal, reveals whether rows are missing at the end of the log.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time as clock
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from anyk.base.errors import BadInput, RunFailed, Surroundings, hindered
from anyk.base.plain import ByName
from anyk.protocol import Chunk, Event, Reply
from anyk.runs.log.copies import INSTEAD, copied
from anyk.runs.log.schema import (
    IDS,
    INSERT,
    KINDS,
    SCHEMA,
    START,
    TABLES,
    Ended,
    Evaluation,
    Reuse,
    Summary,
    Totals,
    Update,
    wrong_rows,
)
from anyk.runs.log.seals import Seals

_NO_TABLES = "its tables are not those of a run log"
_EVERY = 0.15  # seconds between commits
_CACHED_CHUNKS, _CACHED_PASSING = 20_000, 1_000
_LISTS = ("partitions", "coefficients", "mix")  # of a chunk, stored as JSON
_MOST = 5000  # gathered events and chunks that are written before that time


class RunLog:
    """Writes and reads a run's log, in memory without a path; :meth:`reading` opens a log to read it."""

    def __init__(self, path: Path | None = None, *, db: sqlite3.Connection | None = None) -> None:
        self.path = path
        self.seq = 0  # events so far
        self._works: dict[Chunk, int] = {}
        self._next_work = 0
        self._passing: deque[Chunk] = deque()
        self._by_identity: dict[int, tuple[int, Chunk]] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self._last = clock.monotonic()
        self.totals = Totals()  # of the rows read by :func:`~anyk.runs.log.queries.totals`
        self.lost = False  # whether rows in the write-ahead file could not be read
        self._db = db or self._create(path)
        self._seals = Seals(self._db)
        self._closing = weakref.finalize(self, self._db.close)

    @staticmethod
    def _create(path: Path | None) -> sqlite3.Connection:
        db: sqlite3.Connection | None = None
        try:
            # one thread at a time uses the connection: first the driver, then readers
            db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            db.execute("BEGIN")
            for name, create in SCHEMA.items():
                if name not in tables:
                    db.execute(create)
            db.execute("COMMIT")  # survives a loss of power, unlike commits from here on
            db.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error as error:
            if db is not None:
                db.close()
            raise BadInput(f"the log '{path}' cannot be opened: {error}") from None
        return db

    @classmethod
    def reading(cls, path: Path, *, checked: bool = True, prefix: bool = False) -> RunLog:
        """Open a copy of a log to read it; if ``checked``, raise :class:`~anyk.BadInput` for a damaged log.

        ``prefix``: the last rows may be missing, as after a loss of power. The copy includes the log's write-ahead
        file. So the folder need not be writable, is not changed, and may be written to meanwhile.
        """
        db, lost = copied(path)
        log = cls(path, db=db)
        log.lost = lost
        try:
            log.check_tables()
            if checked:
                log.check(prefix=prefix)
        except BaseException:
            log.close(write=False)
            raise
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(write=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (self._bytes(), self.path)

    def _bytes(self) -> bytes:
        with contextlib.closing(sqlite3.connect(":memory:")) as copy:
            try:
                self._db.backup(copy)
            except sqlite3.Error as error:
                raise self._unreadable(error) from None
            plain = bytearray(copy.serialize())
        plain[18:20] = b"\x01\x01"  # without write-ahead log, which does not exist in memory
        return bytes(plain)

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

    # ------------------------------------------------------------------------------------------- writing

    def event(self, event: Event) -> None:
        """Write an event, in the order in which the strategy received them."""
        self.seq += 1
        kind = type(event)
        row: tuple[Any, ...]
        plain: tuple[Any, ...] = event
        if kind is Reply:
            row = (self.seq, plain[0], "Reply", plain[1], plain[2], plain[3], None)
        else:
            end = 1 + IDS[kind]
            row = (self.seq, plain[0], kind.__name__, *plain[1:end], *[None] * (4 - end), json.dumps(plain[end:]))
        self._rows["events"].append(row)

    def work(self, chunk: Chunk) -> int:
        """Return the number of a chunk's work; write the work if it is new."""
        cached = self._by_identity.get(id(chunk))  # hashing a chunk costs more than writing its row
        if cached is not None:
            return cached[0]
        number = self._works.get(chunk)
        if number is None:
            number = self._cache(chunk, self._next_work)
            plain = [json.dumps(value) if name in _LISTS else value for name, value in chunk._asdict().items()]
            self._rows["works"].append((number, *plain))
        if len(self._by_identity) < _CACHED_CHUNKS and not _passing(chunk):
            self._by_identity[id(chunk)] = number, chunk  # the reference keeps the identity unique
        return number

    def _cache(self, chunk: Chunk, number: int) -> int:
        self._works[chunk], self._next_work = number, number + 1
        if _passing(chunk):
            self._passing.append(chunk)
            if len(self._passing) > _CACHED_PASSING:
                del self._works[self._passing.popleft()]
        return number

    def chunk(self, row: Ended) -> None:
        """Write a chunk that has ended."""
        self._rows["chunks"].append((*row, self.seq))

    def reuse(self, row: Reuse) -> None:
        """Write a stored message that was used again."""
        self._rows["reuses"].append((*row, self.seq))

    def update(self, row: Update) -> None:
        """Write a new version of a slot."""
        self._rows["updates"].append((*row, self.seq))

    def carried(self, slot: str, version: int, values: ByName) -> None:
        """Write the values that a version carries, if they are not those of the version before."""
        self._rows["carried"].append((slot, version, json.dumps(values), self.seq))

    def slices(self, slot: str, version: int, givers: dict[tuple[int, int], list[int]]) -> None:
        """Write which workers' replicas gave each slice of the messages of a version, by task and chunk."""
        for (task, chunk), workers in givers.items():
            self._rows["slices"].append((slot, version, task, chunk, json.dumps(workers), self.seq))

    def evaluation(self, row: Evaluation) -> None:
        """Write loss and metric of a version."""
        self._rows["evaluations"].append(row)

    def start(self, time: float, present: Sequence[int], rounds: int, sizes: Sequence[int] = ()) -> None:
        """Write when the strategy was started, the workers that were present, and the partitions' sizes."""
        self._rows["partitions"].extend(enumerate(sizes))
        self.seq += 1
        self._rows["events"].append((self.seq, time, START, None, None, None, json.dumps([list(present), rounds])))

    def checkpoint(self, seq: int, digest: str) -> None:
        """Write the digest of a checkpoint after event ``seq``, and all gathered rows."""
        self._rows["checkpoints"].append((seq, digest))
        self.flush()

    def note(self, time: float, kind: str, text: str) -> None:
        """Write a note for readers, such as an unused message or why the run stopped."""
        self._rows["notes"].append((time, kind, text, self.seq))

    def tidy(self) -> None:
        """Write gathered rows if they are many or old enough."""
        gathered = len(self._rows["events"]) + len(self._rows["chunks"])
        if gathered > _MOST or (gathered and clock.monotonic() - self._last > _EVERY):
            self.flush()

    def flush(self, *, lasting: bool = False) -> None:
        """Write gathered rows; raise :class:`~anyk.RunFailed` if the disk refuses them.

        ``lasting``: the rows must survive a loss of power, as rows before a checkpoint.
        """
        with self._transaction(lasting=lasting):
            for name, rows in self._rows.items():
                if rows:
                    self._db.executemany(INSERT[name], rows)
        for rows in self._rows.values():
            rows.clear()
        self._last = clock.monotonic()

    @contextlib.contextmanager
    def _transaction(self, *, lasting: bool = False) -> Iterator[None]:
        """Write what the block writes, with a seal, or nothing of it if the disk refuses."""
        before = self._seals.newest
        try:
            if lasting:
                self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("BEGIN")
            yield
            if self.path is not None:
                self._seals.add()
            self._db.execute("COMMIT")
            if lasting:
                self._db.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error as error:
            self._seals.newest = before
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            raise RunFailed(
                f"the run log '{self.path}' cannot be written ({error}); free some space and resume the run"
            ) from None

    def close(self, *, write: bool = True) -> None:
        """Close the file, after writing gathered rows if ``write``; safe to call twice."""
        try:
            if write and self._closing.alive:
                self.flush()
        finally:
            self._closing()

    def summarise(self, values: ByName) -> None:
        """Write values of the summary; later values of a name replace earlier ones."""
        self._rows["summary"].extend((name, json.dumps(value), self.seq) for name, value in values.items())
        self.flush()

    def summary(self) -> ByName:
        """Return the summary that :meth:`summarise` wrote."""
        rows = self.rows("SELECT name, value FROM summary ORDER BY rowid")
        try:
            return {name: json.loads(value) for name, value in rows}
        except RecursionError as error:
            raise self._unreadable(error) from None

    def truncate(self, seq: int, seal: str = "") -> None:
        """Remove all rows after event ``seq``, when the log had ``seal``, as the run is resumed from there."""
        with self._transaction():
            for name in sorted(TABLES.keys() - {"works", "partitions", "evaluations"}):
                self._db.execute(f"DELETE FROM {name} WHERE seq > ?", (seq,))
            if not seq:  # the run starts again
                self._db.execute("DELETE FROM partitions")
            number, sealed = self._seals.number(seal)
            self._db.execute(  # sealed rows stay: a slot without an update may have started at any version
                "DELETE FROM evaluations WHERE rowid > ? AND version > "
                "(SELECT coalesce(max(version), 0) FROM updates u WHERE u.slot = evaluations.slot)",
                (sealed.upto[list(TABLES).index("evaluations")],),
            )
            self._db.execute("DELETE FROM seals WHERE id > ?", (number,))
            self._seals.newest = sealed
        self.totals = Totals()
        for number, *values in self._db.execute("SELECT * FROM works"):
            plain = zip(Chunk._fields, values, strict=True)
            try:
                chunk = Chunk.from_plain([json.loads(value) if name in _LISTS else value for name, value in plain])
            except msgspec.ValidationError as error:
                raise self._unreadable(error) from None
            self._cache(chunk, number)
        self.seq = seq

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

    def evaluations(self) -> list[Evaluation]:
        """Return all evaluations, in their order."""
        return [Evaluation(*row) for row in self.rows("SELECT slot, version, time, loss, metric FROM evaluations")]

    def _forged(self) -> BadInput:
        return BadInput(f"the log '{self.path}' has an event that no run writes")

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
                raise self._forged() from None
            yield event

    def started(self) -> tuple[float, tuple[int, ...]]:
        """Return the time when the strategy was started, in seconds on the run's clock, and the workers present."""
        for time, info in self.rows("SELECT time, info FROM events WHERE kind = ?", (START,)):
            try:
                return float(time), tuple(map(int, json.loads(info)[0]))
            except (TypeError, ValueError, LookupError, OverflowError):
                raise self._forged() from None
        raise BadInput(f"the log '{self.path}' does not say when its run started; the run ended before that")


LOST = "rows in its write-ahead file cannot be read"


def _from_bytes(data: bytes, path: Path | None) -> RunLog:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.deserialize(data)
    return RunLog(path, db=db)


def _passing(chunk: Chunk) -> bool:
    """Return whether a chunk is unlikely to recur, so that not all such chunks are cached."""
    return chunk.steps > 0 or chunk.state >= 0
