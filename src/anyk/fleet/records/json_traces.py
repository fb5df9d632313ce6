"""Records from JSON: lines with a step each, and the traces of PyTorch's profiler, Ray, Horovod and NCCL."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import Array, BadInput
from anyk.delays import in_order, plain_name
from anyk.fleet.records.packed import open_packed, stem
from anyk.fleet.records.record import Record
from anyk.tables import Table, limit, reading, shown

_STEP = re.compile(r"ProfilerStep#(\d+)")
_NEGOTIATE = "NEGOTIATE_"
_RANK = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
_MICRO = 1e-6
_NEGATIVE = 0.1  # share of rounds, at most, in which a process ran ahead of its collectives

Event = Mapping[str, Any]


def is_json(file: Path) -> bool:
    """Return whether a file is JSON or JSON lines by its first characters, other than an event log of Spark's."""
    try:
        if _is_pickle(file):
            return True  # read_json says what to do instead
        with open_packed(file, limit(file)) as opened:
            head = opened.read(256).lstrip()
    except (BadInput, UnicodeDecodeError, OSError):
        return False
    return head.startswith(("{", "[")) and not re.match(r'\{\s*"Event"\s*:', head)


def _is_pickle(file: Path) -> bool:
    with file.open("rb") as opened:
        head = opened.read(2)
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def read_json(file: Path, max_gb: float | None) -> Record | Table:
    """Return the record of a trace, or the table of JSON lines, of a list of objects or of columns.

    Raises BadInput for JSON of another content, and for a pickle, which is never unpickled.
    """
    if _is_pickle(file):
        raise BadInput(
            f"'{shown(file)}' is a pickle, as NCCL's flight recorder writes it, and pickles are not read, since they "
            "can run code; write JSON instead, by torch._C._distributed_c10d._dump_nccl_trace_json() on each rank"
        )
    content = _content(file, max_gb)
    if isinstance(content, dict):
        return _of_object(file, content)
    if content and all(isinstance(row, list) for row in content):
        raise BadInput(f"'{shown(file)}' is a list of lists without names; write objects with round, worker, seconds")
    return _of_rows(file, _events(content))


def _of_object(file: Path, content: dict[str, Any]) -> Record | Table:
    """Return the record of a trace by its key, else the table of its columns or of its only row."""
    if isinstance(content.get("traceEvents"), list):
        events, info = _events(content["traceEvents"]), content.get("distributedInfo")
        if any(_STEP.fullmatch(str(event.get("name"))) for event in events):
            return _of_profiler(file, events, info if isinstance(info, dict) else {})
        return _of_events(file, events)
    if isinstance(content.get("entries"), list):
        return _of_flight_recorder(file, content)
    if content and all(isinstance(values, list) for values in content.values()):
        return _table(file, _rows_of_columns(file, content))
    return _of_rows(file, _events([content]))


def _of_rows(file: Path, rows: list[Event]) -> Record | Table:
    """Return the record of events in Chrome's format, else the table of the rows."""
    return _of_events(file, rows) if any("ph" in row for row in rows) else _table(file, rows)


def _content(file: Path, max_gb: float | None) -> Any:
    """Return the JSON of a file, or a list of its lines; a list that was cut off ends before its last object."""
    with reading(file, "JSON"), open_packed(file, limit(file, max_gb)) as opened:
        content = opened.read()
    try:
        return json.loads(content)
    except RecursionError:
        raise BadInput(f"'{shown(file)}' is nested too deeply to be a trace") from None
    except ValueError as error:
        if content.lstrip().startswith("["):
            return _open_list(file, content, error)
    return _json_lines(file, content)


def _open_list(file: Path, content: str, error: ValueError) -> Any:
    """Return a list that Horovod or Chrome left open."""
    for end in ("]", "{}]"):
        try:
            return json.loads(content.rstrip().rstrip(",") + end)
        except ValueError:
            continue
    raise BadInput(f"'{shown(file)}' cannot be read as JSON: {error}") from None


def _json_lines(file: Path, content: str) -> list[Any]:
    """Return what each line holds; the last line of a program that was killed may be cut off."""
    rows = []
    lines = content.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            if number == len(lines) > 1 and not content.endswith("\n"):
                break
            raise BadInput(f"line {number} of '{shown(file)}' is not JSON; the file may be truncated") from None
    return rows


def _events(content: Iterable[Any]) -> list[Event]:
    return [event for event in content if isinstance(event, dict) and event]


# ------------------------------------------------------------------------------------------- tables


def _rows_of_columns(file: Path, content: Mapping[str, list[Any]]) -> list[Event]:
    if len({len(values) for values in content.values()}) > 1:
        raise BadInput(f"the lists of '{shown(file)}' are of different lengths, so they are no columns of a table")
    return [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]


def _table(file: Path, rows: list[Event]) -> Table:
    """Return objects as a table; values within an object in an object are named with points."""
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    if not names:
        raise BadInput(f"'{shown(file)}' has no objects with values, so it is neither a trace nor a table of times")
    return Table(tuple(names), tuple(_column([row.get(name) for row in flat]) for name in names), True)


