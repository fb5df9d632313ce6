"""Computations on large vectors, divided into parts that several threads process at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from anyk.base import keyed

T = TypeVar("T")
_FEWEST_PARTS = 8  # with fewer parts, starting threads takes longer than computing


def count_threads() -> int:
    """Return the number of threads for a large vector: ``OMP_NUM_THREADS``, else one for each available core."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdecimal() and int(setting):
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parts_of(size: int) -> list[slice]:
    """Return the slices that divide a vector of ``size`` numbers into parts."""
    return [slice(first, min(first + keyed.PART, size)) for first in range(0, size, keyed.PART)]


def sum_over_parts(compute: Callable[[slice], int], size: int) -> int:
    """Call ``compute`` with each part of a vector of ``size`` numbers; return the sum of its results modulo 2^63.

    >>> sum_over_parts(lambda part: len(range(1_000_000)[part]), 1_000_000)
    1000000
    """
    return sum(over_parts(compute, size)) & keyed.POSITIVE


def over_parts(compute: Callable[[slice], T], size: int) -> list[T]:
    """Call ``compute`` with each part of a vector of ``size`` numbers; return its results in the order of the parts.

    For a large vector several threads call it simultaneously: NumPy computes without the interpreter's lock.
    """

    def compute_quietly(part: slice) -> T:
        with np.errstate(over="ignore", invalid="ignore"):  # the caller reports results that are not finite
            return compute(part)

    parts = parts_of(size)
    threads = count_threads()  # the pool starts no more threads than there are parts
    if threads < 2 or len(parts) < _FEWEST_PARTS:
        return list(map(compute_quietly, parts))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(compute_quietly, parts))
