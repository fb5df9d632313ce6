"""Shards: files of one format, anywhere, that only the workers read whose rows they contain."""

from __future__ import annotations

import glob
import hashlib
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from anyk.checks import typed
from anyk.errors import BadInput, MissingPackage
from anyk.files import open_plain
from anyk.named import admit_address
from anyk.tables import listed, reading, shown

Content = Any  # of a block: a Table, a tuple of arrays, or a dictionary of arrays
KINDS: dict[str, Literal["parquet", "csv"]] = {".parquet": "parquet", ".csv": "csv"}


class File(NamedTuple):
    """A shard's address, its size in bytes, and a mark that changes with its contents (the time of its change)."""

    address: str
    size: int
    mark: str

    def check_unchanged(self) -> None:
        """Raise :class:`~anyk.errors.BadInput` unless size and mark are still the same."""
        remote = "://" in self.address
        now = _remote_file(self.address, *_filesystem(self.address)) if remote else _local_file(self.address)
        if now[1:] != self[1:]:
            how = "written again" if now.size == self.size else f"{now.size:,} bytes where there were {self.size:,}"
            raise BadInput(f"{shown(self.address)} has changed since the run began: {how}")


@typed
@dataclass(frozen=True)
class Shards:
    """Training data in files: opened by the workers that hold their rows, block by block, and never by the driver.

    Give it to a problem in the place of its arrays. Rows are numbered through all files, in the order of their names,
    and partitions are cut by these numbers. How many there are, and what else a problem must know, is found in one pass
    that processes of their own make at the start (:mod:`anyk.problems.data.shards.survey`).

    - ``files``: a path, a pattern (``train-*.parquet``) or several; an address with a scheme (``s3://…``, ``gs://…``,
      ``https://…``) is opened by ``fsspec``, which needs the package for it. All are Parquet or all CSV files. A
      block, which is read at once, is a row group of Parquet or about 4 MB of CSV.
    - ``target``: the column to predict (Parquet and CSV), by name or number; left out, the one called target, label or
      y, else the last. ``columns``: those to learn from, by name; left out, all others.
    - ``read``: a function of a file's address that gives its samples as a tuple of arrays with equal first axis (the
      inputs, then the target) or a dictionary of them, for any other kind of file. A file is then one block.
    - ``header``: whether the first row of CSV files holds names; found out if left out.
    - ``rows``: rows of each file, or of all together, if they are known: the pass fails where they are not so many.
    - ``cache_mb``: what each worker keeps of blocks that it has read, in megabytes.

    Raises :class:`~anyk.errors.BadInput` where there is no such file, or files are of several kinds.

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
    cache_mb: float = 256.0

    def __post_init__(self) -> None:
        if not 0.0 < self.cache_mb < float("inf"):
            raise BadInput(f"cache_mb must be a finite number above 0, got {self.cache_mb:g}")
        kind = self.kind
        for name, served in (("target", ("parquet", "csv")), ("columns", ("parquet", "csv")), ("header", ("csv",))):
            if getattr(self, name) is not None and kind not in served:
                raise BadInput(f"{name} is for {' and '.join(served)} files, and these are {kind}; leave it out")
        if isinstance(self.rows, Sequence) and len(self.rows) != len(self.found):
            raise BadInput(f"rows must be one number for each of the {len(self.found)} files, got {len(self.rows)}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "surveyed"}

    def __repr__(self) -> str:
        return f"<Shards: {len(self.found)} {self.kind} files, {shown(self.found[0].address)} …>"

    @cached_property
    def found(self) -> tuple[File, ...]:
        """The files, in the order of their names; only looked for, not opened."""
        patterns = [self.files] if isinstance(self.files, str) else list(self.files)
        found: list[File] = []
        for pattern in patterns:
            here = _remote(pattern) if "://" in pattern else _local(pattern)
            if not here:
                raise BadInput(f"there is no file '{shown(pattern)}'")
            found += here
        if not found:
            raise BadInput("files must name at least one file")
        twice = len(found) - len({file.address for file in found})
        if twice:
            raise BadInput(f"{twice} of the files are named twice in {listed(patterns)}; name each once")
        if empty := next((file for file in found if not file.size), None):
            raise BadInput(f"{shown(empty.address)} is empty")
        return tuple(found)

    @cached_property
    def kind(self) -> Literal["parquet", "csv", "read"]:
        """The format of the files, by their extensions."""
        if self.read is not None:
            return "read"
        kinds: dict[Literal["parquet", "csv"], str] = {}
        for file in self.found:
            extension = Path(file.address).suffix.lower()
            if extension not in KINDS:
                raise BadInput(
                    f"{shown(file.address)} cannot be a shard: shards are Parquet (.parquet) or CSV (.csv) files; for "
                    "any other format give read=, a function that reads a file"
                )
            kinds.setdefault(KINDS[extension], file.address)
        if len(kinds) > 1:
            raise BadInput(f"shards must all be of one kind, got {' and '.join(map(shown, kinds.values()))}")
        return next(iter(kinds))

    def digest(self) -> str:
        """Return a digest of the files' names, sizes and times of change (remote: the marks of the store)."""
        text = hashlib.blake2b(digest_size=16)
        for address, size, mark in self.found:
            text.update(f"{Path(address).name}\x1f{size}\x1f{mark}\x1e".encode())
        return text.hexdigest()


def _local(pattern: str) -> list[File]:
    path = str(Path(pattern).expanduser().absolute())
    with reading(pattern, "a file"):
        names = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))  # noqa: PTH207  # absolute
    return [_local_file(name) for name in names]


def _local_file(name: str) -> File:
    try:
        facts = Path(name).stat()
    except OSError as error:
        raise BadInput(f"{shown(name)} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(facts.st_mode):
        raise BadInput(f"'{shown(name)}' is a folder; give a pattern of its files, as in {shown(name)}/*.parquet")
    if not stat.S_ISREG(facts.st_mode):
        raise BadInput(f"'{shown(name)}' is not a regular file")
    return File(name, facts.st_size, str(facts.st_mtime_ns))


def _remote(pattern: str) -> list[File]:
    admit_address(shown(pattern))
    system, path = _filesystem(pattern)
    scheme = pattern.partition("://")[0]
    try:
        names = sorted(system.glob(path)) if glob.has_magic(path) else [path]
        return [_remote_file(name if "://" in name else f"{scheme}://{name}", system, name) for name in names]
    except FileNotFoundError:
        return []
    except Exception as error:
        raise BadInput(f"'{shown(pattern)}' cannot be listed: {' '.join(str(error).split())}") from None


def _remote_file(address: str, system: Any, path: str) -> File:
    facts = system.info(path)
    marks = ("ETag", "etag", "mtime", "LastModified", "updated", "created")
    return File(address, int(facts.get("size") or 0), str(next((facts[key] for key in marks if key in facts), "")))


def _filesystem(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingPackage("fsspec", "data", f"reading '{shown(address)}'") from None
    try:
        opened: tuple[Any, str] = url_to_fs(address)
    except Exception as error:  # each kind of file system has its own
        raise BadInput(f"'{shown(address)}' cannot be opened: {' '.join(str(error).split())}") from None
    return opened


def opened(address: str) -> IO[bytes]:
    """A shard, to be read."""
    if "://" not in address:
        return open_plain(address, follow=True)
    system, path = _filesystem(address)
    file: IO[bytes] = system.open(path, "rb")
    return file
