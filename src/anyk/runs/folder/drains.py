"""The request that workers of a run leave, in a file that the run reads while it goes on."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from anyk.base.checks import check_range, typed
from anyk.base.errors import BadInput, as_bad_input
from anyk.base.regular_files import read_plain, replacing
from anyk.runs.folder.config import RunConfig, read_config
from anyk.runs.folder.folders import WRITTEN, check_plain, locked

NAME = "drained.json"
_LOCK = f"{NAME}.lock"  # locked by the call that changes the file
_PATIENCE = 10.0  # seconds to wait for the lock
_MOST = 1 << 20  # bytes of the file


@typed
def drain(run: str | Path, workers: Collection[int] = (), *, back: bool = False) -> list[int]:
    """Have workers of a run that is going on leave, each when its task has ended; return those that are to stay away.

    ``run``: the folder of the run. ``workers``: none to change nothing, and only learn which stay away. ``back``: the
    workers return instead. Nothing is computed twice. The run goes on with the other workers if its strategy can do
    without these, as strategies for a range of workers can.

    Raises :class:`~anyk.BadInput` if there is no such worker, or if the run is not going on.
    """
    folder = Path(run)
    config = read_config(folder)
    if not workers:
        return sorted(set(read_drained(folder)))
    for worker in workers:
        check_range("a worker of the run", worker, 0, config.workers.most - 1)
    if config.cluster.partition(":")[0] not in ("processes", "nodes", "ray"):
        raise BadInput(f"cluster '{config.cluster}' cannot drain workers; processes, nodes and ray can")
    if not _is_going_on(folder):
        raise BadInput(f"the run '{folder}' is not going on; resume it first")
    check_plain(folder / NAME, folder / _LOCK)
    with as_bad_input(f"'{folder / NAME}' cannot be written"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(folder / _LOCK, flags, 0o666)
        try:
            _wait_for(descriptor, folder)
            away = set(read_drained(folder))
            away = away.difference(workers) if back else away.union(workers)
            with replacing(folder / NAME) as unfinished, unfinished.open("xb") as new:
                new.write(msgspec.json.encode(sorted(away)))
        finally:
            os.close(descriptor)
    return sorted(away)


def _wait_for(descriptor: int, folder: Path) -> None:
    """Lock a file against other calls; raise :class:`~anyk.BadInput` if another process keeps it locked."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise BadInput(
                    f"another process has had '{folder / _LOCK}' locked for {_PATIENCE:.0f} s; end it, or try again"
                ) from None
            time.sleep(0.05)
        else:
            return


def describe_shortage(config: RunConfig, away: Collection[int]) -> str | None:
    """Return a sentence if a run lacks workers while those ``away`` stay away, as far as its strategy tells."""
    remaining = len(set(range(config.workers.most)).difference(away))
    fewest = config.workers.fewest or 1
    if remaining >= fewest:
        return None
    return (
        f"{remaining} of {config.workers.most} workers remain, and the run needs at least {fewest}: it waits until "
        "others are called back (anyk drain RUN WORKER --back)"
    )


def _is_going_on(folder: Path) -> bool:
    try:
        with locked(folder):
            return False
    except BadInput as error:
        if str(error).startswith(WRITTEN.format(folder)):
            return True
        raise


def read_drained(folder: Path) -> list[int]:
    """Return the workers of a run that are to stay away; none if the file is missing or damaged."""
    try:
        if (folder / NAME).lstat().st_size > _MOST:
            return []
        return msgspec.json.decode(read_plain(folder / NAME), type=list[int])
    except (OSError, msgspec.DecodeError):
        return []
