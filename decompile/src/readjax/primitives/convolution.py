"""Convolutions, and reductions over moving windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from readjax import expressions as ex
from readjax.equations import Equation
from readjax.expressions import Expr
from readjax.primitives.reductions import precision_keyword, reduce_jax
from readjax.primitives.rules import extreme, parameter, plain, plain_literal, row
from readjax.writing import Rule, Writer

# JAX's names of options, and those of the copied function
_COPIED_OPTIONS = {
    "lhs_dilation": "dilation",
    "rhs_dilation": "kernel_dilation",
    "feature_group_count": "groups",
    "batch_group_count": "batch_groups",
}


def _ordered(w: Writer, operand: Expr, order: tuple[int, ...]) -> Expr:
    if order == tuple(range(len(order))):
        return operand
    shape = tuple(operand.shape[axis] for axis in order)
    return ex.call("np.transpose", operand, ex.literal(order), shape=shape)


def _convolution_numpy(w: Writer, eq: Equation) -> Expr:
    numbers = eq.params["dimension_numbers"]
    x, kernel = (
        expr if a.dtype == eq.dtype else w.cast(expr, eq.dtype)
        for expr, a in zip(w.arguments(eq), eq.inputs, strict=True)
    )
    keywords = {_COPIED_OPTIONS[name]: text for name, text in (_dilation_keywords(eq) | _group_keywords(eq)).items()}
    convolved = ex.call(
        w.copy("convolve"),
        _ordered(w, x, plain(numbers.lhs_spec)),
        _ordered(w, kernel, plain(numbers.rhs_spec)),
        parameter(eq, "window_strides"),
        parameter(eq, "padding"),
        **keywords,
    )
    back = tuple(int(axis) for axis in np.argsort(numbers.out_spec))
    if back == tuple(range(len(back))):
        return replace(convolved, shape=eq.shape)
    return ex.call("np.transpose", convolved, ex.literal(back), shape=eq.shape)


def _convolution_jax(w: Writer, eq: Equation) -> Expr:
    params, numbers = eq.params, eq.params["dimension_numbers"]
    layouts = ((numbers.lhs_spec, "NC"), (numbers.rhs_spec, "OI"), (numbers.out_spec, "NC"))
    letters = tuple(_letters(spec, lead, len(params["window_strides"])) for spec, lead in layouts)
    keywords = {**_dilation_keywords(eq), "dimension_numbers": ex.literal(letters), **_group_keywords(eq)}
    keywords |= precision_keyword(eq)
    dtype = params.get("preferred_element_type")
    if dtype is not None and str(dtype) != eq.inputs[0].dtype:
        keywords["preferred_element_type"] = w.dtype(str(dtype))
    strides, padding = parameter(eq, "window_strides"), parameter(eq, "padding")
    return w.call(eq, "lax.conv_general_dilated", strides, padding, **keywords)


def _dilation_keywords(eq: Equation) -> dict[str, Expr | str]:
    """Return the dilations of a convolution that are not all 1."""
    undilated = ((1,) * len(eq.params["window_strides"]), ())
    names = ("lhs_dilation", "rhs_dilation")
    return {name: parameter(eq, name) for name in names if plain(eq.params[name]) not in undilated}


def _group_keywords(eq: Equation) -> dict[str, Expr | str]:
    """Return the numbers of groups of a convolution that are not 1."""
    names = ("feature_group_count", "batch_group_count")
    return {name: parameter(eq, name) for name in names if eq.params[name] != 1}


def _letters(spec: tuple[int, ...], lead: str, space: int) -> str:
    """Return a layout as letters: N, C, O, I, and the axes of space."""
    names = lead + "HWDEFGJKLM"[:space]
    layout = [""] * len(spec)
    for name, axis in zip(names, spec, strict=True):
        layout[axis] = name
    return "".join(layout)


row("conv_general_dilated", jax=_convolution_jax, numpy=_convolution_numpy)


def _window_parameters(eq: Equation) -> list[Expr]:
    """Return sizes, strides, padding, and the dilations of operand and window."""
    ones = (1,) * len(eq.params["window_dimensions"])
    dilations = [plain_literal(eq.params.get(f"{of}_dilation") or ones) for of in ("base", "window")]
    return [*(parameter(eq, name) for name in ("window_dimensions", "window_strides", "padding")), *dilations]


def _window_reduction(function: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        fill = "0" if function == "sum" else extreme(eq.dtype, function == "max", "np")
        sizes, strides, padding, dilation, window_dilation = _window_parameters(eq)
        how = _dilations(dilation, window_dilation, ("dilation", "window_dilation"))
        view = ex.call(w.copy("windows"), w.typed(eq.inputs[0]), fill, sizes, strides, padding, **how)
        keywords = {"dtype": w.dtype(eq.dtype)} if function == "sum" else {}
        over = ex.literal(tuple(range(-len(eq.shape), 0)))
        return ex.call(f"np.{function}", view, axis=over, shape=eq.shape, **keywords)

    return rule


def _window_reduction_jax(function: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        word = {"sum": "add", "max": "max", "min": "min"}[function]
        start = "0" if function == "sum" else extreme(eq.dtype, function == "max", "np")
        # JAX recognises this as a sum only if the 0 is a NumPy number
        initial = f'np.asarray({start}, "{eq.dtype}")[()]' if eq.dtype == "bfloat16" else f"np.{eq.dtype}({start})"
        sizes, strides, padding, dilation, window_dilation = _window_parameters(eq)
        return w.call(
            eq,
            "lax.reduce_window",
            initial,
            f"lax.{word}",
            sizes,
            strides,
            padding,
            **_dilations(dilation, window_dilation),
        )

    return rule


def _dilations(
    dilation: Expr, window_dilation: Expr, names: tuple[str, str] = ("base_dilation", "window_dilation")
) -> dict[str, Expr | str]:
    """Return the dilations that are not all 1."""
    pairs = zip(names, (dilation, window_dilation), strict=True)
    return {name: given for name, given in pairs if not _all_ones(given)}


def _all_ones(steps: Expr) -> bool:
    return all(step.text == "1" for step in steps.items)


for _name in ("sum", "max", "min"):
    row(f"reduce_window_{_name}", jax=_window_reduction_jax(_name), numpy=_window_reduction(_name))


def _reduce_window(w: Writer, eq: Equation) -> None:
    """Write a reduction over windows by the user's own function: in NumPy a loop over the elements of a window."""
    parameters = _window_parameters(eq)
    *_, dilation, window_dilation = parameters
    if w.target == "jax":
        reduce_jax(w, eq, "lax.reduce_window", *parameters[:3], **_dilations(dilation, window_dilation))
        return
    (block,) = eq.blocks
    count = len(eq.inputs) // 2
    operands, starts = [w.named(a) for a in eq.inputs[:count]], [w.named(a) for a in eq.inputs[count:]]
    targets, flat = [w.target_of(eq, place) for place in range(count)], []  # flat: windows with a single last axis
    size = int(np.prod(eq.params["window_dimensions"]))
    for operand, start, target in zip(operands, starts, targets, strict=True):
        view = w.names.take("views")
        w.emit(f"{view} = ", ex.call(w.copy("windows"), operand, start, *parameters))
        w.emit(f"{view} = ", Expr(f"{view}.reshape(*{view}.shape[:{len(eq.shape)}], {size})", ex.CALL))
        w.emit(f"{target} = ", start)
        flat.append(view)
    padded = not _all_ones(dilation) or np.any(eq.params["padding"])  # dilation pads between the elements
    if padded:  # a value is not combined with padding, as the user's function may change it: where(within, …) keeps it
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


def _select_numpy(function: str) -> Rule:
    """Return the rule for a sum or a choice at each window's extreme."""

    def rule(w: Writer, eq: Equation) -> Expr:
        largest = str(eq.params["select_prim"]) == "ge"
        fill = extreme(eq.inputs[1].dtype, largest, "np")
        return w.call(eq, w.copy(function), fill, *_window_parameters(eq)[:3], str(largest))

    return rule


def _select_jax(*parameters: str) -> Rule:
    """Return the rule that calls the primitive, since ``lax`` has no function for it."""

    def rule(w: Writer, eq: Equation) -> Expr:
        w.module.imports.add("from jax.extend.core import primitives")
        keywords = {name: parameter(eq, name) for name in ("window_dimensions", "window_strides", *parameters)}
        select = f"primitives.{eq.params['select_prim']}_p"
        return w.call(eq, f"primitives.{eq.primitive}_p.bind", select_prim=select, **keywords)

    return rule


row("select_and_scatter_add", jax=_select_jax("padding"), numpy=_select_numpy("add_to_extremes"))
row(
    "select_and_gather_add",
    jax=_select_jax("padding", "base_dilation", "window_dilation"),
    numpy=_select_numpy("take_at_extremes"),
)
