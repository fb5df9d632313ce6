"""Shapes: reshaping, broadcasting, joining and splitting."""

from __future__ import annotations

from collections.abc import Sequence

from readjax import expressions as ex
from readjax.equations import Atom, Equation, Number, Variable
from readjax.expressions import Expr
from readjax.primitives.rules import lax, parameter, plain, plain_literal, row, rows, unchanged
from readjax.writing import Writer


@rows("broadcast_in_dim")
def _broadcast(w: Writer, eq: Equation) -> Expr:
    """Return the operand with the new axes that broadcasting needs; it is not expanded to its full shape."""
    operand = w.loose(eq.inputs[0])
    shape, places = eq.shape, tuple(eq.params["broadcast_dimensions"])
    if not operand.shape:
        return operand
    if operand.shape != eq.inputs[0].shape:
        operand = w.full(eq.inputs[0])
    first = places[0] if places else 0
    axes = [places.index(axis) if axis in places else None for axis in range(first, len(shape))]
    if None not in axes:
        return operand
    while axes and axes[-1] is not None and axes[-2:-1] != [None]:
        axes.pop()
    what = ", ".join("None" if axis is None else ":" for axis in axes)
    if len(axes) > 2 and axes[-1] is None and None not in axes[:-1]:
        what = "..., None"
    operand_shape = tuple(
        operand.shape[places.index(axis)] if axis in places else 1 for axis in range(first, len(shape))
    )
    return ex.index(operand, what, operand_shape)


@rows("reshape")
def _reshape(w: Writer, eq: Equation) -> Expr:
    operand = w.typed(eq.inputs[0])
    dimensions = eq.params.get("dimensions")
    if dimensions is not None:
        operand = ex.call(f"{w.xp}.transpose", operand, plain_literal(dimensions))
    old, new = eq.inputs[0].shape, eq.shape
    if len(new) == 1 and len(old) > 1:
        return ex.method(operand, "reshape", "-1", shape=new)
    return ex.method(operand, "reshape", *(map(str, new) if new else ["()"]), shape=new)


@rows("squeeze")
def _squeeze(w: Writer, eq: Equation) -> Expr:
    rank = len(eq.inputs[0].shape)
    places = {axis % rank: 0 for axis in eq.params["dimensions"]}
    operand = _sliced(w, eq.inputs[0], places) or w.typed(eq.inputs[0])
    indices = [str(places[axis]) if axis in places else ":" for axis in range(rank)]
    while indices and indices[-1] == ":":
        indices.pop()
    return ex.index(operand, ", ".join(indices), eq.shape) if indices else operand


def _sliced(w: Writer, atom: Atom, places: dict[int, int]) -> Expr | None:
    """Return the array of a slice with one element, and set its place in ``places``: x[2:3][0] is x[2]."""
    maker = atom.maker if isinstance(atom, Variable) else None
    if maker is None or maker.primitive != "slice" or maker.inputs[0] not in w.values:
        return None
    (sliced,) = maker.inputs
    if any(sliced.shape[axis] != atom.shape[axis] for axis in range(len(sliced.shape)) if axis not in places):
        return None
    for axis in places:
        places[axis] = int(maker.params["start_indices"][axis])
    return w.typed(sliced)


@rows("expand_dims")
def _expand(w: Writer, eq: Equation) -> Expr:
    return w.call(eq, f"{w.xp}.expand_dims", repr(plain(eq.params["dimensions"])))


@rows("transpose")
def _transpose(w: Writer, eq: Equation) -> Expr:
    operand = w.typed(eq.inputs[0])
    order = tuple(eq.params["permutation"])
    if order == tuple(range(len(order))):
        return operand
    if order == tuple(reversed(range(len(order)))):
        return ex.attribute(operand, "T", eq.shape)
    if order == (*range(len(order) - 2), len(order) - 1, len(order) - 2):
        return ex.attribute(operand, "mT", eq.shape)
    return ex.method(operand, "transpose", *map(str, order), shape=eq.shape)


@rows("rev")
def _reverse(w: Writer, eq: Equation) -> Expr:
    operand = w.typed(eq.inputs[0])
    reversed_axes = {int(axis) for axis in eq.params["dimensions"]}
    if not reversed_axes:
        return operand
    what = ["::-1" if axis in reversed_axes else ":" for axis in range(max(reversed_axes) + 1)]
    return ex.index(operand, ", ".join(what), eq.shape)


