"""The binary format of orders to workers, the same for all clusters on the wall clock."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyk.clusters.remote.worker import NO_TASK, Orders
from anyk.protocol import Chunk, Task

# task, flags, start, delay before, delay each, lengths of the work, positions (of models, then their versions) and
# requests and question, which follow
_HEAD = struct.Struct("=qqdddqqq")
NOTHING = _HEAD.pack(NO_TASK, 0, 0.0, 0.0, 0.0, 0, 0, 0)


def pack_work(chunks: Task) -> bytes:
    """Return, as bytes, the part of a task that is the same in every step."""
    return json.dumps(chunks).encode()


def pack_orders(
    task: int,
    flags: int,
    times: tuple[float, float, float],
    work: bytes,
    positions: Sequence[int],
    requests: Sequence[Any],
    question: Sequence[Any] | None = None,
) -> bytes:
    """Return orders as bytes; ``times``: start, delay before, delay each; ``positions``: of models, then versions."""
    asks = json.dumps([requests, question]).encode() if requests or question else b""
    head = _HEAD.pack(task, flags, *times, len(work), len(positions), len(asks))
    return head + work + np.asarray(positions, dtype=np.int64).tobytes() + asks


class OrderReader:
    """Reads orders; it decodes the work only if that has changed since the last orders."""

    def __init__(self) -> None:
        self._known: tuple[bytes, list[Chunk]] = (b"", [])

    def __call__(self, data: bytes | bytearray | memoryview) -> Orders:
        """Return orders read from bytes."""
        task, flags, start, before, each, work, positions, requests = _HEAD.unpack_from(data)
        body = bytes(data[_HEAD.size : _HEAD.size + work])
        if body != self._known[0]:
            self._known = body, list(map(Chunk.from_plain, json.loads(body or b"[]")))
        at = _HEAD.size + work
        numbers = np.frombuffer(data, dtype=np.int64, count=positions, offset=at).tolist()
        at += 8 * positions
        asks, question = json.loads(bytes(data[at : at + requests])) if requests else ([], None)
        half = positions // 2
        return Orders(task, flags, start, before, each, self._known[1], numbers[:half], numbers[half:], asks, question)
