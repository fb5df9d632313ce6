"""The time of a run by its use, and the endings of each worker's tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.base import Indices
from anyk.runs import Run, Tasks
from anyk.runs.api import CUT, FATES, OPEN, log_columns

_ROUNDING = 1e-9  # seconds


class Account(NamedTuple):
    """Seconds of a run by their use; they add up to the time of its last step."""

    waiting: float
    computing: float
    sending: float
    driver: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self)


def account(run: Run, tasks: Tasks) -> Account:
    """Return the use of a run's time, from the last message that arrived before each step.

    A step is taken when the message arrives that makes it possible, so the run waited for the phases of that message's
    task, as far as they lie between the previous step and this one. The remaining time is the driver's (taking the
    step, dispatching tasks) or was spent until a deadline. ``waiting`` is for an injected delay or for an order.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = anyk.train(problem, "uncoded", "simulated:task=1,cores=3", workers=3, delays="constant:2", steps=2)
    >>> from anyk.runs.log.fates import tasks_of
    >>> account(run, tasks_of(run))
    Account(waiting=4.0, computing=2.0, sending=0.0, driver=0.0)
    """
    steps = log_columns(run.log, "steps")
    times = np.sort(steps["seconds"][np.isfinite(steps["replies"])])
    arrived = np.flatnonzero(tasks.finished)
    step = np.searchsorted(times, tasks.end[arrived] - _ROUNDING)
    arrived, step = arrived[step < len(times)], step[step < len(times)]
    order = np.lexsort((tasks.end[arrived], step))
    used, step = arrived[order], step[order]
    last = np.flatnonzero(np.diff(step, append=-1))
    used, step = used[last], step[last]
    since = np.concatenate(([0.0], times))[step]
    until = np.maximum(times[step], since)
    first = np.searchsorted(tasks.task, tasks.task[used])  # rows are ordered by task and chunk
    count = used - first + 1  # the message had to wait for the previous chunks of its task
    message = np.repeat(np.arange(len(used)), count)
    row = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[message]
    sent = np.where(row == used[message], tasks.sending[row], 0.0)
    edges = np.cumsum([tasks.start[row], tasks.waiting[row], tasks.computing[row], tasks.idle[row], sent], axis=0)
    parts = np.diff(np.clip(edges, since[message], until[message]), axis=0).sum(axis=1)
    waiting, computing, _, sending = (float(seconds) for seconds in parts)
    remaining = float(times.max(initial=0.0)) - waiting - computing - sending
    return Account(
        waiting=waiting, computing=computing, sending=sending, driver=remaining if remaining > _ROUNDING else 0.0
    )


class Share(NamedTuple):
    """The tasks of a worker: numbers by ending (:data:`FATES`), and the lateness of cancelled tasks.

    ``late`` and ``latest``: median and largest seconds after the cut-off; NaN if unknown.
    """

    tasks: int
    fates: Indices
    seconds: float
    late: float
    latest: float


def shares(tasks: Tasks, workers: int) -> list[Share]:
    """Return a row for each worker; ``seconds`` is the median time from the start to the end of a task."""
    counts = np.zeros((workers, len(FATES)), dtype=np.int64)
    np.add.at(counts, (tasks.worker, tasks.fate), 1)
    order = np.argsort(tasks.worker, kind="stable")
    places = np.split(order, np.searchsorted(tasks.worker[order], np.arange(1, workers)))
    rows = []
    for worker, mine in enumerate(places):
        late = tasks.late[mine][(tasks.fate[mine] == CUT) & np.isfinite(tasks.late[mine])]
        rows.append(
            Share(
                tasks=len(mine),
                fates=counts[worker],
                seconds=float(np.median(tasks.seconds[mine])) if len(mine) else float("nan"),
                late=float(np.median(late)) if len(late) else float("nan"),
                latest=float(late.max()) if len(late) else float("nan"),
            )
        )
    return rows


class Heat(NamedTuple):
    """Seconds by worker and column, shape (workers, columns), NaN without a task, and the share of tasks ``cut`` off.

    Column ``i`` stands for the ``width`` steps (or tasks) from ``first + i * width`` on.
    """

    seconds: NDArray[np.float32]
    cut: NDArray[np.float32]
    first: int
    width: int
    by_step: bool


_CELLS = 120_000


def heat(tasks: Tasks, workers: int) -> Heat | None:
    """Return seconds of each worker's tasks by step; by their order if workers take few steps or train several models.

    A column is the mean of several steps if there are too many. None without tasks.
    """
    tasks = tasks.only(tasks.fate != OPEN)
    if not len(tasks):
        return None
    first = tasks.first
    worker, version = tasks.worker[first], tasks.version[first]
    spent = np.maximum.reduceat(tasks.start + tasks.seconds, first) - tasks.start[first]
    interrupted = np.maximum.reduceat(tasks.fate, first) >= CUT
    low, high = int(version.min()), int(version.max())
    column, by_step = version - low, len(tasks.slots) == 1 and len(first) >= 0.5 * workers * (high - low + 1)
    if not by_step:
        order = np.argsort(worker, kind="stable")
        starts = np.searchsorted(worker[order], np.arange(workers))
        column = np.empty(len(first), dtype=np.int64)
        column[order] = np.arange(len(first)) - starts[worker[order]]
    columns = int(column.max()) + 1
    width = -(-columns * workers // _CELLS)
    column, columns = column // width, -(-columns // width)
    shape = workers, columns
    total, count, cut = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    np.add.at(total, (worker, column), spent)
    np.add.at(count, (worker, column), 1)
    np.add.at(cut, (worker, column), interrupted)
    with np.errstate(invalid="ignore", divide="ignore"):
        seconds, share = total / count, cut / count
    return Heat(
        seconds=seconds.astype(np.float32),
        cut=share.astype(np.float32),
        first=low + 1 if by_step else 1,
        width=width,
        by_step=by_step,
    )
