"""What a disk holds after a loss of power: what was made durable, and anything that may have been written since."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import safetensors.numpy

from anyk.runs.log import log_writer

_LOG, _AHEAD, _SHARED = "log.sqlite", "log.sqlite-wal", "log.sqlite-shm"
_LAST = 100  # bytes of which the last page of a commit lacks some


class Image(NamedTuple):
    """The files of a folder after a loss of power."""

    when: str  # the call after which the power was lost, and what had been written without being made durable
    files: dict[str, bytes]

    def write(self, folder: Path) -> None:
        """Write the files to a new folder."""
        folder.mkdir()
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


class _Log(NamedTuple):
    """The files of a log."""

    main: bytes
    ahead: bytes
    cut: int | None = None  # bytes of ``ahead`` that are there; None: all

    def files(self) -> dict[str, bytes]:
        return {_LOG: self.main} | ({_AHEAD: self.ahead[: self.cut]} if self.ahead else {})


class Disk:
    """Observes what a run does to its folder; :meth:`left` is what a loss of power now may leave.

    A file's contents are durable once it is synchronised, names once their folder is. Names may also be durable sooner,
    in the order of the calls. A file that was never synchronised is empty. Of the log all rows up to the last lasting
    commit are durable, and any later commits may be, the last one by half. ``pause`` is called, with what is being
    done, before and after each call that changes what is on the disk.
    """

    def __init__(self, folder: Path, pause: Callable[[str], None] = lambda _: None) -> None:
        self.folder, self.pause = folder, pause
        self._data: dict[Any, bytes] = {}  # synchronised contents, by inode
        self._names: dict[str, Any] = {}  # inodes of synchronised names
        self._logs: list[_Log] = []  # the log at its last lasting commit, and at every later one
        self.torn: list[_Log] = []  # a commit that is being written, by half

    def _listing(self) -> dict[str, int]:
        if not self.folder.is_dir():
            return {}
        return {entry.name: entry.inode() for entry in os.scandir(self.folder) if not entry.name.startswith(_LOG)}

    def _read_log(self) -> _Log:
        ahead = self.folder / _AHEAD
        return _Log((self.folder / _LOG).read_bytes(), ahead.read_bytes() if ahead.exists() else b"")

    def left(self, when: str = "") -> list[Image]:
        """Return what may be left if the power is lost now; the first has nothing but what is durable."""
        present, images = self._listing(), []
        logs = [log.files() for log in (*self._logs, *self.torn)] or [{}]
        for names, early in ((self._names, ""), (present, ", names written")):
            files = {name: self._data.get(inode, b"") for name, inode in names.items()}
            for number, log in enumerate(logs):
                more = f", {number} commits written" if number else ""
                images.append(Image(f"{when}{early}{more}", files | log))
        return images

    def written(self) -> list[Image]:
        """Return what may be left if the writing process dies now: what is there, and a commit that is there by half."""
        files = {
            entry.name: Path(entry).read_bytes() for entry in os.scandir(self.folder) if entry.name not in (_SHARED,)
        }
        return [Image("written", files), *(Image("a commit by half", files | log.files()) for log in self.torn)]

    def move(self, folder: Path) -> None:
        """Observe a folder to which a writer's death has left all files; what is durable stays so."""
        old, new = self._listing(), {entry.name: entry.inode() for entry in os.scandir(folder)}
        moved = {inode: new[name] for name, inode in old.items()}
        self._data = {moved.get(inode, ("gone", inode)): data for inode, data in self._data.items()}
        self._names = {name: moved.get(inode, ("gone", inode)) for name, inode in self._names.items()}
        self.folder, self.torn = folder, []

    def spoil(self, name: str) -> None:
        """Let a loss of power leave the present contents of a synchronised file, which have been damaged."""
        inode = self._listing().get(name)
        if inode in self._data:
            self._data[inode] = (self.folder / name).read_bytes()

    def restart(self, folder: Path) -> None:
        """Observe a folder that was read from the disk after a loss of power: all of it is durable."""
        self.folder, self.torn = folder, []
        self._names = self._listing()
        self._data = {inode: (folder / name).read_bytes() for name, inode in self._names.items()}
        self._logs = [self._read_log()] if (folder / _LOG).exists() else []

    def _commit(self, what: str, *, lasting: bool) -> None:
        before, log = self._logs[-1].ahead if self._logs else b"", self._read_log()
        if len(log.ahead) > len(before):
            cuts = (len(before) + len(log.ahead)) // 2, len(log.ahead) - _LAST
            self.torn = [log._replace(cut=cut) for cut in cuts]
        self._logs.append(log)
        self.pause(f"half of {what}")
        self.torn = []
        if lasting:
            self._logs = [log]
        self.pause(what)

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Observe the folder while the context lasts."""
        disk, fsync, replace = self, os.fsync, Path.replace

        def synchronise(number: int) -> None:
            there = os.fstat(number)
            ours = stat.S_ISDIR(there.st_mode) or there.st_ino in self._listing().values()
            if ours:
                self.pause("before synchronising")
            fsync(number)
            if stat.S_ISDIR(there.st_mode):
                self._names = self._listing()
                kept = self._names.values()
                self._data = {inode: data for inode, data in self._data.items() if inode in kept}
            elif ours:
                self._data[there.st_ino] = os.pread(number, there.st_size, 0)
            if ours:
                self.pause(f"synchronising {'the folder' if stat.S_ISDIR(there.st_mode) else 'a file'}")

        def rename(path: Path, target: Path) -> Path:
            if path.parent != self.folder:
                return replace(path, target)
            self.pause(f"before renaming {path.name}")
            renamed = replace(path, target)
            self.pause(f"renaming {path.name}")
            return renamed

        def save_file(tensors: Any, filename: Path, metadata: Any = None) -> None:
            data = safetensors.numpy.save(tensors, metadata)
            with open(filename, "wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                self.pause("half of a checkpoint")
                file.write(data[len(data) // 2 :])
            self.pause("a checkpoint")

        class Connection(sqlite3.Connection):
            def __init__(self, database: Path | str, **more: Any) -> None:
                super().__init__(database, **more)
                self._lasting, self._folder = True, None if database == ":memory:" else Path(database).parent

            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if self._folder is None:
                    return super().execute(sql, *values)
                if sql == "COMMIT":
                    disk.pause("before a commit")
                made = super().execute(sql, *values)
                if sql.startswith("PRAGMA journal_mode"):
                    made.fetchall()  # carried out when its row has been read
                if sql.startswith("PRAGMA synchronous="):
                    self._lasting = sql.endswith("FULL")
                elif sql == "COMMIT" or (sql.startswith(("CREATE", "PRAGMA journal_mode")) and not self.in_transaction):
                    kind = (
                        "the log's creation" if sql != "COMMIT" else "a lasting commit" if self._lasting else "a commit"
                    )
                    disk._commit(kind, lasting=self._lasting)
                return made

            def close(self) -> None:
                super().close()
                if self._folder is not None and self._folder == disk.folder and (self._folder / _LOG).exists():
                    disk._logs = [disk._read_log()]

        with (
            mock.patch.object(os, "fsync", synchronise),
            mock.patch.object(Path, "replace", rename),
            mock.patch.object(safetensors.numpy, "save_file", save_file),
            mock.patch.object(
                log_writer,
                "sqlite3",
                SimpleNamespace(
                    connect=lambda path, **more: sqlite3.connect(path, factory=Connection, **more),
                    Connection=sqlite3.Connection,
                    Error=sqlite3.Error,
                ),
            ),
        ):
            yield
