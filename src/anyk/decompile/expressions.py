"""Expressions as text with a precedence, and how ruff would break a line that is too long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

WIDTH = 88  # ruff's own, where no project says otherwise

# how tightly an expression holds together; an operand that holds less tightly than its place asks for gets brackets
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
_ASSOCIATIVE = {"|", "^", "&", "+", "*"}
_SIMPLE = re.compile(r"-?[\w.]+")  # an operand of ** around which ruff leaves no spaces


@dataclass(frozen=True, slots=True)
class Expr:
    """A piece of Python: its text, how tightly it holds together, and the shape of what it is at run time.

    ``shape`` may be smaller than that of the value it stands for, where NumPy's broadcasting makes up for it. A
    ``free`` expression costs nothing and may be written more than once. ``items`` are what a long line is broken at:
    what stands between ``head`` and ``tail``. ``weak`` marks a bare Python number.
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
        """The text for a place that asks for this level."""
        return self.text if self.level >= level else f"({self.text})"


def _deeper(operands: Sequence[Expr]) -> int:
    return 1 + max((operand.depth for operand in operands), default=-1)


def name(text: str, shape: tuple[int, ...] = ()) -> Expr:
    """A variable."""
    return Expr(text, ATOM, shape, free=True)


def raw(text: str) -> Expr:
    """A parameter, written as it stands."""
    return Expr(text, free=True)


def call(function: str, *arguments: Expr | str, shape: Any = (), **keywords: Expr | str) -> Expr:
    """A call of a function."""
    items = tuple(one if isinstance(one, Expr) else raw(one) for one in arguments)
    items += tuple(
        Expr(f"{key}={value}", TUPLE, items=value.items, head=f"{key}={value.head}", tail=value.tail, depth=value.depth)
        if isinstance(value, Expr)
        else raw(f"{key}={value}")
        for key, value in keywords.items()
    )
    text = f"{function}({', '.join(one.text for one in items)})"
    return Expr(text, CALL, shape, _deeper(items), head=f"{function}(", items=items, tail=")")


def method(owner: Expr, function: str, *arguments: str, shape: tuple[int, ...] = (), **keywords: str) -> Expr:
    """A call of a method."""
    made = call(f"{_owner(owner)}.{function}", *arguments, shape=shape, **keywords)
    return Expr(made.text, CALL, shape, owner.depth + 1)


def attribute(owner: Expr, what: str, shape: tuple[int, ...] = ()) -> Expr:
    """An attribute; of a variable it is free."""
    made = Expr(f"{_owner(owner)}.{what}", CALL, shape, owner.depth, free=owner.free)
    return _still_breakable(made, owner, f".{what}")


def _owner(owner: Expr) -> str:
    return f"({owner.text})" if owner.weak else owner.at(CALL)


def index(owner: Expr, what: str, shape: tuple[int, ...] = ()) -> Expr:
    """What stands in square brackets; of a variable it is free."""
    made = Expr(f"{_owner(owner)}[{what}]", CALL, shape, owner.depth, free=owner.free)
    return _still_breakable(made, owner, f"[{what}]")


def _still_breakable(made: Expr, owner: Expr, suffix: str) -> Expr:
    """What follows a call leaves it the place to break a long line at."""
    if not owner.items or owner.level < CALL:
        return made
    return replace(made, head=owner.head, items=owner.items, tail=owner.tail + suffix)


def binary(operator: str, left: Expr, right: Expr, shape: tuple[int, ...] = ()) -> Expr:
    """Two operands and what stands between."""
    depth = _deeper((left, right))
    if operator == "**":
        base, power = left.at(CALL), right.at(UNARY)
        if left.weak and left.text.startswith("-"):
            base = f"({left.text})"
        gap = "" if _SIMPLE.fullmatch(base) and _SIMPLE.fullmatch(power) else " "
        return Expr(f"{base}{gap}**{gap}{power}", POWER, shape, depth)
    level = _LEVELS[operator]
    # comparisons chain in Python, which is not meant; a + (b + c) is another floating-point sum than a + b + c
    before = left.at(level + 1 if level == COMPARE else level)
    return Expr(f"{before} {operator} {right.at(level + 1)}", level, shape, depth)


def unary(operator: str, operand: Expr, shape: tuple[int, ...] = ()) -> Expr:
    """An operator before its operand."""
    text = operand.at(UNARY)
    if operand.text.startswith(operator):
        text = f"({operand.text})"
    return Expr(f"{operator}{text}", UNARY, shape, operand.depth + 1)


def sequence(items: Sequence[Expr], brackets: str = "()") -> Expr:
    """A tuple or a list."""
    body = ", ".join(one.text for one in items)
    if brackets == "()" and len(items) == 1:
        body += ","
    text = f"{brackets[0]}{body}{brackets[1]}"
    return Expr(text, ATOM, depth=_deeper(items), head=brackets[0], items=tuple(items), tail=brackets[1])


def side_by_side(items: Sequence[Expr]) -> Expr:
    """Several things with commas between; within brackets if the line is long."""
    if len(items) == 1:
        return items[0]
    made = sequence(items)
    return replace(made, text=", ".join(one.text for one in items), level=TUPLE)


def mapping(items: Sequence[tuple[str, Expr]]) -> Expr:
    """A dictionary."""
    pairs = tuple(
        Expr(f"{key}: {one.text}", TUPLE, head=f"{key}: {one.head}", items=one.items, tail=one.tail)
        for key, one in items
    )
    return Expr("{" + ", ".join(one.text for one in pairs) + "}", ATOM, head="{", items=pairs, tail="}")


def literal(value: object) -> Expr:
    """A nested tuple or list of plain things, as Python writes it (with double quotes)."""
    if isinstance(value, tuple | list):
        return sequence([literal(one) for one in value], "()" if isinstance(value, tuple) else "[]")
    if isinstance(value, str):
        return raw('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return raw(repr(value))


def layout(before: str, expr: Expr, indent: int, after: str = "", ends: str = "") -> list[str]:
    """The lines of ``before + expr + after``, broken as ruff breaks them; ``ends`` follows a line's code (a comma).

    What is too long goes on a line of its own between its brackets; if it is too long for that too, or a literal, on
    one line an item.
    """
    margin = " " * indent
    line = f"{margin}{before}{expr.text}{after}{ends}"
    if len(line) <= WIDTH or not expr.items:
        return [line]
    first, last = f"{margin}{before}{expr.head}", f"{margin}{expr.tail}{after}{ends}"
    inner = " " * (indent + 4) + ", ".join(one.text for one in expr.items)
    # a literal is broken at every comma at once, arguments only where they do not fit
    if expr.head[-1:] == "(" and expr.head[-2:-1] not in ("", " ", "=", "(") and len(inner) <= WIDTH:
        return [first, inner, last]
    lines = [first]
    for one in expr.items:
        lines += layout("", one, indent + 4, ends=",")
    return [*lines, last]
