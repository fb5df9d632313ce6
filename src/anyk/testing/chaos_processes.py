"""Processes as others see them, through Linux's /proc: a driver's workers, who is stopped, and who is left."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

_NAMED = re.compile(rb"/dev/shm/[^\s\0]+|/tmp/anykray-\w+")


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _status(pid: int) -> list[bytes]:
    """Return the state of a process (Z: ended), its parent and other numbers; nothing if it is gone."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _parents() -> dict[int, int]:
    """Return the parents of all processes that have not ended."""
    all_of_them = ((int(entry.name), _status(int(entry.name))) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {pid: int(status[1]) for pid, status in all_of_them if status and status[0] not in b"ZX"}


def marked(mark: str) -> list[int]:
    """Return the processes that have a text in the environment with which they started."""
    return [pid for pid in _parents() if mark.encode() in _read(pid, "environ")]


def named_files(mark: str) -> set[str]:
    """Return shared memory with a name, and folders of Ray, that marked processes use: what could be left behind."""
    texts = [_read(pid, name) for pid in marked(mark) for name in ("cmdline", "maps")]
    return {name.decode() for text in texts for name in _NAMED.findall(text)}


def _forked_workers(driver: int) -> list[int]:
    """Return the workers of the cluster ``processes``: they are the children of the driver's helper program."""
    parents = _parents()
    helpers = [pid for pid, parent in parents.items() if parent == driver and b"forkserver" in _read(pid, "cmdline")]
    return [pid for pid, parent in parents.items() if parent in helpers]


def _actors(driver: int) -> list[int]:
    """Return the workers of a local Ray cluster, whose daemon, a child of the driver, names them after their class."""
    parents = _parents()
    children = [pid for pid, parent in parents.items() if parent == driver]
    started = [pid for pid, parent in parents.items() if parent in children]
    return [pid for pid in started if _read(pid, "cmdline").startswith(b"ray::Actor")]


# by cluster: how its workers are found
FINDERS: dict[str, Callable[[int], list[int]]] = {"processes": _forked_workers, "ray": _actors}
