"""Tables with a row for each task: which columns tell the rows apart, and the rounds x workers that they make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Array, Floats
from anyk.base.errors import BadInput
from anyk.delays.column_meanings import Roles, seconds_rank, unit_in, words_in
from anyk.delays.measured_times import (
    ROW_NUMBERS,
    Names,
    TimeTable,
    called,
    in_order,
    in_seconds,
    is_clock,
    plain_name,
)
from anyk.tables import Table, is_number, listed, missing_values, shown

_Key = tuple[list[int], list[int]]  # columns that together name the round, and those that name the worker


def from_long(
    file: Path, table: Table, *, unit: str | None, roles: Roles, chosen: Roles, more: Sequence[str]
) -> TimeTable:
    """Return the times of a long table, whose columns are ``chosen`` by the user or have ``roles`` by their names."""
    table, left_out = _without_other_rows(table, roles)
    round_columns, worker_columns = _key_columns(file, table, roles, chosen)
    rounds, row_of, remark = _round_numbers(file, table, round_columns)
    workers, column_of = _worker_names(file, table, worker_columns, len(rounds))
    cells = row_of * len(workers) + column_of
    _refuse_repeated(file, table, cells, rounds=rounds, workers=workers, named=bool(worker_columns))

    def pivoted(i: int) -> Floats:
        values = np.full((len(rounds), len(workers)), np.nan)
        values.flat[cells] = _numbers(file, table, i)
        return values

    candidates = {i: pivoted(i) for i in roles.seconds}
    durations = _durations(file, table, candidates, chosen.seconds)
    scale = unit_in(table.names[durations])[1] if table.header else None
    times, unit_remarks = in_seconds(file, candidates[durations], unit=unit, scale=scale, what=called(table, durations))
    further = {name: i for i, name in enumerate(n.strip().lower() for n in table.names) if name in more}
    used = [*round_columns, *worker_columns, durations, *further.values()]
    remarks = [f"from the columns {listed([table.names[i] for i in used])}"]
    if table.header and not chosen.seconds and seconds_rank(table.names[durations]) == 3:
        remarks.append(f"'{table.names[durations]}' taken for the seconds, a guess (--seconds names another)")
    if left_out:
        remarks.append(f"{left_out:,} rows without a round or a worker, and without seconds, left out")
    if remark:
        remarks.append(remark)
    if unused := _unused(table, used):
        remarks.append(f"{listed(unused)} not used")
    return TimeTable(
        times=times,
        remarks=(*remarks, *unit_remarks),
        workers=workers,
        rounds=tuple(rounds),
        more={name: pivoted(i) for name, i in further.items()},
        alone=len(workers) == 1,
        names_worker=bool(worker_columns),
    )


def _without_other_rows(table: Table, roles: Roles) -> tuple[Table, int]:
    """Return the table without rows that are no measurements: without seconds, and without a round or a worker."""
    untimed = np.logical_and.reduce([missing_values(table.columns[i]) for i in roles.seconds])
    unnamed = np.zeros(table.rows, dtype=bool)
    for i in (*roles.round, *roles.worker):
        unnamed |= missing_values(table.columns[i])
    measured = ~(untimed & unnamed)
    if measured.all() or not measured.any():
        return table, 0
    return replace(table, columns=tuple(column[measured] for column in table.columns)), int((~measured).sum())


def _unused(table: Table, used: Sequence[int]) -> list[str]:
    """Return the names of the columns that were not used, besides those that number the rows."""
    return [name for i, name in enumerate(table.names) if i not in used and name.lower() not in ROW_NUMBERS]


# ------------------------------------------------------------------------------------------- which columns are the key


def _key_columns(file: Path, table: Table, roles: Roles, chosen: Roles) -> _Key:
    """Return the columns that together name the round, and the worker, of each row once."""
    if not roles.round:
        if table.rows > 1 and roles.worker:
            raise BadInput(
                f"'{shown(file)}' has no column that is known to be the round, as round, step or iteration: "
                f"{listed(table.names)}; name it with --round"
            )
        return [], roles.worker
    keys = list(_possible_keys(table, roles, chosen))
    return next((key for key in keys if _tells_rows_apart(table, [*key[0], *key[1]])), keys[0])


def _possible_keys(table: Table, roles: Roles, chosen: Roles) -> Iterator[_Key]:
    """Yield keys, the most likely first: those chosen by the user, else by the names of columns.

    A single column of each kind is preferred, then two for the round (epoch and step) or the worker (node and GPU).
    """
    if chosen.round and chosen.worker:
        yield chosen.round, chosen.worker
        return
    rounds = _singles(chosen.round, sorted(roles.round, key=_coarse(table)))
    workers = _singles(chosen.worker, sorted(roles.worker, key=_local(table))) or [[]]
    yield from ((r, w) for w in workers for r in rounds)
    if not chosen.round:
        pairs = combinations(sorted(roles.round, key=_coarse(table), reverse=True), 2)
        yield from (([a, b], w) for a, b in pairs for w in workers)
    if not chosen.worker:
        yield from ((r, [a, b]) for a, b in combinations(roles.worker, 2) for r in rounds)


def _singles(chosen: list[int], recognised: Sequence[int]) -> list[list[int]]:
    """Return the columns that the user chose, together, else each recognised column alone."""
    return [chosen] if chosen else [[i] for i in recognised]


def _tells_rows_apart(table: Table, columns: Sequence[int]) -> bool:
    """Return whether no two rows have the same values in these columns."""
    codes = [np.unique(_text(table.columns[i]), return_inverse=True)[1] for i in columns]
    return len(np.unique(np.column_stack(codes), axis=0)) == table.rows


def _coarse(table: Table) -> Any:
    """Return a key that puts epochs behind steps, and steps of one process behind those of all."""
    return lambda i: ("epoch" in words_in(table.names[i]), "global" not in words_in(table.names[i]), i)


def _local(table: Table) -> Any:
    """Return a key that puts ranks first and numbers within a node last."""
    return lambda i: ("local" in words_in(table.names[i]), "rank" not in words_in(table.names[i]), i)


def _text(column: Array) -> NDArray[np.str_]:
    return column.astype(str) if column.dtype.kind != "f" else column


# ------------------------------------------------------------------------------------------- rounds and workers


def _round_numbers(file: Path, table: Table, columns: Sequence[int]) -> tuple[list[int], NDArray[np.int64], str]:
    """Return the rounds' numbers, each row's place among them, and a remark if no column or two name them."""
    if not columns:
        return list(range(table.rows)), np.arange(table.rows), "rows as rounds" * (table.rows > 1)
    numbers = [_whole_numbers(file, table, i) for i in columns]
    if len(numbers) == 1:
        rounds, row_of = np.unique(numbers[0], return_inverse=True)
        return [int(t) for t in rounds], row_of.reshape(-1), ""
    pairs, row_of = np.unique(np.column_stack(numbers), axis=0, return_inverse=True)
    both = " and ".join(f"'{table.names[i]}'" for i in columns)
    return list(range(len(pairs))), row_of.reshape(-1), f"{both} together as rounds"


def _whole_numbers(file: Path, table: Table, i: int) -> Floats:
    """Return a column of numbers of rounds, which words may precede; raise BadInput for other values."""
    column = table.columns[i]
    if column.dtype.kind != "f":
        matches = [re.fullmatch(r"\D*(\d{1,15})", str(value or "").strip()) for value in column]
        if not all(matches):
            raise BadInput(f"{called(table, i)} of '{shown(file)}' holds text; it must hold numbers of rounds")
        column = np.array([float(match.group(1)) for match in matches if match])
    if not np.isfinite(column).all():
        raise BadInput(f"{called(table, i)} of '{shown(file)}' has rows without a finite value")
    if (column != np.floor(column)).any():
        raise BadInput(f"{called(table, i)} of '{shown(file)}' must contain whole numbers of rounds")
    return column


def _worker_names(file: Path, table: Table, columns: Sequence[int], rounds: int) -> tuple[Names, NDArray[np.int64]]:
    """Return the names of workers in their order, and each row's place among them."""
    if not columns:
        return (0,), np.zeros(table.rows, dtype=np.int64)
    pieces = [_plain_names(file, table, i) for i in columns]
    names = ["/".join(map(str, row)) for row in zip(*pieces, strict=True)] if len(pieces) > 1 else pieces[0]
    ordered = in_order(names)
    if len(ordered) == table.rows > 2 and rounds > 1:
        raise BadInput(
            f"{called(table, columns[0])} of '{shown(file)}' is another in every row, so it does not name workers; "
            "name the column that does with --worker"
        )
    column_of = {name: k for k, name in enumerate(ordered)}
    return ordered, np.array([column_of[name] for name in names])


