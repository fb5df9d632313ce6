"""A run as a trace: how long each worker took for each version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.strategies import strategy as build_strategy
from anyk.training.digests import with_plugins
from anyk.training.rows import task_times
from anyk.training.run import Run


def measured(run: Run, *, due: bool = True) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
    """How long tasks took in a run: seconds (rounds x workers), which of them are censored, and the load.

    From a task's dispatch to its last message or, for a task that was cut off, a lower bound. A row for
    every time at which all workers were given a task and not all of them cut off, as when a run ends; the load is the
    mean share of the data of a task. ``due``: where a cluster knows when a task that was cut off would have ended, that
    counts as measured; no real fleet knows. Raises :class:`~anyk.errors.BadInput` where there is none.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> fleet = anyk.clusters.Simulated(3, delays=anyk.delays.Constant(2.0))
    >>> times, _, load = measured(anyk.train(problem, "uncoded", fleet, steps=2))
    >>> times.tolist(), round(load, 3)
    ([[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]], 0.333)
    """
    workers = int(run.config["workers"])
    with with_plugins(run.config, f"the run '{run.path}'"):
        strategy = build_strategy(run.config["strategy"], workers=workers)
    shares: Sequence[int] = strategy.layout.shares or [1] * strategy.layout.partitions
    table: dict[tuple[float, int], dict[int, tuple[float, bool, int]]] = {}
    given: Counter[tuple[float, int]] = Counter()  # rounds that take no time begin at the same one
    for dispatched, worker, end, known, partitions in task_times(run.log, due=due):
        if end is not None:
            covered = sum(shares[j] for j in partitions)
            row = table.setdefault((dispatched, given[dispatched, worker]), {})
            row[worker] = end - dispatched, not known, covered
            given[dispatched, worker] += 1
    whole = [row for row in table.values() if len(row) == workers and not all(cut for _, cut, _ in row.values())]
    if not whole:
        raise BadInput("a trace needs rounds, but the workers of this run were never all given a task at once")
    seconds = np.array([[row[i][0] for i in range(workers)] for row in whole])
    censored = np.array([[row[i][1] for i in range(workers)] for row in whole])
    return seconds, censored, float(np.mean([[row[i][2] for i in range(workers)] for row in whole]) / sum(shares))


def save_trace(run: Run, path: str | Path) -> tuple[int, int, float]:
    """Write a trace (.npz) of a run's log; returns rounds, workers and the share of times that are censored.

    Its arrays are ``seconds``, ``censored`` and ``load``, see :func:`measured`. Raises
    :class:`~anyk.errors.BadInput` where there is nothing to write, or no room.
    """
    seconds, censored, load = measured(run)
    target = Path(path)
    if target.suffix != ".npz":
        raise BadInput(f"a trace is written as .npz, got '{path}'")
    try:
        np.savez(target, seconds=seconds, censored=censored, load=load)
    except OSError as error:
        raise BadInput(f"the trace '{path}' cannot be written ({error.strerror})") from None
    return *seconds.shape, float(censored.mean())
