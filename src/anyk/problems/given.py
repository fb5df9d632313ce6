"""The user's arrays of which a problem has made copies, so that a later change of them does not reach it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anyk.base.arrays import Array
from anyk.base.errors import BadInput
from anyk.problems.surroundings import Variables, differences, variables_of

_NAMED = 3  # variables that a sentence names at most
_ELEMENTS = 1_000  # elements of a tuple, list or dictionary that are looked at
ANEW = "make the problem anew after the change"


class GivenArrays:
    """Arrays, tensors and tables that a problem has converted, with digests of what they were.

    They are not kept alive: what nobody else has cannot be changed. A pickled copy has none.
    """

    def __init__(self) -> None:
        self._references: list[tuple[str, Any]] = []
        self._before: Variables = {}

    def __reduce__(self) -> tuple[type[GivenArrays], tuple[()]]:
        return GivenArrays, ()

    def add(self, name: str, value: Any, converted: Sequence[Array]) -> None:
        """Note the arrays in ``value`` that do not share the memory of those that the problem has."""
        for path, array in _arrays_in(name, value):
            if any(np.may_share_memory(_memory(array), copied) for copied in converted):
                continue
            try:
                self._references.append((path, weakref.ref(array)))
            except TypeError:
                continue
            self._before |= variables_of({path: array})

    def check(self) -> None:
        """Raise :class:`~anyk.BadInput` if an array has changed since it was added."""
        alive = {path: array for path, reference in self._references if (array := reference()) is not None}
        different = list(differences(self._before, variables_of(alive)))
        if different:
            raise BadInput(
                f"the problem has converted the data, and trains what it made of them, but "
                f"{named(different, 'the problem was made')}; {ANEW}"
            )


def named(different: Sequence[tuple[str, str, str]], since: str) -> str:
    """Return a sentence's part on the variables that have changed: their names, earlier values and present values."""
    some = [f"{name} was {before} when {since} and is {now} now" for name, before, now in different[:_NAMED]]
    more = f", and {len(different) - _NAMED} more variables changed" if len(different) > _NAMED else ""
    return f"{', '.join(some)}{more}"


def _arrays_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays, tensors and tables in tuples, lists, dictionaries and tensor data sets, with their names."""
    if isinstance(value, Mapping):
        for key in list(value)[:_ELEMENTS]:
            yield from _arrays_in(f"{name}[{key!r}]", value[key])
    elif isinstance(value, (tuple, list)):
        for index, element in enumerate(value[:_ELEMENTS]):
            yield from _arrays_in(f"{name}[{index}]", element)
    elif isinstance(tensors := getattr(value, "tensors", None), tuple):
        yield from _arrays_in(name, tensors)
    elif hasattr(value, "__array__") and type(value).__module__.partition(".")[0] not in ("jax", "jaxlib"):
        yield name, value  # arrays of JAX do not change


def _memory(array: Any) -> Array:
    """Return an array over the memory of an array or tensor, or a copy where there is none."""
    try:
        return np.asarray(array.detach() if hasattr(array, "detach") else array)
    except (TypeError, RuntimeError):  # a tensor on a device, or in bfloat16
        return np.empty(0)
