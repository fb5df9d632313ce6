"""Spark event logs as fleet records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anyk.errors import BadInput
from anyk.fleet.records.record import Record
from anyk.tables import limit, lines, open_text, shown

_END = "SparkListenerTaskEnd"


def is_event_log(file: Path) -> bool:
    """Return whether the first line is an event of Spark's."""
    try:
        with open_text(file, limit(file)) as text:
            return '"Event":"Spark' in text.readline().replace(" ", "")
    except (BadInput, UnicodeDecodeError, OSError):
        return False


def read_event_log(file: Path, *, max_gb: float | None = None) -> Record:
    """Return a record with stages as rounds and executors as workers, from the launch of a first task to the last end.

    The file has the JSON lines that Spark writes with ``spark.eventLog.enabled`` (uncompressed, or gzip); only task-end
    events are read. Tasks that failed or were killed (speculation) do not count; a remark reports their number.
    """
    spans: dict[tuple[int, int], dict[str, list[float]]] = {}
    tasks: Counter[tuple[int, int]] = Counter()
    failed = 0
    for number, event in _events(file, max_gb):
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
        span = spans.setdefault(stage, {}).setdefault(executor, [begin, end])
        span[:] = min(span[0], begin), max(span[1], end)
        tasks[stage] += 1
    if not spans:
        raise BadInput(f"the Spark event log '{shown(file)}' has no tasks that succeeded")
    stages = sorted(spans)
    names = sorted(set().union(*spans.values()), key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))
    seconds = np.full((len(stages), len(names)), np.nan)
    for t, stage in enumerate(stages):
        for name, (begin, end) in spans[stage].items():
            seconds[t, names.index(name)] = (end - begin) / 1e3
    remarks = [f"Spark stages as rounds, executors as workers, {sum(tasks.values()):,} tasks"]
    if failed:
        remarks.append(f"{failed:,} tasks that failed or were killed left out")
    if max(tasks.values()) > 2 * min(tasks.values()):
        remarks.append(f"stages have {min(tasks.values())} to {max(tasks.values())} tasks and are not alike")
    workers = tuple(int(name) if name.isdigit() else name for name in names)
    return Record(seconds, workers=workers, remarks=tuple(remarks))


def _events(file: Path, max_gb: float | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield task-end events with the numbers of their lines."""
    with open_text(file, limit(file, max_gb)) as text:
        for number, line in enumerate(lines(text, file), 1):
            if _END not in line:
                continue
            try:
                event = json.loads(line)
            except ValueError:
                raise BadInput(
                    f"line {number} of '{shown(file)}' is not JSON; the event log may be truncated"
                ) from None
            if event.get("Event") == _END:
                yield number, event
