"""The data of a problem that was written by a user, kept from changes while a gradient is computed."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from anyk.problems.base import Partitions
from anyk.problems.many import ManyPartitions
from anyk.problems.surroundings import attributes_of

_DEEPEST = 8  # attributes of attributes and entries of containers
_OWN = "anyk."  # anyk's own classes do not change their data
ADVICE = "a gradient must not change its data, which all workers share: change a copy"


class ReadOnlyData:
    """Makes the NumPy arrays of partitions read-only in a ``with`` block.

    These are the arrays that the partitions refer to when this object is made, in attributes, lists, tuples and
    dictionaries; tensors and data frames stay as they are. Arrays that ``load`` or a gradient makes later, such as
    memory to compute in, stay writable.
    """

    def __init__(self, partitions: Partitions) -> None:
        loaded = partitions.each if isinstance(partitions, ManyPartitions) else [partitions]
        arrays = {id(array): array for one in loaded for array in _arrays(one, 0, set())}
        # an array becomes writable again only after the array whose memory it is a view of
        self._arrays = sorted(arrays.values(), key=lambda array: array.base is not None)

    def __enter__(self) -> None:
        for array in self._arrays:
            array.flags.writeable = False

    def __exit__(self, *_: object) -> None:
        for array in self._arrays:
            with contextlib.suppress(ValueError):  # a user's code may itself have protected its memory for good
                array.flags.writeable = True


def _arrays(value: Any, depth: int, seen: set[int]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the writable arrays that a value refers to."""
    if id(value) in seen or depth > _DEEPEST or isinstance(value, (str, bytes, int, float, complex, np.generic)):
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        if value.flags.writeable and (value.base is None or isinstance(value.base, (np.ndarray, mmap.mmap))):
            yield value
        return
    members: Any = ()
    if isinstance(value, Mapping):
        members = value.values()
    elif isinstance(value, (list, tuple)):
        members = value
    elif not isinstance(value, (type, ModuleType, FunctionType, MethodType)) and not _library(value):
        members = attributes_of(value).values()
    for member in list(members):
        yield from _arrays(member, depth + 1, seen)


def _library(value: object) -> bool:
    """Return whether a value is of a class of anyk, or of a library whose arrays are not NumPy's."""
    return type(value).__module__.startswith((_OWN, "torch", "jax"))
