"""Processes as others see them, through Linux's /proc: who started whom, who is stopped, and who is left."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_NAMED = re.compile(rb"/dev/shm/[^\s\0]+|/tmp/anykray-\w+")


class Process(NamedTuple):
    """A process; its number may be used again, but not together with its start. ``state``: T if it is stopped."""

    pid: int
    started: int  # in ticks since the machine's start
    parent: int
    state: str

    @property
    def name(self) -> tuple[int, int]:
        """What distinguishes the process from all others."""
        return self.pid, self.started


def processes() -> dict[int, Process]:
    """Return all processes that have not ended, by number."""
    all_of_them = (process(int(entry.name)) for entry in os.scandir(_PROC) if entry.name.isdigit())
    return {each.pid: each for each in all_of_them if each is not None}


def process(pid: int) -> Process | None:
    """Return a process; None if it has ended."""
    with contextlib.suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return Process(pid, int(fields[19]), int(fields[1]), fields[0])
    return None


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / name).read_bytes()
    return b""


def marked(mark: str) -> list[Process]:
    """Return the processes that have a text in the environment with which they started."""
    return [each for each in processes().values() if mark.encode() in _read(each.pid, "environ")]


def named_files(mark: str) -> set[str]:
    """Return shared memory with a name, and folders of Ray, that marked processes use: what could be left behind."""
    texts = (_read(each.pid, "cmdline") + _read(each.pid, "maps") for each in marked(mark))
    return {name.decode() for text in texts for name in _NAMED.findall(text)}


def _forked_workers(driver: int) -> list[Process]:
    """Return the workers of the cluster ``processes``: they are the children of the driver's helper program."""
    present = processes()
    helpers = {each.pid for each in present.values() if each.parent == driver and _is_helper(each.pid)}
    return [each for each in present.values() if each.parent in helpers]


def _is_helper(pid: int) -> bool:
    return b"forkserver.main" in _read(pid, "cmdline")


def _actors(driver: int) -> list[Process]:
    """Return the workers of a local Ray cluster, which names the processes of actors after their class."""
    present = processes()
    below = {driver}
    for _ in range(3):  # the driver starts Ray's daemon, which starts the actors, some through another process
        below |= {each.pid for each in present.values() if each.parent in below}
    return [present[pid] for pid in below & present.keys() if _read(pid, "cmdline").startswith(b"ray::Actor")]


# by cluster: how its workers are found
FINDERS: dict[str, Callable[[int], list[Process]]] = {"processes": _forked_workers, "ray": _actors}