def _plain_names(file: Path, table: Table, i: int) -> list[int | str]:
    """Return a column of names; raise BadInput for rows without one, and for fractions."""
    column = table.columns[i]
    if missing_values(column).any():
        raise BadInput(f"{called(table, i)} of '{shown(file)}' has rows without a finite value")
    if column.dtype.kind == "f" and (column != np.floor(column)).any():
        value = column[column != np.floor(column)][0]
        raise BadInput(f"{called(table, i)} of '{shown(file)}' names no workers: it has {value:g}")
    return [plain_name(value) for value in column.tolist()]


def _refuse_repeated(
    file: Path, table: Table, cells: NDArray[np.int64], *, rounds: Sequence[int], workers: Names, named: bool
) -> None:
    """Raise BadInput if a round and worker has several rows; ``named``: columns name the workers."""
    counts = np.bincount(cells)
    if not (counts > 1).any():
        return
    first = int(np.argmax(counts > 1))
    r, w = divmod(first, len(workers))
    if not named:
        raise BadInput(
            f"round {rounds[r]} is there {counts[first]} times in '{shown(file)}', but no column is known to name the "
            f"worker: {listed(table.names)}; name it with --worker"
        )
    raise BadInput(
        f"round {rounds[r]} of worker {shown(str(workers[w]))} is there {counts[first]} times in '{shown(file)}'; a "
        "long table has one row for each round and worker"
    )


