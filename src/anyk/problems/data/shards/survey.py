"""A pass over shards: the places of blocks, the number of rows, and the contents of columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.problems.data.encoding import check_categories, missing, rows_text
from anyk.problems.data.shards.formats import HEAD, format_of
from anyk.problems.data.shards.processes import in_processes
from anyk.problems.data.shards.sources import Content, Shards
from anyk.tables import Table, absent, listed, shown

Floats = NDArray[np.float64]
Wanted = Literal["rows", "arrays", "columns"]
_LABELS = 10_000  # different targets up to which they may be classes
_WORDS = 100_000  # different values of a column of text


class Moments(NamedTuple):
    """For each column, shape (columns,): the number of values, the number that are not 0, the mean, the sum of squared
    deviations from it, the least and the largest value. Merged as by Chan, Golub and LeVeque (1979), without
    cancellation.
    """

    present: Floats
    nonzero: Floats
    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats

    @classmethod
    def none(cls, columns: int) -> Self:
        """Return the moments of no rows."""
        zeros = np.zeros(columns)
        return cls(zeros, zeros, zeros, zeros, np.full(columns, np.inf), np.full(columns, -np.inf))

    @classmethod
    def of(cls, X: Any) -> Self:
        """Return the moments of some rows, dense (NaN for a missing value) or sparse."""
        if not hasattr(X, "indptr"):
            there = ~np.isnan(X)
            values_present, present = np.where(there, X, 0.0), there.sum(axis=0, dtype=np.float64)
            mean = values_present.sum(axis=0) / np.maximum(present, 1.0)
            deviation = (np.where(there, X - mean, 0.0) ** 2).sum(axis=0)
            low, high = np.where(there, X, np.inf).min(axis=0), np.where(there, X, -np.inf).max(axis=0)
            return cls(present, np.count_nonzero(values_present, axis=0).astype(np.float64), mean, deviation, low, high)
        rows, columns = X.shape
        count = np.bincount(X.indices, minlength=columns).astype(np.float64)
        nonzero: Floats = np.bincount(X.indices, weights=X.data != 0, minlength=columns).astype(np.float64)
        mean = np.bincount(X.indices, weights=X.data, minlength=columns) / rows
        apart = np.bincount(X.indices, weights=(X.data - mean[X.indices]) ** 2, minlength=columns)
        low, high = np.where(count < rows, 0.0, np.inf), np.where(count < rows, 0.0, -np.inf)
        np.minimum.at(low, X.indices, X.data)
        np.maximum.at(high, X.indices, X.data)
        return cls(np.full(columns, float(rows)), nonzero, mean, apart + (rows - count) * mean**2, low, high)

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both groups of rows together."""
        present = self.present + other.present
        share = other.present / np.maximum(present, 1.0)
        apart = other.mean - self.mean
        return Moments(
            present,
            self.nonzero + other.nonzero,
            self.mean + share * apart,
            self.deviation + other.deviation + self.present * share * apart**2,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def widened(self, columns: int) -> Moments:
        """With further columns of sparse data, in which these rows have no entry."""
        more = columns - len(self.mean)
        if not more:
            return self
        rows = float(self.present.max(initial=0.0))
        fill = (rows, 0.0, 0.0, 0.0, 0.0 if rows else np.inf, 0.0 if rows else -np.inf)
        return Moments(*(np.append(part, np.full(more, value)) for part, value in zip(self, fill, strict=True)))


class FileFacts(msgspec.Struct):
    """The results of a pass over one file."""

    blocks: list[tuple[int, int, int]]  # where each begins, how long it is, its rows
    names: list[str] = []  # of a table's columns, the target among them
    header: bool | None = None
    moments: bytes = b""
    words: dict[int, dict[str, int]] = {}  # how often each value of a column of text comes
    mixed: list[int] = []  # columns that look like numbers in some blocks only
    labels: list[float] | None = []  # None: too many
    whole: bool = True  # whether the target is whole numbers, of a type that says so or one by one
    single: bool = False  # whether X is float32
    head: list[tuple[str, str, tuple[int, ...], bytes]] = []  # of the first rows: name, type, shape and numbers


@dataclass(frozen=True)
class Survey:
    """The results for all files; ``blocks``, shape (blocks, 4): number of the file, begin, length and rows."""

    blocks: NDArray[np.int64]
    first: FileFacts
    text: tuple[int, ...]  # columns of text
    words: dict[int, dict[str, int]]
    moments: Moments
    labels: tuple[float, ...] | tuple[str, ...] | None
    whole: bool

    @property
    def rows(self) -> int:
        """All there are."""
        return int(self.blocks[:, 3].sum())


def survey(shards: Shards, wanted: Wanted) -> Survey:
    """Make one pass over all files, by processes.

    ``wanted``: how many ``rows`` there are, also the first of them as ``arrays``, or what the ``columns`` hold.
    """
    text: tuple[int, ...] = ()
    while True:
        numbers = range(len(shards.found))
        surveys = [
            msgspec.msgpack.decode(body, type=FileFacts)
            for body in in_processes(partial(_survey, shards, wanted, text), numbers)
        ]
        mixed = _mixed(surveys)
        if mixed <= set(text):
            return _merged(shards, surveys)
        text = tuple(sorted({*text, *mixed}))  # some blocks had only numbers in them: read again as the text they are


def _survey(shards: Shards, wanted: Wanted, text: tuple[int, ...], number: int) -> bytes:
    """The facts of one file, encoded."""
    try:
        return _facts(shards, wanted, text, number)
    finally:  # in the place of whatever reading a changed file raises
        shards.found[number].check_unchanged()


def _facts(shards: Shards, wanted: Wanted, text: tuple[int, ...], number: int) -> bytes:
    deep = wanted == "columns"
    address = shards.found[number].address
    where, form = shown(address), format_of(shards, address)
    facts, moments = FileFacts([]), Moments.none(0)
    words: dict[int, Counter[str]] = {}
    numeric: set[int] = set()
    head: dict[str, NDArray[Any]] = {}
    for piece in form.walk(deep, set(text)):
        facts.blocks.append((piece.at, piece.size, piece.rows))
        content = piece.content
        if content is None:
            continue
        if isinstance(content, Table):
            facts.names, facts.header = list(content.names), content.header
            for i, column in enumerate(content.columns):
                if column.dtype.kind == "f":
                    numeric.add(i)
                elif deep:
                    _count(words.setdefault(i, Counter()), column, f"column '{shown(content.names[i])}' of {where}")
                else:
                    words.setdefault(i, Counter())
        else:
            facts.single = not isinstance(content, dict) and content[0].dtype == np.float32
        if wanted == "arrays" and not number and len(next(iter(head.values()), ())) < HEAD:
            named = {name: array[:HEAD] for name, array in arrays_of(shards, content, where).items()}
            head = {name: np.concatenate((head[name], named[name]))[:HEAD] for name in head} or named
        if deep:
            X, y = plain(shards, content, where)
            _check_finite(X, target_of(shards, content, where), content, where)
            own = Moments.of(X)
            wide = max(len(own.mean), len(moments.mean))
            moments = moments.widened(wide).merged(own.widened(wide))
            if y is not None and facts.labels is not None:
                several = np.union1d(facts.labels, y)
                facts.labels = several.tolist() if len(several) <= _LABELS else None
        target = None if isinstance(content, dict) else target_of(shards, content, where)
        facts.whole = facts.whole and (form.whole if form.whole is not None else _whole(target))
    facts.words, facts.mixed = {i: dict(words[i]) for i in words}, sorted(numeric & words.keys())
    facts.moments = np.stack(moments).tobytes()
    facts.head = [(name, part.dtype.str, part.shape, part.tobytes()) for name, part in head.items()]
    return msgspec.msgpack.encode(facts)


def _count(words: Counter[str], column: NDArray[Any], where: str) -> None:
    words.update(value for value in column.tolist() if value is not None)
    if len(words) > _WORDS:
        raise BadInput(
            f"{where} has more than {_WORDS:,} different values, too many to be categories; leave it out (columns=)"
        )


def _whole(y: NDArray[Any] | None) -> bool:
    if y is None or y.dtype.kind not in "biuf":
        return False
    return y.dtype.kind in "biu" or bool((y == np.floor(y)).all())


def places_of(shards: Shards, names: Sequence[str], where: str) -> tuple[list[int], int]:
    """The columns to learn from and the target's, by their places in a table."""
    from anyk.problems.data.files import target_column

    target, _ = target_column(list(names), where, shards.target)
    if shards.columns is None:
        if names[0] in {"column 0", "Unnamed: 0"} and "column 1" not in names:
            raise BadInput(
                f"the first column of {where} has no name, as if it numbered the rows; say which columns to learn from "
                "(columns=)"
            )
        return [i for i in range(len(names)) if i != target], target
    for name in shards.columns:
        if name not in names:
            raise BadInput(f"{where} has no column '{shown(name)}'; its columns: {listed(names)}")
        if names.index(name) == target:
            raise BadInput(f"column '{shown(name)}' is the target; leave it out of columns")
    return [names.index(name) for name in shards.columns], target


def target_of(shards: Shards, content: Content, where: str) -> NDArray[Any]:
    """The targets of a block of a table or of arrays."""
    if isinstance(content, Table):
        return content.columns[places_of(shards, content.names, where)[1]]
    target_values: NDArray[Any] = content[-1]
    return target_values


def plain(shards: Shards, content: Content, where: str) -> tuple[Any, Floats | None]:
    """A block as rows x columns of numbers, NaN where one is missing or text, and targets, None where they are text."""
    if isinstance(content, Table):
        columns, target = places_of(shards, content.names, where)
        nothing = np.full(content.rows, np.nan)
        parts = [content.columns[i] if content.columns[i].dtype.kind == "f" else nothing for i in columns]
        y = content.columns[target]
        return np.column_stack(parts) if parts else np.empty((content.rows, 0)), y if y.dtype.kind == "f" else None
    if isinstance(content, dict) or len(content) != 2:
        raise BadInput(f"a linear model needs X and y; read gives {len(content)} arrays of {where}")
    X, y = content
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise BadInput(f"X of {where} should be a table of numbers, got {X.dtype} of shape {X.shape}")
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise BadInput(f"the target of {where} should be one number for each row, got {y.dtype} of shape {y.shape}")
    if hasattr(X, "indptr"):
        from scipy import sparse

        X = sparse.csr_array(X)
        X.sum_duplicates()
    return X.astype(np.float64), y.astype(np.float64)


def _check_finite(X: Any, y: NDArray[Any], content: Content, where: str) -> None:
    """Refuse infinite numbers, missing targets and, where columns have no names, missing numbers."""
    values = X.data if hasattr(X, "indptr") else X
    table = isinstance(content, Table)
    if bad := int(np.count_nonzero(np.isinf(values) if table else ~np.isfinite(values))):
        raise BadInput(
            f"{where} has {bad} values that are {'' if table else 'missing or '}infinite; leave out those rows"
        )
    if bad := int(np.count_nonzero(absent(y))):
        raise BadInput(f"the target of {where} is missing or not finite in {rows_text(bad)}; leave them out")


def arrays_of(shards: Shards, content: Content, where: str) -> dict[str, NDArray[Any]]:
    """A block as arrays by name, or by their numbers where they have none: what a network learns from."""
    if isinstance(content, Table):
        columns, target = places_of(shards, content.names, where)
        for i in (*columns, target):
            column = content.columns[i]
            if column.dtype.kind != "f":
                raise BadInput(
                    f"column '{shown(content.names[i])}' of {where} holds text; leave it out (columns=), or give read="
                )
            if missing(column).any():
                raise BadInput(
                    f"column '{shown(content.names[i])}' of {where} has missing values; fill them, or give read="
                )
        X, y = plain(shards, content, where)
        assert y is not None
        return {"0": X, "1": y}
    named = content if isinstance(content, dict) else {str(i): part for i, part in enumerate(content)}
    for name, array in named.items():
        if hasattr(array, "indptr"):
            raise BadInput(f"{where} is sparse, which a network does not learn from; give read=, with dense arrays")
        if array.dtype.kind not in "biuf":
            raise BadInput(f"array {name} of {where} must hold numbers, got {array.dtype}")
    return dict(named)


def _mixed(found: Sequence[FileFacts]) -> set[int]:
    """Columns that are text in some blocks and numbers in others."""
    text = {i for facts in found for i in facts.words}
    mixed = {i for facts in found for i in facts.mixed}
    return mixed | {i for i in text if any(i not in facts.words for facts in found if facts.blocks)}


def _merged(shards: Shards, found: Sequence[FileFacts]) -> Survey:
    first = found[0]
    rows = [(number, *block) for number, facts in enumerate(found) for block in facts.blocks]
    blocks = np.array(rows, dtype=np.int64).reshape(-1, 4)
    if not first.blocks:
        raise BadInput(f"{shown(shards.found[0].address)} has no rows; leave it out")
    for facts, file in zip(found, shards.found, strict=True):
        if facts.blocks and facts.names != first.names:
            raise BadInput(
                f"{shown(file.address)} has the columns {listed(facts.names)}, {shown(shards.found[0].address)} has "
                f"{listed(first.names)}; shards must have the same"
            )
    each = [sum(block[2] for block in facts.blocks) for facts in found]
    if shards.rows is not None:
        expected = list(shards.rows) if isinstance(shards.rows, Sequence) else [shards.rows]
        if (each if isinstance(shards.rows, Sequence) else [sum(each)]) != expected:
            raise BadInput(f"rows says {expected}, and the files have {each}")
    moments, words, labels = Moments.none(0), dict[int, Counter[str]](), set[float]()
    wide = max((len(facts.moments) // 48 for facts in found), default=0)
    for facts in found:
        own = Moments(*np.frombuffer(facts.moments).reshape(6, -1)) if facts.moments else Moments.none(0)
        moments = moments.widened(wide).merged(own.widened(wide))
        for i, counts in facts.words.items():
            words.setdefault(i, Counter()).update(counts)
        labels |= set(facts.labels or ())
    classes_seen: Any = tuple(sorted(labels))
    if any(facts.labels is None for facts in found) or len(labels) > _LABELS:
        classes_seen = None
    if first.names:
        where = shown(shards.found[0].address)
        target = places_of(shards, first.names, where)[1]
        if target in words:
            check_categories(words[target], f"column '{shown(first.names[target])}' of {where}")
            classes_seen = tuple(sorted(words[target]))
    return Survey(
        blocks,
        first,
        tuple(sorted(words)),
        {i: dict(counts) for i, counts in words.items()},
        moments,
        classes_seen,
        all(facts.whole for facts in found),
    )
