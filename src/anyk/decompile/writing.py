"""From equations to text: statements, folded where a value is used once, in functions, in a module."""

from __future__ import annotations

import base64
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from anyk.decompile import expressions as ex
from anyk.decompile import numerics
from anyk.decompile.equations import Atom, Block, Constant, Equation, Function, Value
from anyk.decompile.expressions import Expr
from anyk.decompile.literals import NUMPY_TYPES, nested_numbers, number, short, type_name
from anyk.decompile.naming import Names, Origins, noun, wishes
from anyk.decompile.reading import Reader
from anyk.decompile.simplifying import prune
from anyk.errors import BadInput

FOLDED_DEPTH = 4  # operations in one expression, one within the other
FOLDED_WIDTH = 56  # characters of an expression that is still folded into another
_LARGEST = 1_000_000  # numbers of a constant that is written into the text


class Module:
    """The text as a whole: imports, numerical functions that are copied in, constants, functions."""

    def __init__(self, target: str, reader: Reader, origins: Origins) -> None:
        self.target = target
        self.xp = "np" if target == "numpy" else "jnp"
        self.origins = origins
        self.names = Names(_copied())
        # what variables are not called: functions and constants have these names
        self.stems = {_stem(function) for function in reader.functions.values()} | {"CONSTANT", "primitives"}
        self.imports: set[str] = set()
        self.copied: set[str] = set()
        self.constants: dict[Value, tuple[str, list[str]]] = {}
        self.functions: dict[tuple[str, ...], str] = {}
        self.called: dict[Function, str] = {}
        self.lines: list[str] = []

    def constant(self, value: Value) -> Expr:
        """A constant array, defined once before all functions."""
        if value not in self.constants:
            array = value.array
            assert array is not None
            if array.size > _LARGEST:
                raise BadInput(
                    f"the function holds a constant array {short(value.dtype, array.shape)} of {array.size:,} numbers; "
                    f"up to {_LARGEST:,} are written into the source: pass it as an argument"
                )
            self.check_type(value.dtype)
            name = self.names.take("CONSTANT")
            self.constants[value] = (name, self._definition(name, value, array))
        return ex.name(self.constants[value][0], value.shape)

    def _definition(self, name: str, value: Value, array: np.ndarray[Any, Any]) -> list[str]:
        dtype = "uint32" if value.dtype == "key" else value.dtype
        kind = f"{self.xp}.{type_name(dtype)}"
        if array.size <= 64 and dtype in NUMPY_TYPES:
            expr = ex.call(f"{self.xp}.array", ex.literal(nested_numbers(array, self.xp)), kind)
        else:
            self.copied.add("unpacked")
            code = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            expr = ex.call("unpacked", f'"{code}"', kind, repr(tuple(array.shape)))
            if self.target == "jax":
                expr = ex.call("jnp.asarray", expr)
        if value.dtype == "key":
            expr = ex.call("jax.random.wrap_key_data", expr)
        return ex.layout(f"{name} = ", expr, 0)

    def copy(self, function: str) -> str:
        """Have one of :mod:`anyk.decompile.numerics` stand in the text, with what it calls."""
        if function not in self.copied:
            self.copied.add(function)
            for word in set(re.findall(r"\w+", inspect.getsource(getattr(numerics, function)))):
                if word != function and word in _copied():
                    self.copy(word)
        return function

    def check_type(self, dtype: str) -> None:
        """Refuse types that NumPy lacks."""
        if self.target == "numpy" and dtype not in NUMPY_TYPES:
            raise BadInput(
                f"NumPy has no type {dtype}; convert to float32 within the function, or decompile with target='jax'"
            )

    def function(self, function: Function) -> str:
        """Write a nested function, unless it, or one that reads the same, is written already; returns its name."""
        if function not in self.called:
            writer = Writer(self)
            known: dict[str, list[Value]] = {}
            parameters = []
            for place, value in enumerate(function.block.inputs):
                name = writer.names.take(value.called or f"x{place}")
                writer.values[value] = ex.name(name, value.shape)
                parameters.append(Expr(name))
                known.setdefault(name, []).append(value)
            wishes_of(function.block, known, self.origins)
            with writer.indented():
                writer.body(function.block.equations)
                outputs = [writer.typed(atom) for atom in function.block.outputs]
                writer.give_back(outputs)
            text = (function.decorator, ", ".join(map(str, parameters)), *writer.lines)
            if text not in self.functions:
                self.functions[text] = name = self.names.take(_stem(function))
                self.lines += ["", ""]
                self.lines += [function.decorator] if function.decorator else []
                self.lines += ex.layout("def ", ex.call(name, *parameters), 0, after=":")
                self.lines += writer.lines
                if "partial" in function.decorator:
                    self.imports.add("from functools import partial")
            self.called[function] = self.functions[text]
        return self.called[function]

    def text(self, title: str, notes: Sequence[str], types: dict[str, tuple[str, ...]]) -> str:
        """The module: ``types`` are named tuples that it returns."""
        lines = ['"""' + title]
        if notes:
            lines += ["", *(line for note in notes for line in textwrap.wrap(note, ex.WIDTH))]
            lines.append('"""')
        else:
            lines[0] += '"""'
        copies = {name: inspect.getsource(getattr(numerics, name)).split("\n")[:-1] for name in sorted(self.copied)}
        definitions = [line for _, one in self.constants.values() for line in one]
        for name, fields in types.items():
            self.imports.add("from collections import namedtuple")
            definitions.append(f'{name} = namedtuple("{name}", "{" ".join(fields)}")')
        used = "\n".join([*(line for one in copies.values() for line in one), *self.lines, *definitions])
        for word, line in _IMPORTS.items():
            if re.search(rf"(?<![\w.]){word}\.", used):
                self.imports.add(line)
        standard = sorted((one for one in self.imports if one in _STANDARD), key=_import_order)
        other = sorted((one for one in self.imports if one not in _STANDARD), key=_import_order)
        lines += ["", *standard, *([""] if standard and other else []), *other]
        if "unpacked" in copies:  # what the constants are made with stands before them
            lines += ["", "", *copies.pop("unpacked"), ""]
        if definitions:
            lines += ["", *definitions]
        return "\n".join([*lines, *(line for one in copies.values() for line in ["", "", *one]), *self.lines]) + "\n"


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


