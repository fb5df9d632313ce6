"""Copies an object of the user's, so that a trial computation leaves the object itself as it is."""

from __future__ import annotations

import io
import pickle
import types
from typing import Any, TypeVar

import numpy as np

from anyk.base.arrays import read_only

T = TypeVar("T")
_COPIED = 1 << 24  # bytes of the largest array that is copied; the copy has a larger one, too, but cannot write to it
_SHARED = (type, types.FunctionType, types.ModuleType)
_LIBRARIES = ("torch", "jax", "jaxlib")  # whose arrays state their bytes as NumPy's do


def copied(value: T) -> T:
    """Return a copy that shares classes, functions, modules, large arrays, and what cannot be copied (locks, files).

    Large arrays of NumPy cannot be written through the copy.

    >>> first = {"numbers": [1, 2], "function": lambda x: x}
    >>> second = copied(first)
    >>> second["numbers"].append(3)
    >>> first["numbers"], second["function"] is first["function"]
    ([1, 2], True)
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    stream.seek(0)
    made: T = _Unpickler(stream, pickler.shared).load()
    return made


class _Pickler(pickle.Pickler):
    """Writes an object, and keeps what its copy shares with it."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of what is shared."""
        if isinstance(value, np.ndarray) and value.nbytes > _COPIED:
            value = read_only(value)
        elif not isinstance(value, _SHARED) and not _is_large_tensor(value):
            return None
        self.shared.append(value)
        return len(self.shared) - 1

    def reducer_override(self, value: Any) -> Any:
        """Say how a copy is made of an object, or that it is shared if there is none."""
        try:
            return value.__reduce_ex__(5)
        except Exception:  # a lock raises TypeError, an object of the user's may raise anything
            return (lambda: value), ()


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(stream)
        self._shared = shared

    def persistent_load(self, number: int) -> Any:
        return self._shared[number]


def _is_large_tensor(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0]
    return library in _LIBRARIES and getattr(value, "nbytes", 0) > _COPIED
