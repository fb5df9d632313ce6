"""What a node reads of a vector, without a network: parts that it writes itself, and parts that are read elsewhere."""

from __future__ import annotations

import mmap
import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from anyk.clusters.contract import Report
from anyk.clusters.nodes import vectors
from anyk.clusters.nodes.session import OfferedPart
from anyk.clusters.nodes.vectors import NodeStore, NodeVectors
from anyk.clusters.nodes.wire import Offered
from anyk.clusters.processes.memory import EMPTIED, FREE, FULL, HEADER, MemoryLayout, Segment, mark_buffer
from anyk.clusters.remote.channel import REPLY
from anyk.clusters.remote.handles import Notice

pytestmark = pytest.mark.in_process

KEY = ("model", 3)
OWN, THERE, ELSEWHERE = "node0:1", "node1:1", "node2:1"


class Store:
    """A node's shared memory, as far as models need it."""

    def __init__(self) -> None:
        self.room = np.zeros(4)

    def blank(self, slot: str) -> Any:
        return self.room

    def publish(self, slot: str, version: int, w: Any) -> None: ...

    def model(self, slot: str, version: int) -> Any:
        return self.room

    def reserve_part(self, slot: str, version: int, first: int, size: int) -> None: ...

    def release(self, slot: str, version: int) -> None: ...


class Node:
    """The vectors of a node, with the reads that it has begun and stopped."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, str]] = []  # the first byte, and the address
        self.stopped: list[int] = []
        self.store = Store()
        self.vectors = NodeVectors(self.store, None, OWN, self.read, self.stopped.append)  # type: ignore[arg-type]

    def read(self, into: memoryview, offered: Offered, address: str) -> int:
        start = np.frombuffer(into, np.uint8).ctypes.data - self.store.room.ctypes.data
        self.reads.append((start, address))
        return len(self.reads)


def parts(first: str, second: str) -> list[OfferedPart]:
    return [OfferedPart(16 * i, Offered(b"k%d" % i, 16, ()), address) for i, address in enumerate((first, second))]


def test_a_part_that_a_step_writes_is_waited_for_and_not_read() -> None:
    node = Node()
    node.vectors.locate(KEY, parts(OWN, THERE))
    node.vectors.fetch([KEY])
    assert node.reads == [(16, THERE)]
    node.vectors.finished(1, complete=True)
    assert not node.vectors.here(KEY)
    node.vectors.wrote(KEY, 0)
    assert node.vectors.here(KEY)


def test_a_part_that_was_written_before_it_is_located_is_there() -> None:
    node = Node()
    node.vectors.room(KEY)
    node.vectors.wrote(KEY, 0)
    node.vectors.locate(KEY, parts(OWN, THERE))
    node.vectors.fetch([KEY])
    node.vectors.finished(1, complete=True)
    assert node.vectors.here(KEY) and node.reads == [(16, THERE)]


def test_a_part_that_is_located_elsewhere_is_read_there() -> None:
    node = Node()
    node.vectors.locate(KEY, parts(THERE, THERE))
    node.vectors.fetch([KEY])
    node.vectors.finished(2, complete=True)
    node.vectors.locate(KEY, parts(ELSEWHERE, ELSEWHERE))
    assert node.stopped == [1]
    node.vectors.fetch([KEY])
    assert node.reads == [(0, THERE), (16, THERE), (0, ELSEWHERE)]
    node.vectors.finished(3, complete=True)
    assert node.vectors.here(KEY)


def test_a_part_whose_holder_it_is_no_more_is_read() -> None:
    """Also at once if a read had failed there, which is otherwise begun again after a second."""
    node = Node()
    node.vectors.locate(KEY, parts(OWN, THERE))
    node.vectors.fetch([KEY])
    node.vectors.finished(1, complete=False)
    node.vectors.locate(KEY, parts(ELSEWHERE, ELSEWHERE))
    node.vectors.fetch([KEY])
    assert sorted(node.reads[1:]) == [(0, ELSEWHERE), (16, ELSEWHERE)]


def test_a_step_ends_the_read_of_its_part() -> None:
    node = Node()
    node.vectors.locate(KEY, parts(THERE, THERE))
    node.vectors.fetch([KEY])
    node.vectors.wrote(KEY, 16)
    assert node.stopped == [2]
    node.vectors.finished(1, complete=True)
    assert node.vectors.here(KEY)


def allocated(segment: Segment) -> int:
    return os.fstat(segment.fd).st_blocks * 512


@pytest.mark.parametrize("large", [1, 1 << 40])
def test_a_large_model_takes_memory_as_its_parts_come(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_LARGE", large)
    size, page = 100_000, mmap.PAGESIZE
    layout = MemoryLayout(
        workers=1, slots=("model",), copies=3, dimension=size, dtype="<f8", buffers=4, lengths=(0,), box=4096
    )
    models, replies = Segment.create(layout.models_size, "models"), Segment.create(layout.replies_size, "replies")
    states = Segment.create(0, "states")
    store = NodeStore(None, layout)
    store.attach(models, replies, states)
    read: list[int] = []  # bytes

    def begin(into: memoryview, offered: Offered, address: str) -> int:
        read.append(len(into))
        return 1

    node = NodeVectors(store, layout, OWN, begin, lambda read: None)
    bounds = [0, 200_000, 500_000, 8 * size]
    three = [
        OfferedPart(first, Offered(b"k%d" % first, last - first, ()), OWN if first else THERE)
        for first, last in pairwise(bounds)
    ]
    node.locate(KEY, three)
    node.fetch([KEY])
    expected = [200_000, 500_000, 800_000] if large == 1 else [800_000] * 3
    for number, most in enumerate(expected):
        if number:
            node.reserve(KEY, three[number].first, three[number].offered.size)
        assert most <= allocated(models) <= most + 2 * page
    assert read == [200_000]
    for segment in (models, replies, states):
        segment.close()


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="this system frees no part of shared memory")
@pytest.mark.parametrize("large", [1, 1 << 40])
def test_the_memory_of_large_models_and_messages_is_freed(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_LARGE", large)
    size = 100_000
    layout = MemoryLayout(
        workers=2, slots=("model",), copies=3, dimension=size, dtype="<f8", buffers=4, lengths=(size, 0), box=4096
    )
    models, replies = Segment.create(layout.models_size, "models"), Segment.create(layout.replies_size, "replies")
    store = NodeStore(None, layout)
    store.attach(models, replies, Segment.create(0, "states"))
    for turn in range(3):
        store.blank("model")[:] = turn
        store.publish("model", turn, store.blank("model"))
        for buffer in range(2):
            offset = layout.buffer_at(0, buffer)
            header = HEADER.unpack_from(replies.memory, offset)
            assert header[0] == (EMPTIED if large == 1 and turn else FREE)
            replies.array(offset + HEADER.size, size, np.dtype(float))[:] = turn + buffer
            mark_buffer(replies.memory, offset, FULL, task=turn, chunk=0, length=size)
            notice = Notice(0.0, 0, 0, buffer, Report(REPLY, turn, 0))
            kept = store.keep(notice, (), replies.array(offset + HEADER.size, size, np.dtype(float)))
            assert (kept.vector == turn + buffer).all() and kept.buffer == buffer
            store.free_buffer(0, buffer)
        store.release("model", turn)
        page = mmap.PAGESIZE
        assert allocated(replies) <= 6 * page if large == 1 else allocated(replies) >= 2 * 8 * size
        assert allocated(models) == 0 if large == 1 else allocated(models) >= 8 * size
    for segment in (models, replies):
        segment.close()
