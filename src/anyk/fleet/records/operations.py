"""Operation traces of pipelined training, in the layout of StragglerAnalysis, as fleet records."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from anyk.delays.base import Floats
from anyk.errors import BadInput
from anyk.fleet.records.record import Record
from anyk.tables import Table, shown

COLUMNS = ("dp_rank", "stage", "step", "optype", "duration")


def is_trace(names: Collection[str]) -> bool:
    """Return whether a table has the columns of an operation trace."""
    return all(name in names for name in COLUMNS)


def read_operations(file: Path, table: Table) -> Record:
    """Return a record with data-parallel replicas as workers and, as seconds, the computation of the busiest stage.

    The layout was published with Lin et al. (2025), Understanding Stragglers in Large Model Training Using What-if
    Analysis: one row per operation, ``duration`` in seconds. Only forward and backward computation counts, not the
    waiting for others. The record also has the seconds of each stage.
    """
    columns = dict(zip(table.names, table.columns, strict=True))
    kinds = np.char.endswith(columns["optype"].astype(str), "-compute")
    if not kinds.any():
        raise BadInput(f"'{shown(file)}' has no forward-compute or backward-compute operations")
    numbers = {name: columns[name][kinds] for name in COLUMNS if name != "optype"}
    for name, values in numbers.items():
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise BadInput(f"column '{name}' of '{shown(file)}' must contain finite numbers")
    places = {name: np.unique(numbers[name], return_inverse=True) for name in ("step", "dp_rank", "stage")}
    size = tuple(len(names) for names, _ in places.values())
    totals = np.zeros(size)
    at = tuple(place for _, place in places.values())
    np.add.at(totals, at, numbers["duration"])
    totals[np.bincount(np.ravel_multi_index(at, size), minlength=totals.size).reshape(size) == 0] = np.nan
    steps, ranks, stages = (tuple(int(name) for name in names) for names, _ in places.values())
    by_stage: dict[str, Floats] = {str(stage): totals[:, :, i] for i, stage in enumerate(stages)}
    partial = np.isnan(totals).any(axis=2)  # a replica lacks one of its stages
    seconds = np.where(partial, np.nan, np.nan_to_num(totals).max(axis=2))
    description = f"computation of each replica's busiest of {len(stages)} pipeline stages"
    return Record(seconds, workers=ranks, rounds=steps, stages=by_stage, remarks=(description,))
