"""The formats of shards: how a file is divided into blocks, and how a block is read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from anyk.errors import BadInput, describe_error, needing
from anyk.problems.base import is_sparse
from anyk.problems.data.shards.sources import Shards, open_shard
from anyk.problems.data.user_files import target_column
from anyk.tables import (
    Limit,
    Table,
    column_names,
    convert_columns,
    csv_rows,
    has_header,
    lines,
    read_parquet,
    reading,
    shown,
)

_BLOCK = 4 << 20  # approximate bytes of a block of CSV; its cells take ten times the memory while they are read
_UNLIMITED = 1 << 62
HEAD = 32  # rows at the beginning of a file that every pass reads, to try a module and its loss on them


class Piece(NamedTuple):
    """A block of a file: its start and its length, in units of the format, its rows, and its contents if read."""

    at: int
    size: int
    rows: int
    content: Table | None


class Format(Protocol):
    """A file of one format; ``whole``: whether its target's type is an integer, None if the values must be checked."""

    whole: bool | None = None

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        """Yield the blocks in order; with ``deep`` all with their contents. ``text``: see :meth:`read`."""
        ...

    def read(self, at: int, size: int, text: set[int]) -> Table:
        """Return one block; the columns whose numbers are in ``text`` are read as text."""
        ...


def format_of(shards: Shards, address: str, *, header: bool | None = None) -> Format:
    """Return the file with its format; ``header``: whether a CSV file has one, if an earlier pass has detected it."""
    if shards.read is not None:
        return _Custom(address, shards.read)
    if shards.kind == "parquet":
        return _Parquet(address, shards)
    return _Csv(address, shards.header if header is None else header)


class _Custom(Format):
    """A file that a user's function reads; arrays that it returns without names are called 0, 1 and so on."""

    def __init__(self, address: str, read: Callable[[str], Any]) -> None:
        self._address, self._read = address, read

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        content = self.read(0, 0, text)
        yield Piece(0, 0, content.rows, content)

    def read(self, at: int, size: int, text: set[int]) -> Table:
        where = shown(self._address)
        try:
            content = self._read(self._address)
        except Exception as error:
            raise BadInput(f"read fails on {where}: {describe_error(error)}") from error
        named = content if isinstance(content, Mapping) else {}
        if isinstance(content, Sequence):
            named = dict(enumerate(content)) if len(content) > 1 else {}
        arrays = tuple(array if is_sparse(array) else np.asarray(array) for array in named.values())
        if not arrays or any(array.ndim < 1 for array in arrays):
            raise BadInput(
                f"read must give a tuple of arrays, the inputs and then the target, or a dictionary of arrays; of "
                f"{where} it gave {type(content).__name__}"
            )
        if len({array.shape[0] for array in arrays}) > 1:
            raise BadInput(f"the arrays that read gives of {where} have {[array.shape[0] for array in arrays]} entries")
        return Table(tuple(map(str, named)), arrays, isinstance(content, Mapping))


class _Parquet(Format):
    """Blocks are row groups."""

    def __init__(self, address: str, shards: Shards) -> None:
        self._address, self._shards = address, shards
        self._allowed = Limit(address, _UNLIMITED, "")

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        with needing("pyarrow", "data", "reading a Parquet file"):
            from pyarrow import parquet, types
        with open_shard(self._address) as file:
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

    def read(self, at: int, size: int, text: set[int]) -> Table:
        with open_shard(self._address) as file:
            return self._group(file, at)

    def _group(self, file: IO[bytes], group: int) -> Table:
        columns, target = self._shards.columns, self._shards.target
        columns_needed = None if columns is None or target is None else [*columns, target]
        return read_parquet(self._address, self._allowed, needed=columns_needed, opened=file, group=group)


class _Csv(Format):
    """Blocks are byte ranges of complete rows."""

    def __init__(self, address: str, header: bool | None) -> None:
        self._address, self.header = address, header
        self._names: tuple[str, ...] = ()

    def walk(self, deep: bool, text: set[int]) -> Iterator[Piece]:
        with reading(self._address, "CSV"), open_shard(self._address) as file:
            position = _Position(file)
            rows = csv_rows(position, self._address)
            first = next(rows)
            for begin, block in _blocks(rows, position):
                if not self._names:
                    if self.header is None:
                        columns = convert_columns(block, text) or [np.empty(0) for _ in first]
                        self.header = has_header(self._address, first, columns)
                    self._names = column_names(first, self.header)
                    if not self.header:
                        begin, block = position.start, [first, *block]
                if block:
                    yield Piece(begin, position.at - begin, len(block), self._table(block, text))

    def read(self, at: int, size: int, text: set[int]) -> Table:
        with reading(self._address, "CSV"), open_shard(self._address) as file:
            if not self._names:
                self._names = column_names(next(csv_rows(_Position(file), self._address)), bool(self.header))
            file.seek(at)
            block = lines(_Position(io.BytesIO(file.read(size))), self._address)
            rows = [row for row in csv.reader(block, strict=True, skipinitialspace=True) if row]
            if any(len(row) != len(self._names) for row in rows):
                raise BadInput(f"{shown(self._address)} has rows that do not have {len(self._names)} cells")
            return self._table(rows, text)

    def _table(self, rows: list[list[str]], text: set[int]) -> Table:
        return Table(self._names, tuple(convert_columns(rows, text)), bool(self.header))


class _Position:
    """The lines of a file as text, and the byte at which the last line ends."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0  # a byte order mark
        file.seek(self.start)
        self.at = self.start

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.at += len(line)
            yield line.decode("utf-8")


def _blocks(rows: Iterator[list[str]], position: _Position) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the first byte and the rows of each block; the last one, which may be the first, can be empty."""
    begin, block = position.at, []
    for row in rows:
        block.append(row)
        if position.at - begin >= _BLOCK:
            yield begin, block
            begin, block = position.at, []
    yield begin, block
