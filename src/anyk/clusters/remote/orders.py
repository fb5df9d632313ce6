"""Orders to workers and their binary format, the same for all clusters on the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from anyk.protocol import Chunk

PREEMPT, UNINTERRUPTIBLE = 1, 2  # flags of orders: end the current task now; sleep through delays
NO_TASK = -1


class Orders(NamedTuple):
    """The newest orders of a worker: one task, and the messages requested from it."""

    task: int
    flags: int
    start: float  # time from which the task's delays count, on the worker's clock
    before: float  # seconds of injected delay before the first partition
    each: float  # seconds of injected delay for each partition
    chunks: Sequence[Chunk]
    places: Sequence[int]  # the place of each chunk's model
    versions: Sequence[int]  # the version of each chunk's model
    requests: Sequence[Any]  # task, chunk, partitions, coefficients, messages of other workers to add
    question: Sequence[Any] | None = None  # about losses: number, place of the model, slot, partitions, samples
    carried: Sequence[Any] = ()  # values that each chunk's model carries: numbers, arrays, places of their pieces


pack = msgspec.msgpack.Encoder(enc_hook=float).encode  # float() converts NumPy's numbers
unpack = msgspec.msgpack.Decoder(Orders).decode
NOTHING = pack(
    Orders(task=NO_TASK, flags=0, start=0.0, before=0.0, each=0.0, chunks=(), places=(), versions=(), requests=())
)
