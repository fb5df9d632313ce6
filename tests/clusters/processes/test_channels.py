"""What comes through the channels between processes is limited where it arrives; the channels are listed here.

| channel | limited in |
| --- | --- |
| run.toml, race.toml, auto.toml, plan.toml | their msgspec types; at most 64 MiB; tests/end_to_end/test_sentinels.py |
| rows of the log | anyk.runs.log.schema.wrong_rows; tests/runs/log/test_schema.py |
| checkpoints, predictors, tables, traces, matrices, specs | anyk.tables, safetensors; tests/test_readers.py |
| reports of workers of ``processes``: records in a pipe | Processes._read_records; here |
| texts of workers: their error boxes | Processes._error: ERROR_BOX; here |
| news of the helper program: lines of JSON | Processes._read_helper; here |
| messages of workers: reply buffers | SharedStore.contents, Remote._on_reply: length, task and chunk; tests/world |
| orders to workers: mail boxes | MailBox.take: checksum; here |
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.processes import Processes
from anyk.clusters.processes.memory import ERROR_BOX, RECORD, MailBox, MemoryLayout, Segment
from anyk.clusters.remote.channel import READY
from anyk.clusters.remote.handles import Died, Notice
from anyk.clusters.remote.orders import NO_TASK

pytestmark = pytest.mark.in_process
MOST = 64 << 20
fuzz = settings(max_examples=200, deadline=None)
LAYOUT = MemoryLayout(2, ("model",), 3, 5, "<f8", 4, (5, 5), 4096)
small, wide = st.integers(-3, 9), st.integers(-(2**31), 2**31 - 1)
words = st.integers(-(2**63), 2**63 - 1)
records = st.tuples(
    small | wide, small | wide, small | wide, small | wide, small | words, small | wide, small | wide,
    *[st.floats()] * 4, words,
).map(lambda values: RECORD.pack(*values))  # fmt: skip


@contextlib.contextmanager
def listening() -> Iterator[tuple[Processes, int, socket.socket]]:
    """Yield a cluster that has no processes, and the ends of its pipe and its link that others write to."""
    cluster = Processes(2)
    cluster._plan, cluster._mail = LAYOUT, Segment.create(2 * (LAYOUT.box + ERROR_BOX), "mail")
    cluster._pipe, pipe = os.pipe()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    cluster._link = ours
    try:
        yield cluster, pipe, theirs
    finally:
        os.close(pipe)
        os.close(cluster._pipe)
        cluster._mail.close()
        ours.close()
        theirs.close()


def limited(read: Any) -> bool:
    """Call; return whether it was refused, in one sentence, and check what memory it took."""
    tracemalloc.start()
    try:
        read()
    except (RunFailed, BadInput) as error:
        assert "\n" not in str(error)
        return True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST
    return False


@fuzz
@given(
    data=st.lists(records, min_size=1, max_size=3).map(b"".join) | st.binary(min_size=1, max_size=300),
    text=st.sampled_from([b"", b"x", b"\xff"]).map(lambda part: part * ERROR_BOX) | st.binary(max_size=99),
)
def test_reports_of_workers(data: bytes, text: bytes) -> None:
    with listening() as (cluster, pipe, _):
        for worker in range(2):
            start = LAYOUT.box_at(worker) + LAYOUT.box
            cluster._mail.memory[start : start + len(text)] = text
        os.write(pipe, data)
        if not limited(cluster._read_records):
            assert len(data) == RECORD.size * len(cluster.news)
        for news in cluster.news:
            assert isinstance(news, Notice) and 0 <= news.worker < 2 and -1 <= news.buffer < 4
            assert news.report.kind in cluster._kinds and len(news.report.text) <= ERROR_BOX


def test_a_ready_worker_tells_its_own_process_number() -> None:
    with listening() as (cluster, pipe, _):
        cluster.handles[1].incarnation = 2
        for incarnation, pid in ((2, 77), (1, 78)):  # the second is of a process that was replaced
            os.write(pipe, RECORD.pack(1, incarnation, -1, READY, NO_TASK, 0, 0, 0.0, 0.0, 0.0, 1.0, pid))
        cluster._read_records()
        assert cluster.pids == {1: 77}
        os.write(pipe, RECORD.pack(1, 2, -1, READY, NO_TASK, 0, 0, 0.0, 0.0, 0.0, 1.0, 0))
        assert limited(cluster._read_records)


news = st.fixed_dictionaries(
    {},
    optional={
        "refused": st.text(max_size=20) | st.none() | small, "forked": small | st.just("x"), "died": small | words,
        "incarnation": small, "pid": small | words, "reason": st.text(max_size=20) | small, "blame": small,
    },
).map(lambda plain: json.dumps(plain).encode())  # fmt: skip


@fuzz
@given(lines=st.lists(news | st.binary(max_size=60) | st.sampled_from([b"", b"[" * 5000, b"9" * 5000]), max_size=3))
def test_news_of_the_helper_program(lines: list[bytes]) -> None:
    with listening() as (cluster, _, link):
        link.sendall(b"".join(line + b"\n" for line in lines) or b"\n")
        limited(cluster._read_helper)
        for news in cluster.news:
            assert isinstance(news, Died) and 0 <= news.worker < 2
        assert all(0 <= worker < 2 and -1 <= pid < 2**31 for worker, pid in cluster.pids.items())


def test_a_line_without_an_end_is_refused() -> None:
    with listening() as (cluster, _, link):
        refused = False
        for _ in range(200):
            link.sendall(b"x" * 10_000)
            if refused := limited(cluster._read_helper):
                break
        assert refused and len(cluster._unread) < MOST


@fuzz
@given(data=st.data())
def test_orders_that_were_changed_on_their_way_are_not_taken(
    data: st.DataObject,
) -> None:
    """A reader waits for newer ones, which the driver sends again and again."""
    segment = Segment.create(8192, "mail")
    try:
        box = MailBox(segment, 0, 4096)
        order = data.draw(st.binary(min_size=1, max_size=50))
        box.put(order)
        position = data.draw(st.integers(8, 32 + 50))
        segment.memory[position] ^= data.draw(st.integers(1, 255))
        taken = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("anyk.clusters.processes.memory.time.sleep", lambda _: taken.append(0) or 1 / 0)
            patch.setattr(segment, "refresh", lambda: None)
            with contextlib.suppress(ZeroDivisionError):
                taken.append(box.take())
        assert taken[-1] in (order, 0)
    finally:
        segment.close()
