"""From equations to text: statements in functions in a module; values that are used once are written where used."""

from __future__ import annotations

import base64
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from readjax import expressions as ex
from readjax import numerics
from readjax.equations import Atom, Block, Equation, Function, Number, Variable
from readjax.errors import ReadJaxError
from readjax.expressions import Expr
from readjax.jaxpr_reader import Reader
from readjax.literals import NUMPY_TYPES, nested_numbers, number, short, type_name
from readjax.simplifying import prune
from readjax.variable_names import Names, Origins, name_values, noun

FOLDED_DEPTH = 4  # nested operations in one expression
FOLDED_WIDTH = 56  # characters of an expression that is written within another
_LARGEST = 1_000_000  # numbers of a constant that is written into the text
_NUMERICS = {name: function for name, function in vars(numerics).items() if inspect.isfunction(function)}


@dataclass(frozen=True, slots=True)
class MainFunction:
    """The main function of a text.

    ``inputs`` are, for each of the block's inputs, its name and the expression that reads it from the parameters.
    ``result`` turns the outputs into one or several expressions to return.
    """

    name: str
    parameters: Sequence[str]
    inputs: Sequence[tuple[str, str]]
    result: Callable[[list[Expr]], Expr | list[Expr]]


class Module:
    """A text: imports, copied numerical functions, constants and functions; ``rule`` finds the rule for an equation."""

    def __init__(self, target: str, reader: Reader, origins: Origins, rule: FindRule) -> None:
        self.target = target
        self.xp = "np" if target == "numpy" else "jnp"
        self.origins = origins
        self.rule = rule
        self.nested = list(reader.functions.values())
        self.names = Names(_NUMERICS)
        # reserved for functions and constants
        self.stems = {_stem(function) for function in self.nested} | {"CONSTANT", "primitives"}
        self.imports: set[str] = set()
        self.copied: set[str] = set()
        self.constants: dict[Variable, tuple[str, list[str]]] = {}
        self.functions: dict[tuple[str, ...], str] = {}
        self.called: dict[Function, str] = {}
        self.lines: list[str] = []

    def constant(self, value: Variable) -> Expr:
        """Return the name of a constant array, which is defined before all functions."""
        if value not in self.constants:
            array = value.array
            assert array is not None
            if array.size > _LARGEST:
                raise ReadJaxError(
                    f"the function holds a constant array {short(value.dtype, array.shape)} of {array.size:,} numbers; "
                    f"up to {_LARGEST:,} are written into the source: pass it as an argument"
                )
            self.check_type(value.dtype)
            name = self.names.take("CONSTANT")
            self.constants[value] = (name, self._definition(name, value, array))
        return ex.name(self.constants[value][0], value.shape)

    def _definition(self, name: str, value: Variable, array: np.ndarray[Any, Any]) -> list[str]:
        dtype = "uint32" if value.dtype == "key" else value.dtype
        kind = f"{self.xp}.{type_name(dtype)}"
        if array.size <= 64 and dtype in NUMPY_TYPES:
            expr = ex.call(f"{self.xp}.array", ex.literal(nested_numbers(array, self.xp)), kind)
        else:
            self.copied.add("decode_array")
            code = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            expr = ex.call("decode_array", f'"{code}"', kind, repr(tuple(array.shape)))
            if self.target == "jax":
                expr = ex.call("jnp.asarray", expr)
        if value.dtype == "key":
            expr = ex.call("jax.random.wrap_key_data", expr)
        return ex.layout(f"{name} = ", expr, 0)

    def copy(self, function: str) -> str:
        """Copy a function of :mod:`readjax.numerics` and the functions that it calls; return its name."""
        if function not in self.copied:
            self.copied.add(function)
            for word in set(re.findall(r"\w+", inspect.getsource(_NUMERICS[function]))):
                if word in _NUMERICS:
                    self.copy(word)
        return function

    def check_type(self, dtype: str) -> None:
        """Raise :class:`~readjax.ReadJaxError` for types that NumPy lacks."""
        if self.target == "numpy" and dtype not in NUMPY_TYPES:
            raise ReadJaxError(
                f"NumPy has no type {dtype}; convert to float32 within the function, or decompile with target='jax'"
            )

    def function(self, function: Function) -> str:
        """Return the name of a nested function; write it unless the text has an equal function."""
        if function not in self.called:
            writer = Writer(self)
            values_by_name: dict[str, list[Variable]] = {}
            parameters = []
            for place, value in enumerate(function.block.inputs):
                name = writer.names.take(value.called or f"x{place}")
                writer.values[value] = ex.name(name, value.shape)
                parameters.append(Expr(name))
                values_by_name.setdefault(name, []).append(value)
            _name_values(function.block, values_by_name, self.origins)
            with writer.indented():
                writer.write_block(function.block)
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

    def write(self, block: Block, entry: MainFunction) -> None:
        """Write the main function."""
        prune(block)
        for function in self.nested:
            prune(function.block)
        name = self.names.take(entry.name)
        self.stems.add(name)
        writer = Writer(self)
        for parameter in entry.parameters:  # which would hide a name of the module
            writer.names.take(parameter)
            self.names.take(parameter)
        values_by_name: dict[str, list[Variable]] = {}
        with writer.indented():
            for value, (called, access) in zip(block.inputs, entry.inputs, strict=True):
                if value.uses:
                    is_parameter = called in entry.parameters and called == access
                    writer.read_input(value, called if is_parameter else writer.names.take(called), access)
                    values_by_name.setdefault(called, []).append(value)
            _name_values(block, values_by_name, self.origins)
            writer.body(block.equations)
            returned = entry.result([writer.typed(atom) for atom in block.outputs])
            if isinstance(returned, list):
                writer.write_return(returned)
            else:
                writer.emit("return ", returned)
        self.lines += ["", ""]
        if self.target == "numpy":
            self.lines.append('@np.errstate(all="ignore")')
        self.lines += ex.layout("def ", ex.call(name, *entry.parameters), 0, after=":")
        self.lines += writer.lines

    def text(self, title: str, notes: Sequence[str], types: dict[str, tuple[str, ...]]) -> str:
        """Return the text; ``types`` are the fields of the named tuples that it returns."""
        lines = ['"""' + title]
        if notes:
            lines += ["", *(line for note in notes for line in textwrap.wrap(note, ex.WIDTH))]
            lines.append('"""')
        else:
            lines[0] += '"""'
        copies = {name: inspect.getsource(_NUMERICS[name]).split("\n")[:-1] for name in sorted(self.copied)}
        definitions = [line for _, definition in self.constants.values() for line in definition]
        for name, fields in types.items():
            self.imports.add("from collections import namedtuple")
            definitions.append(f'{name} = namedtuple("{name}", "{" ".join(fields)}")')
        used = "\n".join([*(line for function in copies.values() for line in function), *self.lines, *definitions])
        for word, line in _IMPORTS.items():
            if re.search(rf"(?<![\w.]){word}\.", used):
                self.imports.add(line)
        standard = sorted((line for line in self.imports if line in _STANDARD), key=_import_order)
        other = sorted((line for line in self.imports if line not in _STANDARD), key=_import_order)
        lines += ["", *standard, *([""] if standard and other else []), *other]
        if "decode_array" in copies:  # constants need it
            lines += ["", "", *copies.pop("decode_array"), ""]
        if definitions:
            lines += ["", *definitions]
        for function in copies.values():
            lines += ["", "", *function]
        return "\n".join([*lines, *self.lines]) + "\n"


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
    """Return the names that texts use, besides Python's and the libraries' names."""
    return {"primitives", "namedtuple", "itertools", "math", *_NUMERICS}


