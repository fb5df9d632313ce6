"""A copy of a log to read: what others write meanwhile, and its write-ahead file, are seen to."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path

from anyk.errors import BadInput

_DIRECT = 10  # attempts to copy a log that is being written
INSTEAD = "the model may still be whole: start a new run from this one, anyk train --from"


def copied(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to a copy of a log and its write-ahead file, and whether rows of that file could not be read.

    The copy is gone when the connection is closed.
    """
    ahead = path.with_name(f"{path.name}-wal")
    db: sqlite3.Connection | None = None
    lost = False
    try:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise BadInput(f"the log '{path}' is damaged: it is not an SQLite file")
        with tempfile.TemporaryDirectory(prefix="anyk-log-") as folder:
            copy = Path(folder) / path.name
            for _ in range(_DIRECT):  # until nobody has moved rows from one file to the other meanwhile
                before = _stand(path, ahead)
                shutil.copyfile(path, copy)
                copy.with_name(ahead.name).unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(ahead, copy.with_name(ahead.name))
                if _stand(path, ahead) == before:
                    break
            db = sqlite3.connect(copy, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA trusted_schema=OFF")
            frames = _frames(copy.with_name(ahead.name))
            taken = max(0, db.execute("PRAGMA wal_checkpoint").fetchone()[1])
            lost = frames is None or frames > taken
            db.execute("PRAGMA journal_mode=DELETE").fetchall()
            db.execute("SELECT count(*) FROM sqlite_master").fetchall()
            db.execute("PRAGMA query_only=ON")
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise BadInput(f"the log '{path}' is damaged ({error}); {INSTEAD}") from None
    except OSError as error:
        if db is not None:
            db.close()
        raise BadInput(f"the log '{path}' cannot be copied to be read ({error.strerror})") from None
    return db, lost


def _frames(ahead: Path) -> int | None:
    """Pages that a write-ahead file says were committed, whatever SQLite can read; None where its start is damaged.

    SQLite passes over pages whose checksum is wrong, and over all that come after. Each has the two salts of the
    file's header; a file that is begun anew has new ones, and older pages behind.
    """
    if not ahead.is_file():
        return 0
    committed = 0
    with ahead.open("rb") as file:
        head = file.read(32)
        size = int.from_bytes(head[8:12], "big")
        if len(head) < 32:
            return 0
        if head[:3] != b"\x37\x7f\x06" or not 512 <= size <= 65536:
            return None
        number = 0
        while len(page := file.read(24)) == 24:
            number += 1
            if page[8:16] == head[16:24] and any(page[4:8]):
                committed = number
            elif number == 1 and (page[8:12] == head[16:20]) != (page[12:16] == head[20:24]):
                return None
            file.seek(size, 1)
    return committed


def _stand(path: Path, ahead: Path) -> tuple[object, ...]:
    """What changes when SQLite moves rows from the write-ahead file to the log, or begins that file anew."""
    found = path.stat()
    head = b""
    with contextlib.suppress(FileNotFoundError), ahead.open("rb") as file:
        head = file.read(32)
    return found.st_mtime_ns, found.st_size, head
