"""Memory that processes share, without a name, so that nothing can be left behind; and its layout."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.errors import RunFailed
from anyk.problems.base import Vector

ALIGN = 64


class Segment:
    """Shared memory behind a file descriptor without a name; it is freed when the last process closes it."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self.memory = mmap.mmap(fd, size)

    @classmethod
    def create(cls, size: int, purpose: str) -> Segment:
        """Return memory of ``size`` bytes; pages are taken up when first written."""
        size = max(size, mmap.PAGESIZE)
        if sys.platform == "linux":
            fd = os.memfd_create(f"anyk-{purpose}")
        else:
            with tempfile.TemporaryFile() as file:  # unlinked at once: macOS has no memory files
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return cls(fd, size)

    def reserve(self, start: int, length: int) -> None:
        """Take up the pages of a range now, so that lack of memory is an error here and not a crash at a write."""
        if not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self.fd, start, length)
        except OSError as error:
            raise RunFailed(f"no room for {length:,} bytes of shared memory ({error.strerror}); free some") from None

    def array(self, start: int, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array that lies in the segment."""
        if start + length * dtype.itemsize > self.size:
            self.refresh()
        return np.frombuffer(self.memory, dtype=dtype, count=length, offset=start)

    def grow(self, size: int) -> None:
        """Make it at least ``size`` bytes long; earlier arrays stay in place."""
        if size > self.size:
            os.ftruncate(self.fd, size)
            self.refresh()

    def refresh(self) -> None:
        """Map its present length; the old mapping goes with the last array in it."""
        self.size = os.fstat(self.fd).st_size
        self.memory = mmap.mmap(self.fd, self.size)

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last array in it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True)
class MemoryLayout:
    """The layout of a run's shared memory.

    Models: versions of ``dimension`` numbers, at first ``copies`` of them. Replies: ``buffers`` per worker, and behind
    them messages that had to make room and that other workers read. Both can grow. Mail: one box per worker, written by
    the driver, and beside it a box for the text of the worker's last error; behind all, orders too long for a box.
    """

    workers: int
    slots: tuple[str, ...]
    copies: int
    dimension: int
    dtype: str
    buffers: int
    lengths: tuple[int, ...]  # the longest message of each worker
    box: int  # bytes of a mail box

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize

    @property
    def model_bytes(self) -> int:
        """Bytes between model versions."""
        return -(-self.dimension * self.itemsize // 4096) * 4096

    @property
    def models_size(self) -> int:
        """Bytes of all model versions at first."""
        return self.copies * self.model_bytes

    @cached_property
    def _buffers(self) -> tuple[list[int], list[int]]:
        """Bytes of each worker's buffer, header included, and where its first one begins; the end comes last."""
        sizes = [message_bytes(length * self.itemsize) for length in self.lengths]
        return sizes, list(accumulate((size * self.buffers for size in sizes), initial=0))

    def buffer_bytes(self, worker: int) -> int:
        """Return the bytes between a worker's reply buffers; each begins with a header."""
        return self._buffers[0][worker]

    def buffer_at(self, worker: int, buffer: int) -> int:
        """Return where a reply buffer begins."""
        return self._buffers[1][worker] + buffer * self._buffers[0][worker]

    @property
    def replies_size(self) -> int:
        """Bytes of all reply buffers."""
        return self._buffers[1][-1]

    def box_at(self, worker: int) -> int:
        """Return where a worker's mail box begins; its error box follows."""
        return worker * (self.box + ERROR_BOX)


HEADER = struct.Struct("=qqqq32x")  # of a reply buffer: state, task, chunk, length
FREE, WRITING, FULL = 0, 1, 2
ERROR_BOX = 4096
_BOX = struct.Struct("=qqqq")  # sequence number, where the order lies, its length and checksum

# A report to the driver, through one pipe that all share; shorter than PIPE_BUF, so written completely or not at all.
RECORD = struct.Struct("=iiiiqiiddddq")  # worker, incarnation, buffer, and a Report without its text


class MailBox:
    """A place where only the newest order lies: a worker that was away finds no queue.

    The number changes with each order; the checksum tells a reader that it caught the writer half-way. Orders that are
    too long for the box lie behind all boxes, where there is always room for more.
    """

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        self._segment, self._start = segment, start
        self._place, self._size = start + _BOX.size, size - _BOX.size
        self._seq = segment.array(start, 1, np.dtype(np.int64))
        self.seen = int(self._seq[0])

    def put(self, order: bytes) -> None:
        """Replace the order."""
        if len(order) > self._size:
            self._place, self._size = self._segment.size, 2 * len(order)
            self._segment.grow(self._place + self._size)
            self._segment.reserve(self._place, self._size)
        memory = self._segment.memory
        memory[self._place : self._place + len(order)] = order
        _BOX.pack_into(memory, self._start, int(self._seq[0]) + 1, self._place, len(order), zlib.crc32(order))

    def changed(self) -> bool:
        """Return whether there is an order not yet taken."""
        return bool(self._seq[0] != self.seen)

    def take(self) -> bytes:
        """Return the newest order."""
        while True:
            seq, place, length, checksum = _BOX.unpack_from(self._segment.memory, self._start)
            if place + length > self._segment.size:
                self._segment.refresh()
            order = self._segment.memory[place : place + length]
            if zlib.crc32(order) == checksum and int(self._seq[0]) == seq:
                self.seen = seq
                return order


def message_bytes(size: int) -> int:
    """Return the bytes that a message of ``size`` bytes takes up, with its header."""
    return -(-(HEADER.size + size) // ALIGN) * ALIGN


def place_buffers(buffers: list[memoryview]) -> tuple[list[tuple[int, int]], int]:
    """Return the aligned places of consecutive buffers, (start, length) each, and their total size."""
    places, end = [], 0
    for buffer in buffers:
        places.append((end, buffer.nbytes))
        end += -(-buffer.nbytes // ALIGN) * ALIGN
    return places, end


def model_view(segment: Segment, layout: MemoryLayout, copy: int) -> Vector:
    """Return a model version's vector."""
    return segment.array(copy * layout.model_bytes, layout.dimension, np.dtype(layout.dtype))
