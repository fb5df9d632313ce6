"""Seals of a log: digests of the rows that were written together, each of which includes the one before."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from typing import NamedTuple

import msgspec

from anyk.runs.log.schema import TABLES

_LAST = 2**63 - 1  # SQLite's last row number


class Sealed(NamedTuple):
    """The last sealed row of each table, and the seal."""

    upto: list[int]
    seal: str


_NOTHING = Sealed([0] * len(TABLES), "")


class Seals:
    """The seals in a log's database; ``newest``: the last one, of all rows so far."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.newest = _NOTHING

    def add(self) -> None:
        """Seal new rows, in the transaction that writes them."""
        sealed = self._following(self.newest)
        if sealed.upto != self.newest.upto:
            self._db.execute("INSERT INTO seals (upto, seal) VALUES (?, ?)", (json.dumps(sealed.upto), sealed.seal))
            self.newest = sealed

    def defect(self) -> str | None:
        """Return a sentence on rows that differ from their seals; None if there are none."""
        sealed = _NOTHING
        try:
            for number, (after, written) in enumerate(self._db.execute("SELECT upto, seal FROM seals ORDER BY id"), 1):
                numbers = json.loads(after)
                sealed = self._following(sealed, numbers)
                if sealed != (numbers, written):
                    return f"rows written together, number {number}, are not what was written"
            unsealed = self._following(sealed).upto != sealed.upto
        except (sqlite3.Error, ValueError, TypeError, LookupError, OverflowError) as error:
            return str(error)
        self.newest = sealed
        return "it has rows that were not sealed" if unsealed else None

    def number(self, seal: str) -> tuple[int, Sealed]:
        """Return the number of a seal, from 1, and what it seals; 0 and nothing if there is no such seal."""
        row = self._db.execute("SELECT id, upto FROM seals WHERE seal = ?", (seal,)).fetchone()
        return (0, _NOTHING) if row is None else (row[0], Sealed(json.loads(row[1]), seal))

    def _following(self, before: Sealed, end: list[int] | None = None) -> Sealed:
        """Return the seal of the rows of each table after those sealed ``before``, at most those up to ``end``."""
        digest = hashlib.blake2b(before.seal.encode(), digest_size=16)
        upto = before.upto[:]
        for index, name in enumerate(TABLES):
            last = None if end is None else end[index]
            if last == upto[index]:
                continue
            rows = self._db.execute(
                f"SELECT rowid, * FROM {name} WHERE rowid > ? AND rowid <= ? ORDER BY rowid",
                (upto[index], _LAST if last is None else last),
            ).fetchall()
            if rows:
                upto[index] = rows[-1][0]
                digest.update(msgspec.msgpack.encode((name, rows)))
        return Sealed(upto, digest.hexdigest())
