"""Memory shared by processes, without a name, so that it cannot outlive them; its layout, and mail boxes in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np

from anyk.base.arrays import Array, DType, Vector
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.available import available_memory
from anyk.clusters.contract import PINNED
from anyk.clusters.local import State
from anyk.problems.base import Partitions
from anyk.protocol import Layout

BROKEN = "cannot be read: a process has written over them, or they are damaged; resume the run"
ALIGN = 64
_BUFFERS = 4  # reply buffers per worker; if all but one contain unused messages, further messages are moved
_MAIL_BOX = 1 << 16  # bytes of a mail box; untouched pages cost nothing
_RETRY = 2e-4  # seconds after which orders that were being written are read again


@contextlib.contextmanager
def _explain_shortage(length: int) -> Iterator[None]:
    """Turn the error of a system with too little memory into :class:`~anyk.RunFailed`."""
    try:
        yield
    except OSError as error:
        raise RunFailed(f"no room for {length:,} bytes of shared memory ({error.strerror}); free some") from None


class Segment:
    """Shared memory with a file descriptor but no name; it is freed when the last process closes it."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self.memory = mmap.mmap(fd, size)

    @classmethod
    def create(cls, size: int, purpose: str) -> Segment:
        """Return a segment of ``size`` bytes; its pages are allocated when first written."""
        size = max(size, mmap.PAGESIZE)
        if sys.platform == "linux":
            fd = os.memfd_create(f"anyk-{purpose}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            # to read what another process has cut off would end this one
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        else:
            with tempfile.TemporaryFile() as file:  # unlinked immediately: macOS has no memory files
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return cls(fd, size)

    def reserve(self, start: int, length: int) -> None:
        """Allocate the pages of a range now: lack of memory is an error here, but would be a crash at a write."""
        if not hasattr(os, "posix_fallocate"):
            return
        with _explain_shortage(length):
            os.posix_fallocate(self.fd, start, length)

    def store(self, buffers: list[memoryview]) -> list[tuple[int, int]]:
        """Write buffers to a new segment, which grows; return their places."""
        places, size = place_buffers(buffers)
        self.grow(size)
        self.reserve(0, self.size)
        for (start, length), buffer in zip(places, buffers, strict=True):
            self.memory[start : start + length] = buffer
        return places

    def parts(self, places: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the buffers at some places, without copies; read-only, as all workers share them."""
        view = memoryview(self.memory).toreadonly()
        return [view[start : start + length] for start, length in places]

    def empty(self, start: int, length: int) -> None:
        """Free the pages within a range, which then hold zeros, if the system can do so."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + length) // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_REMOVE") and first < last:
            self.memory.madvise(mmap.MADV_REMOVE, first, last - first)

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Write bytes at any place, without mapping it; the segment's length in other processes is unchanged."""
        remaining = memoryview(data)
        while remaining:
            with _explain_shortage(len(remaining)):
                written = os.pwrite(self.fd, remaining, start)
            remaining, start = remaining[written:], start + written

    def array(self, start: int, length: int, dtype: DType) -> Array:
        """Return an array in the segment's memory."""
        if start + length * dtype.itemsize > self.size:
            self.refresh()
        return np.frombuffer(self.memory, dtype=dtype, count=length, offset=start)

    def grow(self, size: int) -> None:
        """Extend the segment to at least ``size`` bytes; existing arrays stay in place."""
        if size > self.size:
            os.ftruncate(self.fd, size)
            self.refresh()

    def refresh(self) -> None:
        """Map the segment at its present length; the old mapping is freed with the last array in it."""
        self.size = os.fstat(self.fd).st_size
        self.memory = mmap.mmap(self.fd, self.size)

    def close(self) -> None:
        """Close the descriptor; the mapping is freed with the last array in it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True)
class MemoryLayout:
    """The layout of a run's shared memory.

    Models: initially space for ``copies`` versions of ``dimension`` numbers. Replies: ``buffers`` per worker, followed
    by messages that were moved from these and that other workers read. Both can grow. Mail: for each worker a box that
    the driver writes and a box for the text of the worker's last error; at the end, orders too long for a box.
    """

    workers: int
    slots: tuple[str, ...]
    copies: int
    dimension: int
    dtype: str
    buffers: int
    lengths: tuple[int, ...]  # length of each worker's longest message
    box: int  # bytes of a mail box
    state_bytes: int = 0  # the most bytes of a worker's state; 0 if no task continues one

    @classmethod
    def of(cls, layout: Layout, partitions: Partitions, lengths: Sequence[int]) -> MemoryLayout:
        """Return the layout of the memory of a run; ``lengths``: the length of each worker's longest message."""
        return cls(
            workers=layout.workers,
            slots=layout.slots,
            # versions in use: one per worker, the newest, the version being written, versions to be evaluated, and the
            # version whose loss workers are computing
            copies=len(layout.slots) * (layout.workers + 2 + PINNED) + 1,
            dimension=partitions.dimension,
            dtype=np.dtype(partitions.dtype).str,
            buffers=_BUFFERS,
            lengths=tuple(lengths),
            box=_MAIL_BOX,
            # 512 bytes for each coordinate, of which untouched ones cost nothing, in whole MiB
            state_bytes=(partitions.dimension // 2048 + 2 << 20) if layout.stateful else 0,
        )

    def check_room(self, size: int) -> None:
        """Raise :class:`~anyk.base.errors.BadInput` unless ``size`` bytes of data and the run's buffers have room."""
        required = size + 3 * self.model_bytes * len(self.slots) + self.replies_size // 2
        available = available_memory()
        if available is not None and required > available:
            raise BadInput(
                f"the data and {self.workers} workers' buffers need {required / 2**20:,.0f} MiB of shared memory, "
                f"{available / 2**20:,.0f} MiB are available; use fewer workers, fewer columns or float32"
            )

    @property
    def itemsize(self) -> int:
        """Size of a number in bytes."""
        return np.dtype(self.dtype).itemsize

    @property
    def model_bytes(self) -> int:
        """Distance between model versions in bytes."""
        return -(-self.dimension * self.itemsize // 4096) * 4096

    @property
    def models_size(self) -> int:
        """Initial size of all model versions in bytes."""
        return self.copies * self.model_bytes

    @cached_property
    def _buffers(self) -> tuple[list[int], list[int]]:
        """Bytes of a reply buffer, with its header, by worker; offset of each worker's first buffer, and of the end."""
        sizes = [message_bytes(length * self.itemsize) for length in self.lengths]
        return sizes, list(accumulate((size * self.buffers for size in sizes), initial=0))

    def buffer_bytes(self, worker: int) -> int:
        """Return the distance between a worker's reply buffers in bytes; each starts with a header."""
        return self._buffers[0][worker]

    def buffer_at(self, worker: int, buffer: int) -> int:
        """Return the offset of a reply buffer in bytes."""
        return self._buffers[1][worker] + buffer * self._buffers[0][worker]

    @property
    def replies_size(self) -> int:
        """Size of all reply buffers in bytes."""
        return self._buffers[1][-1]

    def box_at(self, worker: int) -> int:
        """Return the offset of a worker's mail box in bytes; its error box follows."""
        return worker * (self.box + ERROR_BOX)


# Other processes may read what is shared while it is written, old or new, each number of a header at once. Headers are
# written as slices: ``Struct.pack_into`` writes zeros first, which would be read as a free buffer or an empty letter.
HEADER = struct.Struct("=qqqq32x")  # header of a reply buffer: state, task, chunk, length
FREE, WRITING, FULL, EMPTIED = 0, 1, 2, 3  # states of a reply buffer; emptied: free, without the memory of its pages
ERROR_BOX = 4096
_BOX = struct.Struct("=qqqq")  # sequence number; offset and length of the orders, and a checksum of all four
_PLACE = struct.Struct("=qqq")
_NUMBER = struct.Struct("=q")

# A report to the driver, through a pipe that all workers share; shorter than PIPE_BUF, so writing it is atomic.
RECORD = struct.Struct("=iiiiqiiddddq")  # worker, incarnation, buffer, and a Report without its text
MESSAGE = 48  # bytes of a request to the helper program

_order = threading.Lock()


def order_memory() -> None:
    """Have other processors see what was written before this call before what is written after it.

    Processors of the ARM kind may otherwise show another process new orders before the model that they name. Python has
    no fence; the end of one use of a lock and the start of the next are one for this purpose. Readers need none: the
    place of a model comes from the orders, and no processor reads a place before it knows it.
    """
    for _ in range(2):
        with _order:
            pass


class MailBox:
    """A place for the newest orders only: a worker that was busy does not find a queue of older orders.

    The sequence number changes whenever orders are put. By the checksum, a reader detects that new orders, or the place
    where they are, were being written. Orders too long for the box are written behind all boxes, where the memory can
    grow.
    """

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        self._segment, self._start = segment, start
        self._place, self._size = start + _BOX.size, size - _BOX.size
        self.seen = -1  # the sequence number of the orders taken last

    def put(self, orders: bytes) -> None:
        """Replace the orders; the models that they name have been written before."""
        order_memory()
        if len(orders) > self._size:
            self._place, self._size = self._segment.size, 2 * len(orders)
            self._segment.grow(self._place + self._size)
            self._segment.reserve(self._place, self._size)
        memory = self._segment.memory
        memory[self._place : self._place + len(orders)] = orders
        seq = self._newest() + 1
        header = _BOX.pack(seq, self._place, len(orders), _checksum(seq, self._place, orders))
        memory[self._start : self._start + _BOX.size] = header

    def changed(self) -> bool:
        """Return whether there are orders that have not been taken."""
        return self._newest() != self.seen

    def _newest(self) -> int:
        """Return the sequence number of the newest orders."""
        newest: int = _NUMBER.unpack_from(self._segment.memory, self._start)[0]
        return newest

    def take(self) -> bytes:
        """Return the newest orders."""
        while True:
            seq, offset, length, checksum = _BOX.unpack_from(self._segment.memory, self._start)
            if offset + length > self._segment.size:
                self._segment.refresh()
            orders = self._segment.memory[offset : offset + length]
            if _checksum(seq, offset, orders) == checksum and self._newest() == seq:
                self.seen = seq
                return orders
            time.sleep(_RETRY)  # the driver is writing newer orders, or was stopped while it did


def _checksum(seq: int, place: int, orders: bytes) -> int:
    """Return the checksum of a mail box."""
    return zlib.crc32(orders, zlib.crc32(_PLACE.pack(seq, place, len(orders))))


_STATE = struct.Struct("=qq")  # offset and length of a state's description, after its mark


class SharedStates(MutableMapping[int, State]):
    """A worker's states of optimiser and compressor, by task, in two slots of memory that the driver reads as well.

    A slot begins with a mark, its task plus 1, which is removed before the slot is written and set again afterwards.
    A worker that dies while it writes a state therefore leaves the state in the other slot, from which its task
    started.
    """

    def __init__(self, segment: Segment, worker: int, size: int) -> None:
        self._segment, self._size = segment, size
        self._slots = 2 * worker * size, (2 * worker + 1) * size

    def _slots_by_task(self) -> dict[int, int]:
        """Return the slots that contain a state."""
        marks = [(int.from_bytes(os.pread(self._segment.fd, 8, slot), "little"), slot) for slot in self._slots]
        return {mark - 1: slot for mark, slot in marks if mark}

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots_by_task())

    def __len__(self) -> int:
        return len(self._slots_by_task())

    def __contains__(self, task: object) -> bool:
        return task in self._slots_by_task()  # unlike the inherited method, without mapping the state

    def __delitem__(self, task: int) -> None:
        self._segment.write(self._slots_by_task()[task], bytes(8))

    def __getitem__(self, task: int) -> State:
        slot = self._slots_by_task()[task]
        start, length = _STATE.unpack(os.pread(self._segment.fd, _STATE.size, slot + 8))
        memory = mmap.mmap(self._segment.fd, start + length, offset=slot)
        return {
            name: np.frombuffer(memory, dtype, prod(shape), offset).reshape(shape)
            for name, dtype, shape, offset in json.loads(memory[start:])
        }

    def __setitem__(self, task: int, state: State) -> None:
        write, occupied = self._segment.write, self._slots_by_task()
        occupied.pop(task, None)
        slot = next(slot for slot in self._slots if slot not in occupied.values())
        buffers = [np.ascontiguousarray(vector).reshape(-1).view(np.uint8).data for vector in state.values()]
        places, end = place_buffers(buffers)
        named_places = zip(state.items(), places, strict=True)
        description = [
            (name, vector.dtype.str, vector.shape, ALIGN + offset) for (name, vector), (offset, _) in named_places
        ]
        encoded = json.dumps(description).encode()
        if ALIGN + end + len(encoded) > self._size:
            raise RunFailed(f"the state of a worker's optimiser takes {end:,} bytes, which is more than {self._size:,}")
        write(slot, bytes(8) + _STATE.pack(ALIGN + end, len(encoded)))
        for (offset, _), buffer in zip(places, buffers, strict=True):
            write(slot + ALIGN + offset, buffer)
        write(slot + ALIGN + end, encoded)
        write(slot, (task + 1).to_bytes(8, "little"))


def mark_buffer(
    memory: mmap.mmap, offset: int, state: int, *, task: int = -1, chunk: int = -1, length: int = 0
) -> None:
    """Write the header of a reply buffer: the message in it, and then its state."""
    described = offset + _NUMBER.size
    memory[described : described + _PLACE.size] = _PLACE.pack(task, chunk, length)
    memory[offset:described] = _NUMBER.pack(state)


def message_bytes(size: int) -> int:
    """Return the bytes that a message of ``size`` bytes takes, including its header."""
    return -(-(HEADER.size + size) // ALIGN) * ALIGN


def place_buffers(buffers: list[memoryview]) -> tuple[list[tuple[int, int]], int]:
    """Return the aligned places of consecutive buffers as (start, length), and their total size."""
    return places_of([buffer.nbytes for buffer in buffers])


def places_of(sizes: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Return the aligned places of consecutive buffers of some sizes, and their total size."""
    places, end = [], 0
    for size in sizes:
        places.append((end, size))
        end += -(-size // ALIGN) * ALIGN
    return places, end


def model_view(segment: Segment, layout: MemoryLayout, copy: int) -> Vector:
    """Return the vector of a model version."""
    return segment.array(copy * layout.model_bytes, layout.dimension, np.dtype(layout.dtype))
