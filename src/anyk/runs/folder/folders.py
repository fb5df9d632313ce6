"""The folder of a run or a race, which has at most one writer and is never written through a link."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from anyk.errors import BadInput, as_bad_input

LOCK = "lock"


def check_plain(*paths: Path) -> None:
    """Raise for the first of these paths that is a link, or no plain file or folder, before anything is written there.

    A folder may come from another person: its links may lead to any of the user's files, and a pipe blocks its writer.
    """
    for path in paths:
        if path.is_symlink():
            raise BadInput(f"'{path}' is a link, and nothing is written through one; put the file itself in its place")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadInput(f"'{path}' is no plain file; remove it")


def new_folder(folder: Path, *, known: str) -> None:
    """Create a folder for a run or race; an empty one (but for a lock) may exist. ``known``: its settings file."""
    if folder.exists() and (not folder.is_dir() or any(one.name != LOCK for one in folder.iterdir())):
        hint = f"choose another, or go on with it: anyk resume {folder}"
        if not (folder / known).exists():
            hint = "choose another, or an empty one"
        raise BadInput(f"'{folder}' exists; {hint}")
    with as_bad_input(f"the folder '{folder}' cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Lock a run folder against other writers; raise if another process has locked it, or if it has links."""
    if folder is None:
        yield
        return
    check_plain(*folder.iterdir())
    lock: IO[str]
    with as_bad_input(f"the run folder '{folder}' cannot be written"):
        lock = os.fdopen(os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), "w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"the run '{folder}' is being written by another process; wait for it or stop it") from None
        yield


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
