"""Measured times read from files: the workers of columns, the rounds of rows, and the unit of values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.arrays import Array, Flags, Floats
from anyk.delays.base import MOST
from anyk.delays.column_meanings import (
    UNITS,
    Named,
    families,
    measured_word,
    names_a_clock,
    names_rounds,
    names_workers,
    seconds_rank,
    unit_in,
    words_in,
)
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
    missing_values,
    read_csv,
    read_parquet,
    shown,
)

_INDEX = ("index", "unnamed: 0", "row", "#", "t", "id")
_UNIT_ENDING = re.compile(r"(?<=.)[\s_\-(\[/.]+[A-Za-zµμ]+[)\]]?$")
_CHANCE = math.log(1e6)  # a column that rises by accident once in a million files is no accident
_RISING, _STEPS = 0.9, 30  # share of steps up, and number of steps, from which on a column is a clock with restarts
_LONG = 50.0  # median seconds from which on times look like milliseconds
_TOO_LONG = 3600.0  # median seconds from which on the unit has to be stated
_FACTOR = 10.0  # between the medians of workers, at most, where nothing else says that columns are workers
_ALIKE = 8  # rows from which on a column that is constant, or computed from others, is none by accident

Names = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Times in seconds, shape (rounds, workers), with the file's other contents and ``remarks`` on its interpretation.

    ``columns``: names of the columns in the file, if it has one for each worker. ``workers`` and ``rounds``: their
    names, empty if the file has none. ``more``: further columns of a long table, of the shape of ``times``. ``alone``:
    the file is of one worker, and ``names_worker`` whether it has a column with the worker's name.
    """

    times: Floats
    load: float | None = None
    censored: Flags | None = None
    remarks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    workers: Names = ()
    rounds: tuple[int, ...] = ()
    more: dict[str, Floats] = field(default_factory=dict)
    alone: bool = False
    names_worker: bool = False

    @property
    def summary(self) -> str:
        """The size, the remarks, and the median and longest time, in one line."""
        return summarised(self.times, self.remarks)


def summarised(times: Floats, remarks: Sequence[str]) -> str:
    """Return the size of a table of times in seconds, remarks, and the median and longest time, in one line."""
    rounds, workers = times.shape
    size = f"{rounds:,} round{'s' * (rounds != 1)} x {workers:,} worker{'s' * (workers != 1)}"
    zeros = int((times == 0.0).sum())
    if 0 < 2 * zeros < times.size:
        remarks = [*remarks, f"{zeros:,} times of 0 s taken as measured, a guess (an empty cell is an absence)"]
    return ", ".join([size, *remarks, f"median {np.nanmedian(times):.3g} s, longest {np.nanmax(times):.3g} s"])


def read_measured(file: Path, *, unit: str | None, max_gb: float | None) -> TimeTable:
    """Return the times in an npz, CSV (also ``.csv.gz``) or Parquet file; ``unit`` is s, ms, us or ns, else as named.

    CSV and Parquet have one column for each worker, or the columns round, worker and seconds. Row numbers are ignored.
    Raises BadInput for a table that is ambiguous or has times that are missing or not finite.
    """
    check_input_file(file, "trace file")
    name = file.name.lower()
    if not name.endswith((".npz", ".parquet", ".csv", ".csv.gz")):
        raise BadInput(f"a trace is a .npz, .csv or .parquet file, got '{shown(file)}'")
    allowed = limit(file, max_gb)
    if name.endswith(".npz"):
        measured = read_arrays(file, unit=unit, max_gb=max_gb)
    else:
        table = read_parquet(file, allowed) if name.endswith(".parquet") else read_times(file, allowed)
        measured = interpreted(file, table, unit=unit)
    times = measured.times
    wrong = np.argwhere(~((times >= 0) & (times <= MOST)))
    if len(wrong):
        row, i = wrong[0]
        if measured.rounds and not measured.columns:
            raise BadInput(
                f"round {measured.rounds[row]} of worker {shown(str(measured.workers[i]))} is missing in "
                f"'{shown(file)}'; a trace has one row for each round and worker"
            )
        where = measured.columns[i] if measured.columns else f"worker {i}"
        raise BadInput(
            f"the trace '{shown(file)}' must hold seconds from 0 to {MOST:g}, but {where} has {times[row, i]:g} in "
            f"round {row}"
        )
    return measured


