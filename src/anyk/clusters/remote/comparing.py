"""Gradients of the same partition that several workers compute: they must agree."""

from __future__ import annotations

from typing import Any

from anyk.clusters.injection import InFlight
from anyk.clusters.remote.handles import Notice
from anyk.errors import RunFailed
from anyk.problems.replicas import SINGLE, differing, marks_apart

_REMEMBERED = 256  # gradients to compare others with


class Comparisons:
    """Remembers who computed which gradient, and its mark."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = max(tolerance, SINGLE)
        self._marks: dict[tuple[Any, ...], tuple[int, int]] = {}

    def check(self, notice: Notice, entry: InFlight) -> None:
        """Raise :class:`~anyk.errors.RunFailed` where two workers have computed different gradients of a partition."""
        chunk, version = entry.chunks[notice.chunk], entry.versions[notice.chunk]
        key = chunk.slot, version, notice.done, chunk.batch, chunk.repeat
        other, bits = self._marks.setdefault(key, (notice.worker, notice.bits))
        apart = marks_apart(bits, notice.bits)
        if other != notice.worker and not apart <= self._tolerance:
            raise RunFailed(differing(other, notice.worker, notice.done, version, apart))
        if len(self._marks) > _REMEMBERED:
            del self._marks[next(iter(self._marks))]
