"""Reading a jaxpr into equations that are easy to write down, without dead, trivial or needlessly wrapped operations.

Values of the jaxpr become :class:`Variable` and :class:`Number`, its equations :class:`Equation`. Calls of small or
private functions are inlined; every other function becomes one :class:`Function`, however often it is called, so that
reading takes time in proportion to the jaxpr and not to its expansion. Loops and conditionals contain
:class:`Block`\\ s, which use the values around them directly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from readjax.equations import Atom, Block, Equation, Function, Number, Variable
from readjax.errors import ReadJaxError
from readjax.simplifying import (
    add_key_axis,
    fold,
    reduces_nothing,
    transposed_product,
    unchanged_operand,
    undo_reshape,
)

SMALL = 3  # equations of a function that is inlined at each of its calls
MEDIUM = 8  # equations of a loop's body that is written out in every loop that has it

# the parameter that contains the jaxpr of a call
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
    "composite": "jaxpr",
    "custom_vmap_call": "call",
    "remat_opt": "fwd_jaxpr",
    "eval_jaxpr": "jaxpr",
}
_REMAT = {"remat2", "remat", "checkpoint"}
_IDENTITIES = {
    "copy",
    "copy_p",
    "stop_gradient",
    "name",
    "sharding_constraint",
    "layout_constraint",
    "reshard",
    "mesh_cast",
    "pvary",
    "random_clone",
    "device_put",
    "xla_metadata_value",
    "shard_alike",
    "convert_element_type",
    "reshape",
    "broadcast_in_dim",
    "transpose",
    "squeeze",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "slice",
    "pad",
    "optimization_barrier",
    "concatenate",
    "tile",
    "rev",
    "split",
}
_SHARDINGS = {"sharding_constraint", "layout_constraint", "reshard", "device_put"}
_DROPPED = {"debug_callback", "debug_print", "inspect_sharding", "dce_sink"}


class Reader:
    """Reads a jaxpr for one target; collects nested functions and notes on omissions."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.functions: dict[int, Function] = {}
        self.notes: dict[str, None] = {}
        self._references: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}
        self._arrays: dict[int, Variable] = {}
        self._alive: list[Any] = []  # keeps ids unique
        self._booleans: dict[Variable, Atom] = {}  # by the integer that was converted from it
        self._read_once: set[Variable] = set()
        self._source: Any = None  # of the call of the private function that is being inlined
        self._backward = False

    def read(self, closed: Any, names: Sequence[str]) -> Block:
        """Return the outermost block of a closed jaxpr."""
        jaxpr, constants = closed.jaxpr, closed.consts
        while len(jaxpr.eqns) == 1 and _is_bare_jit(jaxpr):  # the user's function is jitted
            inner = jaxpr.eqns[0].params["jaxpr"]
            jaxpr, constants = inner.jaxpr, inner.consts
        self._measure(jaxpr)
        block = self._block(jaxpr, constants)
        for value, called in zip(block.inputs, names, strict=True):
            value.called = called
        return block

    def _measure(self, jaxpr: Any) -> int:
        """Return the number of equations after inlining everything; count the references to each nested jaxpr."""
        size = self._sizes.get(id(jaxpr))
        if size is None:
            size = 0
            for eqn in jaxpr.eqns:
                size += 1
                for inner in nested(eqn.params):
                    self._references[id(inner)] += 1
                    size += self._measure(inner)
            self._sizes[id(jaxpr)] = size
            self._alive.append(jaxpr)
        return size

    def _value(self, aval: Any) -> Variable:
        shape, dtype = tuple(int(d) for d in aval.shape), str(aval.dtype)
        if dtype.startswith("key<"):
            if self.target == "numpy":
                if dtype != "key<fry>":
                    raise ReadJaxError(
                        f"random keys of the generator '{dtype[4:-1]}' cannot be written for NumPy, only Threefry's; "
                        "use jax.random.key(seed), or decompile with target='jax'"
                    )
                return Variable((*shape, 2), "uint32")
            return Variable(shape, "key")
        return Variable(shape, dtype)

    def _constant(self, array: Any) -> Atom:
        """Convert a closed-over array or number."""
        value = self._arrays.get(id(array))
        if value is not None:
            return value
        self._alive.append(array)
        dtype = str(array.dtype) if hasattr(array, "dtype") else ""
        if dtype.startswith("key<"):
            import jax

            numbers = np.asarray(jax.random.key_data(array))
            value = Variable(numbers.shape, "uint32") if self.target == "numpy" else Variable(tuple(array.shape), "key")
        else:
            numbers = np.asarray(array)
            if not numbers.shape:
                return Number(numbers[()], str(numbers.dtype))
            value = Variable(numbers.shape, str(numbers.dtype))
        value.array = numbers
        self._arrays[id(array)] = value
        return value

    def _block(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Atom | None] = ()) -> Block:
        """Return the block of a jaxpr; inputs for which there is an argument are no inputs of the block."""
        atoms = list(arguments) or [None] * len(jaxpr.invars)
        inputs = []
        for place, variable in enumerate(jaxpr.invars):
            if atoms[place] is None:
                atoms[place] = value = self._value(variable.aval)
                value.called = _called(jaxpr, place)
                inputs.append(value)
        equations: list[Equation] = []
        outputs = self._inline(jaxpr, constants, [a for a in atoms if a is not None], equations)
        return Block(inputs, equations, outputs)

    def _inline(
        self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Atom], out: list[Equation]
    ) -> list[Atom]:
        """Append a jaxpr's equations to a list and return its outputs."""
        atoms_by_variable: dict[Any, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, array in zip(jaxpr.constvars, constants, strict=True):
            atoms_by_variable[variable] = self._constant(array)

        def atom(variable: Any) -> Atom:
            if hasattr(variable, "val"):
                value = np.asarray(variable.val, dtype=_numpy_dtype(variable.aval.dtype))
                return self._constant(value) if value.shape else Number(value[()], str(variable.aval.dtype))
            return atoms_by_variable[variable]

        reads = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if not hasattr(v, "val"))
        reads.update(v for v in jaxpr.outvars if not hasattr(v, "val"))
        for variable, argument in zip(jaxpr.invars, arguments, strict=True):
            if reads[variable] > 1 and isinstance(argument, Variable):
                self._read_once.discard(argument)
        for eqn in jaxpr.eqns:
            operands = [atom(variable) for variable in eqn.invars]
            for variable, result in zip(eqn.outvars, self._equation(eqn, operands, out), strict=True):
                atoms_by_variable[variable] = result
                if isinstance(result, Variable):
                    (self._read_once.add if reads[variable] == 1 else self._read_once.discard)(result)
        return [atom(variable) for variable in jaxpr.outvars]

    def _equation(self, eqn: Any, atoms: list[Atom], out: list[Equation]) -> Sequence[Atom]:
        """Read one equation: append it to a list, simplified if possible, and return its outputs."""
        primitive = str(eqn.primitive)
        if primitive in _CALLS and _CALLS[primitive] in eqn.params:
            return self._call(eqn, atoms, out)
        if primitive in _DROPPED:
            self.notes[f"{primitive} is omitted"] = None
            return [Number(np.int32(0), "int32") for _ in eqn.outvars]
        if primitive == "platform_index":
            return [Number(np.int32(self._platform(eqn.params["platforms"])), "int32")]
        outputs = [self._value(variable.aval) for variable in eqn.outvars]
        known = self._known(eqn, atoms, outputs)
        if known is not None:
            return known
        read = Equation(primitive, atoms, outputs, dict(eqn.params), source=self._source or eqn.source_info)
        read.backward = self._backward or _is_transposed(eqn)
        if primitive == "cond":
            branch = self._cond(read)
            if branch is not None:
                return self._closed(branch, read.inputs[1:], out)
        elif primitive == "custom_linear_solve":
            return self._solve(read, out)
        elif primitive == "random_gamma" and self.target == "numpy":
            return self._random_gamma(eqn, atoms, out)
        elif not self._read_blocks(read):
            read = self._adapted(read, [*eqn.invars, *eqn.outvars])
        if read.primitive in ("squeeze", "reshape") and (original := undo_reshape(read)) is not None:
            return [original]
        for value in read.outputs:
            value.maker = read
        out.append(read)
        return outputs

    def _known(self, eqn: Any, atoms: list[Atom], outputs: list[Variable]) -> Sequence[Atom] | None:
        """Return the outputs of an equation that changes nothing, or whose result is a number; None for any other."""
        primitive = str(eqn.primitive)
        if primitive in _IDENTITIES and self._is_identity(primitive, atoms, outputs):
            if primitive in _SHARDINGS and any(device is not None for device in eqn.params.get("devices", [True])):
                self.notes["the placement of arrays (shardings, devices) is omitted"] = None
            return atoms[: len(outputs)]
        if (operand := unchanged_operand(primitive, atoms, outputs)) is not None:
            return [operand]
        folded = fold(primitive, atoms, outputs)
        return None if folded is None else [folded]

    def _read_blocks(self, read: Equation) -> bool:
        """Read the functions that an equation applies; return whether it applies any."""
        if read.primitive == "scan":
            self._scan(read)
        elif read.primitive == "while":
            self._while(read)
        elif read.primitive == "scatter" and read.params.get("update_jaxpr") is not None:
            read.primitive = "scatter_apply"  # x.at[places].apply(function)
            read.blocks = [self._block(_jaxpr(read.params["update_jaxpr"]), read.params["update_consts"])]
        elif read.primitive in ("reduce", "reduce_window"):
            closed = read.params["jaxpr"]
            constants = getattr(closed, "consts", None) or read.params.get("consts", ())
            read.blocks = [self._block(_jaxpr(closed), constants)]
        else:
            return False
        return True

    def _adapted(self, read: Equation, variables: Sequence[Any]) -> Equation:
        """Return an equation in a simpler form, or in the target's; ``variables``: those of the jaxpr."""
        primitive, operand = read.primitive, read.inputs[0] if read.inputs else None
        if primitive == "convert_element_type" and isinstance(operand, Variable) and operand.dtype == "bool":
            self._booleans[read.outputs[0]] = operand
        elif primitive.startswith("reduce_") and "axes" in read.params and reduces_nothing(read):
            read.primitive, read.params = "squeeze", {"dimensions": read.params["axes"]}
        elif (
            primitive == "transpose"
            and operand in self._read_once
            and (swapped := transposed_product(read)) is not None
        ):
            return swapped
        elif self.target == "numpy" and any(str(variable.aval.dtype).startswith("key<") for variable in variables):
            add_key_axis(read)
        return read

    def _is_identity(self, primitive: str, atoms: list[Atom], outputs: list[Variable]) -> bool:
        if primitive == "optimization_barrier" and self.target == "jax":
            return False
        if len(atoms) < len(outputs) or any(
            atom.dtype != output.dtype or atom.shape != output.shape
            for atom, output in zip(atoms, outputs, strict=False)
        ):
            return False
        # these may keep the shape and yet change the values
        return primitive not in ("transpose", "rev", "pad", "slice") or not outputs[0].shape

    def _platform(self, platforms: Sequence[tuple[str, ...] | None]) -> int:
        """Return the branch of platform-dependent code: the processor's, or for JAX this machine's."""
        here = "cpu"
        if self.target == "jax":
            import jax

            here = jax.default_backend()
        self.notes[f"platform-dependent code is written for '{here}'"] = None
        for place, names in enumerate(platforms):
            if names is None or here in names:
                return place
        return 0

    def _call(self, eqn: Any, atoms: list[Atom], out: list[Equation]) -> Sequence[Atom]:
        """Read a call."""
        primitive = str(eqn.primitive)
        closed = eqn.params[_CALLS[primitive]]
        decorator = ""
        if self.target == "jax":
            if primitive in _REMAT:
                if eqn.params.get("policy") is not None:
                    self.notes["the policy of a checkpoint is omitted"] = None
                elif eqn.params.get("prevent_cse", True):
                    decorator = "@jax.checkpoint"
                else:
                    decorator = "@partial(jax.checkpoint, prevent_cse=False)"
            elif primitive.startswith("custom_"):
                called = str(eqn.params.get("name", "") or _function_name(_jaxpr(closed))[0])
                self.notes[f"the derivative rule of {called} is omitted: JAX differentiates this source"] = None
        name = str(eqn.params.get("name", ""))
        outer = self._source, self._backward
        # JAX caches the traces of its own functions, with the place of their first call
        if self._source is None and not _function_name(_jaxpr(closed))[1]:
            self._source = eqn.source_info
        self._backward = self._backward or _is_transposed(eqn)
        outputs = self._closed(closed, atoms, out, name=name, decorator=decorator)
        self._source, self._backward = outer
        return outputs

    def _closed(
        self,
        closed: Any,
        atoms: Sequence[Atom],
        out: list[Equation],
        name: str = "",
        decorator: str = "",
        loop: bool = False,
    ) -> Sequence[Atom]:
        """Inline a jaxpr if it is small, or private and used once; otherwise call it."""
        jaxpr, constants = _jaxpr(closed), getattr(closed, "consts", ())
        size, once = self._sizes.get(id(jaxpr), math.inf), self._references[id(jaxpr)] <= 1
        called, is_users = _function_name(jaxpr)
        inlined = size <= SMALL or (once and not (is_users and name)) or (loop and size <= MEDIUM)
        if (inlined and not decorator) or not jaxpr.eqns:
            return self._inline(jaxpr, constants, atoms, out)
        function = self.functions.get(id(jaxpr))
        if function is None:
            outer = self._source, self._backward
            self._source, self._backward = None, False
            function = Function(name or called, self._block(jaxpr, constants), decorator)
            self._source, self._backward = outer
            self.functions[id(jaxpr)] = function
            self._alive.append(jaxpr)
        outputs = [self._value(variable.aval) for variable in jaxpr.outvars]
        read = Equation(
            "call", list(atoms), outputs, {}, source=self._source, backward=self._backward, function=function
        )
        for value in outputs:
            value.maker = read
        out.append(read)
        return outputs

    def _body(self, closed: Any, arguments: Sequence[Atom | None]) -> Block:
        """A block that uses the given values, and takes the others as inputs."""
        jaxpr = _jaxpr(closed)
        if self._references[id(jaxpr)] <= 1 or self._sizes.get(id(jaxpr), 0) <= MEDIUM:
            return self._block(jaxpr, getattr(closed, "consts", ()), arguments)
        inputs = []
        atoms: list[Atom] = []
        for variable, argument in zip(jaxpr.invars, arguments, strict=True):
            if argument is None:
                argument = self._value(variable.aval)
                inputs.append(argument)
            atoms.append(argument)
        equations: list[Equation] = []
        outputs = self._closed(closed, atoms, equations, loop=True)
        return Block(inputs, equations, list(outputs))

    def _cond(self, read: Equation) -> Any:
        """Read the branches; return the jaxpr of the branch that is always taken, if there is one."""
        branches = read.params["branches"]
        selector = read.inputs[0]
        if isinstance(selector, Number):
            return branches[min(max(int(selector.value), 0), len(branches) - 1)]
        if len(branches) == 2:
            if selector in self._booleans:
                selector = self._booleans[selector]
            read.params["boolean"] = selector.dtype == "bool"
        read.blocks = [self._body(branch, read.inputs[1:]) for branch in branches]
        read.inputs = [selector]
        return None

    def _scan(self, read: Equation) -> None:
        constants, carries = int(read.params["num_consts"]), int(read.params["num_carry"])
        fresh: list[Atom | None] = [None] * (len(read.inputs) - constants)
        read.blocks = [self._body(read.params["jaxpr"], [*read.inputs[:constants], *fresh])]
        read.inputs = read.inputs[constants:]
        read.params["carries"] = carries

    def _while(self, read: Equation) -> None:
        first, second = int(read.params["cond_nconsts"]), int(read.params["body_nconsts"])
        start = read.inputs[first + second :]
        fresh: list[Atom | None] = [None] * len(start)
        arguments: list[Atom | None] = [*read.inputs[:first], *fresh]
        condition = self._body(read.params["cond_jaxpr"], arguments)
        body = self._body(read.params["body_jaxpr"], [*read.inputs[first : first + second], *fresh])
        if condition.outputs[0].shape:  # several loops side by side: those that have ended keep their state
            lane_condition = self._block(
                _jaxpr(read.params["cond_jaxpr"]),
                read.params["cond_jaxpr"].consts,
                [*read.inputs[:first], *body.inputs],
            )
            (running,) = lane_condition.outputs
            selected = []
            for old, new in zip(body.inputs, body.outputs, strict=True):
                mask, selection = Variable(old.shape, "bool"), Variable(old.shape, old.dtype)
                places = tuple(range(len(running.shape)))
                broadcast = Equation("broadcast_in_dim", [running], [mask], {"broadcast_dimensions": places})
                select = Equation("select_n", [mask, old, new], [selection], {})
                mask.maker, selection.maker = broadcast, select
                body.equations += [broadcast, select]
                selected.append(selection)
            body.equations = lane_condition.equations + body.equations
            body.outputs = list(selected)
            any_running = Variable((), "bool")
            params = {"axes": tuple(range(len(running.shape)))}
            any_running.maker = Equation("reduce_or", [condition.outputs[0]], [any_running], params)
            condition.equations.append(any_running.maker)
            condition.outputs = [any_running]
        read.blocks = [condition, body]
        read.inputs = start

    def _solve(self, read: Equation, out: list[Equation]) -> Sequence[Atom]:
        """Read the solver of a linear system that has its own derivative rule."""
        lengths, jaxprs = read.params["const_lengths"], read.params["jaxprs"]
        first = lengths.matvec + lengths.vecmat
        constants = read.inputs[first : first + lengths.solve]
        total = first + lengths.solve + lengths.transpose_solve
        if self.target == "jax":
            self.notes["the derivative rule of a linear solve is omitted: JAX differentiates this source"] = None
        return self._closed(jaxprs.solve, [*constants, *read.inputs[total:]], out)

    def _random_gamma(self, eqn: Any, atoms: list[Atom], out: list[Equation]) -> Sequence[Atom]:
        """Inline JAX's own implementation of gamma variates."""
        import jax

        log_space = eqn.params["log_space"]
        rule: Any = eqn.primitive.impl
        avals: list[Any] = [v.aval for v in eqn.invars]
        closed = jax.make_jaxpr(lambda key, a: rule(key, a, log_space=log_space))(*avals)
        self._measure(closed.jaxpr)
        return self._inline(closed.jaxpr, closed.consts, atoms, out)


