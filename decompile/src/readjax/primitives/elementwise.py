"""Arithmetic, comparisons, special functions, bits, types: one element at a time."""

from __future__ import annotations

import numpy as np

from readjax import expressions as ex
from readjax.equations import Equation, Number
from readjax.expressions import Expr
from readjax.primitives.rules import (
    broadcast,
    bundle,
    copied,
    elementwise,
    infix,
    lax,
    lax_elementwise,
    parameter,
    row,
    rows,
)
from readjax.writing import Rule, Writer

for _name, _operator in {
    "add add_any": "+",
    "sub": "-",
    "mul": "*",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
}.items():
    row(_name, jax=infix(_operator), numpy=infix(_operator))


# the same names in jax.numpy and NumPy
@rows(
    "exp exp2 log log1p expm1 sin cos tan sinh cosh tanh sqrt cbrt floor ceil sign abs square nextafter conj real imag"
)
def _same_name(w: Writer, eq: Equation) -> Expr | None:
    return elementwise(f"{w.xp}.{eq.primitive}")(w, eq)


for _name, _called in {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "max": "maximum",
    "min": "minimum",
    "is_finite": "isfinite",
}.items():
    row(_name, jax=elementwise(f"jnp.{_called}"), numpy=elementwise(f"np.{_called}"))


def _special(function: str) -> Rule:
    """Return the rule for a function of scipy.special, in the operands' type."""

    def rule(w: Writer, eq: Equation) -> Expr:
        exprs = w.operands(eq)
        expr = ex.call(f"special.{function}", *exprs, shape=broadcast(exprs))
        if eq.dtype == "float32" and function not in ("polygamma", "zeta"):
            return expr
        return w.cast(expr, eq.dtype)

    return rule


for _name, _called in {
    "erf": "erf",
    "erfc": "erfc",
    "erf_inv": "erfinv",
    "lgamma": "gammaln",
    "digamma": "digamma",
    "igamma": "gammainc",
    "igammac": "gammaincc",
    "polygamma": "polygamma",
    "zeta": "zeta",
    "bessel_i0e": "i0e",
    "bessel_i1e": "i1e",
}.items():
    row(_name, jax=lax_elementwise(_name), numpy=_special(_called))
row("regularized_incomplete_beta", jax=lax_elementwise("betainc"), numpy=_special("betainc"))
for _name in ("igamma_grad_a", "random_gamma_grad"):
    row(_name, jax=lax_elementwise(_name))


def _ordered_jax(function: str) -> Rule:
    """Return the rule for a comparison for sorting, which ``lax`` has as a primitive only."""

    def rule(w: Writer, eq: Equation) -> Expr:
        w.module.imports.add("from jax.extend.core import primitives")
        return w.call(eq, f"primitives.{function}_p.bind")

    return rule


