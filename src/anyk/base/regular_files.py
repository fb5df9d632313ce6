"""Regular files in folders that others can write to: read without following links or waiting, replaced atomically.

And temporary folders that later processes remove if the process that made them was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

PART = ".part"  # the end of the names of files that are being written
_UNFINISHED = re.compile(rf".*\.safetensors{re.escape(PART)}|\.tmp\w{{6}}")
_MOST = 1 << 26  # bytes of the largest file that is read as a whole


def open_plain(path: str | Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading; ``follow``: also through a link.

    Raises OSError for anything else: a link may lead anywhere, and to open a pipe or read a device may never return.
    """
    _check_regular(Path(path).stat(follow_symlinks=follow).st_mode)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _check_regular(os.fstat(file.fileno()).st_mode)  # it may have been replaced in the meantime
    except OSError:
        file.close()
        raise
    return file


def _check_regular(mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "it is a link; put the file itself in its place")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def read_plain(path: str | Path, *, follow: bool = False) -> bytes:
    """Return the contents of a file of settings or code, at most 64 MiB; see :func:`open_plain`."""
    with open_plain(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > _MOST:
            raise OSError(errno.EFBIG, f"it is larger than {_MOST >> 20} MiB")
        return file.read()


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces ``target`` at the end.

    No file exists at that path yet, so creating it by mode ``x`` or by renaming follows no link. If writing fails, the
    new file is removed and ``target`` is unchanged; after a loss of power the old or the new file is there.
    """
    unfinished = target.with_name(f"{target.name}{PART}")
    unfinished.unlink(missing_ok=True)
    mode = _new_mode(unfinished)
    try:
        yield unfinished
        _set_mode(unfinished, mode)
        synchronise(unfinished)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    synchronise(target.parent)


def _new_mode(path: Path) -> int:
    """Return the permissions of a new file at a path where there is none, which it leaves free.

    Python cannot read the umask without changing it, for other threads as well.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        path.unlink()


def _set_mode(path: Path, mode: int) -> None:
    """Give a file its permissions, as libraries write files for their owner only."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def unfinished_models(folder: Path) -> list[Path]:
    """Return the unfinished files of models and checkpoints in a folder: those that killed processes have left.

    If a process is writing to the folder, they are that process's. Safetensors writes under a name of its own.
    """
    names = (file for file in folder.iterdir() if _UNFINISHED.fullmatch(file.name))
    return [file for file in names if stat.S_ISREG(file.lstat().st_mode)]


def synchronise(path: Path) -> None:
    """Write a file's contents, or the names in a folder, to the disk, so that a loss of power does not undo them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LockedFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder that its process keeps locked, so that :func:`remove_abandoned` leaves it alone.

    ``prefix``: the start of its name. ``parent``: the folder that contains it (default: that of temporary files).
    """

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        self._unlock: Callable[[], object] = int  # does nothing
        while True:
            super().__init__(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
            try:
                self._unlock = weakref.finalize(self, os.close, _locked(Path(self.name)))
            except (FileNotFoundError, BlockingIOError):  # another process removes it
                continue
            except OSError:  # a file system without locks: other processes cannot lock it, either
                return
            if Path(self.name).is_dir():
                return

    def cleanup(self) -> None:
        """Remove the folder; safe to call twice."""
        super().cleanup()
        self._unlock()


def remove_abandoned(prefix: str, parent: str | None = None) -> None:
    """Remove the folders of :class:`LockedFolder` that killed processes of this user have left."""
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
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
