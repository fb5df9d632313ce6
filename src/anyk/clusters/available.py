"""Functions that measure the memory available on this machine, and that return freed memory to it."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_LARGE = 1 << 20  # bytes of a vector above which returning its memory is worth the time


def available_memory() -> int | None:
    """Return the bytes available without swapping, within the control groups' limits; None if unknown."""
    rooms = [_field(Path("/proc/meminfo"), "MemAvailable:", 1024), *map(_room_of_group, _groups())]
    return min((room for room in rooms if room is not None), default=None)


def available_addresses() -> int | None:
    """Return the bytes that this process may still map (``ulimit -v``); None if unlimited or unknown."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _field(Path("/proc/self/status"), "VmSize:", 1024)
    return None if limit == resource.RLIM_INFINITY or used is None else max(0, limit - used)


def give_back(size: int) -> None:
    """Return memory that the C library keeps to the system, after vectors of ``size`` bytes were freed, if large."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if size >= _LARGE else None
    if trim is not None:  # only glibc has this function
        trim(0)


def _groups() -> list[Path]:
    """Return the process's control group (version 2), such as a container's, and its parent groups."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    groups = [_GROUPS / line[3:].strip("/") for line in lines if line.startswith("0::")]
    return [group for path in groups for group in (path, *path.parents) if group.is_relative_to(_GROUPS)]


def _room_of_group(group: Path) -> int | None:
    try:
        limit, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
    except (OSError, ValueError):  # the group has no limit
        return None
    return limit - used + (_field(group / "memory.stat", "inactive_file", 1) or 0)  # the kernel reclaims inactive pages


def _field(file: Path, name: str, unit: int) -> int | None:
    try:
        with file.open(encoding="ascii") as lines:
            return next((int(line.split()[1]) * unit for line in lines if line.split()[0] == name), None)
    except OSError:
        return None
