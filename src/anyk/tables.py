"""Tables and arrays from files: CSV, Parquet and npz, checked, within a limit on memory, and never unpickled."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput, MissingPackage

_GB = 10**9
_DEFAULT = 1 * _GB  # or so many times the file's own size, whichever is more, so that only what expands is refused
_EXPANSION = 8
_CHUNK = 4096  # rows converted at once: as text they take ten times the memory they take as numbers
_SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'", " ": "spaces"}
_MISSING = {"", "na", "n/a", "#n/a", "nan", "null"}


def shown(path: str | Path) -> str:
    """A path for an error, without the middle of a very long one."""
    text = str(path)
    return text if len(text) <= 240 else f"{text[:120]}…{text[-60:]}"


@contextmanager
def reading(file: Path | str, kind: str) -> Iterator[None]:
    """Turn whatever a library raises, or warns about, on a broken file into one sentence with the file and its kind.

    Put little else than calls of libraries inside: a mistake of our own would be blamed on the file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for harmless in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", harmless)  # about the library, not about the file
            yield
    except BadInput:
        raise
    except MemoryError:
        raise BadInput(f"{shown(file)} does not fit into the memory of this machine") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadInput(f"{shown(file)} is not text in UTF-8 (byte 0x{byte:02x}); save it in that encoding") from None
    except Exception as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(text.split()).rstrip(".") or type(error).__name__
        raise BadInput(f"{shown(file)} cannot be read as {kind}: {shown(reason)}") from None


def existing_file(file: Path, what: str = "file") -> None:
    """Raise BadInput unless ``file`` is a file with something in it; a similar name beside it is suggested."""
    with reading(file, "a file"):
        if file.is_file():
            size = file.stat().st_size
        elif file.exists():
            kind = "folder" if file.is_dir() else "device"
            raise BadInput(f"'{shown(file)}' is a {kind}; give the {what} itself")
        else:
            near = _similar(file)
            hint = f"; did you mean '{near}'?" if near else ""
            raise BadInput(f"there is no {what} '{shown(file)}'{hint}")
    if not size:
        raise BadInput(f"{shown(file)} is empty")


def _similar(file: Path) -> Path | None:
    """A file in the same folder whose name, up to its first dot, is nearly the same."""
    if not file.parent.is_dir():
        return None
    stems: dict[str, Path] = {}
    for other in sorted(file.parent.iterdir()):
        stems.setdefault(other.name.partition(".")[0].lower() or other.name, other)
    near = get_close_matches(file.name.partition(".")[0].lower(), stems, n=1, cutoff=0.75)
    return stems[near[0]] if near else None


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the bytes of memory that a file's contents take; see :func:`limit`."""

    file: Path | str
    bytes: float
    remedy: str

    def check(self, size: float, *, more: bool = False) -> None:
        """Raise BadInput where ``size`` bytes, or ``more``, are above the limit."""
        if size > self.bytes:
            prefix = "more than " * more
            raise BadInput(
                f"{shown(self.file)} unpacks to {prefix}{size / _GB:.3g} GB, but the limit is {self.bytes / _GB:.3g} GB"
                + self.remedy.format(math.ceil(size / _GB * 10) / 10)
            )


def limit(
    file: Path, max_gb: float | None = None, *, remedy: str = "; if you trust the file give max_gb={:g}"
) -> Limit:
    """The limit on what ``file`` may unpack to: ``max_gb``, or else 1 GB or 8 times its size, whichever is more.

    A plain file is therefore never refused, only one that expands (a small archive that fills the memory). ``remedy``
    ends the sentence of an error. Raises BadInput unless ``max_gb`` is above 0.
    """
    if max_gb is None:
        return Limit(file, max(_DEFAULT, _EXPANSION * file.stat().st_size), remedy)
    if not max_gb > 0:
        raise BadInput(f"max_gb must be above 0, got {max_gb:g}")
    return Limit(file, max_gb * _GB, remedy)


class _Counted(io.RawIOBase):
    """A stream of unpacked bytes that stops at a limit."""

    def __init__(self, source: IO[bytes], allowed: Limit) -> None:
        self._source, self._allowed, self._count = source, allowed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._source.read(len(buffer))
        self._count += len(content)
        self._allowed.check(self._count, more=True)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._source.close()
        super().close()


