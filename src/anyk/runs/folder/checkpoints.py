"""Checkpoints: everything that a run needs to be resumed, in a safetensors file; nothing in it is ever unpickled.

A folder has the newest checkpoint and the one before. Each stores a digest of its contents and the log's seal, and the
log lists the checkpoints that were written. Damaged or missing files and truncated logs are therefore detected before a
run is resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import BadInput, RunFailed, Surroundings, hindered
from anyk.base.keyed import array_digest
from anyk.base.plain import ByName
from anyk.base.regular_files import open_plain, replacing, synchronise
from anyk.runs.log import queries
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.runlog import RunLog

NAME = "checkpoint.safetensors"
OLDER = "checkpoint.older.safetensors"


class Saved(NamedTuple):
    """A checkpoint to resume from, its digest and file ``name``; ``instead``: the reason if it is not the newest."""

    state: ByName
    vectors: Vectors
    digest: str
    name: str = NAME
    instead: str | None = None


def save(folder: Path, encoded: str, vectors: Vectors, *, name: str = NAME) -> str:
    """Write a checkpoint and return its digest; the last one is kept as :data:`OLDER`. ``encoded``: the state, as JSON.

    Raises :class:`~anyk.RunFailed` if it cannot be written.
    """
    from safetensors.numpy import save_file

    target = folder / name
    try:
        # stored as this machine's numbers, whatever their order of bytes was
        arrays = {key: np.ascontiguousarray(v, v.dtype.newbyteorder("=")) for key, v in vectors.items()}
        digest = _digest(encoded, arrays)
        with replacing(target) as unfinished:
            save_file(arrays, unfinished, metadata={"state": encoded, "digest": digest})
            synchronise(unfinished)
            if name == NAME and target.exists():
                target.replace(folder / OLDER)
    except Exception as error:  # safetensors raises an exception type of its own for lack of space
        raise RunFailed(
            f"the checkpoint in '{folder}' cannot be written ({error}); free some space and resume"
        ) from None
    return digest


class CheckpointWriter:
    """Writes checkpoints in a thread, from copies of the vectors in buffers that are used again."""

    def __init__(self, folder: Path, log: LogWriter) -> None:
        self._folder, self._log = folder, log
        self._buffers: list[Vector] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[str] | None = None
        self._seq = 0

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was started and :meth:`finish` has not been called since."""
        return self._writing is not None

    @property
    def done(self) -> bool:
        """Whether a checkpoint has been written and :meth:`finish` has not been called since."""
        return self._writing is not None and self._writing.done()

    def start(self, state: ByName, vectors: Mapping[str, Vector]) -> None:
        """Start to write a checkpoint; the arguments may change afterwards."""
        free, self._buffers = self._buffers, []
        copies: Vectors = {}
        for key, vector in vectors.items():
            alike = (i for i, one in enumerate(free) if one.shape == vector.shape and one.dtype == vector.dtype)
            index = next(alike, None)
            copies[key] = np.empty_like(vector, order="C") if index is None else free.pop(index)
            copies[key][...] = vector
        self._buffers = list(copies.values())
        self._seq = state["seq"]
        self._writing = self._thread.submit(save, self._folder, json.dumps(state), copies)

    def finish(self) -> None:
        """Wait until the checkpoint is written, and log it; raise :class:`~anyk.RunFailed` if that fails."""
        assert self._writing is not None
        writing, self._writing = self._writing, None
        self._log.checkpoint(self._seq, writing.result())

    def close(self) -> None:
        """End the thread after the checkpoint that it is writing, and free the buffers."""
        self._thread.shutdown()
        self._buffers.clear()