_IMPORTS = {
    "base64": "import base64",
    "itertools": "import itertools",
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "lax": "from jax import lax",
    "linalg": "from scipy import linalg",
    "math": "import math",
    "np": "import numpy as np",
    "special": "from scipy import special",
}
_STANDARD = {
    "import base64",
    "import math",
    "import itertools",
    "from functools import partial",
    "from collections import namedtuple",
}


def _stem(function: Function) -> str:
    return re.sub(r"\W+", "_", function.name).strip("_") or "function"


def fixed_names() -> set[str]:
    """What texts call by its own name, besides Python's and the libraries' names."""
    return {"primitives", "namedtuple", "itertools", "math"} | _copied()


def _copied() -> set[str]:
    return {name for name, value in vars(numerics).items() if inspect.isfunction(value)}


def wishes_of(block: Block, known: dict[str, list[Value]], origins: Origins) -> None:
    """Set the user's names within a block and the blocks within it."""
    wishes(block.equations, known, origins)
    for equation in block.equations:
        for inner in equation.blocks:
            wishes_of(inner, known, origins)


class Writer:
    """Writes the body of one function.

    What a rule of the table asks for: :meth:`loose`, :meth:`full` and :meth:`typed` give an operand's expression,
    :meth:`named` its variable; :meth:`emit`, :meth:`indented` and :meth:`body` write statements.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.target = module.target
        self.xp = module.xp
        self.names = Names(_copied(), stems=module.stems)
        self.lines: list[str] = []
        self.indent = 0
        self.values: dict[Value, Expr] = {}
        self.pending: dict[Value, tuple[Expr, Equation]] = {}

    # operands

    def loose(self, atom: Atom) -> Expr:
        """An operand where broadcasting is at work: it may have a smaller shape than its value, or be a bare number."""
        if isinstance(atom, Constant):
            text = number(atom.value, self.xp)
            level = ex.UNARY if text.startswith("-") else ex.ATOM
            if atom.dtype.startswith("u") and int(atom.value) > 2**31 - 1 and self.target == "jax":
                return ex.call(self.dtype(atom.dtype), Expr(text))  # JAX takes bare integers for signed ones
            return Expr(text, level, free=True, weak=True)
        if atom in self.values:
            return self.values[atom]
        if atom in self.pending:
            return self.pending[atom][0]
        assert atom.array is not None, "a value is used before it is made"
        self.values[atom] = found = self.module.constant(atom)
        return found

    def full(self, atom: Atom) -> Expr:
        """An operand of its full shape; a number has no type yet."""
        expr = self.loose(atom)
        if expr.shape == atom.shape:
            return expr
        shape = ex.literal(atom.shape)
        if expr.weak:
            same = {"0": "zeros", "0.0": "zeros", "False": "zeros", "1": "ones", "1.0": "ones"}.get(expr.text)
            if same is not None:
                size = ex.literal(atom.shape[0] if len(atom.shape) == 1 else atom.shape)
                return ex.call(f"{self.xp}.{same}", size, self.dtype(atom.dtype), shape=atom.shape)
            return ex.call(f"{self.xp}.full", shape, expr, self.dtype(atom.dtype), shape=atom.shape)
        return ex.call(f"{self.xp}.broadcast_to", expr, shape, shape=atom.shape)

    def typed(self, atom: Atom) -> Expr:
        """An operand of its full shape and type."""
        expr = self.full(atom)
        return self.typed_number(expr, atom) if expr.weak else expr

    def typed_number(self, expr: Expr, atom: Atom) -> Expr:
        """A bare number with its type."""
        return ex.call(self.dtype(atom.dtype), Expr(expr.text))

    def operands(self, equation: Equation) -> list[Expr]:
        """Of an elementwise operation; at least one has a type."""
        exprs = [self.loose(atom) for atom in equation.inputs]
        if all(expr.weak for expr in exprs):
            exprs[0] = self.typed_number(exprs[0], equation.inputs[0])
        return exprs

    def named(self, atom: Atom) -> Expr:
        """An operand as a variable, so that it can be written twice."""
        if isinstance(atom, Value) and atom in self.pending:
            self.flush(atom)
        return self.typed(atom)

    def dtype(self, dtype: str) -> str:
        """A type as it is written."""
        self.module.check_type(dtype)
        return f"{self.xp}.{type_name(dtype)}"

    def copy(self, function: str) -> str:
        """Have a numerical function stand in the text."""
        return self.module.copy(function)

    # statements

    def body(self, equations: Sequence[Equation]) -> None:
        """Write equations."""
        for equation in equations:
            self.equation(equation)

    def equation(self, equation: Equation) -> None:
        """Write one equation, or keep it to be folded into the next."""
        from anyk.decompile.primitives import rule

        for value in equation.outputs:
            if value.dtype != "key":
                self._check(value, equation)
        found = rule(equation, self.target, self.module.origins)
        if equation.blocks or equation.function is not None:
            before = equation.captured if equation.primitive == "cond" else [*equation.inputs, *equation.captured]
            for atom in before:
                if isinstance(atom, Value):
                    self.flush(atom)
        mark = len(self.lines)
        expr = found(self, equation)
        if expr is None:
            return  # it wrote its statements itself
        if self._too_much(expr):
            del self.lines[mark:]
            for atom in equation.inputs:
                if isinstance(atom, Value):
                    self.flush(atom)
            expr = found(self, equation)
            assert expr is not None
        for atom in equation.inputs:
            if isinstance(atom, Value):
                self.pending.pop(atom, None)
        self._bind(equation, expr)

    def _check(self, value: Value, equation: Equation) -> None:
        try:
            self.module.check_type(value.dtype)
        except BadInput as error:
            where = self.module.origins.describe(equation.source)
            raise BadInput(f"{error} (primitive '{equation.primitive}', from {where})") from None

    def _too_much(self, expr: Expr) -> bool:
        return expr.depth > FOLDED_DEPTH or self.indent + len(expr.text) > ex.WIDTH - 16

    def _bind(self, equation: Equation, expr: Expr) -> None:
        if len(equation.outputs) > 1:
            self.assign(
                [self.target_of(equation, place) for place in range(len(equation.outputs))],
                expr,
                comment=", ".join(short(v.dtype, v.shape) for v in equation.outputs if v.uses),
            )
            return
        (value,) = equation.outputs
        if expr.free and (not value.called or expr.weak):
            self.values[value] = expr
        elif value.uses == 1 and not value.called and len(expr.text) <= FOLDED_WIDTH:
            self.pending[value] = (expr, equation)
        else:
            self._emit_value(value, expr, equation)

    def _emit_value(self, value: Value, expr: Expr, equation: Equation) -> None:
        name = self.names.take(value.called or noun(equation, 0))
        if expr.weak:
            expr = self.typed_number(expr, value)
        self.emit(f"{name} = ", expr, comment=short(value.dtype, expr.shape))
        self.values[value] = ex.name(name, expr.shape)

    def flush(self, value: Value) -> None:
        """Give a value that was kept to be folded a statement of its own."""
        kept = self.pending.pop(value, None)
        if kept is not None:
            self._emit_value(value, *kept)

    def target_of(self, equation: Equation, place: int) -> str:
        """A new variable for an output; the underscore if nobody uses it."""
        value = equation.outputs[place]
        if not value.uses:
            return "_"
        name = self.names.take(value.called or noun(equation, place))
        self.values[value] = ex.name(name, value.shape)
        return name

    def assign(self, targets: Sequence[str], expr: Expr, comment: str = "") -> None:
        """Assign what is a tuple to several variables."""
        left = ", ".join(targets) + ("," if len(targets) == 1 else "")
        if len(left) + self.indent <= 60:
            self.emit(f"{left} = ", expr, comment=comment)
            return
        name = self.names.take("results")
        self.emit(f"{name} = ", expr)
        for place, one in enumerate(targets):
            if one != "_":
                self.emit(f"{one} = ", Expr(f"{name}[{place}]"))

    def emit(self, before: str, expr: Expr, comment: str = "") -> None:
        """Write a statement."""
        lines = ex.layout(before, expr, self.indent)
        if comment and len(lines[-1]) + 4 + len(comment) <= ex.WIDTH:
            lines[-1] += f"  # {comment}"
        self.lines += lines

    def line(self, text: str) -> None:
        """Write a line."""
        self.lines.append(" " * self.indent + text)

    def give_back(self, outputs: Sequence[Expr]) -> None:
        """Write a return of one thing or several."""
        self.emit("return ", ex.side_by_side(outputs) if outputs else ex.raw("()"))

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Within this, lines stand further in."""
        self.indent += 4
        yield
        self.indent -= 4

    def define(self, name: str, parameters: Sequence[str], write: Callable[[], None]) -> None:
        """A function within the function."""
        if self.lines and self.lines[-1] and not self.lines[-1].endswith(":"):
            self.lines.append("")
        self.lines += ex.layout("def ", ex.call(name, *parameters), self.indent, after=":")
        with self.indented():
            write()
        self.lines.append("")


