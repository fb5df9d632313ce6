"""Delays replayed from a measured table: one row a round, one column a worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.delays.models import MOST, DelayModel
from anyk.errors import BadInput, MissingPackage

Floats = NDArray[np.float64]
_LEAST = 1e-6  # a load-adjusted delay never falls below this many seconds


def _read(path: Path) -> tuple[Floats, float | None, NDArray[np.bool_] | None]:
    """The table (rounds x workers) in a file and, where it says, its relative load and which times are cut off."""
    load: float | None = None
    cut: NDArray[np.bool_] | None = None
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            if "seconds" not in arrays:
                raise BadInput(f"'{path}' has no array 'seconds' (rounds x workers); it has {', '.join(arrays.files)}")
            table = np.asarray(arrays["seconds"], dtype=np.float64)
            if "load" in arrays:
                load = float(arrays["load"])
                if not 0.0 <= load < float("inf"):
                    raise BadInput(f"the load in '{path}' must be a share of the data, at least 0, got {load:g}")
            if "censored" in arrays:
                cut = np.asarray(arrays["censored"], dtype=bool)
                if cut.shape != table.shape:
                    raise BadInput(f"'censored' in '{path}' must have the shape of 'seconds', got {cut.shape}")
    elif path.suffix == ".parquet":
        try:
            import pandas
        except ImportError:
            raise MissingPackage("pandas", "data", "reading Parquet") from None
        frame: Any = pandas.read_parquet(path)
        table = frame.to_numpy(dtype=np.float64)
    elif path.suffix == ".csv" or path.name.endswith(".csv.gz"):
        first = np.loadtxt(path, delimiter=",", max_rows=1, dtype=str, ndmin=1)
        header = 0
        for cell in first:
            try:
                float(cell)
            except ValueError:
                header = 1
        table = np.loadtxt(path, delimiter=",", skiprows=header, ndmin=2)
    else:
        raise BadInput(f"a trace is a .npz, .csv or .parquet file, got '{path}'")
    return table, load, cut


@dataclass(frozen=True, eq=False)
class Table(DelayModel):
    """Delays from a table in memory, seconds, rounds x workers: draw t of worker i is row t mod rounds, column i.

    >>> Table(np.array([[1.0, 2.0]])).draws(seed=0, worker=1, start=0, count=2).tolist()
    [2.0, 2.0]
    """

    times: Floats
    name: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times.ndim != 2 or not self.times.size or not np.isfinite(self.times).all() or (self.times < 0).any():
            raise BadInput(f"a table of delays is rounds x workers of finite seconds, got shape {self.times.shape}")

    @property
    def spec(self) -> str:
        """Its shape; a table has no short form that can be read back."""
        return f"table:{'x'.join(map(str, self.times.shape))}"

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """Inverse of the worker's empirical distribution (``by="item"``, where no row number exists)."""
        column = np.sort(self.times[:, worker])
        return np.asarray(column[(uniforms * len(column)).astype(np.int64)])

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        """See :meth:`DelayModel.draws`."""
        del seed
        return np.asarray(self.times[(start + np.arange(count)) % len(self.times), worker])

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        return float(self.times[:, worker].mean())

    def order_statistic(self, k: int, workers: int) -> float:
        """Mean over the rows of the k-th of each row's first ``workers``: delays of a row belong together."""
        return float(np.sort(self.times[:, :workers], axis=1)[:, k - 1].mean())

    def check_fleet(self, workers: int) -> None:
        """See :meth:`DelayModel.check_fleet`."""
        if self.times.shape[1] < workers:
            raise BadInput(f"the table has {self.times.shape[1]} workers, fewer than the fleet's {workers}")


@typed
@dataclass(frozen=True)
class Trace(DelayModel):
    """Measured delays: ``trace:file.npz`` (array ``seconds``, rounds x workers), CSV or Parquet.

    Draw t of worker i is row ``t mod rounds``, column i. A task that covers another share of the data than the
    ``load`` the trace was measured at takes ``(share - load) * slope`` seconds more; ``load`` is read from the file
    where it says.
    """

    file: str
    slope: float = 0.0
    load: float | None = None
    name: ClassVar[str] = "trace"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isfinite(self.slope):
            raise BadInput(f"the slope of 'trace' must be a finite number, got {self.slope:g}")
        if self.load is not None and not 0.0 <= self.load < float("inf"):
            raise BadInput(f"the load of 'trace' must be a share of the data, at least 0, got {self.load:g}")
        table = self._loaded[0]
        if table.ndim != 2 or not table.size:
            raise BadInput(f"the trace '{self.file}' must be a table of rounds x workers, got shape {table.shape}")
        if not ((table >= 0) & (table <= MOST)).all():
            raise BadInput(f"the trace '{self.file}' must hold seconds from 0 to {MOST:g}")
        if self.slope and self.load_measured is None:
            raise BadInput(f"the trace '{self.file}' does not say its load; give load=… (share of the data) with slope")
        if self.per == "load":
            raise BadInput("a trace is of whole tasks; use slope=… instead of per=load")

    @cached_property
    def _loaded(self) -> tuple[Floats, float | None, NDArray[np.bool_] | None]:
        path = Path(self.file).expanduser()
        if not path.is_file():
            raise BadInput(f"no trace file '{self.file}'")
        try:
            return _read(path)
        except BadInput:
            raise
        except Exception as error:  # a reader's own exceptions are of any kind
            raise BadInput(f"'{self.file}' cannot be read as a trace: {error}") from None

    @property
    def load_measured(self) -> float | None:
        """The relative load that the table was measured at."""
        return self.load if self.load is not None else self._loaded[1]

    @property
    def censored(self) -> NDArray[np.bool_] | None:
        """Which times are only known to be at least so long, where the file says."""
        return self._loaded[2]

    @property
    def times(self) -> Floats:
        """The table, seconds, rounds x workers."""
        return self._loaded[0]

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """Inverse of the worker's empirical distribution (``by="item"``, where no row number exists)."""
        column = np.sort(self._loaded[0][:, worker])
        return np.asarray(column[(uniforms * len(column)).astype(np.int64)])

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        """See :meth:`DelayModel.draws`."""
        del seed
        table = self._loaded[0]
        return np.asarray(table[(start + np.arange(count)) % len(table), worker])

    def at_load(self, seconds: float, relative_load: float) -> float:
        """See :meth:`DelayModel.at_load`."""
        measured = self.load_measured
        if not self.slope or measured is None:
            return seconds
        return max(_LEAST, seconds + (relative_load - measured) * self.slope)

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        return float(self.times[:, worker].mean())

    def order_statistic(self, k: int, workers: int) -> float:
        """Mean over the rows of the k-th of each row's first ``workers``: delays of a row belong together."""
        return float(np.sort(self.times[:, :workers], axis=1)[:, k - 1].mean())

    def check_fleet(self, workers: int) -> None:
        """See :meth:`DelayModel.check_fleet`."""
        width = self._loaded[0].shape[1]
        if width < workers:
            raise BadInput(f"the trace '{self.file}' has {width} workers, fewer than the fleet's {workers}")