def _ordered_numpy(operator: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr | None:
        if not eq.inputs[0].dtype.startswith("float"):
            return infix(operator)(w, eq)
        a, b = (ex.call(w.copy("total_order"), expr, shape=eq.shape) for expr in w.arguments(eq))
        return ex.binary(operator, a, b, eq.shape)

    return rule


for _name, _operator in {"eq_to": "==", "le_to": "<=", "lt_to": "<"}.items():
    row(_name, jax=_ordered_jax(_name), numpy=_ordered_numpy(_operator))


@rows("neg not")
def _sign(w: Writer, eq: Equation) -> Expr:
    (operand,) = w.operands(eq)
    return ex.unary("-" if eq.primitive == "neg" else "~", operand, operand.shape)


def _is_integer(eq: Equation) -> bool:
    return eq.dtype.startswith(("int", "uint", "bool"))


@rows("div")
def _quotient(w: Writer, eq: Equation) -> Expr | None:
    if not _is_integer(eq):
        return infix("/")(w, eq)
    return (copied("divide_integers") if w.target == "numpy" else lax_elementwise("div"))(w, eq)


def _remainder(w: Writer, eq: Equation) -> Expr | None:
    return (copied("remainder_integers") if _is_integer(eq) else elementwise("np.fmod"))(w, eq)


row("rem", jax=lax_elementwise("rem"), numpy=_remainder)


@rows("integer_pow")
def _integer_power(w: Writer, eq: Equation) -> Expr:
    (base,) = w.operands(eq)
    power = ex.raw(str(int(eq.params["y"])))
    return ex.binary("**", base, power, base.shape)


def _power(w: Writer, eq: Equation) -> Expr | None:
    base, power = w.operands(eq)
    if eq.inputs[1].dtype != eq.dtype:
        power = w.typed(eq.inputs[1])
        power = w.cast(power, eq.dtype)
    return ex.binary("**", base, power, broadcast((base, power)))


row("pow", jax=lax_elementwise("pow"), numpy=_power)


def _reciprocal_root(w: Writer, eq: Equation) -> Expr:
    (operand,) = w.operands(eq)
    root = ex.call("np.sqrt", operand, shape=operand.shape)
    return ex.binary("/", Expr("1.0", weak=True), root, operand.shape)


row("rsqrt", jax=lax_elementwise("rsqrt"), numpy=_reciprocal_root)


def _logistic(w: Writer, eq: Equation) -> Expr:
    (operand,) = w.operands(eq)
    unit = Expr("1.0", weak=True)
    power = ex.call("np.exp", ex.unary("-", operand, operand.shape), shape=operand.shape)
    return ex.binary("/", unit, ex.binary("+", unit, power, operand.shape), operand.shape)


row("logistic", jax=lax_elementwise("logistic"), numpy=_logistic)


def _clamp(w: Writer, eq: Equation) -> Expr:
    low, x, high = (w.loose(a) for a in eq.inputs)
    if x.weak:
        x = w.typed(eq.inputs[1])
    return ex.call("np.clip", x, low, high, shape=broadcast((low, x, high)))


row("clamp", jax=lax("clamp"), numpy=_clamp)


@rows("select_n")
def _select(w: Writer, eq: Equation) -> Expr:
    selector, *cases = eq.inputs
    condition = w.typed(selector) if isinstance(selector, Number) else w.loose(selector)
    if eq.params.get("keys"):
        condition = ex.index(condition, "..., None", (*condition.shape, 1))
    if selector.dtype == "bool":
        exprs = [w.loose(a) for a in cases]
        if all(expr.weak for expr in exprs):
            exprs[1] = w.typed_number(exprs[1], eq.outputs[0])
        shape = broadcast([condition, *exprs])
        return ex.call(f"{w.xp}.where", condition, exprs[1], exprs[0], shape=shape)
    exprs = [w.typed(a) for a in cases]
    if w.target == "jax":
        return ex.call("lax.select_n", w.full(selector), *exprs, shape=eq.shape)
    return ex.call("np.choose", condition, ex.sequence(exprs), mode='"clip"', shape=broadcast([condition, *exprs]))


def _complex_numpy(w: Writer, eq: Equation) -> Expr:
    exprs = w.arguments(eq)
    parts = ex.sequence(exprs)
    if any(expr.shape != eq.shape for expr in exprs):
        parts = ex.call("np.broadcast_arrays", *exprs)
    pair = ex.call("np.stack", parts, "-1", shape=(*eq.shape, 2))
    return ex.index(ex.method(pair, "view", w.dtype(eq.dtype)), "..., 0", eq.shape)


row("complex", jax=lax_elementwise("complex"), numpy=_complex_numpy)


@rows("round")
def _round(w: Writer, eq: Equation) -> Expr | None:
    even = int(eq.params["rounding_method"]) == 1
    if w.target == "jax":
        return (elementwise("jnp.round") if even else lax("round"))(w, eq)
    return (elementwise("np.rint") if even else copied("round_half_away"))(w, eq)


def _convert_numpy(w: Writer, eq: Equation) -> Expr:
    (operand,) = w.operands(eq)
    start = np.dtype(eq.inputs[0].dtype) if eq.inputs[0].dtype != "bfloat16" else None
    end = np.dtype(eq.dtype)
    dtype = w.dtype(eq.dtype)
    if start is not None and start.kind == "f" and end.kind in "iu":
        return ex.call(w.copy("to_integer"), operand, dtype, shape=operand.shape)
    if start is not None and start.kind == "c" and end.kind != "c":
        operand = ex.attribute(operand, "real", operand.shape)
        if end.kind in "iu":
            return ex.call(w.copy("to_integer"), operand, dtype, shape=operand.shape)
    return ex.method(operand, "astype", dtype, shape=operand.shape)


def _convert_jax(w: Writer, eq: Equation) -> Expr:
    (operand,) = w.operands(eq)
    dtype = w.dtype(eq.dtype)
    if eq.inputs[0].dtype.startswith("complex") and not eq.dtype.startswith("complex"):
        operand = ex.attribute(operand, "real", operand.shape)
    return ex.method(operand, "astype", dtype, shape=operand.shape)


row("convert_element_type", jax=_convert_jax, numpy=_convert_numpy)


@rows("reduce_precision")
def _reduce_precision(w: Writer, eq: Equation) -> Expr:
    function = "lax.reduce_precision" if w.target == "jax" else w.copy("reduce_precision")
    return w.call(eq, function, parameter(eq, "exponent_bits"), parameter(eq, "mantissa_bits"))


@rows("bitcast_convert_type")
def _bitcast(w: Writer, eq: Equation) -> Expr:
    function = "lax.bitcast_convert_type" if w.target == "jax" else w.copy("bitcast")
    return w.call(eq, function, w.dtype(eq.dtype))


def _arithmetic_shift(w: Writer, eq: Equation) -> Expr | None:
    if eq.dtype.startswith("uint"):  # the sign bit counts here as well
        operand = w.typed(eq.inputs[0])
        signed = ex.method(operand, "view", w.dtype(eq.dtype[1:]), shape=operand.shape)
        by = ex.method(w.typed(eq.inputs[1]), "astype", w.dtype(eq.dtype[1:]))
        shifted = ex.binary(">>", signed, by, eq.shape)
        return ex.method(shifted, "view", w.dtype(eq.dtype), shape=eq.shape)
    return infix(">>")(w, eq)


def _logical_shift(w: Writer, eq: Equation) -> Expr | None:
    return (infix(">>") if eq.dtype.startswith("uint") else copied("shift_right_logical"))(w, eq)


row("shift_left", jax=lax_elementwise("shift_left"), numpy=infix("<<"))
row("shift_right_arithmetic", jax=lax_elementwise("shift_right_arithmetic"), numpy=_arithmetic_shift)
row("shift_right_logical", jax=lax_elementwise("shift_right_logical"), numpy=_logical_shift)


def _count_ones(w: Writer, eq: Equation) -> Expr:
    operand = w.typed(eq.inputs[0])
    if eq.inputs[0].dtype.startswith("int"):  # NumPy counts the bits of the absolute value
        operand = ex.method(operand, "view", w.dtype("u" + eq.dtype))
    return ex.method(ex.call("np.bitwise_count", operand), "astype", w.dtype(eq.dtype), shape=eq.shape)


row("population_count", jax=lax_elementwise("population_count"), numpy=_count_ones)
row("clz", jax=lax_elementwise("clz"), numpy=copied("leading_zeros"))
row("mulhi", jax=lax_elementwise("mulhi"), numpy=copied("high_product"))


def _barrier(w: Writer, eq: Equation) -> Expr:
    return ex.call("lax.optimization_barrier", bundle(w.arguments(eq)), shape=eq.shape)


row("optimization_barrier", jax=_barrier)
