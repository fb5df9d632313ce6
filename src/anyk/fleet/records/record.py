"""Fleet records: measured seconds of each worker in each round."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk.base import BadInput, ByName, Flags, Floats, Indices, as_bad_input, needing
from anyk.delays import MOST, in_order, summarised
from anyk.protocol import Workers

PARTS = ("delay", "compute", "transport")  # of a worker's seconds, if stamps separate them


@dataclass(frozen=True, eq=False)
class Record:
    """Seconds from dispatch to reply of each worker in each round, shape (rounds, workers); nan if not measured.

    ``censored``: times that are lower bounds, because the worker was cancelled. ``workers`` and ``rounds`` are their
    names. ``load``: the share of the data that each worker computed. ``parts``: seconds spent on delay, compute or
    transport, and ``stages``: seconds in each pipeline stage, each of the shape of ``seconds``. ``remarks``: the
    interpretation of the source. ``strategy``: the spec of the strategy in use, ``fleet``: the number or range of
    workers of its run, and ``driver``: the mean seconds of a round besides the workers' times, if known. ``crowding``:
    the workers for each core that they share with the driver, at least 1.

    Raises :class:`~anyk.BadInput` for shapes that do not match, for times that are negative or infinite, and for
    a record without times or with zeros only.

    >>> record = Record([[1.0, 2.0], [1.0, np.nan]])
    >>> record.workers, record.gaps
    ((0, 1), 1)
    """

    seconds: Floats
    censored: Flags | None = None
    workers: tuple[int | str, ...] = ()
    rounds: tuple[int, ...] = ()
    load: float | None = None
    parts: Mapping[str, Floats] = field(default_factory=dict)
    stages: Mapping[str, Floats] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    strategy: str | None = None
    fleet: Workers | None = None
    driver: float | None = None
    crowding: float = 1.0

    def __post_init__(self) -> None:
        given: Any = self.seconds
        if isinstance(given, np.ma.MaskedArray):
            given = np.ma.filled(given.astype(float), np.nan)
        seconds = np.array(given, dtype=float)
        if seconds.ndim != 2 or not seconds.size:
            raise BadInput(f"a fleet record is a table of rounds x workers, got shape {seconds.shape}")
        values = {
            "seconds": seconds,
            "censored": np.zeros(seconds.shape, bool) if self.censored is None else np.array(self.censored, dtype=bool),
            "workers": tuple(self.workers) or tuple(range(seconds.shape[1])),
            "rounds": tuple(self.rounds) or tuple(range(len(seconds))),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        tables: ByName = {"censored": self.censored, **self.parts, **self.stages}
        for name, table in tables.items():
            if np.shape(table) != seconds.shape:
                raise BadInput(f"'{name}' must have the shape of seconds, {seconds.shape}, got {np.shape(table)}")
        if (len(self.rounds), len(self.workers)) != seconds.shape:
            raise BadInput(f"{len(self.rounds)} rounds x {len(self.workers)} workers do not name {seconds.shape}")
        if len(set(self.workers)) < len(self.workers):
            raise BadInput("two workers of a fleet record have the same name")
        if self.load is not None and not 0.0 <= self.load <= 1.0:
            raise BadInput(f"load is the share of the data that each worker computes, 0 to 1, got {self.load:g}")
        self._check_times()

    def _check_times(self) -> None:
        seconds = self.seconds
        for t, i in np.argwhere(np.isinf(seconds) | (seconds < 0) | (seconds > MOST)):
            doubt = "its clock may have jumped" if seconds[t, i] < 0 else f"at most {MOST:g} s make sense"
            raise BadInput(f"worker {self.workers[i]} took {seconds[t, i]:g} s in round {self.rounds[t]}; {doubt}")
        if not np.isfinite(seconds).any():
            raise BadInput("a fleet record needs times, but has none")
        if not np.nanmax(seconds):
            raise BadInput("all times of the fleet record are 0; there is nothing to learn from it")
        if silent := [str(self.workers[i]) for i in np.flatnonzero(self.rounds_measured == 0)]:
            raise BadInput(f"worker {', '.join(silent[:5])} has no times; leave such workers out")

    @cached_property
    def measured(self) -> Flags:
        """Times that were measured or bounded from below, shape (rounds, workers)."""
        return np.isfinite(self.seconds)

    @property
    def rounds_measured(self) -> Indices:
        """The number of rounds in which each worker was measured, cancelled or not, shape (workers,)."""
        return np.asarray(self.measured.sum(axis=0))

    @property
    def gaps(self) -> int:
        """The number of missing times."""
        return int((~self.measured).sum())

    @property
    def cut(self) -> float:
        """The share of the measured times that are censored."""
        return float(np.asarray(self.censored)[self.measured].mean())

    @property
    def table(self) -> Floats:
        """The seconds of the rounds in which every worker was measured, without gaps.

        Raises :class:`~anyk.BadInput` if there is none.
        """
        complete = self.measured.all(axis=1)
        if not complete.any():
            raise BadInput("the fleet record has no round in which every worker was measured; leave workers out")
        return self.seconds[complete]

    @property
    def digest(self) -> str:
        """A digest of the times, the censored flags and the names."""
        names = repr((self.seconds.shape, self.workers, self.rounds)).encode()
        flags = np.ascontiguousarray(self.censored).tobytes()
        content = np.ascontiguousarray(self.seconds).tobytes() + flags + names
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    @property
    def summary(self) -> str:
        """The size, the interpretation of the source, and missing or censored times, in one line."""
        parts = [summarised(self.seconds, self.remarks)]
        if self.gaps:
            parts.append(f"{self.gaps:,} time{'s' * (self.gaps != 1)} missing")
        if self.cut:
            parts.append(f"{100 * self.cut:.3g} % of the times are lower bounds (cut off)")
        return ", ".join(parts)

    def vanished(self) -> list[str]:
        """Return a sentence for each worker that is not measured from some round to the end, at most five."""
        sentences = []
        for i, name in enumerate(self.workers):
            last = int(np.flatnonzero(self.measured[:, i])[-1])
            if last + 1 < len(self.rounds):
                sentences.append(f"worker {name} is not measured after round {self.rounds[last]}")
        return sentences if len(sentences) <= 5 else [*sentences[:4], f"nor are {len(sentences) - 4} further workers"]

    def save(self, path: str | Path) -> None:
        """Write the record as .npz, or as a long table .csv or .parquet; :func:`anyk.fleet.read` reads it back.

        Raises :class:`~anyk.BadInput` for another kind of file or one that cannot be written, and
        :class:`~anyk.base.errors.MissingPackage` for Parquet without pyarrow.
        """
        target = Path(path)
        with as_bad_input(f"the fleet record '{path}' cannot be written"):
            if target.suffix == ".npz":
                np.savez_compressed(target, **self._arrays())
            elif target.suffix == ".csv":
                with target.open("w", encoding="utf-8", newline="") as file:
                    columns = self.long()
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerow(columns)
                    writer.writerows(zip(*columns.values(), strict=True))
            elif target.suffix == ".parquet":
                with needing("pyarrow", "data", "writing Parquet"):
                    import pyarrow
                    from pyarrow import parquet
                parquet.write_table(pyarrow.table(self.long()), target)
            else:
                raise BadInput(f"a fleet record is written as .npz, .csv or .parquet, got '{path}'")

    def _arrays(self) -> ByName:
        """Return the arrays of the .npz file; names of workers are all numbers or all text."""
        arrays: ByName = {
            "seconds": self.seconds,
            "censored": np.asarray(self.censored),
            "workers": np.array(self.workers),
            "rounds": np.array(self.rounds),
        }
        if self.load is not None:
            arrays["load"] = np.array(self.load)
        if self.driver is not None:
            arrays["driver"] = np.array(self.driver)
        if self.crowding > 1.0:
            arrays["crowding"] = np.array(self.crowding)
        parts = {f"part {name}": table for name, table in self.parts.items()}
        return arrays | parts | {f"stage {name}": table for name, table in self.stages.items()}

    def long(self) -> dict[str, list[Any]]:
        """Return the measured times as columns of a long table: round, worker, seconds, and further values."""
        rows, columns = np.nonzero(self.measured)
        table: dict[str, list[Any]] = {
            "round": [self.rounds[t] for t in rows],
            "worker": [self.workers[i] for i in columns],
            "seconds": self.seconds[rows, columns].tolist(),
        }
        if self.cut:
            table["censored"] = np.asarray(self.censored)[rows, columns].astype(int).tolist()
        if self.load is not None:
            table["load"] = [self.load] * len(rows)
        return table | {name: seconds[rows, columns].tolist() for name, seconds in self.parts.items()}


def joined(records: Sequence[Record]) -> Record:
    """Return one record of several; workers are matched by their names, not by their places.

    Records of one worker each, of different workers, were measured at once: they are matched by the numbers of rounds.
    Others were measured one after another.

    Raises :class:`~anyk.BadInput` for records at different loads, and for records of one worker each that have
    no round in common or have a round twice.

    >>> joined([Record([[1.0, 2.0]]), Record([[3.0]], workers=(1,))]).seconds.tolist()
    [[1.0, 2.0], [nan, 3.0]]
    >>> joined([Record([[1.0]], workers=("a",)), Record([[3.0]], workers=("b",))]).seconds.tolist()
    [[1.0, 3.0]]
    """
    if len(records) == 1:
        return records[0]
    if len({record.load for record in records}) > 1:
        raise BadInput("records at different loads cannot be joined; plan with both of them instead")
    workers = in_order(name for record in records for name in record.workers)
    rounds: tuple[int, ...] = ()
    matched: tuple[str, ...] = ()
    if _measured_at_once(records, workers):
        rows, rounds = _side_by_side(records, workers)
        matched = (f"{len(records)} sources of one worker each, matched by round",)
    else:
        rows = _one_after_another(records)
    size = len(rounds) or sum(map(len, rows)), len(workers)

    columns = [np.array([workers.index(name) for name in record.workers]) for record in records]

    def joint(tables: Iterable[ArrayLike]) -> Floats:
        """Return one table of the records' tables, each at its rows and columns."""
        joined_table = np.full(size, np.nan)
        for its_rows, its_columns, table in zip(rows, columns, tables, strict=True):
            joined_table[np.ix_(its_rows, its_columns)] = table
        return joined_table

    return Record(
        seconds=joint(record.seconds for record in records),
        censored=joint(np.asarray(record.censored) for record in records) == 1.0,
        workers=workers,
        rounds=rounds,
        load=records[0].load,
        parts={name: joint([record.parts[name] for record in records]) for name in _common_parts(records)},
        remarks=(*matched, *_all_remarks(records)),
    )


