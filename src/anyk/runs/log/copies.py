"""A copy of a log to read: what others write meanwhile, and its write-ahead file, are seen to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from anyk.errors import BadInput
from anyk.files import open_plain

_DIRECT = 10  # attempts to copy a log that is being written
_TICK = 0.1  # seconds within which a file may change without its time showing it
INSTEAD = "the model may still be whole: start a new run from this one, anyk train --from"


_PREFIX = "anyk-copy-"


class CopyFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder that its process keeps locked, so that :func:`remove_abandoned` leaves it alone."""

    def __init__(self) -> None:
        self._unlock: Callable[[], object] = int  # nothing to do
        while True:
            super().__init__(prefix=_PREFIX, ignore_cleanup_errors=True)
            try:
                self._unlock = weakref.finalize(self, os.close, _locked(Path(self.name)))
            except (FileNotFoundError, BlockingIOError):  # it is being removed
                continue
            except OSError:  # a file system without locks: nobody else can lock it, either
                return
            if Path(self.name).is_dir():
                return

    def cleanup(self) -> None:
        """Remove the folder; safe to call twice."""
        super().cleanup()
        self._unlock()


def remove_abandoned() -> None:
    """Remove the copies that processes of this user have left behind, because they were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = _locked(folder)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _locked(folder: Path) -> int:
    """Return a descriptor that locks a folder until it is closed; raises OSError if another process has the lock."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


class LogCopy:
    """A copy of a log, and of its write-ahead file, in a folder of one's own, brought up to date by :meth:`refresh`."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = folder / path.name
        self._origin, self._origin_ahead = path, _ahead(path)
        self._stand: tuple[object, ...] | None = None  # of the log that was copied
        self._seen: tuple[int, int] | None = None  # of its write-ahead file
        self.written = 0.0  # when either was last written, in seconds since the epoch

    @staticmethod
    def stand(path: Path) -> tuple[object, ...]:
        """Return a value that changes whenever a log is written to; raise OSError if there is no log."""
        return _stand(path, _ahead(path)), _size(_ahead(path))

    def refresh(self) -> bool:
        """Copy what has changed, and say whether anything has; raises OSError where it cannot be read."""
        if self._seen is not None and self.stand(self._origin) == (self._stand, self._seen):
            return False
        for _ in range(_DIRECT):  # until nobody has moved rows from one file to the other meanwhile
            stand, size = _stand(self._origin, self._origin_ahead), _size(self._origin_ahead)
            if stand != self._stand:
                _copy(self._origin, self.path)
            self._stand = stand
            _ahead(self.path).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                _copy(self._origin_ahead, _ahead(self.path))
            if _stand(self._origin, self._origin_ahead) == stand:
                break
            self._stand = None
        self.written = max(self._origin.stat().st_mtime, size[1] / 1e9)
        self._seen = size if time.time() - self.written > _TICK else None  # what comes now may bear the same time
        return True


def copied(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to a copy of a log and its write-ahead file, and whether rows of that file could not be read.

    The copy is gone when the connection is closed.
    """
    db: sqlite3.Connection | None = None
    lost = False
    try:
        with open_plain(path) as file:
            if file.read(16) != b"SQLite format 3\0":
                raise BadInput(f"the log '{path}' is damaged: it is not an SQLite file")
        with CopyFolder() as folder:
            copy = LogCopy(path, Path(folder))
            copy.refresh()
            db = sqlite3.connect(copy.path, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA trusted_schema=OFF")
            frames = _frames(_ahead(copy.path))
            pages = max(0, db.execute("PRAGMA wal_checkpoint").fetchone()[1])
            lost = frames is None or frames > pages
            db.execute("PRAGMA journal_mode=DELETE").fetchall()
            db.execute("SELECT count(*) FROM sqlite_master").fetchall()
            db.execute("PRAGMA query_only=ON")
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise BadInput(f"the log '{path}' is damaged ({error}); {INSTEAD}") from None
    except FileNotFoundError:
        raise BadInput(f"the run folder '{path.parent}' has no {path.name}") from None
    except OSError as error:
        if db is not None:
            db.close()
        raise BadInput(f"the log '{path}' cannot be copied to be read ({error.strerror})") from None
    return db, lost


def _copy(source: Path, target: Path) -> None:
    with open_plain(source) as old, target.open("wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)


def _ahead(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size(ahead: Path) -> tuple[int, int]:
    """Size and time of a write-ahead file; zeros where there is none."""
    try:
        status = ahead.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


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
    """Return a value that changes when SQLite moves rows from the write-ahead file to the log, or restarts it."""
    status = path.stat()
    head = b""
    with contextlib.suppress(FileNotFoundError), open_plain(ahead) as file:
        head = file.read(32)
    return status.st_mtime_ns, status.st_size, head