def open_binary(file: Path, allowed: Limit) -> io.BufferedReader:
    """Open a plain, gzip or bzip2 file by its extension; reading beyond the limit raises BadInput."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    source = openers.get(file.suffix.lower(), open)(file, "rb")
    return io.BufferedReader(_Counted(source, allowed), buffer_size=1 << 16)


def open_text(file: Path, allowed: Limit) -> io.TextIOWrapper:
    """Do as :func:`open_binary` for text in UTF-8 or, if it starts with that byte order mark, in UTF-16."""
    opened = open_binary(file, allowed)
    wide = opened.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return io.TextIOWrapper(opened, encoding="utf-16" if wide else "utf-8-sig", newline="")


def lines(text: Iterable[str], file: Path | str) -> Iterator[str]:
    """The lines of a text; a NUL character, which only binary files hold, raises BadInput."""
    for line in text:
        if "\0" in line:
            raise BadInput(f"{shown(file)} holds NUL characters, so it is not text in UTF-8")
        yield line


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length: float64 with NaN where a number is missing, or objects that are str (or None).

    ``header`` tells whether the names were in the file; without them columns are called "column 0" and so on.
    """

    names: tuple[str, ...]
    columns: tuple[NDArray[Any], ...]
    header: bool

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.columns[0]) if self.columns else 0


def is_number(text: str) -> bool:
    """Whether a cell holds a number; ``1_000``, which Python would take for one, is text."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def missing(cell: str) -> bool:
    """Whether a cell stands for a value that is not known: empty, NA, N/A, NaN or null."""
    return cell.strip().lower() in _MISSING


def absent(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where a column has no value, as a mask: no finite number, or None in a column of text.

    >>> absent(np.array([1.0, np.nan])).tolist(), absent(np.array(["a", None], dtype=object)).tolist()
    ([False, True], [False, True])
    """
    if column.dtype.kind == "f":
        return np.asarray(~np.isfinite(column))
    return np.array([value is None for value in column.tolist()], dtype=bool)


def read_csv(
    file: Path,
    allowed: Limit,
    *,
    header: bool | None = None,
    text: Callable[[Sequence[str]], Iterable[int]] | None = None,
) -> Table:
    """Read a CSV file, plain or packed (``.gz``, ``.bz2``), separated by commas, in UTF-8.

    A column is numeric if all its cells are numbers or missing, else text as it stands. ``header`` says whether the
    first row holds names; None finds out (see :func:`has_header`) and raises BadInput where that cannot be known, as
    for anything that is not such a file. ``text`` says, of the columns' names, which are text whatever they hold.
    """
    words: set[int] = set()  # columns known to be text, whose cells must not be turned into numbers
    if text is not None:
        with reading(file, "CSV"), open_text(file, allowed) as opened:
            top = next(csv_rows(opened, file), [])
        words |= set(text(column_names(top, bool(header))))
    while True:
        first, chunks = _read_cells(file, allowed, words, header)
        text_columns = {i for chunk in chunks for i, column in enumerate(chunk) if column.dtype.kind == "O"}
        if not any(chunk[i].dtype.kind == "f" for chunk in chunks for i in text_columns):
            break
        words |= text_columns  # their first cells looked like numbers: read these again as the text they are
    columns = [np.concatenate([chunk[i] for chunk in chunks]) for i in range(len(chunks[0]))] if chunks else []
    if header is None and first:
        columns = columns or [np.empty(0) for _ in first]
        header = has_header(file, first, columns)
        if not header:
            columns = [_prepend(cell, column) for cell, column in zip(first, columns, strict=True)]
    columns = columns or [np.empty(0) for _ in first]
    return Table(column_names(first, bool(header)), tuple(columns), bool(header))


def column_names(first: Sequence[str], header: bool) -> tuple[str, ...]:
    """Names of columns, of which ``first`` is the first row."""
    names = [cell.strip() for cell in first] if header else [""] * len(first)
    return tuple(name or f"column {i}" for i, name in enumerate(names))


def csv_rows(text: io.TextIOWrapper, file: Path) -> Iterator[list[str]]:
    """The rows of a CSV file, as text; blank lines are none."""
    return (row for row in csv.reader(lines(text, file), strict=True, skipinitialspace=True) if row)


