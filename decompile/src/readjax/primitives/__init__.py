"""The rules by which primitives are written: a table with two columns, JAX and NumPy, and a file for each family."""

from __future__ import annotations

from readjax.equations import Equation
from readjax.errors import ReadJaxError
from readjax.primitives import (
    control,
    convolution,
    elementwise,
    indexing,
    linear_algebra,
    random,
    reductions,
    shapes,
)
from readjax.primitives.rules import table
from readjax.variable_names import Origins
from readjax.writing import Rule


def rule(equation: Equation, target: str, origins: Origins) -> Rule:
    """Return the rule for an equation and a target; raise ReadJaxError, with the user's line, if there is none."""
    rules = table.get(equation.primitive, {})
    if target in rules:
        return rules[target]
    where = origins.describe(equation.source)
    if rules:
        way = "decompile with target='jax', or write that line with other functions"
    else:
        way = "write that line with other functions, or decompile the parts before and after it"
    form = {"jax": "JAX", "numpy": "NumPy"}[target]
    raise ReadJaxError(f"primitive '{equation.primitive}', from {where}, cannot be written for {form}; {way}")


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
