"""Copies of a log and its write-ahead file for reading, also while another process writes the log."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from anyk.base.errors import BadInput, Surroundings, hindered
from anyk.base.regular_files import LockedFolder, open_plain

_ATTEMPTS = 10  # attempts to copy a log that is being written
_TICK = 0.1  # seconds within which a file may change while its time stays the same
INSTEAD = "the model may still be intact: start a new run from this one, anyk train --from"
COPIES = "anyk-copy-"  # the start of the names of folders with copies


class LogCopy:
    """A copy of a log and its write-ahead file in another folder, which :meth:`refresh` brings up to date."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = folder / path.name
        self._origin = path
        # what :func:`log_state` said of the two files when they were copied; None: copy again
        self._log: tuple[object, ...] | None = None
        self._ahead: tuple[int, int] | None = None
        self.written = 0.0  # time of the last change of either file, in seconds since the epoch

    def refresh(self) -> bool:
        """Copy changed files and return whether there are any; raise OSError if they cannot be read."""
        if self._ahead is not None and log_state(self._origin) == (self._log, self._ahead):
            return False
        for _ in range(_ATTEMPTS):
            log, ahead = log_state(self._origin)
            if log != self._log:
                _copy(self._origin, self.path)
            self._log = log
            _ahead_of(self.path).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                _copy(_ahead_of(self._origin), _ahead_of(self.path))
            if log_state(self._origin)[0] == log:
                break
            self._log = None  # meanwhile rows were moved from one file to the other: copy both again
        _, changed = ahead
        self.written = max(self._origin.stat().st_mtime, changed / 1e9)
        self._ahead = ahead if time.time() - self.written > _TICK else None  # a later change may have the same time
        return True


def copied(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Return a connection to a copy of a log, and whether rows of its write-ahead file could not be read.

    The copy disappears when the connection is closed.
    """
    try:
        with open_plain(path) as file:
            if file.read(16) != b"SQLite format 3\0":
                raise BadInput(f"the log '{path}' is damaged: it is not an SQLite file")
        with place_for_copies() as folder, contextlib.ExitStack() as closing:
            copy = LogCopy(path, Path(folder))
            copy.refresh()
            db = sqlite3.connect(copy.path, isolation_level=None, check_same_thread=False)
            closing.callback(db.close)
            db.execute("PRAGMA trusted_schema=OFF")
            frames = _frames(_ahead_of(copy.path))
            pages = max(0, db.execute("PRAGMA wal_checkpoint").fetchone()[1])
            db.execute("PRAGMA journal_mode=DELETE").fetchall()
            db.execute("SELECT count(*) FROM sqlite_master").fetchall()
            db.execute("PRAGMA query_only=ON")
            closing.pop_all()
            return db, frames is None or frames > pages
    except sqlite3.Error as error:
        if hindered(error):  # the copy could be written, but not changed
            raise _no_copy(path.name, error) from None
        raise BadInput(f"the log '{path}' is damaged ({error}); {INSTEAD}") from None
    except FileNotFoundError:
        raise BadInput(f"the run folder '{path.parent}' has no {path.name}") from None
    except OSError as error:
        kind = Surroundings if hindered(error) else BadInput
        raise kind(f"the log '{path}' cannot be read ({error.strerror})") from None


def place_for_copies() -> LockedFolder:
    """Return a new temporary folder; raise :class:`~anyk.base.errors.Surroundings` if none can be made."""
    try:
        return LockedFolder(COPIES)
    except OSError as error:
        raise _no_copy("log", error) from None


def _no_copy(name: str, error: Exception) -> Surroundings:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    directory = os.environ.get("TMPDIR") or tempfile.tempdir or "the folder for temporary files"
    return Surroundings(
        f"the {name} is read from a copy, which cannot be written to {directory} ({reason}); make room there, or name "
        "another folder: TMPDIR=… anyk …"
    )


def _copy(source: Path, target: Path) -> None:
    with open_plain(source) as old:
        try:
            with target.open("wb") as new:
                if os.fstat(old.fileno()).st_size > shutil.disk_usage(target.parent).free:
                    raise OSError(errno.ENOSPC, "there is no room for it")
                while block := old.read(1 << 20):
                    new.write(block)
        except OSError as error:
            raise _no_copy(source.name, error) from None


def _ahead_of(path: Path) -> Path:
    """Return the path of a log's write-ahead file."""
    return path.with_name(f"{path.name}-wal")


def _frames(ahead: Path) -> int | None:
    """Return the number of pages that a write-ahead file marks as committed; None if its start is damaged.

    Each page repeats the two salts of the file's header. When SQLite starts the file anew, it draws new salts and
    overwrites page by page, so that pages with other salts are older ones. SQLite ignores a page with a wrong checksum
    and all after it.
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
            first_salt, second_salt = page[8:12] == head[16:20], page[12:16] == head[20:24]
            if first_salt and second_salt and any(page[4:8]):
                committed = number
            elif number == 1 and first_salt != second_salt:  # of an older page both differ
                return None
            file.seek(size, 1)
    return committed


def log_state(path: Path) -> tuple[tuple[object, ...], tuple[int, int]]:
    """Return two values that change with a log; raise OSError if there is no log.

    The first changes when SQLite moves rows from the write-ahead file to the log, or restarts that file. The second are
    size and time of the write-ahead file, in bytes and nanoseconds; zeros if there is none.
    """
    status = path.stat()
    head, size_and_time = b"", (0, 0)
    with contextlib.suppress(FileNotFoundError), open_plain(_ahead_of(path)) as file:
        ahead = os.fstat(file.fileno())
        head, size_and_time = file.read(32), (ahead.st_size, ahead.st_mtime_ns)
    return (status.st_mtime_ns, status.st_size, head), size_and_time