def load(folder: Path, name: str = NAME) -> Saved | None:
    """Return a checkpoint, or None if there is none; raise :class:`~anyk.BadInput` if it is damaged."""
    from safetensors import safe_open

    path = folder / name
    try:
        opened = open_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        kind = Surroundings if hindered(error) else BadInput
        raise kind(f"the checkpoint '{path}' cannot be read ({error.strerror})") from None
    try:
        with opened, safe_open(_same(opened), framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {key: np.array(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118  # the file itself is no mapping
        encoded, digest = metadata["state"], metadata["digest"]
        undamaged = _digest(encoded, arrays) == digest
        state = json.loads(encoded)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # whatever a damaged file makes of the reader; a panic of Rust's is no Exception
        if hindered(error):
            raise Surroundings(f"the checkpoint '{path}' cannot be read ({error or 'there is no memory'})") from None
        raise BadInput(f"the checkpoint '{path}' is damaged ({' '.join(str(error).split())})") from None
    if not undamaged:
        raise BadInput(f"the checkpoint '{path}' is damaged (its contents do not match their digest)")
    return Saved(state, arrays, digest, name)


def _same(opened: BufferedReader) -> str:
    """Return a path by which the library opens this very file, whatever has its name meanwhile; its name elsewhere."""
    path = f"/dev/fd/{opened.fileno()}"
    return path if Path(path).exists() else str(opened.name)


def seal_of(folder: Path) -> str:
    """Return the log's seal at the time of the newest checkpoint, or an empty text if that cannot be read."""
    from safetensors import safe_open

    try:
        with open_plain(folder / NAME) as opened, safe_open(_same(opened), framework="np") as file:
            return str(json.loads(file.metadata()["state"])["seal"])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a checkpoint that is missing or damaged is reported when it is loaded
        return ""


def _digest(state: str, arrays: Vectors) -> str:
    digest = hashlib.blake2b(state.encode(), digest_size=16)
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def fitting(folder: Path, log: RunLog, name: str) -> Saved | None:
    """Return a checkpoint, or None if it is missing; raise if it is damaged or does not fit the log."""
    saved = load(folder, name)
    if saved is None:
        return None
    path, state = folder / name, saved.state
    if not log.has_seal(seal := state.get("seal", "none")):
        with RunLog.reading(folder / "log.sqlite", checked=False) as newer:  # of a run that goes on
            if not newer.has_seal(seal):
                raise BadInput(
                    f"the log of '{folder}' is not the one that '{path.name}' was written with, or was cut short"
                )
    written = queries.checkpoint_digests(log, state["seq"])
    if written and saved.digest not in written:
        raise BadInput(f"the checkpoint '{path}' is not the one that the log records at that point")
    for slot, version in state["versions"].items():
        logged = queries.digest(log, slot, version)
        if logged is not None and logged != array_digest(saved.vectors[f"model/{slot}/{version}"]):
            raise BadInput(f"the checkpoint '{path}' holds another model than the log records for version {version}")
    return saved


def newest(folder: Path, log: RunLog, *, or_older: bool = False) -> Saved | None:
    """Return the newest checkpoint, or None for a run that ended before its first.

    With ``or_older`` the one before it is returned if the newest is damaged or missing. Raises
    :class:`~anyk.BadInput` if there is none to resume from.
    """
    last = max(queries.checkpoint_numbers(log), default=None)
    wrong, damage = [], None
    for name in (NAME, OLDER):
        try:
            saved = fitting(folder, log, name)
        except Surroundings:  # another checkpoint could not be read, either
            raise
        except BadInput as error:
            damage = str(error)
            wrong.append(damage)
            continue
        if saved is None:
            if name == NAME and last is not None:
                wrong.append(f"the checkpoint '{folder / NAME}' is gone")
        elif last is None or saved.state["seq"] >= last:
            return saved._replace(instead=damage)  # of a newer one, which the log does not list yet
        else:
            wrong.append(f"the log of '{folder}' has a newer checkpoint than there is")
            if or_older:
                return saved._replace(instead=wrong[0])
    if wrong:
        ended = "; there is no checkpoint to resume from: restore one, or start again in another folder"
        raise BadInput(f"{', and '.join(wrong)}{ended}" if or_older else wrong[0])
    return None


def set_aside(folder: Path) -> None:
    """Rename a damaged checkpoint, so that it does not become the older one when the next is written."""
    with contextlib.suppress(FileNotFoundError):
        (folder / NAME).replace(folder / f"{NAME}.damaged")
