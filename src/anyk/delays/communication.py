"""How long vectors are under way between driver and workers, or between neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from anyk import keyed
from anyk.checks import typed
from anyk.delays.models import DelayModel
from anyk.delays.stream import DelayStream
from anyk.errors import BadInput
from anyk.specs import show


@typed
@dataclass(frozen=True)
class Communication:
    """Seconds that a task's vectors take: ``links`` times a ``latency``, and their bytes over the ``bandwidth``.

    A task that gets the model and sends a message has one link; one that reads its neighbours' models has as many as
    it reads. ``latency`` is a law (constant, random), drawn once a task by (seed, worker, number); ``bandwidth`` is in
    bytes a second, 0 for endless.

    >>> from anyk.delays import NoDelay
    >>> Communication(NoDelay(), bandwidth=1e6).spec
    'link:bandwidth=1000000'
    """

    latency: DelayModel
    bandwidth: float = 0.0

    def __post_init__(self) -> None:
        if self.bandwidth and not 1.0 <= self.bandwidth < float("inf"):
            raise BadInput(f"bandwidth must be at least 1 byte a second, or 0 for endless, got {self.bandwidth:g}")

    @property
    def silent(self) -> bool:
        """Whether nothing takes time."""
        return self.latency.silent and not self.bandwidth

    @property
    def spec(self) -> str:
        """The short form."""
        if not self.bandwidth:
            return self.latency.spec
        law = self.latency.spec
        latency = {} if self.latency.silent else {"latency": f"({law})" if ":" in law else law}
        return show("link", {**latency, "bandwidth": self.bandwidth})

    def stream(self, seed: int, workers: int) -> CommunicationStream:
        """Its draws for a fleet."""
        return CommunicationStream(self, seed, workers)


class CommunicationStream:
    """The draws of a fleet's communication, apart from those of its delays."""

    def __init__(self, law: Communication, seed: int, workers: int) -> None:
        self._law = law
        own = int(keyed.uniform(seed, "communication", number=0) * 2**53)
        self._latency = DelayStream(law.latency, own, workers)

    def seconds(self, worker: int, number: int, links: int, size: int) -> float:
        """What the ``number``-th task of a worker takes for ``size`` bytes over ``links`` links."""
        if not links:
            return 0.0
        latency = 0.0 if self._latency.silent else links * self._latency.at(worker, number)
        return latency + (size / self._law.bandwidth if self._law.bandwidth else 0.0)