def check_separator(rows: Sequence[Sequence[str]], file: Path | str) -> None:
    """Raise BadInput if the first two rows of a file are evidently separated by something other than commas."""
    lines = [",".join(row) for row in rows]
    for sign, name in _SEPARATORS.items():
        cells = [line.split(sign) for line in lines]
        if len(cells[0]) == 1 or len(cells[0]) != len(cells[-1]):
            continue
        decimal = all(is_number(cell.replace(",", ".")) or missing(cell) for cell in cells[-1])
        if len(rows[0]) == 1 or (decimal and sign != " "):
            raise BadInput(
                f"the columns of {shown(file)} are separated by {name}; save it with commas between columns and points "
                "in decimal numbers"
            )


def _read_cells(
    file: Path, allowed: Limit, text: set[int], header: bool | None
) -> tuple[list[str], list[list[NDArray[Any]]]]:
    """The first row, and the columns of the rows below (of all, with ``header=False``) in chunks."""
    chunks: list[list[NDArray[Any]]] = []
    cells = 0
    with reading(file, "CSV"), open_text(file, allowed) as opened:
        reader = csv.reader(lines(opened, file), strict=True, skipinitialspace=True)
        rows = (row for row in reader if row)
        first = next(rows, None)
        if first is None:
            raise BadInput(f"{shown(file)} is empty")
        second = list(islice(rows, 1))
        check_separator([first, *second], file)
        width, below = len(first), second if header is not False else [first, *second]
        while True:
            below += islice(rows, _CHUNK - len(below))
            if not below:
                return first, chunks
            for row in below:
                if len(row) != width:
                    raise BadInput(
                        f"{shown(file)} cannot be read as CSV: a row at line {reader.line_num} or shortly before has "
                        f"{len(row)} cell{'s' * (len(row) != 1)}, the first has {width}"
                    )
            cells += width * len(below)
            allowed.check(8 * cells)
            chunks.append([converted(column, i in text) for i, column in enumerate(zip(*below, strict=True))])
            below = []


def converted(cells: Sequence[str], text: bool) -> NDArray[Any]:
    """Cells of a column as numbers, NaN where one is missing, or else (and where ``text`` says so) as they stand."""
    if not text and "_" not in "".join(cells):
        try:
            return np.array(list(map(float, cells)))
        except ValueError:
            pass
        try:
            return np.array([math.nan if missing(cell) else float(cell) for cell in cells])
        except ValueError:
            pass
    column = np.empty(len(cells), dtype=object)
    column[:] = [None if missing(cell) else cell for cell in cells]
    return column


def _prepend(cell: str, column: NDArray[Any]) -> NDArray[Any]:
    """A column with the first row's cell on top, once that has turned out to be no name."""
    if column.dtype.kind == "f" and len(column):
        return np.concatenate([[math.nan if missing(cell) else float(cell)], column])
    top = converted([cell], text=column.dtype.kind == "O")
    return np.concatenate([top, column]) if len(column) else top


def has_header(file: Path | str, first: list[str], columns: list[NDArray[Any]]) -> bool:
    """Return whether the first row holds the names of the columns below it; BadInput if it may hold either.

    Text above numbers is a name; a number above numbers, and text that occurs again below itself, are data. The numbers
    0, 1, 2, … or 1, 2, 3, … are names behind an empty cell (pandas writes unnamed columns so); else they may be either.
    """
    cells = [cell.strip() for cell in first]
    words = {i for i, cell in enumerate(cells) if not missing(cell) and not is_number(cell)}
    numeric = {i for i, column in enumerate(columns) if column.dtype.kind == "f" and len(column)}
    numbers = {i for i in numeric - words if not missing(cells[i])}
    names = words & numeric
    unsure = f"the first row of {shown(file)} ({listed(cells)}) may be names or data; say header=yes or header=no"
    if not words:
        counted = cells[1:] if cells[0] == "" else cells
        if len(counted) < 3 or counted not in ([str(i + start) for i in range(len(counted))] for start in (0, 1)):
            return False
        if cells[0]:
            raise BadInput(unsure)
        return True
    if names:
        if numbers:
            raise BadInput(unsure)
        return True
    if not len(columns[0]):
        return True
    if any(cells[i] in columns[i] for i in words):
        return False
    if numbers or len(set(cells)) < len(cells):
        raise BadInput(unsure)
    return True


