"""Shards: files of one format, local or remote, that are opened only by the workers that need their rows.

A format describes how a file is divided into blocks, and how a block is read.
"""

from __future__ import annotations

import glob
import hashlib
import io
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

import numpy as np

from anyk.base.arrays import Array
from anyk.base.checks import PositiveNumber, value_class
from anyk.base.errors import BadInput, as_bad_input, describe_error, needing
from anyk.base.named import admit_address
from anyk.base.plain import ByName
from anyk.base.regular_files import open_plain
from anyk.problems.data.user_tables import target_column
from anyk.tables import (
    CODES,
    Limit,
    Table,
    cell_chunks,
    column_names,
    convert_columns,
    first_cells,
    first_row,
    has_header,
    is_sparse,
    listed,
    read_parquet,
    reading,
    shown,
    stored_index,
)

_KINDS: dict[str, Literal["parquet", "csv"]] = {".parquet": "parquet", ".csv": "csv"}


class File(NamedTuple):
    """A shard's address, its size in bytes, and a mark that changes with its contents, such as a time."""

    address: str
    size: int
    mark: str

    def check_unchanged(self) -> None:
        """Raise :class:`~anyk.BadInput` unless size and mark are still the same."""
        now = _remote_file(self.address) if "://" in self.address else _local_file(self.address)
        if now[1:] != self[1:]:
            how = "written again" if now.size == self.size else f"{now.size:,} bytes where there were {self.size:,}"
            raise BadInput(f"{shown(self.address)} has changed since the run began: {how}")


@value_class
class Shards:
    """Training data in files, which workers read block by block if they need the rows; the driver never opens them.

    A problem takes it in place of arrays. Rows are numbered through all files in the order of their names, and
    partitions are ranges of these numbers. At the start separate processes make one pass over the files to count rows
    and to describe columns (:mod:`anyk.problems.data.shards.survey`).

    - ``files``: a path, a pattern (``train-*.parquet``) or several; an address with a scheme (``s3://…``, ``gs://…``,
      ``https://…``) is opened by ``fsspec``, which needs the package for it. All are Parquet or all CSV files. A
      block, the unit of reading, is a row group of Parquet or about 4 MB of CSV.
    - ``target``: the column to predict (Parquet and CSV), by name or number; by default the one called target, label or
      y, else the last. ``columns``: the columns to learn from, by name; by default all others.
    - ``read``: for other formats, a function that takes a file's address and returns its samples: a tuple of arrays
      with equal first axis (the inputs, then the target) or a dictionary of arrays. A file is then one block.
    - ``header``: whether the first row of CSV files contains names; by default this is detected.
    - ``rows``: the expected number of rows of each file, or of all together; the pass fails for any other number.
    - ``cache_mb``: the size of each worker's cache of blocks, in megabytes.

    Raises :class:`~anyk.BadInput` if a file does not exist or files are of several kinds.

    >>> import anyk, tempfile, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> for i in range(2):
    ...     table = np.column_stack([np.eye(4) + i, np.arange(4) % 2])
    ...     np.savetxt(f"{folder}/part-{i}.csv", table, delimiter=",", header="a,b,c,d,y", comments="")
    >>> problem = anyk.problems.LogisticRegression(anyk.data.Shards(f"{folder}/part-*.csv"))
    >>> problem.samples, problem.dimension
    (8, 4)
    """

    files: str | Sequence[str]
    target: str | None = None
    columns: Sequence[str] | None = None
    read: Callable[[str], Any] | None = None
    header: bool | None = None
    rows: int | Sequence[int] | None = None
    cache_mb: PositiveNumber = 256.0

    def __post_init__(self) -> None:
        kind, tables = self.kind, ("parquet", "csv")
        for name, value, kinds in (
            ("target", self.target, tables),
            ("columns", self.columns, tables),
            ("header", self.header, ("csv",)),
        ):
            if value is not None and kind not in kinds:
                raise BadInput(f"{name} is for {' and '.join(kinds)} files, and these are {kind}; leave it out")
        if isinstance(self.rows, Sequence) and len(self.rows) != len(self.resolved_files):
            raise BadInput(
                f"rows must be one number for each of the {len(self.resolved_files)} files, got {len(self.rows)}"
            )

    def __getstate__(self) -> ByName:
        return {name: value for name, value in self.__dict__.items() if name != "surveyed"}

    def __repr__(self) -> str:
        return f"<Shards: {len(self.resolved_files)} {self.kind} files, {shown(self.resolved_files[0].address)} …>"

    @cached_property
    def resolved_files(self) -> tuple[File, ...]:
        """The files that exist, in the order of their names; none is opened."""
        patterns = [self.files] if isinstance(self.files, str) else list(self.files)
        files: list[File] = []
        for pattern in patterns:
            matches = _remote_files(pattern) if "://" in pattern else _local_files(pattern)
            if not matches:
                raise BadInput(f"there is no file '{shown(pattern)}'")
            files += matches
        if not files:
            raise BadInput("files must name at least one file")
        if repeated := len(files) - len({file.address for file in files}):
            raise BadInput(f"{repeated} of the files are named twice in {listed(patterns)}; name each once")
        if empty := next((file for file in files if not file.size), None):
            raise BadInput(f"{shown(empty.address)} is empty")
        return tuple(files)

    @cached_property
    def kind(self) -> Literal["parquet", "csv", "read"]:
        """The format of the files, by their extensions."""
        if self.read is not None:
            return "read"
        kinds: dict[Literal["parquet", "csv"], str] = {}
        for file in self.resolved_files:
            extension = Path(file.address).suffix.lower()
            if extension not in _KINDS:
                raise BadInput(
                    f"{shown(file.address)} cannot be a shard: shards are Parquet (.parquet) or CSV (.csv) files; for "
                    "any other format give read=, a function that reads a file"
                )
            kinds.setdefault(_KINDS[extension], file.address)
        if len(kinds) > 1:
            raise BadInput(f"shards must all be of one kind, got {' and '.join(map(shown, kinds.values()))}")
        return next(iter(kinds))

    def digest(self) -> str:
        """Return a digest of the files' names, sizes and times of change (of remote files: the store's marks)."""
        digest = hashlib.blake2b(digest_size=16)
        for address, size, mark in self.resolved_files:
            digest.update(f"{Path(address).name}\x1f{size}\x1f{mark}\x1e".encode())
        return digest.hexdigest()


