"""Checks that a report is one that a worker may send: not damaged, and not made up."""

from __future__ import annotations

from anyk.clusters.contract import Report
from anyk.clusters.injection import InFlight
from anyk.clusters.remote.channel import COMPARED, FAILED, KINDS, PROGRESS, READY, REPLY, STOPPED
from anyk.clusters.remote.handles import Notice
from anyk.clusters.remote.wire import refuse

_ABOUT_TASKS = (REPLY, PROGRESS, STOPPED, FAILED, COMPARED)
_FOREVER = 1e12  # seconds


def check_report(notice: Notice, entry: InFlight | None, *, present: bool) -> None:
    """Raise :class:`~anyk.RunFailed` for a report that no worker sends.

    ``entry``: the task in flight with the report's number, if there is one. ``present``: whether the worker is ready.
    """
    worker, report = notice.worker, notice.report
    if report.kind not in KINDS:
        refuse(worker, f"a report of kind {report.kind}")
    if not _in_range(report):
        refuse(worker, "numbers out of range")
    if report.kind == READY and present:
        refuse(worker, "it is ready a second time")
    about = entry if report.kind in _ABOUT_TASKS else None
    if about is not None and (about.worker != worker or not 0 <= report.chunk < len(about.chunks)):
        refuse(worker, f"a report about chunk {report.chunk} of task {report.task}, which it was not given")
    without_message = notice.buffer is None or (isinstance(notice.buffer, int) and notice.buffer < 0)
    if (report.kind == REPLY) == without_message:
        refuse(worker, "a message without its numbers, or numbers without a message")


def _in_range(report: Report) -> bool:
    """Return whether the numbers and times of a report are possible ones; NaN is no time."""
    times = report.started, report.computing, report.computed, report.sent
    return (
        all(-1 <= number < 1 << 62 for number in (report.task, report.chunk, report.done))
        and -(1 << 63) <= report.bits < 1 << 63
        and all(abs(time) < _FOREVER for time in times)
    )
