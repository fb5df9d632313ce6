"""The text of numbers, arrays and types."""

from __future__ import annotations

from typing import Any

import numpy as np

SHORT_TYPES = {
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
NUMPY_TYPES = set(SHORT_TYPES) - {"bfloat16"}


def short(dtype: str, shape: tuple[int, ...]) -> str:
    """Return a type in JAX's notation: ``f32[64,10]``."""
    return f"{SHORT_TYPES.get(dtype, dtype)}[{','.join(map(str, shape))}]"


def type_name(dtype: str) -> str:
    """Return NumPy's name of a type."""
    return "bool_" if dtype == "bool" else dtype


def nested_numbers(array: np.ndarray[Any, Any], xp: str) -> Any:
    """Return an array as nested lists whose numbers are written by :func:`number`."""
    if array.ndim:
        return [nested_numbers(part, xp) for part in array]
    return _Number(number(array[()], xp))


class _Number:
    """A number with a given text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def number(value: Any, xp: str) -> str:
    """Return a number with the fewest digits that identify it among the numbers of its type."""
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
