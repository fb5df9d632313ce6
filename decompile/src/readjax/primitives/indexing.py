"""Indexing with places that are computed at run time: dynamic slices, gather, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from readjax import expressions as ex
from readjax.equations import Atom, Equation, Number, Variable
from readjax.expressions import Expr
from readjax.literals import number, short
from readjax.primitives.rules import parameter, plain, plain_literal, row
from readjax.writing import Writer


def _starts(w: Writer, atoms: Sequence[Atom]) -> Expr:
    bare = all(isinstance(a, Number) or a.dtype in ("int32", "int64") for a in atoms)  # JAX's types of bare numbers
    return ex.sequence([(w.loose(a) if bare else w.typed(a)) if isinstance(a, Number) else w.full(a) for a in atoms])


def _index_options(w: Writer, starts: Sequence[Atom]) -> dict[str, str]:
    """Return the option by which ``lax``, like the primitive, does not count negative places from the end."""
    nonnegative = all(isinstance(a, Number) and a.value >= 0 for a in starts)
    return {} if nonnegative or w.target == "numpy" else {"allow_negative_indices": "False"}


def _dynamic_slice(w: Writer, eq: Equation) -> Expr:
    return _at_starts(w, eq, 1, parameter(eq, "slice_sizes"))


def _dynamic_update_slice(w: Writer, eq: Equation) -> Expr:
    return _at_starts(w, eq, 2)


def _at_starts(w: Writer, eq: Equation, arrays: int, *sizes: Expr) -> Expr:
    """Return the call of the function of the same name with some arrays, the starts that follow, and sizes."""
    function = f"lax.{eq.primitive}" if w.target == "jax" else w.copy(eq.primitive)
    operands, starts = [w.typed(a) for a in eq.inputs[:arrays]], eq.inputs[arrays:]
    return ex.call(function, *operands, _starts(w, starts), *sizes, shape=eq.shape, **_index_options(w, starts))


row("dynamic_slice", jax=_dynamic_slice, numpy=_dynamic_slice)
row("dynamic_update_slice", jax=_dynamic_update_slice, numpy=_dynamic_update_slice)


def _mode(eq: Equation) -> str:
    return str(getattr(eq.params["mode"], "name", eq.params["mode"]))


def _fill(eq: Equation) -> Expr:
    """Return XLA's result for places that do not exist."""
    value = eq.params.get("fill_value")
    if value is not None:
        return ex.raw(number(np.asarray(value, eq.dtype)[()], "np"))
    dtype = np.dtype(eq.dtype)
    if dtype.kind in "fc":
        return ex.raw("np.nan")
    if dtype.kind == "b":
        return ex.raw("True")
    return ex.raw(str(np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min))


def _without_last(w: Writer, atom: Atom) -> Expr:
    """Return places along one axis, without the last axis of length 1 that XLA requires."""
    maker = atom.maker if isinstance(atom, Variable) else None
    if maker is not None and maker.primitive in ("broadcast_in_dim", "reshape"):
        (places,) = maker.inputs
        lead = tuple(range(len(places.shape)))
        added = places.shape == atom.shape[:-1]
        in_order = tuple(maker.params.get("broadcast_dimensions", lead)) == lead
        if added and in_order and isinstance(places, Variable) and places in w.values:
            return w.full(places)
    return ex.index(w.full(atom), "..., 0", atom.shape[:-1])


def _gather_numpy(w: Writer, eq: Equation) -> Expr:
    operand, starts = eq.inputs
    numbers, sizes, mode = eq.params["dimension_numbers"], plain(eq.params["slice_sizes"]), _mode(eq)
    axes, collapsed = plain(numbers.start_index_map), plain(numbers.collapsed_slice_dims)
    batch, lead = plain(numbers.operand_batching_dims), plain(numbers.start_indices_batching_dims)
    fill = mode == "FILL_OR_DROP"
    x = w.typed(operand)
    if (
        not batch
        and len(axes) == 1
        and collapsed == axes
        and np.prod(sizes) == np.prod(operand.shape) // max(operand.shape[axes[0]], 1)
    ):
        (axis,) = axes
        outer = len(starts.shape) - 1
        free = tuple(d for d in range(len(eq.shape)) if d not in range(axis, axis + outer))
        if plain(numbers.offset_dims) == free:  # whole slices along one axis
            places = _without_last(w, starts)
            if fill:
                return ex.call(w.copy("take"), x, places, str(axis), _fill(eq), shape=eq.shape)
            return ex.call("np.take", x, places, str(axis), mode='"clip"', shape=eq.shape)
    keywords: dict[str, Expr | str] = {
        "offset": plain_literal(numbers.offset_dims),
        "dropped": ex.literal(collapsed),
        "axes": ex.literal(axes),
        "sizes": ex.literal(sizes),
    }
    if batch:
        keywords |= {"batch": ex.literal(batch), "lead": ex.literal(lead)}
    if fill:
        keywords["fill"] = _fill(eq)
    return ex.call(w.copy("gather"), x, w.typed(starts), shape=eq.shape, **keywords)


