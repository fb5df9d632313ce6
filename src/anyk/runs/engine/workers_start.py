"""The start of a run's workers: the problem's partitions, and how they take local steps."""

from __future__ import annotations

import reprlib

import numpy as np

from anyk.base.errors import BadInput
from anyk.clusters.local import Local
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Partitions, Problem, partition_abilities, penalty_of
from anyk.protocol import Layout


def partitions_of(problem: Problem, layout: Layout, *, copied: bool, compared: bool = True) -> Partitions:
    """Return the problem's partitions for a strategy.

    ``copied``: workers compute with copies, which must do as the driver's do. ``compared``: replicas must agree.

    Raises :class:`~anyk.BadInput` if replicas of a gradient cannot agree.
    """
    # custom problems need no parameter for shares unless a strategy has them
    shares = () if layout.shares is None else (layout.shares,)
    partitions = problem.split(layout.partitions, *shares)
    _check_partitions(problem, partitions, layout.partitions)
    penalty = penalty_of(problem)
    if layout.inner is not None and isinstance(penalty, np.ndarray):
        partitions.penalty = penalty  # type: ignore[attr-defined]  # an optional member
    if not compared:
        return partitions
    replicas = replicated(layout)
    if copied or replicas:
        partition_abilities(partitions).compare_workers(replicas=replicas)
    if replicas:
        partition_abilities(partitions).compare_replicas()
        if layout.voting and partition_abilities(partitions).tolerance:
            partitions.tolerance = 0.0  # type: ignore[attr-defined]  # it outvotes a worker that differs
    return partitions


def _check_partitions(problem: Problem, partitions: Partitions, number: int) -> None:
    """Raise :class:`~anyk.BadInput` unless a problem was split into so many partitions, which have all its samples."""
    for member in ("sizes", "dtype", "dimension", "partial_gradient", "support", "load"):
        if not hasattr(partitions, member):
            raise BadInput(f"split({number}) of the problem gave a {type(partitions).__name__}, which has no {member}")
    sizes = list(partitions.sizes)
    if len(sizes) != number or min(sizes) < 1 or sum(sizes) != problem.samples:
        raise BadInput(
            f"split({number}) of the problem must give {number} partitions of at least one sample, of "
            f"{problem.samples} samples in all; its sizes are {reprlib.repr(sizes)}, in all {sum(sizes)}"
        )
    if not np.dtype(problem.dtype).isnative:
        raise BadInput(
            f"the numbers of the problem ({np.dtype(problem.dtype).str}) have their bytes in another order than this "
            "machine's; convert them, as by array.astype(array.dtype.newbyteorder('='))"
        )
    if partitions.dimension != problem.dimension:
        raise BadInput(
            f"partitions of the problem have {partitions.dimension} coordinates, and the problem {problem.dimension}"
        )


def replicated(layout: Layout) -> bool:
    """Return whether several workers compute gradients of the same partition, which then must agree."""
    if layout.replicated is not None or layout.inner is not None:
        return bool(layout.replicated) and layout.inner is None
    assigned = [j for partitions in layout.assignment for j in partitions]
    return len(set(assigned)) < len(assigned)


def local_of(layout: Layout, problem: Problem | None, optimizer: Optimizer | None) -> Local | None:
    """Return how workers take local steps; None if the strategy has none."""
    if layout.inner is None or problem is None or optimizer is None:
        return None
    if not optimizer.uniform:
        raise BadInput(
            "under this strategy workers take the steps, all by one learning rate that is known from the start; "
            "parameter groups and ReduceLROnPlateau go with strategies whose workers send gradients"
        )
    penalty = penalty_of(problem)
    local = Local(
        optimizer=layout.inner or optimizer.spec,
        rate=optimizer.rate.spec,
        penalty=None if isinstance(penalty, np.ndarray) else penalty,
    )
    build_optimizer(local.optimizer, lr=local.rate)  # an invalid optimiser is reported here, and not by the workers
    return local
