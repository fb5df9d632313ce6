"""Convolutions, and reductions over moving windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyk.decompile import expressions as ex
from anyk.decompile.equations import Equation
from anyk.decompile.expressions import Expr
from anyk.decompile.primitives.reductions import _combination, _precision
from anyk.decompile.primitives.rules import extreme, plain, row
from anyk.decompile.writing import Rule, Writer


def _ordered(w: Writer, operand: Expr, order: tuple[int, ...]) -> Expr:
    if order == tuple(range(len(order))):
        return operand
    shape = tuple(operand.shape[axis] for axis in order)
    return ex.call("np.transpose", operand, ex.literal(order), shape=shape)


def _convolution_numpy(w: Writer, eq: Equation) -> Expr:
    params, numbers = eq.params, eq.params["dimension_numbers"]
    x, kernel = (
        expr if a.dtype == eq.dtype else ex.method(expr, "astype", w.dtype(eq.dtype), shape=expr.shape)
        for expr, a in zip((w.typed(a) for a in eq.inputs), eq.inputs, strict=True)
    )
    space = len(params["window_strides"])
    keywords: dict[str, Expr | str] = {}
    for name, key in (("dilation", "lhs_dilation"), ("kernel_dilation", "rhs_dilation")):
        if plain(params[key]) not in ((1,) * space, ()):
            keywords[name] = ex.literal(plain(params[key]))
    for name, key in (("groups", "feature_group_count"), ("batch_groups", "batch_group_count")):
        if params[key] != 1:
            keywords[name] = str(params[key])
    convolved = ex.call(
        w.copy("convolve"),
        _ordered(w, x, plain(numbers.lhs_spec)),
        _ordered(w, kernel, plain(numbers.rhs_spec)),
        ex.literal(plain(params["window_strides"])),
        ex.literal(plain(params["padding"])),
        **keywords,
    )
    back = tuple(int(axis) for axis in np.argsort(numbers.out_spec))
    if back == tuple(range(len(back))):
        return replace(convolved, shape=eq.shape)
    return ex.call("np.transpose", convolved, ex.literal(back), shape=eq.shape)


def _convolution_jax(w: Writer, eq: Equation) -> Expr:
    params, numbers = eq.params, eq.params["dimension_numbers"]
    space = len(params["window_strides"])
    keywords: dict[str, Expr | str] = {}
    for key in ("lhs_dilation", "rhs_dilation"):
        if plain(params[key]) not in ((1,) * space, ()):
            keywords[key] = ex.literal(plain(params[key]))
    letters = [
        _letters(spec, lead, space)
        for spec, lead in ((numbers.lhs_spec, "NC"), (numbers.rhs_spec, "OI"), (numbers.out_spec, "NC"))
    ]
    keywords["dimension_numbers"] = ex.literal(tuple(letters))
    for key in ("feature_group_count", "batch_group_count"):
        if params[key] != 1:
            keywords[key] = str(params[key])
    if (precision := _precision(params.get("precision"))) is not None:
        keywords["precision"] = precision
    dtype = params.get("preferred_element_type")
    if dtype is not None and str(dtype) != eq.inputs[0].dtype:
        keywords["preferred_element_type"] = w.dtype(str(dtype))
    return ex.call(
        "lax.conv_general_dilated",
        *(w.typed(a) for a in eq.inputs),
        ex.literal(plain(params["window_strides"])),
        ex.literal(plain(params["padding"])),
        shape=eq.shape,
        **keywords,
    )


def _letters(spec: tuple[int, ...], lead: str, space: int) -> str:
    """Return a layout as letters: N, C, O, I, and the axes of space."""
    names = lead + "HWDEFGJKLM"[:space]
    layout = [""] * len(spec)
    for name, axis in zip(names, spec, strict=True):
        layout[axis] = name
    return "".join(layout)


row("conv_general_dilated", jax=_convolution_jax, numpy=_convolution_numpy)


def _window_parameters(eq: Equation) -> list[Expr]:
    params = eq.params
    rank = len(params["window_dimensions"])
    ones = (1,) * rank
    return [
        ex.literal(plain(params["window_dimensions"])),
        ex.literal(plain(params["window_strides"])),
        ex.literal(plain(params["padding"])),
        ex.literal(plain(params.get("base_dilation") or ones)),
        ex.literal(plain(params.get("window_dilation") or ones)),
    ]


def _window_reduction(function: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        rank = len(eq.shape)
        fill = "0" if function == "sum" else extreme(eq.dtype, function == "max", "np")
        sizes, strides, padding, dilation, window_dilation = _window_parameters(eq)
        how = _dilations(dilation, window_dilation, ("dilation", "window_dilation"))
        view = ex.call(w.copy("windows"), w.typed(eq.inputs[0]), fill, sizes, strides, padding, **how)
        keywords = {"dtype": w.dtype(eq.dtype)} if function == "sum" else {}
        over = ex.literal(tuple(range(-rank, 0)))
        return ex.call(f"np.{function}", view, axis=over, shape=eq.shape, **keywords)

    return rule


def _window_reduction_jax(function: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        word = {"sum": "add", "max": "max", "min": "min"}[function]
        start = "0" if function == "sum" else extreme(eq.dtype, function == "max", "np")
        # JAX recognises this as a sum only if the 0 is a NumPy number
        initial = f'np.asarray({start}, "{eq.dtype}")[()]' if eq.dtype == "bfloat16" else f"np.{eq.dtype}({start})"
        sizes, strides, padding, dilation, window_dilation = _window_parameters(eq)
        return ex.call(
            "lax.reduce_window",
            w.typed(eq.inputs[0]),
            initial,
            f"lax.{word}",
            sizes,
            strides,
            padding,
            **_dilations(dilation, window_dilation),
            shape=eq.shape,
        )

    return rule


def _dilations(
    dilation: Expr, window_dilation: Expr, names: tuple[str, str] = ("base_dilation", "window_dilation")
) -> dict[str, Expr | str]:
    """Return the dilations that are not all 1."""
    pairs = zip(names, (dilation, window_dilation), strict=True)
    return {name: dilation for name, dilation in pairs if any(step.text != "1" for step in dilation.items)}


for _name in ("sum", "max", "min"):
    row(f"reduce_window_{_name}", jax=_window_reduction_jax(_name), numpy=_window_reduction(_name))


def _reduce_window(w: Writer, eq: Equation) -> None:
    """Write a reduction over windows by the user's own function."""
    (block,) = eq.blocks
    count = len(eq.inputs) // 2
    operands, starts = [w.named(a) for a in eq.inputs[:count]], [w.named(a) for a in eq.inputs[count:]]
    parameters = _window_parameters(eq)
    if w.target == "jax":
        name = _combination(w, eq)
        bundles = (ex.sequence(operands), ex.sequence(starts)) if count > 1 else (operands[0], starts[0])
        reduced = ex.call(
            "lax.reduce_window", *bundles, name, *parameters[:3], **_dilations(parameters[3], parameters[4])
        )
        targets = [w.target_of(eq, place) for place in range(count)]
        w.emit(f"{', '.join(targets)} = ", reduced)
        return
    targets, flat = [w.target_of(eq, place) for place in range(count)], []
    size = int(np.prod(eq.params["window_dimensions"]))
    for operand, start, target in zip(operands, starts, targets, strict=True):
        view = w.names.take("views")
        w.emit(f"{view} = ", ex.call(w.copy("windows"), operand, start, *parameters))
        w.emit(f"{view} = ", Expr(f"{view}.reshape(*{view}.shape[:{len(eq.shape)}], {size})", ex.CALL))
        w.emit(f"{target} = ", start)
        flat.append(view)
    padded = any(step.text != "1" for step in parameters[3].items) or np.any(eq.params["padding"])
    if padded:  # padding is combined with nothing, not even with the start
        within = w.names.take("within")
        everywhere = f"np.ones({operands[0].text}.shape, np.bool_)"
        w.emit(f"{within} = ", ex.call(w.copy("windows"), everywhere, "False", *parameters))
        w.emit(f"{within} = ", Expr(f"{within}.reshape(*{within}.shape[:{len(eq.shape)}], {size})", ex.CALL))
    step = w.names.take("k")
    w.line(f"for {step} in range({size}):")
    with w.indented():
        names = [*targets, *(f"{view}[..., {step}]" for view in flat)]
        for value, name in zip(block.inputs, names, strict=True):
            w.values[value] = ex.name(name, value.shape)
        w.body(block.equations)
        combined = [w.typed(a) for a in block.outputs]
        if padded:
            pairs = zip(combined, targets, strict=True)
            combined = [ex.call("np.where", f"{within}[..., {step}]", expr, target) for expr, target in pairs]
        w.emit(f"{', '.join(targets)} = ", ex.side_by_side(combined))


