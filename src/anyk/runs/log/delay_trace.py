"""A run as a trace: how long each worker took for each version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.runs.folder.digests import with_plugins
from anyk.runs.log.queries import task_times
from anyk.runs.run import Run
from anyk.strategies import strategy as build_strategy


def measured(run: Run, *, due: bool = True) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
    """Return the seconds of tasks of a run (rounds x workers), a mask of the censored ones, and the load.

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
    rows, whole = _rounds(run, due=due)
    workers = range(len(rows[0]))
    seconds = np.array([[row[i].end - row[i].dispatched for i in workers] for row in rows])
    censored = np.array([[not row[i].known for i in workers] for row in rows])
    return seconds, censored, float(np.mean([[row[i].covered for i in workers] for row in rows]) / whole)


def computed(run: Run) -> NDArray[np.float64] | None:
    """Seconds that workers computed, for the rounds of :func:`measured`; nan for tasks that were cut off.

    None where injected delays go by load, as these then are computing, too.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> fleet = anyk.cluster("simulated:partition=0.5,cores=3", workers=3, delays="constant:2")
    >>> computed(anyk.train(problem, "uncoded", fleet, steps=1))
    array([[0.5, 0.5, 0.5]])
    """
    if run.cost.by_load:
        return None
    rows, _ = _rounds(run, due=False)
    return np.array([[row[i].computing for i in range(len(row))] for row in rows], dtype=np.float64)


class _Task(NamedTuple):
    dispatched: float
    end: float
    known: bool
    computing: float | None
    covered: int


def _rounds(run: Run, *, due: bool) -> tuple[list[dict[int, _Task]], int]:
    """The tasks of each time at which all workers were given one, by worker, and the size of all partitions."""
    workers = run.config.workers
    with with_plugins(run.config, f"the run '{run.path}'"):
        strategy = build_strategy(run.config.strategy, workers=workers)
    shares: Sequence[int] = strategy.layout.shares or [1] * strategy.layout.partitions
    table: dict[tuple[float, int], dict[int, _Task]] = {}
    starts: Counter[tuple[float, int]] = Counter()  # rounds that take no time begin at the same one
    for dispatched, worker, end, complete, computing, partitions in task_times(run.log, due=due):
        if end is not None:
            row = table.setdefault((dispatched, starts[dispatched, worker]), {})
            row[worker] = _Task(dispatched, end, complete, computing, sum(shares[j] for j in partitions))
            starts[dispatched, worker] += 1
    whole = [row for row in table.values() if len(row) == workers and any(task.known for task in row.values())]
    if not whole:
        raise BadInput("a trace needs rounds, but the workers of this run were never all given a task at once")
    return whole, sum(shares)


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
