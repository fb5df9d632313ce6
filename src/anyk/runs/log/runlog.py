"""The run log: an append-only record of every event and decision, one SQLite file, and how it is read back.

Everything a run has to say (progress, receipts, history, replay, delay traces) is read from here; there is no second
bookkeeping. Rows are gathered in memory and written together, at least every 0.15 s while a run is being driven, and
what is written together is sealed: a digest of these rows and of the seal before. So a bit that was flipped is found
when the log is read, and a checkpoint, which names the newest seal, finds out whether the log is as long as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import time as clock
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from anyk.errors import BadInput, RunFailed
from anyk.protocol import (
    Alarm,
    Chunk,
    Event,
    Joined,
    LossEvaluated,
    Lost,
    NoiseMeasured,
    Reply,
)
from anyk.runs.log.copies import INSTEAD, copied
from anyk.runs.log.schema import INSERT, KINDS, SCHEMA, START, TABLES, Ended, Evaluation, Reuse, Totals, Update

_EVERY = 0.15  # seconds between commits
_CHUNKS_KNOWN = 20_000
_LISTS = ("partitions", "coefficients", "mix")  # of a chunk, kept as JSON
# how many of worker, task and chunk an event has, where that is not all three
_IDS = {Alarm: 0, LossEvaluated: 0, NoiseMeasured: 0, Lost: 1, Joined: 1}
_MOST = 5000  # rows gathered before they are written even earlier


class RunLog:
    """Writes and reads a run's log; without a path it is kept in memory. :meth:`reading` opens one to read only."""

    def __init__(self, path: Path | None = None, *, db: sqlite3.Connection | None = None) -> None:
        self.path = path
        self.seq = 0  # events so far
        self._works: dict[Chunk, int] = {}
        self._by_identity: dict[int, tuple[int, Chunk]] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self._waiting = 0
        self._last = clock.monotonic()
        self._upto = [0] * len(TABLES)  # rows of each table that are sealed
        self.seal = ""
        self.totals = Totals()  # as far as they have been asked for
        self.lost = False  # whether rows in the write-ahead file could not be read
        self._db = db or self._create(path)
        self._closing = weakref.finalize(self, self._db.close)

    @staticmethod
    def _create(path: Path | None) -> sqlite3.Connection:
        db: sqlite3.Connection | None = None
        try:
            # one thread at a time uses the connection: the driver while it runs, readers after
            db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            for name, create in SCHEMA.items():
                if name not in tables:
                    db.execute(create)
        except sqlite3.Error as error:
            if db is not None:
                db.close()
            raise BadInput(f"the log '{path}' cannot be opened: {error}") from None
        return db

    @classmethod
    def reading(cls, path: Path, *, checked: bool = True, prefix: bool = False) -> RunLog:
        """Open a log to read it; raises :class:`~anyk.errors.BadInput` where it is not whole, unless not ``checked``.

        ``prefix``: what was written last may be lost, as a loss of power does.

        What is read is a copy, with what the log's write-ahead file holds: a folder need not be writable, is left as
        it is, and may be written by others meanwhile.
        """
        db, lost = copied(path)
        log = cls(path, db=db)
        log.lost = lost
        try:
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
        plain[18:20] = b"\x01\x01"  # no write-ahead log, which memory cannot have
        return bytes(plain)

    # ------------------------------------------------------------------------------------------- wholeness

    def check(self, *, prefix: bool = False) -> None:
        """Raise :class:`~anyk.errors.BadInput` where the log is not as it was written, or with ``prefix`` its rows."""
        for look in (self.check_file, self.check_seals):
            why = look()
            if why is None and self.lost and not prefix:
                why = LOST
            if why is not None:
                raise BadInput(f"the log '{self.path}' is damaged ({why}); {INSTEAD}")

    def check_file(self) -> str | None:
        """Return the defect of the SQLite file or its tables; None if there is none."""
        try:
            lines = [str(row[0]) for row in self._db.execute("PRAGMA quick_check(1)")]
            tables = dict(self._db.execute("SELECT name, sql FROM sqlite_master").fetchall())
        except (sqlite3.Error, OverflowError) as error:
            return str(error)
        if lines != ["ok"]:
            return " ".join(lines[0].split())
        return None if tables == SCHEMA else "its tables are not those of a run log"

    def check_seals(self) -> str | None:
        """Which rows are not as they were sealed; None if all are."""
        upto, seal = [0] * len(TABLES), ""
        try:
            for number, (after, written) in enumerate(self._db.execute("SELECT upto, seal FROM seals ORDER BY id"), 1):
                numbers = json.loads(after)
                upto, seal = self._sealed(upto, seal, numbers)
                if numbers != upto or seal != written:
                    return f"rows written together, number {number}, are not what was written"
            loose = self._sealed(upto, seal, None)[0] != upto
        except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            return str(error)
        self._upto, self.seal = upto, seal
        return "it has rows that were not sealed" if loose else None

    def _sealed(self, upto: list[int], seal: str, end: list[int] | None) -> tuple[list[int], str]:
        """The numbers of the last rows, and the seal, of the rows behind ``upto``, not beyond ``end``."""
        digest = hashlib.blake2b(seal.encode(), digest_size=16)
        new = upto[:]
        for place, name in enumerate(TABLES):
            last = None if end is None else end[place]
            if last == upto[place]:
                continue
            rows = self._db.execute(
                f"SELECT rowid, * FROM {name} WHERE rowid > ? AND rowid <= ? ORDER BY rowid",
                (upto[place], _LAST if last is None else last),
            ).fetchall()
            if rows:
                new[place] = rows[-1][0]
                digest.update(msgspec.msgpack.encode((name, rows)))
        return new, digest.hexdigest()

    def _seal_rows(self) -> None:
        """Seal what is written and not sealed yet, in the transaction that writes it."""
        upto, seal = self._sealed(self._upto, self.seal, None)
        if upto != self._upto:
            self._db.execute("INSERT INTO seals (upto, seal) VALUES (?, ?)", (json.dumps(upto), seal))
            self._upto, self.seal = upto, seal

    def __len__(self) -> int:
        """Rows written, of all tables."""
        return sum(int(self.rows(f"SELECT count(*) FROM {name}")[0][0]) for name in TABLES)

    def __bool__(self) -> bool:
        return True

    def has_seal(self, seal: str) -> bool:
        """Whether the log is at least as long as it was when it had this seal."""
        return not seal or bool(self.rows("SELECT 1 FROM seals WHERE seal = ?", (seal,)))

    def _unreadable(self, error: sqlite3.Error) -> BadInput:
        if not self._closing.alive:
            return BadInput("the run is closed; open it again: anyk.Run.open(path)")
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
            end = 1 + _IDS.get(kind, 3)
            row = (self.seq, plain[0], kind.__name__, *plain[1:end], *[None] * (4 - end), json.dumps(plain[end:]))
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

    def chunk(self, row: Ended) -> None:
        """Write a chunk that has ended."""
        self._rows["chunks"].append((*row, self.seq))
        self._waiting += 1

    def reuse(self, row: Reuse) -> None:
        """Write that a stored message was used again."""
        self._rows["reuses"].append((*row, self.seq))
        self._waiting += 1

    def update(self, row: Update) -> None:
        """Write a new version of a slot."""
        self._rows["updates"].append((*row, self.seq))
        self._waiting += 1

    def evaluation(self, row: Evaluation) -> None:
        """Loss and metric of a version."""
        self._rows["evaluations"].append(row)

    def start(self, time: float, present: Sequence[int], rounds: int, sizes: Sequence[int] = ()) -> None:
        """When the strategy was started, who was there, and the partitions' sizes; not an event that it is told."""
        self._rows["partitions"].extend(enumerate(sizes))
        self.seq += 1
        self._rows["events"].append((self.seq, time, START, None, None, None, json.dumps([list(present), rounds])))
        self._waiting += 1

    def checkpoint(self, seq: int, digest: str) -> None:
        """Write that there is a checkpoint of the event ``seq``."""
        self._rows["checkpoints"].append((seq, digest))
        self.flush()

    def note(self, time: float, kind: str, text: str) -> None:
        """Something a reader should know: a worker set aside, a stop and its reason."""
        self._rows["notes"].append((time, kind, text, self.seq))

    def tidy(self) -> None:
        """Write what has gathered, if it is time."""
        if self._waiting > _MOST or (self._waiting and clock.monotonic() - self._last > _EVERY):
            self.flush()

    def flush(self, *, lasting: bool = False) -> None:
        """Write what has gathered; raises :class:`~anyk.errors.RunFailed` when the disk does not take it.

        ``lasting``: also through a loss of power, for what must not fall behind a checkpoint.
        """
        before = self._upto, self.seal
        try:
            if lasting:
                self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("BEGIN")
            for name, rows in self._rows.items():
                if rows:
                    self._db.executemany(INSERT[name], rows)
            if self.path is not None:
                self._seal_rows()
            self._db.execute("COMMIT")
            if lasting:
                self._db.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error as error:
            self._upto, self.seal = before
            self._roll_back()
            raise RunFailed(
                f"the run log '{self.path}' cannot be written ({error}); free some space and resume the run"
            ) from None
        for rows in self._rows.values():
            rows.clear()
        self._waiting = 0
        self._last = clock.monotonic()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def close(self, *, write: bool = True) -> None:
        """Close the file, after writing what has gathered; safe to call twice."""
        try:
            if write and self._closing.alive:
                self.flush()
        finally:
            self._closing()

    def summarise(self, values: dict[str, Any]) -> None:
        """Write down what the whole run came to; what is said last of a name holds."""
        self._rows["summary"].extend((name, json.dumps(value), self.seq) for name, value in values.items())
        self.flush()

    def summary(self) -> dict[str, Any]:
        """Return the summary that :meth:`summarise` wrote."""
        return {name: json.loads(value) for name, value in self.rows("SELECT name, value FROM summary ORDER BY rowid")}

    def truncate(self, seq: int, seal: str = "") -> None:
        """Forget everything after event ``seq``, when the log had ``seal``: a resumed run goes on from there."""
        try:
            self._db.execute("BEGIN")
            for name in ("events", "chunks", "updates", "notes", "summary", "checkpoints", "reuses"):
                self._db.execute(f"DELETE FROM {name} WHERE seq > ?", (seq,))
            if not seq:  # it begins again
                self._db.execute("DELETE FROM partitions")
            row = self._db.execute("SELECT id, upto FROM seals WHERE seal = ?", (seal,)).fetchone()
            number, upto = (0, [0] * len(TABLES)) if row is None else (row[0], json.loads(row[1]))
            self._db.execute(  # what is sealed stays: a slot that has no update yet may have begun at any version
                "DELETE FROM evaluations WHERE rowid > ? AND version > "
                "(SELECT coalesce(max(version), 0) FROM updates u WHERE u.slot = evaluations.slot)",
                (upto[list(TABLES).index("evaluations")],),
            )
            self._db.execute("DELETE FROM seals WHERE id > ?", (number,))
            self._upto, self.seal = upto, seal if number else ""
            if self.path is not None:
                self._seal_rows()
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise RunFailed(f"the run log '{self.path}' cannot be written ({error})") from None
        self.totals = Totals()
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
            raise self._unreadable(error) from None

    def select(self, query: str, values: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Answer a query: the names of its columns, and the rows."""
        try:
            cursor = self._db.execute(query, values)
            return [column[0] for column in cursor.description], cursor.fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def table(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Answer a query, each row as a dictionary."""
        names, rows = self.select(query, values)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def evaluations(self) -> list[Evaluation]:
        """Every evaluation, in the order in which they were made."""
        return [Evaluation(*row) for row in self.rows("SELECT slot, version, time, loss, metric FROM evaluations")]

    def events(self, kinds: Sequence[str] = ()) -> Iterator[Event]:
        """The events (of some kinds), in the order in which the strategy was told."""
        which = f"kind IN ({','.join('?' * len(kinds))})" if kinds else f"kind != '{START}'"
        for time, name, *ids, info in self.rows(
            f"SELECT time, kind, worker, task, chunk, info FROM events WHERE {which} ORDER BY seq", tuple(kinds)
        ):
            kind = KINDS[name]
            yield kind(time, *ids[: _IDS.get(kind, 3)], *(json.loads(info) if info else ()))

    def started(self) -> tuple[float, tuple[int, ...]]:
        """When the strategy was started, in seconds on the run's clock, and which workers were there."""
        for time, info in self.rows("SELECT time, info FROM events WHERE kind = ?", (START,)):
            return float(time), tuple(json.loads(info)[0])
        raise BadInput(f"the log '{self.path}' does not say when its run started; the run ended before it")


LOST = "rows in its write-ahead file cannot be read"
_LAST = 2**63 - 1  # SQLite's last row number


def _from_bytes(data: bytes, path: Path | None) -> RunLog:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.deserialize(data)
    return RunLog(path, db=db)
