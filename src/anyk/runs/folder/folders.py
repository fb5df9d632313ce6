"""The folder of a run or a race, which has at most one writer and is never written through a link."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from anyk.base.errors import BadInput, as_bad_input
from anyk.base.regular_files import PART, unfinished_models
from anyk.runs.log.glances import is_unused

LOCK = "lock"
WRITTEN = "the run '{}' is being written by another process"
_BEFORE = {"predictor.json", "predictor.msgpack", "begin.safetensors"}  # files that may be written before the settings


def check_plain(*paths: Path) -> None:
    """Raise for the first of these paths that is a link, or no plain file or folder, before anything is written there.

    A folder may come from another person: its links may lead to any of the user's files, and a pipe blocks its writer.
    """
    for path in paths:
        if path.is_symlink():
            raise BadInput(f"'{path}' is a link, and nothing is written through one; put the file itself in its place")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadInput(f"'{path}' is no plain file; remove it")


def new_folder(folder: Path, *, settings: str) -> None:
    """Create a folder for a run or race; an empty one (but for a lock) may exist. ``settings``: its settings file.

    What a process that was killed at its start has left there is removed.
    """
    if unstarted(folder):
        with locked(folder):
            if unstarted(folder):  # and nobody else has started there in the meantime
                for file in folder.iterdir():
                    if file.name != LOCK:
                        file.unlink()
    if folder.exists() and (not folder.is_dir() or any(one.name != LOCK for one in folder.iterdir())):
        hint = f"choose another, or go on with it: anyk resume {folder}"
        if not (folder / settings).exists():
            hint = "choose another, or an empty one"
        raise BadInput(f"'{folder}' exists; {hint}")
    with as_bad_input(f"the folder '{folder}' cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)


def unstarted(folder: Path) -> bool:
    """Return whether a folder has only what a process that was killed at its start may leave, and no event of a run."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    files = [file for file in folder.iterdir() if file.name != LOCK]
    log = folder / "log.sqlite"
    if not files or any(file.is_symlink() or not file.is_file() or not _early(file.name) for file in files):
        return False
    return is_unused(log)


def _early(name: str) -> bool:
    """Return whether a file is one of those that are written before the settings."""
    return name.startswith(("log.sqlite", ".tmp")) or name in _BEFORE or name.endswith(PART)


_held: set[int] = set()  # descriptors of locks


def _let_go() -> None:
    """Let a forked process not keep the locks of the process that it was forked from, which may end before it."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Lock a run folder against other writers; raise if another process has locked it, or if it has links.

    The folder itself is locked as well as a file in it, as anybody who may write to the folder could replace the file.
    What killed writers have left of unfinished files is removed.
    """
    if folder is None:
        yield
        return
    check_plain(*folder.iterdir())
    lock: IO[str]
    with as_bad_input(f"the run folder '{folder}' cannot be written"):
        lock = os.fdopen(os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), "w")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    descriptors = {lock.fileno(), descriptor}
    _held.update(descriptors)
    try:
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with _where_folders_can_be_locked():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"{WRITTEN.format(folder)}; wait for it or stop it") from None
            for file in unfinished_models(folder):
                file.unlink(missing_ok=True)
            yield
    finally:
        _held.difference_update(descriptors)
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return whether another process writes the run of a folder, or one of the runs in it."""
    for candidate in {folder, *(lock.parent for lock in folder.glob(f"*/{LOCK}"))} if folder.is_dir() else ():
        try:
            with locked(candidate):
                pass
        except BadInput as error:
            if str(error).startswith(WRITTEN.format(candidate)):
                return True
    return False


def tidy(folder: Path) -> None:
    """Remove unfinished files of models and checkpoints, unless a process writes them or the folder is read-only."""
    with contextlib.suppress(BadInput, OSError):
        if unfinished_models(folder):
            with locked(folder):
                pass


@contextlib.contextmanager
def _where_folders_can_be_locked() -> Iterator[None]:
    """Ignore that a file system has no locks of folders, as some of other machines."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError:
        pass


@contextlib.contextmanager
def empty_if_it_fails(folder: Path | None) -> Iterator[None]:
    """Remove a run's new and locked folder if setting it up fails or is interrupted."""
    try:
        yield
    except BaseException:
        empty(folder)
        raise


def empty(folder: Path | None) -> None:
    """Remove the folder of a run that has not started."""
    if folder is not None:
        for file in folder.iterdir():
            file.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()
