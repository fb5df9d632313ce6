"""Rewriting of equations: results that are numbers, what changes nothing, what nobody uses, keys without a type."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from anyk.decompile.equations import Atom, Block, Constant, Equation, Value
from anyk.errors import BadInput

_FOLDED: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "max": np.maximum,
    "min": np.minimum,
    "sqrt": np.sqrt,
}
_COMPARED: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def prune(block: Block) -> None:
    """Take away what nobody uses, and count how often the rest is used; a block within counts more than once."""
    own = {id(value) for value in block.inputs}
    used: dict[int, Value] = {}

    def use(atom: Atom, times: int = 1) -> None:
        if isinstance(atom, Value):
            atom.uses += times
            used[id(atom)] = atom

    for atom in block.outputs:
        use(atom)
    kept = []
    for equation in reversed(block.equations):
        if not any(value.uses for value in equation.outputs):
            continue
        _drop_outputs(equation)
        captured: dict[int, Value] = {}
        for inner in equation.blocks:
            prune(inner)
            captured |= {id(value): value for value in inner.captured}
        equation.captured = list(captured.values())
        for atom in equation.inputs:
            use(atom)
        for value in equation.captured:
            use(value, 2)
        own |= {id(value) for value in equation.outputs}
        kept.append(equation)
    block.equations = kept[::-1]
    block.captured = [value for key, value in used.items() if key not in own]


def _drop_outputs(equation: Equation) -> None:
    """What a conditional or a loop makes and nobody uses."""
    if equation.primitive == "cond":
        kept = [place for place, value in enumerate(equation.outputs) if value.uses]
    elif equation.primitive == "scan":
        carries = equation.params["carries"]
        kept = [place for place, value in enumerate(equation.outputs) if value.uses or place < carries]
    else:
        return
    equation.outputs = [equation.outputs[place] for place in kept]
    for block in equation.blocks:
        block.outputs = [block.outputs[place] for place in kept]


def fold(primitive: str, atoms: list[Atom], made: list[Value]) -> Constant | None:
    """The result, if it is a matter of numbers alone."""
    constants = [a for a in atoms if isinstance(a, Constant)]
    if len(made) != 1 or made[0].shape or not atoms or len(constants) < len(atoms):
        return None
    kind = np.dtype(made[0].dtype).kind if made[0].dtype in PLAIN else ""
    values = [a.value for a in constants]
    with np.errstate(all="ignore"):
        if primitive == "convert_element_type" and kind and atoms[0].dtype in PLAIN:
            from_kind = np.dtype(atoms[0].dtype).kind
            if from_kind in "fc" and kind not in "fc":
                return None  # how what does not fit is rounded is the target's business
            return Constant(np.asarray(values[0]).astype(made[0].dtype)[()], made[0].dtype)
        if primitive in _COMPARED and all(a.dtype in PLAIN for a in atoms):
            return Constant(np.bool_(_COMPARED[primitive](*values)), "bool")
        if primitive == "select_n" and atoms[0].dtype == "bool":
            return Constant(values[1 + int(values[0])], made[0].dtype)
        if kind == "f" and primitive == "div":
            return Constant(values[0] / values[1], made[0].dtype)
        if kind in ("f", "i") and primitive in _FOLDED and all(a.dtype == made[0].dtype for a in atoms):
            if primitive == "sqrt" and kind != "f":
                return None
            return Constant(np.asarray(_FOLDED[primitive](*values)).astype(made[0].dtype)[()], made[0].dtype)
    return None


def unchanged(primitive: str, atoms: list[Atom], made: list[Value]) -> Atom | None:
    """The operand, if zero is added to an integer, or anything multiplied by one."""
    if primitive not in ("add", "sub", "mul", "div") or len(atoms) != 2:
        return None
    for one, other in (atoms, atoms[::-1])[: 1 if primitive in ("sub", "div") else 2]:
        if not isinstance(other, Constant) or one.shape != made[0].shape or one.dtype != made[0].dtype:
            continue
        by_one = primitive in ("mul", "div")  # zero may turn a float's -0.0 to 0.0
        if (by_one and other.value == 1) or (
            other.value == 0 and made[0].dtype.startswith(("int", "uint")) and not by_one
        ):
            return one
    return None


PLAIN = {
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
}


def over_ones(read: Equation) -> bool:
    """Whether a reduction is over axes of length 1, and so reduces nothing."""
    (operand,) = read.inputs
    return all(operand.shape[axis] == 1 for axis in read.params["axes"])


def unreshaped(read: Equation) -> Atom | None:
    """What was reshaped, if this makes the shape what it was."""
    operand = read.inputs[0]
    maker = operand.maker if isinstance(operand, Value) else None
    if maker is None or maker.primitive not in ("reshape", "squeeze", "broadcast_in_dim"):
        return None
    if any(one.primitive == "reshape" and one.params.get("dimensions") is not None for one in (read, maker)):
        return None
    before = maker.inputs[0]
    same = before.shape == read.shape and math.prod(before.shape) == math.prod(operand.shape)
    return before if same and before.dtype == read.dtype else None


def transposed_product(read: Equation) -> Equation | None:
    """The transpose of a matrix product is the product the other way round; derivatives are full of it."""
    product = read.inputs[0]
    if not isinstance(product, Value) or product.maker is None or product.maker.primitive != "dot_general":
        return None
    params = product.maker.params
    (left, right), (left_batch, _) = params["dimension_numbers"]
    if left_batch or len(product.shape) != 2 or tuple(read.params["permutation"]) != (1, 0) or len(left) != 1:
        return None
    if [len(a.shape) for a in product.maker.inputs] != [2, 2]:
        return None
    swapped = {**params, "dimension_numbers": ((right, left), ((), ()))}
    precision = params.get("precision")
    if isinstance(precision, tuple):
        swapped["precision"] = precision[::-1]
    inputs = product.maker.inputs[::-1]
    return Equation("dot_general", inputs, read.outputs, swapped, read.source, read.backward)


def keys_as_numbers(read: Equation) -> None:
    """Where there is no type for random keys, a key is two numbers more in the shape: adapt shape operations to it."""
    params, shape = read.params, read.outputs[0].shape
    match read.primitive:
        case "broadcast_in_dim":
            params["shape"] = shape
            params["broadcast_dimensions"] = (*params["broadcast_dimensions"], len(shape) - 1)
        case "reshape":
            params["new_sizes"] = shape
        case "transpose":
            params["permutation"] = (*params["permutation"], len(shape) - 1)
        case "slice":
            params["start_indices"] = (*params["start_indices"], 0)
            params["limit_indices"] = (*params["limit_indices"], 2)
            if params["strides"] is not None:
                params["strides"] = (*params["strides"], 1)
        case "dynamic_slice":
            params["slice_sizes"] = (*params["slice_sizes"], 2)
            read.inputs.append(Constant(np.int32(0), "int32"))
        case "dynamic_update_slice":
            read.inputs.append(Constant(np.int32(0), "int32"))
        case "gather":
            numbers = params["dimension_numbers"]
            params["dimension_numbers"] = numbers._replace(offset_dims=(*numbers.offset_dims, len(shape) - 1))
            params["slice_sizes"] = (*params["slice_sizes"], 2)
        case "select_n":
            params["keys"] = True
        case "concatenate" | "squeeze" | "rev" | "copy" | "split" | "stack" | "unstack":
            pass  # the axis more is the last one, and these do not count from the end
        case other if not other.startswith("random_"):
            raise BadInput(
                f"primitive '{other}' on random keys cannot be written for NumPy; use jax.random.key_data first"
            )
