"""Tables and arrays from files: CSV, Parquet and npz, checked, within a limit on memory, and never unpickled."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from anyk.arrays import Array, Flags, Floats
from anyk.errors import BadInput, needing, suggest

_GB = 10**9
_DEFAULT = 1 * _GB  # default limit in bytes; for a large file it is a multiple of the file's size:
_EXPANSION = 8  # only files that expand more than this are refused
_CHUNK = 4096  # rows that are converted together: as text they take ten times the memory of numbers
_SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'", " ": "spaces"}
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")  # pandas' words
HEADER_SETTING = "give header=yes or header=no"
_ENOUGH = 5  # rows below the first one by which its numbers can be told from data
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
_CODE = re.compile(r"[ \t]*[+-]?0\d+[ \t]*")
# whole numbers that float64 would change: with zeros in front, as codes have them, or of more than 15 digits
CODES = re.compile(r"^[ \t]*[+-]?0\d+[ \t]*$", re.MULTILINE)
INEXACT = re.compile(r"^[ \t]*[+-]?(?:0\d+|\d{16,})[ \t]*$", re.MULTILINE)
_MISSING = {"", "na", "n/a", "#n/a", "nan", "null"}


def shown(path: str | Path) -> str:
    """Return a path for a message; the middle of a very long path is omitted."""
    name = str(path)
    return name if len(name) <= 240 else f"{name[:120]}…{name[-60:]}"


@contextmanager
def reading(file: Path | str, kind: str) -> Iterator[None]:
    """Turn any exception or warning of a library into a BadInput that names the file and its kind.

    The body should only call libraries, because an error in other code would be blamed on the file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for harmless in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", harmless)  # concerns the library, not the file
            yield
    except BadInput:
        raise
    except MemoryError:
        raise BadInput(f"{shown(file)} does not fit into the memory of this machine") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadInput(f"{shown(file)} is not text in UTF-8 (byte 0x{byte:02x}); save it in that encoding") from None
    except Exception as error:
        sentence = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(sentence.split()).rstrip(".") or type(error).__name__
        raise BadInput(f"{shown(file)} cannot be read as {kind}: {shown(reason)}") from None


def check_input_file(file: Path, what: str = "file") -> None:
    """Raise BadInput unless ``file`` is a nonempty file; if it is missing, suggest a file with a similar name."""
    with reading(file, "a file"):
        if file.is_file():
            size = file.stat().st_size
        elif file.exists():
            kind = "folder" if file.is_dir() else "device"
            raise BadInput(f"'{shown(file)}' is a {kind}; give the {what} itself")
        else:
            similar = _similar_file(file)
            hint = f"; did you mean '{similar}'?" if similar else ""
            raise BadInput(f"there is no {what} '{shown(file)}'{hint}")
    if not size:
        raise BadInput(f"{shown(file)} is empty")


def _similar_file(file: Path) -> Path | None:
    """Return a file in the same folder with a similar name, compared up to the first dot."""
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

    def check(self, size: float, *, incomplete: bool = False) -> None:
        """Raise BadInput if ``size`` bytes exceed the limit; ``incomplete``: the contents are larger than this."""
        if size > self.bytes:
            prefix = "more than " * incomplete
            raise BadInput(
                f"{shown(self.file)} unpacks to {prefix}{size / _GB:.3g} GB, but the limit is {self.bytes / _GB:.3g} GB"
                + self.remedy.format(math.ceil(size / _GB * 10) / 10)
            )


def limit(
    file: Path, max_gb: float | None = None, *, remedy: str = "; if you trust the file give max_gb={:g}"
) -> Limit:
    """Return the memory limit of a file: ``max_gb``, by default 1 GB or 8 times its size, whichever is more.

    By default only a file that expands is refused, such as a small archive that fills the memory. ``remedy`` ends the
    error message. Raises BadInput unless ``max_gb`` is above 0.
    """
    if max_gb is None:
        return Limit(file, max(_DEFAULT, _EXPANSION * file.stat().st_size), remedy)
    if not max_gb > 0:
        raise BadInput(f"max_gb must be above 0, got {max_gb:g}")
    return Limit(file, max_gb * _GB, remedy)


