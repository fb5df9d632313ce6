"""Names that would hide others, empty axes and windows, NaN and signed zeros where XLA orders them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from readjax import ReadJaxError, to_python

pytestmark = pytest.mark.slow

NT = namedtuple("NT", "a b")
ONES = np.ones(3, np.float32)
ODD = np.array([3, np.nan, 1, 2], np.float32)


@jax.jit
def scale(x: Any) -> Any:
    y = jnp.sin(x) * 2
    z = jnp.cos(y) + x
    return z * y - jnp.exp(x) + jnp.tanh(z)


def constant(x: Any, CONSTANT: Any) -> Any:
    return x + np.array([1.0, 2.0, 3.0], np.float32) * CONSTANT


def constants(x: Any, CONSTANT_2: Any) -> Any:
    return x * np.array([1.0, 2.0, 3.0], np.float32) + np.array([4.0, 2.0, 3.0], np.float32) * CONSTANT_2


def padded(x: Any, pad: Any) -> Any:
    return lax.pad(x, pad[0], ((1, 0, 1),))


def taken(x: Any, take: Any) -> Any:
    return jnp.asarray(x).at[jnp.array([0, 7])].get(mode="fill") * take[0]


def nested(x: Any, scale_: Any) -> Any:
    return scale(x) + scale(scale_)


def tupled(x: Any, NT: Any) -> Any:
    return globals()["NT"](x, NT)


def pooled(x: Any, primitives: Any) -> Any:
    def total(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID").sum()

    return jax.grad(total)(x) * primitives


def equal(function: Any, *arguments: Any) -> None:
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for target in ("numpy", "jax"):
        found = jax.tree.leaves(to_python(function, *arguments, target=target).function()(*arguments))
        for one, other in zip(found, expected, strict=True):
            assert np.asarray(one).dtype == other.dtype and np.shape(one) == other.shape, target
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=target)


@pytest.mark.parametrize("function", [constant, constants, padded, taken, nested, tupled, pooled])
def test_a_parameter_hides_nothing_that_the_text_calls(function: Any) -> None:
    equal(function, np.array([0.5, 1.5, -1.0], np.float32), np.full(3, 5, np.float32))


def test_names_that_the_text_needs_are_refused() -> None:
    with pytest.raises(ReadJaxError, match="names that the text itself uses: pad"):
        to_python(lambda x, y: x + y, ONES, ONES, names=["pad", "y"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.partition(x, 1),
        lambda x: jnp.argpartition(x, 1),
        lambda x: lax.top_k(-x, 2),
        lambda x: lax.top_k(jnp.array([-0.0, 0.0, -1.0]) * x[:3].at[1].set(1.0), 2)[1],
        lambda x: jnp.searchsorted(jnp.array([0.0, 1.0]), x.at[2].set(-0.0), method="compare_all"),
    ],
)
def test_nan_and_signed_zeros_are_ordered_as_by_xla(function: Any) -> None:
    equal(function, ODD)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: lax.reduce_max(x, (0,)), [np.zeros(0, bool)]),
        (lambda x: jnp.min(x, axis=0, initial=True), [np.zeros((0, 2), bool)]),
        (lambda x: lax.reduce_window(x, 2.0, lax.add, (2,), (1,), "SAME"), [0 * ONES]),
        (lambda x: lax.reduce_window(x, 2.0, lax.mul, (2,), (1,), "SAME"), [ONES]),
        (lambda x: lax.reduce_window(x, np.float32(3), lambda a, b: a + b, (2,), (1,), ((1, 1),), base_dilation=(2,)), [ONES]),
        (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"), [np.zeros((0, 4), np.float32)]),
        (jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID").sum()), [np.zeros((0, 4), np.float32)]),
        (lambda x: lax.reduce_window(x, 2.0, lax.mul, (2,), (1,), "SAME"), [np.zeros(0, np.float32)]),
        (lambda x: lax.reduce_window(x, np.int16(32767), lax.min, (2,), (1,), "SAME"), [np.arange(4, dtype=np.int16)]),
        (lambda x: lax.reduce_max(x, (0,)), [np.zeros((0, 2), np.int8)]),
        (lambda x: lax.reduce_min(x, (0,)), [np.zeros((0, 2), np.uint32)]),
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (5,), (1,), "VALID"), [ONES]),
        (lambda x, k: lax.conv(x, k, (1, 1), "SAME"), [np.ones((0, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)]),
        (lambda x, k: lax.conv(x, k, (1, 1), "VALID"), [np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 3, 3), np.float32)]),
        (lambda x, k: lax.conv(x, k, (1, 1), "SAME"), [np.ones((2, 0, 4, 4), np.float32), np.ones((3, 0, 3, 3), np.float32)]),
        (lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 0), [np.ones((3, 2), np.float32), np.uint8(200)]),
        (lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 0), [np.ones((3, 2), np.float32), np.int8(1)]),
    ],
)  # fmt: skip
def test_nothing_to_reduce_or_nowhere_to_look(function: Any, arguments: list[Any]) -> None:
    equal(function, *arguments)
