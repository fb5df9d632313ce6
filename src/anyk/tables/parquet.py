"""Tables from Parquet files, within a limit on memory."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from anyk.base import Array, BadInput, Floats, needing
from anyk.tables.input_files import Limit, reading, shown
from anyk.tables.table import Table

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def read_parquet(
    file: Path | str,
    allowed: Limit,
    *,
    needed: Collection[str] | None = None,
    opened: IO[bytes] | None = None,
    group: int | None = None,
    exact: bool = False,
) -> Table:
    """Read a Parquet file of numbers and text, without an index that pandas may have stored.

    ``opened``: the file object, if it is open already. ``group``: the number of a row group; None reads all. Columns of
    other types, such as dates and lists, are refused if they are ``needed`` (None: all are), else read as missing.
    ``exact``: columns of whole numbers that float64 would change are text, and dates are ISO dates as text. Raises
    BadInput for these and for a file of another format.
    """
    with needing("pyarrow", "data", "reading a Parquet file"):
        from pyarrow import parquet
    source = opened or file
    with reading(file, "Parquet"), parquet.ParquetFile(source, pre_buffer=False) as parquet_file:
        metadata, schema = parquet_file.metadata, parquet_file.schema_arrow
        size = _unpacked_size(metadata, group)
    allowed.check(size)
    index = stored_index(schema.metadata)
    contents = _contents_of(schema, index)
    refused = _refusals(schema, contents, shown(file))
    for i, reason in refused.items():
        readable = exact and contents[i] == "dates"
        if not readable and (needed is None or str(schema.names[i]) in needed):
            raise BadInput(f"{reason}; convert them to numbers or text, or omit the column")
    # repeated text stays in the file's dictionary: as plain strings it could take any multiple of the file's size
    texts = [schema.names[i] for i, content in contents.items() if content == "text"]
    with reading(file, "Parquet"), parquet.ParquetFile(source, read_dictionary=texts, pre_buffer=False) as parquet_file:
        # one thread: further threads that go on reading after an error crash the process
        table = (
            parquet_file.read(use_threads=False)
            if group is None
            else parquet_file.read_row_group(group, use_threads=False)
        )
        columns = tuple(_from_arrow(table.column(i), content, exact=exact) for i, content in contents.items())
    return Table(
        names=tuple(str(schema.names[i]) for i in contents),
        columns=columns,
        header=True,
        refused=tuple(refused.get(i, "") for i in contents) if refused else (),
        index=tuple(name for name in schema.names if name in index and not _UNNAMED_INDEX.fullmatch(name)),
    )


def _unpacked_size(metadata: Any, group: int | None) -> int:
    """Return the bytes that a Parquet file, or one of its row groups, takes in memory, by the file's own account."""
    # sizes of whole row groups: PyArrow looks single columns up unchecked, and crashes on a damaged file
    groups = [metadata.row_group(i) for i in (range(metadata.num_row_groups) if group is None else [group])]
    unpacked = sum(max(row_group.total_byte_size, 0) for row_group in groups)
    rows = sum(row_group.num_rows for row_group in groups)
    return int(max(unpacked, 8 * rows * metadata.num_columns))


_Content = Literal["numbers", "text", "dates", "other"]


def _contents_of(schema: Any, index: Collection[str]) -> dict[int, _Content]:
    """Return what the columns beside those of a stored index contain, by their numbers."""
    return {i: _content_of(schema.field(i).type) for i, name in enumerate(schema.names) if name not in index}


def _refusals(schema: Any, contents: dict[int, _Content], where: str) -> dict[int, str]:
    """Return why columns of neither numbers nor text are refused, by their numbers."""
    return {
        i: f"column '{schema.names[i]}' of {where} has {schema.field(i).type} values, which are neither numbers nor "
        "text"
        for i, content in contents.items()
        if content in ("dates", "other")
    }


def _content_of(kind: Any) -> _Content:
    """Return what a column of one of PyArrow's types contains."""
    from pyarrow import types

    value_type = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(value_type) or types.is_large_string(value_type):
        return "text"
    if any(matches(kind) for matches in (types.is_floating, types.is_integer, types.is_boolean, types.is_decimal)):
        return "numbers"
    return "dates" if types.is_timestamp(value_type) or types.is_date(value_type) else "other"


def _dates_of(column: Any) -> Array:
    """Return a column of PyArrow's dates or timestamps as ISO dates, None if missing."""
    words = np.empty(len(column), dtype=object)
    words[:] = [None if moment is None else moment.isoformat() for moment in column.to_pylist()]
    return words


def _from_arrow(column: Any, content: _Content, *, exact: bool) -> Array:
    """Return a column of PyArrow as float64, or as objects of text; NaN if it cannot be read."""
    if content == "numbers":
        return _numbers_of(column, exact=exact)
    if content == "text":
        return _text_of(column)
    return _dates_of(column) if exact and content == "dates" else np.full(len(column), np.nan)


def _numbers_of(column: Any, *, exact: bool) -> Array:
    """Return a column of PyArrow's numbers as float64; as text if it is ``exact`` and float64 would change them."""
    import pyarrow

    if exact and (pyarrow.types.is_integer(column.type) or pyarrow.types.is_decimal(column.type)):
        numbers = column.to_pylist()
        if any(value is not None and abs(value) >= 2**53 for value in numbers):
            words = np.empty(len(numbers), dtype=object)
            words[:] = [None if value is None else str(value) for value in numbers]
            return words
    values: Floats = column.cast(pyarrow.float64(), safe=False).to_numpy()
    return values.astype(np.float64)


def _text_of(column: Any) -> Array:
    """Return a column of PyArrow's text as objects, None if missing."""
    pieces: list[Array] = [np.empty(0, dtype=object)]
    for chunk in column.dictionary_encode().chunks:
        words = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        indices = chunk.indices.fill_null(len(words) - 1)
        pieces.append(words[indices.to_numpy().astype(np.intp)])
    return np.concatenate(pieces)


def stored_index(metadata: dict[bytes, bytes] | None) -> set[str]:
    """Return the names of the columns that pandas wrote for its index."""
    try:
        index = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return {name for name in index if isinstance(name, str)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()
