"""A digest of a problem's data, by which a later run notices that they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from anyk.arrays import Array
from anyk.problems.base import Problem, abilities_of, is_sparse

_KNOWN: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()


def data_digest(problem: Problem) -> str | None:
    """Return a text that differs if a problem's data differ: ``problem.digest()``, or else a digest of its arrays.

    None if its data cannot be found. An object without ``digest()`` is read only once, as arrays that are no data may
    change while it is used.

    >>> import anyk
    >>> a, b = (anyk.problems.from_data(f"synthetic:rows=60,features=4,seed={seed}") for seed in (0, 1))
    >>> data_digest(a) == data_digest(a), data_digest(a) == data_digest(b)
    (True, False)
    """
    own = abilities_of(problem).digest
    if own is not None:
        return own()
    try:
        if problem not in _KNOWN:
            _KNOWN[problem] = digest_of(problem)
        return _KNOWN[problem]
    except TypeError:  # it cannot be hashed, or not be referred to weakly
        return digest_of(problem)


def digest_of(*parts: Any) -> str | None:
    """Return a BLAKE2 digest of all arrays in some parts, with types, shapes and places; None if there is no array.

    Arrays (of NumPy, SciPy, PyTorch or JAX) are found in lists, tuples and dictionaries, and in other objects among the
    attributes or in a tuple there. Whatever else objects contain may change while they are used.
    """
    digest, place = hashlib.blake2b(digest_size=16), None
    for place, array in _arrays(parts, ""):
        digest.update(f"{place}{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return None if place is None else digest.hexdigest()


def _arrays(value: object, place: str) -> Iterator[tuple[str, Array]]:
    array = _array(value)
    if array is not None:
        yield place, array
    elif is_sparse(value):
        for name in ("data", "indices", "indptr"):
            yield f"{place}/{name}", getattr(value, name)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _arrays(part, f"{place}/{key}")
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from _arrays(part, f"{place}/{number}")
    else:
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            if _array(part) is not None or is_sparse(part) or isinstance(part, tuple):
                yield from _arrays(part, f"{place}/{name}")


def _array(value: Any) -> Array | None:
    """Return an array of numbers or text as NumPy's; None for anything else."""
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        import torch

        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return np.asarray(value.numpy())
    if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and hasattr(value, "dtype")):
        array = np.asarray(value)
        return None if array.dtype.kind == "O" else array
    return None
