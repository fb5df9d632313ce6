"""Numbers, arrays and types as they are written."""

from __future__ import annotations

from typing import Any

import numpy as np

_SHORT = {
    "bool": "bool",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}
NUMPY_TYPES = set(_SHORT) - {"bfloat16"}


def short(dtype: str, shape: tuple[int, ...]) -> str:
    """As JAX writes types: ``f32[64,10]``."""
    return f"{_SHORT.get(dtype, dtype)}[{','.join(map(str, shape))}]"


def type_name(dtype: str) -> str:
    """How NumPy calls a type."""
    return "bool_" if dtype == "bool" else dtype


def nested_numbers(array: np.ndarray[Any, Any], xp: str) -> Any:
    """An array as lists, whose numbers are written by :func:`number`."""
    if array.ndim:
        return [nested_numbers(one, xp) for one in array]
    return _Number(number(array[()], xp))


class _Number:
    """A number as it is to be written."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def number(value: Any, xp: str) -> str:
    """A number in as few digits as say which one of its type it is."""
    kind = getattr(value, "dtype", np.dtype(type(value))).kind
    if kind == "b":
        return str(bool(value))
    if kind in "iu":
        return str(int(value))
    if kind == "c":
        return f"complex({number(value.real, xp)}, {number(value.imag, xp)})"
    as_float = float(value)
    if np.isnan(as_float):
        return f"{xp}.nan"
    if np.isinf(as_float):
        return f"{'-' if as_float < 0 else ''}{xp}.inf"
    text = str(value).replace("e+", "e")
    return text if any(mark in text for mark in ".en") else f"{text}.0"
