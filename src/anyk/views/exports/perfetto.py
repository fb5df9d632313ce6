"""A run as a trace in Chrome's JSON format, which ui.perfetto.dev and chrome://tracing read.

The format is described in Google's document "Trace Event Format"; times are in microseconds.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import BadInput, ByName, as_bad_input
from anyk.runs import Run, Tasks, tasks_of
from anyk.runs.api import CUT, FATES, LATE, PHASES, log_columns

_DRIVER, _WORKERS = 1, 2  # process numbers: names of groups of tracks


def save_perfetto(run: Run, path: str | Path) -> int:
    """Write a run as a trace that ui.perfetto.dev opens, and return the number of its events.

    A track for each worker has a slice for each task, named by its ending, with waiting, computing and sending inside;
    a track for each model has its steps; counters show loss, metric, residual and staleness. A path that ends in
    ``.gz`` is compressed. Raises :class:`~anyk.BadInput` for other endings than ``.json`` and ``.json.gz``, and
    if the file cannot be written.

    >>> import anyk, tempfile
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=2, delays="constant:1", steps=1)
    >>> save_perfetto(run, Path(tempfile.mkdtemp()) / "run.json")
    20
    """
    target = Path(path)
    if not target.name.endswith((".json", ".json.gz")):
        raise BadInput(f"a Perfetto trace is written as .json or .json.gz, got '{path}'")
    count = 0
    opened = gzip.open if target.suffix == ".gz" else open
    with as_bad_input(f"the trace '{path}' cannot be written"), opened(target, "wt", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "otherData": ')
        file.write(json.dumps({key: str(value) for key, value in run.config.plain().items()}))
        file.write(', "traceEvents": [')
        for event in _events(run):
            file.write((",\n" if count else "\n") + json.dumps(event, allow_nan=False))
            count += 1
        file.write("\n]}\n")
    return count


def _events(run: Run) -> Iterator[ByName]:
    yield _event("M", "process_name", _DRIVER, 0, args={"name": f"driver: {run.config.strategy}"})
    yield _event("M", "process_name", _WORKERS, 0, args={"name": "workers"})
    yield from _steps(run)
    yield from _of_workers(tasks_of(run), run.config.workers.most)


def _event(phase: str, name: str, pid: int, tid: int, **fields: Any) -> ByName:
    return {"ph": phase, "name": name, "pid": pid, "tid": tid, **fields}


def _micro(seconds: float) -> float:
    return round(1e6 * float(seconds), 3)


def _slice(name: str, pid: int, tid: int, begin: float, end: float, **fields: Any) -> ByName:
    """Return a complete event; begin and end are in microseconds."""
    return _event("X", name, pid, tid, cat="anyk", ts=begin, dur=round(max(end - begin, 0.0), 3), **fields)


def _steps(run: Run) -> Iterator[ByName]:
    """Yield the steps of each model, and counters of their values."""
    log = log_columns(run.log, "steps")
    for number, slot in enumerate(dict.fromkeys(log["slot"])):
        yield _event("M", "thread_name", _DRIVER, number, args={"name": f"steps of {slot}"})
        before = 0.0
        for i in np.flatnonzero(log["slot"] == slot).tolist():
            now = _micro(log["seconds"][i])
            values = {name: float(log[name][i]) for name in ("residual", "staleness", "loss", "metric")}
            values = {name: value for name, value in values.items() if math.isfinite(value)}
            if math.isfinite(log["replies"][i]):
                step, replies = int(log["step"][i]), int(log["replies"][i])
                yield _slice(f"step {step}", _DRIVER, number, before, now, args={"messages": replies, **values})
                before = now
            for name, value in values.items():
                label = run.metric_name if name == "metric" else name
                yield _event("C", f"{label} of {slot}", _DRIVER, 0, ts=now, args={label: value})


def _of_workers(tasks: Tasks, workers: int) -> Iterator[ByName]:
    """Yield slices of tasks; a task that overlaps another of the same worker is on a further track."""
    order = np.lexsort((tasks.start, tasks.worker))
    ends: dict[int, list[float]] = {}
    widest = 1
    for i in order.tolist():
        worker = int(tasks.worker[i])
        lanes = ends.setdefault(worker, [])
        edges = [
            _micro(value) for value in np.cumsum([tasks.start[i], *(getattr(tasks, phase)[i] for phase in PHASES)])
        ]
        edges.append(_micro(tasks.end[i]))
        lane = next((j for j, end in enumerate(lanes) if end <= edges[0]), len(lanes))
        lanes[lane : lane + 1] = [edges[-1]]
        widest = max(widest, len(lanes))
        tid = worker + lane * workers
        yield _slice(FATES[tasks.fate[i]], _WORKERS, tid, edges[0], edges[-1], args=_facts(tasks, i))
        if tasks.finished[i]:
            for name, begin, end in zip(PHASES, edges, edges[1:], strict=False):
                if end > begin:
                    yield _slice(name, _WORKERS, tid, begin, min(end, edges[-1]))
    for worker in range(workers):
        for lane in range(max(len(ends.get(worker, ())), 1)):
            tid = worker + lane * workers
            name = f"worker {worker}" + f" ({lane + 1})" * bool(lane)
            yield _event("M", "thread_name", _WORKERS, tid, args={"name": name})
            yield _event("M", "thread_sort_index", _WORKERS, tid, args={"sort_index": worker * widest + lane})


def _facts(tasks: Tasks, i: int) -> ByName:
    """Return the properties of a task besides its times."""
    step, version = int(tasks.step[i]), int(tasks.version[i])
    arguments: ByName = {"task": int(tasks.task[i]), "model": tasks.slots[tasks.slot[i]], "version": version}
    if tasks.fate[i] <= LATE:
        arguments |= {"step": step, "staleness": step - 1 - version}
        if math.isfinite(tasks.weight[i]):
            arguments["weight"] = float(tasks.weight[i])
    elif step > 0:
        arguments["not waited for in step"] = step
    if tasks.fate[i] == CUT and math.isfinite(tasks.late[i]):
        arguments["seconds late"] = float(tasks.late[i])
    return arguments