@rows("slice")
def _slice(w: Writer, eq: Equation) -> Expr:
    operand = w.typed(eq.inputs[0])
    strides = eq.params["strides"] or (1,) * len(operand.shape)
    parts = [
        _range(*bounds)
        for bounds in zip(operand.shape, eq.params["start_indices"], eq.params["limit_indices"], strides, strict=True)
    ]
    while parts and parts[-1] == ":":
        parts.pop()
    return ex.index(operand, ", ".join(parts), eq.shape) if parts else operand


def _range(length: int, start: int, limit: int, stride: int) -> str:
    first = str(start) if start else ""
    last = str(limit) if limit < length else ""
    return f"{first}:{last}" + (f":{stride}" if stride != 1 else "")


@rows("iota")
def _count(w: Writer, eq: Equation) -> Expr:
    """Write a count along one axis; the other axes are broadcast."""
    axis, shape = int(eq.params["dimension"]), eq.shape
    count = ex.call(f"{w.xp}.arange", str(shape[axis]), shape=(shape[axis],), dtype=w.dtype(eq.dtype))
    if axis == len(shape) - 1:
        return count
    after = len(shape) - 1 - axis
    return ex.index(count, ", ".join([":"] + ["None"] * after), (shape[axis],) + (1,) * after)


@rows("concatenate")
def _concatenate(w: Writer, eq: Equation) -> Expr:
    return ex.call(f"{w.xp}.concatenate", ex.sequence(w.arguments(eq), "[]"), *_axis(eq), shape=eq.shape)


@rows("stack")
def _stack(w: Writer, eq: Equation) -> Expr:
    return ex.call(f"{w.xp}.stack", ex.sequence(w.arguments(eq), "[]"), *_axis(eq), shape=eq.shape)


def _axis(eq: Equation) -> list[str]:
    """Return the axis as an argument, unless it is the first."""
    axis = int(eq.params.get("axis", eq.params.get("dimension", 0)))
    return [str(axis)] if axis else []


@rows("unstack")
def _unstack(w: Writer, eq: Equation) -> Expr:
    parts = w.call(eq, f"{w.xp}.unstack", axis=(_axis(eq) or ["0"])[0])
    return parts if len(eq.outputs) > 1 else ex.index(parts, "0", eq.shape)


@rows("split")
def _split(w: Writer, eq: Equation) -> Expr:
    sizes = eq.params["sizes"]
    boundaries = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]
    places = str(len(sizes)) if len(set(sizes)) == 1 else repr(boundaries)
    parts = w.call(eq, f"{w.xp}.split", places, *_axis(eq))
    return parts if len(eq.outputs) > 1 else ex.index(parts, "0", eq.shape)


@rows("tile")
def _tile(w: Writer, eq: Equation) -> Expr:
    return w.call(eq, f"{w.xp}.tile", parameter(eq, "reps"))


def _pad(w: Writer, eq: Equation) -> Expr:
    operand, value = w.typed(eq.inputs[0]), w.loose(eq.inputs[1])
    ends: Sequence[tuple[int, int, int]] = plain(eq.params["padding_config"])
    if w.target == "jax":
        return w.call(eq, "lax.pad", ex.literal(ends))
    if any(inner or min(low, high) < 0 for low, high, inner in ends):
        return ex.call(w.copy("pad"), operand, value, *(repr(end) for end in ends), shape=eq.shape)
    widths = ex.literal(tuple((low, high) for low, high, _ in ends))
    zero = isinstance(eq.inputs[1], Number) and not eq.inputs[1].value
    keywords = {} if zero else {"constant_values": value}
    return ex.call("np.pad", operand, widths, shape=eq.shape, **keywords)


row("pad", jax=_pad, numpy=_pad)


@rows("empty empty2 zeros_like")
def _zeros(w: Writer, eq: Equation) -> Expr:
    zero = "False" if eq.dtype == "bool" else "0" if eq.dtype.startswith(("int", "uint")) else "0.0"
    return Expr(zero, free=True, weak=True)


row("copy copy_p", jax=lax("copy"), numpy=unchanged)
row("stop_gradient name pvary random_clone", jax=unchanged, numpy=unchanged)
