"""The survey of shards: a pass that locates blocks, counts rows and describes columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import msgspec
import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.errors import BadInput
from anyk.problems.data.reader_processes import map_in_processes
from anyk.problems.data.shards.sources import HEAD, Shards, format_of
from anyk.problems.data.user_tables import target_column
from anyk.tables import (
    Table,
    check_categories,
    check_complete,
    check_finite,
    check_sizes,
    is_sparse,
    listed,
    missing_values,
    shown,
)

Wanted = Literal["rows", "arrays", "columns"]
_LABELS = 10_000  # targets with more different values are not classes
_WORDS = 100_000  # columns of text with more different values are refused


class Moments(NamedTuple):
    """Statistics of the values that are present in each column, each of shape (columns,).

    ``present``: the number of values. ``nonzero``: the number of values other than 0. ``deviation``: the sum of squared
    deviations from the mean. Merged without cancellation, as by Chan, Golub and LeVeque (1979).
    """

    present: Floats
    nonzero: Floats
    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, X: Any) -> Self:
        """Return the moments of some rows, dense (NaN for a missing value) or sparse."""
        if not is_sparse(X):
            is_present = ~np.isnan(X)
            values, present = np.where(is_present, X, 0.0), is_present.sum(axis=0, dtype=float)
            mean = values.sum(axis=0) / np.maximum(present, 1.0)
            deviation = (np.where(is_present, X - mean, 0.0) ** 2).sum(axis=0)
            low, high = np.where(is_present, X, np.inf).min(axis=0), np.where(is_present, X, -np.inf).max(axis=0)
            return cls(
                present=present,
                nonzero=np.count_nonzero(values, axis=0).astype(float),
                mean=mean,
                deviation=deviation,
                low=low,
                high=high,
            )
        rows, columns = X.shape
        count = np.bincount(X.indices, minlength=columns).astype(float)
        nonzero: Floats = np.bincount(X.indices, weights=X.data != 0, minlength=columns).astype(float)
        mean = np.bincount(X.indices, weights=X.data, minlength=columns) / rows
        apart = np.bincount(X.indices, weights=(X.data - mean[X.indices]) ** 2, minlength=columns)
        low, high = (extreme.toarray().ravel() for extreme in (X.min(axis=0), X.max(axis=0)))
        return cls(
            present=np.full(columns, float(rows)),
            nonzero=nonzero,
            mean=mean,
            deviation=apart + (rows - count) * mean**2,
            low=low,
            high=high,
        )

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both groups of rows; a column that one group lacks has no entries there."""
        width = max(len(self.mean), len(other.mean))
        ours, others = self._widened(width), other._widened(width)
        present = ours.present + others.present
        share = others.present / np.maximum(present, 1.0)
        apart = others.mean - ours.mean
        return Moments(
            present=present,
            nonzero=ours.nonzero + others.nonzero,
            mean=ours.mean + share * apart,
            deviation=ours.deviation + others.deviation + ours.present * share * apart**2,
            low=np.minimum(ours.low, others.low),
            high=np.maximum(ours.high, others.high),
        )

    def _widened(self, columns: int) -> Moments:
        """Return the moments with further columns of sparse data, in which these rows have no entry."""
        rows = float(self.present.max(initial=0.0))
        fill = (rows, 0.0, 0.0, 0.0, 0.0 if rows else np.inf, 0.0 if rows else -np.inf)
        more = columns - len(self.mean)
        return Moments(
            *(np.append(statistic, np.full(more, value)) for statistic, value in zip(self, fill, strict=True))
        )


_NO_MOMENTS = Moments(*np.empty((6, 0)))


class Survey(msgspec.Struct):
    """The results of a pass over one file or over all."""

    blocks: list[tuple[int, int, int, int]]  # number of the file, start, length and number of rows of each
    names: list[str] = []  # of a table's columns, with the target
    header: bool | None = None
    encoded_moments: bytes = b""
    words: Mapping[int, Mapping[str, int]] = {}  # number of occurrences of each value in a column of text
    numeric: set[int] = set()  # columns that are numbers in some block
    labels: list[float | str] | None = []  # in order, None if there are too many
    whole: bool = True  # whether a table's targets are integers, by their type or else by each value
    single: bool = False  # whether X is float32
    head: list[tuple[str, str, tuple[int, ...], bytes]] = []  # name, type, shape and bytes of the first rows' arrays

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(rows for *_, rows in self.blocks)

    @property
    def moments(self) -> Moments:
        """The moments of the columns to learn from."""
        return Moments(*np.frombuffer(self.encoded_moments).reshape(6, -1))


def survey(shards: Shards, wanted: Wanted) -> Survey:
    """Make one pass over all files by separate processes.

    ``wanted``: the number of ``rows``, in addition the first rows as ``arrays``, or a description of the ``columns``.
    """
    text_columns: set[int] = set()
    while True:
        work = partial(_survey_file, shards, wanted, text_columns)
        encoded = map_in_processes(work, range(len(shards.resolved_files)))
        surveys = [msgspec.msgpack.decode(facts, type=Survey) for facts in encoded]
        words = {i for facts in surveys for i in facts.words}
        mixed = words & {i for facts in surveys for i in facts.numeric}
        if mixed <= text_columns:
            return _merge(shards, surveys)
        text_columns |= mixed  # some blocks of these contain only numbers: read them again as text


