"""The memory that a run requires on the driver's machine, estimated before its workers start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anyk.base.errors import BadInput
from anyk.clusters.available import available_addresses, available_memory, give_back
from anyk.clusters.contract import Cluster
from anyk.clusters.supports import support_of
from anyk.clusters.vector_parts import count_threads
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Partitions
from anyk.protocol import Layout

_MODELS = 3  # versions of a slot: the newest, the next, and one that a task still uses
_READ = 2  # versions that the driver has where they lie in slices elsewhere: the first, and one that is read
_DRIVER = 4  # further vectors of the driver: a gradient, copies of the model to evaluate it, the result
_WORKER = 4  # vectors with the length of a message in which a worker computes it: sums, parts and remainders
_OUTER = 2  # the most vectors in the state of an optimiser that steps by the change of local work
_LOCAL = 4  # further vectors of a worker that takes local steps: models, a gradient and the optimiser's result
_THREAD = 136 << 20  # bytes of addresses that the C library sets aside for a thread: a stack and a heap


class Need(NamedTuple):
    """Required bytes by purpose, without activations of networks and data."""

    models: int
    replies: int
    optimizer: int
    driver: int
    workers: int
    mapped: int = 0  # bytes of addresses, which take memory only when they are used

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        layout: Layout,
        partitions: Partitions,
        optimizer: Optimizer | None,
        *,
        saved: bool = False,
    ) -> Need:
        """Return the memory that a run needs; workers count if they are on this machine.

        ``saved``: whether checkpoints are written, from copies of models and optimiser states.
        """
        size = partitions.dtype.itemsize
        vector, slots = partitions.dimension * size, len(layout.slots)
        lengths = [_length(partitions, partition_set) * size for partition_set in layout.covers or layout.assignment]
        state = 0 if optimizer is None else optimizer.vectors
        replies = sum(lengths) // layout.blocks
        on_this_machine = cluster.workers_here or cluster.virtual
        inner = build_optimizer(layout.inner, lr=1.0).vectors if layout.inner else state
        states = 2 * layout.workers * max(inner, 1) * vector if layout.stateful else 0  # two of each worker
        at_driver = (_DRIVER + saved * (_MODELS + state) * slots) * vector
        if on_this_machine:  # a checkpoint copies one of a worker's states, and is written from another copy
            at_driver += (cluster.virtual + saved) * states
        return cls(
            models=(_READ if cluster.in_slices else _MODELS) * vector * slots,
            replies=0 if cluster.in_slices else 2 * replies if on_this_machine else replies,
            optimizer=(state if layout.inner is None else max(state, _OUTER)) * vector * slots,
            driver=at_driver,
            workers=_at_workers(layout, lengths, states, inner * vector, vector) if cluster.workers_here else 0,
            mapped=cluster.mapped(layout, partitions, [length // size for length in lengths]),
        )

    @property
    def total(self) -> int:
        """Total number of bytes, without addresses."""
        return sum(self) - self.mapped

    def check(self) -> str:
        """Return a line about the memory needed; raise :class:`~anyk.BadInput` if less is available."""
        give_back(self.models)  # memory that building the problem has freed
        self._check_addresses()
        available = available_memory()
        if available is None:
            return f"{_amount(self.total)} of memory needed"
        if self.total > available:
            named = zip(self._fields[:-1], self, strict=False)
            parts = ", ".join(f"{name} {_amount(amount)}" for name, amount in named if amount)
            raise BadInput(
                f"the run needs about {_amount(self.total)} of memory ({parts}), {_amount(available)} are available; "
                "use fewer workers, a smaller model, float32 or more machines"
            )
        return f"{_amount(self.total)} of memory needed, {_amount(available)} available"

    def _check_addresses(self) -> None:
        """Raise if the driver may not map enough addresses (``ulimit -v``)."""
        available = available_addresses()
        if available is None:
            return
        threads = (count_threads() + 1) * _THREAD
        needed = (self.mapped or self.models + self.replies) + self.optimizer + self.driver + threads
        if needed > available:
            raise BadInput(
                f"the run needs about {_amount(needed)} of addresses, this process may map {_amount(available)} more "
                "(ulimit -v); raise the limit or use fewer workers"
            )


def _at_workers(layout: Layout, lengths: Sequence[int], states: int, inner: int, vector: int) -> int:
    """Return the bytes that workers need beside their data.

    ``lengths``: bytes of each worker's longest message; ``states``: of the optimiser states that they keep; ``inner``:
    of one such state; ``vector``: of a model.
    """
    needed = sum(_WORKER * length for length in lengths) + states
    if layout.inner is None:
        return needed
    # the previous state is stored until the next task ends; it may be among those that are kept
    further_states = 1 if states else 2
    return needed + layout.workers * (_LOCAL * vector + further_states * inner)


def _length(partitions: Partitions, assigned: tuple[int, ...]) -> int:
    """Return the largest length of a message over partitions."""
    supports = [support_of(partitions, j) for j in assigned]
    touched = sum(support.size for support in supports if support is not None)
    dense = not supports or any(support is None for support in supports)
    return partitions.dimension if dense else min(partitions.dimension, touched)


def _amount(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{max(size / 2**20, 1.0):,.0f} MiB"
