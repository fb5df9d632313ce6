"""Formats in which ``anyk export --to`` writes runs for other programs."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

from anyk.base import BadInput, Registry, explaining, parse_spec
from anyk.runs import Run
from anyk.views.exports.log_tables import save_tables
from anyk.views.exports.perfetto import save_perfetto


class Exporter(ABC):
    """A format in which runs are exported.

    ``ending``: the ending added to the run's name in the usual name of the file or, with ``folder``, of the folder to
    write.
    """

    ending: ClassVar[str]
    folder: ClassVar[bool] = False

    @abstractmethod
    def save(self, run: Run, path: Path) -> str:
        """Write a run to a file or folder, and return a line for the user about it.

        Raises :class:`~anyk.BadInput` if the run cannot be exported or nothing can be written there.
        """


exporters: Registry[Exporter] = Registry("export format")


def build_exporter(spec: str) -> Exporter:
    """Return the exporter of a spec; raise :class:`~anyk.BadInput` if a user's class cannot be one."""
    is_own = exporters.entry(parse_spec(spec)[0]).own
    with contextlib.nullcontext() if is_own else explaining(f"the exporter '{spec}' cannot be made"):
        exporter: object = exporters.build(spec)
    if not isinstance(exporter, Exporter):
        raise BadInput(f"the exporter '{spec}' must be a class that extends anyk.views.Exporter, got {exporter!r}")
    ending: object = getattr(exporter, "ending", None)
    if not isinstance(ending, str) or not ending:
        raise BadInput(
            f"the exporter '{spec}' must state the ending of what it writes, as in ending = '.json' in its class; "
            f"{'it has none' if ending is None else f'got {ending!r}'}"
        )
    return exporter


@exporters.register("perfetto")
class _Perfetto(Exporter):
    """A trace for ui.perfetto.dev, a .json or .json.gz file."""

    ending = ".perfetto.json.gz"

    def save(self, run: Run, path: Path) -> str:
        count = save_perfetto(run, path)
        return f"trace: {path} ({count:,} events); open it at ui.perfetto.dev, which keeps it on your machine"


class _Tables(Exporter):
    ending = "-tables"
    folder = True
    kind: ClassVar[Literal["parquet", "csv"]]

    def save(self, run: Run, path: Path) -> str:
        counts = save_tables(run, path, self.kind)
        summary = ", ".join(f"{table} {count:,}" for table, count in counts.items())
        return f"tables: {path} (rows: {summary})"


@exporters.register("parquet")
class _ParquetTables(_Tables):
    """The tables of the run's log as Parquet files, in a folder."""

    kind = "parquet"


@exporters.register("csv")
class _CsvTables(_Tables):
    """The tables of the run's log as CSV files, in a folder."""

    kind = "csv"