def _local_files(pattern: str) -> list[File]:
    path = str(Path(pattern).expanduser().absolute())
    with reading(pattern, "a file"):
        names = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))  # noqa: PTH207  # absolute
    return [_local_file(name) for name in names]


def _local_file(name: str) -> File:
    with as_bad_input(f"{shown(name)} cannot be read"):
        facts = Path(name).stat()
    if stat.S_ISDIR(facts.st_mode):
        raise BadInput(f"'{shown(name)}' is a folder; give a pattern of its files, as in {shown(name)}/*.parquet")
    if not stat.S_ISREG(facts.st_mode):
        raise BadInput(f"'{shown(name)}' is not a regular file")
    return File(name, facts.st_size, str(facts.st_mtime_ns))


def _remote_files(pattern: str) -> list[File]:
    admit_address(shown(pattern))
    system, path = _filesystem(pattern)
    scheme = pattern.partition("://")[0]
    try:
        names = sorted(system.glob(path)) if glob.has_magic(path) else [path]
        return [_remote_file(name if "://" in name else f"{scheme}://{name}") for name in names]
    except FileNotFoundError:
        return []
    except Exception as error:
        raise BadInput(f"'{shown(pattern)}' cannot be listed: {' '.join(str(error).split())}") from None


def _remote_file(address: str) -> File:
    system, path = _filesystem(address)
    facts = system.info(path)
    marks = ("ETag", "etag", "mtime", "LastModified", "updated", "created")
    return File(address, int(facts.get("size") or 0), str(next((facts[key] for key in marks if key in facts), "")))


