"""Times read from a file: seconds, the names of workers and rounds, and the signs of clocks and units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base.arrays import Flags, Floats
from anyk.base.errors import BadInput
from anyk.delays.base import MOST
from anyk.delays.column_meanings import UNITS
from anyk.tables import Table, shown

ROW_NUMBERS = ("index", "unnamed: 0", "row", "#", "t", "id")  # names of columns that number the rows
_CHANCE = math.log(1e6)  # a column that rises by accident once in a million files is no accident
_RISING, _STEPS = 0.9, 30  # share of steps up, and number of steps, from which on a column is a clock with restarts
_LONG = 50.0  # median seconds from which on times look like milliseconds
_TOO_LONG = 3600.0  # median seconds from which on the unit has to be stated

Names = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Times in seconds, shape (rounds, workers), with the file's other contents and ``remarks`` on its interpretation.

    ``columns``: names of the columns in the file, if it has one for each worker. ``workers`` and ``rounds``: their
    names, empty if the file has none. ``more``: further columns of a long table, of the shape of ``times``. ``alone``:
    the file is of one worker, and ``names_worker`` whether it has a column with the worker's name.
    """

    times: Floats
    load: float | None = None
    censored: Flags | None = None
    remarks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    workers: Names = ()
    rounds: tuple[int, ...] = ()
    more: dict[str, Floats] = field(default_factory=dict)
    alone: bool = False
    names_worker: bool = False

    @property
    def summary(self) -> str:
        """The size, the remarks, and the median and longest time, in one line."""
        return summarised(self.times, self.remarks)


def summarised(times: Floats, remarks: Sequence[str]) -> str:
    """Return the size of a table of times in seconds, remarks, and the median and longest time, in one line."""
    rounds, workers = times.shape
    size = f"{rounds:,} round{'s' * (rounds != 1)} x {workers:,} worker{'s' * (workers != 1)}"
    zeros = int((times == 0.0).sum())
    if 0 < 2 * zeros < times.size:  # with more zeros the times are delays, most of which are 0
        remarks = [*remarks, f"{zeros:,} times of 0 s taken as measured, a guess (an empty cell is an absence)"]
    return ", ".join([size, *remarks, f"median {np.nanmedian(times):.3g} s, longest {np.nanmax(times):.3g} s"])


def in_seconds(
    file: Path, times: Floats, *, unit: str | None, scale: float | None, what: str
) -> tuple[Floats, tuple[str, ...]]:
    """Return times in seconds, with remarks on their unit: the given one, else ``scale`` seconds as ``what`` says.

    If neither says it, seconds are assumed, and the remark states that. Raises BadInput if they would last for hours.
    """
    stated = UNITS[unit] if unit is not None else scale
    if stated is not None:
        words = {1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds", 60.0: "minutes", 3600.0: "hours"}
        return (times, ()) if stated == 1.0 else (times * stated, (f"read as {words[stated]}",))
    finite = times[np.isfinite(times)]
    median = float(np.median(finite)) if finite.size else 0.0
    if what == "the array 'seconds'" and median < _LONG:
        return times, ()
    if _TOO_LONG <= median <= MOST:
        raise BadInput(
            f"{what} of '{shown(file)}' has a median of {median:.3g}, and nothing says in which unit; give "
            "unit=ns, us, ms or s (--unit)"
        )
    if median >= _LONG:
        return times, ("read as seconds (if these are milliseconds, give unit=ms), a guess",)
    return times, ("taken as seconds, since no name says the unit",)


def is_clock(times: Floats) -> bool:
    """Return whether the values of each worker, shape (rounds, workers), grow as moments do.

    Chance makes r values grow with probability 1/r!. A clock that restarts falls rarely.

    >>> is_clock(np.arange(24.0).reshape(8, 3)), is_clock(np.array([[1.0, 2.0], [2.0, 1.0], [1.5, 3.0]] * 4))
    (True, False)
    """
    chance, up, steps, falls = 0.0, 0, 0, 0
    for column in times.T:
        values = column[np.isfinite(column)]
        change = np.diff(values)
        chance += math.lgamma(len(np.unique(values)) + 1)
        steps, up, falls = steps + len(change), up + int((change > 0).sum()), falls + int((change < 0).sum())
    if not steps or 2 * up < steps:
        return False
    return (falls == 0 and chance >= _CHANCE) or (steps >= _STEPS and up >= _RISING * steps)


def called(table: Table, i: int) -> str:
    """Return a column's name for a message, or its number in a table without a header."""
    return f"column '{shown(table.names[i])}'" if table.header else f"column {i}"


def in_order(names: Iterable[int | str]) -> Names:
    """Return different names in order: numbers first, and text with its numbers by value.

    >>> in_order(["gpu-10", "gpu-9", 3, "gpu-9", 2])
    (2, 3, 'gpu-9', 'gpu-10')
    """

    def key(name: int | str) -> tuple[Any, ...]:
        if isinstance(name, int):
            return (0, name, ())
        pieces = re.split(r"(\d+)", name)
        return (1, 0, tuple((1, int(piece), "") if piece.isdigit() else (0, 0, piece) for piece in pieces))

    return tuple(sorted(set(names), key=key))


def plain_name(value: object) -> int | str:
    """Return a worker's name: a whole number, or text without blanks around it."""
    if isinstance(value, (int, float)) and value == int(value):
        return int(value)
    return str(value).strip()
