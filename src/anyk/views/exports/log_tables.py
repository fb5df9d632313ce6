"""A run as tables: a Parquet or CSV file for each table of its log."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Literal

from anyk.base import as_bad_input, needing
from anyk.runs import Run
from anyk.runs.api import LOG_TABLES


def save_tables(run: Run, folder: str | Path, kind: Literal["parquet", "csv"] = "parquet") -> dict[str, int]:
    """Write a run's tables (:meth:`anyk.Run.to_frame`) into a folder, made if missing; return their numbers of rows.

    Raises :class:`~anyk.BadInput` if the folder cannot be written, and :class:`~anyk.base.errors.MissingPackage`
    for Parquet without PyArrow (``anyk[data]``).

    >>> import anyk, tempfile
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=2, delays="constant:1", steps=3)
    >>> save_tables(run, tempfile.mkdtemp(), "csv")["chunks"]
    8
    """
    if kind == "parquet":
        with needing("pyarrow", "data", "writing Parquet files"):
            import_module("pyarrow")
    target, counts = Path(folder), {}
    frames = {name: run.to_frame(name) for name in LOG_TABLES}  # before a folder is made
    with as_bad_input(f"the tables cannot be written to '{folder}'"):
        target.mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            if kind == "csv":
                frame.to_csv(target / f"{name}.csv", index=False)
            else:
                frame.to_parquet(target / f"{name}.parquet", index=False)
            counts[name] = len(frame)
    return counts
