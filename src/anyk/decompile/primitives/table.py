"""The table of primitives: how each is written for JAX and for NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyk.decompile import expressions as ex
from anyk.decompile.equations import Equation
from anyk.decompile.expressions import Expr
from anyk.decompile.writing import Writer

# a rule gives the expression of an equation's output (of a tuple, if there are several), or writes statements itself
Rule = Callable[[Writer, Equation], Expr | None]

table: dict[str, dict[str, Rule]] = {}


def row(names: str, *, jax: Rule | None = None, numpy: Rule | None = None) -> None:
    """Add primitives, by names with spaces between, to the table."""
    for name in names.split():
        table[name] = {target: one for target, one in (("jax", jax), ("numpy", numpy)) if one is not None}


def rows(names: str) -> Callable[[Rule], Rule]:
    """Add primitives with one rule for both targets."""

    def add(rule: Rule) -> Rule:
        row(names, jax=rule, numpy=rule)
        return rule

    return add


def broadcast(exprs: Sequence[Expr]) -> tuple[int, ...]:
    """The shape that operands have together."""
    return tuple(np.broadcast_shapes(*(expr.shape for expr in exprs)))


def extreme(dtype: str, largest: bool, xp: str) -> str:
    """What the search for the largest, or the smallest, begins from: below, or above, every number of the type."""
    if dtype == "bool":
        return str(not largest)
    if dtype.startswith(("int", "uint")):
        return f"{xp}.iinfo({xp}.{dtype}).{'min' if largest else 'max'}"
    return f"-{xp}.inf" if largest else f"{xp}.inf"


def elementwise(function: str) -> Rule:
    """A function of operands that broadcast."""

    def rule(w: Writer, eq: Equation) -> Expr:
        exprs = w.operands(eq)
        return ex.call(function, *exprs, shape=broadcast(exprs))

    return rule


def copied(function: str) -> Rule:
    """A numerical function, copied into the text, of operands that broadcast."""

    def rule(w: Writer, eq: Equation) -> Expr:
        exprs = [expr if not expr.weak else w.typed(a) for expr, a in zip(w.operands(eq), eq.inputs, strict=True)]
        return ex.call(w.copy(function), *exprs, shape=broadcast(exprs))

    return rule


def infix(operator: str) -> Rule:
    """An operator between two operands that broadcast."""

    def rule(w: Writer, eq: Equation) -> Expr:
        left, right = w.operands(eq)
        return ex.binary(operator, left, right, broadcast((left, right)))

    return rule


def lax(function: str, *parameters: str) -> Rule:
    """A function of ``lax`` on arrays, with parameters of the equation as keywords."""

    def rule(w: Writer, eq: Equation) -> Expr:
        keywords = {name: ex.literal(plain(eq.params[name])) for name in parameters}
        return ex.call(f"lax.{function}", *(w.typed(a) for a in eq.inputs), shape=eq.shape, **keywords)

    return rule


def lax_elementwise(function: str) -> Rule:
    """A function of ``lax`` whose operands must agree in shape, unless there is one only."""

    def rule(w: Writer, eq: Equation) -> Expr:
        exprs = w.operands(eq)
        if len(exprs) > 1:
            exprs = [w.typed(a) for a in eq.inputs]
        return ex.call(f"lax.{function}", *exprs, shape=broadcast(exprs))

    return rule


def plain(value: Any) -> Any:
    """A parameter in terms of Python's own types."""
    if isinstance(value, tuple | list):
        return tuple(plain(one) for one in value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    return value


def axes(values: Sequence[int]) -> Expr:
    """An axis, or several."""
    return ex.literal(int(values[0]) if len(values) == 1 else plain(tuple(values)))