def _all_remarks(records: Sequence[Record]) -> list[str]:
    """Return the remarks of all records, each once."""
    return list(dict.fromkeys(remark for record in records for remark in record.remarks))


def _measured_at_once(records: Sequence[Record], workers: Sequence[int | str]) -> bool:
    """Return whether records are of one worker each, and of different workers."""
    return len(workers) > 1 and all(len(record.workers) == 1 for record in records)


def _common_parts(records: Sequence[Record]) -> list[str]:
    return sorted(set.intersection(*(set(record.parts) for record in records)))


def _one_after_another(records: Sequence[Record]) -> list[NDArray[np.int64]]:
    """Return the rows of each record's rounds in one of all of them, which follow each other."""
    ends = [0, *accumulate(len(record.rounds) for record in records)]
    return [np.arange(start, end) for start, end in pairwise(ends)]


def _side_by_side(
    records: Sequence[Record], names: Sequence[int | str]
) -> tuple[list[NDArray[np.int64]], tuple[int, ...]]:
    """Return the rows of each record's rounds in one of all of them, and the rounds."""
    seen: set[tuple[int | str, int]] = set()
    for record in records:
        keys = {(record.workers[0], t) for t in record.rounds}
        if both := seen & keys:
            worker, t = min(both, key=lambda key: key[1])
            raise BadInput(f"round {t} of worker {worker} is in two of the sources; give each of them once")
        seen |= keys
    count = Counter(t for _, t in seen)
    if max(count.values()) < 2:
        raise BadInput(
            f"the sources are of one worker each ({', '.join(map(str, names[:5]))}) and have no round in common, "
            "so their times cannot be compared"
        )
    rounds = tuple(sorted(count))
    row_of = {t: i for i, t in enumerate(rounds)}
    return [np.array([row_of[t] for t in record.rounds]) for record in records], rounds
