"""Files that users give: found, opened and unpacked within a limit on memory; every failure names the file."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from anyk.base import BadInput

_GB = 10**9
_DEFAULT = 1 * _GB  # default limit in bytes; for a large file it is a multiple of the file's size:
_EXPANSION = 8  # only files that expand more than this are refused


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
