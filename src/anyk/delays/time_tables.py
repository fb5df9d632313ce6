"""Measured times read from files: which array or table they are in, and what is wrong with a file that is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.delays.base import MOST
from anyk.delays.column_meanings import Named, Roles, names_rounds, names_workers, seconds_rank
from anyk.delays.long_tables import from_long
from anyk.delays.measured_times import Names, TimeTable, in_seconds
from anyk.delays.wide_tables import from_wide
from anyk.tables import (
    Limit,
    Table,
    check_input_file,
    is_row_number,
    limit,
    listed,
    read_csv,
    read_npz,
    read_parquet,
    shown,
)


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
    _check_times(file, measured)
    return measured


def _check_times(file: Path, measured: TimeTable) -> None:
    """Raise BadInput for a time that is missing, or is no number of seconds."""
    times = measured.times
    wrong = np.argwhere(~((times >= 0) & (times <= MOST)))
    if not len(wrong):
        return
    row, i = wrong[0]
    if measured.rounds and not measured.columns:
        raise BadInput(
            f"round {measured.rounds[row]} of worker {shown(str(measured.workers[i]))} is missing in "
            f"'{shown(file)}'; a trace has one row for each round and worker"
        )
    holder = measured.columns[i] if measured.columns else f"worker {i}"
    raise BadInput(
        f"the trace '{shown(file)}' must hold seconds from 0 to {MOST:g}, but {holder} has {times[row, i]:g} in "
        f"round {row}"
    )


# ------------------------------------------------------------------------------------------- arrays


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
    times, remarks = in_seconds(file, measured.times, unit=unit, scale=None, what="the array 'seconds'")
    return replace(measured, times=times, remarks=(*measured.remarks, *remarks))


def _from_npz(file: Path, allowed: Limit) -> TimeTable:
    arrays, names = read_npz(file, allowed, ("seconds", "load", "censored", "workers"))
    if "seconds" not in arrays:
        raise BadInput(
            f"'{shown(file)}' has no array 'seconds' (rounds x workers); it has {', '.join(map(shown, names[:9]))}"
        )
    labels = arrays.pop("workers", None)
    unused = [name for name in names if name not in (*arrays, "workers")]
    for name, values in arrays.items():
        if values.dtype.kind not in "biuf":
            raise BadInput(f"array '{name}' of '{shown(file)}' must hold numbers, got {values.dtype}")
    load = None if "load" not in arrays else _load_in(file, arrays["load"])
    censored = arrays.get("censored")
    if censored is not None and censored.shape != arrays["seconds"].shape:
        raise BadInput(f"'censored' in '{shown(file)}' must have the shape of 'seconds', got {censored.shape}")
    with np.errstate(all="ignore"):  # values that do not fit become infinite, which is refused
        times = arrays["seconds"].astype(float)
    remarks: tuple[str, ...] = ()
    if _begins_with_row_numbers(times):
        times, censored = times[:, 1:], None if censored is None else censored[:, 1:]
        remarks = ("row numbers in the first column left out",)
    workers = () if labels is None else _workers_in(file, labels, times)
    if unused:
        remarks += (f"{listed(unused)} not used",)
    return TimeTable(
        times=times,
        load=load,
        censored=None if censored is None else censored.astype(bool),
        remarks=remarks,
        workers=workers,
    )


def _begins_with_row_numbers(times: Floats) -> bool:
    return times.ndim == 2 and times.shape[1] > 1 and len(times) > 2 and is_row_number(times[:, 0])


def _workers_in(file: Path, labels: NDArray[Any], times: Floats) -> Names:
    """Return the names in the array ``workers``; raise BadInput if they are not one for each column of times."""
    if times.ndim != 2 or labels.shape != times.shape[1:] or labels.dtype.kind not in "iuU":
        raise BadInput(
            f"'workers' in '{shown(file)}' must be a name or number for each column of 'seconds', got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    return tuple(labels.tolist())


def _load_in(file: Path, load: NDArray[Any]) -> float:
    """Return the number in the array ``load``; raise BadInput if it is no share of the data."""
    if load.size != 1 or not 0.0 <= load.item() < math.inf:
        got = f"{load.item():g}" if load.size == 1 else f"shape {load.shape}"
        raise BadInput(f"the load in '{shown(file)}' must be a share of the data, at least 0, got {got}")
    return float(load.item())


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
    chosen = Roles(
        round=named.places(table.names, named.round, "--round"),
        worker=named.places(table.names, named.worker, "--worker"),
        seconds=named.places(table.names, named.seconds, "--seconds"),
    )
    if len(chosen.seconds) > 1:
        raise BadInput(f"--seconds is the name of one column, got '{named.seconds}'")
    if len(chosen.worker) > 1 and not chosen.seconds:
        return from_wide(file, table, unit=unit, chosen=chosen.worker, round_columns=chosen.round)
    roles = _recognised(table, chosen, more)
    if roles.seconds and (roles.worker or roles.round or len(table.names) == 1):
        return from_long(file, table, unit=unit, roles=roles, chosen=chosen, more=more)
    if chosen.seconds or chosen.worker or (roles.worker and len(table.names) > 1):
        raise BadInput(_half_a_long_table(file, table, roles))
    return from_wide(file, table, unit=unit, chosen=None, round_columns=chosen.round)


def _recognised(table: Table, chosen: Roles, more: Sequence[str]) -> Roles:
    """Return the columns that may be the rounds, the workers and the seconds: those chosen by the user, or by name."""
    taken = {*chosen.round, *chosen.worker, *chosen.seconds}
    free = [i for i in range(len(table.names)) if table.header and i not in taken]
    by_rank = {i: seconds_rank(table.names[i]) for i in free if table.names[i].lower() not in more}
    ranks = [rank for rank in by_rank.values() if rank]
    sure = min(ranks, default=0)
    return Roles(
        round=chosen.round or [i for i in free if names_rounds(table.names[i])],
        worker=chosen.worker or [i for i in free if names_workers(table.names[i])],
        seconds=chosen.seconds or [i for i, rank in by_rank.items() if rank and rank == sure],
    )


def _half_a_long_table(file: Path, table: Table, roles: Roles) -> str:
    """Return the message for a table that has the workers or the seconds of a long table, but not both."""
    columns = {"round": roles.round, "worker": roles.worker, "seconds": roles.seconds}
    missing = next(what for what, numbers in columns.items() if not numbers)
    first = (roles.worker or roles.seconds)[0]
    return (
        f"'{shown(file)}' has a column '{shown(table.names[first])}', as of a long table, but none is known to "
        f"be the {missing}: {listed(table.names)}; name the columns with --round, --worker and --seconds"
    )
