"""Names of variables: as in the user's source if it has one, otherwise after the operation.

An equation knows its expression in the user's files. If the expression is the complete right side of an assignment, its
value has the assignment's name. An equation of a backward pass computes the cotangent of a value that the corresponding
forward equation reads; if exactly one name there has the same shape, say ``w``, the cotangent is ``d_w``.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import linecache
import re
from collections.abc import Iterable
from typing import Any

from readjax.equations import Equation, Variable
from readjax.jaxpr_reader import is_jax_file

_RESERVED = {*keyword.kwlist, *dir(builtins), "np", "jnp", "lax", "jax", "partial", "special", "linalg", "base64", "_"}

# the names of values for which the user has none
_NOUNS = {
    "dot_general": "product",
    "conv_general_dilated": "convolved",
    "reduce_sum": "total",
    "reduce_max": "largest",
    "reduce_min": "smallest",
    "reduce_prod": "product",
    "argmax": "place",
    "argmin": "place",
    "exp": "exponential",
    "log": "logarithm",
    "log1p": "logarithm",
    "tanh": "activation",
    "logistic": "activation",
    "max": "larger",
    "min": "smaller",
    "select_n": "selected",
    "gather": "gathered",
    "scatter": "updated",
    "scatter-add": "scattered",
    "sort": "ordered",
    "iota": "count",
    "mul": "scaled",
    "add": "total",
    "add_any": "total",
    "sub": "difference",
    "div": "ratio",
    "neg": "negative",
    "eq": "equal",
    "ne": "unequal",
    "lt": "below",
    "le": "below",
    "gt": "above",
    "ge": "above",
    "and": "both",
    "or": "either",
    "not": "opposite",
    "sqrt": "root",
    "rsqrt": "scale",
    "integer_pow": "power",
    "pow": "power",
    "square": "squared",
    "reshape": "reshaped",
    "transpose": "transposed",
    "broadcast_in_dim": "expanded",
    "concatenate": "joined",
    "pad": "padded",
    "slice": "part",
    "dynamic_slice": "part",
    "dynamic_update_slice": "updated",
    "squeeze": "squeezed",
    "convert_element_type": "converted",
    "rev": "reversed_",
    "cumsum": "running",
    "cumprod": "running",
    "cummax": "running",
    "cummin": "running",
    "random_bits": "bits",
    "random_split": "keys",
    "random_fold_in": "key",
    "random_seed": "key",
    "random_wrap": "key",
    "while": "state",
    "scan": "state",
    "cond": "selected",
    "cholesky": "factor",
    "lu": "factor",
    "qr": "factor",
    "eigh": "eigen",
    "svd": "singular",
    "fft": "spectrum",
    "triangular_solve": "solution",
    "erf": "activation",
    "clamp": "clipped",
}
_SEVERAL = {
    "lu": ("lu", "pivots", "order"),
    "qr": ("q", "r", "order"),
    "eigh": ("vectors", "values"),
    "svd": ("singular", "u", "vh"),
    "top_k": ("largest", "places"),
    "eig": ("values", "left", "right"),
    "random_split": ("keys",),
    "threefry2x32": ("high", "low"),
}


class Names:
    """Gives every variable of a text its own name."""

    def __init__(self, taken: Iterable[str] = (), stems: Iterable[str] = ()) -> None:
        self._taken = {*_RESERVED, *taken}
        self._stems = set(stems)  # reserved for functions and constants, also with a number at the end
        self._counts: dict[str, int] = {}

    def take(self, wish: str) -> str:
        """Return a free name that resembles the wish, and reserve it."""
        wish = re.sub(r"\W+", "_", wish).strip("_")[:30].rstrip("_") or "value"
        if wish[0].isdigit():
            wish = f"v{wish}"
        if re.sub(r"_\d+$", "", wish) in self._stems:
            wish += "_value"
        name = wish
        while name in self._taken:
            self._counts[wish] = number = self._counts.get(wish, 1) + 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name


def _statements(file: str) -> dict[int, ast.stmt]:
    """Return the statements of a file by line."""
    statements: dict[int, ast.stmt] = {}
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return statements
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            statements |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node)
    return statements


Position = tuple[str, int, int, int, int]  # file, first line and column, last line and column


class Origins:
    """Finds the user's expression of an equation."""

    def __init__(self) -> None:
        self._files: dict[str, dict[int, ast.stmt]] = {}
        self._codes: dict[Any, list[Any]] = {}
        self._users: dict[str, bool] = {}
        self._reads: dict[ast.stmt, list[str]] = {}

    def positions(self, source: Any) -> list[Position]:
        """Return the position in each of the user's functions, innermost first."""
        traceback = getattr(source, "traceback", None)
        if traceback is None:
            return []
        positions = []
        for code, last in zip(*traceback.raw_frames(), strict=True):
            file = code.co_filename
            users = self._users.get(file)
            if users is None:
                users = not (is_jax_file(file) or "importlib" in file or file.startswith("<frozen"))
                self._users[file] = users
            if users:
                places = self._codes.get(code)
                if places is None:
                    places = self._codes[code] = list(code.co_positions())
                first, end, column, end_column = places[last // 2]
                positions.append((file, first or 0, column or 0, end or 0, end_column or 0))
                if len(positions) == 4:
                    break
        return positions

    def statement(self, position: Position) -> ast.stmt | None:
        """Return the statement at a position."""
        if position[0] not in self._files:
            self._files[position[0]] = _statements(position[0])
        return self._files[position[0]].get(position[1])

    def assigned(self, positions: list[Position]) -> list[str]:
        """Return the names to which an expression is assigned, if it is the complete right side."""
        for position in positions:
            statement = self.statement(position)
            value = getattr(statement, "value", None)
            if value is None or not _spans(position, value):
                return []
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                return _targets(statement.targets[0])
            if isinstance(statement, ast.AnnAssign):
                return _targets(statement.target)
            if not isinstance(statement, ast.Return):
                return []
        return []

    def read(self, positions: list[Position]) -> list[str]:
        """Return the names that the statement at the first position reads."""
        statement = self.statement(positions[0]) if positions else None
        if statement is None:
            return []
        names = self._reads.get(statement)
        if names is None:
            nodes = list(ast.walk(statement))
            names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            names += filter(str.isidentifier, texts)
            self._reads[statement] = names
        return names

    def describe(self, source: Any) -> str:
        """Return file, line and text for a message."""
        positions = self.positions(source)
        if not positions:
            return "an unknown place"
        file, line = positions[0][:2]
        text = linecache.getline(file, line).strip()
        return f"{file}:{line}" + (f" `{text}`" if text else "")


def _targets(target: ast.expr) -> list[str]:
    """Return the names in a target of an assignment; none unless it is a name or a tuple of names."""
    elements = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [element.id for element in elements if isinstance(element, ast.Name)]
    return names if len(names) == len(elements) else []


def _spans(position: Position, value: ast.expr) -> bool:
    return position[1:] == (value.lineno, value.col_offset, value.end_lineno, value.end_col_offset)


def name_values(equations: list[Equation], values_by_name: dict[str, list[Variable]], origins: Origins) -> None:
    """Give the values of a block's equations the user's names, and add them to ``values_by_name``."""
    runs: list[tuple[list[str], list[Equation]]] = []  # names, and the equations of one evaluation of an expression
    last_positions: list[Position] = []
    seen_codes: set[Any] = set()
    run_of: dict[Equation, int] = {}
    used_later: set[Variable] = set()
    for equation in equations:
        positions = [] if equation.backward else origins.positions(equation.source)
        if positions:
            code = tuple(equation.source.traceback.raw_frames()[1])
            if positions != last_positions or (code in seen_codes and id(equation.source) not in seen_codes):
                last_positions, seen_codes = positions, set()
                runs.append((origins.assigned(positions), []))
            seen_codes |= {id(equation.source), code}
            runs[-1][1].append(equation)
            run_of[equation] = len(runs) - 1
        if not equation.backward:
            for atom in [*equation.inputs, *equation.captured]:
                if isinstance(atom, Variable) and atom.maker in run_of and run_of[atom.maker] != run_of.get(equation):
                    used_later.add(atom)
    for names, members in runs:
        _name_run(names, members, used_later, values_by_name)
    for equation in equations:
        if equation.backward:
            _name_cotangent(equation, origins.positions(equation.source), values_by_name, origins)


def _name_run(
    names: list[str], members: list[Equation], used_later: set[Variable], values_by_name: dict[str, list[Variable]]
) -> None:
    """Name the last value that is used elsewhere; the equations after it belong to the derivative."""
    fits = [candidate for candidate in members if len(candidate.outputs) == len(names)]
    if not names or not fits:
        return
    equation = next(
        (candidate for candidate in reversed(fits) if any(value in used_later for value in candidate.outputs)), fits[-1]
    )
    if not any(value.called for value in equation.outputs):
        for value, called in zip(equation.outputs, names, strict=True):
            value.called = called
            values_by_name.setdefault(called, []).append(value)


def _name_cotangent(
    equation: Equation, positions: list[Position], values_by_name: dict[str, list[Variable]], origins: Origins
) -> None:
    if len(equation.outputs) != 1 or not positions:
        return
    value = equation.outputs[0]
    fits = {
        called
        for called in origins.read(positions)
        if any(
            other.shape == value.shape and other.dtype == value.dtype for other in values_by_name.get(called, [])[-3:]
        )
    }
    if len(fits) != 1 or not value.shape:
        return
    value.called = f"d_{fits.pop()}"
    for atom in equation.inputs:  # an input of the same statement was an intermediate result
        if isinstance(atom, Variable) and atom.called == value.called and atom.maker is not None:
            maker_positions = origins.positions(atom.maker.source)
            if maker_positions and origins.statement(maker_positions[0]) is origins.statement(positions[0]):
                atom.called = ""


def noun(equation: Equation, place: int) -> str:
    """Return the name of an output for which the user has none."""
    several = _SEVERAL.get(equation.primitive)
    if equation.function is not None:
        word = f"{equation.function.name}_result"
    elif several is not None and place < len(several):
        word = several[place]
    else:
        word = _NOUNS.get(equation.primitive, equation.primitive.replace("-", "_"))
    return f"d_{word}" if equation.backward else word
