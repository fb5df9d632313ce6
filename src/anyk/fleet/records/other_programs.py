"""Records of other programs: operation traces in the layout of StragglerAnalysis, and Spark's event logs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from anyk.base import BadInput, ByName, Floats
from anyk.delays import in_order
from anyk.fleet.records.packed import open_packed
from anyk.fleet.records.record import Record
from anyk.tables import Table, limit, lines, shown

_END = "SparkListenerTaskEnd"
COLUMNS = {"dp_rank", "stage", "step", "optype", "duration"}  # of an operation trace


def read_operations(file: Path, table: Table) -> Record:
    """Return a record with data-parallel replicas as workers and, as seconds, the computation of the busiest stage.

    The layout was published with Lin et al. (2025), Understanding Stragglers in Large Model Training Using What-if
    Analysis: one row per operation, ``duration`` in seconds. Only forward and backward computation counts, not the
    waiting for others. The record also has the seconds of each stage.
    """
    columns = dict(zip(table.names, table.columns, strict=True))
    kinds = np.char.endswith(columns["optype"].astype(str), "-compute")
    if not kinds.any():
        raise BadInput(f"'{shown(file)}' has no forward-compute or backward-compute operations")
    numbers = {name: columns[name][kinds] for name in sorted(COLUMNS - {"optype"})}
    for name, values in numbers.items():
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise BadInput(f"column '{name}' of '{shown(file)}' must contain finite numbers")
    places = {name: np.unique(numbers[name], return_inverse=True) for name in ("step", "dp_rank", "stage")}
    size = tuple(len(names) for names, _ in places.values())
    totals = np.zeros(size)
    cells = tuple(indices for _, indices in places.values())
    np.add.at(totals, cells, numbers["duration"])
    totals[np.bincount(np.ravel_multi_index(cells, size), minlength=totals.size).reshape(size) == 0] = np.nan
    steps, ranks, stages = (tuple(int(name) for name in names) for names, _ in places.values())
    by_stage: dict[str, Floats] = {str(stage): totals[:, :, i] for i, stage in enumerate(stages)}
    partial = np.isnan(totals).any(axis=2)  # a replica lacks one of its stages
    seconds = np.where(partial, np.nan, np.nan_to_num(totals).max(axis=2))
    description = f"computation of each replica's busiest of {len(stages)} pipeline stages"
    return Record(seconds, workers=ranks, rounds=steps, stages=by_stage, remarks=(description,))


def is_event_log(file: Path) -> bool:
    """Return whether the first line is an event of Spark's, or of Databricks'."""
    try:
        with open_packed(file, limit(file)) as opened:
            return re.match(r'\{\s*"Event"\s*:\s*"', opened.readline(1 << 20)) is not None
    except (BadInput, UnicodeDecodeError, OSError):
        return False


def rolled_logs(files: Sequence[Path]) -> list[Path]:
    """Return the files of a rolled event log in order; a compacted file stands for those before it.

    >>> [file.name for file in rolled_logs([Path("events_10_app"), Path("events_9_app")])]
    ['events_9_app', 'events_10_app']
    """

    def number(file: Path) -> int:
        match = re.match(r"events_(\d+)_", file.name)
        return int(match.group(1)) if match else 0

    ordered = sorted(files, key=lambda file: (number(file), file.name.endswith(".compact")))
    compacted = [i for i, file in enumerate(ordered) if file.name.endswith(".compact")]
    return ordered[compacted[-1] :] if compacted else ordered


def read_event_log(files: Sequence[Path], *, max_gb: float | None = None) -> Record:
    """Return a record with stages as rounds and executors as workers, from the launch of a first task to the last end.

    The files have the JSON lines that Spark writes with ``spark.eventLog.enabled``, plain or packed by gzip or zstd;
    several are one log that was rolled. Only task-end events are read. Tasks that failed or were killed (speculation)
    do not count; a remark reports their number.
    """
    spans: dict[tuple[tuple[int, int], int | str], list[float]] = {}  # by stage and executor
    tasks: Counter[tuple[int, int]] = Counter()
    failed = 0
    remarks: list[str] = []
    for file, number, event in _events(rolled_logs(files), max_gb, remarks):
        try:
            stage = int(event["Stage ID"]), int(event["Stage Attempt ID"])
            info = event["Task Info"]
            executor, begin, end = str(info["Executor ID"]), float(info["Launch Time"]), float(info["Finish Time"])
            good = event.get("Task End Reason", {}).get("Reason", "Success") == "Success"
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"line {number} of '{shown(file)}' is not a task-end event of Spark's ({error})") from None
        if not good:
            failed += 1
            continue
        worker = int(executor) if executor.isdigit() else executor
        span = spans.setdefault((stage, worker), [begin, end])
        span[:] = min(span[0], begin), max(span[1], end)
        tasks[stage] += 1
    if not spans:
        raise BadInput(f"the Spark event log '{shown(files[0])}' has no tasks that succeeded")
    workers = in_order(worker for _, worker in spans)
    unknown = [np.nan, np.nan]
    table = [[spans.get((stage, worker), unknown) for worker in workers] for stage in sorted(tasks)]
    seconds = np.diff(table)[:, :, 0] / 1e3
    logs = f" in {len(files)} files" if len(files) > 1 else ""
    remarks.insert(0, f"Spark stages as rounds, executors as workers, {sum(tasks.values()):,} tasks{logs}")
    if failed:
        remarks.append(f"{failed:,} tasks that failed or were killed left out")
    if max(tasks.values()) > 2 * min(tasks.values()):
        remarks.append(f"stages have {min(tasks.values())} to {max(tasks.values())} tasks and are not alike")
    return Record(seconds, workers=workers, remarks=tuple(remarks))


def _events(files: Sequence[Path], max_gb: float | None, remarks: list[str]) -> Iterator[tuple[Path, int, ByName]]:
    """Yield task-end events with their files and the numbers of their lines; add a remark if the last is incomplete."""
    for file in files:
        with open_packed(file, limit(file, max_gb)) as opened:
            for number, line in enumerate(lines(opened, file), 1):
                if _END not in line:
                    continue
                try:
                    event = json.loads(line)
                except ValueError:
                    if not line.endswith("\n"):  # the program is running, or was killed
                        remarks.append("the log ends within a line, which is left out")
                        break
                    raise BadInput(
                        f"line {number} of '{shown(file)}' is not JSON; the event log may be truncated"
                    ) from None
                if event.get("Event") == _END:
                    yield file, number, event