def _flat(row: Event, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict) and before.count(".") < 3:
            yield from _flat(value, f"{before}{name}.")
        elif not isinstance(value, dict | list):
            yield before + name, value


def _column(values: list[Any]) -> Array:
    """Return values as numbers, nan if missing, or as text, None if missing."""
    if all(value is None or isinstance(value, int | float) for value in values):
        try:
            return np.array([math.nan if value is None else float(value) for value in values])
        except OverflowError:
            pass
    column = np.empty(len(values), dtype=object)
    column[:] = [None if value is None else str(value) for value in values]
    return column


# ------------------------------------------------------------------------------------------- traces


def _number(event: Event, name: str) -> float:
    value = event.get(name)
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return math.nan


def _of_profiler(file: Path, events: list[Event], info: Event) -> Record:
    """Return the steps of one rank: the host's spans ProfilerStep#N."""
    steps: dict[int, float] = {}
    for event in events:
        match = _STEP.fullmatch(str(event.get("name")))
        on_gpu = str(event.get("cat", "")).startswith("gpu")
        seconds = _number(event, "dur") * _MICRO
        if match and event.get("ph") == "X" and not on_gpu and math.isfinite(seconds):
            steps[int(match.group(1))] = max(seconds, steps.get(int(match.group(1)), 0.0))
    if not steps:
        raise BadInput(f"the profile '{shown(file)}' has no span ProfilerStep#N; call prof.step() in the loop")
    remark = "steps of PyTorch's profiler as rounds, with their waiting for other ranks"
    if not isinstance(info.get("rank"), int):
        remark += ", the rank by the file's name"
    return _of_steps(_rank_of(info, file), steps, remark)


def _rank_of(content: Event, file: Path) -> int | str:
    """Return the rank that a trace states, else the one in the file's name, else that name."""
    rank, in_name = content.get("rank"), _RANK.search(file.name)
    if isinstance(rank, int):
        return rank
    return int(in_name.group(1)) if in_name else stem(file)


def _of_steps(worker: int | str, steps: Mapping[int, float], remark: str) -> Record:
    """Return the record of one worker."""
    rounds = tuple(sorted(steps))
    return Record(np.array([[steps[t]] for t in rounds]), workers=(worker,), rounds=rounds, remarks=(remark,))


def _of_events(file: Path, events: list[Event]) -> Record:
    """Return the record of a timeline of Horovod or Ray."""
    if any(str(event.get("name", "")).startswith(_NEGOTIATE) for event in events):
        return _of_horovod(file, events)
    if any(str(event.get("cat", "")).startswith(("task::", "task:execute")) for event in events):
        return _of_ray(file, events)
    raise BadInput(
        f"'{shown(file)}' is a trace in Chrome's format, but neither of PyTorch's profiler with steps "
        "(ProfilerStep#N), nor of Ray (ray timeline), nor of Horovod; write JSON lines with round, worker and seconds"
    )


def _of_ray(file: Path, events: list[Event]) -> Record:
    """Return the record of a timeline of Ray: the k-th call of the costliest function on each worker is round k."""
    calls = _calls_in(events)
    shared = {name: workers for name, workers in calls.items() if len(workers) > 1}
    if not shared:
        raise BadInput(f"the timeline '{shown(file)}' of Ray has no function that ran on several workers")
    name = max(shared, key=lambda name: sum(seconds for spans in shared[name].values() for _, seconds in spans))
    spans_of = {worker: sorted(spans) for worker, spans in shared[name].items()}
    most, least = max(map(len, spans_of.values())), min(map(len, spans_of.values()))
    if most - least > 1:
        raise BadInput(
            f"the timeline '{shown(file)}' of Ray has {least} to {most} calls of '{name}' on each worker, so they are "
            "no rounds; record one call of each worker in each round"
        )
    workers = in_order(spans_of)
    table = np.full((most, len(workers)), np.nan)
    for i, worker in enumerate(workers):
        seconds = [seconds for _, seconds in spans_of[str(worker)]]
        table[: len(seconds), i] = seconds
    others = f", of {len(calls)} functions" if len(calls) > 1 else ""
    return Record(
        table,
        workers=workers,
        remarks=(f"Ray's timeline, the k-th call of '{name}'{others} on each worker as round k",),
    )


