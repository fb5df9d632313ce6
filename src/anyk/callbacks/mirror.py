"""Copy a run's log to a folder that other machines can read."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from pathlib import Path

from msgspec.structs import replace

from anyk.base.checks import Positive, typed
from anyk.base.errors import BadInput, RunFailed, as_bad_input
from anyk.base.regular_files import LockedFolder, replacing
from anyk.runs.api import COPIES, LOG_FILE, RUN_FILE, check_plain, read_config, write_sealed
from anyk.runs.callbacks import Callback, EndInfo, RunInfo

_FAILURES = (OSError, sqlite3.Error, BadInput)
_SHARE = 0.02  # share of the time that copying may take


@typed
class Mirror(Callback):
    """Copies the run's log and settings into ``folder`` at regular times, for readers on other machines.

    SQLite's write-ahead log can be shared by the processes of one machine only, so a log on a network file system
    must not be read from elsewhere while it is written. The copy can: each is a complete file that replaces the
    last one atomically. ``anyk watch``, ``anyk report``, ``anyk export`` and :meth:`anyk.Run.open` read ``folder`` like
    any run folder; it has no checkpoint, so it cannot be resumed. Each run of a race has its own folder in ``folder``.

    A thread copies every ``every`` seconds, less often if that would take more than 2 % of the time, and once more when
    the run ends. A copy that fails is tried again. Raises :class:`~anyk.BadInput` if the run has no folder of
    its own or the first copy fails, and :class:`~anyk.RunFailed` if the last one fails.

    >>> import anyk, tempfile
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> place = Path(tempfile.mkdtemp())
    >>> mirror = anyk.callbacks.Mirror(place / "copy")
    >>> anyk.train(problem, "uncoded", "simulated", workers=3, steps=5, out=place / "run", callbacks=[mirror]).close()
    >>> with anyk.Run.open(place / "copy") as copy:
    ...     copy.steps
    5
    """

    def __init__(self, folder: str | Path, *, every: Positive = 5.0) -> None:
        self.folder, self.every = Path(folder), every
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def on_begin(self, info: RunInfo) -> None:
        if info.path is None:
            raise BadInput("a Mirror copies a run's folder and this run has none; give out='runs/NAME'")
        origin, into = info.path, self.folder / info.title if info.title else self.folder
        if into.exists() and into.samefile(origin):
            raise BadInput(f"a Mirror needs a folder of its own; '{into}' is the run's")
        with as_bad_input(f"the log cannot be copied to '{into}'"):
            into.mkdir(parents=True, exist_ok=True)
            files = list(into.iterdir())
        check_plain(*files)
        if {file.name for file in files} - {RUN_FILE, LOG_FILE, f"{RUN_FILE}.part", f"{LOG_FILE}.part"}:
            raise BadInput(f"the copy's folder '{into}' contains other files; choose another, or an empty folder")
        with as_bad_input(f"the log cannot be copied to '{into}'", *_FAILURES):
            _copy(origin, into)
        self._into, self._origin = into, origin
        self._over.clear()
        self._thread = threading.Thread(target=self._copy_regularly, name="anyk-mirror", daemon=True)
        self._thread.start()

    def _copy_regularly(self) -> None:
        pause = self.every
        while not self._over.wait(pause):
            start = time.monotonic()
            with contextlib.suppress(*_FAILURES):  # the next copy contains everything in this one
                _copy(self._origin, self._into)
            pause = max(self.every, (time.monotonic() - start) / _SHARE)

    def on_end(self, info: EndInfo) -> None:
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._thread = None
        try:
            _copy(self._origin, self._into)
        except _FAILURES as error:
            raise RunFailed(f"the log could not be copied to '{self._into}' when the run had ended ({error})") from None


def _copy(origin: Path, into: Path) -> None:
    """Replace the last copy by one of a run's settings and of everything committed in its log."""
    with LockedFolder(COPIES) as folder:
        snapshot = Path(folder) / LOG_FILE
        with (
            contextlib.closing(sqlite3.connect(f"{(origin / LOG_FILE).absolute().as_uri()}?mode=ro", uri=True)) as log,
            contextlib.closing(sqlite3.connect(snapshot)) as copy,
        ):
            copy.execute("PRAGMA synchronous=OFF")  # of a temporary file
            log.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()  # one file, without a write-ahead file beside it
        write_sealed(into / RUN_FILE, replace(read_config(origin), mirror=True))
        with replacing(into / LOG_FILE) as partial, snapshot.open("rb") as copied, partial.open("xb") as new:
            shutil.copyfileobj(copied, new, 1 << 20)
