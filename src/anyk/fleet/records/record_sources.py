"""Fleet records read from run folders, tables, operation traces, Spark's event logs and recorders' folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from anyk.arrays import Floats
from anyk.delays.time_tables import (
    checked_columns,
    in_seconds,
    long_columns,
    pivoted,
    plain_name,
    read_measured,
    unit_in,
)
from anyk.errors import BadInput
from anyk.fleet.records.other_programs import COLUMNS, is_event_log, read_event_log, read_operations
from anyk.fleet.records.record import PARTS, Record, joined
from anyk.fleet.records.recorder import HEADER
from anyk.matrices import read_npz
from anyk.runs import Run, is_race
from anyk.runs.log.delay_trace import computing_seconds, crowding, driver_seconds, task_seconds
from anyk.strategies.construction import fleet_keys
from anyk.tables import Table, check_input_file, limit, read_csv, read_parquet, shown

Readable = str | Path | Run | Record  # a source of a record
_FILES = "worker-*.csv"  # files of recorders


def read(source: Readable, *, unit: str | None = None, max_gb: float | None = None) -> Record:
    """Return the fleet record of a source.

    A source is a run folder (or a :class:`~anyk.Run`); a folder written by :mod:`anyk.fleet`'s recorders; a table of
    rounds x workers or a long table with columns for round (step, iteration), worker (rank, client, executor) and
    seconds (duration, ms), as .npz, .csv or .parquet; an operation trace in the layout of StragglerAnalysis; or a Spark
    event log. ``unit`` is s, ms or us if the source does not specify it; ``max_gb`` limits the memory of a file.

    Raises :class:`~anyk.errors.BadInput` for a source that is none of these or is ambiguous.
    """
    if isinstance(source, Record):
        return source
    if isinstance(source, Run):
        return _of_run(source)
    path = Path(source).expanduser()
    if path.is_dir():
        return _of_folder(path)
    check_input_file(path, "fleet record")
    name = path.name.lower()
    if name.endswith(".npz"):
        return _of_npz(path, unit, max_gb)
    if name.endswith((".csv", ".csv.gz", ".parquet")):
        table = (read_parquet if name.endswith(".parquet") else read_csv)(path, limit(path, max_gb))
        names = [column.strip().lower() for column in table.names] if table.header else []
        if set(names) >= COLUMNS:
            return read_operations(path, table)
        if (places := long_columns(names)) is not None:
            return _of_long(path, table, names, places, unit)
        return _of_table(path, unit, max_gb)
    if is_event_log(path):
        return read_event_log(path, max_gb=max_gb)
    raise BadInput(
        f"'{shown(path)}' is not a fleet record; give a run folder, a .npz, .csv or .parquet table or a Spark event log"
    )


def read_all(
    sources: list[str], *, unit: str | None = None, max_gb: float | None = None, load: float | None = None
) -> Record:
    """Return one record of several sources, measured one after another; ``load``: if they do not specify it.

    Raises :class:`~anyk.errors.BadInput` for sources that cannot be read or joined, or that specify another load.
    """
    record = joined([read(source, unit=unit, max_gb=max_gb) for source in sources])
    if load is None:
        return record
    if record.load not in (None, load):
        raise BadInput(f"the record itself has a load of {record.load:g}, not {load:g}; leave the load out")
    return replace(record, load=load)


def _of_table(path: Path, unit: str | None, max_gb: float | None) -> Record:
    table = read_measured(path, unit=unit, max_gb=max_gb)
    return Record(table.times, table.censored, load=table.load, remarks=table.remarks)


def _of_run(run: Run) -> Record:
    seconds, censored, load = task_seconds(run, due=False)
    computing = computing_seconds(run)
    parts = {} if computing is None else {"compute": computing}
    spec = run.config.strategy
    remarks = [f"a run of '{spec}'"]
    if fleet_keys(spec):
        rounds, workers = seconds.shape
        remarks.append(f"only the {rounds:,} of its {run.jobs:,} rounds in which all {workers} workers were there")
    return Record(
        seconds,
        censored,
        load=load,
        parts=parts,
        remarks=tuple(remarks),
        strategy=spec,
        driver=driver_seconds(run),
        crowding=crowding(run),
    )


def _of_folder(path: Path) -> Record:
    if (path / "run.toml").is_file() or is_race(path):  # of which Run.open asks for one of its runs
        with Run.open(path) as run:
            return _of_run(run)
    files = sorted(path.glob(_FILES))
    if not files:
        raise BadInput(f"the folder '{shown(path)}' is neither a run nor written by a recorder ({_FILES})")
    columns = [read_csv(file, limit(file), header=True, text=partial(_check_names, file)).columns[:3] for file in files]
    rounds, workers, seconds = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return replace(_pivoted(path, rounds, workers, {"seconds": seconds}), remarks=("written by recorders",))


def _check_names(file: Path, names: Sequence[str]) -> tuple[()]:
    """Raise BadInput if these are not the columns of a recorder's file; return the columns of text, none."""
    if ",".join(names[:3]) != HEADER:
        raise BadInput(f"'{shown(file)}' was not written by a recorder: its columns are not round, worker, seconds")
    return ()


