"""The table of an item: cases, each with the numbers and curves of every seed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyk.base import BadInput, Floats

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A case, with its ``numbers`` by name, one per seed, and its ``curves`` by name, (x, y) per seed."""

    case: Case
    numbers: dict[str, list[float]] = field(default_factory=dict)
    curves: dict[str, list[tuple[Floats, Floats]]] = field(default_factory=dict)

    def mean(self, name: str) -> float:
        """Return the mean over the seeds; NaN if the number of any seed is NaN."""
        return float(np.mean(self.numbers[name]))

    def spread(self, name: str) -> tuple[float, float]:
        """Return the least and the largest value over the seeds."""
        return float(np.min(self.numbers[name])), float(np.max(self.numbers[name]))

    def at(self, name: str, x: float) -> float:
        """Return a curve's value at x, linear between its points, mean over the seeds."""
        return float(np.mean([np.interp(x, xs, ys) for xs, ys in self.curves[name]]))


@dataclass(frozen=True)
class Table:
    """Rows in the order of the cases."""

    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def row(self, **case: Any) -> Row:
        """Return the row whose case has these values."""
        rows = [row for row in self.rows if all(row.case.get(key) == value for key, value in case.items())]
        if len(rows) != 1:
            raise BadInput(f"{len(rows)} rows of the table have {case}")
        return rows[0]

    def mean(self, name: str, **case: Any) -> float:
        """Return a number of the row whose case has these values, mean over the seeds."""
        return self.row(**case).mean(name)

    def where(self, **case: Any) -> Table:
        """Return the rows whose cases have these values."""
        return Table(tuple(row for row in self.rows if all(row.case.get(key) == value for key, value in case.items())))

    def cells(self, columns: Sequence[str]) -> list[list[str]]:
        """Return the text of each cell: a case's value, or a number, with its spread if seeds differ."""
        return [[_cell(row, column) for column in columns] for row in self.rows]

    def csv(self) -> str:
        """Return all numbers as CSV, a line per case and seed."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row.case))
        names = list(dict.fromkeys(name for row in self.rows for name in row.numbers))
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*keys, "seed", *names])
        for row in self.rows:
            for seed in range(max((len(values) for values in row.numbers.values()), default=0)):
                numbers = [row.numbers[name][seed] if name in row.numbers else "" for name in names]
                writer.writerow([*(row.case.get(key, "") for key in keys), seed, *numbers])
        return buffer.getvalue()

    def plain(self) -> list[dict[str, Any]]:
        """Return the rows as plain data for JSON, with curves as lists, NaN and inf as None."""
        return [
            {
                "case": dict(row.case),
                "numbers": {name: [_number(value) for value in values] for name, values in row.numbers.items()},
                "curves": {
                    name: [[list(map(_number, x.tolist())), list(map(_number, y.tolist()))] for x, y in curves]
                    for name, curves in row.curves.items()
                },
            }
            for row in self.rows
        ]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _cell(row: Row, column: str) -> str:
    if column in row.case:
        return str(row.case[column])
    if column not in row.numbers:
        return ""
    mean, (low, high) = row.mean(column), row.spread(column)
    if not np.isfinite(mean):
        return "never" if np.isinf(row.numbers[column]).any() else ""
    if len(row.numbers[column]) > 1 and high - low > 5e-4 * abs(mean):
        return f"{mean:.4g} ({low:.3g} to {high:.3g})"
    return f"{mean:.4g}"


def cases(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    """Return all combinations, the last choice changing fastest.

    >>> cases(law=["exp"], k=[1, 4])
    [{'law': 'exp', 'k': 1}, {'law': 'exp', 'k': 4}]
    """
    combinations: list[dict[str, Any]] = [{}]
    for key, values in choices.items():
        combinations = [{**case, key: value} for case in combinations for value in values]
    return combinations


def above_best(one: Row, others: Sequence[Row], curve: str, *, points: int = 60) -> float:
    """Return the relative excess of a row's curve over the least of the others', mean over the time that they share.

    >>> t = np.array([0.0, 1.0])
    >>> rows = [Row({}, curves={"loss": [(t, np.array(y))]}) for y in ([2.0, 2.0], [4.0, 1.0], [1.1, 3.3])]
    >>> round(above_best(rows[2], rows[:2], "loss", points=2), 9)  # 0.1 half-way, 2.3 at the end
    1.2
    """
    end = min(float(x[-1]) for row in (one, *others) for x, _ in row.curves[curve])
    times = np.linspace(end / points, end, points)
    best = np.min([[row.at(curve, moment) for moment in times] for row in others], axis=0)
    return float(np.mean([one.at(curve, moment) for moment in times] / best - 1.0))


def crossing(
    x: Floats, y: Floats, target: float, *, better: Callable[[Floats, float], Any] = np.greater_equal
) -> float:
    """Return the first x at which y has reached a target, inf if it never does.

    >>> crossing(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.9, 0.8]), 0.5)
    2.0
    """
    reached = np.flatnonzero(better(y, target))
    return float(x[reached[0]]) if reached.size else float("inf")
