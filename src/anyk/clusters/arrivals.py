"""The messages of a run that have arrived, as the driver keeps them. One definition for all clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.messages import WHOLE, Messages
from anyk.clusters.readers import Readers
from anyk.problems.base import Vector
from anyk.protocol import RequestMessage, Task


class Message(NamedTuple):
    """A message that has arrived."""

    ids: tuple[int, ...]
    vector: Vector
    worker: int
    buffer: Any = None  # where it lies besides, for other workers to read; None: nowhere


class Arrivals:
    """Messages that have arrived, by task and chunk; the base of a cluster's payload."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.arrived: dict[tuple[int, int], Message] = {}
        self.readers = Readers(self._drop)
        self.requests: dict[tuple[int, int], RequestMessage] = {}  # that have not been answered

    def combine(
        self, messages: Sequence[tuple[int, int]], weights: Sequence[Any], part: slice = WHOLE
    ) -> NDArray[np.float64]:
        """The weighted sum of messages."""
        found = [self.arrived[key] for key in messages]
        return self.messages.add_up([(m.ids, m.vector, weight) for m, weight in zip(found, weights, strict=True)], part)

    def project(self, task: int, chunk: int, key: int) -> float | None:
        """The product of a message with the direction of a key; None where it has been freed."""
        message = self.arrived.get((task, chunk))
        return None if message is None else self.messages.project(message.ids, message.vector, key)

    def free(self, task: int, chunk: int) -> None:
        """Drop a message, at once or when no task reads it any more."""
        self.readers.free(task, chunk)

    def end(self, task: int, chunks: Task) -> None:
        """A task has ended: it no longer reads the messages it began from, and requests to it will not be answered."""
        self.readers.end(chunks)
        if self.requests:
            self.requests = {key: request for key, request in self.requests.items() if key[0] != task}

    def _drop(self, task: int, chunk: int) -> None:
        self.arrived.pop((task, chunk), None)