def module_of(
    reader: Reader,
    block: Block,
    origins: Origins,
    *,
    target: str,
    name: str,
    parameters: Sequence[str],
    inputs: Sequence[tuple[str, str]],
    result: Callable[[list[Expr]], Expr | list[Expr]],
    title: str,
    notes: Sequence[str],
    types: dict[str, tuple[str, ...]],
) -> str:
    """The text of a module whose last function is the block.

    ``inputs`` are, for each of the block's inputs, what it is called and how it is had from the parameters; ``result``
    makes what is returned of the outputs.
    """
    prune(block)
    for function in reader.functions.values():
        prune(function.block)
    module = Module(target, reader, origins)
    name = module.names.take(name)
    module.stems.add(name)
    writer = Writer(module)
    for parameter in parameters:  # which would hide what the module calls so
        writer.names.take(parameter)
        module.names.take(parameter)
    known: dict[str, list[Value]] = {}
    with writer.indented():
        for value, (called, access) in zip(block.inputs, inputs, strict=True):
            if not value.uses:
                continue
            if value.dtype != "key":
                module.check_type(value.dtype)
            variable = called if called in parameters and called == access else writer.names.take(called)
            if value.dtype == "key":
                expr: Expr = Expr(access)
            else:
                expr = ex.call(f"{module.xp}.asarray", access, writer.dtype(value.dtype))
            if expr.text != variable:
                writer.emit(f"{variable} = ", expr, comment=short(value.dtype, value.shape))
            writer.values[value] = ex.name(variable, value.shape)
            known.setdefault(called, []).append(value)
        wishes_of(block, known, origins)
        writer.body(block.equations)
        outputs = [writer.typed(atom) for atom in block.outputs]
        made = result(outputs)
        if isinstance(made, list):
            writer.give_back(made)
        else:
            writer.emit("return ", made)
    module.lines += ["", ""]
    if target == "numpy":
        module.lines.append('@np.errstate(all="ignore")')
    module.lines += ex.layout("def ", ex.call(name, *parameters), 0, after=":")
    module.lines += writer.lines
    return module.text(title, notes, types)
