"""Conversion of dataclasses to plain data for JSON and back; all bits of numbers, inf, nan and order are preserved."""

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
ByName = dict[str, Any]  # values of any type by name, such as attributes, arguments or the keys of a JSON object


def derived(default: object = None) -> Any:
    """Return a dataclass field that is computed from the others, and so neither saved nor compared."""
    return field(default=default, init=False, repr=False, compare=False, metadata={"derived": True})


def part() -> Any:
    """Return a dataclass field of a state that contains the state of a part of its owner.

    The part is the owner's attribute of the same name. If it is None, so is the field.
    """
    return field(default=None, metadata={"part": True})


def values_of(owner: object, *names: str) -> ByName:
    """Return some attributes by name, as for JSON or for a function whose arguments have the same names."""
    return {name: getattr(owner, name) for name in names}


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
            return sorted(state)  # the order of a set depends on its history
        case dict():
            if not all(isinstance(key, str | int) for key in state):
                raise TypeError(f"keys of a state must be integers or strings, got {next(iter(state))!r}")
            return {str(key): to_plain(value) for key, value in state.items()}
    if not is_dataclass(state):
        return msgspec.to_builtins(state, str_keys=True, enc_hook=_numpy_to_builtin)
    return {f.name: to_plain(getattr(state, f.name)) for f in fields(state) if not f.metadata.get("derived")}


def from_plain(kind: type[T], plain: Any, owner: Any = None) -> T:
    """Return the dataclass that :func:`to_plain` turned into ``plain``; ``owner``: see :func:`part`.

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
        value, hint = plain[f.name], _hints(kind)[f.name]
        if f.metadata.get("part"):
            component = getattr(owner, f.name)
            values[f.name] = None if component is None else from_plain(component.State, value, component)
        elif is_dataclass(hint):
            values[f.name] = from_plain(cast(Any, hint), value)
        else:
            values[f.name] = msgspec.convert(value, hint, str_keys=True)
    return kind(**values)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _numpy_to_builtin(value: object) -> object:
    """Return a NumPy array as a list, a NumPy number as a Python number."""
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return value.tolist()
