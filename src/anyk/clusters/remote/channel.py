"""The worker's side of a cluster on the wall clock: the transport of orders, models and messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from anyk.base.arrays import Array, Vector
from anyk.clusters.contract import Report
from anyk.clusters.remote.orders import Orders

KINDS = range(8)  # of reports
READY, REPLY, PROGRESS, STOPPED, FAILED, COMPARED, EVALUATED, LEAVING = KINDS

R = TypeVar("R")  # what a cluster uses to refer to a message buffer


class Disconnected(BaseException):
    """Raised in a worker when the driver has ended."""


class Channel(ABC, Generic[R]):
    """A worker's connection to the driver."""

    @abstractmethod
    def start(self) -> None:
        """Call ``begin`` with the partitions and the assignment that the driver sent at the start."""

    @abstractmethod
    def changed(self) -> bool:
        """Return whether there are orders not yet taken."""

    @abstractmethod
    def take(self) -> Orders | None:
        """Take the newest orders, if there are any not yet taken."""

    @abstractmethod
    def listen(self, until: float | None) -> None:
        """Wait for new orders, at most until a time; raise :class:`Disconnected` if the driver has ended."""

    @abstractmethod
    def model(self, slot: str, location: int) -> Vector:
        """Return a model version, read-only."""

    @abstractmethod
    def message(self, location: tuple[int, int], size: int) -> Vector:
        """Return another worker's message."""

    @abstractmethod
    def reserve_buffer(self, length: int, chunk: int) -> tuple[R, Vector]:
        """Return a buffer for a message of ``length`` numbers; wait while the driver uses all buffers."""

    @abstractmethod
    def discard_buffer(self, buffer: R) -> None:
        """Free a buffer whose message will not be sent."""

    @abstractmethod
    def report(self, report: Report, vector: Array | None = None, buffer: R | None = None) -> None:
        """Send a report, and the message in a buffer: its numbers, or its payload of bytes."""

    def load_missing(self, partitions: Sequence[int]) -> None:
        """Load partitions that were not assigned at the start; by default all partitions are loaded then."""
