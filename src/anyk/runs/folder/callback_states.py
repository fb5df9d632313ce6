"""The states of callbacks with a ``state_dict``, which checkpoints store as plain data and arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import BadInput

KEY = "callbacks"  # in checkpoints


def save(callbacks: Sequence[Any]) -> tuple[dict[str, Any], Vectors]:
    """Return the states, by callback, as plain data that refers to arrays by name, and the arrays by name.

    Raises :class:`~anyk.BadInput` for states that are not made of numbers, texts, lists, dicts and arrays.
    """
    arrays: Vectors = {}
    return {
        name: _to_plain(callback.state_dict(), f"{KEY}/{name}", arrays) for name, callback in _stateful(callbacks)
    }, arrays


def restore(callbacks: Sequence[Any], states: Mapping[str, Any], arrays: Mapping[str, Vector]) -> None:
    """Restore the states that :func:`save` returned; callbacks without a saved state are unchanged."""
    for name, callback in _stateful(callbacks):
        if name in states:
            callback.load_state_dict(_from_plain(states[name], arrays))


def _stateful(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the callbacks with a state, each with the name of its class and its number within the class."""
    count: dict[str, int] = {}
    for callback in callbacks:
        if callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None)):
            kind = type(callback).__name__
            count[kind] = count.get(kind, -1) + 1
            yield f"{kind} {count[kind]}", callback


def _to_plain(value: Any, path: str, arrays: Vectors) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        path, tensor = _unused(path, arrays), value.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # which NumPy does not have
            arrays[path] = tensor.view(torch.int16).numpy()
            return {"bfloat16": path, "shape": list(value.shape)}
        arrays[path] = tensor.numpy()
        return {"tensor": path, "shape": list(value.shape)}
    match value:
        case Mapping():  # keys need not be texts
            for key in value:
                if not (key is None or isinstance(key, (bool, int, float, str))):
                    raise BadInput(
                        f"the state of a callback has the key {key!r} at {path}, which cannot be saved; keys are texts "
                        "or numbers"
                    )
            return {"dict": [[key, _to_plain(element, f"{path}/{key}", arrays)] for key, element in value.items()]}
        case list() | tuple():
            parts = [_to_plain(element, f"{path}/{number}", arrays) for number, element in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": parts}
        case np.ndarray() | np.generic():
            path = _unused(path, arrays)
            arrays[path] = np.asarray(value)
            return {"array": path, "shape": list(value.shape)}
        case None | bool() | int() | float() | str():
            return value
    raise BadInput(f"the state of a callback has a {type(value).__name__} at {path}, which cannot be saved")


def _unused(path: str, arrays: Vectors) -> str:
    """Return a name for another array: keys such as 1 and "1", or "a/b", can have the path of another."""
    name, number = path, 1
    while name in arrays:
        number += 1
        name = f"{path} ({number})"
    return name


def _from_plain(plain: Any, arrays: Mapping[str, Vector]) -> Any:
    if not isinstance(plain, dict):
        return plain
    kind = next(iter(plain))
    if kind == "dict":
        return {key: _from_plain(element, arrays) for key, element in plain["dict"]}
    if kind in ("list", "tuple"):
        parts = [_from_plain(element, arrays) for element in plain[kind]]
        return tuple(parts) if kind == "tuple" else parts
    array = np.array(arrays[plain[kind]]).reshape(plain["shape"])
    if kind == "array":
        return array
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
