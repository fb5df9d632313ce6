"""Measured times read from files: the workers of columns, the rounds of rows, and the unit of values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.arrays import Flags, Floats
from anyk.delays.base import MOST
from anyk.errors import BadInput
from anyk.matrices import read_npz
from anyk.tables import (
    Limit,
    Table,
    check_input_file,
    is_number,
    is_row_number,
    limit,
    listed,
    read_csv,
    read_parquet,
    shown,
    unusable_values,
)

_ROUND = ("round", "step", "iteration", "iter", "version", "epoch")
_WORKER = ("worker", "rank", "node", "machine", "host", "worker id", "worker_id", "client", "executor")
_SECONDS = ("", "seconds", "duration", "delay", "time", "elapsed", "latency", "value")
_INDEX = (*_ROUND, "index", "unnamed: 0", "row", "#", "t", "id")
_NUMBERED = re.compile(r"(?:worker|rank|node|machine|w)?[ _\-.]*(\d+)")
_UNIT = re.compile(r"(?:^|[\s_\-(\[/])(milliseconds?|msecs?|ms|microseconds?|usecs?|us|µs|seconds?|secs?|s)[)\]]?$")
_SCALE = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_CLOCK = 12  # rows from which on a column that rises in all of them is no accident: 1 chance in 479 million
_LONG = 50.0  # median seconds from which on times look like milliseconds


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Times in seconds, shape (rounds, workers), with the file's other contents and ``remarks`` on its interpretation.

    ``columns``: names of the columns in the file, if it has one for each worker.
    """

    times: Floats
    load: float | None = None
    censored: Flags | None = None
    remarks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The size, the remarks, and the median and longest time, in one line."""
        return summarised(self.times, self.remarks)


def summarised(times: Floats, remarks: Sequence[str]) -> str:
    """Return the size of a table of times in seconds, remarks, and the median and longest time, in one line."""
    rounds, workers = times.shape
    size = f"{rounds:,} round{'s' * (rounds != 1)} x {workers:,} worker{'s' * (workers != 1)}"
    return ", ".join([size, *remarks, f"median {np.nanmedian(times):.3g} s, longest {np.nanmax(times):.3g} s"])


def read_measured(file: Path, *, unit: str | None, max_gb: float | None) -> TimeTable:
    """Return the times in an npz, CSV (also ``.csv.gz``) or Parquet file; ``unit`` is s, ms or us, else the header's.

    CSV and Parquet have one column for each worker, or the columns round, worker and seconds. Row numbers are ignored.
    Raises BadInput for a table that is ambiguous or has times that are not finite.
    """
    check_input_file(file, "trace file")
    name = file.name.lower()
    if not name.endswith((".npz", ".parquet", ".csv", ".csv.gz")):
        raise BadInput(f"a trace is a .npz, .csv or .parquet file, got '{shown(file)}'")
    allowed = limit(file, max_gb)
    if name.endswith(".npz"):
        measured, scale = _from_npz(file, allowed), 1.0
    else:
        table = read_parquet(file, allowed) if name.endswith(".parquet") else read_csv(file, allowed)
        measured, scale = _from_table(file, table)
    times = measured.times
    if times.ndim != 2 or not times.size:
        raise BadInput(f"the trace '{shown(file)}' must be a table of rounds x workers, got shape {times.shape}")
    times, remarks = in_seconds(times, unit, scale)
    wrong = np.argwhere(~((times >= 0) & (times <= MOST)))
    if len(wrong):
        row, i = wrong[0]
        where = measured.columns[i] if measured.columns else f"worker {i}"
        raise BadInput(
            f"the trace '{shown(file)}' must hold seconds from 0 to {MOST:g}, but {where} has {times[row, i]:g} in "
            f"round {row}"
        )
    return replace(measured, times=times, remarks=(*measured.remarks, *remarks))


def in_seconds(times: Floats, unit: str | None, scale: float) -> tuple[Floats, tuple[str, ...]]:
    """Return times in seconds, with remarks on their unit: s, ms or us; if None, the unit is ``scale`` seconds."""
    scale = scale if unit is None else _SCALE[unit]
    if scale != 1.0:
        return times * scale, (f"read as {'milliseconds' if scale == 1e-3 else 'microseconds'}",)
    if unit is None and np.nanmedian(times) >= _LONG:
        return times, ("read as seconds (if these are milliseconds, give unit=ms)",)
    return times, ()


def _from_npz(file: Path, allowed: Limit) -> TimeTable:
    arrays, names = read_npz(file, allowed, ("seconds", "load", "censored"))
    if "seconds" not in arrays:
        raise BadInput(
            f"'{shown(file)}' has no array 'seconds' (rounds x workers); it has {', '.join(map(shown, names[:9]))}"
        )
    for name, values in arrays.items():
        if values.dtype.kind not in "biuf":
            raise BadInput(f"array '{name}' of '{shown(file)}' must hold numbers, got {values.dtype}")
    load = arrays.get("load")
    if load is not None and (load.size != 1 or not 0.0 <= load.item() < math.inf):
        got = f"{load.item():g}" if load.size == 1 else f"shape {load.shape}"
        raise BadInput(f"the load in '{shown(file)}' must be a share of the data, at least 0, got {got}")
    cut = arrays.get("censored")
    if cut is not None and cut.shape != arrays["seconds"].shape:
        raise BadInput(f"'censored' in '{shown(file)}' must have the shape of 'seconds', got {cut.shape}")
    with np.errstate(all="ignore"):  # values that do not fit become infinite, which is refused
        times = arrays["seconds"].astype(float)
    remarks: tuple[str, ...] = ()
    if times.ndim == 2 and times.shape[1] > 1 and len(times) > 2 and is_row_number(times[:, 0]):
        times, cut = times[:, 1:], None if cut is None else cut[:, 1:]
        remarks = ("row numbers in the first column left out",)
    share = None if load is None else float(load.item())
    return TimeTable(times, share, None if cut is None else cut.astype(bool), remarks=remarks)


def _from_table(file: Path, table: Table) -> tuple[TimeTable, float]:
    """Return times from columns, and their unit in seconds."""
    names = [name.strip().lower() for name in table.names] if table.header else [""] * len(table.names)
    if not table.rows:
        raise BadInput(f"the trace '{shown(file)}' must be a table of rounds x workers, got a header only")
    places = long_columns(names)
    if places is not None:
        return _from_long(file, table, names, places)
    bare = [unit_in(name)[0] for name in names]
    if len(names) > 1 and any(name in _WORKER for name in bare):
        raise BadInput(
            f"'{shown(file)}' has a column '{next(n for n in table.names if unit_in(n)[0] in _WORKER)}', as of a long "
            "table, but none called round, or none called seconds; give it all three, or one column a worker"
        )
    timed = [name for name in names[1:] if name and unit_in(name)[0] in _SECONDS]
    if timed and len(names) > 2 and names[0] in _ROUND:
        raise BadInput(
            f"'{shown(file)}' has the columns '{names[0]}' and '{timed[0]}', as of a long table, but none called "
            "worker (or rank, node, host, client); give it all three, or one column a worker"
        )
    columns, remarks = list(range(len(names))), []
    first = table.columns[0]
    counted = is_row_number(first) and len(first) > 2
    called_worker = _NUMBERED.fullmatch(bare[0]) and not bare[0].isdigit()
    if len(columns) > 1 and (names[0] in _INDEX or (counted and not called_worker)):
        columns.pop(0)
        remarks.append("row numbers in the first column left out")
    for i in columns:
        if table.columns[i].dtype.kind != "f":
            text = next((value for value in table.columns[i] if value is not None and not is_number(value)), None)
            raise BadInput(
                f"'{shown(file)}' cannot be read as a trace: {_called(table, i)} holds text, such as "
                f"'{shown(str(text))}'; remove it"
            )
    numbers = [_NUMBERED.fullmatch(bare[i]) for i in columns]
    if any(numbers) and not all(numbers):
        other = columns[numbers.index(None)]
        raise BadInput(f"'{shown(file)}' has {_called(table, other)} beside those of workers; remove it")
    if all(numbers):
        number = {i: int(match.group(1)) for i, match in zip(columns, numbers, strict=True) if match}
        order = sorted(columns, key=number.__getitem__)
        if order != columns:
            remarks.append("columns in the order of the workers' numbers")
            columns = order
    values = [table.columns[i] for i in columns]
    called = tuple(_called(table, i) for i in columns)
    _refuse_other_shapes(file, values, called[0])
    scales = {unit_in(names[i])[1] for i in columns} - {None}
    if len(scales) > 1:
        raise BadInput(f"the columns of '{shown(file)}' are in different units; convert them to one")
    return TimeTable(np.column_stack(values), remarks=tuple(remarks), columns=called), next(iter(scales), 1.0) or 1.0


def _called(table: Table, i: int) -> str:
    return f"column '{shown(table.names[i])}'" if table.header else f"column {i}"


def _refuse_other_shapes(file: Path, values: Sequence[Floats], first: str) -> None:
    """Raise BadInput for a long table or a ``first`` column of clock readings, which look like a column a worker."""
    rows = len(values[0])
    if len(values) > 1 and rows >= _CLOCK and (np.diff(values[0]) > 0).all():
        raise BadInput(
            f"{first} of '{shown(file)}' rises in every row, like a clock or a row number; "
            "remove it, as each column is a worker's seconds"
        )
    if not 3 <= len(values) <= 5 or rows < 4:
        return
    whole = [v for v in values if np.isfinite(v).all() and (v == np.floor(v)).all()]
    for a, b in permutations(whole, 2):
        sizes = len(np.unique(a)), len(np.unique(b))
        if min(sizes) > 1 and math.prod(sizes) == rows == len(set(zip(a.tolist(), b.tolist(), strict=True))):
            raise BadInput(
                f"'{shown(file)}' looks like a long table, one row for each round and worker; name its columns "
                "round, worker and seconds in a header"
            )


def long_columns(names: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the places of the columns round, worker and seconds of a long table; None if it is not one."""
    rounds, workers = ([names.index(name) for name in wanted if name in names] for wanted in (_ROUND, _WORKER))
    timed = [i for wanted in _SECONDS for i, name in enumerate(names) if name and unit_in(name)[0] == wanted]
    return (rounds[0], workers[0], timed[0]) if rounds and workers and timed else None


