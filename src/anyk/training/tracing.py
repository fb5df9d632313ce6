"""A run as a trace: how long each worker took for each version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anyk.errors import BadInput
from anyk.strategies import strategy as build_strategy
from anyk.training.run import Run


def save_trace(run: Run, path: str | Path) -> tuple[int, int, float]:
    """Write a trace (.npz) of a run's log; returns rounds, workers and the share of times that are censored.

    ``seconds`` (rounds x workers) is the time from a task's dispatch to its last message, or, of who was cut off, to
    what is known of it at least (``censored``). A row for every time at which all workers were given a task;
    ``load`` is the mean share of the data of a task. Raises :class:`~anyk.errors.BadInput` where there is none.
    """
    workers = int(run.config["workers"])
    strategy = build_strategy(run.config["strategy"], workers=workers)
    shares: Sequence[int] = getattr(strategy, "shares", None) or [1] * strategy.partitions
    rows = run.log.rows(
        "SELECT c.dispatched, c.worker, max(coalesce(c.received, c.due, c.cancelled)), "
        "min(c.received IS NOT NULL OR c.due IS NOT NULL), group_concat(w.partitions, ';') "
        "FROM chunks c JOIN works w ON w.id = c.work WHERE c.ending != 'lost' GROUP BY c.dispatched, c.worker, c.task "
        "ORDER BY c.dispatched"
    )
    table: dict[float, dict[int, tuple[float, bool, int]]] = {}
    for dispatched, worker, end, known, partitions in rows:
        if end is not None:
            covered = sum(shares[j] for part in partitions.split(";") for j in json.loads(part))
            table.setdefault(dispatched, {})[worker] = (end - dispatched, not known, covered)
    whole = [row for row in table.values() if len(row) == workers]
    if not whole:
        raise BadInput("there is no time at which every worker of the run was given a task; a trace is of rounds")
    seconds = np.array([[row[i][0] for i in range(workers)] for row in whole])
    censored = np.array([[row[i][1] for i in range(workers)] for row in whole])
    load = float(np.mean([[row[i][2] for i in range(workers)] for row in whole]) / sum(shares))
    target = Path(path)
    if target.suffix != ".npz":
        raise BadInput(f"a trace is written as .npz, got '{path}'")
    try:
        np.savez(target, seconds=seconds, censored=censored, load=load)
    except OSError as error:
        raise BadInput(f"the trace '{path}' cannot be written ({error.strerror})") from None
    return len(seconds), workers, float(censored.mean())
