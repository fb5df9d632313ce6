"""Digests of a problem's data, by which a run that continues notices other data."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from anyk.base.arrays import Array
from anyk.problems.base import Problem, abilities_of
from anyk.problems.separate_copy import copied
from anyk.problems.watch import sketch_of_problem
from anyk.tables import is_sparse

_ROWS = 8  # samples whose gradient is computed to see which arrays a problem itself changes
ByArray = dict[str, str]  # the digests of the arrays among an object's attributes, by path
_KNOWN: WeakKeyDictionary[Any, tuple[str | None, ByArray]] = WeakKeyDictionary()


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
    now = digest_of(problem)
    try:
        before, arrays = _KNOWN.setdefault(problem, (now, {}))
        if not arrays:
            arrays.update(_digests_by_array(problem))
    except TypeError:  # it cannot be hashed, or not be referred to weakly
        return now
    if before == now:
        return now
    present = _digests_by_array(problem)
    different = {path for path in arrays.keys() | present.keys() if arrays.get(path) != present.get(path)}
    if different <= _changed_by_itself(problem):
        return before
    _KNOWN[problem] = now, present
    return now


def _digests_by_array(problem: Problem) -> ByArray:
    return {path: str(digest_of(array)) for path, array in _arrays(problem, "")}


def _changed_by_itself(problem: Problem) -> set[str]:
    """Return the paths of the arrays that a copy's methods change."""
    copy: Problem = copied(problem)
    before = _digests_by_array(copy)
    w = (copy.initial() + 1.0).astype(problem.dtype)  # most likely not that of the last evaluation
    for compute in (copy.loss, copy.metrics):
        with contextlib.suppress(Exception):
            compute(w)
    with contextlib.suppress(Exception):
        sketch_of_problem(copy, _ROWS)
    after = _digests_by_array(copy)
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


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
