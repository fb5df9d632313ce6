"""Messages between ranks: their format, and sending and awaiting them without blocking inside MPI."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import Array
from anyk.base.errors import BadInput, MissingPackage
from anyk.clusters.contract import Report
from anyk.clusters.remote.wire import Form

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

RECEIVED, BYE = 100, 101  # further kinds of reports: received an envelope; left a run
PARCEL_TAG, REPORT_TAG, VECTOR_TAG = 1, 2, 3
RUN, ORDERS, CLOSE, END = range(4)  # kinds of the driver's messages
REPORT_BYTES, TEXT_LENGTH = 4096, 512  # the most bytes of a report, and characters of its text
SentReport = tuple[int, Report, Form | None]  # as a line of JSON: run, report, type and size of its vector
_SHORT = 5e-5  # seconds between two polls for messages, doubled while there are none
WORKER_PAUSE, DRIVER_PAUSE = 2e-3, 5e-4  # the longest such pauses


class Pause:
    """A pause between two polls for messages; MPI's own waiting would occupy a processor."""

    def __init__(self, longest: float = WORKER_PAUSE) -> None:
        self.seconds, self._longest = _SHORT, longest

    def __call__(self, until: float | None = None) -> None:
        """Sleep, at most until a time; the next pause is longer."""
        wait = self.seconds if until is None else min(self.seconds, max(0.0, until - time.monotonic()))
        time.sleep(wait)
        self.seconds = min(2 * self.seconds, self._longest)


@cache
def communicator() -> Intracomm:
    """Return anyk's communicator, which all ranks create together once; start MPI."""
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise MissingPackage("mpi4py", "mpi", "cluster 'mpi'") from None
    except (ImportError, RuntimeError) as error:  # mpi4py's wheel searches for an MPI library when imported
        reason = str(error).partition("\n")[0].rstrip("(: ")
        raise BadInput(
            f"cluster 'mpi' needs an MPI library that mpi4py can load ({reason}); a package of the system is often "
            "built for another mpi4py: run pip install mpich, and start the program with the mpiexec that it brings"
        ) from None
    return MPI.COMM_WORLD.Dup()


class Sends:
    """Messages being sent; their memory is kept until they have left."""

    def __init__(self, world: Intracomm) -> None:
        self._world = world
        self._open: list[tuple[Request, Any]] = []

    def __call__(self, rank: int, tag: int, data: Any) -> None:
        """Start sending a message."""
        self.tidy()
        self._open.append((self._world.Isend(data, dest=rank, tag=tag), data))

    def tidy(self) -> None:
        """Release the memory of messages that have left."""
        if self._open:
            self._open = [(request, data) for request, data in self._open if not request.Test()]

    @property
    def pending(self) -> bool:
        """Whether any message has not left yet."""
        self.tidy()
        return bool(self._open)


def take_parcel(world: Intracomm) -> tuple[int, list[Any], bytes, list[Array]] | None:
    """Return the kind, values, body and vectors of the driver's next parcel; None if there is none yet."""
    from mpi4py import MPI

    status = MPI.Status()
    if not world.Iprobe(source=0, tag=PARCEL_TAG, status=status):
        return None
    data = bytearray(status.Get_count(MPI.BYTE))
    _receive(world, data)
    size = int.from_bytes(data[:8], "little")
    kind, values, forms = json.loads(bytes(data[8 : 8 + size]))
    vectors = [np.empty(length, dtype=np.dtype(dtype)) for dtype, length in forms]
    for vector in vectors:
        _receive(world, vector)
    return kind, values, bytes(data[8 + size :]), vectors


def _receive(world: Intracomm, data: Any) -> None:
    request = world.Irecv(data, source=0, tag=PARCEL_TAG)
    pause = Pause()
    while not request.Test():
        pause()


def parcel(kind: int, values: Sequence[Any], body: bytes, vectors: Sequence[Array]) -> bytes:
    """Return the first message of a parcel: its head, which describes the vectors that follow, and its body."""
    head = json.dumps([kind, values, [[vector.dtype.str, vector.size] for vector in vectors]]).encode()
    return len(head).to_bytes(8, "little") + head + body
