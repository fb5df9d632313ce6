"""Fleet records read from run folders, tables, the traces of other programs, and recorders' folders.

Each kind of file or folder is a :class:`RecordSource` in the registry ``record_sources``. Those of plug-ins are asked
first whether a file or folder is of their kind, then anyk's own in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from anyk.base import BadInput, Entry, Registry, explaining
from anyk.delays import Named, TimeTable, interpreted, read_arrays, read_times
from anyk.fleet.records.json_traces import is_json, read_json
from anyk.fleet.records.other_programs import COLUMNS, is_event_log, read_event_log, read_operations
from anyk.fleet.records.packed import stem
from anyk.fleet.records.record import PARTS, Record, joined
from anyk.fleet.records.recorder import HEADER
from anyk.runs import Run, is_race
from anyk.runs.api import computing_seconds, crowding, driver_seconds, task_seconds
from anyk.tables import Table, check_input_file, limit, read_csv, read_npz, read_parquet, shown

Readable = str | Path | Run | Record  # a source of a record
_FILES = "worker-*.csv"  # files of recorders
_ROLLED = "events_*"  # files in a folder of a rolled Spark event log
_MORE = ("censored", "load", *PARTS)  # columns of a long table beside its seconds
_TABLES = (".csv", ".csv.gz", ".parquet")
_NO_COLUMNS = "--round, --worker and --seconds name the columns of a table"


class Reading(NamedTuple):
    """How the user wants a file or folder to be read.

    ``unit``: s, ms, us or ns, if the user says so. ``max_gb``: a limit on memory, None for the usual one. ``columns``:
    the columns of a table that the user names.
    """

    unit: str | None = None
    max_gb: float | None = None
    columns: Named = Named()


class RecordSource(ABC):
    """A kind of file or folder from which fleet records are read.

    ``takes_columns``: whether the user may name columns of it, ``reading.columns``; they are refused otherwise.
    """

    takes_columns: ClassVar[bool] = False

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Return whether a file or folder that exists is of this kind, by its name, its first bytes or its files."""

    @abstractmethod
    def read(self, path: Path, reading: Reading) -> Record:
        """Return the record; raise :class:`~anyk.BadInput` if the file or folder is damaged."""


record_sources: Registry[RecordSource] = Registry("source of fleet records")


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

    Raises :class:`~anyk.BadInput` for a source that is none of these or is ambiguous.
    """
    named = Named(round, worker, seconds)
    if isinstance(source, Record | Run):
        if named:
            raise BadInput(f"{_NO_COLUMNS}; this source has none")
        return source if isinstance(source, Record) else _of_run(source)
    path = Path(source).expanduser()
    return _read_path(path, Reading(unit, max_gb, named))


def _read_path(path: Path, reading: Reading) -> Record:
    """Return the record of a file or folder."""
    if not path.is_dir():
        check_input_file(path, "fleet record")
    entry = _recognised(path)
    source = entry.build()
    if reading.columns and not source.takes_columns:
        raise BadInput(f"{_NO_COLUMNS}; '{shown(path)}' has none")
    if entry.own:
        return source.read(path, reading)
    with explaining(f"the source '{entry.name}' of fleet records failed"):
        record = source.read(path, reading)
    if not isinstance(record, Record):
        raise BadInput(f"the source '{entry.name}' of fleet records returned {type(record).__name__}, not a Record")
    return replace(record, remarks=(f"read by '{entry.name}'", *record.remarks))


def _recognised(path: Path) -> Entry[RecordSource]:
    """Return the source of a file or folder; raise :class:`~anyk.BadInput` if there is none, or several."""
    entries = list(record_sources)
    recognising = []
    for entry in entries:
        if not entry.own:
            with explaining(f"the source '{entry.name}' of fleet records failed"):
                if entry.build().recognises(path):
                    recognising.append(entry)
    if len(recognising) > 1:
        names = " and ".join(f"'{entry.name}'" for entry in recognising)
        raise BadInput(f"'{shown(path)}' is recognised by the sources {names}; use the plug-in of only one of them")
    built_in = (entry for entry in entries if entry.own and entry.build().recognises(path))
    entry_or_none = next(iter(recognising), None) or next(built_in, None)
    if entry_or_none is not None:
        return entry_or_none
    if path.is_dir():
        raise BadInput(
            f"the folder '{shown(path)}' is neither a run nor written by a recorder ({_FILES}), nor has it a table or "
            "a trace for each worker"
        )
    raise BadInput(
        f"'{shown(path)}' is not a fleet record; give a run folder, a .npz, .csv or .parquet table, JSON lines, a "
        "Spark event log, or a JSON trace of PyTorch, Ray, Horovod or NCCL"
    )


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

    Raises :class:`~anyk.BadInput` for sources that cannot be read or joined, or that specify another load.
    """
    records = [
        read(source, unit=unit, max_gb=max_gb, round=round, worker=worker, seconds=seconds) for source in sources
    ]
    record = joined(records)
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
        seconds=table.times,
        censored=cut,
        workers=workers,
        rounds=table.rounds,
        load=float(loads[0]) if len(loads) else table.load,
        parts=more,
        remarks=(kind, *table.remarks),
    )


