"""Fleet records: how long each worker took in each round, wherever that was measured."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk.delays.base import MOST
from anyk.delays.measured import summarised
from anyk.errors import BadInput, MissingPackage

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
PARTS = ("delay", "compute", "transport")  # of a worker's seconds, where stamps tell them apart


@dataclass(frozen=True, eq=False)
class Record:
    """Seconds from dispatch to reply of each worker in each round, shape (rounds, workers); nan where none is known.

    ``censored``: a time is known only to be at least so long, since the worker was cut off. ``workers`` and ``rounds``
    are their names. ``load``: the share of the data that each worker computed. ``parts``: seconds spent on delay,
    compute or transport, and ``stages``: seconds in each pipeline stage, each of the shape of ``seconds``. ``remarks``
    say how the source was understood. ``strategy``: the spec of the strategy that was in use, if it is known.

    Raises :class:`~anyk.errors.BadInput` for shapes that do not fit, for times that are negative or not finite, and for
    a record without times or with nothing but zeros.

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

    def __post_init__(self) -> None:
        seconds = np.array(self.seconds, dtype=np.float64)
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
        tables: dict[str, Any] = {"censored": self.censored, **self.parts, **self.stages}
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
        wrong = np.argwhere(np.isinf(seconds) | (seconds < 0) | (seconds > MOST))
        if len(wrong):
            t, i = wrong[0]
            why = "its clock may have jumped" if seconds[t, i] < 0 else f"at most {MOST:g} s make sense"
            raise BadInput(f"worker {self.workers[i]} took {seconds[t, i]:g} s in round {self.rounds[t]}; {why}")
        if not np.isfinite(seconds).any():
            raise BadInput("a fleet record needs times, and none is known")
        if not np.nanmax(seconds):
            raise BadInput("all times of the fleet record are 0; there is nothing to learn from it")
        silent = [str(name) for name, seen in zip(self.workers, self.seen, strict=True) if not seen]
        if silent:
            raise BadInput(f"no time is known of worker {', '.join(silent[:5])}; leave such workers out")

    @cached_property
    def known(self) -> Flags:
        """Where a time, or a least one, is known."""
        return np.asarray(np.isfinite(self.seconds))

    @property
    def seen(self) -> NDArray[np.int64]:
        """In how many rounds each worker was measured, cut off or not; shape (workers,)."""
        return np.asarray(self.known.sum(axis=0))

    @property
    def gaps(self) -> int:
        """How many times are missing."""
        return int((~self.known).sum())

    @property
    def cut(self) -> float:
        """The share of the known times that are censored."""
        return float(np.asarray(self.censored)[self.known].mean())

    @property
    def table(self) -> Floats:
        """The rounds in which every worker was measured, as a table without gaps.

        Raises :class:`~anyk.errors.BadInput` where there is none.
        """
        whole = self.known.all(axis=1)
        if not whole.any():
            raise BadInput("the fleet record has no round in which every worker was measured; leave workers out")
        return np.asarray(self.seconds[whole])

    @property
    def digest(self) -> str:
        """A digest of the times, of which are censored, and of the names."""
        made = hashlib.blake2b(digest_size=16)
        for part in (self.seconds, self.censored):
            made.update(np.ascontiguousarray(part).tobytes())
        made.update(repr((self.seconds.shape, self.workers, self.rounds)).encode())
        return made.hexdigest()

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
        """A sentence for each worker that is not measured from some round to the end, at most five."""
        found = []
        for i, name in enumerate(self.workers):
            last = int(np.flatnonzero(self.known[:, i])[-1])
            if last + 1 < len(self.rounds):
                found.append(f"worker {name} is not seen after round {self.rounds[last]}")
        return found if len(found) <= 5 else [*found[:4], f"so are {len(found) - 4} further workers"]

    def of_workers(self, places: Sequence[int]) -> Record:
        """The record of some workers alone, by their columns."""
        at = list(places)
        return replace(
            self,
            seconds=self.seconds[:, at],
            censored=np.asarray(self.censored)[:, at],
            workers=tuple(self.workers[i] for i in at),
            parts={k: v[:, at] for k, v in self.parts.items()},
            stages={k: v[:, at] for k, v in self.stages.items()},
            strategy=None,  # which was for all of them
        )

    def save(self, path: str | Path) -> None:
        """Write the record as .npz, or as a long table .csv or .parquet; :func:`anyk.fleet.read` reads it back.

        Raises :class:`~anyk.errors.BadInput` for another kind of file or one that cannot be written, and
        :class:`~anyk.errors.MissingPackage` for Parquet without pyarrow.
        """
        target = Path(path)
        try:
            if target.suffix == ".npz":
                np.savez_compressed(target, **self._arrays())
            elif target.suffix == ".csv":
                with target.open("w", encoding="utf-8", newline="") as file:
                    columns = self.long()
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerow(columns)
                    writer.writerows(zip(*columns.values(), strict=True))
            elif target.suffix == ".parquet":
                _write_parquet(target, self.long())
            else:
                raise BadInput(f"a fleet record is written as .npz, .csv or .parquet, got '{path}'")
        except OSError as error:
            raise BadInput(f"the fleet record '{path}' cannot be written ({error.strerror})") from None

    def _arrays(self) -> dict[str, Any]:
        named = {f"part {k}": v for k, v in self.parts.items()} | {f"stage {k}": v for k, v in self.stages.items()}
        numbered = all(isinstance(name, int) for name in self.workers)
        workers = np.array(self.workers if numbered else [str(name) for name in self.workers])
        load = {} if self.load is None else {"load": np.array(self.load)}
        return (
            {"seconds": self.seconds, "censored": self.censored, "workers": workers, "rounds": np.array(self.rounds)}
            | load
            | named
        )

    def long(self) -> dict[str, list[Any]]:
        """The known times as columns of a long table: round, worker, seconds, and what else is known."""
        at = np.argwhere(self.known)
        rows, columns = at[:, 0], at[:, 1]
        found: dict[str, list[Any]] = {
            "round": [self.rounds[t] for t in rows],
            "worker": [self.workers[i] for i in columns],
            "seconds": self.seconds[rows, columns].tolist(),
        }
        if self.cut:
            found["censored"] = np.asarray(self.censored)[rows, columns].astype(int).tolist()
        if self.load is not None:
            found["load"] = [self.load] * len(rows)
        for name, table in self.parts.items():
            found[name] = table[rows, columns].tolist()
        return found


