"""The memory that a run takes on the driver's machine: foretold before its workers start."""

from __future__ import annotations

from typing import NamedTuple

from anyk.clusters.available import available_memory
from anyk.clusters.contract import Cluster
from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.problems.base import Partitions
from anyk.protocol import Layout

_MODELS = 3  # versions of a slot: the newest, the next, and one that a task is still on
_DRIVER = 4  # vectors besides: a whole gradient, a problem's copies of the model to evaluate it, the result
_WORKER = 2  # messages' lengths that a worker takes to compute one


class Need(NamedTuple):
    """Bytes, by what they are for; activations of networks and the data are not among them."""

    models: int
    replies: int
    optimizer: int
    driver: int
    workers: int

    @classmethod
    def of(cls, cluster: Cluster, layout: Layout, partitions: Partitions, optimizer: Optimizer | None) -> Need:
        """That of a run; workers count where they are on this machine."""
        size = partitions.dtype.itemsize
        vector = partitions.dimension * size
        lengths = [_length(partitions, held) * size for held in layout.covers or layout.assignment]
        state = 0 if optimizer is None else optimizer.vectors
        replies = sum(lengths) // layout.blocks
        own = sum(_WORKER * length for length in lengths)
        if layout.inner is not None:
            own += layout.workers * (_WORKER + state) * vector
        return cls(
            _MODELS * vector * len(layout.slots),
            replies if not (cluster.workers_here or cluster.virtual) else 2 * replies,
            state * vector * len(layout.slots),
            _DRIVER * vector,
            own if cluster.workers_here else 0,
        )

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)

    def check(self) -> str:
        """One line about it; raises :class:`~anyk.errors.BadInput` where there is less."""
        available = available_memory()
        if available is None:
            return f"{_amount(self.total)} of memory needed"
        if self.total > available:
            parts = ", ".join(f"{name} {_amount(part)}" for name, part in zip(self._fields, self, strict=True) if part)
            raise BadInput(
                f"the run needs about {_amount(self.total)} of memory ({parts}), {_amount(available)} are available; "
                "use fewer workers, a smaller model, float32 or more machines"
            )
        return f"{_amount(self.total)} of memory needed, {_amount(available)} available"


def _length(partitions: Partitions, held: tuple[int, ...]) -> int:
    """The length of a message over partitions at most."""
    supports = [partitions.support(j) for j in held]
    touched = sum(support.size for support in supports if support is not None)
    whole = not supports or any(support is None for support in supports)
    return partitions.dimension if whole else min(partitions.dimension, touched)


def _amount(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
