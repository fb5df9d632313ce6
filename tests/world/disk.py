"""What a disk holds after a loss of power: what was made durable, and anything that may have been written since."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from anyk.runs.log.runlog import RunLog

_LOG = "log.sqlite"


class Image(NamedTuple):
    """The files of a folder after a loss of power."""

    when: str  # the call after which the power was lost, and what had been written without being made durable
    files: dict[str, bytes]

    def write(self, folder: Path) -> None:
        """Write the files to a new folder."""
        folder.mkdir()
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


class Disk:
    """Observes what a run does to its folder, and records what a loss of power after each call may leave.

    A file's contents are durable once it is synchronised, names once their folder is. Names may also be durable sooner,
    in the order of the calls. A file that was never synchronised is empty. Of the log all rows up to the last lasting
    commit are durable, and any later commits may be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data: dict[int, bytes] = {}  # synchronised contents, by inode
        self._names: dict[str, int] = {}  # synchronised names
        self._logs: list[bytes] = []  # the log at its last lasting commit, and at every later one
        self.images: list[Image] = []

    def _listing(self) -> dict[str, int]:
        if not self._folder.is_dir():
            return {}
        return {entry.name: entry.inode() for entry in os.scandir(self._folder) if not entry.name.startswith(_LOG)}

    def _record(self, when: str) -> None:
        present = self._listing()
        kept = {*present.values(), *self._names.values()}
        self._data = {inode: data for inode, data in self._data.items() if inode in kept}
        for names, early in ((self._names, ""), (present, ", names written")):
            files = {name: self._data.get(inode, b"") for name, inode in names.items()}
            for number, log in enumerate(self._logs):
                if number in (0, len(self._logs) - 1):
                    more = f", {number} commits written" if number else ""
                    self.images.append(Image(f"{when}{early}{more}", files | {_LOG: log}))

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Observe the folder while the context lasts."""
        fsync, replace, flush = os.fsync, Path.replace, RunLog.flush

        def synchronise(number: int) -> None:
            fsync(number)
            there = os.fstat(number)
            if stat.S_ISDIR(there.st_mode):
                self._names = self._listing()
                self._record("synchronising the folder")
            elif there.st_ino in self._listing().values():
                self._data[there.st_ino] = os.pread(number, there.st_size, 0)
                self._record("synchronising a file")

        def rename(path: Path, target: Path) -> Path:
            renamed = replace(path, target)
            if path.parent == self._folder:
                self._record(f"renaming {path.name}")
            return renamed

        def commit(log: RunLog, *, lasting: bool = False) -> None:
            flush(log, lasting=lasting)
            if log.path is not None:
                self._logs = [log._bytes()] if lasting else [*self._logs, log._bytes()]
                self._record("a lasting commit" if lasting else "a commit")

        with (
            mock.patch.object(os, "fsync", synchronise),
            mock.patch.object(Path, "replace", rename),
            mock.patch.object(RunLog, "flush", commit),
        ):
            yield
