"""Programs as equations between values, read from a jaxpr and ready to be written as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(eq=False, slots=True)
class Variable:
    """The value of a variable of the jaxpr."""

    shape: tuple[int, ...]
    dtype: str
    called: str = ""  # the user's name
    uses: int = 0
    array: np.ndarray[Any, Any] | None = None  # of a constant
    maker: Equation | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: Any  # a NumPy scalar
    dtype: str
    shape: tuple[int, ...] = ()


Atom = Variable | Number


@dataclass(eq=False, slots=True)
class Block:
    """The body of a loop, a branch or a function: its own inputs, its equations and its outputs."""

    inputs: list[Variable]
    equations: list[Equation]
    outputs: list[Atom]
    captured: list[Variable] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Function:
    """A nested function that is called from one or several places."""

    name: str
    block: Block
    decorator: str = ""


@dataclass(eq=False, slots=True)
class Equation:
    """An operation: its primitive, parameters, inputs, outputs, and place in the user's source."""

    primitive: str
    inputs: list[Atom]
    outputs: list[Variable]
    params: dict[str, Any]
    source: Any = None  # JAX's source_info
    backward: bool = False  # of a transposed function: its output is a cotangent
    blocks: list[Block] = field(default_factory=list)
    function: Function | None = None
    captured: list[Variable] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.outputs[0].shape

    @property
    def dtype(self) -> str:
        """The type of the first output."""
        return self.outputs[0].dtype
