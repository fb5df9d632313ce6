"""From a jaxpr to equations that are easy to write down: what is dead, trivial or wrapped for nothing is gone.

Values of the jaxpr become :class:`Value` and :class:`Constant`, its equations :class:`Equation`. Calls of small or
private functions are written out in place; others are kept as a :class:`Function`, once, however often they are called,
so that reading takes time in proportion to the jaxpr and not to what it expands to. Loops and conditionals hold
:class:`Block`\\ s, which use the values around them directly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyk.decompile.equations import Atom, Block, Constant, Equation, Function, Value
from anyk.decompile.simplifying import fold, keys_as_numbers, over_ones, transposed_product, unchanged, unreshaped
from anyk.errors import BadInput

SMALL = 3  # a call of at most so many equations is written out in place, however often it is made
MEDIUM = 8  # a loop's body of more equations is written once, if several loops have it


# under which parameter a call's jaxpr is found
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
    """Reads a jaxpr for one target; collects nested functions and notes on what was left out."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.functions: dict[int, Function] = {}
        self.notes: dict[str, None] = {}
        self._references: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}
        self._arrays: dict[int, Value] = {}
        self._kept: list[Any] = []  # so that no id is given twice
        self._truths: dict[Value, Atom] = {}  # an integer, and the Boolean it was made of
        self._once: set[Value] = set()  # what is read once
        self._source: Any = None  # where a private function is called that is being written out
        self._backward = False

    def read(self, closed: Any, names: Sequence[str]) -> Block:
        """The outermost block of a closed jaxpr."""
        jaxpr, constants = closed.jaxpr, closed.consts
        while len(jaxpr.eqns) == 1 and _is_bare_jit(jaxpr):  # the function was jitted already
            inner = jaxpr.eqns[0].params["jaxpr"]
            jaxpr, constants = inner.jaxpr, inner.consts
        self._measure(jaxpr)
        block = self._block(jaxpr, constants)
        for value, called in zip(block.inputs, names, strict=True):
            value.called = called
        return block

    def _measure(self, jaxpr: Any) -> int:
        """Equations once everything is written out; counts on the way how often each nested jaxpr is named."""
        known = self._sizes.get(id(jaxpr))
        if known is None:
            known = 0
            for eqn in jaxpr.eqns:
                known += 1
                for inner in nested(eqn.params):
                    self._references[id(inner)] += 1
                    known += self._measure(inner)
            self._sizes[id(jaxpr)] = known
            self._kept.append(jaxpr)
        return known

    def _value(self, aval: Any) -> Value:
        shape, dtype = tuple(int(d) for d in aval.shape), str(aval.dtype)
        if dtype.startswith("key<"):
            if self.target == "numpy":
                if dtype != "key<fry>":
                    raise BadInput(
                        f"random keys of the generator '{dtype[4:-1]}' cannot be written for NumPy, only Threefry's; "
                        "use jax.random.key(seed), or decompile with target='jax'"
                    )
                return Value((*shape, 2), "uint32")
            return Value(shape, "key")
        return Value(shape, dtype)

    def _constant(self, array: Any) -> Atom:
        """What a closed-over array or number becomes."""
        known = self._arrays.get(id(array))
        if known is not None:
            return known
        self._kept.append(array)
        dtype = str(array.dtype) if hasattr(array, "dtype") else ""
        if dtype.startswith("key<"):
            import jax

            held = np.asarray(jax.random.key_data(array))
            made = Value(held.shape, "uint32") if self.target == "numpy" else Value(tuple(array.shape), "key")
        else:
            held = np.asarray(array)
            if not held.shape:
                return Constant(held[()], str(held.dtype))
            made = Value(held.shape, str(held.dtype))
        made.array = held
        self._arrays[id(array)] = made
        return made

    def _block(self, jaxpr: Any, constants: Sequence[Any], given: Sequence[Atom | None] = ()) -> Block:
        """A block of a jaxpr; inputs that are given are no inputs of the block."""
        atoms = list(given) or [None] * len(jaxpr.invars)
        inputs = []
        for place, variable in enumerate(jaxpr.invars):
            if atoms[place] is None:
                atoms[place] = made = self._value(variable.aval)
                made.called = _called(jaxpr, place)
                inputs.append(made)
        equations: list[Equation] = []
        outputs = self._inline(jaxpr, constants, [a for a in atoms if a is not None], equations)
        return Block(inputs, equations, outputs)

    def _inline(self, jaxpr: Any, constants: Sequence[Any], given: Sequence[Atom], out: list[Equation]) -> list[Atom]:
        """Write a jaxpr's equations into a list; returns what its outputs are."""
        known: dict[Any, Atom] = dict(zip(jaxpr.invars, given, strict=True))
        for variable, array in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = self._constant(array)

        def atom(variable: Any) -> Atom:
            if hasattr(variable, "val"):
                value = np.asarray(variable.val, dtype=_numpy_dtype(variable.aval.dtype))
                return self._constant(value) if value.shape else Constant(value[()], str(variable.aval.dtype))
            return known[variable]

        reads = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if not hasattr(v, "val"))
        reads.update(v for v in jaxpr.outvars if not hasattr(v, "val"))
        for variable, one in zip(jaxpr.invars, given, strict=True):
            if reads[variable] > 1 and isinstance(one, Value):
                self._once.discard(one)
        for eqn in jaxpr.eqns:
            atoms = [atom(variable) for variable in eqn.invars]
            for variable, found in zip(eqn.outvars, self._equation(eqn, atoms, out), strict=True):
                known[variable] = found
                if isinstance(found, Value):
                    (self._once.add if reads[variable] == 1 else self._once.discard)(found)
        return [atom(variable) for variable in jaxpr.outvars]

    def _equation(self, eqn: Any, atoms: list[Atom], out: list[Equation]) -> Sequence[Atom]:
        """Read one equation: append what is to be written, and say what its outputs are."""
        primitive = str(eqn.primitive)
        if primitive in _CALLS and _CALLS[primitive] in eqn.params:
            return self._call(eqn, atoms, out)
        if primitive in _DROPPED:
            self.notes[f"{primitive} is left out"] = None
            return [Constant(np.int32(0), "int32") for _ in eqn.outvars]
        if primitive == "platform_index":
            return [Constant(np.int32(self._platform(eqn.params["platforms"])), "int32")]
        made = [self._value(variable.aval) for variable in eqn.outvars]
        if primitive in _IDENTITIES and self._is_identity(primitive, atoms, made):
            if primitive in _SHARDINGS and any(one is not None for one in eqn.params.get("devices", [True])):
                self.notes["where arrays lie (shardings, devices) is left out"] = None
            return atoms[: len(made)]
        if (same := unchanged(primitive, atoms, made)) is not None:
            return [same]
        folded = fold(primitive, atoms, made)
        if folded is not None:
            return [folded]
        read = Equation(primitive, atoms, made, dict(eqn.params), self._source or eqn.source_info)
        read.backward = self._backward or _is_transposed(eqn)
        if primitive == "cond":
            chosen = self._cond(read)
            if chosen is not None:
                return self._closed(chosen, read.inputs[1:], out)
        elif primitive == "scan":
            self._scan(read)
        elif primitive == "while":
            self._while(read)
        elif primitive == "custom_linear_solve":
            return self._solve(read, out)
        elif primitive == "scatter" and read.params.get("update_jaxpr") is not None:
            read.primitive = "scatter_apply"  # x.at[places].apply(function)
            read.blocks = [self._block(_jaxpr(read.params["update_jaxpr"]), read.params["update_consts"])]
        elif primitive in ("reduce", "reduce_window"):
            closed = read.params["jaxpr"]
            constants = getattr(closed, "consts", None) or read.params.get("consts", ())
            read.blocks = [self._block(_jaxpr(closed), constants)]
        elif primitive == "convert_element_type" and isinstance(atoms[0], Value) and atoms[0].dtype == "bool":
            self._truths[made[0]] = atoms[0]
        elif primitive.startswith("reduce_") and "axes" in read.params and over_ones(read):
            read.primitive, read.params = "squeeze", {"dimensions": read.params["axes"]}
        elif primitive == "transpose" and atoms[0] in self._once and (swapped := transposed_product(read)) is not None:
            read = swapped
        elif primitive == "random_gamma" and self.target == "numpy":
            return self._random_gamma(eqn, atoms, out)
        elif self.target == "numpy" and any(str(v.aval.dtype).startswith("key<") for v in [*eqn.invars, *eqn.outvars]):
            keys_as_numbers(read)
        if read.primitive in ("squeeze", "reshape") and (before := unreshaped(read)) is not None:
            return [before]
        for value in read.outputs:
            value.maker = read
        out.append(read)
        return made

    def _is_identity(self, primitive: str, atoms: list[Atom], made: list[Value]) -> bool:
        if primitive == "optimization_barrier" and self.target == "jax":
            return False
        if len(atoms) < len(made) or any(
            a.dtype != m.dtype or a.shape != m.shape for a, m in zip(atoms, made, strict=False)
        ):
            return False
        # these may leave a shape as it is and yet do something
        return primitive not in ("transpose", "rev", "pad", "slice") or not made[0].shape

    def _platform(self, platforms: Sequence[tuple[str, ...] | None]) -> int:
        """Which branch of code that depends on the platform is meant: the processor's, or this machine's for JAX."""
        here = "cpu"
        if self.target == "jax":
            import jax

            here = jax.default_backend()
        self.notes[f"code that depends on the platform is that for '{here}'"] = None
        for place, names in enumerate(platforms):
            if names is None or here in names:
                return place
        return 0

    def _call(self, eqn: Any, atoms: list[Atom], out: list[Equation]) -> Sequence[Atom]:
        """A call: written out in place, or kept as a function."""
        primitive = str(eqn.primitive)
        closed = eqn.params[_CALLS[primitive]]
        decorator = ""
        if self.target == "jax":
            if primitive in _REMAT:
                if eqn.params.get("policy") is not None:
                    self.notes["which values a checkpoint keeps (its policy) is left out"] = None
                elif eqn.params.get("prevent_cse", True):
                    decorator = "@jax.checkpoint"
                else:
                    decorator = "@partial(jax.checkpoint, prevent_cse=False)"
            elif primitive.startswith("custom_"):
                called = str(eqn.params.get("name", "") or _function_name(_jaxpr(closed))[0])
                self.notes[f"the derivative rule of {called} is left out: JAX differentiates what is written"] = None
        name = str(eqn.params.get("name", ""))
        before = self._source, self._backward
        # JAX keeps the traces of its own functions, with the place where they were first called
        if self._source is None and not _function_name(_jaxpr(closed))[1]:
            self._source = eqn.source_info
        self._backward = self._backward or _is_transposed(eqn)
        outputs = self._closed(closed, atoms, out, name=name, decorator=decorator)
        self._source, self._backward = before
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
        """Write out a jaxpr in place if it is small, or private and used once; else call it."""
        jaxpr, constants = _jaxpr(closed), getattr(closed, "consts", ())
        size, once = self._sizes.get(id(jaxpr), math.inf), self._references[id(jaxpr)] <= 1
        called, is_users = _function_name(jaxpr)
        in_place = size <= SMALL or (once and not (is_users and name)) or (loop and size <= MEDIUM)
        if (in_place and not decorator) or not jaxpr.eqns:
            return self._inline(jaxpr, constants, atoms, out)
        function = self.functions.get(id(jaxpr))
        if function is None:
            before = self._source, self._backward
            self._source, self._backward = None, False
            function = Function(name or called, self._block(jaxpr, constants), decorator)
            self._source, self._backward = before
            self.functions[id(jaxpr)] = function
            self._kept.append(jaxpr)
        made = [self._value(variable.aval) for variable in jaxpr.outvars]
        read = Equation("call", list(atoms), made, {}, self._source, self._backward, function=function)
        for value in made:
            value.maker = read
        out.append(read)
        return made

    def _body(self, closed: Any, given: Sequence[Atom | None]) -> Block:
        """A block that uses the given values, and takes the others as inputs."""
        jaxpr = _jaxpr(closed)
        if self._references[id(jaxpr)] <= 1 or self._sizes.get(id(jaxpr), 0) <= MEDIUM:
            return self._block(jaxpr, getattr(closed, "consts", ()), given)
        inputs = []
        atoms: list[Atom] = []
        for variable, one in zip(jaxpr.invars, given, strict=True):
            if one is None:
                one = self._value(variable.aval)
                inputs.append(one)
            atoms.append(one)
        equations: list[Equation] = []
        outputs = self._closed(closed, atoms, equations, loop=True)
        return Block(inputs, equations, list(outputs))

    def _cond(self, read: Equation) -> Any:
        """Read the branches; returns the one that is taken if that is known."""
        branches = read.params["branches"]
        which = read.inputs[0]
        if isinstance(which, Constant):
            return branches[min(max(int(which.value), 0), len(branches) - 1)]
        if len(branches) == 2:
            if which in self._truths:
                which = self._truths[which]
            read.params["boolean"] = which.dtype == "bool"
        read.blocks = [self._body(branch, read.inputs[1:]) for branch in branches]
        read.inputs = [which]
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
        given: list[Atom | None] = [*read.inputs[:first], *fresh]
        asks = self._body(read.params["cond_jaxpr"], given)
        does = self._body(read.params["body_jaxpr"], [*read.inputs[first : first + second], *fresh])
        if asks.outputs[0].shape:  # several loops side by side: those that have ended keep what they have
            again = self._block(
                _jaxpr(read.params["cond_jaxpr"]),
                read.params["cond_jaxpr"].consts,
                [*read.inputs[:first], *does.inputs],
            )
            (going,) = again.outputs
            kept = []
            for old, new in zip(does.inputs, does.outputs, strict=True):
                wide, chosen = Value(old.shape, "bool"), Value(old.shape, old.dtype)
                places = tuple(range(len(going.shape)))
                spread = Equation("broadcast_in_dim", [going], [wide], {"broadcast_dimensions": places})
                select = Equation("select_n", [wide, old, new], [chosen], {})
                wide.maker, chosen.maker = spread, select
                does.equations += [spread, select]
                kept.append(chosen)
            does.equations = again.equations + does.equations
            does.outputs = list(kept)
            some = Value((), "bool")
            over = {"axes": tuple(range(len(going.shape)))}
            some.maker = Equation("reduce_or", [asks.outputs[0]], [some], over)
            asks.equations.append(some.maker)
            asks.outputs = [some]
        read.blocks = [asks, does]
        read.inputs = start

    def _solve(self, read: Equation, out: list[Equation]) -> Sequence[Atom]:
        """A linear system with its own derivative: what solves it."""
        lengths, jaxprs = read.params["const_lengths"], read.params["jaxprs"]
        before = lengths.matvec + lengths.vecmat
        constants = read.inputs[before : before + lengths.solve]
        total = before + lengths.solve + lengths.transpose_solve
        if self.target == "jax":
            self.notes["the derivative rule of a linear solve is left out: JAX differentiates what is written"] = None
        return self._closed(jaxprs.solve, [*constants, *read.inputs[total:]], out)

    def _random_gamma(self, eqn: Any, atoms: list[Atom], out: list[Equation]) -> Sequence[Atom]:
        """JAX makes gamma variates of simpler things; so do we, of the same."""
        import jax

        log_space = eqn.params["log_space"]
        rule: Any = eqn.primitive.impl
        avals: list[Any] = [v.aval for v in eqn.invars]
        closed = jax.make_jaxpr(lambda key, a: rule(key, a, log_space=log_space))(*avals)
        self._measure(closed.jaxpr)
        return self._inline(closed.jaxpr, closed.consts, atoms, out)


def nested(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    for key, value in params.items():
        if key == "update_jaxpr":  # what a scatter does is in its name
            continue
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns"):
                yield _jaxpr(one)


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
    """Whether a file is JAX's own."""
    global _JAX
    if not _JAX:
        import jax

        _JAX = str(Path(jax.__file__).parent)
    return file.startswith(_JAX)


def _function_name(jaxpr: Any) -> tuple[str, bool]:
    """What the traced function is called, and whether it is the user's."""
    info = str(getattr(jaxpr.debug_info, "func_src_info", "") or "")
    called, _, place = info.partition(" at ")
    return called, bool(place) and not is_jax_file(place)


def _called(jaxpr: Any, place: int) -> str:
    """What the user calls an argument of a nested function."""
    names = getattr(jaxpr.debug_info, "arg_names", None)
    if names is None or len(names) != len(jaxpr.invars) or not _function_name(jaxpr)[1]:
        return ""
    return str(names[place] or "")
