"""Fleet records read from run folders, tables, the traces of other programs, and recorders' folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from anyk.delays import Named, TimeTable, interpreted, read_arrays, read_times
from anyk.errors import BadInput
from anyk.fleet.records.json_traces import is_json, read_json
from anyk.fleet.records.other_programs import COLUMNS, is_event_log, read_event_log, read_operations
from anyk.fleet.records.packed import stem
from anyk.fleet.records.record import PARTS, Record, joined
from anyk.fleet.records.recorder import HEADER
from anyk.matrices import read_npz
from anyk.runs import Run, is_race
from anyk.runs.api import computing_seconds, crowding, driver_seconds, task_seconds
from anyk.strategies import fleet_keys
from anyk.tables import Table, check_input_file, limit, read_csv, read_parquet, shown

Readable = str | Path | Run | Record  # a source of a record
_FILES = "worker-*.csv"  # files of recorders
_ROLLED = "events_*"  # files in a folder of a rolled Spark event log
_MORE = ("censored", "load", *PARTS)  # columns of a long table beside its seconds
_TABLES = (".csv", ".csv.gz", ".parquet")


def read(
    source: Readable,
    *,
    unit: str | None = None,
    max_gb: float | None = None,
    round: str | None = None,
    worker: str | None = None,
    seconds: str | None = None,
) -> Record:
    """Return the fleet record of a source.

    A source is a run folder (or a :class:`~anyk.Run`); a folder written by :mod:`anyk.fleet`'s recorders, or with a
    file for each worker; a table of rounds x workers or a long table with columns for round (step, iteration), worker
    (rank, client, executor) and seconds (duration, ms), as .npz, .csv, .parquet or JSON lines; an operation trace in
    the layout of StragglerAnalysis; a Spark event log; or a JSON trace of PyTorch's profiler, of Ray, of Horovod or of
    NCCL's flight recorder. ``unit`` is s, ms, us or ns if the source does not specify it; ``max_gb`` limits the memory
    of a file. ``round``, ``worker`` and ``seconds`` name columns of a table where their names do not show it;
    ``worker`` without ``seconds`` may list, with commas, a column for each worker.

    Raises :class:`~anyk.errors.BadInput` for a source that is none of these or is ambiguous.
    """
    named = Named(round, worker, seconds)
    if isinstance(source, Record | Run):
        if named:
            raise BadInput("--round, --worker and --seconds name the columns of a table; this source has none")
        return source if isinstance(source, Record) else _of_run(source)
    path = Path(source).expanduser()
    return _of_folder(path, unit, max_gb, named) if path.is_dir() else _of_file(path, unit, max_gb, named)


def _of_file(path: Path, unit: str | None, max_gb: float | None, named: Named) -> Record:
    check_input_file(path, "fleet record")
    name = path.name.lower()
    if name.endswith(_TABLES):
        table = (read_parquet if name.endswith(".parquet") else read_times)(path, limit(path, max_gb))
        columns = {column.strip().lower() for column in table.names} if table.header else set()
        if columns >= COLUMNS and not named:
            return read_operations(path, table)
        kind = "Parquet" if name.endswith(".parquet") else "CSV"
        return _of_table(path, interpreted(path, table, unit=unit, named=named, more=_MORE), kind)
    if is_json(path):
        found = read_json(path, max_gb)
        if isinstance(found, Table):
            return _of_table(path, interpreted(path, found, unit=unit, named=named, more=_MORE), "JSON lines")
        record = found
    elif name.endswith(".npz"):
        record = _of_npz(path, unit, max_gb)
    elif is_event_log(path):
        record = read_event_log([path], max_gb=max_gb)
    else:
        raise BadInput(
            f"'{shown(path)}' is not a fleet record; give a run folder, a .npz, .csv or .parquet table, JSON lines, a "
            "Spark event log, or a JSON trace of PyTorch, Ray, Horovod or NCCL"
        )
    if named:
        raise BadInput(f"--round, --worker and --seconds name the columns of a table; '{shown(path)}' has none")
    return record


def read_all(
    sources: list[str],
    *,
    unit: str | None = None,
    max_gb: float | None = None,
    load: float | None = None,
    round: str | None = None,
    worker: str | None = None,
    seconds: str | None = None,
) -> Record:
    """Return one record of several sources, measured one after another, or at once if each is of another worker.

    ``load``: if they do not specify it; other arguments as in :func:`read`.

    Raises :class:`~anyk.errors.BadInput` for sources that cannot be read or joined, or that specify another load.
    """
    each = [read(source, unit=unit, max_gb=max_gb, round=round, worker=worker, seconds=seconds) for source in sources]
    record = joined(each)
    if load is None:
        return record
    if record.load not in (None, load):
        raise BadInput(f"the record itself has a load of {record.load:g}, not {load:g}; leave the load out")
    return replace(record, load=load)


def _of_table(path: Path, table: TimeTable, kind: str) -> Record:
    """Return the record of a table of times; a file of one worker that has no name is named after the file."""
    more = dict(table.more)
    cut = np.nan_to_num(more.pop("censored")) > 0 if "censored" in more else table.censored
    loads = np.unique(more.pop("load", np.empty(0)))
    loads = loads[np.isfinite(loads)]
    if len(loads) > 1:
        raise BadInput(f"'{shown(path)}' was measured at {len(loads)} different loads; give a record for each of them")
    workers = table.workers
    if table.alone and not table.names_worker:
        workers = (stem(path),)
    return Record(
        table.times,
        cut,
        workers,
        table.rounds,
        float(loads[0]) if len(loads) else table.load,
        more,
        remarks=(kind, *table.remarks),
    )


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


def _of_folder(path: Path, unit: str | None, max_gb: float | None, named: Named) -> Record:
    if (path / "run.toml").is_file() or is_race(path):  # of which Run.open asks for one of its runs
        with Run.open(path) as run:
            return _of_run(run)
    if rolled := [file for file in path.glob(_ROLLED) if file.is_file()]:
        return read_event_log(rolled, max_gb=max_gb)
    files = sorted(path.glob(_FILES))
    if files and all(_starts_with(file, HEADER) for file in files):
        columns = [
            read_csv(file, limit(file), header=True, text=partial(_check_names, file)).columns[:3] for file in files
        ]
        values = tuple(np.concatenate(parts) for parts in zip(*columns, strict=True))
        table = interpreted(path, Table(tuple(HEADER.split(",")), values, True), unit="s")
        return replace(_of_table(path, table, "CSV"), remarks=("written by recorders",))
    files = sorted(
        file for file in path.iterdir() if file.is_file() and (file.name.lower().endswith(_TABLES) or is_json(file))
    )
    if not files:
        raise BadInput(
            f"the folder '{shown(path)}' is neither a run nor written by a recorder ({_FILES}), nor has it a table or "
            "a trace for each worker"
        )
    records = [_of_file(file, unit, max_gb, named) for file in files]
    if wide := [file for file, record in zip(files, records, strict=True) if len(record.workers) > 1]:
        raise BadInput(
            f"the folder '{shown(path)}' has files of several workers each, as {wide[0].name}; name the files in their "
            "order in place of the folder"
        )
    return joined(records)


def _starts_with(file: Path, head: str) -> bool:
    with file.open(encoding="utf-8", errors="replace") as opened:
        return opened.readline().startswith(head)


def _check_names(file: Path, names: Sequence[str]) -> tuple[()]:
    """Raise BadInput if these are not the columns of a recorder's file; return the columns of text, none."""
    if ",".join(names[:3]) != HEADER:
        raise BadInput(f"'{shown(file)}' was not written by a recorder: its columns are not round, worker, seconds")
    return ()


def _of_npz(path: Path, unit: str | None, max_gb: float | None) -> Record:
    allowed = limit(path, max_gb)
    _, names = read_npz(path, allowed, ())
    if "workers" not in names or "rounds" not in names:
        return _of_table(path, read_arrays(path, unit=unit, max_gb=max_gb), "npz")
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
