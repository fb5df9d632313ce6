"""Shards as specs for the command line and run folders: ``train-*.parquet`` or ``shards:files=…,target=…``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from anyk.errors import BadInput
from anyk.problems.base import Tell
from anyk.problems.data.dataset import Task, sources
from anyk.problems.data.encoding import rows_text
from anyk.problems.data.shards.sources import Shards
from anyk.problems.linear.sharded import ShardRows
from anyk.specs import absolute, parse, with_keys
from anyk.tables import listed


@dataclass(frozen=True, eq=False)
class ShardedData:
    """Shards with the training rows and, if any are held out, with the test rows; takes the place of a ``Dataset``."""

    X_train: Shards
    X_test: Shards | None
    task: Task
    rows: int
    intercept: bool
    standardize: bool
    fill: Literal["mean"] | None
    y_train = y_test = None  # the targets are in the files


@sources.register("shards")
def from_shards(
    *,
    files: str,
    target: str | None = None,
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto",
    columns: tuple[str, ...] | None = None,
    header: Literal["auto", "yes", "no"] = "auto",
    fill: Literal["mean"] | None = None,
    intercept: bool = True,
    test: str = "last",
    cache_mb: float = 256.0,
    progress: Tell | None = None,
) -> ShardedData:
    """Files larger than memory, which only the workers that need their rows open: ``--data "train-*.parquet"``.

    ``files``: a path, a pattern or an address (``s3://bucket/train-*.parquet``, by fsspec) of files that are all
    Parquet or all CSV. ``test``: a pattern of the files to hold out; ``last`` (the last of several files) or ``none``.
    ``target``, ``task``, ``header`` and ``intercept``: as of data set ``file``. ``columns``: the columns to learn from,
    a/b/c. ``fill=mean``: replaces missing values by the mean. ``cache_mb``: the size of each worker's cache of blocks.
    Raises BadInput for files that cannot be used, with the reason.
    """
    addresses = [file.address for file in Shards(files).resolved_files]
    if test == "last":
        test_files = addresses[-1:] if len(addresses) > 1 else []
    else:
        test_files = [] if test == "none" else [file.address for file in Shards(test).resolved_files]
    train_files = [file for file in addresses if file not in test_files]
    if not train_files:
        raise BadInput(f"all files of '{files}' are held out (test={test}); none is left to train on")
    shards = partial(
        Shards, target=target, columns=columns, header={"yes": True, "no": False}.get(header), cache_mb=cache_mb
    )
    train = shards(train_files)
    rows = ShardRows.learned(train, task, intercept=intercept, fill=fill)
    if progress is not None:
        progress(_summary(files, rows, test_files))
    held_out = shards(test_files) if test_files else None
    return ShardedData(train, held_out, rows.design.task, rows.shape[0], intercept, intercept, fill)


def _summary(files: str, rows: ShardRows, held_out: list[str]) -> str:
    design = rows.design
    among = f" ({listed(list(map(str, design.labels)))})" if design.labels else ""
    label = f", label '{design.encoding.label}'" if design.encoding.label else ""
    wide = f"{design.features:,} column{'s' * (design.features != 1)}" + " and an intercept" * design.intercept
    out = ", ".join(Path(file).name for file in held_out) or "nothing (test=FILES holds some out)"
    number = len(design.shards.resolved_files)
    return (
        f"{Path(files).name}: {rows_text(rows.shape[0])} in {number} file{'s' * (number != 1)}, {wide}, "
        f"task {design.task}{among}{label}; held out: {out}"
    )


def as_shards(data: str) -> str | None:
    """Return the spec of shards that ``data`` names, with paths that are valid in any folder; None for other data.

    >>> as_shards("s3://bucket/train-*.parquet"), as_shards("digits")
    ('shards:files=(s3://bucket/train-*.parquet)', None)
    """
    text = data.strip()
    if text.partition(":")[0] == "shards":
        values = parse(text)[1]
        values["files"] = values.pop("", values.get("files", ""))
    elif "://" in text or any(sign in text.partition(":")[0] for sign in "*?["):
        values = {"files": text}
    else:
        return None
    for key in ("files", "test"):
        if values.get(key) and not (key == "test" and values[key] in ("last", "none")):
            values[key] = f"({values[key] if '://' in values[key] else absolute(values[key])})"
    return with_keys("shards", {key: value for key, value in values.items() if value})
