"""Recorders: the seconds of each step of a training loop, written by every worker into one folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from anyk.checks import AtLeastZero, typed
from anyk.errors import BadInput

HEADER = "round,worker,seconds"
_EVERY = 1.0  # seconds between writes


class Recorder:
    """Writes the seconds of each step of one worker into a folder that :func:`anyk.fleet.read` reads.

    All workers share ``folder``, and each writes ``worker-<number>.csv``. A step must end before any waiting for other
    workers: after an all-reduce, all workers look alike. If the file exists, as after a restart, the numbers of rounds
    continue. Times are measured by the worker's own monotonic clock, and written at least once a second and when the
    recorder is closed; steps of the last second before a crash are lost.

    Raises :class:`~anyk.errors.BadInput` for a negative ``worker`` and where the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Recorder(folder, worker=0) as recorder:
    ...         for _ in range(3):
    ...             with recorder.step():
    ...                 total = sum(range(1000))
    ...     len(Path(folder, "worker-0.csv").read_text().split())
    4
    """

    @typed
    def __init__(self, folder: str | Path, worker: AtLeastZero) -> None:
        self.worker, self.path = worker, Path(folder) / f"worker-{worker}.csv"
        self._rows: list[str] = []
        self._written = time.monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.rounds = self._next_round()
            self._file = self.path.open("a", encoding="utf-8")
            if not self.rounds and not self.path.stat().st_size:
                self._file.write(HEADER + "\n")
                self._file.flush()
        except OSError as error:
            raise BadInput(f"the record '{self.path}' cannot be written ({error.strerror})") from None

    def _next_round(self) -> int:
        """Return the number of the next round, which continues an existing file."""
        if not self.path.is_file() or not self.path.stat().st_size:
            return 0
        lines = self.path.read_text(encoding="utf-8").splitlines()
        if lines[0] != HEADER:
            raise BadInput(f"'{self.path}' was not written by a recorder; choose another folder")
        return int(lines[-1].partition(",")[0]) + 1 if len(lines) > 1 else 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure the body as one step; a step that raises is not recorded."""
        begin = time.perf_counter()
        yield
        self.add(time.perf_counter() - begin)

    def add(self, seconds: float) -> None:
        """Record a step of ``seconds`` seconds."""
        self._rows.append(f"{self.rounds},{self.worker},{seconds!r}\n")
        self.rounds += 1
        if time.monotonic() - self._written > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the recorded steps."""
        if not self._file.closed:
            self._file.write("".join(self._rows))
            self._file.flush()
        self._rows.clear()
        self._written = time.monotonic()

    def close(self) -> None:
        """Write the recorded steps and close the file; may be called twice."""
        self.flush()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