# ------------------------------------------------------------------------------------------- seconds


def _numbers(file: Path, table: Table, i: int) -> Floats:
    """Return a column of numbers, nan if missing; raise BadInput for text and infinite values."""
    column = table.columns[i]
    if column.dtype.kind != "f":
        word = next((value for value in column if value is not None and not is_number(value)), None)
        raise BadInput(
            f"{called(table, i)} of '{shown(file)}' holds text, such as '{shown(str(word))}'; it must hold numbers"
        )
    if np.isinf(column).any():
        raise BadInput(f"{called(table, i)} of '{shown(file)}' has rows that are infinite")
    return column


def _durations(file: Path, table: Table, candidates: dict[int, Floats], chosen: Sequence[int]) -> int:
    """Return the column of seconds among candidates, which is not a clock; raise BadInput unless there is one."""
    if chosen:
        return chosen[0]
    clocks = [i for i, values in candidates.items() if is_clock(values)]
    left = [i for i in candidates if i not in clocks]
    if not left:
        raise BadInput(
            f"{called(table, clocks[0])} of '{shown(file)}' grows from round to round like a clock, so it holds "
            "moments and not durations; name the column of durations with --seconds"
        )
    if len(left) > 1:
        raise BadInput(
            f"'{shown(file)}' has {len(left)} columns that may be the seconds: {listed([table.names[i] for i in left])}"
            "; name one with --seconds"
        )
    return left[0]
