"""The data of a problem that was written by a user, kept from changes while a gradient is computed."""

from __future__ import annotations

import contextlib
import mmap
import sys
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
    """Makes the NumPy arrays of partitions read-only in a ``with`` block, and notices changes of PyTorch's tensors.

    These are those that the partitions refer to when this object is made, in attributes, lists, tuples and
    dictionaries; data frames, modules and tensors that require a gradient stay as they are. Arrays that ``load`` or a
    gradient makes later, such as memory to compute in, stay writable.

    Raises :class:`ValueError` at the end of a block in which a tensor has changed, and of each one after it: torch
    counts changes in place, except those through ``.data`` or ``.numpy()``.
    """

    def __init__(self, partitions: Partitions) -> None:
        loaded = partitions.each if isinstance(partitions, ManyPartitions) else [partitions]
        found = {id(value): value for one in loaded for value in _arrays(one, 0, set())}
        arrays = [value for value in found.values() if isinstance(value, np.ndarray)]
        # an array becomes writable again only after the array whose memory it is a view of
        self._arrays = sorted(arrays, key=lambda array: array.base is not None)
        self._tensors = [value for value in found.values() if not isinstance(value, np.ndarray)]
        self._counts: list[int] = []  # of changes of each tensor before the block
        self._changed = False

    def __enter__(self) -> None:
        for array in self._arrays:
            array.flags.writeable = False
        self._counts = [tensor._version for tensor in self._tensors]

    def __exit__(self, kind: object, *_: object) -> None:
        for array in self._arrays:
            with contextlib.suppress(ValueError):  # a user's code may itself have protected its memory for good
                array.flags.writeable = True
        self._changed = self._changed or self._counts != [tensor._version for tensor in self._tensors]
        if self._changed and kind is None:
            raise ValueError(f"a tensor of the partitions has changed; {ADVICE}")


def _arrays(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield the writable arrays, and the tensors, that a value refers to."""
    if id(value) in seen or depth > _DEEPEST or isinstance(value, (str, bytes, int, float, complex, np.generic)):
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        if value.flags.writeable and (value.base is None or isinstance(value.base, (np.ndarray, mmap.mmap))):
            yield value
        return
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, (torch.Tensor, torch.nn.Module)):
        if isinstance(value, torch.Tensor) and _may_be_data(value):
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


def _may_be_data(tensor: Any) -> bool:
    """Return whether a tensor is not trained, and counts its changes, as one made in inference mode does not."""
    return not (tensor.requires_grad or tensor.is_inference())


def _library(value: object) -> bool:
    """Return whether a value is of a class of anyk, or of a library whose arrays are not NumPy's."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(value, data.Dataset):  # of torch, or of the user: it holds the user's tensors
        return False
    return type(value).__module__.startswith((_OWN, "torch", "jax"))
