"""Dataclasses as plain data for JSON and back, preserving every bit of every number, inf, nan and order."""

from __future__ import annotations

import typing
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
ByName = dict[str, Any]  # values of any type by name: attributes, arguments, or what is written as JSON


def derived(default: object = None) -> Any:
    """Return a field that is computed from the others: neither saved nor compared."""
    return field(default=default, init=False, repr=False, compare=False, metadata={"derived": True})


def part() -> Any:
    """Return a field for the state of the owner's attribute of the same name; None without one."""
    return field(default=None, metadata={"part": True})


def values_of(thing: object, *names: str) -> ByName:
    """Return some attributes by name, as for JSON or for a function whose arguments have the same names."""
    return {name: getattr(thing, name) for name in names}


def to_plain(state: object) -> Any:
    """Return a dataclass, or a value in one, as plain data, without its :func:`derived` fields.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Seen:
    ...     when: dict[int, float]
    >>> to_plain(Seen({3: float("inf")}))
    {'when': {'3': inf}}
    """
    match state:
        case set():
            return sorted(state)  # in an order that is independent of its history
        case dict():
            if not all(isinstance(key, str | int) for key in state):
                raise TypeError(f"keys of a state must be whole numbers or texts, got {next(iter(state))!r}")
            return {str(key): to_plain(value) for key, value in state.items()}
    if not is_dataclass(state):
        return msgspec.to_builtins(state, str_keys=True, enc_hook=_of_numpy)
    return {f.name: to_plain(getattr(state, f.name)) for f in fields(state) if not f.metadata.get("derived")}


def from_plain(kind: type[T], plain: Any, owner: Any = None) -> T:
    """Return the dataclass that :func:`to_plain` turned into ``plain``; ``owner``: the object whose state it is.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Seen:
    ...     when: dict[int, float]
    >>> from_plain(Seen, {"when": {"3": 0.5}})
    Seen(when={3: 0.5})
    """
    values = {}
    for f in fields(kind):
        if f.metadata.get("derived"):
            continue
        value, hint = plain[f.name], _hints(cast(Any, kind))[f.name]
        if f.metadata.get("part"):
            inner = getattr(owner, f.name)
            values[f.name] = None if inner is None else from_plain(inner.State, value, inner)
        elif is_dataclass(hint):
            values[f.name] = from_plain(cast(Any, hint), value)
        else:
            values[f.name] = msgspec.convert(value, hint, str_keys=True)
    return kind(**values)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _of_numpy(value: object) -> object:
    """Return an array or number of NumPy's as Python's own."""
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return value.tolist()