class _LimitedReader(io.RawIOBase):
    """A stream of unpacked bytes that raises BadInput beyond a limit."""

    def __init__(self, source: IO[bytes], allowed: Limit) -> None:
        self._source, self._allowed, self._count = source, allowed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._source.read(len(buffer))
        self._count += len(content)
        self._allowed.check(self._count, incomplete=True)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._source.close()
        super().close()


def open_binary(file: Path, allowed: Limit) -> io.BufferedReader:
    """Open a plain, gzip or bzip2 file by its extension; reading beyond the limit raises BadInput."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    source = openers.get(file.suffix.lower(), open)(file, "rb")
    return io.BufferedReader(_LimitedReader(source, allowed), buffer_size=1 << 16)


def open_text(file: Path, allowed: Limit) -> io.TextIOWrapper:
    """Open a file like :func:`open_binary`, as UTF-8, or as UTF-16 if it starts with a byte order mark of UTF-16."""
    opened = open_binary(file, allowed)
    utf16 = opened.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return io.TextIOWrapper(opened, encoding="utf-16" if utf16 else "utf-8-sig", newline="")


def lines(stream: Iterable[str], file: Path | str) -> Iterator[str]:
    """Yield the lines of a text; raise BadInput for a NUL character, which occurs only in binary files."""
    for line in stream:
        if "\0" in line:
            raise BadInput(f"{shown(file)} contains NUL characters, so it is not text in UTF-8")
        yield line


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length: float64 with NaN for a missing number, or text as str objects with None if missing.

    ``header``: whether the names are from the file; otherwise they are "column 0", "column 1" and so on. ``refused``:
    for each column why its values could not be read, empty if all could be. ``index``: the names of columns that are
    left out, as pandas stored its index in them.
    """

    names: tuple[str, ...]
    columns: tuple[Array, ...]
    header: bool
    refused: tuple[str, ...] = ()
    index: tuple[str, ...] = ()

    def check_readable(self, places: Iterable[int], file: Path | str) -> None:
        """Raise BadInput if one of the columns at ``places`` has values that could not be read."""
        for index in places:
            if self.refused and self.refused[index]:
                name = shown(self.names[index])
                days = f", let dates={name} count days" if self.columns[index].dtype.kind == "O" else ""
                raise BadInput(f"{self.refused[index]}; convert them{days}, or omit the column (drop={name})")

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.columns[0].shape[0]) if self.columns else 0


def is_number(cell: str) -> bool:
    """Return whether a cell is a number; ``1_000``, a number in Python, is text."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def is_code(cell: str) -> bool:
    """Return whether a cell is a number with zeros in front, as codes have them.

    >>> is_code("007"), is_code("0"), is_code("0.5")
    (True, False, False)
    """
    return _CODE.fullmatch(cell) is not None


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for a missing value: empty, NA, N/A, NaN or null."""
    return cell.strip().lower() in _MISSING


