"""What a page that follows runs fetches between two readings of the whole page: what has been written since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.runs.log import queries
from anyk.runs.log.tasks import Tasks, tasks_of
from anyk.runs.run import Run
from anyk.views.page import figures
from anyk.views.page.content import works_of


def news(run: Run, seal: str) -> dict[str, Any] | None:
    """Steps, evaluations and tasks behind a seal of the run's log, as plain columns; None where the log lacks it.

    ``whole``: something cannot be told by itself; the page is to be read again as a whole.
    """
    behind = queries.sealed(run.log, seal)
    if behind is None:
        return None
    made: dict[str, Any] = {"seal": queries.newest_seal(run.log), "whole": False}
    if made["seal"] == seal:
        return made
    evaluated = queries.columns(run.log, "evaluations", behind=behind["evaluations"])
    mine = evaluated["slot"] == run.slot
    made["evaluated"] = {
        name: _plain(evaluated[key][mine])
        for name, key in (("seconds", "seconds"), ("steps", "step"), ("loss", "loss"), (run.metric_name, "metric"))
    }
    tasks = tasks_of(run, behind=behind)
    grown = any(queries.count(run.log, table) > behind[table] for table in ("reuses", "works"))
    if grown or (tasks.chunk > 0).any():
        return made | {"whole": True}
    works = works_of(run)
    if works is not None and len(tasks):
        tasks.work[:] = works.places[tasks.work]
    known = {slot: i for i, slot in enumerate(queries.slots(run.log))}
    place = np.array([known[slot] for slot in tasks.slots], dtype=np.int64)
    tasks = replace(tasks, slot=place[tasks.slot] if len(tasks) else tasks.slot, slots=tuple(known))
    return made | {"steps": _steps(run, behind["updates"], known), "tasks": _tasks(tasks), "end": run.seconds}


def _steps(run: Run, behind: int, known: dict[str, int]) -> dict[str, list[Any]]:
    log = queries.columns(run.log, "steps", behind=behind)
    mine = np.isin(log["slot"].astype(str), list(known))
    slot = [known[name] for name in log["slot"][mine]]
    return {"slot": slot} | {name: _plain(log[name][mine]) for name in ("step", "seconds", "residual", "gain")}


def _tasks(tasks: Tasks) -> dict[str, dict[str, list[Any]]]:
    found = {}
    for kind, (which, _) in figures.kinds(tasks).items():
        if which.any():
            columns = figures.columns(tasks, which, kind)
            found[kind] = {name: _plain(column) for name, column in columns.items()}
    return found


def _plain(column: NDArray[Any]) -> list[Any]:
    """Values as JSON has them: null for NaN."""
    return [None if value != value else value for value in column.tolist()]