def _name_values(block: Block, values_by_name: dict[str, list[Variable]], origins: Origins) -> None:
    """Give the values of a block, and of the blocks within it, the user's names."""
    name_values(block.equations, values_by_name, origins)
    for equation in block.equations:
        for inner in equation.blocks:
            _name_values(inner, values_by_name, origins)


class Writer:
    """Writes the body of one function.

    For the rules of the table, :meth:`loose`, :meth:`full` and :meth:`typed` return an operand's expression, and
    :meth:`named` its variable; :meth:`emit`, :meth:`indented` and :meth:`body` write statements.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.target = module.target
        self.xp = module.xp
        self.names = Names(_NUMERICS, stems=module.stems)
        self.lines: list[str] = []
        self.indent = 0
        self.values: dict[Variable, Expr] = {}
        self.pending: dict[Atom, tuple[Variable, Expr, Equation]] = {}

    def read_input(self, value: Variable, variable: str, access: str) -> None:
        """Write the statement that reads an input of the function into a variable."""
        expr = Expr(access)
        if value.dtype != "key":
            expr = ex.call(f"{self.xp}.asarray", access, self.dtype(value.dtype))
        if expr.text != variable:
            self.emit(f"{variable} = ", expr, comment=short(value.dtype, value.shape))
        self.values[value] = ex.name(variable, value.shape)

    # operands

    def loose(self, atom: Atom) -> Expr:
        """Return an operand that is broadcast: it may have a smaller shape than its value, or be a bare number."""
        if isinstance(atom, Number):
            text = number(atom.value, self.xp)
            level = ex.UNARY if text.startswith("-") else ex.ATOM
            if atom.dtype.startswith("u") and int(atom.value) > 2**31 - 1 and self.target == "jax":
                return ex.call(self.dtype(atom.dtype), Expr(text))  # for JAX bare integers are signed
            return Expr(text, level, free=True, weak=True)
        if atom in self.values:
            return self.values[atom]
        if atom in self.pending:
            return self.pending[atom][1]
        assert atom.array is not None, "a value is used before it is computed"
        self.values[atom] = expr = self.module.constant(atom)
        return expr

    def full(self, atom: Atom) -> Expr:
        """Return an operand of its full shape; a number has no type yet."""
        expr = self.loose(atom)
        if expr.shape == atom.shape:
            return expr
        shape = ex.literal(atom.shape)
        if expr.weak:
            function = {"0": "zeros", "0.0": "zeros", "False": "zeros", "1": "ones", "1.0": "ones"}.get(expr.text)
            if function is not None:
                size = ex.literal(atom.shape[0] if len(atom.shape) == 1 else atom.shape)
                return ex.call(f"{self.xp}.{function}", size, self.dtype(atom.dtype), shape=atom.shape)
            return ex.call(f"{self.xp}.full", shape, expr, self.dtype(atom.dtype), shape=atom.shape)
        return ex.call(f"{self.xp}.broadcast_to", expr, shape, shape=atom.shape)

    def typed(self, atom: Atom) -> Expr:
        """Return an operand of its full shape and type."""
        expr = self.full(atom)
        return self.typed_number(expr, atom) if expr.weak else expr

    def typed_number(self, expr: Expr, atom: Atom) -> Expr:
        """Return a bare number with its type."""
        return ex.call(self.dtype(atom.dtype), Expr(expr.text))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Return an expression converted to a type."""
        return ex.method(expr, "astype", self.dtype(dtype), shape=expr.shape)

    def arguments(self, equation: Equation) -> list[Expr]:
        """Return all operands of an equation, of their full shape and type."""
        return [self.typed(atom) for atom in equation.inputs]

    def call(self, equation: Equation, function: str, *extra: Expr | str, **keywords: Expr | str) -> Expr:
        """Return the call of a function with all operands of an equation; the result has the equation's shape."""
        return ex.call(function, *self.arguments(equation), *extra, shape=equation.shape, **keywords)

    def operands(self, equation: Equation) -> list[Expr]:
        """Return the operands of an elementwise operation; at least one operand has a type."""
        exprs = [self.loose(atom) for atom in equation.inputs]
        if all(expr.weak for expr in exprs):
            exprs[0] = self.typed_number(exprs[0], equation.inputs[0])
        return exprs

    def named(self, atom: Atom) -> Expr:
        """Return an operand as a variable, so that it can be written twice."""
        self.flush(atom)
        return self.typed(atom)

    def dtype(self, dtype: str) -> str:
        """Return the text of a type."""
        self.module.check_type(dtype)
        return f"{self.xp}.{type_name(dtype)}"

    def copy(self, function: str) -> str:
        """Copy a numerical function into the text and return its name."""
        return self.module.copy(function)

    # statements

    def body(self, equations: Sequence[Equation]) -> None:
        """Write equations."""
        for equation in equations:
            self.equation(equation)

    def equation(self, equation: Equation) -> None:
        """Write one equation, or defer it until its only use."""
        for value in equation.outputs:
            if value.dtype != "key":
                self._check(value, equation)
        write = self.module.rule(equation, self.target, self.module.origins)
        if equation.blocks or equation.function is not None:
            atoms = equation.captured if equation.primitive == "cond" else [*equation.inputs, *equation.captured]
            for atom in atoms:
                self.flush(atom)
        mark = len(self.lines)
        expr = write(self, equation)
        if expr is None:
            return  # the rule wrote statements itself
        if self._too_much(expr):
            del self.lines[mark:]
            for atom in equation.inputs:
                self.flush(atom)
            expr = write(self, equation)
            assert expr is not None
        for atom in equation.inputs:
            self.pending.pop(atom, None)
        self._bind(equation, expr)

    def _check(self, value: Variable, equation: Equation) -> None:
        try:
            self.module.check_type(value.dtype)
        except ReadJaxError as error:
            where = self.module.origins.describe(equation.source)
            raise ReadJaxError(f"{error} (primitive '{equation.primitive}', from {where})") from None

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
            self.pending[value] = (value, expr, equation)
        else:
            self._emit_value(value, expr, equation)

    def _emit_value(self, value: Variable, expr: Expr, equation: Equation) -> None:
        name = self.names.take(value.called or noun(equation, 0))
        if expr.weak:
            expr = self.typed_number(expr, value)
        self.emit(f"{name} = ", expr, comment=short(value.dtype, expr.shape))
        self.values[value] = ex.name(name, expr.shape)

    def flush(self, atom: Atom) -> None:
        """Write the statement of a value if it was deferred."""
        pending = self.pending.pop(atom, None)
        if pending is not None:
            self._emit_value(*pending)

    def target_of(self, equation: Equation, place: int) -> str:
        """Return a new variable for an output, or the underscore if it is unused."""
        value = equation.outputs[place]
        if not value.uses:
            return "_"
        name = self.names.take(value.called or noun(equation, place))
        self.values[value] = ex.name(name, value.shape)
        return name

    def assign(self, targets: Sequence[str], expr: Expr, comment: str = "") -> None:
        """Assign the elements of a tuple to several variables."""
        names = ", ".join(targets) + ("," if len(targets) == 1 else "")
        if len(names) + self.indent <= 60:
            self.emit(f"{names} = ", expr, comment=comment)
            return
        name = self.names.take("results")
        self.emit(f"{name} = ", expr)
        for place, target in enumerate(targets):
            if target != "_":
                self.emit(f"{target} = ", Expr(f"{name}[{place}]"))

    def emit(self, before: str, expr: Expr, comment: str = "") -> None:
        """Write a statement."""
        lines = ex.layout(before, expr, self.indent)
        if comment and len(lines[-1]) + 4 + len(comment) <= ex.WIDTH:
            lines[-1] += f"  # {comment}"
        self.lines += lines

    def line(self, text: str) -> None:
        """Write a line."""
        self.lines.append(" " * self.indent + text)

    def write_return(self, outputs: Sequence[Expr]) -> None:
        """Write a return statement."""
        self.emit("return ", ex.side_by_side(outputs) if outputs else ex.raw("()"))

    def write_block(self, block: Block) -> None:
        """Write the equations of a block and return its outputs."""
        self.body(block.equations)
        self.write_return([self.typed(atom) for atom in block.outputs])

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines that are written within this context."""
        self.indent += 4
        yield
        self.indent -= 4

    def define(self, name: str, parameters: Sequence[str], write: Callable[[], None]) -> None:
        """Write a function within the function."""
        if self.lines and self.lines[-1] and not self.lines[-1].endswith(":"):
            self.lines.append("")
        self.lines += ex.layout("def ", ex.call(name, *parameters), self.indent, after=":")
        with self.indented():
            write()
        self.lines.append("")


# writes an equation: returns the expression of its output (of a tuple, if there are several), or writes statements
Rule = Callable[[Writer, Equation], Expr | None]
FindRule = Callable[[Equation, str, Origins], Rule]
