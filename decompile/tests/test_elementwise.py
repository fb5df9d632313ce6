"""Arithmetic, comparisons, special functions, bits and types, for several shapes and types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from oracle import same

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 4)).astype(np.float32)
Y = RANDOM.normal(size=(3, 4)).astype(np.float32)
P = np.abs(X) + np.float32(0.1)
Q = np.abs(Y) + np.float32(0.1)
U = np.clip(X, -0.9, 0.9)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e30, 1e-30], np.float32)
N = RANDOM.integers(-9, 9, (3, 4)).astype(np.int32)
J = np.array([[0, 1, 2, 3], [-1, -2, 5, 0], [7, -3, 2, 1]], np.int32)

UNARY = [
    *((name, getattr(jnp, name), X) for name in (
        "exp", "exp2", "log1p", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "sign", "abs",
        "square", "cbrt", "arcsinh", "isfinite", "negative", "rint", "reciprocal", "logical_not",
    )),
    *((name, getattr(jnp, name), P + 1) for name in ("log", "sqrt", "arccosh")),
    *((name, getattr(jnp, name), U) for name in ("arcsin", "arccos", "arctan", "arctanh")),
    *((name, getattr(lax, name), P) for name in (
        "rsqrt", "logistic", "erf", "erfc", "lgamma", "digamma", "bessel_i0e", "bessel_i1e",
    )),
    ("erf_inv", lax.erf_inv, U),
    *((f"{name} of special values", getattr(jnp, name), SPECIAL) for name in (
        "exp", "log", "sqrt", "tanh", "floor", "sign", "abs", "isfinite", "isnan", "negative", "square",
    )),
    ("logistic of special values", jax.nn.sigmoid, SPECIAL),
]  # fmt: skip


@pytest.mark.parametrize("part", range(5))  # compiling a function takes a tenth of a second, and ten together the same
def test_functions_of_one_number(part):
    some = UNARY[part::5]
    same(lambda *values: [fn(x) for (_, fn, _), x in zip(some, values, strict=True)], *(x for _, _, x in some))


def test_functions_of_two_numbers():
    names = ["igamma", "igammac", "nextafter", "atan2", "pow", "rem", "max", "min", "zeta", "div"]
    same(lambda a, b: {name: getattr(lax, name)(a + 1.0, b) for name in names}, P, Q)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
@pytest.mark.parametrize("name", ["div", "rem", "max", "min", "add", "sub", "mul"])
def test_integers_wrap_and_divide_as_xla_does(name, dtype):
    """Towards zero; -1 (all ones) for a division by zero, and what is divided as its remainder."""
    least = np.iinfo(dtype).min
    a = np.append(N.ravel(), [least, np.iinfo(dtype).max]).astype(dtype)
    b = np.append(J.ravel(), [-1, 3]).astype(dtype)
    if name == "div":
        a, b = a[:-2], b[:-2]  # least / -1 is left to XLA's processor
    same(lambda x, y: getattr(lax, name)(x, y), a, b)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
@pytest.mark.parametrize("name", ["shift_left", "shift_right_logical", "shift_right_arithmetic"])
def test_shifts_also_by_more_than_there_are_bits(name, dtype):
    same(lambda x, y: getattr(lax, name)(x, y), N.astype(dtype), np.abs(J * 7).astype(dtype))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
def test_bits(dtype):
    def fn(a, b):
        return a & b, a | b, a ^ b, ~a, lax.population_count(a), lax.clz(a)

    same(fn, N.astype(dtype), J.astype(dtype))


def test_comparisons_and_choices():
    def fn(a, b):
        below = a < b
        return (below, a <= b, a == b, a != b, a > b, a >= b, ~below, jnp.where(below, a, 0.0), jnp.where(below, 1.0, b),
                jnp.where(below, 1.0, 0.0), below & (a > 0), below ^ (a > 0), jnp.where(a > 0, below, a < -1))  # fmt: skip

    same(fn, X, Y)
    same(fn, SPECIAL, SPECIAL[::-1].copy())


def test_a_choice_among_several():
    same(lambda a: lax.select_n(jnp.abs(a) % 3, a, a * 2, a * 3), N)


def test_clipping():
    same(lambda a, low: (lax.clamp(-0.5, a, 0.5), jnp.clip(a, -1, 1), jnp.clip(a, low, low + 1)), X, np.float32(0.1))


def test_powers():
    same(lambda a, b: (a**3, a**-2, a**b, a**0.5, 2.0**a, lax.pow(a, N[0, 0]), lax.integer_pow(b, 5)), P, Q)
    same(lambda a: a**3, N)
    same(lambda a, n: lax.pow(a, n), P, J)


def test_rounding():
    halves = np.array([0.5, 1.5, -0.5, -2.5, 2.3, 0.49999997, 8388609.0, np.nan, np.inf], np.float32)
    same(lambda a: (jnp.round(a), lax.round(a), jnp.trunc(a)), halves)


def test_special_functions_of_several_numbers():
    same(lambda a, b, x: lax.betainc(a, b, x), P, Q, np.clip(Q, 0, 0.9))
    same(lambda x: lax.polygamma(jnp.full_like(x, 2), x), P)


@pytest.mark.parametrize("to", ["int8", "int32", "uint8", "uint32", "bool", "float16", "float32", "complex64"])
@pytest.mark.parametrize("start", ["float32", "float16", "int32", "uint8", "bool"])
def test_conversions_saturate_where_xla_does(start, to):
    values = {"f": [1.7, -2.3, 0.0, 6e4, -6e4, np.nan, np.inf, -np.inf, 300.2], "i": [0, 1, -1, 300, -70000, 2**31 - 1],
              "u": [0, 1, 255], "b": [True, False]}[np.dtype(start).kind]  # fmt: skip
    same(lambda a: a.astype(to), np.array(values, start))


def test_conversions_out_of_complex_numbers():
    z = (X + 1j * Y).astype(np.complex64)
    same(lambda a: (a.real, a.imag, lax.convert_element_type(a.real, jnp.int32)), z)


@pytest.mark.parametrize(("exponent", "mantissa"), [(8, 7), (5, 10), (8, 23), (4, 3)])
def test_reduced_precision(exponent, mantissa):
    x = np.concatenate([SPECIAL, RANDOM.normal(size=40).astype(np.float32) * np.float32(1e3), X.ravel() * 1e-3])
    same(lambda a: lax.reduce_precision(a, exponent, mantissa), x.astype(np.float32))


@pytest.mark.parametrize("to", ["int32", "uint32", "uint8", "int16"])
def test_the_same_bits_as_another_type(to):
    def fn(a):
        there = lax.bitcast_convert_type(a, jnp.dtype(to))
        return there, lax.bitcast_convert_type(there, jnp.float32)

    same(fn, X)


def test_complex_numbers():
    z, other = (X + 1j * Y).astype(np.complex64), (Y - 2j * X).astype(np.complex64)

    def fn(a, b):
        return (a + b, a * b, a / b, -a, jnp.exp(a), jnp.sqrt(a), jnp.abs(a), jnp.angle(a), a.conj(), a.real, a.imag,
                a**2, lax.complex(a.real, b.real), a == b, jnp.sign(a), jnp.tanh(a), 1j * a, a.real + 1j * b.imag)  # fmt: skip

    same(fn, z, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8", "int16"])
def test_arithmetic_in_narrow_types(dtype):
    """bfloat16 has no NumPy type."""
    a = jnp.asarray(np.arange(1, 13).reshape(3, 4) / (2 if "float" in dtype else 1), dtype)

    def fn(x):
        return x + x, x * 3, x - 1, jnp.maximum(x, 2), x / 2, x @ x.T, jnp.sum(x), jnp.max(x, 1), x > 2

    same(fn, a, targets=("jax",) if dtype == "bfloat16" else ("numpy", "jax"))


def test_what_64_bits_hold(wide):
    a = np.random.default_rng(1).normal(size=(3, 4))

    def fn(x, n, z):
        return (x @ x.T, jnp.exp(x), x.sum(0), n * 5_000_000_000, n // 3, x.astype(int), x.astype(jnp.float32), z * z,
                jnp.abs(z), jnp.argmax(x, 0), lax.erf(x), jnp.linalg.norm(x), lax.clz(n), x.mean())  # fmt: skip

    same(fn, a, np.arange(-6, 6).reshape(3, 4), a + 1j, tolerance=1e-12)


def test_numbers_as_arguments():
    same(lambda a, n, flag: jnp.where(flag, a * n, a), 2.5, 3, True)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=0, max_size=3),
    st.lists(st.sampled_from("+-*/<=|"), min_size=1, max_size=5),
    st.integers(0, 100),
)
def test_expressions_of_any_shape_keep_their_brackets(shape, operators, seed):
    """Random trees of operators: what binds how tightly is the text's business."""
    random = np.random.default_rng(seed)
    args = [random.normal(size=shape).astype(np.float32) for _ in range(3)]

    def fn(a, b, c):
        made = [a, b, c]
        for step, operator in enumerate(operators):
            x, y = made[-1], made[step % len(made)]
            match operator:
                case "+":
                    x = x + (y - c)
                case "-":
                    x = y - (x - b)
                case "*":
                    x = (x - y) * (x + 1.0)
                case "/":
                    x = x / (y * y + 1.0) / 2.0
                case "<":
                    x = jnp.where(x < y, -x, y)
                case "=":
                    x = -((x - y) ** 2)
                case "|":
                    x = jnp.where((x > 0) | (y > 0), x, 1.0)
            made.append(x)
        return made[-1]

    same(fn, *args, tolerance=1e-4)
