"""Text files, plain or packed by gzip, bzip2 or zstd, within a limit on memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any

from anyk.base import BadInput, needing
from anyk.tables import Limit, open_text, reading, shown

_ZSTD = (".zst", ".zstd")
_UNKNOWN = {".lz4": "LZ4", ".lzf": "LZF", ".snappy": "Snappy", ".xz": "xz", ".zip": "zip"}
_ENDINGS = (*_ZSTD, ".gz", ".bz2", ".inprogress", ".compact", ".csv", ".parquet", ".jsonl", ".ndjson", ".json", ".txt")
_MAGIC = b"\x28\xb5\x2f\xfd"  # of a zstd frame


def open_packed(file: Path, allowed: Limit) -> IO[str]:
    """Open a text file by its ending, or by its first bytes if it is packed by zstd; reading is limited.

    Raises BadInput for another compression, and :class:`~anyk.base.errors.MissingPackage` for zstd without pyarrow.
    """
    ending = _bare(file).suffix.lower()
    if ending in _UNKNOWN:
        raise BadInput(f"'{shown(file)}' is packed by {_UNKNOWN[ending]}, which is not read; unpack it first")
    with reading(file, "a file"), file.open("rb") as plain:
        packed = plain.read(4) == _MAGIC
    if not packed:
        return open_text(file, allowed)
    with needing("pyarrow", "data", "reading a file packed by zstd"):
        import pyarrow
    with reading(file, "zstd"):
        source = pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), "zstd")
    return io.TextIOWrapper(io.BufferedReader(_Limited(source, file, allowed), 1 << 16), encoding="utf-8-sig")


class _Limited(io.RawIOBase):
    """A stream of unpacked bytes that raises BadInput beyond a limit, and for damaged frames."""

    def __init__(self, source: Any, file: Path, allowed: Limit) -> None:
        self._source, self._file, self._allowed, self._count = source, file, allowed, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with reading(self._file, "zstd"):
            content = self._source.read(len(buffer))
        self._count += len(content)
        self._allowed.check(self._count, incomplete=True)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def _bare(file: Path) -> Path:
    """Return a file's name without the endings that Spark adds to a log in progress."""
    return file.with_suffix("") if file.suffix in (".inprogress", ".compact") else file


def stem(file: Path) -> str:
    """Return a file's name without the endings of its format and compression.

    >>> stem(Path("logs/rank3.csv.gz")), stem(Path("10.0.0.7.jsonl"))
    ('rank3', '10.0.0.7')
    """
    name = file.name
    while (ending := next((e for e in _ENDINGS if name.lower().endswith(e)), None)) and len(name) > len(ending):
        name = name[: -len(ending)]
    return name
