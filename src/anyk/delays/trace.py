"""Delays replayed from a measured table: one row for each round, one column for each worker."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from anyk.base.arrays import Flags, Floats
from anyk.base.checks import FiniteNumber, NonnegativeNumber, value_class
from anyk.base.errors import BadInput
from anyk.base.specs import File, absolute, parse_spec
from anyk.delays.base import DelayModel
from anyk.delays.measured_times import TimeTable
from anyk.delays.time_tables import read_measured
from anyk.tables import shown

_LEAST = 1e-6  # seconds of a load-adjusted delay, at least


class _Rows(DelayModel):
    """Delays from a table; a draw is a row's entry, so delays of a row belong together."""

    @abstractmethod
    def _rows(self) -> Floats:
        """Return the table in seconds, shape (rounds, workers)."""

    def _title(self) -> str:
        """Return the table's name in messages."""
        return "the table"

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """Return quantiles of the worker's empirical distribution (``by="item"``, for which there is no row number)."""
        column = np.sort(self._rows()[:, worker])
        return column[(uniforms * len(column)).astype(np.int64)]

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        table = self._rows()
        return np.asarray(table[(start + np.arange(count)) % len(table), worker])

    def expected(self, worker: int = 0) -> float:
        return float(self._rows()[:, worker].mean())

    def order_statistic(self, k: int, workers: int) -> float:
        """Return the mean over the rows of the k-th smallest of each row's first ``workers`` delays."""
        return float(np.sort(self._rows()[:, :workers], axis=1)[:, k - 1].mean())

    def check_fleet(self, workers: int) -> None:
        width = self._rows().shape[1]
        if width < workers:
            raise BadInput(f"{self._title()} has {width} workers, fewer than the fleet's {workers}")


@dataclass(frozen=True, eq=False)
class TableDelays(_Rows):
    """Delays from a table in memory, seconds, rounds x workers: draw t of worker i is row t mod rounds, column i.

    >>> TableDelays(np.array([[1.0, 2.0]])).draws(seed=0, worker=1, start=0, count=2).tolist()
    [2.0, 2.0]
    """

    times: Floats
    name = "table"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times.ndim != 2 or not self.times.size or not np.isfinite(self.times).all() or (self.times < 0).any():
            raise BadInput(f"a table of delays is rounds x workers of finite seconds, got shape {self.times.shape}")

    @property
    def spec(self) -> str:
        """The table's shape; a table has no short form that can be read back."""
        return f"table:{'x'.join(map(str, self.times.shape))}"

    def _rows(self) -> Floats:
        return self.times


@value_class
class Trace(_Rows):
    """Measured delays: ``trace:file.npz`` (array ``seconds``, rounds x workers), CSV or Parquet.

    CSV and Parquet have one column for each worker and one row for each round, with or without a header and a first
    column of row numbers, or are long: columns round, worker and seconds. Draw t of worker i is row ``t mod rounds``,
    column i. ``unit`` is s, ms, us or ns, else the unit in the columns' names, else s; ``summary`` states the
    interpretation of the file.

    A task that covers another share of the data than the ``load`` the trace was measured at takes
    ``(share - load) * slope`` seconds more; ``load`` is read from the file if it is stored there. ``max_gb`` limits the
    memory of the file's contents, by default 1 GB or 8 times its size, whichever is more.
    """

    file: File
    slope: FiniteNumber = 0.0
    load: NonnegativeNumber | None = None
    unit: Literal["s", "ms", "us", "ns"] | None = None
    max_gb: float | None = None
    name = "trace"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per == "load":
            raise BadInput("a trace holds the delays of whole tasks; use slope=… instead of per=load")
        _ = self._measured
        # so that a run can be resumed in another folder
        object.__setattr__(self, "file", absolute(self.file))
        if parse_spec(self.spec)[1]["file"] != self.file:
            raise BadInput(f"a spec cannot hold the name of the trace '{shown(self.file)}'; rename it")
        if self.slope and self.load_measured is None:
            raise BadInput(
                f"the trace '{shown(self.file)}' does not say its load; give load=… (share of the data) with slope"
            )

    @cached_property
    def _measured(self) -> TimeTable:
        return read_measured(Path(self.file).expanduser(), unit=self.unit, max_gb=self.max_gb)

    @property
    def summary(self) -> str:
        """The interpretation of the file, in one line."""
        return f"{Path(self.file).name}: {self._measured.summary}"

    def summary_for(self, workers: int) -> str:
        """Return ``summary``, with a note if a fleet of that size uses only some of the trace's workers."""
        if self.times.shape[1] <= workers:
            return self.summary
        return f"{self.summary}; the fleet's {workers} workers are the first of them"

    @property
    def load_measured(self) -> float | None:
        """The share of the data that each worker computed in the measured tasks."""
        return self.load if self.load is not None else self._measured.load

    @property
    def censored(self) -> Flags | None:
        """Times that are lower bounds, shape (rounds, workers); None if the file has none."""
        return self._measured.censored

    @property
    def times(self) -> Floats:
        """The table in seconds, shape (rounds, workers)."""
        return self._measured.times

    def _rows(self) -> Floats:
        return self.times

    def _title(self) -> str:
        return f"the trace '{shown(self.file)}'"

    def at_load(self, seconds: float, relative_load: float) -> float:
        measured = self.load_measured
        if not self.slope or measured is None:
            return seconds
        return max(_LEAST, seconds + (relative_load - measured) * self.slope)