def _of_npz(path: Path, unit: str | None, max_gb: float | None) -> Record:
    allowed = limit(path, max_gb)
    _, names = read_npz(path, allowed, ())
    if "workers" not in names or "rounds" not in names:
        return _of_table(path, unit, max_gb)
    arrays, _ = read_npz(path, allowed, names)
    if missing := [name for name in ("seconds", "censored") if name not in arrays]:
        raise BadInput(
            f"'{shown(path)}' has no array '{missing[0]}'; a fleet record has seconds, censored, workers, rounds"
        )
    parts, stages = (
        {name.removeprefix(kind): values for name, values in arrays.items() if name.startswith(kind)}
        for kind in ("part ", "stage ")
    )
    return Record(
        arrays["seconds"],
        arrays["censored"],
        tuple(arrays["workers"].tolist()),
        tuple(int(t) for t in arrays["rounds"]),
        float(arrays["load"]) if "load" in arrays else None,
        parts,
        stages,
        driver=float(arrays["driver"]) if "driver" in arrays else None,
        crowding=max(1.0, float(arrays["crowding"])) if "crowding" in arrays else 1.0,
    )


def _of_long(path: Path, table: Table, names: list[str], places: tuple[int, int, int], unit: str | None) -> Record:
    rounds, workers, seconds = checked_columns(path, table, places)
    if (rounds != np.floor(rounds)).any():
        raise BadInput(
            f"column '{shown(table.names[places[0]])}' of '{shown(path)}' must contain whole numbers of rounds"
        )
    seconds, unit_remarks = in_seconds(seconds, unit, unit_in(names[places[2]])[1] or 1.0)
    more = {name: table.columns[names.index(name)] for name in ("censored", "load", *PARTS) if name in names}
    if wrong := [name for name, values in more.items() if values.dtype.kind != "f"]:
        raise BadInput(f"column '{wrong[0]}' of '{shown(path)}' contains text; it must contain numbers")
    used = [table.names[i] for i in places] + list(more)
    unused = len([name for name in table.names if name not in used])
    remarks = (f"from the columns {', '.join(map(shown, used))}", *([f"{unused} others not used"] if unused else []))
    record = _pivoted(path, rounds, workers, {"seconds": seconds} | more)
    return replace(record, remarks=(*remarks, *unit_remarks))


def _pivoted(path: Path, rounds: Floats, workers: Floats, values: dict[str, Floats]) -> Record:
    """Return the record of a long table; raise BadInput for a round and worker with several rows."""
    all_rounds, all_workers, tables = pivoted(path, rounds, workers, values)
    cut = np.nan_to_num(tables.pop("censored", np.zeros(1))) > 0
    loads = np.unique(tables.pop("load", np.empty(0)))
    loads = loads[np.isfinite(loads)]
    if len(loads) > 1:
        raise BadInput(f"'{shown(path)}' was measured at {len(loads)} different loads; give a record for each of them")
    seconds = tables.pop("seconds")
    names = tuple(int(w) if isinstance(w, float) and w.is_integer() else plain_name(w) for w in all_workers.tolist())
    return Record(
        seconds,
        np.broadcast_to(cut, seconds.shape),
        names,
        tuple(int(t) for t in all_rounds),
        float(loads[0]) if len(loads) else None,
        tables,
    )
