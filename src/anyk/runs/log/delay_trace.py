"""The delay trace of a run: the seconds that each worker took in each round."""

from __future__ import annotations

import os
import platform
from collections import Counter
from pathlib import Path

import numpy as np

from anyk.base.arrays import Flags, Floats
from anyk.base.errors import BadInput, as_bad_input
from anyk.base.specs import parse_spec
from anyk.runs.folder.digests import with_plugins
from anyk.runs.log.queries import TaskTime, task_times, waits_of_steps
from anyk.runs.run import Run
from anyk.strategies import strategy as build_strategy

_ROUNDING = 1e-9  # part of a run's seconds that may be left of sums


def task_seconds(run: Run, *, due: bool = True) -> tuple[Floats, Flags, float]:
    """Return the seconds of a run's tasks, shape (rounds, workers), a mask of the lower bounds, and the load.

    A task takes from its dispatch to its last message; for a task that was cut off a lower bound is known. There is a
    row for every time at which all workers were given a task and not all tasks were cut off, as when a run ends. The
    load is the mean share of the data that a task covers. ``due``: the time at which a task that was cut off would have
    ended, which virtual clusters report, counts as measured. Raises :class:`~anyk.BadInput` without rounds.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> fleet = anyk.clusters.Simulated(3, delays=anyk.delays.Constant(2.0))
    >>> times, _, load = task_seconds(anyk.train(problem, "uncoded", fleet, steps=2))
    >>> times.tolist(), round(load, 3)
    ([[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]], 0.333)
    """
    with with_plugins(run.config, f"the run '{run.path}'"):
        strategy = build_strategy(run.config.strategy, workers=run.config.workers)
    shares = strategy.layout.shares or [1] * strategy.layout.partitions
    rows = _rounds(run, due=due)
    seconds = np.array([[task.end - task.dispatched for task in row] for row in rows])
    censored = np.array([[not task.finished for task in row] for row in rows])
    loads = [[sum(shares[j] for j in task.partitions) for task in row] for row in rows]
    return seconds, censored, float(np.mean(loads) / sum(shares))


def computing_seconds(run: Run) -> Floats | None:
    """Return the seconds that workers computed in the rounds of :func:`task_seconds`; NaN for tasks that were cut off.

    None if injected delays depend on the load, as they then stand for computing.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> fleet = anyk.cluster("simulated:partition=0.5,cores=3", workers=3, delays="constant:2")
    >>> computing_seconds(anyk.train(problem, "uncoded", fleet, steps=1))
    array([[0.5, 0.5, 0.5]])
    """
    if run.cost.by_load:
        return None
    rows = _rounds(run, due=False)
    return np.array([[task.computing for task in row] for row in rows], dtype=np.float64)


def driver_seconds(run: Run) -> float | None:
    """Return the mean seconds of a run's steps besides waiting for workers; None if a step used older messages.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> fleet = anyk.cluster("simulated:step=0.5", workers=3, delays="constant:2")
    >>> driver_seconds(anyk.train(problem, "uncoded", fleet, steps=4))
    0.5
    """
    waited = waits_of_steps(run.log)
    if waited is None or not run.jobs:
        return None
    seconds = (run.seconds - waited) / run.jobs
    return seconds if seconds > _ROUNDING * run.seconds else 0.0


def crowding(run: Run) -> float:
    """Return the workers for each core of a run on processes of this machine, at least 1; 1 for any other run."""
    on_this_machine = run.config.environment.get("host", platform.node()) == platform.node()
    if parse_spec(run.config.cluster)[0] != "processes" or not on_this_machine:
        return 1.0
    return max(1.0, run.config.workers.most / len(os.sched_getaffinity(0)))


def _rounds(run: Run, *, due: bool) -> list[list[TaskTime]]:
    """Return the tasks, by worker, of each time at which all workers were given a task."""
    table: dict[tuple[float, int], dict[int, TaskTime]] = {}
    starts: Counter[tuple[float, int]] = Counter()  # rounds that take no time start simultaneously
    for task in task_times(run.log, due=due):
        start = task.dispatched, task.worker
        table.setdefault((task.dispatched, starts[start]), {})[task.worker] = task
        starts[start] += 1
    rows = [[row[i] for i in sorted(row)] for row in table.values() if len(row) == run.config.workers.most]
    rows = [row for row in rows if any(task.finished for task in row)]
    if not rows:
        raise BadInput(
            f"a record of a run has the rounds in which all workers are given a task simultaneously; its "
            f"{run.config.workers.most} workers never were"
        )
    return rows


def save_trace(run: Run, path: str | Path) -> tuple[int, int, float]:
    """Write the delay trace (.npz) of a run; return the numbers of rounds and workers, and the share of lower bounds.

    The file has the arrays ``seconds``, ``censored`` and ``load`` that :func:`task_seconds` returns. Raises
    :class:`~anyk.BadInput` if the run has no rounds or the file cannot be written.
    """
    seconds, censored, load = task_seconds(run)
    target = Path(path)
    if target.suffix != ".npz":
        raise BadInput(f"a trace is written as .npz, got '{path}'")
    with as_bad_input(f"the trace '{path}' cannot be written"):
        np.savez(target, seconds=seconds, censored=censored, load=load)
    return *seconds.shape, float(censored.mean())
