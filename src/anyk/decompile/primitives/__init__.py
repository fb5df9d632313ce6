"""How each primitive is written: one table with two columns, for JAX and for NumPy, a file for each family."""

from __future__ import annotations

from anyk.decompile.equations import Equation
from anyk.decompile.naming import Origins
from anyk.decompile.primitives import (
    control,
    convolution,
    elementwise,
    indexing,
    linear_algebra,
    random,
    reductions,
    shapes,
)
from anyk.decompile.primitives.table import Rule, table
from anyk.errors import BadInput


def rule(equation: Equation, target: str, origins: Origins) -> Rule:
    """How an equation is written for a target; raises BadInput, with the user's line, for what cannot be."""
    known = table.get(equation.primitive, {})
    if target in known:
        return known[target]
    where = origins.describe(equation.source)
    if known:
        way = "decompile with target='jax', or write that line with other functions"
    else:
        way = "write that line with other functions, or decompile the parts before and after it"
    form = {"jax": "JAX", "numpy": "NumPy"}[target]
    raise BadInput(f"primitive '{equation.primitive}', from {where}, cannot be written for {form}; {way}")


__all__ = [
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "linear_algebra",
    "random",
    "reductions",
    "rule",
    "shapes",
    "table",
]