def _numbers(kind: str, numbers: Any, fields: Sequence[str]) -> Expr:
    values = {name: plain(getattr(numbers, name, ())) for name in fields}
    keywords = {name: ex.literal(value) for name, value in values.items() if value or name in fields[:3]}
    return ex.call(f"lax.{kind}", **keywords)


def _keywords(eq: Equation) -> dict[str, Expr | str]:
    flags = {name: "True" for name in ("indices_are_sorted", "unique_indices") if eq.params.get(name)}
    return {**flags, "mode": f"lax.GatherScatterMode.{_mode(eq)}"}


def _gather_jax(w: Writer, eq: Equation) -> Expr:
    fields = (
        "offset_dims",
        "collapsed_slice_dims",
        "start_index_map",
        "operand_batching_dims",
        "start_indices_batching_dims",
    )
    numbers = _numbers("GatherDimensionNumbers", eq.params["dimension_numbers"], fields)
    keywords = _keywords(eq)
    if eq.params.get("fill_value") is not None:
        keywords["fill_value"] = number(np.asarray(eq.params["fill_value"])[()], "jnp")
    return w.call(eq, "lax.gather", numbers, parameter(eq, "slice_sizes"), **keywords)


row("gather", jax=_gather_jax, numpy=_gather_numpy)

_COMBINE = {
    "scatter": "",
    "scatter-add": "np.add",
    "scatter-sub": "np.subtract",
    "scatter-mul": "np.multiply",
    "scatter-min": "np.minimum",
    "scatter-max": "np.maximum",
}


def _scatter_keywords(eq: Equation) -> dict[str, Expr | str]:
    numbers = eq.params["dimension_numbers"]
    keywords: dict[str, Expr | str] = {
        "window": plain_literal(numbers.update_window_dims),
        "inserted": plain_literal(numbers.inserted_window_dims),
        "axes": plain_literal(numbers.scatter_dims_to_operand_dims),
    }
    if numbers.operand_batching_dims:
        keywords["batch"] = plain_literal(numbers.operand_batching_dims)
        keywords["lead"] = plain_literal(numbers.scatter_indices_batching_dims)
    if combine := _COMBINE.get(eq.primitive.replace("_", "-")):
        keywords["combine"] = combine
    if _mode(eq) == "CLIP":
        keywords["clip"] = "True"
    return keywords


def _scatter_numpy(w: Writer, eq: Equation) -> Expr:
    return w.call(eq, w.copy("scatter"), **_scatter_keywords(eq))


def _scatter_apply(w: Writer, eq: Equation) -> None:
    """Write a scatter that applies the user's own function to each element of the windows."""
    (block,) = eq.blocks
    name, element = w.names.take("change"), w.names.take("element")

    def write() -> None:
        w.values[block.inputs[0]] = ex.name(element)
        w.write_block(block)

    w.define(name, [element], write)
    x, starts, updates = w.arguments(eq)
    if w.target == "numpy":
        scattered = ex.call(w.copy("scatter"), x, starts, updates, **_scatter_keywords(eq), apply=name)
    else:
        shape = ex.literal(eq.inputs[2].shape)
        scattered = ex.call(
            "lax.scatter_apply", x, starts, name, _scatter_numbers(eq), update_shape=shape, **_keywords(eq)
        )
    w.emit(f"{w.target_of(eq, 0)} = ", scattered, comment=short(eq.dtype, eq.shape))


row("scatter_apply", jax=_scatter_apply, numpy=_scatter_apply)


def _scatter_numbers(eq: Equation) -> Expr:
    fields = (
        "update_window_dims",
        "inserted_window_dims",
        "scatter_dims_to_operand_dims",
        "operand_batching_dims",
        "scatter_indices_batching_dims",
    )
    return _numbers("ScatterDimensionNumbers", eq.params["dimension_numbers"], fields)


def _scatter_jax(w: Writer, eq: Equation) -> Expr:
    return w.call(eq, "lax." + eq.primitive.replace("-", "_"), _scatter_numbers(eq), **_keywords(eq))


for _name in _COMBINE:
    row(f"{_name} {_name.replace('-', '_')}", jax=_scatter_jax, numpy=_scatter_numpy)