def nested(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters."""
    for key, value in params.items():
        if key == "update_jaxpr":  # the name of a scatter says the same
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns"):
                yield _jaxpr(item)


def _jaxpr(closed: Any) -> Any:
    return getattr(closed, "jaxpr", closed)


def _is_bare_jit(jaxpr: Any) -> bool:
    eqn = jaxpr.eqns[0]
    return (
        str(eqn.primitive) in ("jit", "pjit")
        and list(eqn.invars) == list(jaxpr.invars)
        and list(eqn.outvars) == list(jaxpr.outvars)
    )


def _is_transposed(eqn: Any) -> bool:
    return "transpose(" in str(eqn.source_info.name_stack)


def _numpy_dtype(dtype: Any) -> Any:
    return None if str(dtype).startswith("key<") else dtype


_JAX = ""


def is_jax_file(file: str) -> bool:
    """Return whether a file is JAX's own."""
    global _JAX
    if not _JAX:
        import jax

        _JAX = str(Path(jax.__file__).parent)
    return file.startswith(_JAX)


def _function_name(jaxpr: Any) -> tuple[str, bool]:
    """Return the name of the traced function, and whether it is the user's."""
    info = str(getattr(jaxpr.debug_info, "func_src_info", "") or "")
    called, _, place = info.partition(" at ")
    return called, bool(place) and not is_jax_file(place)


def _called(jaxpr: Any, place: int) -> str:
    """Return the user's name of an argument of a nested function."""
    names = getattr(jaxpr.debug_info, "arg_names", None)
    if names is None or len(names) != len(jaxpr.invars) or not _function_name(jaxpr)[1]:
        return ""
    return str(names[place] or "")
