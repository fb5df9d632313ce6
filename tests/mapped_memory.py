"""The memory that a mapping of this process takes, on Linux."""

from __future__ import annotations

from pathlib import Path


def resident_at(address: int, *, of: str = "") -> int:
    """Return the bytes in memory of the mapping with an address; -1 if it is not mapped, or not of such a file."""
    found, inside = -1, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            begin, end = (int(place, 16) for place in name.split("-"))
            inside = begin <= address < end and of in line
        elif inside and name == "Rss:":
            found = int(rest[0]) * 1024
    return found