def _filesystem(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path within it."""
    with needing("fsspec", "data", f"reading '{shown(address)}'"):
        from fsspec.core import url_to_fs
    with as_bad_input(f"'{shown(address)}' cannot be opened", Exception):
        system, path = url_to_fs(address)
    return system, path


def open_shard(address: str) -> IO[bytes]:
    """Open a local or remote shard for reading."""
    if "://" not in address:
        return open_plain(address, follow=True)
    system, path = _filesystem(address)
    file: IO[bytes] = system.open(path, "rb")
    return file


_BLOCK = 4 << 20  # approximate bytes of a block of CSV; its cells take ten times the memory while they are read
_UNLIMITED = 1 << 62
_ROWS = 256  # rows of CSV that are split together
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

    def walk(self, deep: bool) -> Iterator[Piece]:
        """Yield the blocks in order; with ``deep`` all with their contents."""
        ...

    def read(self, start: int, size: int) -> Table:
        """Return one block."""
        ...


def format_of(shards: Shards, address: str, text_columns: set[int], *, header: bool | None = None) -> Format:
    """Return the file with its format.

    ``text_columns``: the numbers of the columns of a CSV file that are read as text. ``header``: whether it has one, if
    an earlier pass has detected it.
    """
    if shards.read is not None:
        return _Custom(address, shards.read)
    if shards.kind == "parquet":
        return _Parquet(address, shards)
    return _Csv(address, text_columns, shards.header if header is None else header)


class _Custom(Format):
    """A file that a user's function reads; arrays that it returns without names are called 0, 1 and so on."""

    def __init__(self, address: str, read: Callable[[str], Any]) -> None:
        self._address, self._read = address, read

    def walk(self, deep: bool) -> Iterator[Piece]:
        content = self.read(0, 0)
        yield Piece(0, 0, content.rows, content)

    def read(self, start: int, size: int) -> Table:
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

    def walk(self, deep: bool) -> Iterator[Piece]:
        with needing("pyarrow", "data", "reading a Parquet file"):
            from pyarrow import parquet, types
        with open_shard(self._address) as file:
            with reading(self._address, "Parquet"), parquet.ParquetFile(file, pre_buffer=False) as parquet_file:
                facts, schema = parquet_file.metadata, parquet_file.schema_arrow
                rows = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
            index = stored_index(schema.metadata)  # which the columns of a block lack
            places = [i for i, name in enumerate(schema.names) if name not in index]
            names = [str(schema.names[i]) for i in places]
            target = places[target_column(names, self._address, self._shards.target)[0]]
            self.whole = bool(types.is_integer(schema.field(target).type))
            for group, count in enumerate(rows):
                if count:
                    wanted = deep or sum(rows[:group]) < HEAD
                    yield Piece(group, 1, count, self._group(file, group) if wanted else None)

    def read(self, start: int, size: int) -> Table:
        with open_shard(self._address) as file:
            return self._group(file, start)

    def _group(self, file: IO[bytes], group: int) -> Table:
        columns, target = self._shards.columns, self._shards.target
        columns_needed = None if columns is None or target is None else [*columns, target]
        return read_parquet(self._address, self._allowed, needed=columns_needed, opened=file, group=group)


class _Csv(Format):
    """Blocks are byte ranges of complete rows; the first one has the header."""

    def __init__(self, address: str, text_columns: set[int], header: bool | None) -> None:
        self._address, self._text, self.header = address, text_columns, header
        self._names: tuple[str, ...] = ()

    def walk(self, deep: bool) -> Iterator[Piece]:
        with reading(self._address, "CSV"), open_shard(self._address) as file:
            position = _Position(file)
            begin, block = position.start, list[list[Array]]()
            for columns in cell_chunks(position, self._address, rows=_ROWS):
                if not self._names:
                    columns = self._after_header(columns)
                block.append(columns)
                if position.at - begin >= _BLOCK:
                    yield self._piece(begin, position.at, block)
                    begin, block = position.at, []
            if sum(len(columns[0]) for columns in block):
                yield self._piece(begin, position.at, block)

    def _after_header(self, columns: list[Array]) -> list[Array]:
        """Note the names of the columns; return the first rows without the header."""
        first, others = first_row(columns), [column[1:] for column in columns]
        if self.header is None:
            self.header = has_header(self._address, first, convert_columns(others, self._text, CODES))
        self._names = column_names(first, self.header)
        return others if self.header else columns

    def read(self, start: int, size: int) -> Table:
        with reading(self._address, "CSV"), open_shard(self._address) as file:
            header_too = self.header and start == _Position(file).start
            try:
                if not self._names:
                    file.seek(0)
                    self._names = column_names(first_cells(_Position(file), self._address), bool(self.header))
                file.seek(start)
                block = list(cell_chunks(_Position(io.BytesIO(file.read(size))), self._address, rows=_ROWS))
            except BadInput:  # would number rows from the start of the block
                raise BadInput(f"{shown(self._address)} has rows that do not have equally many cells") from None
            if any(len(columns) != len(self._names) for columns in block):
                raise BadInput(f"{shown(self._address)} has rows that do not have {len(self._names)} cells")
            if header_too:
                block[0] = [column[1:] for column in block[0]]
            return self._table(block)

    def _piece(self, begin: int, end: int, block: list[list[Array]]) -> Piece:
        return Piece(begin, end - begin, sum(len(columns[0]) for columns in block), self._table(block))

    def _table(self, block: list[list[Array]]) -> Table:
        columns = [np.concatenate(parts) for parts in zip(*block, strict=True)]
        return Table(self._names, tuple(convert_columns(columns, self._text, CODES)), bool(self.header))


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