def _survey_file(shards: Shards, wanted: Wanted, text_columns: set[int], number: int) -> bytes:
    """Return the facts of one file, encoded."""
    try:
        return msgspec.msgpack.encode(_file_facts(shards, wanted, text_columns, number))
    finally:  # replaces any exception that a changed file causes
        shards.resolved_files[number].check_unchanged()


def _file_facts(shards: Shards, wanted: Wanted, text_columns: set[int], number: int) -> Survey:
    deep = wanted == "columns"
    address = shards.resolved_files[number].address
    where, form = shown(address), format_of(shards, address, text_columns)
    facts, moments = Survey([]), _NO_MOMENTS
    words: dict[int, Counter[str]] = {}
    head: dict[str, Array] = {}
    for piece in form.walk(deep):
        facts.blocks.append((number, piece.at, piece.size, piece.rows))
        content = piece.content
        if content is None:
            continue
        if shards.read is None:
            facts.names, facts.header = list(content.names), content.header
            for i, column in enumerate(content.columns):
                if column.dtype.kind == "f":
                    facts.numeric.add(i)
                    continue
                counts = words.setdefault(i, Counter())
                if deep:
                    _count_words(counts, column, f"column '{shown(content.names[i])}' of {where}")
            facts.whole &= _has_whole_target(shards, content, where) if form.whole is None else form.whole
        else:
            facts.single, facts.whole = content.columns[0].dtype == np.float32, False
        if wanted == "arrays" and not number and len(next(iter(head.values()), ())) < HEAD:
            head = _with_rows(head, arrays_of(shards, content, where))
        if deep:
            X, y = _checked_values(shards, content, where)
            moments = moments.merged(Moments.of(X))
            facts.labels = _with_labels(facts.labels, y)
    facts.words, facts.encoded_moments = words, np.stack(moments).tobytes()
    facts.head = [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in head.items()]
    return facts


def _count_words(counts: Counter[str], column: Array, where: str) -> None:
    """Add the words of a block's column to ``counts``; raise BadInput if they are too many."""
    counts.update(cell for cell in column.tolist() if cell is not None)
    if len(counts) > _WORDS:
        raise BadInput(
            f"{where} has more than {_WORDS:,} different values, too many to be categories; leave it out (columns=)"
        )


def _has_whole_target(shards: Shards, content: Table, where: str) -> bool:
    target = content.columns[places_of(shards, content.names, where)[1]]
    return target.dtype.kind == "f" and bool((target == np.floor(target)).all())


