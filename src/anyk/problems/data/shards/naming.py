"""Shards by name, as the command line and run folders have them: ``train-*.parquet`` or ``shards:files=…,target=…``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anyk.errors import BadInput
from anyk.problems.data.dataset import Progress, Task, sources
from anyk.problems.data.encoding import rows_text
from anyk.problems.data.shards.sources import Shards
from anyk.problems.linear.sharded import ShardRows
from anyk.specs import absolute, parse, with_keys
from anyk.tables import listed


@dataclass(frozen=True, eq=False)
class ShardedData:
    """Training rows and, if there are any, held-out ones, where they lie; in the place of a ``Dataset``."""

    train: Shards
    test: Shards | None
    task: Task
    rows: int
    intercept: bool
    standardize: bool
    fill: Literal["mean"] | None


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
    progress: Progress | None = None,
) -> ShardedData:
    """Files that only the workers open which hold their rows, larger than memory: ``--data "train-*.parquet"``.

    ``files``: a path, a pattern or an address (``s3://bucket/train-*.parquet``, by fsspec) of Parquet or CSV files, all
    of one kind. ``test``: those to hold out, as a pattern; ``last`` (the last of several files) or
    ``none``. ``target``, ``task``, ``header`` and ``intercept`` as of data set ``file``; ``columns``: those to learn
    from, a/b/c; ``fill=mean``: what is put where a value is missing. ``cache_mb``: what
    each worker keeps of blocks that it has read. Raises BadInput for files that cannot be used, with the reason.
    """
    addresses = [file.address for file in Shards(files).found]
    train_files = list(addresses)
    if test == "last":
        train_files = addresses[:-1] if len(addresses) > 1 else addresses
        test_files = addresses[len(train_files) :]
    else:
        test_files = [] if test == "none" else [file.address for file in Shards(test).found]
        train_files = [file for file in addresses if file not in set(test_files)]
    if not train_files:
        raise BadInput(f"all files of '{files}' are held out (test={test}); none is left to train on")
    header_given = None if header == "auto" else header == "yes"
    train, last = (
        Shards(some, target=target, columns=columns, header=header_given, cache_mb=cache_mb) if some else None
        for some in (train_files, test_files)
    )
    assert train is not None
    rows = ShardRows.learned(train, task, intercept=intercept, fill=fill)
    if progress is not None:
        progress(_summary(files, rows, test_files))
    return ShardedData(train, last, rows.design.task, rows.shape[0], intercept, intercept, fill)


def _summary(files: str, rows: ShardRows, held: list[str]) -> str:
    design = rows.design
    among = f" ({listed(list(map(str, design.labels)))})" if design.labels else ""
    label = f", label '{design.encoding.label}'" if design.encoding.label else ""
    wide = f"{design.features:,} column{'s' * (design.features != 1)}" + " and an intercept" * design.intercept
    out = ", ".join(Path(file).name for file in held) or "nothing (test=FILES holds some out)"
    number = len(design.shards.found)
    return (
        f"{Path(files).name}: {rows_text(rows.shape[0])} in {number} file{'s' * (number != 1)}, {wide}, "
        f"task {design.task}{among}{label}; held out: {out}"
    )


def as_shards(data: str) -> str | None:
    """The spec of shards that ``data`` asks for, with names that are found from any folder; None where it is no such.

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