def _of_run(run: Run) -> Record:
    seconds, censored, load = task_seconds(run, due=False)
    computing = computing_seconds(run)
    parts = {} if computing is None else {"compute": computing}
    spec = run.config.strategy
    remarks = [f"a run of '{spec}'"]
    if run.config.workers.fewest is not None:
        rounds, workers = seconds.shape
        remarks.append(f"only the {rounds:,} of its {run.jobs:,} rounds in which all {workers} workers were there")
    return Record(
        seconds,
        censored,
        load=load,
        parts=parts,
        remarks=tuple(remarks),
        strategy=spec,
        fleet=run.config.workers,
        driver=driver_seconds(run),
        crowding=crowding(run),
    )


# ------------------------------------------------------------------------------------------- anyk's own sources


@record_sources.register("run")
class _RunFolder(RecordSource):
    """The folder of a run."""

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and ((path / "run.toml").is_file() or is_race(path))

    def read(self, path: Path, reading: Reading) -> Record:
        with Run.open(path) as run:  # of a race it asks for one of its runs
            return _of_run(run)


@record_sources.register("table")
class _TableFile(RecordSource):
    """A CSV or Parquet table, also an operation trace in the layout of StragglerAnalysis."""

    takes_columns = True

    def recognises(self, path: Path) -> bool:
        return path.is_file() and path.name.lower().endswith(_TABLES)

    def read(self, path: Path, reading: Reading) -> Record:
        parquet = path.name.lower().endswith(".parquet")
        table = (read_parquet if parquet else read_times)(path, limit(path, reading.max_gb))
        columns = {column.strip().lower() for column in table.names} if table.header else set()
        if columns >= COLUMNS and not reading.columns:
            return read_operations(path, table)
        times = interpreted(path, table, unit=reading.unit, named=reading.columns, more=_MORE)
        return _of_table(path, times, "Parquet" if parquet else "CSV")


@record_sources.register("json")
class _JsonFile(RecordSource):
    """JSON lines with round, worker and seconds, or a JSON trace of PyTorch, Ray, Horovod or NCCL."""

    takes_columns = True

    def recognises(self, path: Path) -> bool:
        return path.is_file() and is_json(path)

    def read(self, path: Path, reading: Reading) -> Record:
        content = read_json(path, reading.max_gb)
        if isinstance(content, Table):
            times = interpreted(path, content, unit=reading.unit, named=reading.columns, more=_MORE)
            return _of_table(path, times, "JSON lines")
        if reading.columns:
            raise BadInput(f"{_NO_COLUMNS}; '{shown(path)}' has none")
        return content


@record_sources.register("npz")
class _ArrayFile(RecordSource):
    """An npz file with an array of rounds x workers, or a record that anyk wrote."""

    def recognises(self, path: Path) -> bool:
        return path.is_file() and path.name.lower().endswith(".npz")

    def read(self, path: Path, reading: Reading) -> Record:
        return _of_npz(path, reading.unit, reading.max_gb)


@record_sources.register("spark")
class _SparkLog(RecordSource):
    """A Spark event log, or the folder of one that was rolled."""

    def recognises(self, path: Path) -> bool:
        return bool(_rolled(path)) if path.is_dir() else is_event_log(path)

    def read(self, path: Path, reading: Reading) -> Record:
        return read_event_log(_rolled(path) if path.is_dir() else [path], max_gb=reading.max_gb)


def _rolled(folder: Path) -> list[Path]:
    return [file for file in folder.glob(_ROLLED) if file.is_file()]


@record_sources.register("recorder")
class _RecorderFolder(RecordSource):
    """A folder that a recorder wrote."""

    def recognises(self, path: Path) -> bool:
        files = sorted(path.glob(_FILES)) if path.is_dir() else []
        return bool(files) and all(_starts_with(file, HEADER) for file in files)

    def read(self, path: Path, reading: Reading) -> Record:
        columns = [
            read_csv(file, limit(file), header=True, text=partial(_check_names, file)).columns[:3]
            for file in sorted(path.glob(_FILES))
        ]
        values = tuple(np.concatenate(parts) for parts in zip(*columns, strict=True))
        table = interpreted(path, Table(tuple(HEADER.split(",")), values, True), unit="s")
        return replace(_of_table(path, table, "CSV"), remarks=("written by recorders",))


@record_sources.register("files")
class _FileForEach(RecordSource):
    """A folder with a table or a JSON trace for each worker."""

    takes_columns = True

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and bool(self._files(path))

    def _files(self, folder: Path) -> list[Path]:
        files = (file for file in folder.iterdir() if file.is_file())
        return sorted(file for file in files if file.name.lower().endswith(_TABLES) or is_json(file))

    def read(self, path: Path, reading: Reading) -> Record:
        files = self._files(path)
        records = [_read_path(file, reading) for file in files]
        wide = [file for file, record in zip(files, records, strict=True) if len(record.workers) > 1]
        if wide:
            raise BadInput(
                f"the folder '{shown(path)}' has files of several workers each, as {wide[0].name}; name the files in "
                "their order in place of the folder"
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
        seconds=arrays["seconds"],
        censored=arrays["censored"],
        workers=tuple(arrays["workers"].tolist()),
        rounds=tuple(int(t) for t in arrays["rounds"]),
        load=float(arrays["load"]) if "load" in arrays else None,
        parts=parts,
        stages=stages,
        driver=float(arrays["driver"]) if "driver" in arrays else None,
        crowding=max(1.0, float(arrays["crowding"])) if "crowding" in arrays else 1.0,
    )