row("reduce_window", jax=_reduce_window, numpy=_reduce_window)


def _window_arguments(eq: Equation) -> tuple[list[Expr], bool]:
    params = eq.params
    largest = str(params["select_prim"]) == "ge"
    return [
        ex.raw(extreme(eq.inputs[1].dtype, largest, "np")),
        ex.literal(plain(params["window_dimensions"])),
        ex.literal(plain(params["window_strides"])),
        ex.literal(plain(params["padding"])),
        ex.raw(str(largest)),
    ], largest


def _select_and_scatter_add_numpy(w: Writer, eq: Equation) -> Expr:
    arguments, _ = _window_arguments(eq)
    return ex.call(w.copy("add_to_extremes"), *(w.typed(a) for a in eq.inputs), *arguments, shape=eq.shape)


def _select_and_gather_add_numpy(w: Writer, eq: Equation) -> Expr:
    arguments, _ = _window_arguments(eq)
    return ex.call(w.copy("take_at_extremes"), *(w.typed(a) for a in eq.inputs), *arguments, shape=eq.shape)


def _select_and_scatter_add_jax(w: Writer, eq: Equation) -> Expr:
    """Return a call of the primitive, since ``lax`` has no function for it."""
    source, operand = (w.typed(a) for a in eq.inputs)
    params = eq.params
    w.module.imports.add("from jax.extend.core import primitives")
    return ex.call(
        "primitives.select_and_scatter_add_p.bind",
        source,
        operand,
        select_prim=f"primitives.{params['select_prim']}_p",
        window_dimensions=ex.literal(plain(params["window_dimensions"])),
        window_strides=ex.literal(plain(params["window_strides"])),
        padding=ex.literal(plain(params["padding"])),
        shape=eq.shape,
    )


def _select_and_gather_add_jax(w: Writer, eq: Equation) -> Expr:
    w.module.imports.add("from jax.extend.core import primitives")
    params = eq.params
    return ex.call(
        "primitives.select_and_gather_add_p.bind",
        *(w.typed(a) for a in eq.inputs),
        select_prim=f"primitives.{params['select_prim']}_p",
        window_dimensions=ex.literal(plain(params["window_dimensions"])),
        window_strides=ex.literal(plain(params["window_strides"])),
        padding=ex.literal(plain(params["padding"])),
        base_dilation=ex.literal(plain(params["base_dilation"])),
        window_dilation=ex.literal(plain(params["window_dilation"])),
        shape=eq.shape,
    )


row("select_and_scatter_add", jax=_select_and_scatter_add_jax, numpy=_select_and_scatter_add_numpy)
row("select_and_gather_add", jax=_select_and_gather_add_jax, numpy=_select_and_gather_add_numpy)
