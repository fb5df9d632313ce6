"""Messages between ranks: their form, and how they are sent and awaited without blocking inside MPI."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput, MissingPackage

RECEIVED, BYE = 100, 101  # further kinds of messages: an envelope has been received; a run has been left
TO_WORKER, WIRE, VECTOR = 1, 2, 3  # tags
RUN, ORDERS, CLOSE, END = range(4)  # what the driver sends: each begins with its kind
TEXT = 512
WIRE_FORM = struct.Struct(f"=qqqqddddqqqqi{TEXT}s")  # a message, its run, the size and type of its vector
_SHORT = 5e-5  # seconds between two looks for messages, doubled while there are none
LONG, LONG_DRIVER = 2e-3, 5e-4  # up to these


class Pause:
    """A pause between two looks for messages: MPI's own waiting would keep a processor busy that others need."""

    def __init__(self, longest: float = LONG) -> None:
        self.seconds, self._longest = _SHORT, longest

    def __call__(self, until: float | None = None) -> None:
        """Sleep, at most until a time, and longer the next time."""
        wait = self.seconds if until is None else min(self.seconds, max(0.0, until - time.monotonic()))
        time.sleep(wait)
        self.seconds = min(2 * self.seconds, self._longest)


@cache
def communicator() -> Any:
    """Return anyk's communicator, made once by all ranks; starts MPI."""
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise MissingPackage("mpi4py", "mpi", "cluster 'mpi'") from None
    except (ImportError, RuntimeError) as error:  # the wheel of mpi4py looks for a library when it is imported
        why = str(error).partition("\n")[0].rstrip("(: ")
        raise BadInput(
            f"cluster 'mpi' needs an MPI library that mpi4py can load ({why}); a package of the system is often built "
            "for another mpi4py: run pip install mpich, and start the program with the mpiexec that it brings"
        ) from None
    return MPI.COMM_WORLD.Dup()


class Sends:
    """Messages on their way out; what they are sent from is kept until they have left."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._open: list[tuple[Any, Any]] = []

    def __call__(self, rank: int, tag: int, data: Any) -> None:
        """Start to send."""
        self.tidy()
        self._open.append((self._world.Isend(data, dest=rank, tag=tag), data))

    def tidy(self) -> None:
        """Let go of what has left."""
        if self._open:
            self._open = [(request, data) for request, data in self._open if not request.Test()]

    @property
    def pending(self) -> bool:
        """Whether any have not left."""
        self.tidy()
        return bool(self._open)


def take_parcel(world: Any) -> tuple[int, list[Any], bytes, list[NDArray[Any]]] | None:
    """Return the driver's next parcel, if one is there: its kind, values, body and vectors."""
    from mpi4py import MPI

    status = MPI.Status()
    if not world.Iprobe(source=0, tag=TO_WORKER, status=status):
        return None
    data = bytearray(status.Get_count(MPI.BYTE))
    _receive(world, data)
    size = int.from_bytes(data[:8], "little")
    kind, values, forms = json.loads(bytes(data[8 : 8 + size]))
    vectors = [np.empty(length, dtype=np.dtype(dtype)) for dtype, length in forms]
    for vector in vectors:
        _receive(world, vector)
    return kind, values, bytes(data[8 + size :]), vectors


def _receive(world: Any, data: Any) -> None:
    request = world.Irecv(data, source=0, tag=TO_WORKER)
    pause = Pause()
    while not request.Test():
        pause()


def parcel(kind: int, values: Sequence[Any], body: bytes, vectors: Sequence[NDArray[Any]]) -> bytes:
    """Return the head of a parcel, which specifies the vectors that follow, with its body."""
    head = json.dumps([kind, values, [[vector.dtype.str, vector.size] for vector in vectors]]).encode()
    return len(head).to_bytes(8, "little") + head + body
