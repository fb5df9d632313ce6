"""The vectors of a run on the driver's side: models, and messages as they come in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.arrivals import Arrivals, Message
from anyk.clusters.remote.handles import Notice
from anyk.problems.base import Vector
from anyk.protocol import Chunk


class RemotePayload(Arrivals, ABC):
    """Models and messages of a run; where they lie, and how workers find them, is a cluster's own."""

    # ------------------------------------------------------------------------------- what a cluster implements

    @abstractmethod
    def blank(self, slot: str) -> Vector:
        """A buffer for a slot's next version."""

    @abstractmethod
    def publish(self, slot: str, version: int, w: Vector) -> None:
        """Make a version readable for workers; ``w`` is the blank, or is copied to it."""

    @abstractmethod
    def model(self, slot: str, version: int) -> Vector:
        """A version that has been published."""

    @abstractmethod
    def release(self, slot: str, version: int) -> None:
        """The version is needed no more."""

    @abstractmethod
    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """Take in a saved message as if it had arrived, where other workers can read it."""

    @abstractmethod
    def place(self, slot: str, version: int) -> int:
        """The place at which workers find a model version."""

    @abstractmethod
    def locate(self, key: tuple[int, int]) -> tuple[int, int]:
        """The place at which workers find the message of another; :class:`~anyk.errors.RunFailed` if it is gone."""

    @abstractmethod
    def contents(self, notice: Notice, length: int, dtype: np.dtype[Any]) -> tuple[int, NDArray[Any] | None]:
        """The length of what was sent, and the array, if it is the message announced and has the length expected."""

    @abstractmethod
    def keep(self, notice: Notice, ids: tuple[int, ...], vector: Vector) -> Message:
        """Keep a message."""

    @abstractmethod
    def free_buffer(self, worker: int, buffer: Any) -> None:
        """Nobody needs any more what lies in a buffer."""

    # ------------------------------------------------------------------------------- messages

    def _drop(self, task: int, chunk: int) -> None:
        message = self.arrived.pop((task, chunk), None)
        if message is not None and message.buffer is not None:
            self.free_buffer(message.worker, message.buffer)

    def covered(self, task: int, index: int, chunk: Chunk) -> tuple[int, ...]:
        """The partitions that a chunk's message covers."""
        request = self.requests.get((task, index))
        if request is None:
            return chunk.covers
        inside = [j for key in request.messages for j in self.arrived[key].ids]
        return tuple(dict.fromkeys([*request.partitions, *inside]))

    def vectors(self) -> dict[str, Vector]:
        """See :meth:`Cluster.vectors`."""
        return self.readers.vectors(lambda task, chunk: self.arrived[task, chunk].vector)

    def take_back(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:
        """Take in what :meth:`vectors` gave."""
        self.readers.take_back(vectors, workers, self.hold)