def joined(records: Sequence[Record]) -> Record:
    """Records measured one after another as one: rounds follow each other, workers are matched by their names.

    >>> joined([Record([[1.0, 2.0]]), Record([[3.0]], workers=(1,))]).seconds.tolist()
    [[1.0, 2.0], [nan, 3.0]]
    """
    if len(records) == 1:
        return records[0]
    if len({record.load for record in records}) > 1:
        raise BadInput("records at different loads cannot be joined; plan with both of them instead")
    names = list(dict.fromkeys(name for record in records for name in record.workers))
    parts = set.intersection(*(set(record.parts) for record in records))
    seconds, cut = [], []
    tables: dict[str, list[Floats]] = {name: [] for name in parts}
    for record in records:
        at = [names.index(name) for name in record.workers]
        seconds.append(_spread(record.seconds, at, len(names)))
        flags = np.zeros((len(record.rounds), len(names)), dtype=bool)
        flags[:, at] = record.censored
        cut.append(flags)
        for name in parts:
            tables[name].append(_spread(record.parts[name], at, len(names)))
    return Record(
        np.concatenate(seconds),
        np.concatenate(cut),
        tuple(names),
        load=records[0].load,
        parts={name: np.concatenate(tables[name]) for name in sorted(parts)},
        remarks=tuple(dict.fromkeys(remark for record in records for remark in record.remarks)),
    )


def _spread(table: ArrayLike, at: Sequence[int], width: int) -> Floats:
    values = np.asarray(table, dtype=np.float64)
    wide = np.full((len(values), width), np.nan)
    wide[:, at] = values
    return wide


def _write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage("pyarrow", "data", "writing Parquet") from None
    parquet.write_table(pyarrow.table(columns), path)
