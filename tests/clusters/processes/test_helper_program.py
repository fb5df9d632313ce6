"""What the helper program sends is read line by line, and refused unless a helper program can have sent it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.clusters.processes.helper_program import Helper, HelperNews
from anyk.clusters.processes.memory import MESSAGE
from channels import MOST, limited

pytestmark = pytest.mark.in_process
small, words = st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1)


@contextlib.contextmanager
def linked() -> Iterator[tuple[Helper, socket.socket]]:
    """Yield the helper of two workers without a program, and the end of the link that a program would have."""
    helper = Helper(2, (), 1.0)
    helper.link, theirs = socket.socketpair()
    helper.link.setblocking(False)
    try:
        yield helper, theirs
    finally:
        helper.close()
        theirs.close()


lines = st.fixed_dictionaries(
    {},
    optional={
        "refused": st.text(max_size=20) | st.none() | small, "forked": small | st.just("x"), "died": small | words,
        "incarnation": small, "pid": small | words, "reason": st.text(max_size=20) | small, "blame": small,
    },
).map(lambda plain: json.dumps(plain).encode())  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(sent=st.lists(lines | st.binary(max_size=60) | st.sampled_from([b"", b"[" * 5000, b"9" * 5000]), max_size=3))
def test_news_names_a_worker_and_a_process_or_is_refused(sent: list[bytes]) -> None:
    received: list[HelperNews] = []
    with linked() as (helper, theirs):
        theirs.sendall(b"".join(line + b"\n" for line in sent) or b"\n")
        limited(lambda: received.extend(helper.news()))
    assert all(0 <= news.worker < 2 and -1 <= news.pid < 2**31 for news in received)


def test_a_line_without_an_end_is_refused() -> None:
    with linked() as (helper, theirs):
        refused = False
        for _ in range(200):
            theirs.sendall(b"x" * 10_000)
            if refused := limited(lambda: list(helper.news())):
                break
        assert refused and len(helper._unread) < MOST


def test_a_line_may_come_in_pieces() -> None:
    with linked() as (helper, theirs):
        theirs.sendall(b'{"forked": 1, "inc')
        assert list(helper.news()) == []
        theirs.sendall(b'arnation": 4, "pid": 9}\n\n{"died": 0}\n')
        assert [(news.worker, news.forked, news.pid) for news in helper.news()] == [(1, 1, 9), (0, -1, -1)]
        assert not helper.gone


def test_a_helper_that_has_ended_is_gone_after_its_last_news() -> None:
    with linked() as (helper, theirs):
        theirs.sendall(b'{"died": 1}\n')
        theirs.close()
        assert [news.died for news in helper.news()] == [1]
        assert helper.gone


def test_requests_have_one_length_and_may_bring_a_doorbell() -> None:
    with linked() as (helper, theirs):
        doorbell, other = os.pipe()
        helper.fork(1, 12, doorbell)
        helper.end(0, 3)
        data, fds, _, _ = socket.recv_fds(theirs, MESSAGE, 1)
        assert (json.loads(data), len(fds)) == ([1, 12, False], 1)
        data, none, _, _ = socket.recv_fds(theirs, MESSAGE, 1)
        assert (json.loads(data), none) == ([0, 3, True], [])
        for fd in (doorbell, other, *fds):
            os.close(fd)