def read_times(file: Path, allowed: Limit) -> Table:
    """Return the columns of a CSV file of times."""
    return read_csv(file, allowed, remedy="write names that are no numbers, such as worker0, or leave them out")


def read_arrays(file: Path, *, unit: str | None, max_gb: float | None) -> TimeTable:
    """Return the times in the array ``seconds`` of an npz file; missing times are nan."""
    measured = _from_npz(file, limit(file, max_gb))
    if measured.times.ndim != 2 or not measured.times.size:
        raise BadInput(
            f"the trace '{shown(file)}' must be a table of rounds x workers, got shape {measured.times.shape}"
        )
    times, remarks = in_seconds(file, measured.times, unit, None, "the array 'seconds'")
    return replace(measured, times=times, remarks=(*measured.remarks, *remarks))


def in_seconds(
    file: Path, times: Floats, unit: str | None, scale: float | None, what: str
) -> tuple[Floats, tuple[str, ...]]:
    """Return times in seconds, with remarks on their unit: the given one, else ``scale`` seconds as ``what`` says.

    If neither says it, seconds are assumed, and the remark states that. Raises BadInput if they would last for hours.
    """
    given = UNITS[unit] if unit is not None else scale
    if given is not None:
        called = {1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds", 60.0: "minutes", 3600.0: "hours"}
        return (times, ()) if given == 1.0 else (times * given, (f"read as {called[given]}",))
    finite = times[np.isfinite(times)]
    median = float(np.median(finite)) if finite.size else 0.0
    if what == "the array 'seconds'" and median < _LONG:
        return times, ()
    if _TOO_LONG <= median <= MOST:
        raise BadInput(
            f"{what} of '{shown(file)}' has a median of {median:.3g}, and nothing says in which unit; give "
            "unit=ns, us, ms or s (--unit)"
        )
    if median >= _LONG:
        return times, ("read as seconds (if these are milliseconds, give unit=ms), a guess",)
    return times, ("taken as seconds, since no name says the unit",)


def _from_npz(file: Path, allowed: Limit) -> TimeTable:
    arrays, names = read_npz(file, allowed, ("seconds", "load", "censored", "workers"))
    if "seconds" not in arrays:
        raise BadInput(
            f"'{shown(file)}' has no array 'seconds' (rounds x workers); it has {', '.join(map(shown, names[:9]))}"
        )
    called = arrays.pop("workers", None)
    unused = [name for name in names if name not in (*arrays, "workers")]
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
    workers: Names = ()
    if called is not None:
        if times.ndim != 2 or called.shape != times.shape[1:] or called.dtype.kind not in "iuU":
            raise BadInput(
                f"'workers' in '{shown(file)}' must be a name or number for each column of 'seconds', got "
                f"{called.dtype} of shape {called.shape}"
            )
        workers = tuple(called.tolist())
    if unused:
        remarks += (f"{listed(unused)} not used",)
    return TimeTable(times, share, None if cut is None else cut.astype(bool), remarks=remarks, workers=workers)


# ------------------------------------------------------------------------------------------- tables


def interpreted(
    file: Path, table: Table, *, unit: str | None = None, named: Named | None = None, more: Sequence[str] = ()
) -> TimeTable:
    """Return the times of a table of columns, wide or long; missing times are nan.

    ``named``: columns that the user names; ``more``: names of further columns of numbers to read from a long table.
    Raises BadInput for a table that is ambiguous, with the columns that it has.
    """
    named = named or Named()
    if not table.rows:
        raise BadInput(f"the trace '{shown(file)}' must be a table of rounds x workers, got a header only")
    places = {
        "round": named.places(table.names, named.round, "--round"),
        "worker": named.places(table.names, named.worker, "--worker"),
        "seconds": named.places(table.names, named.seconds, "--seconds"),
    }
    if len(places["seconds"]) > 1:
        raise BadInput(f"--seconds is the name of one column, got '{named.seconds}'")
    if len(places["worker"]) > 1 and not places["seconds"]:
        return _from_wide(file, table, unit, places["worker"], places["round"])
    found = _recognised(table, places, more)
    if found["seconds"] and (found["worker"] or found["round"] or len(table.names) == 1):
        return _from_long(file, table, unit, found, places, more)
    if places["seconds"] or places["worker"] or (found["worker"] and len(table.names) > 1):
        missing = [what for what in ("round", "worker", "seconds") if not found[what]]
        first = found["worker"] or found["seconds"]
        raise BadInput(
            f"'{shown(file)}' has a column '{shown(table.names[first[0]])}', as of a long table, but none is known to "
            f"be the {missing[0]}: {listed(table.names)}; name the columns with --round, --worker and --seconds"
        )
    return _from_wide(file, table, unit, None, places["round"])


def _recognised(table: Table, places: dict[str, list[int]], more: Sequence[str]) -> dict[str, list[int]]:
    """Return the places of the columns that may be the rounds, the workers and the seconds: those given, or by name."""
    taken = {i for given in places.values() for i in given}
    free = [i for i in range(len(table.names)) if table.header and i not in taken]
    by_rank = {i: seconds_rank(table.names[i]) for i in free if table.names[i].lower() not in more}
    ranks = [rank for rank in by_rank.values() if rank]
    sure = min(ranks, default=0)
    return {
        "round": places["round"] or [i for i in free if names_rounds(table.names[i])],
        "worker": places["worker"] or [i for i in free if names_workers(table.names[i])],
        "seconds": places["seconds"] or [i for i, rank in by_rank.items() if rank and rank == sure],
    }


def _called(table: Table, i: int) -> str:
    return f"column '{shown(table.names[i])}'" if table.header else f"column {i}"


# ------------------------------------------------------------------------------------------- a row for each task


def _from_long(
    file: Path,
    table: Table,
    unit: str | None,
    found: dict[str, list[int]],
    given: dict[str, list[int]],
    more: Sequence[str],
) -> TimeTable:
    """Return the times of a long table, whose columns were ``given`` by the user or ``found`` by their names."""
    table, left_out = _without_other_rows(table, found)
    rounds_at, workers_at = _keys(file, table, found, given)
    rounds, remark = _round_numbers(file, table, rounds_at)
    names, which = _worker_names(file, table, workers_at, len(rounds[0]))
    place = rounds[1] * len(names) + which
    _refuse_repeated(file, table, place, rounds[0], names, workers_at)
    shape = len(rounds[0]), len(names)

    def pivoted(i: int) -> Floats:
        values = np.full(shape, np.nan)
        values.flat[place] = _numbers(file, table, i)
        return values

    tables = {i: pivoted(i) for i in found["seconds"]}
    at = _durations(file, table, tables, given["seconds"])
    times, scale = tables[at], unit_in(table.names[at])[1] if table.header else None
    times, unit_remarks = in_seconds(file, times, unit, scale, _called(table, at))
    columns = {name: i for i, name in enumerate(n.strip().lower() for n in table.names) if name in more}
    used = [*rounds_at, *workers_at, at]
    unused = [
        table.names[i]
        for i in range(len(table.names))
        if i not in used and i not in columns.values() and table.names[i].lower() not in _INDEX
    ]
    remarks = [f"from the columns {listed([table.names[i] for i in [*used, *columns.values()]])}"]
    if table.header and not given["seconds"] and seconds_rank(table.names[at]) == 3:
        remarks.append(f"'{table.names[at]}' taken for the seconds, a guess (--seconds names another)")
    if left_out:
        remarks.append(f"{left_out:,} rows without a round or a worker, and without seconds, left out")
    remarks += [remark] * bool(remark) + [f"{listed(unused)} not used"] * bool(unused)
    return TimeTable(
        times,
        remarks=(*remarks, *unit_remarks),
        workers=names,
        rounds=tuple(rounds[0]),
        more={name: pivoted(i) for name, i in columns.items()},
        alone=len(names) == 1,
        names_worker=bool(workers_at),
    )


def _without_other_rows(table: Table, found: dict[str, list[int]]) -> tuple[Table, int]:
    """Return the table without rows that are no measurements: without seconds, and without a round or a worker."""
    untimed = np.logical_and.reduce([missing_values(table.columns[i]) for i in found["seconds"]])
    unnamed = np.zeros(table.rows, dtype=bool)
    for i in (*found["round"], *found["worker"]):
        unnamed |= missing_values(table.columns[i])
    kept = ~(untimed & unnamed)
    if kept.all() or not kept.any():
        return table, 0
    return replace(table, columns=tuple(column[kept] for column in table.columns)), int((~kept).sum())


def _numbers(file: Path, table: Table, i: int) -> Floats:
    """Return a column of numbers, nan if missing; raise BadInput for text and infinite values."""
    column = table.columns[i]
    if column.dtype.kind != "f":
        text = next((value for value in column if value is not None and not is_number(value)), None)
        raise BadInput(
            f"{_called(table, i)} of '{shown(file)}' holds text, such as '{shown(str(text))}'; it must hold numbers"
        )
    if np.isinf(column).any():
        raise BadInput(f"{_called(table, i)} of '{shown(file)}' has rows that are infinite")
    return column


def _keys(
    file: Path, table: Table, found: dict[str, list[int]], given: dict[str, list[int]]
) -> tuple[list[int], list[int]]:
    """Return the columns that together name the round, and the worker, of each row once.

    A single column of each kind is preferred, then two for the round (epoch and step) or the worker (node and GPU).
    """
    rounds, workers = found["round"], found["worker"]
    if not rounds:
        if table.rows > 1 and workers:
            raise BadInput(
                f"'{shown(file)}' has no column that is known to be the round, as round, step or iteration: "
                f"{listed(table.names)}; name it with --round"
            )
        return [], workers
    options: list[tuple[list[int], list[int]]] = []
    if given["round"] and given["worker"]:
        options = [(rounds, workers)]
    else:
        one_round = [given["round"]] if given["round"] else [[i] for i in sorted(rounds, key=_coarse(table))]
        one_worker = [given["worker"]] if given["worker"] else [[i] for i in sorted(workers, key=_local(table))] or [[]]
        options += [(r, w) for w in one_worker for r in one_round]
        if not given["round"]:
            pairs = combinations(sorted(rounds, key=_coarse(table), reverse=True), 2)
            options += [([a, b], w) for a, b in pairs for w in one_worker]
        if not given["worker"]:
            options += [(r, [a, b]) for a, b in combinations(workers, 2) for r in one_round]
    for option in options:
        codes = [np.unique(_text(table.columns[i]), return_inverse=True)[1] for i in (*option[0], *option[1])]
        if len(np.unique(np.column_stack(codes), axis=0)) == table.rows:
            return option
    return options[0]


def _coarse(table: Table) -> Any:
    """Return a key that puts epochs behind steps, and steps of one process behind those of all."""
    return lambda i: ("epoch" in words_in(table.names[i]), "global" not in words_in(table.names[i]), i)


def _local(table: Table) -> Any:
    """Return a key that puts ranks first and numbers within a node last."""
    return lambda i: ("local" in words_in(table.names[i]), "rank" not in words_in(table.names[i]), i)


def _text(column: Array) -> NDArray[np.str_]:
    return column.astype(str) if column.dtype.kind != "f" else column


def _round_numbers(file: Path, table: Table, places: Sequence[int]) -> tuple[tuple[list[int], NDArray[np.int64]], str]:
    """Return the rounds' numbers and each row's place among them, with a remark if two columns name them."""
    if not places:
        return (list(range(table.rows)), np.arange(table.rows)), "rows as rounds" * (table.rows > 1)
    columns = []
    for i in places:
        column = table.columns[i]
        if column.dtype.kind != "f":
            matches = [re.fullmatch(r"\D*(\d{1,15})", str(value or "").strip()) for value in column]
            if not all(matches):
                raise BadInput(f"{_called(table, i)} of '{shown(file)}' holds text; it must hold numbers of rounds")
            column = np.array([float(match.group(1)) for match in matches if match])
        if not np.isfinite(column).all():
            raise BadInput(f"{_called(table, i)} of '{shown(file)}' has rows without a finite value")
        if (column != np.floor(column)).any():
            raise BadInput(f"{_called(table, i)} of '{shown(file)}' must contain whole numbers of rounds")
        columns.append(column)
    if len(columns) == 1:
        numbers, place = np.unique(columns[0], return_inverse=True)
        return ([int(t) for t in numbers], place.reshape(-1)), ""
    pairs, place = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    both = " and ".join(f"'{table.names[i]}'" for i in places)
    return (list(range(len(pairs))), place.reshape(-1)), f"{both} together as rounds"


def _worker_names(file: Path, table: Table, places: Sequence[int], rounds: int) -> tuple[Names, NDArray[np.int64]]:
    """Return the names of workers in their order, and each row's place among them."""
    if not places:
        return (0,), np.zeros(table.rows, dtype=np.int64)
    parts = []
    for i in places:
        column = table.columns[i]
        if missing_values(column).any():
            raise BadInput(f"{_called(table, i)} of '{shown(file)}' has rows without a finite value")
        if column.dtype.kind == "f" and (column != np.floor(column)).any():
            value = column[column != np.floor(column)][0]
            raise BadInput(f"{_called(table, i)} of '{shown(file)}' names no workers: it has {value:g}")
        parts.append([plain_name(value) for value in column.tolist()])
    names = ["/".join(str(part) for part in row) for row in zip(*parts, strict=True)] if len(parts) > 1 else parts[0]
    ordered = in_order(names)
    if len(ordered) == table.rows > 2 and rounds > 1:
        raise BadInput(
            f"{_called(table, places[0])} of '{shown(file)}' is another in every row, so it does not name workers; "
            "name the column that does with --worker"
        )
    place = {name: k for k, name in enumerate(ordered)}
    return ordered, np.array([place[name] for name in names])


def _refuse_repeated(
    file: Path, table: Table, place: NDArray[np.int64], rounds: Sequence[int], names: Names, workers_at: Sequence[int]
) -> None:
    """Raise BadInput if a round and worker has several rows."""
    counts = np.bincount(place)
    if not (counts > 1).any():
        return
    first = int(np.argmax(counts > 1))
    r, w = divmod(first, len(names))
    if not workers_at:
        raise BadInput(
            f"round {rounds[r]} is there {counts[first]} times in '{shown(file)}', but no column is known to name the "
            f"worker: {listed(table.names)}; name it with --worker"
        )
    raise BadInput(
        f"round {rounds[r]} of worker {shown(str(names[w]))} is there {counts[first]} times in '{shown(file)}'; a long "
        "table has one row for each round and worker"
    )


def _durations(file: Path, table: Table, tables: dict[int, Floats], given: Sequence[int]) -> int:
    """Return the column of seconds among candidates, which is not a clock; raise BadInput unless there is one."""
    if given:
        return given[0]
    clocks = [i for i, values in tables.items() if is_clock(values)]
    left = [i for i in tables if i not in clocks]
    if not left:
        raise BadInput(
            f"{_called(table, clocks[0])} of '{shown(file)}' grows from round to round like a clock, so it holds "
            "moments and not durations; name the column of durations with --seconds"
        )
    if len(left) > 1:
        raise BadInput(
            f"'{shown(file)}' has {len(left)} columns that may be the seconds: {listed([table.names[i] for i in left])}"
            "; name one with --seconds"
        )
    return left[0]


def is_clock(times: Floats) -> bool:
    """Return whether the values of each worker, shape (rounds, workers), grow as moments do.

    Chance makes r values grow with probability 1/r!. A clock that restarts falls rarely.

    >>> is_clock(np.arange(24.0).reshape(8, 3)), is_clock(np.array([[1.0, 2.0], [2.0, 1.0], [1.5, 3.0]] * 4))
    (True, False)
    """
    chance, up, steps, falls = 0.0, 0, 0, 0
    for column in times.T:
        values = column[np.isfinite(column)]
        change = np.diff(values)
        chance += math.lgamma(len(np.unique(values)) + 1)
        steps, up, falls = steps + len(change), up + int((change > 0).sum()), falls + int((change < 0).sum())
    if not steps or 2 * up < steps:
        return False
    return (falls == 0 and chance >= _CHANCE) or (steps >= _STEPS and up >= _RISING * steps)


# ------------------------------------------------------------------------------------------- a column for each worker


def _from_wide(
    file: Path, table: Table, unit: str | None, chosen: Sequence[int] | None, rounds_at: Sequence[int]
) -> TimeTable:
    """Return the times of a table with a column for each worker; ``chosen``: these columns, as the user says."""
    names = list(table.names)
    columns, remarks = list(range(len(names))) if chosen is None else list(chosen), []
    at = list(rounds_at) or [i for i in columns if table.header and names_rounds(names[i]) and len(columns) > 1]
    if chosen is None:
        columns = [i for i in columns if i not in at]
        if at == [0]:
            remarks.append("row numbers in the first column left out")
        elif at:
            remarks.append(f"{listed([names[i] for i in at])} left out")
        else:
            left_out = _index(table)
            if left_out:
                columns.pop(0)
                remarks.append(left_out)
    if not columns:
        raise BadInput(f"'{shown(file)}' has no column of a worker's seconds: {listed(names)}")
    for i in columns:
        if table.columns[i].dtype.kind != "f":
            text = next((value for value in table.columns[i] if value is not None and not is_number(value)), None)
            raise BadInput(
                f"'{shown(file)}' cannot be read as a trace: {_called(table, i)} holds text, such as "
                f"'{shown(str(text))}'; remove it"
            )
    values = [table.columns[i] for i in columns]
    if chosen is None:
        _refuse_other_shapes(file, values)
        _refuse_clocks(file, table, columns)
    scales = {unit if words else None for words, unit in map(unit_in, [names[i] for i in columns]) if table.header}
    if len(scales) > 1:
        raise BadInput(f"the columns of '{shown(file)}' are in different units; convert them to one")
    if chosen is None:
        if table.header:
            remarks += _check_workers(file, table, columns)
        _check_values(file, table, columns)
    order = _by_numbers(names, columns) if table.header and chosen is None else columns
    if order != columns:
        remarks.append("columns in the order of the workers' numbers")
    scale = next(iter(scales)) if len(scales) == 1 else None
    times = np.column_stack([table.columns[i] for i in order])
    called = tuple(_called(table, i) for i in order)
    rounds, times = _rounds_of(table, at, times)
    times, unit_remarks = in_seconds(file, times, unit, scale, called[0])
    workers: Names = ()
    if table.header:
        bare = [_UNIT_ENDING.sub("", names[i]) if scale is not None else names[i] for i in order]
        workers = tuple(plain_name(float(name)) if name.isdigit() else name for name in bare)
        if len(set(workers)) < len(workers):
            raise BadInput(f"two columns of '{shown(file)}' have the same name; name each worker once")
        remarks.insert(0, f"a column for each worker ({listed(bare)})")
    else:
        remarks.insert(0, "a column for each worker, without names")
    return TimeTable(
        times,
        remarks=(*remarks, *unit_remarks),
        columns=called,
        workers=workers,
        rounds=rounds,
        alone=len(order) == 1,
        names_worker=table.header,
    )


def _index(table: Table) -> str | None:
    """Return a remark if the first column is no worker's but numbers or dates the rows."""
    name, first = table.names[0].strip().lower(), table.columns[0]
    if len(table.names) == 1:
        return None
    counted = is_row_number(first) and len(first) > 2
    of_worker = table.header and (names_workers(re.sub(r"\d+", "", name)) or re.fullmatch(r"w\W?\d+", name))
    if (table.header and name in _INDEX) or (counted and not of_worker):
        return "row numbers in the first column left out"
    dated = table.header and (names_a_clock(name) or name == "time")
    if dated and (first.dtype.kind != "f" or is_clock(first[:, None])):
        return f"the clock '{table.names[0]}' in the first column left out"
    return None


def _rounds_of(table: Table, at: Sequence[int], times: Floats) -> tuple[tuple[int, ...], Floats]:
    """Return the numbers of rounds in a column of a wide table, and its rows in their order; () if there are none."""
    if len(at) != 1:
        return (), times
    column = table.columns[at[0]]
    whole = column.dtype.kind == "f" and np.isfinite(column).all() and (column == np.floor(column)).all()
    if not whole or len(np.unique(column)) < len(column) or np.abs(column).max() > 2**53:
        return (), times
    order = np.argsort(column, kind="stable")
    return tuple(int(t) for t in column[order]), times[order]


def _by_numbers(names: Sequence[str], columns: list[int]) -> list[int]:
    """Return columns in the order of the numbers in their names, if they differ in these only."""
    matches = {i: re.fullmatch(r"(\D*)(\d+)(\D*)", names[i].strip().lower()) for i in columns}
    around = {(match.group(1), match.group(3)) for match in matches.values() if match}
    if len(around) != 1 or not all(matches.values()):
        return columns
    return sorted(columns, key=lambda i: int(match.group(2)) if (match := matches[i]) else 0)


def _check_workers(file: Path, table: Table, columns: Sequence[int]) -> list[str]:
    """Raise BadInput for columns whose names are no workers'; return a remark if the names show nothing."""
    names = [table.names[i].strip() for i in columns]
    remedy = "; remove it, or list the workers' columns with --worker"
    shared = set.intersection(*({word.rstrip("0123456789") for word in words_in(name)} for name in names))
    if len(names) == 1:
        shared = set()
    for name in names:
        if (word := measured_word(name, shared)) is not None:
            raise BadInput(f"column '{shown(name)}' of '{shown(file)}' is no worker's, by its name ('{word}'){remedy}")
    known = families(names)
    if any(known) and not all(known):
        other = names[known.index(False)]
        raise BadInput(f"'{shown(file)}' has column '{shown(other)}' beside those of workers{remedy}")
    if any(known) or len(names) == 1:
        return []
    medians = [_median(table.columns[i]) for i in columns]
    low, high = min(medians), max(medians)
    if not 0 < high <= _FACTOR * low:
        raise BadInput(
            f"the columns of '{shown(file)}' do not look like workers, by name or by value: {listed(names)}; list "
            "the workers' columns with --worker, or name those of a long table with --round, --worker and --seconds"
        )
    return ["columns taken for workers, a guess (--worker names others)"]


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else 0.0


def _refuse_clocks(file: Path, table: Table, columns: Sequence[int]) -> None:
    """Raise BadInput for a column beside others that rises in every row."""
    for i in columns:
        values = table.columns[i][np.isfinite(table.columns[i])]
        if len(columns) > 1 and is_clock(values[:, None]) and (np.diff(values) > 0).all():
            raise BadInput(
                f"{_called(table, i)} of '{shown(file)}' rises in every row, like a clock or a row number; "
                "remove it, as each column is a worker's seconds, or list the workers' columns with --worker"
            )


def _check_values(file: Path, table: Table, columns: Sequence[int]) -> None:
    """Raise BadInput for columns that are computed from the others, or constant among others that vary."""
    remedy = "remove it, or list the workers' columns with --worker"
    values = np.column_stack([table.columns[i] for i in columns])
    values = values[np.isfinite(values).all(axis=1)]
    if len(columns) < 3 or len(values) < _ALIKE:
        return
    varying = np.array([len(np.unique(column)) > 2 for column in values.T])
    for k, i in enumerate(columns):
        others = np.delete(values, k, axis=1)
        if len(np.unique(values[:, k])) == 1 and varying.sum() >= 2:
            raise BadInput(f"{_called(table, i)} of '{shown(file)}' is the same in all rows; {remedy}")
        for what, computed in (
            ("largest", others.max(axis=1)),
            ("smallest", others.min(axis=1)),
            ("mean", others.mean(axis=1)),
            ("median", np.median(others, axis=1)),
            ("sum", others.sum(axis=1)),
        ):
            if varying[k] and np.allclose(values[:, k], computed, rtol=1e-3, atol=1e-12):
                raise BadInput(f"{_called(table, i)} of '{shown(file)}' is the {what} of the others; {remedy}")


def _refuse_other_shapes(file: Path, values: Sequence[Floats]) -> None:
    """Raise BadInput for a long table without names, which looks like a column a worker."""
    rows = len(values[0])
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


# ------------------------------------------------------------------------------------------- names


def in_order(names: Iterable[int | str]) -> Names:
    """Return different names in order: numbers first, and text with its numbers by value.

    >>> in_order(["gpu-10", "gpu-9", 3, "gpu-9", 2])
    (2, 3, 'gpu-9', 'gpu-10')
    """

    def key(name: int | str) -> tuple[Any, ...]:
        if isinstance(name, int):
            return (0, name, ())
        parts = re.split(r"(\d+)", name)
        return (1, 0, tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts))

    return tuple(sorted(set(names), key=key))


def plain_name(value: object) -> int | str:
    """Return a worker's name: a whole number, or text without blanks around it."""
    if isinstance(value, (int, float)) and value == int(value):
        return int(value)
    return str(value).strip()
