"""Digests of a problem's data, by which a run that continues notices other data."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from anyk.base.arrays import Array
from anyk.problems.base import Problem, abilities_of, initial_of
from anyk.problems.replicas import ROWS
from anyk.problems.separate_copy import copied
from anyk.problems.watch import sketch_of_problem
from anyk.tables import is_sparse

ByArray = dict[str, str]  # the digests of the arrays among an object's attributes, by path
_KNOWN: WeakKeyDictionary[Any, ByArray] = WeakKeyDictionary()


def data_digest(problem: Problem) -> str | None:
    """Return a text that differs if a problem's data differ: ``problem.digest()``, or else a digest of its arrays.

    None if its data cannot be found. Arrays of an object without ``digest()`` that its own methods change, such as the
    errors of its last evaluation, count as they were at first.

    >>> import anyk
    >>> a, b = (anyk.problems.from_data(f"synthetic:rows=60,features=4,seed={seed}") for seed in (0, 1))
    >>> data_digest(a) == data_digest(a), data_digest(a) == data_digest(b)
    (True, False)
    """
    digest = abilities_of(problem).digest
    if digest is not None:
        return digest()
    arrays = _digests_by_array(problem)
    try:
        before = _KNOWN.setdefault(problem, arrays)
    except TypeError:  # it cannot be hashed, or not be referred to weakly
        before = arrays
    different = _different(before, arrays)
    if different and not different <= _changed_by_itself(problem):
        before = _KNOWN[problem] = arrays
    return digest_of(np.array(list(before.items()))) if before else None


def _digests_by_array(problem: Problem) -> ByArray:
    return {path: str(digest_of(array)) for path, array in _arrays(problem, "")}


def _different(before: ByArray, after: ByArray) -> set[str]:
    """Return the paths of arrays that are not the same, or that only one of the two has."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _changed_by_itself(problem: Problem) -> set[str]:
    """Return the paths of the arrays that a copy's methods change; none if there can be no copy."""
    try:
        copy: Problem = copied(problem)
        w = (initial_of(copy) + 1.0).astype(problem.dtype)  # most likely not that of the last evaluation
    except Exception:  # a user's class may refuse to be copied
        return set()
    before = _digests_by_array(copy)
    for compute in (copy.loss, copy.metrics):
        with contextlib.suppress(Exception):
            compute(w)
    with contextlib.suppress(Exception):
        sketch_of_problem(copy, ROWS)
    return _different(before, _digests_by_array(copy))


def digest_of(*parts: Any) -> str | None:
    """Return a BLAKE2 digest of all arrays in some parts, with types, shapes and places; None if there is no array.

    Arrays (of NumPy, SciPy, PyTorch or JAX) are found in lists, tuples and dictionaries, and in other objects among the
    attributes or in a tuple there. Whatever else objects contain may change while they are used.
    """
    digest, path = hashlib.blake2b(digest_size=16), None
    for path, array in _arrays(parts, ""):
        digest.update(f"{path}{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return None if path is None else digest.hexdigest()


def _arrays(value: object, path: str) -> Iterator[tuple[str, Array]]:
    array = _array(value)
    if array is not None:
        yield path, array
    elif is_sparse(value):
        for name in ("data", "indices", "indptr"):
            yield f"{path}/{name}", getattr(value, name)
    elif isinstance(value, Mapping):
        for key, element in value.items():
            yield from _arrays(element, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for number, element in enumerate(value):
            yield from _arrays(element, f"{path}/{number}")
    else:
        for name, element in sorted(getattr(value, "__dict__", {}).items()):
            if _array(element) is not None or is_sparse(element) or isinstance(element, tuple):
                yield from _arrays(element, f"{path}/{name}")


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
