"""A program as equations between values, read from a jaxpr and ready to be written as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(eq=False, slots=True)
class Value:
    """What a variable of the jaxpr stands for."""

    shape: tuple[int, ...]
    dtype: str
    called: str = ""  # what the user calls it
    uses: int = 0
    array: np.ndarray[Any, Any] | None = None  # a constant that is an array
    maker: Equation | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A number."""

    value: Any  # a NumPy scalar
    dtype: str
    shape: tuple[int, ...] = ()


Atom = Value | Constant


@dataclass(eq=False, slots=True)
class Block:
    """What a loop or a branch does: its own inputs, and what it leaves."""

    inputs: list[Value]
    equations: list[Equation]
    outputs: list[Atom]
    captured: list[Value] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Function:
    """A nested function, called from one place or several."""

    name: str
    block: Block
    decorator: str = ""


@dataclass(eq=False, slots=True)
class Equation:
    """One operation: its primitive, parameters, what goes in and comes out, and where the user wrote it."""

    primitive: str
    inputs: list[Atom]
    outputs: list[Value]
    params: dict[str, Any]
    source: Any = None  # JAX's source_info
    backward: bool = False  # of a transposed function: it makes a cotangent
    blocks: list[Block] = field(default_factory=list)
    function: Function | None = None
    captured: list[Value] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first output."""
        return self.outputs[0].shape

    @property
    def dtype(self) -> str:
        """Of the first output."""
        return self.outputs[0].dtype