def listed(names: Sequence[str]) -> str:
    """The first few names for an error; quoted, so that a broken name shows."""
    return ", ".join(repr(shown(name)) for name in names[:5]) + ", ..." * (len(names) > 5)


def is_row_number(values: NDArray[Any]) -> bool:
    """Whether a column counts its rows, 0, 1, 2, … or 1, 2, 3, …"""
    if values.dtype.kind != "f" or len(values) < 2 or values[0] not in (0.0, 1.0):
        return False
    return bool((values == values[0] + np.arange(len(values))).all())


def read_parquet(
    file: Path | str,
    allowed: Limit,
    *,
    needed: Collection[str] | None = None,
    opened: IO[bytes] | None = None,
    group: int | None = None,
) -> Table:
    """Read a Parquet file of numbers and text; the index that pandas may have stored is left out.

    ``opened``: the file itself, where it is open already; ``group``: one of its row groups, left out all of them.
    Raises BadInput for a file that is none, and for columns of dates, lists and the like, by name; where only some are
    ``needed``, others of such kinds are read as missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage("pyarrow", "data", "reading a Parquet file") from None
    source: Any = file if opened is None else opened
    with reading(file, "Parquet"), parquet.ParquetFile(source, pre_buffer=False) as parquet_file:
        facts, schema = parquet_file.metadata, parquet_file.schema_arrow
        # not of single columns: PyArrow looks these up unchecked, and crashes on a damaged file
        groups = [facts.row_group(i) for i in (range(facts.num_row_groups) if group is None else [group])]
        unpacked = sum(max(one.total_byte_size, 0) for one in groups)
        rows = sum(one.num_rows for one in groups)
    allowed.check(max(unpacked, 8 * rows * facts.num_columns))
    index = _stored_index(schema.metadata)
    kept_columns = [i for i, name in enumerate(schema.names) if name not in index]
    names = [str(schema.names[i]) for i in kept_columns]
    kinds = [schema.field(i).type for i in kept_columns]
    text = {
        i
        for i, kind in enumerate(kinds)
        if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or _of_text(kind)
    }
    number = (pyarrow.types.is_floating, pyarrow.types.is_integer, pyarrow.types.is_boolean, pyarrow.types.is_decimal)
    odd = {i for i, kind in enumerate(kinds) if i not in text and not any(fits(kind) for fits in number)}
    for i, kind in enumerate(kinds):
        if i in odd and (needed is None or names[i] in needed):
            raise BadInput(
                f"column '{names[i]}' of {shown(file)} holds {kind} values, which are neither numbers nor text; "
                "make them one of the two, or leave the column out"
            )
    columns: list[NDArray[Any]] = []
    # repeated text stays in the file's dictionary: written out, it could take any multiple of the file
    words = [names[i] for i in sorted(text)]
    with reading(file, "Parquet"), parquet.ParquetFile(source, read_dictionary=words, pre_buffer=False) as parquet_file:
        # threads that read on behind an error crash the process
        table = (
            parquet_file.read(use_threads=False)
            if group is None
            else parquet_file.read_row_group(group, use_threads=False)
        )
        for i, place in enumerate(kept_columns):
            column = np.full(table.num_rows, np.nan) if i in odd else _of_arrow(table.column(place), i in text)
            columns.append(column)
    return Table(tuple(names), tuple(columns), True)


def _of_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_dictionary(kind) and (types.is_string(kind.value_type) or types.is_large_string(kind.value_type))
    )


def _of_arrow(column: Any, text: bool) -> NDArray[Any]:
    import pyarrow

    if not text:
        values: NDArray[np.float64] = column.cast(pyarrow.float64(), safe=False).to_numpy()
        return values.astype(np.float64)
    parts: list[NDArray[Any]] = [np.empty(0, dtype=object)]
    for chunk in column.chunks:
        if not pyarrow.types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_encode()
        words = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        places = chunk.indices.fill_null(len(words) - 1) if chunk.null_count else chunk.indices
        parts.append(words[places.to_numpy(zero_copy_only=False).astype(np.intp)])
    return np.concatenate(parts)


def _stored_index(metadata: dict[bytes, bytes] | None) -> set[str]:
    """The columns that pandas wrote for its index."""
    try:
        index = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return {name for name in index if isinstance(name, str)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()
