"""Work on large vectors, part by part, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from anyk import keyed

_ALONE = 8  # below this number of parts, starting threads takes longer than the work


def cores() -> int:
    """Return the number of threads for a large step: ``OMP_NUM_THREADS``, else one for each available core."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdecimal() and int(setting):
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parts_of(size: int) -> list[slice]:
    """Return the slices that divide a vector of ``size`` numbers into parts."""
    return [slice(first, min(first + keyed.PART, size)) for first in range(0, size, keyed.PART)]


def by_part(work: Callable[[slice], int], size: int) -> int:
    """Call ``work`` with each part of a vector of ``size`` numbers; return the sum of its results modulo 2^63.

    Parts of a large vector are worked on by several threads at once: NumPy computes without the interpreter's lock.

    >>> by_part(lambda part: len(range(1_000_000)[part]), 1_000_000)
    1000000
    """

    def quiet(part: slice) -> int:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named
            return work(part)

    parts = parts_of(size)
    threads = min(cores(), len(parts))
    if threads < 2 or len(parts) < _ALONE:
        total = sum(map(quiet, parts))
    else:
        with ThreadPoolExecutor(threads) as pool:
            total = sum(pool.map(quiet, parts))
    return total & keyed.POSITIVE
