"""Writing a run log while a run is driven.

Rows are only added. They are gathered in memory and written together, at least every 0.15 s while a run is driven. Rows
that are written together are sealed with a digest of these rows and of the seal before. So a flipped bit is found when
the log is read, and a checkpoint, which names the newest seal, reveals whether rows are missing at the end of the log.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time as clock
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from anyk.base.errors import BadInput, RunFailed
from anyk.base.plain import ByName
from anyk.protocol import Chunk, Event, Reply
from anyk.runs.log.runlog import RunLog
from anyk.runs.log.schema import IDS, INSERT, SCHEMA, START, TABLES, Ended, Evaluation, Reuse, Totals, Update

_EVERY = 0.15  # seconds between commits
_CACHED_CHUNKS, _CACHED_PASSING = 20_000, 1_000
_LISTS = ("partitions", "coefficients", "mix")  # of a chunk, stored as JSON
_MOST = 5000  # gathered events and chunks that are written before that time


class LogWriter(RunLog):
    """The log of a run that is being driven, which is written, too; without a path it is in memory."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path, self._create(path))
        self.seq = 0  # events so far
        self._works: dict[Chunk, int] = {}
        self._next_work = 0
        self._passing: deque[Chunk] = deque()
        self._by_identity: dict[int, tuple[int, Chunk]] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self._last = clock.monotonic()

    @staticmethod
    def _create(path: Path | None) -> sqlite3.Connection:
        """Return the database of a log, with its tables; raise :class:`~anyk.BadInput` if it cannot be opened."""
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

    def summarise(self, values: ByName) -> None:
        """Write values of the summary; later values of a name replace earlier ones."""
        self._rows["summary"].extend((name, json.dumps(value), self.seq) for name, value in values.items())
        self.flush()

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


def _passing(chunk: Chunk) -> bool:
    """Return whether a chunk is unlikely to recur, so that not all such chunks are cached."""
    return chunk.steps > 0 or chunk.state >= 0
