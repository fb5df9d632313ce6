"""The table of primitives, with a rule for JAX and a rule for NumPy, and rules that many primitives share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from readjax import expressions as ex
from readjax.equations import Equation
from readjax.expressions import Expr
from readjax.writing import Rule, Writer

table: dict[str, dict[str, Rule]] = {}


def row(names: str, *, jax: Rule | None = None, numpy: Rule | None = None) -> None:
    """Add primitives, whose names are separated by spaces, to the table."""
    for name in names.split():
        table[name] = {target: rule for target, rule in (("jax", jax), ("numpy", numpy)) if rule is not None}


def rows(names: str) -> Callable[[Rule], Rule]:
    """Add primitives that have the same rule for both targets."""

    def add(rule: Rule) -> Rule:
        row(names, jax=rule, numpy=rule)
        return rule

    return add


def broadcast(exprs: Sequence[Expr]) -> tuple[int, ...]:
    """Return the shape to which operands are broadcast."""
    return tuple(np.broadcast_shapes(*(expr.shape for expr in exprs)))


def extreme(dtype: str, largest: bool, xp: str) -> str:
    """Return the start of a search for the largest (smallest) number: no number of the type is below (above) it."""
    if dtype == "bool":
        return str(not largest)
    if dtype.startswith(("int", "uint")):
        return f"{xp}.iinfo({xp}.{dtype}).{'min' if largest else 'max'}"
    return f"-{xp}.inf" if largest else f"{xp}.inf"


def elementwise(function: str) -> Rule:
    """Return the rule for a function of operands that are broadcast."""

    def rule(w: Writer, eq: Equation) -> Expr:
        exprs = w.operands(eq)
        return ex.call(function, *exprs, shape=broadcast(exprs))

    return rule


def copied(function: str) -> Rule:
    """Return the rule for a copied numerical function of operands that are broadcast."""

    def rule(w: Writer, eq: Equation) -> Expr:
        exprs = [expr if not expr.weak else w.typed(a) for expr, a in zip(w.operands(eq), eq.inputs, strict=True)]
        return ex.call(w.copy(function), *exprs, shape=broadcast(exprs))

    return rule


def infix(operator: str) -> Rule:
    """Return the rule for an operator between two operands that are broadcast."""

    def rule(w: Writer, eq: Equation) -> Expr:
        a, b = w.operands(eq)
        return ex.binary(operator, a, b, broadcast((a, b)))

    return rule


def lax(function: str, *parameters: str) -> Rule:
    """Return the rule for a function of ``lax`` on arrays, with parameters that are not None or False as keywords."""

    def rule(w: Writer, eq: Equation) -> Expr:
        keywords = {name: parameter(eq, name) for name in parameters if eq.params.get(name) not in (None, False)}
        return w.call(eq, f"lax.{function}", **keywords)

    return rule


def copied_function(function: str, *parameters: str) -> Rule:
    """Return the rule for a copied numerical function of arrays, with parameters of the equation after these."""
    return lambda w, eq: w.call(eq, w.copy(function), *(parameter(eq, name) for name in parameters))


def lax_elementwise(function: str) -> Rule:
    """Return the rule for a function of ``lax`` whose operands, if there are several, must agree in shape."""

    def rule(w: Writer, eq: Equation) -> Expr:
        exprs = w.operands(eq)
        if len(exprs) > 1:
            exprs = w.arguments(eq)
        return ex.call(f"lax.{function}", *exprs, shape=broadcast(exprs))

    return rule


def unchanged(w: Writer, eq: Equation) -> Expr:
    """Return the first operand."""
    return w.typed(eq.inputs[0])


def plain(value: Any) -> Any:
    """Convert a parameter to Python's own types."""
    match value:
        case tuple() | list():
            return tuple(plain(item) for item in value)
        case bool() | np.bool_():
            return bool(value)
        case int() | np.integer():
            return int(value)
    return value


def plain_literal(value: Any) -> Expr:
    """Return the text of a parameter's value."""
    return ex.literal(plain(value))


def parameter(eq: Equation, name: str) -> Expr:
    """Return the text of an equation's parameter."""
    return plain_literal(eq.params[name])


def bundle(exprs: Sequence[Expr]) -> Expr:
    """Return a single expression, or a tuple of several."""
    return exprs[0] if len(exprs) == 1 else ex.sequence(exprs)


def axes(values: Sequence[int]) -> Expr:
    """Return the text of one or several axes."""
    return ex.literal(int(values[0]) if len(values) == 1 else plain(tuple(values)))
