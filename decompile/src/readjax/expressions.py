"""Expressions as text with a precedence, and ruff's way of breaking long lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

WIDTH = 88  # ruff's default

# precedence; an operand of a lower level than its place requires is put in brackets
TUPLE, COMPARE, OR, XOR, AND, SHIFT, ADD, MULTIPLY, UNARY, POWER, CALL, ATOM = range(12)
_LEVELS = {
    "<": COMPARE,
    "<=": COMPARE,
    ">": COMPARE,
    ">=": COMPARE,
    "==": COMPARE,
    "!=": COMPARE,
    "|": OR,
    "^": XOR,
    "&": AND,
    "<<": SHIFT,
    ">>": SHIFT,
    "+": ADD,
    "-": ADD,
    "*": MULTIPLY,
    "/": MULTIPLY,
    "@": MULTIPLY,
}
_SIMPLE = re.compile(r"-?[\w.]+")  # an operand of ** around which ruff leaves no spaces


@dataclass(frozen=True, slots=True)
class Expr:
    """A piece of Python: its text, its precedence ``level``, and the shape of its result.

    ``shape`` may be smaller than the shape of the value it stands for, if NumPy broadcasts it. A ``free`` expression
    costs nothing and may be written more than once. ``items``, between ``head`` and ``tail``, are the parts at which a
    long line is broken. ``weak`` marks a bare Python number.
    """

    text: str
    level: int = ATOM
    shape: tuple[int, ...] = ()
    depth: int = 0
    free: bool = False
    weak: bool = False
    head: str = ""
    items: tuple[Expr, ...] = ()
    tail: str = ""

    def __str__(self) -> str:
        return self.text

    def at(self, level: int) -> str:
        """Return the text for a place that requires a level."""
        return self.text if self.level >= level else f"({self.text})"


def _deeper(operands: Sequence[Expr]) -> int:
    return 1 + max((operand.depth for operand in operands), default=-1)


def name(text: str, shape: tuple[int, ...] = ()) -> Expr:
    """Return a variable."""
    return Expr(text, ATOM, shape, free=True)


def raw(text: str) -> Expr:
    """Return an expression with a given text."""
    return Expr(text, free=True)


def call(function: str, *arguments: Expr | str, shape: Any = (), **keywords: Expr | str) -> Expr:
    """Return the call of a function."""
    items = tuple(argument if isinstance(argument, Expr) else raw(argument) for argument in arguments)
    items += tuple(
        Expr(f"{key}={value}", TUPLE, items=value.items, head=f"{key}={value.head}", tail=value.tail, depth=value.depth)
        if isinstance(value, Expr)
        else raw(f"{key}={value}")
        for key, value in keywords.items()
    )
    text = f"{function}({', '.join(item.text for item in items)})"
    return Expr(text, CALL, shape, _deeper(items), head=f"{function}(", items=items, tail=")")


def method(owner: Expr, function: str, *arguments: str, shape: tuple[int, ...] = (), **keywords: str) -> Expr:
    """Return the call of a method."""
    expr = call(f"{_owner(owner)}.{function}", *arguments, shape=shape, **keywords)
    return Expr(expr.text, CALL, shape, owner.depth + 1)


def attribute(owner: Expr, what: str, shape: tuple[int, ...] = ()) -> Expr:
    """Return an attribute, which is free if its owner is."""
    expr = Expr(f"{_owner(owner)}.{what}", CALL, shape, owner.depth, free=owner.free)
    return _still_breakable(expr, owner, f".{what}")


def _owner(owner: Expr) -> str:
    return f"({owner.text})" if owner.weak else owner.at(CALL)


def index(owner: Expr, what: str, shape: tuple[int, ...] = ()) -> Expr:
    """Return an element or slice, which is free if its owner is."""
    expr = Expr(f"{_owner(owner)}[{what}]", CALL, shape, owner.depth, free=owner.free)
    return _still_breakable(expr, owner, f"[{what}]")


def _still_breakable(expr: Expr, owner: Expr, suffix: str) -> Expr:
    """Return an expression that can be broken where its owner can."""
    if not owner.items or owner.level < CALL:
        return expr
    return replace(expr, head=owner.head, items=owner.items, tail=owner.tail + suffix)


def binary(operator: str, left: Expr, right: Expr, shape: tuple[int, ...] = ()) -> Expr:
    """Return an operator between two operands."""
    depth = _deeper((left, right))
    if operator == "**":
        base, power = left.at(CALL), right.at(UNARY)
        if left.weak and left.text.startswith("-"):
            base = f"({left.text})"
        gap = "" if _SIMPLE.fullmatch(base) and _SIMPLE.fullmatch(power) else " "
        return Expr(f"{base}{gap}**{gap}{power}", POWER, shape, depth)
    level = _LEVELS[operator]
    # Python would chain comparisons; a + (b + c) is another floating-point sum than a + b + c
    before = left.at(level + 1 if level == COMPARE else level)
    return Expr(f"{before} {operator} {right.at(level + 1)}", level, shape, depth)


def unary(operator: str, operand: Expr, shape: tuple[int, ...] = ()) -> Expr:
    """Return an operator before its operand."""
    text = operand.at(UNARY)
    if operand.text.startswith(operator):
        text = f"({operand.text})"
    return Expr(f"{operator}{text}", UNARY, shape, operand.depth + 1)


def sequence(items: Sequence[Expr], brackets: str = "()") -> Expr:
    """Return a tuple or a list."""
    body = ", ".join(item.text for item in items)
    if brackets == "()" and len(items) == 1:
        body += ","
    text = f"{brackets[0]}{body}{brackets[1]}"
    return Expr(text, ATOM, depth=_deeper(items), head=brackets[0], items=tuple(items), tail=brackets[1])


def side_by_side(items: Sequence[Expr]) -> Expr:
    """Return a single expression, or several with commas between, and brackets if the line is long."""
    if len(items) == 1:
        return items[0]
    expr = sequence(items)
    return replace(expr, text=", ".join(item.text for item in items), level=TUPLE)


def mapping(items: Sequence[tuple[str, Expr]]) -> Expr:
    """Return a dictionary."""
    pairs = tuple(
        Expr(f"{key}: {value.text}", TUPLE, head=f"{key}: {value.head}", items=value.items, tail=value.tail)
        for key, value in items
    )
    return Expr("{" + ", ".join(pair.text for pair in pairs) + "}", ATOM, head="{", items=pairs, tail="}")


def literal(value: object) -> Expr:
    """Return a nested tuple or list of numbers and texts, or one of these."""
    if isinstance(value, tuple | list):
        return sequence([literal(item) for item in value], "()" if isinstance(value, tuple) else "[]")
    if isinstance(value, str):
        return raw('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return raw(repr(value))


def layout(before: str, expr: Expr, indent: int, after: str = "", ends: str = "") -> list[str]:
    """Return the lines of ``before + expr + after + ends``, broken as ruff breaks them.

    The items of a long expression go on a line of their own between the brackets; if that is too long as well, or the
    expression is a literal, each item goes on its own line.
    """
    margin = " " * indent
    line = f"{margin}{before}{expr.text}{after}{ends}"
    if len(line) <= WIDTH or not expr.items:
        return [line]
    first, last = f"{margin}{before}{expr.head}", f"{margin}{expr.tail}{after}{ends}"
    inner = " " * (indent + 4) + ", ".join(item.text for item in expr.items)
    # arguments share a line if they fit, the items of a literal never do
    if expr.head[-1:] == "(" and expr.head[-2:-1] not in ("", " ", "=", "(") and len(inner) <= WIDTH:
        return [first, inner, last]
    lines = [first]
    for item in expr.items:
        lines += layout("", item, indent + 4, ends=",")
    return [*lines, last]
