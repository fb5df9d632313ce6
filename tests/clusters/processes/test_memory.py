"""Shared memory: mail boxes hold the newest order, however long it is."""

import contextlib
import fcntl
import mmap
import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.clusters.processes.memory import EMPTIED, HEADER, MailBox, MemoryLayout, Segment, mark_buffer
from anyk.clusters.processes.shared_worker import SharedMemoryWorker
from anyk.testing import Squares


def test_a_mail_box_grows_and_leaves_the_others_alone():
    written = Segment.create(4096, "test")
    read = Segment(os.dup(written.fd), 4096)
    writers, readers = ([MailBox(segment, start, 256) for start in (0, 256)] for segment in (written, read))
    letters = [b"short", b"a" * 224, b"b" * 225, b"c" * 5000, b"d" * 20_000, b"", b"e" * 7, b"f" * 30_000]
    for i, letter in enumerate(letters):
        writers[i % 2].put(letter)
        writers[1 - i % 2].put(bytes(reversed(letter)) + b"!")
        assert readers[i % 2].changed()
        assert bytes(readers[i % 2].take()) == letter
        assert bytes(readers[1 - i % 2].take()) == bytes(reversed(letter)) + b"!"
        assert not readers[i % 2].changed()
    late = Segment(os.dup(written.fd), 4096)  # of a worker that takes another's place
    assert bytes(MailBox(late, 256, 256).take()) == b"f" * 30_000
    for segment in (written, read, late):
        segment.close()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_orders_that_were_changed_on_their_way_are_not_taken(data: st.DataObject) -> None:
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


@contextlib.contextmanager
def written_by_another(segment, write):
    """Have another process write again and again, in a loop, until the block ends."""
    script = (
        "import itertools, sys\n"
        "from anyk.clusters.processes.memory import EMPTIED, MailBox, Segment, mark_buffer\n"
        "segment = Segment(int(sys.argv[1]), 8192)\n"
        "print('begun', flush=True)\n"
        "for number in itertools.count():\n"
        f"    {write}\n"
    )
    command = [sys.executable, "-c", script, str(segment.fd)]
    with subprocess.Popen(command, pass_fds=[segment.fd], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout.readline() == "begun\n"
            yield
        finally:
            writer.kill()


@pytest.mark.slow
def test_orders_that_are_being_written_are_not_taken():
    """Nor is a header whose parts are of different orders, or that has only begun to be written."""
    segment = Segment.create(8192, "mail")
    box = MailBox(segment, 0, 4096)
    box.put(b"0" * 10)
    write = "MailBox(segment, 0, 4096).put(b'%d' % (number % 10) * (10 + number % 90))"
    with written_by_another(segment, write):
        for _ in range(30_000):
            order = bytes(box.take())
            assert 10 <= len(order) < 100 and len(set(order)) == 1
    segment.close()


@pytest.mark.slow
def test_a_buffer_being_written_never_has_another_state():
    segment = Segment.create(8192, "replies")
    mark_buffer(segment.memory, 0, EMPTIED, task=7)
    with written_by_another(segment, "mark_buffer(segment.memory, 0, EMPTIED, task=7)"):
        headers = {HEADER.unpack_from(segment.memory, 0) for _ in range(200_000)}
    assert headers == {(EMPTIED, 7, -1, 0)}
    segment.close()


@dataclass(frozen=True)
class Wide(anyk.codes.Code):
    """Two workers who hold so much that a task takes 100 kB to say."""

    workers: int = 2
    spec = "wide"
    partitions = 4000
    tolerates = 0

    @property
    def rows(self):
        return tuple((tuple(range(4000)), ((i + 1) / 3,) * 4000) for i in range(2))


@pytest.mark.slow
def test_tasks_may_be_of_any_length_on_processes():
    trained = [
        anyk.train(Squares(4000), Wide(), cluster, optimizer=anyk.optimizers.GD(0.1), steps=3)
        for cluster in (anyk.clusters.Simulated(2), anyk.clusters.Processes(2))
    ]
    assert trained[0].model.tobytes() == trained[1].model.tobytes()


@pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux's")
def test_shared_memory_cannot_be_cut_short() -> None:
    segment = Segment.create(10_000, "tried")
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fd, 100)
    segment.grow(50_000)
    assert segment.size == 50_000 and fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    segment.close()


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="this system frees no part of shared memory")
def test_a_buffer_without_pages_gets_them_before_it_is_written() -> None:
    """A worker that lacked memory while it writes would be killed; here lack of memory is an error."""
    layout = MemoryLayout(
        workers=1, slots=("model",), copies=1, dimension=1, dtype="<f8", buffers=2, lengths=(50_000,), box=4096
    )
    worker = object.__new__(SharedMemoryWorker)
    replies = Segment.create(layout.replies_size, "replies")
    worker.worker, worker._layout, worker._reserved = 0, layout, set()
    worker._shared = SimpleNamespace(replies=replies)  # type: ignore[assignment]
    worker._messages = SimpleNamespace(dtype=np.dtype(float))  # type: ignore[assignment]
    for _ in range(2):
        assert worker.reserve_buffer(50_000, 0)[0] == 0
        assert os.fstat(replies.fd).st_blocks * 512 >= 8 * 50_000
        replies.empty(0, replies.size)
        mark_buffer(replies.memory, 0, EMPTIED)
        assert os.fstat(replies.fd).st_blocks * 512 <= 2 * mmap.PAGESIZE
    replies.close()
