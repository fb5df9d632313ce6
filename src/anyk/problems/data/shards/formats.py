"""The formats of shards: how a file falls into blocks, and how one of them is read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from anyk.errors import BadInput, MissingPackage, describe_error
from anyk.problems.data.shards.sources import Content, Shards, opened
from anyk.tables import (
    Limit,
    Table,
    check_separator,
    column_names,
    converted,
    has_header,
    lines,
    read_parquet,
    reading,
    shown,
)

_BLOCK = 4 << 20  # bytes of CSV, about: cells take ten times as much while they are read
_ENDLESS = 1 << 62
HEAD = 32  # rows at the beginning of a file that every pass reads: on these a module and its loss are tried


class Piece(NamedTuple):
    """A block as a pass comes by it: where it begins and how long it is (in the format's terms), rows and contents."""

    at: int
    size: int
    rows: int
    content: Content | None  # None: not read


class Format(Protocol):
    """A file of one format; ``whole``: whether its target is whole numbers, None: look at them."""

    whole: bool | None

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        """Its blocks in order; only where ``deep`` all of them with their contents. ``text``: see :meth:`read`."""
        ...

    def read(self, at: int, size: int, text: set[int]) -> Content:
        """Return one block; ``text``: columns to be read as text, whatever their cells are."""
        ...


def format_of(shards: Shards, address: str, *, header: bool | None = None) -> Format:
    """The file with its format; ``header`` as a pass has found it."""
    if shards.read is not None:
        return _Read(address, shards.read)
    if shards.kind == "parquet":
        return _Parquet(address, shards)
    return _Csv(address, shards.header if header is None else header)


class _Read:
    """A file that a function of the user's reads."""

    whole: bool | None = None

    def __init__(self, address: str, read: Callable[[str], Any]) -> None:
        self._address, self._read = address, read

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        del deep
        content = self.read(0, 0, text)
        yield Piece(0, 0, _length(content), content)

    def read(self, at: int, size: int, text: set[int]) -> Content:
        del at, size, text
        where = shown(self._address)
        try:
            content = self._read(self._address)
        except Exception as error:
            raise BadInput(f"read fails on {where}: {describe_error(error)}") from error
        if isinstance(content, Mapping):
            copied: Any = {str(key): _own(value) for key, value in content.items()}
        elif isinstance(content, (tuple, list)):
            copied = tuple(_own(value) for value in content)
        else:
            copied = ()
        parts = list(copied.values()) if isinstance(copied, dict) else list(copied)
        if len(parts) < 2 - isinstance(copied, dict) or any(getattr(part, "ndim", 0) < 1 for part in parts):
            raise BadInput(
                f"read must give a tuple of arrays, the inputs and then the target, or a dictionary of arrays; of "
                f"{where} it gave {type(content).__name__}"
            )
        if len({part.shape[0] for part in parts}) > 1:
            raise BadInput(f"the arrays that read gives of {where} have {[part.shape[0] for part in parts]} entries")
        return copied


def _own(value: Any) -> Any:
    """Return an array of NumPy or SciPy."""
    return value if hasattr(value, "indptr") else np.asarray(value)


def _length(content: Content) -> int:
    if isinstance(content, Table):
        return content.rows
    first = next(iter(content.values())) if isinstance(content, dict) else content[0]
    return int(first.shape[0])


class _Parquet:
    """Blocks are row groups."""

    whole: bool | None = None

    def __init__(self, address: str, shards: Shards) -> None:
        self._address, self._shards = address, shards
        self._allowed = Limit(address, _ENDLESS, "")

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        try:
            from pyarrow import parquet, types
        except ImportError:
            raise MissingPackage("pyarrow", "data", "reading a Parquet file") from None
        from anyk.problems.data.files import target_column

        with opened(self._address) as file:
            with reading(self._address, "Parquet"), parquet.ParquetFile(file, pre_buffer=False) as parquet_file:
                facts, schema = parquet_file.metadata, parquet_file.schema_arrow
                rows = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
            names = list(map(str, schema.names))
            self.whole = bool(
                types.is_integer(schema.field(target_column(names, self._address, self._shards.target)[0]).type)
            )
            for group, count in enumerate(rows):
                if count:
                    wanted = deep or sum(rows[:group]) < HEAD
                    yield Piece(group, 1, count, self._group(file, group) if wanted else None)

    def read(self, at: int, size: int, text: set[int]) -> Content:
        del size, text
        with opened(self._address) as file:
            return self._group(file, at)

    def _group(self, file: IO[bytes], group: int) -> Table:
        columns, target = self._shards.columns, self._shards.target
        columns_needed = None if columns is None or target is None else [*columns, target]
        return read_parquet(self._address, self._allowed, needed=columns_needed, opened=file, group=group)


class _Csv:
    """Blocks are runs of whole rows, by their bytes."""

    whole: bool | None = None

    def __init__(self, address: str, header: bool | None) -> None:
        self._address, self.header = address, header
        self._names: tuple[str, ...] = ()

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        del deep  # rows cannot be told apart without reading them
        with reading(self._address, "CSV"), opened(self._address) as file:
            position = _Position(file, self._address)
            rows = _rows(position)
            first = next(rows, None)
            if first is None:
                raise BadInput(f"{shown(self._address)} is empty")
            begin, rows_held, cells = position.at, [], 0
            while True:
                row = next(rows, None)
                if row is not None:
                    if not cells:
                        check_separator([first, row], self._address)
                    if len(row) != len(first):
                        raise BadInput(
                            f"{shown(self._address)} cannot be read as CSV: a row before byte {position.at:,} has "
                            f"{len(row)} cell{'s' * (len(row) != 1)}, the first has {len(first)}"
                        )
                    rows_held.append(row)
                    cells += len(row)
                if row is None or position.at - begin >= _BLOCK:
                    if not self._names:
                        columns = [
                            converted(column, i in text) for i, column in enumerate(zip(*rows_held, strict=True))
                        ]
                        if self.header is None:
                            self.header = has_header(self._address, first, columns or [np.empty(0) for _ in first])
                        self._names = column_names(first, self.header)
                        if not self.header:
                            begin, rows_held = position.start, [first, *rows_held]
                    if rows_held:
                        yield Piece(begin, position.at - begin, len(rows_held), self._table(rows_held, text))
                    begin, rows_held = position.at, []
                if row is None:
                    return

    def read(self, at: int, size: int, text: set[int]) -> Content:
        with reading(self._address, "CSV"), opened(self._address) as file:
            if not self._names:
                self._names = column_names(next(_rows(_Position(file, self._address))), bool(self.header))
            file.seek(at)
            rows = list(_rows(_Position(io.BytesIO(file.read(size)), self._address)))
            if any(len(row) != len(self._names) for row in rows):
                raise BadInput(f"{shown(self._address)} has rows that do not have {len(self._names)} cells")
            return self._table(rows, text)

    def _table(self, rows: list[list[str]], text: set[int]) -> Table:
        columns = tuple(converted(column, i in text) for i, column in enumerate(zip(*rows, strict=True)))
        return Table(self._names, columns, bool(self.header))


class _Position:
    """The lines of a file as text, and the byte after the last one given."""

    def __init__(self, file: IO[bytes], address: str) -> None:
        self._file, self._address = file, address
        mark = file.read(3)
        self.start = 3 if mark == b"\xef\xbb\xbf" else 0  # a byte order mark
        file.seek(self.start)
        self.at = self.start

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.at += len(line)
            yield line.decode("utf-8")


def _rows(position: _Position) -> Iterator[list[str]]:
    """Yield rows of CSV; for each row, exactly its lines are read."""
    reader = csv.reader(lines(position, position._address), strict=True, skipinitialspace=True)
    return (row for row in reader if row)
