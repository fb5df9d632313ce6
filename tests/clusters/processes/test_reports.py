"""Reports of workers are refused unless a worker can have written them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.clusters.processes import Processes
from anyk.clusters.processes.memory import ERROR_BOX, RECORD, MemoryLayout, Segment
from anyk.clusters.processes.reports import Reports
from anyk.clusters.remote.channel import FAILED, READY, REPLY
from anyk.clusters.remote.handles import Notice
from anyk.clusters.remote.orders import NO_TASK
from channels import limited

pytestmark = pytest.mark.in_process
KINDS = (READY, REPLY, FAILED)
LAYOUT = MemoryLayout(2, ("model",), 3, 5, "<f8", 4, (5, 5), 4096)
small, wide = st.integers(-3, 9), st.integers(-(2**31), 2**31 - 1)
words = st.integers(-(2**63), 2**63 - 1)
records = st.tuples(
    small | wide, small | wide, small | wide, small | wide, small | words, small | wide, small | wide,
    *[st.floats()] * 4, words,
).map(lambda values: RECORD.pack(*values))  # fmt: skip


@contextlib.contextmanager
def opened(reports: Reports) -> Iterator[Segment]:
    """Open reports; yield the memory of their texts."""
    mail = Segment.create(2 * (LAYOUT.box + ERROR_BOX), "mail")
    reports.open(LAYOUT, mail)
    try:
        yield mail
    finally:
        reports.close()
        mail.close()


def record(worker: int, incarnation: int, kind: int, *, done: int = 0, bits: int = 0) -> bytes:
    """Return a report without a message."""
    return RECORD.pack(worker, incarnation, -1, kind, NO_TASK, 0, done, 0.0, 0.0, 0.0, 1.0, bits)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(records, min_size=1, max_size=3).map(b"".join) | st.binary(min_size=1, max_size=300),
    text=st.sampled_from([b"", b"x", b"\xff"]).map(lambda part: part * ERROR_BOX) | st.binary(max_size=99),
)
def test_what_no_worker_writes_is_refused(data: bytes, text: bytes) -> None:
    reports, notices = Reports(KINDS), []
    with opened(reports) as mail:
        for worker in range(2):
            start = LAYOUT.box_at(worker) + LAYOUT.box
            mail.memory[start : start + len(text)] = text
        os.write(reports.write_fd, data)
        if not limited(lambda: notices.extend(reports.read())):
            assert len(data) == RECORD.size * len(notices)
    for notice in notices:
        assert isinstance(notice, Notice) and 0 <= notice.worker < 2 and -1 <= notice.buffer < 4
        assert notice.report.kind in KINDS and len(notice.report.text) <= ERROR_BOX


def test_a_failure_has_its_workers_text_and_others_none() -> None:
    reports = Reports(KINDS)
    with opened(reports) as mail:
        for worker, text in enumerate((b"too slow\0", b"no data\0")):
            start = LAYOUT.box_at(worker) + LAYOUT.box
            mail.memory[start : start + len(text)] = text
        os.write(reports.write_fd, record(1, 0, FAILED) + record(0, 0, READY) + record(0, 0, READY, done=1))
        assert [notice.report.text for notice in reports.read()] == ["no data", "", "too slow"]


def test_all_reports_are_drained_however_many_there_are() -> None:
    reports = Reports(KINDS)
    with opened(reports):
        for incarnation in range(700):  # more than are read at once
            os.write(reports.write_fd, record(0, incarnation, READY))
        assert [notice.incarnation for notice in reports.drain()] == list(range(700))
        assert list(reports.drain()) == []


def test_a_ready_worker_tells_its_own_process_number() -> None:
    cluster = Processes(2)
    reports = cluster._reports
    with opened(reports):
        cluster.handles[1].incarnation = 2
        # the second is of a process that was replaced
        os.write(reports.write_fd, record(1, 2, READY, bits=77) + record(1, 1, READY, bits=78))
        cluster._take(reports.read())
        assert cluster.pids == {1: 77}
        os.write(reports.write_fd, record(1, 2, READY, bits=0))
        assert limited(lambda: cluster._take(reports.read()))