def missing_values(column: Array) -> Flags:
    """Return a mask of the missing values of a column: NaN, or None in a column of text."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    return np.array([value is None for value in column.tolist()], dtype=bool)


def unusable_values(column: Array) -> Flags:
    """Return a mask of the values of a column that are missing or not finite.

    >>> unusable_values(np.array([1.0, np.inf])).tolist(), unusable_values(np.array(["a", None], dtype=object)).tolist()
    ([False, True], [False, True])
    """
    return ~np.isfinite(column) if column.dtype.kind == "f" else missing_values(column)


def read_csv(
    file: Path,
    allowed: Limit,
    *,
    header: bool | None = None,
    text: Callable[[Sequence[str]], Iterable[int]] | None = None,
    exact: bool = False,
    remedy: str = HEADER_SETTING,
) -> Table:
    """Read a CSV file in UTF-8, separated by commas; it may be compressed (``.gz``, ``.bz2``).

    A column is numeric if all its cells are numbers or missing, else text. ``header``: whether the first row contains
    names; with None :func:`has_header` decides. ``text``: a function that returns, for the names of all columns, the
    indices of the columns to read as text. ``exact``: columns with codes such as 007, or whole numbers of more than 15
    digits, are text, too. ``remedy``: what to do about a header that is ambiguous, for the error. Raises BadInput for
    it and for a file of any other format.
    """
    as_text: set[int] = set()  # columns whose cells must not be converted to numbers
    if text is not None:
        with reading(file, "CSV"), open_text(file, allowed) as opened:
            as_text |= set(text(column_names(first_cells(opened, file), bool(header))))
    first, columns = _read_columns(file, allowed, as_text, header, exact=exact)
    if header is None:
        header = has_header(file, first, columns, remedy)
        if not header:
            columns = [_with_cell(cell, column) for cell, column in zip(first, columns, strict=True)]
    return Table(column_names(first, header), tuple(columns), header)


def _read_columns(
    file: Path, allowed: Limit, as_text: set[int], header: bool | None, *, exact: bool
) -> tuple[list[str], list[Array]]:
    """Return the first row, and the columns of the rows below it (with ``header=False`` of all rows)."""
    while True:
        first, chunks = _read_chunks(file, allowed, as_text, header, INEXACT if exact else None)
        text_columns = {i for chunk in chunks for i, column in enumerate(chunk) if column.dtype.kind == "O"}
        if not any(chunk[i].dtype.kind == "f" for chunk in chunks for i in text_columns):
            columns = [np.concatenate(pieces) for pieces in zip(*chunks, strict=True)]
            return first, columns or [np.empty(0) for _ in first]
        as_text |= text_columns  # read the file again, as some of their chunks contain only numbers


def _with_cell(cell: str, column: Array) -> Array:
    """Return a column with one more cell, the first."""
    return np.concatenate([convert_cells([cell], column.dtype.kind == "O"), column])


def column_names(first: Sequence[str], header: bool) -> tuple[str, ...]:
    """Return the names of columns whose first row is ``first``."""
    names = [cell.strip() for cell in first] if header else [""] * len(first)
    return tuple(name or f"column {i}" for i, name in enumerate(names))


class _CheckedLines:
    """Lines as pandas reads them from a file: none before it is needed; a NUL character raises BadInput."""

    def __init__(self, stream: Iterable[str], file: Path | str) -> None:
        checked = (line for line in lines(stream, file))
        beginning: list[str] = []
        for line in checked:
            if beginning or line.strip("\r\n"):
                beginning.append(line)
            if len(beginning) == 2:
                break
        self.beginning = tuple(beginning)
        self._lines = chain(beginning, checked)

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def readline(self) -> str:
        """Return the next line, or nothing at the end."""
        return next(self._lines, "")

    read = readline


def cell_chunks(stream: Iterable[str], file: Path | str, *, rows: int = _CHUNK) -> Iterator[list[Array]]:
    """Yield the columns of a CSV file, split by pandas, in chunks of at most ``rows`` rows (at least 4).

    Columns are arrays of str objects; no cell is interpreted. The first chunk begins with the first row, blank lines
    are left out, and no line is read before its chunk is needed. Raises BadInput for a file that is empty, has another
    separator, or has rows of different lengths.
    """
    from pandas.errors import ParserError

    source = _CheckedLines(stream, file)
    if source.beginning:
        _check_separator(source.beginning, file)
    count = 0
    try:
        with _split(source, file, rows) as frames:
            for frame in frames:
                columns = [frame[name].to_numpy(dtype=object) for name in frame.columns]
                filled = np.array([isinstance(cell, str) for cell in columns[0]], dtype=bool)
                if not filled.all():  # blank lines
                    columns = [column[filled] for column in columns]
                for number, cell in enumerate(columns[-1], start=count + 1):
                    if not isinstance(cell, str):
                        width = sum(isinstance(column[number - count - 1], str) for column in columns)
                        raise BadInput(_uneven(file, number, width, len(columns)))
                count += len(columns[0])
                yield columns
    except ParserError as error:
        if match := _TOO_LONG.search(str(error)):
            expected, row, width = map(int, match.groups())
            raise BadInput(_uneven(file, row, width, expected)) from None
        raise


def first_cells(stream: Iterable[str], file: Path | str) -> list[str]:
    """Return the cells of the first row of a CSV file, without a look at the others; BadInput for an empty file."""
    with _split(_CheckedLines(stream, file), file, 1) as frames:
        frame = next(iter(frames))
    return [str(frame[name].iloc[0]) for name in frame.columns]


def _split(source: _CheckedLines, file: Path | str, rows: int) -> Any:
    """Return pandas' reader of chunks of cells; raise BadInput for an empty file.

    pandas' slower engine sees that a row is too short, and that quotes are not closed.
    """
    import pandas

    if not source.beginning:
        raise BadInput(f"{shown(file)} is empty")
    return pandas.read_csv(
        source,
        dtype=object,
        keep_default_na=False,
        header=None,
        engine="python",
        skipinitialspace=True,
        skip_blank_lines=False,
        chunksize=rows,
    )


def _uneven(file: Path | str, number: int, width: int, expected: int) -> str:
    """Return the sentence about a row that has fewer or more cells than the first."""
    return (
        f"{shown(file)} cannot be read as CSV: row {number} has {width} cell{'s' * (width != 1)}, the first has "
        f"{expected}"
    )


def first_row(columns: Sequence[Array]) -> list[str]:
    """Return the cells of the first row of some columns of text."""
    return [str(column[0]) for column in columns]


def _check_separator(beginning: Sequence[str], file: Path | str) -> None:
    """Raise BadInput if the first two lines of a file are evidently not separated by commas."""
    for sign, name in _SEPARATORS.items():
        cells = [line.strip("\r\n").split(sign) for line in (beginning[0], beginning[-1])]
        if len(cells[0]) == 1 or len(cells[0]) != len(cells[1]):
            continue
        decimal = all(is_number(cell.replace(",", ".")) or is_missing(cell) for cell in cells[1])
        if "," not in beginning[0] or (decimal and sign != " "):
            raise BadInput(
                f"the columns of {shown(file)} are separated by {name}; save it with commas between columns and points "
                "in decimal numbers"
            )


def _read_chunks(
    file: Path, allowed: Limit, as_text: set[int], header: bool | None, text_pattern: re.Pattern[str] | None
) -> tuple[list[str], list[list[Array]]]:
    """Return the first row, and the columns of the rows below it (with ``header=False`` of all rows) in chunks."""
    chunks: list[list[Array]] = []
    cells, first = 0, list[str]()
    with reading(file, "CSV"), open_text(file, allowed) as opened:
        for columns in cell_chunks(opened, file):
            if not first:
                first = first_row(columns)
                if header is not False:
                    columns = [column[1:] for column in columns]
            cells += len(columns) * len(columns[0])
            allowed.check(8 * cells)
            if len(columns[0]):
                chunks.append(convert_columns(columns, as_text, text_pattern))
    return first, chunks


def convert_columns(
    columns: Sequence[Array], as_text: Collection[int], text_pattern: re.Pattern[str] | None = None
) -> list[Array]:
    """Return columns of cells converted; ``as_text``: the indices of those that must stay text.

    ``text_pattern``: see :func:`convert_cells`.
    """
    return [convert_cells(column, i in as_text, text_pattern) for i, column in enumerate(columns)]


def convert_cells(cells: Sequence[str] | Array, as_text: bool, text_pattern: re.Pattern[str] | None = None) -> Array:
    """Return cells as numbers, NaN if missing; as text, None if missing, if ``as_text`` or if a cell is not a number.

    ``text_pattern``: cells are text if one of them matches, such as :data:`CODES` or :data:`INEXACT`.
    """
    joined = "" if as_text else "\n".join(cells)
    if not as_text and "_" not in joined and not (text_pattern and text_pattern.search(joined)):
        try:
            return np.array(list(map(float, cells)))
        except ValueError:
            pass
        try:
            return np.array([math.nan if is_missing(cell) else float(cell) for cell in cells])
        except ValueError:
            pass
    column = np.empty(len(cells), dtype=object)
    column[:] = [None if is_missing(cell) else cell for cell in cells]
    return column


def has_header(file: Path | str, first: list[str], columns: list[Array], remedy: str = HEADER_SETTING) -> bool:
    """Return whether the first row contains the names of the columns below it; raise BadInput if this is ambiguous.

    Text above numbers is a name. A number above numbers, and text that occurs again in its column, are data. The
    numbers 0, 1, 2, … or 1, 2, 3, … are names after an empty cell (pandas writes unnamed columns so), else ambiguous,
    as are other whole numbers at equal distances, such as years, and whole numbers far from the fractions below them.
    """
    cells = [cell.strip() for cell in first]
    words = {i for i, cell in enumerate(cells) if not is_missing(cell) and not is_number(cell)}
    numeric = {i for i, column in enumerate(columns) if column.dtype.kind == "f" and len(column)}
    numbers = {i for i in numeric - words if not is_missing(cells[i])}
    ambiguous = f"the first row of {shown(file)} ({listed(cells)}) may be names or data; {remedy}"
    if not words:
        labels = cells[1:] if cells[0] == "" else cells
        counted = labels in ([str(i + start) for i in range(len(labels))] for start in (0, 1))
        if len(labels) >= 3 and counted and not cells[0]:
            return True
        if (len(labels) >= 3 and _counts_columns(labels, columns[-len(labels) :])) or _far_above(cells, columns):
            raise BadInput(ambiguous)
        return False
    names = words & numeric
    if not names and any(cells[i] in columns[i] for i in words):
        return False
    repeated = not names and len(columns[0]) and len(set(cells)) < len(cells)
    if numbers or repeated:
        raise BadInput(ambiguous)
    return True


def _counts_columns(cells: Sequence[str], columns: Sequence[Array]) -> bool:
    """Return whether cells are whole numbers at equal distances, such as years, unlike the numbers below them.

    These have fractions, or the distance is 1 in the first row and not in another.
    """
    if not all(re.fullmatch(r"\d{1,15}", cell) for cell in cells):
        return False
    steps = set(np.diff(list(map(int, cells))).tolist())
    if len(steps) > 1 or steps == {0}:
        return False
    below = [column for column in columns if column.dtype.kind == "f"]
    if any((np.isfinite(column) & (column != np.floor(column))).any() for column in below):
        return True
    pairs = pairwise(below)
    return steps == {1} and not (len(below) == len(cells) and all((right - left == 1.0).all() for left, right in pairs))


def _far_above(cells: Sequence[str], columns: Sequence[Array]) -> bool:
    """Return whether whole numbers are farther from the fractions below them than these are from each other."""
    if len(columns) < 2 or len(columns[0]) < _ENOUGH or not all(map(is_number, cells)):
        return False
    for cell, column in zip(cells, columns, strict=True):
        below = column[np.isfinite(column)] if column.dtype.kind == "f" else column[:0]
        if len(below) < _ENOUGH or not float(cell).is_integer() or (below == np.floor(below)).all():
            return False
        if np.abs(below - float(cell)).min() <= np.ptp(below):
            return False
    return True


def listed(names: Sequence[str]) -> str:
    """Return the first five names for a message, quoted so that spaces in a name are visible."""
    return ", ".join(repr(shown(name)) for name in names[:5]) + ", ..." * (len(names) > 5)


def column_hint(name: str, names: Sequence[str]) -> str:
    """Return the end of a message about a missing column: the nearest name, else the names of the columns."""
    return suggest(name, names, f"its columns: {listed(names)}")


def is_row_number(values: Array) -> bool:
    """Return whether a column contains the row numbers 0, 1, 2, … or 1, 2, 3, …"""
    numbers = values.dtype.kind == "f" and len(values) > 1
    return bool(numbers and values[0] in (0.0, 1.0) and (np.diff(values) == 1.0).all())


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
    index = _stored_index(schema.metadata)
    contents = {i: _content_of(schema.field(i).type) for i, name in enumerate(schema.names) if name not in index}
    refused = {
        i: f"column '{schema.names[i]}' of {shown(file)} has {schema.field(i).type} values, which are neither numbers "
        "nor text"
        for i, content in contents.items()
        if content in ("dates", "other")
    }
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

    if exact and pyarrow.types.is_integer(column.type):
        integers = column.to_pylist()
        if any(value is not None and abs(value) >= 2**53 for value in integers):
            words = np.empty(len(integers), dtype=object)
            words[:] = [None if value is None else str(value) for value in integers]
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


def _stored_index(metadata: dict[bytes, bytes] | None) -> set[str]:
    """Return the names of the columns that pandas wrote for its index."""
    try:
        index = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return {name for name in index if isinstance(name, str)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()
