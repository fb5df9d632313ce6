"""Tables with a column for each worker: which columns are workers, what their names say, and their rows' order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.delays.column_meanings import (
    families,
    measured_word,
    names_a_clock,
    names_rounds,
    names_workers,
    unit_in,
    words_in,
)
from anyk.delays.measured_times import ROW_NUMBERS, Names, TimeTable, called, in_seconds, is_clock, plain_name
from anyk.tables import Table, is_number, is_row_number, listed, shown

_UNIT_ENDING = re.compile(r"(?<=.)[\s_\-(\[/.]+[A-Za-zµμ]+[)\]]?$")
_FACTOR = 10.0  # between the medians of workers, at most, where nothing else says that columns are workers
_ALIKE = 8  # rows from which on a column that is constant, or computed from others, is none by accident


def from_wide(
    file: Path, table: Table, *, unit: str | None, chosen: Sequence[int] | None, round_columns: Sequence[int]
) -> TimeTable:
    """Return the times of a table with a column for each worker.

    ``chosen``: the columns of the workers, if the user names them; ``round_columns``: those that the user names for the
    rounds.
    """
    columns = list(range(len(table.names))) if chosen is None else list(chosen)
    round_columns = list(round_columns) or _columns_of_rounds(table, columns)
    remarks: list[str] = []
    if chosen is None:
        columns, remarks = _without_row_names(table, columns, round_columns)
    _check_numbers(file, table, columns)
    if chosen is None:
        _refuse_long_table(file, [table.columns[i] for i in columns])
        _refuse_clocks(file, table, columns)
    scale = _common_scale(file, table, columns)
    if chosen is None:
        remarks += _check_workers(file, table, columns) if table.header else []
        _check_values(file, table, columns)
        in_file = columns
        columns = _by_numbers(table.names, columns) if table.header else columns
        if columns != in_file:
            remarks.append("columns in the order of the workers' numbers")
    rounds, times = _rounds_of(table, round_columns, np.column_stack([table.columns[i] for i in columns]))
    times, unit_remarks = in_seconds(file, times, unit=unit, scale=scale, what=called(table, columns[0]))
    workers, remark = _worker_names(file, table, columns, with_units=scale is not None)
    return TimeTable(
        times=times,
        remarks=(remark, *remarks, *unit_remarks),
        columns=tuple(called(table, i) for i in columns),
        workers=workers,
        rounds=rounds,
        alone=len(columns) == 1,
        names_worker=table.header,
    )


# ------------------------------------------------------------------------------------------- columns beside the workers


def _columns_of_rounds(table: Table, columns: Sequence[int]) -> list[int]:
    """Return the columns that name rounds; none in a table without a header or with a single column."""
    return [i for i in columns if table.header and len(columns) > 1 and names_rounds(table.names[i])]


def _without_row_names(
    table: Table, columns: Sequence[int], round_columns: Sequence[int]
) -> tuple[list[int], list[str]]:
    """Return the columns without those that name, number or date the rows, with a remark on them."""
    others = [i for i in columns if i not in round_columns]
    if round_columns == [0]:
        return others, ["row numbers in the first column left out"]
    if round_columns:
        return others, [f"{listed([table.names[i] for i in round_columns])} left out"]
    remark = _row_names_first(table)
    return (others, []) if remark is None else (others[1:], [remark])


def _row_names_first(table: Table) -> str | None:
    """Return a remark if the first column is no worker's but numbers or dates the rows."""
    name, first = table.names[0].strip().lower(), table.columns[0]
    if len(table.names) == 1:
        return None
    counted = is_row_number(first) and len(first) > 2
    of_worker = table.header and (names_workers(re.sub(r"\d+", "", name)) or re.fullmatch(r"w\W?\d+", name))
    if (table.header and name in ROW_NUMBERS) or (counted and not of_worker):
        return "row numbers in the first column left out"
    dated = table.header and (names_a_clock(name) or name == "time")
    if dated and (first.dtype.kind != "f" or is_clock(first[:, None])):
        return f"the clock '{table.names[0]}' in the first column left out"
    return None


def _rounds_of(table: Table, round_columns: Sequence[int], times: Floats) -> tuple[tuple[int, ...], Floats]:
    """Return the numbers of rounds in a column of a wide table, and its rows in their order; () if there are none."""
    if len(round_columns) != 1:
        return (), times
    column = table.columns[round_columns[0]]
    all_whole = column.dtype.kind == "f" and np.isfinite(column).all() and (column == np.floor(column)).all()
    if not all_whole or len(np.unique(column)) < len(column) or np.abs(column).max() > 2**53:
        return (), times
    order = np.argsort(column, kind="stable")
    return tuple(int(t) for t in column[order]), times[order]


# ------------------------------------------------------------------------------------------- names of workers


def _common_scale(file: Path, table: Table, columns: Sequence[int]) -> float | None:
    """Return the seconds of the unit in the columns' names, None without one; raise BadInput if they differ."""
    if not table.header:
        return None
    # a name that is only a unit, such as 's', names a worker
    scales = {scale if words else None for words, scale in (unit_in(table.names[i]) for i in columns)}
    if len(scales) > 1:
        raise BadInput(f"the columns of '{shown(file)}' are in different units; convert them to one")
    return scales.pop()


