"""Simplification of equations: constant results, operations without effect, unused results, keys without a type."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from readjax.equations import Atom, Block, Equation, Number, Variable
from readjax.errors import ReadJaxError
from readjax.literals import NUMPY_TYPES

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
    """Remove unused equations and count the uses of values; a use within a loop or branch counts twice."""
    own = {id(value) for value in block.inputs}
    used: dict[int, Variable] = {}

    def use(atom: Atom, times: int = 1) -> None:
        if isinstance(atom, Variable):
            atom.uses += times
            used[id(atom)] = atom

    for atom in block.outputs:
        use(atom)
    equations = []
    for equation in reversed(block.equations):
        if not any(value.uses for value in equation.outputs):
            continue
        _drop_outputs(equation)
        captured: dict[int, Variable] = {}
        for inner in equation.blocks:
            prune(inner)
            captured |= {id(value): value for value in inner.captured}
        equation.captured = list(captured.values())
        for atom in equation.inputs:
            use(atom)
        for value in equation.captured:
            use(value, 2)
        own |= {id(value) for value in equation.outputs}
        equations.append(equation)
    block.equations = equations[::-1]
    block.captured = [value for key, value in used.items() if key not in own]


def _drop_outputs(equation: Equation) -> None:
    """Remove the unused outputs of a conditional or a loop."""
    if equation.primitive == "cond":
        places = [place for place, value in enumerate(equation.outputs) if value.uses]
    elif equation.primitive == "scan":
        carries = equation.params["carries"]
        places = [place for place, value in enumerate(equation.outputs) if value.uses or place < carries]
    else:
        return
    equation.outputs = [equation.outputs[place] for place in places]
    for block in equation.blocks:
        block.outputs = [block.outputs[place] for place in places]


def fold(primitive: str, atoms: list[Atom], outputs: list[Variable]) -> Number | None:
    """Return the result if all operands are numbers."""
    constants = [a for a in atoms if isinstance(a, Number)]
    if len(outputs) != 1 or outputs[0].shape or not atoms or len(constants) < len(atoms):
        return None
    kind = np.dtype(outputs[0].dtype).kind if outputs[0].dtype in NUMPY_TYPES else ""
    values = [a.value for a in constants]
    with np.errstate(all="ignore"):
        if primitive == "convert_element_type" and kind and atoms[0].dtype in NUMPY_TYPES:
            from_kind = np.dtype(atoms[0].dtype).kind
            if from_kind in "fc" and kind not in "fc":
                return None  # each target rounds numbers out of range in its own way
            return Number(np.asarray(values[0]).astype(outputs[0].dtype)[()], outputs[0].dtype)
        if primitive in _COMPARED and all(a.dtype in NUMPY_TYPES for a in atoms):
            return Number(np.bool_(_COMPARED[primitive](*values)), "bool")
        if primitive == "select_n" and atoms[0].dtype == "bool":
            return Number(values[1 + int(values[0])], outputs[0].dtype)
        if kind == "f" and primitive == "div":
            return Number(values[0] / values[1], outputs[0].dtype)
        if kind in ("f", "i") and primitive in _FOLDED and all(a.dtype == outputs[0].dtype for a in atoms):
            if primitive == "sqrt" and kind != "f":
                return None
            return Number(np.asarray(_FOLDED[primitive](*values)).astype(outputs[0].dtype)[()], outputs[0].dtype)
    return None


def unchanged_operand(primitive: str, atoms: list[Atom], outputs: list[Variable]) -> Atom | None:
    """Return the operand if zero is added to an integer, or a number is multiplied by one."""
    if primitive not in ("add", "sub", "mul", "div") or len(atoms) != 2:
        return None
    for operand, other in (atoms, atoms[::-1])[: 1 if primitive in ("sub", "div") else 2]:
        if not isinstance(other, Number) or operand.shape != outputs[0].shape or operand.dtype != outputs[0].dtype:
            continue
        by_one = primitive in ("mul", "div")  # adding zero may turn a float's -0.0 into 0.0
        if (by_one and other.value == 1) or (
            other.value == 0 and outputs[0].dtype.startswith(("int", "uint")) and not by_one
        ):
            return operand
    return None


def reduces_nothing(equation: Equation) -> bool:
    """Return whether all axes of a reduction have length 1."""
    (operand,) = equation.inputs
    return all(operand.shape[axis] == 1 for axis in equation.params["axes"])


def undo_reshape(equation: Equation) -> Atom | None:
    """Return the original array if an equation restores its shape."""
    operand = equation.inputs[0]
    maker = operand.maker if isinstance(operand, Variable) else None
    if maker is None or maker.primitive not in ("reshape", "squeeze", "broadcast_in_dim"):
        return None
    if any(step.primitive == "reshape" and step.params.get("dimensions") is not None for step in (equation, maker)):
        return None
    original = maker.inputs[0]
    same = original.shape == equation.shape and math.prod(original.shape) == math.prod(operand.shape)
    return original if same and original.dtype == equation.dtype else None


def transposed_product(equation: Equation) -> Equation | None:
    """Return the transpose of a matrix product as a product in the other order; derivatives are full of these."""
    product = equation.inputs[0]
    if not isinstance(product, Variable) or product.maker is None or product.maker.primitive != "dot_general":
        return None
    params = product.maker.params
    (axes, other_axes), (batch, _) = params["dimension_numbers"]
    if batch or len(product.shape) != 2 or tuple(equation.params["permutation"]) != (1, 0) or len(axes) != 1:
        return None
    if [len(atom.shape) for atom in product.maker.inputs] != [2, 2]:
        return None
    swapped = {**params, "dimension_numbers": ((other_axes, axes), ((), ()))}
    precision = params.get("precision")
    if isinstance(precision, tuple):
        swapped["precision"] = precision[::-1]
    inputs = product.maker.inputs[::-1]
    return Equation("dot_general", inputs, equation.outputs, swapped, equation.source, equation.backward)


def add_key_axis(equation: Equation) -> None:
    """Adapt an operation on the shape of random keys to keys that are arrays with a further axis of length 2."""
    params, shape = equation.params, equation.outputs[0].shape
    match equation.primitive:
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
            equation.inputs.append(Number(np.int32(0), "int32"))
        case "dynamic_update_slice":
            equation.inputs.append(Number(np.int32(0), "int32"))
        case "gather":
            numbers = params["dimension_numbers"]
            params["dimension_numbers"] = numbers._replace(offset_dims=(*numbers.offset_dims, len(shape) - 1))
            params["slice_sizes"] = (*params["slice_sizes"], 2)
        case "select_n":
            params["keys"] = True
        case "concatenate" | "squeeze" | "rev" | "copy" | "split" | "stack" | "unstack":
            pass  # the further axis is the last, and these do not count from the end
        case other if not other.startswith("random_"):
            raise ReadJaxError(
                f"primitive '{other}' on random keys cannot be written for NumPy; use jax.random.key_data first"
            )