def _with_rows(head: dict[str, Array], arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the first rows of a file's arrays, with those of its next block."""
    further = {name: array[:HEAD] for name, array in arrays.items()}
    return {name: np.concatenate((head[name], further[name]))[:HEAD] for name in head} or further


def _with_labels(labels: list[float | str] | None, y: Array) -> list[float | str] | None:
    """Return the labels so far and those of a block, in order; None if they are too many."""
    if y.dtype.kind != "f" or labels is None:
        return labels
    together = np.union1d(labels, y)
    return together.tolist() if len(together) <= _LABELS else None


def _checked_values(shards: Shards, content: Table, where: str) -> tuple[Any, Array]:
    """Return a block's inputs and targets as :func:`plain` does; raise BadInput if a model cannot learn from them."""
    X, y = plain(shards, content, where)
    if shards.read is not None:
        check_finite(X, where)
    elif infinite := int(np.count_nonzero(np.isinf(X))):
        raise BadInput(f"{where} has {infinite} values that are infinite; leave out those rows")
    check_sizes(X, where, _names_of(shards, content, where))
    check_complete(y, f"the target of {where}")
    return X, y


def places_of(shards: Shards, names: Sequence[str], where: str) -> tuple[list[int], int]:
    """Return the places of a table's columns to learn from, and the target's place."""
    target, _ = target_column(list(names), where, shards.target)
    if shards.columns is None:
        if names[0] in {"column 0", "Unnamed: 0"} and "column 1" not in names:
            raise BadInput(
                f"the first column of {where} has no name, as if it numbered the rows; say which columns to learn from "
                "(columns=)"
            )
        if repeated := next((name for name in names if list(names).count(name) > 1), None):
            raise BadInput(f"{where} has {list(names).count(repeated)} columns '{shown(repeated)}'; rename one")
        return [i for i in range(len(names)) if i != target], target
    counts, place_of = Counter(names), {name: place for place, name in enumerate(names)}
    for name in shards.columns:
        if name not in place_of:
            raise BadInput(f"{where} has no column '{shown(name)}'; its columns: {listed(names)}")
        if counts[name] > 1:
            raise BadInput(f"{where} has {counts[name]} columns '{shown(name)}'; rename one")
        if place_of[name] == target:
            raise BadInput(f"column '{shown(name)}' is the target; leave it out of columns")
    return [place_of[name] for name in shards.columns], target


def like_training(held_out: Shards, training: Shards, names: Sequence[str]) -> Shards:
    """Return held-out shards whose target and columns are those of the training shards, by name.

    ``names``: of the training files' columns, with the target; empty for arrays that ``read`` returns.
    """
    if held_out.read is not None or not names:
        return held_out
    columns, target = places_of(training, names, shown(training.resolved_files[0].address))
    stated = held_out.target
    if stated is not None and stated in names and stated != names[target]:
        raise BadInput(f"the target of held_out is '{shown(stated)}', but the model learns '{shown(names[target])}'")
    return replace(held_out, target=names[target], columns=[names[i] for i in columns])


def _names_of(shards: Shards, content: Table, where: str) -> list[str]:
    """Return the names of the columns to learn from; none of arrays."""
    if shards.read is not None:
        return []
    return [content.names[i] for i in places_of(shards, content.names, where)[0]]


def plain(shards: Shards, content: Table, where: str) -> tuple[Any, Array]:
    """Return a block's inputs as numbers, shape (rows, columns), with NaN for text, and its targets, shape (rows,)."""
    if shards.read is None:
        columns, target = places_of(shards, content.names, where)
        nothing = np.full(content.rows, np.nan)
        parts = [content.columns[i] if content.columns[i].dtype.kind == "f" else nothing for i in columns]
        return np.column_stack(parts) if parts else np.empty((content.rows, 0)), content.columns[target]
    if content.header or len(content.columns) != 2:
        raise BadInput(f"a linear model needs X and y; read gives {len(content.columns)} arrays of {where}")
    X, y = content.columns
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise BadInput(f"X of {where} should be a table of numbers, got {X.dtype} of shape {X.shape}")
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise BadInput(f"the target of {where} should be one number for each row, got {y.dtype} of shape {y.shape}")
    if is_sparse(X):
        from scipy import sparse

        matrix = sparse.csr_array(X)
        matrix.sum_duplicates()
        return matrix.astype(float), y.astype(float)
    return X.astype(float), y.astype(float)


def arrays_of(shards: Shards, content: Table, where: str) -> dict[str, Array]:
    """Return a block as the arrays from which a network learns; arrays without names are called 0, 1 and so on."""
    if shards.read is None:
        columns, target = places_of(shards, content.names, where)
        for i in (*columns, target):
            column_name, column = f"column '{shown(content.names[i])}' of {where}", content.columns[i]
            if column.dtype.kind != "f":
                raise BadInput(f"{column_name} holds text; leave it out (columns=), or give read=")
            if missing_values(column).any():
                raise BadInput(f"{column_name} has missing values; fill them, or give read=")
        X, y = plain(shards, content, where)
        return {"0": X, "1": y}
    for name, array in zip(content.names, content.columns, strict=True):
        if is_sparse(array):
            raise BadInput(f"{where} is sparse, which a network does not learn from; give read=, with dense arrays")
        if array.dtype.kind not in "biuf":
            raise BadInput(f"array {name} of {where} must hold numbers, got {array.dtype}")
    return dict(zip(content.names, content.columns, strict=True))


def _merge(shards: Shards, surveys: Sequence[Survey]) -> Survey:
    """Return the results for all files; raise BadInput if the files do not fit together."""
    first, address = surveys[0], shown(shards.resolved_files[0].address)
    _check_alike(shards, surveys, address)
    moments, words, labels = _NO_MOMENTS, dict[int, Counter[str]](), set[Any]()
    for facts in surveys:
        moments = moments.merged(facts.moments)
        for i, occurrences in facts.words.items():
            words.setdefault(i, Counter()).update(occurrences)
        labels |= set(facts.labels or ())
    classes = None if None in [facts.labels for facts in surveys] or len(labels) > _LABELS else sorted(labels)
    if first.names:
        target = places_of(shards, first.names, address)[1]
        if target in words:
            check_categories(words[target], f"column '{shown(first.names[target])}' of {address}")
            classes = sorted(words[target])
    first.blocks = [block for facts in surveys for block in facts.blocks]
    first.encoded_moments, first.words, first.labels = np.stack(moments).tobytes(), words, classes
    first.whole = all(facts.whole for facts in surveys)
    return first


def _check_alike(shards: Shards, surveys: Sequence[Survey], address: str) -> None:
    """Raise BadInput if a file has other columns than the first, at ``address``, or other rows than ``shards`` says."""
    first = surveys[0]
    if not first.blocks:
        raise BadInput(f"{address} has no rows; leave it out")
    for facts, file in zip(surveys, shards.resolved_files, strict=True):
        if facts.blocks and facts.names != first.names:
            raise BadInput(
                f"{shown(file.address)} has the columns {listed(facts.names)}, {address} has {listed(first.names)}; "
                "shards must have the same"
            )
    rows = [facts.rows for facts in surveys]
    counts = tuple(rows) if isinstance(shards.rows, tuple) else sum(rows)
    if shards.rows is not None and shards.rows != counts:
        raise BadInput(f"rows says {shards.rows}, and the files have {counts}")
