"""The reports of workers of this machine: records in a pipe that all of them share, and texts in shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator

from anyk.base.errors import RunFailed
from anyk.clusters.contract import Report
from anyk.clusters.processes.memory import BROKEN, ERROR_BOX, RECORD, MemoryLayout, Segment
from anyk.clusters.remote.channel import EVALUATED, FAILED, READY
from anyk.clusters.remote.handles import Notice
from anyk.clusters.waiting import readable

_AT_ONCE = 512  # the most records that are read at once


class Reports:
    """The driver's end of the pipe of reports, which must be of these ``kinds``."""

    def __init__(self, kinds: Collection[int]) -> None:
        self._kinds = kinds
        self.fd = self.write_fd = -1
        self._layout: MemoryLayout
        self._mail: Segment

    def open(self, layout: MemoryLayout, mail: Segment) -> None:
        """Make the pipe of a run; texts lie in the ``mail``, each behind its worker's box."""
        self._layout, self._mail = layout, mail
        self.fd, self.write_fd = os.pipe()

    def close(self) -> None:
        """Close the pipe, if there is one."""
        for fd in (self.fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self.write_fd = -1

    def read(self) -> Iterator[Notice]:
        """Yield some of the reports; wait for the first one.

        Raises :class:`~anyk.RunFailed` for what no worker writes.
        """
        data = os.read(self.fd, RECORD.size * _AT_ONCE)
        now = time.monotonic()
        if len(data) % RECORD.size:
            raise RunFailed(f"reports of workers {BROKEN}")
        layout = self._layout
        for worker, incarnation, buffer, *values in RECORD.iter_unpack(data):
            report = Report(*values)
            possible = 0 <= worker < layout.workers and -1 <= buffer < layout.buffers
            if not (possible and report.kind in self._kinds):
                raise RunFailed(f"a report of worker {worker} {BROKEN}")
            if report.kind == FAILED or (report.kind in (READY, EVALUATED) and report.done):
                report = report._replace(text=self._text(worker))
            yield Notice(now, worker, incarnation, buffer, report)

    def drain(self) -> Iterator[Notice]:
        """Yield all reports that are there; those from before a worker's death still count."""
        while readable([self.fd], 0.0):
            yield from self.read()

    def _text(self, worker: int) -> str:
        """Return what a worker has written about its last failure."""
        start = self._layout.box_at(worker) + self._layout.box
        return self._mail.memory[start : start + ERROR_BOX].partition(b"\0")[0].decode(errors="replace")