def _by_numbers(names: Sequence[str], columns: list[int]) -> list[int]:
    """Return columns in the order of the numbers in their names, if they differ in these only."""
    matches = {i: re.fullmatch(r"(\D*)(\d+)(\D*)", names[i].strip().lower()) for i in columns}
    around = {(match.group(1), match.group(3)) for match in matches.values() if match}
    if len(around) != 1 or not all(matches.values()):
        return columns
    return sorted(columns, key=lambda i: int(match.group(2)) if (match := matches[i]) else 0)


def _worker_names(file: Path, table: Table, columns: Sequence[int], *, with_units: bool) -> tuple[Names, str]:
    """Return the workers' names, () in a table without a header, and a remark on them."""
    if not table.header:
        return (), "a column for each worker, without names"
    names = [_UNIT_ENDING.sub("", table.names[i]) if with_units else table.names[i] for i in columns]
    workers = tuple(plain_name(float(name)) if name.isdigit() else name for name in names)
    if len(set(workers)) < len(workers):
        raise BadInput(f"two columns of '{shown(file)}' have the same name; name each worker once")
    return workers, f"a column for each worker ({listed(names)})"


def _check_workers(file: Path, table: Table, columns: Sequence[int]) -> list[str]:
    """Raise BadInput for columns whose names are no workers'; return a remark if the names show nothing."""
    names = [table.names[i].strip() for i in columns]
    remedy = "; remove it, or list the workers' columns with --worker"
    shared = set.intersection(*({word.rstrip("0123456789") for word in words_in(name)} for name in names))
    if len(names) == 1:
        shared = set()
    for name in names:
        if (word := measured_word(name, shared)) is not None:
            raise BadInput(f"column '{shown(name)}' of '{shown(file)}' is no worker's, by its name ('{word}'){remedy}")
    like_workers = families(names)
    if any(like_workers) and not all(like_workers):
        other = names[like_workers.index(False)]
        raise BadInput(f"'{shown(file)}' has column '{shown(other)}' beside those of workers{remedy}")
    if any(like_workers) or len(names) == 1:
        return []
    medians = [_median(table.columns[i]) for i in columns]
    low, high = min(medians), max(medians)
    if not 0 < high <= _FACTOR * low:
        raise BadInput(
            f"the columns of '{shown(file)}' do not look like workers, by name or by value: {listed(names)}; list "
            "the workers' columns with --worker, or name those of a long table with --round, --worker and --seconds"
        )
    return ["columns taken for workers, a guess (--worker names others)"]


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else 0.0


# ------------------------------------------------------------------------------------------- values of workers


def _check_numbers(file: Path, table: Table, columns: Sequence[int]) -> None:
    """Raise BadInput if no column is left, or one holds text."""
    if not columns:
        raise BadInput(f"'{shown(file)}' has no column of a worker's seconds: {listed(list(table.names))}")
    for i in columns:
        if table.columns[i].dtype.kind != "f":
            word = next((value for value in table.columns[i] if value is not None and not is_number(value)), None)
            raise BadInput(
                f"'{shown(file)}' cannot be read as a trace: {called(table, i)} holds text, such as "
                f"'{shown(str(word))}'; remove it"
            )


def _refuse_clocks(file: Path, table: Table, columns: Sequence[int]) -> None:
    """Raise BadInput for a column beside others that rises in every row."""
    for i in columns:
        values = table.columns[i][np.isfinite(table.columns[i])]
        if len(columns) > 1 and is_clock(values[:, None]) and (np.diff(values) > 0).all():
            raise BadInput(
                f"{called(table, i)} of '{shown(file)}' rises in every row, like a clock or a row number; "
                "remove it, as each column is a worker's seconds, or list the workers' columns with --worker"
            )


def _check_values(file: Path, table: Table, columns: Sequence[int]) -> None:
    """Raise BadInput for columns that are computed from the others, or constant among others that vary."""
    remedy = "remove it, or list the workers' columns with --worker"
    values = np.column_stack([table.columns[i] for i in columns])
    values = values[np.isfinite(values).all(axis=1)]
    if len(columns) < 3 or len(values) < _ALIKE:
        return
    varying = np.array([len(np.unique(column)) > 2 for column in values.T])
    for k, i in enumerate(columns):
        others = np.delete(values, k, axis=1)
        if len(np.unique(values[:, k])) == 1 and varying.sum() >= 2:
            raise BadInput(f"{called(table, i)} of '{shown(file)}' is the same in all rows; {remedy}")
        for what, computed in (
            ("largest", others.max(axis=1)),
            ("smallest", others.min(axis=1)),
            ("mean", others.mean(axis=1)),
            ("median", np.median(others, axis=1)),
            ("sum", others.sum(axis=1)),
        ):
            if varying[k] and np.allclose(values[:, k], computed, rtol=1e-3, atol=1e-12):
                raise BadInput(f"{called(table, i)} of '{shown(file)}' is the {what} of the others; {remedy}")


def _refuse_long_table(file: Path, columns: Sequence[Floats]) -> None:
    """Raise BadInput for a long table without names, which looks like a column a worker."""
    rows = len(columns[0])
    if not 3 <= len(columns) <= 5 or rows < 4:
        return
    of_whole_numbers = [
        column for column in columns if np.isfinite(column).all() and (column == np.floor(column)).all()
    ]
    for a, b in permutations(of_whole_numbers, 2):
        sizes = len(np.unique(a)), len(np.unique(b))
        if min(sizes) > 1 and math.prod(sizes) == rows == len(set(zip(a.tolist(), b.tolist(), strict=True))):
            raise BadInput(
                f"'{shown(file)}' looks like a long table, one row for each round and worker; name its columns "
                "round, worker and seconds in a header"
            )
