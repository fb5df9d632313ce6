"""Reading runs while another process writes them, without changing their folders."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Self

from anyk.base.checks import typed
from anyk.base.errors import BadInput, as_bad_input
from anyk.runs.folder.config import NAME, RunConfig, read_config
from anyk.runs.log import queries
from anyk.runs.log.copies import LogCopy, place_for_copies
from anyk.runs.log.runlog import RunLog
from anyk.runs.run import Run

LOG = "log.sqlite"


class Following:
    """A run folder that this process or another writes, to be read repeatedly.

    :meth:`run` reads a copy of the log with all committed rows. So the folder may be read-only, is not changed, and no
    lock delays the writer. Unlike :meth:`anyk.Run.open` it does not check the seals of the log. Use it in one thread at
    a time.

    >>> import anyk, tempfile
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> anyk.train(problem, "uncoded", "simulated", workers=2, steps=3, out=folder).close()
    >>> with Following(folder) as followed:
    ...     followed.run().steps, followed.ended
    (3, True)
    """

    @typed
    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._place = place_for_copies()
        self._copy = LogCopy(self.folder / LOG, Path(self._place.name))
        self._run: Run | None = None
        self._config: RunConfig | None = None
        self._config_time = 0  # time of the configuration's file, in nanoseconds
        self.ended = False  # whether the run had ended when it was read last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def quiet(self) -> float:
        """Seconds since the last change of the log that has been read."""
        return max(0.0, time.time() - self._copy.written)

    def run(self) -> Run:
        """Return the run in its present state, the same object if nothing has changed; older objects are closed.

        Loss and metric of a run that has not ended belong to the newest version that has been evaluated. Raises
        :class:`~anyk.BadInput` if the run has not started, or cannot be read.
        """
        path = self.folder / LOG
        with as_bad_input(f"the log '{path}' cannot be read", OSError, sqlite3.Error):
            if not path.is_file():
                raise BadInput(f"the run '{self.folder}' has not started: it has no {path.name} yet")
            before = None if self._run is None else (queries.newest_seal(self._run.log), self._run.log.totals)
            if not self._copy.refresh() and self._run is not None:
                return self._run
            self._close_run()
            # read only, so that rows of the write-ahead file are not moved into the copy each time
            db = sqlite3.connect(
                f"{self._copy.path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
            db.execute("PRAGMA trusted_schema=OFF")
        log = RunLog(path, db)
        try:
            if not log.rows("SELECT 1 FROM sqlite_master LIMIT 1"):
                raise BadInput(f"the run '{self.folder}' has not started: its log has no tables yet")
            log.check_tables()
        except BadInput:
            log.close()
            raise
        if before is not None and log.has_seal(before[0]):  # rows have only been added
            log.totals = before[1]
        written = (self.folder / NAME).stat().st_mtime_ns if (self.folder / NAME).is_file() else 0
        if self._config is None or written != self._config_time:
            self._config, self._config_time = read_config(self.folder), written
        self._run = Run(log, self._config, path=self.folder)
        self.ended = bool(self._run.summary)
        if not self.ended:
            query = "SELECT loss, metric FROM evaluations WHERE slot = ? ORDER BY version DESC LIMIT 1"
            loss, metric = next(iter(log.rows(query, (self._run.slot,))), (None, None))
            named = {"name": self._run.config.metric, "value": metric}
            self._run.summary = {"loss": loss, "metric": None if metric is None else named}
        return self._run

    def _close_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None
        self._copy.path.with_name(f"{self._copy.path.name}-shm").unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the copy; safe to call twice."""
        with contextlib.suppress(OSError):
            self._close_run()
        self._place.cleanup()