def checked_columns(file: Path, table: Table, places: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """Return the columns round, worker and seconds of a long table; raise BadInput for text or gaps in them."""
    for i in places:
        column = table.columns[i]
        if column.dtype.kind != "f" and i != places[1]:
            raise BadInput(f"{_called(table, i)} of '{shown(file)}' holds text; it must hold numbers")
        if unusable_values(column).any():
            raise BadInput(f"{_called(table, i)} of '{shown(file)}' has rows without a finite value")
    return table.columns[places[0]], table.columns[places[1]], table.columns[places[2]]


def _from_long(file: Path, table: Table, names: Sequence[str], places: tuple[int, int, int]) -> tuple[TimeTable, float]:
    rounds, workers, seconds = checked_columns(file, table, places)
    all_rounds, all_workers, tables = pivoted(file, rounds, workers, {"seconds": seconds})
    times = tables["seconds"]
    if np.isnan(times).any():
        r, w = np.argwhere(np.isnan(times))[0]
        raise BadInput(
            f"round {all_rounds[r]:g} of worker {shown(plain_name(all_workers[w]))} is missing in '{shown(file)}'; a "
            "long table has one row for each round and worker"
        )
    used = listed([table.names[i] for i in places])
    unused = [name for i, name in enumerate(table.names) if i not in places and names[i] not in _INDEX]
    remarks = (f"from the columns {used}",) + ((f"{listed(unused)} not used",) if unused else ())
    return TimeTable(times, remarks=remarks), unit_in(names[places[2]])[1] or 1.0


def pivoted(
    file: Path, rounds: Floats, workers: NDArray[np.generic], values: dict[str, Floats]
) -> tuple[Floats, NDArray[np.generic], dict[str, Floats]]:
    """Return the rounds and workers of a long table in order, and its columns as tables of shape (rounds, workers).

    Missing values are nan. Raises BadInput for a round and worker with several rows.
    """
    all_rounds, row = np.unique(rounds, return_inverse=True)
    all_workers, column = np.unique(by_number(workers), return_inverse=True)
    place = row.reshape(-1) * len(all_workers) + column.reshape(-1)
    counts = np.bincount(place)
    if (counts > 1).any():
        first = int(np.argmax(counts > 1))
        r, w = divmod(first, len(all_workers))
        raise BadInput(
            f"round {all_rounds[r]:g} of worker {shown(plain_name(all_workers[w]))} is there "
            f"{counts[first]} times in '{shown(file)}'; a long table has one row for each round and worker"
        )
    tables = {}
    for name, column in values.items():
        tables[name] = np.full((len(all_rounds), len(all_workers)), np.nan)
        tables[name].flat[place] = column
    return all_rounds, all_workers, tables


def by_number(workers: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return workers' names as numbers if all are numbered, so that worker 2 comes before worker 10."""
    if workers.dtype.kind == "f":
        return workers
    matches = [_NUMBERED.fullmatch(str(name).strip().lower()) for name in workers]
    return np.array([float(match.group(1)) for match in matches if match]) if all(matches) else workers


def plain_name(value: object) -> str:
    """Return a worker's name as text, whole numbers without a point."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def unit_in(name: str) -> tuple[str, float | None]:
    """Return a column's name without the unit of time at its end, and that unit in seconds, or None.

    >>> unit_in("duration_ms"), unit_in("Worker 3 (s)"), unit_in("workers")
    (('duration', 0.001), ('worker 3', 1.0), ('workers', None))
    """
    name = name.strip().lower()
    match = _UNIT.search(name)
    if match is None:
        return name, None
    unit = match.group(1)
    scale = 1.0 if unit.startswith("s") else 1e-6 if unit.startswith(("u", "µ", "micro")) else 1e-3
    return name[: match.start()].strip(" _-([/"), scale