def _calls_in(events: list[Event]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the calls (begin, seconds) in a timeline of Ray, by function and by worker."""
    names = _names_in(events)
    calls: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        kind = str(event.get("cat", ""))
        begin, seconds = _number(event, "ts"), _number(event, "dur") * _MICRO
        if event.get("ph") != "X" or not kind.startswith("task::") or not math.isfinite(begin + seconds):
            continue
        process, thread = event.get("pid"), event.get("tid")
        node = names.get(("process_name", process, None), str(process))
        worker = names.get(("thread_name", process, thread), str(thread))
        calls[kind.removeprefix("task::")][f"{node} {worker}"].append((begin, seconds))
    return calls


def _names_in(events: list[Event]) -> dict[tuple[Any, Any, Any], str]:
    """Return the names that a timeline gives to processes and to their threads, by kind, process and thread."""
    names = {}
    for event in events:
        if event.get("ph") == "M" and isinstance(event.get("args"), dict) and "name" in event["args"]:
            thread = event.get("tid") if event["name"] == "thread_name" else None
            names[event["name"], event.get("pid"), thread] = str(event["args"]["name"])
    return names


def _of_horovod(file: Path, events: list[Event]) -> Record:
    """Return the record of a timeline of Horovod: from the end of a round's reductions to the next readiness.

    Each tensor has a process of its own, with a span of negotiation in which a tick names each rank that is ready.
    """
    ready, ends = _reductions_in(events)
    complete = [number for number in sorted(ready) if number - 1 in ends]
    if not complete:
        raise BadInput(
            f"the timeline '{shown(file)}' of Horovod does not show when each rank was ready for two reductions in a "
            "row; record it with HOROVOD_CACHE_CAPACITY=0, as cached reductions are not negotiated"
        )
    workers = in_order(plain_name(int(rank)) for number in complete for rank in ready[number])
    seconds = [[(ready[n].get(str(rank), math.nan) - ends[n - 1]) * _MICRO for rank in workers] for n in complete]
    table = np.maximum(np.array(seconds), 0.0)
    remark = "Horovod's timeline, seconds from the end of a round's reductions until a rank's last tensor is ready"
    return Record(table, workers=workers, rounds=tuple(complete), remarks=(remark,))


def _reductions_in(events: list[Event]) -> tuple[dict[int, dict[str, float]], dict[int, float]]:
    """Return when each rank was ready for a round's last tensor, and when a round's last reduction ended."""
    ready: dict[int, dict[str, float]] = defaultdict(dict)
    ends: dict[int, float] = {}
    rounds: dict[Any, int] = defaultdict(int)  # of each tensor
    open_spans: dict[Any, list[str]] = defaultdict(list)
    for event in sorted(events, key=lambda event: _number(event, "ts") if "ts" in event else -1.0):
        tensor, kind, name = event.get("pid"), event.get("ph"), str(event.get("name", ""))
        moment, spans = _number(event, "ts"), open_spans[tensor]
        if kind == "B":
            spans.append(name)
            rounds[tensor] += name.startswith(_NEGOTIATE)
        elif kind == "E" and spans:
            ended = spans.pop()
            if not spans and not ended.startswith(_NEGOTIATE):
                ends[rounds[tensor]] = max(moment, ends.get(rounds[tensor], 0.0))
        elif kind in ("X", "i", "I") and name.isdigit() and any(span.startswith(_NEGOTIATE) for span in spans):
            of_round = ready[rounds[tensor]]
            of_round[name] = max(moment, of_round.get(name, 0.0))
    return ready, ends


def _of_flight_recorder(file: Path, content: Event) -> Record:
    """Return the rounds of one rank by NCCL's flight recorder: from collective to collective, without time in it."""
    entries = [
        entry
        for entry in _events(content["entries"])
        if not entry.get("is_p2p") and math.isfinite(_number(entry, "time_created_ns"))
    ]
    groups: dict[str, list[Event]] = defaultdict(list)
    for entry in entries:
        groups[str(entry.get("process_group", entry.get("pg_id", "")))].append(entry)
    if not groups:
        raise BadInput(f"'{shown(file)}' has entries, but no collectives of NCCL's flight recorder")
    group = max(groups, key=lambda name: len(groups[name]))
    ordered = sorted(groups[group], key=lambda entry: _number(entry, "time_created_ns"))
    steps = {}
    for before, entry in pairwise(ordered):
        within = _number(entry, "duration_ms") / 1e3
        between = (_number(entry, "time_created_ns") - _number(before, "time_created_ns")) * 1e-9
        sequence = _number(entry, "collective_seq_id")
        if math.isfinite(within + sequence):
            steps[int(sequence)] = between - within
    if not steps:
        raise BadInput(
            f"the flight recorder's '{shown(file)}' has no durations; set TORCH_NCCL_ENABLE_TIMING=1 when recording"
        )
    ahead = sum(seconds < 0 for seconds in steps.values())
    if ahead > _NEGATIVE * len(steps):
        raise BadInput(
            f"the flight recorder's '{shown(file)}' has {ahead} of {len(steps)} collectives that lasted longer than "
            "the time since the one before, as their processes do not wait for them; their own work cannot be told"
        )
    remark = "NCCL's flight recorder, collectives as rounds, seconds since the one before without those within it"
    of = f" of process group {group}" if len(groups) > 1 else ""
    return _of_steps(_rank_of(content, file), {t: max(seconds, 0.0) for t, seconds in steps.items()}, remark + of)
