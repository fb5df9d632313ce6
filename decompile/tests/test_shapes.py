"""Shapes, products, reductions, sorting."""

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
N = RANDOM.integers(-9, 9, (3, 4)).astype(np.int32)
HOLES = X.copy()
HOLES[1, 2] = np.nan

CASES = {
    "reshape": lambda a: (a.reshape(-1), a.reshape(2, 6), a.reshape(1, 3, 1, 4), a.reshape(3, 2, 2).reshape(12)),
    "transpose": lambda a: (a.T, a.reshape(3, 2, 2).transpose(1, 0, 2), a.reshape(3, 2, 2).transpose(0, 2, 1), a.T.T),
    "new axes": lambda a: (a[:, None], a[None], a[..., None], a.sum()[None, None]),
    "slices": lambda a: (a[1:], a[:, ::2], a[1:3, 1], a[0], a[-1], a[1:2, 3:], a[::-1], a[:, ::-1], a[2:0:-1]),
    "squeeze": lambda a: (a[:1].squeeze(), a[:1, 1:2].squeeze(), jnp.squeeze(a[:, 1:2], 1)),
    "broadcast": lambda a: (jnp.broadcast_to(a, (2, 3, 4)), jnp.broadcast_to(a[0], (3, 4)), a * a.sum(0), a + a.sum(1)[:, None]),
    "full": lambda a: (jnp.zeros((2, 3)), jnp.ones(3) * 2, jnp.full((2,), 7), jnp.zeros_like(a), jnp.zeros(2, bool)),
    "iota": lambda a: (jnp.arange(5), lax.broadcasted_iota(jnp.int32, (3, 4), 0), lax.broadcasted_iota(jnp.float32, (3, 4), 1)),
    "eye": lambda a: (jnp.eye(3), jnp.tri(3), jnp.triu(a), jnp.tril(a, 1), jnp.diag(a[0]), jnp.diag(a[:, :3])),
    "concatenate": lambda a: (jnp.concatenate([a, a]), jnp.concatenate([a, a[:, :1]], 1), jnp.stack([a, a], 1), jnp.hstack([a, a])),
    "split": lambda a: (jnp.split(a, 2, 1), jnp.split(a, [1, 3], 1), jnp.unstack(a), jnp.split(a, 3)),
    "tile": lambda a: (jnp.tile(a, (2, 1)), jnp.repeat(a, 2, 0), jnp.roll(a, 1, 1)),
    "pad": lambda a: (jnp.pad(a, 1), lax.pad(a, 0.0, ((1, -1, 0), (0, 2, 1))), jnp.pad(a, ((1, 0), (2, 1)), constant_values=3.0)),
    "pad by edges": lambda a: (jnp.pad(a, 1, mode="edge"), jnp.pad(a, 1, mode="reflect")),
    "cross and kron": lambda a: (jnp.cross(a[:, :3], a[:, 1:]), jnp.kron(a[:2, :2], a[:2])),
    "mean and spread": lambda a: (a.mean(), a.mean(0), a.std(), a.var(1), jnp.median(a), jnp.quantile(a, 0.3, axis=0)),
    "softmax": lambda a: (jax.nn.softmax(a), jax.nn.log_softmax(a, 0), jax.nn.logsumexp(a, 1)),
    "norms": lambda a: (jnp.linalg.norm(a), jnp.linalg.norm(a, axis=1), jnp.trace(a), jnp.ptp(a)),
    "running": lambda a: (jnp.cumsum(a, 0), jnp.cumprod(a, 1), lax.cummax(a, 0), lax.cummin(a, 1, reverse=True), lax.cumlogsumexp(a, 1), lax.cumsum(a, 0, reverse=True)),
    "sort": lambda a: (jnp.sort(a, 0), jnp.sort(a), jnp.argsort(a, 1), jnp.sort(a, descending=True)),
    "sort by keys": lambda a: (lax.sort((a, -a), num_keys=1), lax.sort((a > 0, a, a + 1), num_keys=2, dimension=0)),
    "top k": lambda a: (lax.top_k(a, 2), lax.top_k(-a, 3), lax.top_k(jnp.abs(a).T, 1)),
    "approximate top k": lambda a: (lax.approx_max_k(a, 2), lax.approx_min_k(a, 2)),
    "searching": lambda a: (jnp.searchsorted(jnp.sort(a[0]), a[1]), jnp.interp(a[0], jnp.sort(a[1]), a[2])),
    "unique": lambda a: (jnp.unique(jnp.floor(a), size=5), jnp.nonzero(a > 0, size=4)),
    "holes": lambda a: (jnp.nansum(a), jnp.nanmax(a, 0), jnp.nan_to_num(a), jnp.isnan(a)),
    "resize": lambda a: (jax.image.resize(a, (5, 7), "bilinear"), jax.image.resize(a, (6, 4), "nearest")),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_shapes_and_orders(what):
    same(CASES[what], X, traced=what not in ("unique", "eye"))


@pytest.mark.parametrize("x", [X, N, HOLES, X.astype(np.float16), N.astype(np.uint8)], ids=lambda x: str(x.dtype))
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reductions(name, x):
    fn = getattr(jnp, name)
    if name.startswith("arg"):
        same(lambda a: (fn(a), fn(a, 0), fn(a, 1)), x)
    else:
        same(lambda a: (fn(a), fn(a, 0), fn(a, 1), fn(a, (0, 1)), fn(a, 1, keepdims=True), fn(a[:1], 0)), x)


def test_logical_reductions():
    def fn(a, n):
        return (jnp.any(a > 0), jnp.all(a > 0, 1), (a > 0).sum(), lax.reduce_xor(a > 0, (0,)), lax.reduce_and(n, (0,)),
                lax.reduce_or(n, (1,)), lax.reduce_xor(n, (0, 1)), jnp.max(a > 0, 0))  # fmt: skip

    same(fn, X, N)


def test_reductions_of_nothing():
    same(lambda a: (a.sum(0), a.prod(), lax.reduce_max(a, (0,)), lax.reduce_min(a, (0,))), X[:0])


def test_reductions_by_a_users_function():
    same(lambda a: lax.reduce(a, np.float32(-1), lambda p, q: jnp.where(p > q, p, q) * 1.5, (1,)), X, traced=False)

    def best(p, q):
        better = p[0] > q[0]
        return jnp.where(better, p[0], q[0]), jnp.where(better, p[1], q[1])

    same(lambda a, b: lax.reduce((a, b), (np.float32(-9), np.int32(0)), best, (1,)), X, N)


def test_ties_and_holes_sort_alike():
    ties = np.array([[3, 1, 3, 2, 1], [0, 0, 0, 0, 0]], np.float32)
    ties[1, 2], ties[1, 3] = np.nan, -0.0
    same(lambda a: (lax.top_k(a, 3), jnp.argsort(a), jnp.sort(a), jnp.argmax(a, 1), jnp.argmin(a, 1)), ties)
    same(lambda a: (lax.top_k(a, 3), jnp.argsort(a), jnp.sort(a)), ties[:1].astype(np.uint8))


def test_matrix_products_as_such():
    texts = same(lambda a, b: (a @ b.T, a.T @ b, a[0] @ b[0], a @ b[0], a[:, 0] @ b, (a.T @ b).T), X, Y)
    assert "einsum" not in texts["numpy"] + texts["jax"]


A, B = RANDOM.normal(size=(2, 3, 4)).astype(np.float32), RANDOM.normal(size=(2, 4, 5)).astype(np.float32)


@pytest.mark.parametrize("terms", [
    "bij,bjk->bik", "bij,bjk->bki", "bij,cjk->bcik", "bij,bjk->kb", "bij,djk->ik", "bij,bik->bjk", "bij,bij->b",
    "bij,bij->", "bij,kjb->ik", "bij,bkj->bik", "bij,klj->bikl", "bij,jk->bik", "bij,kj->bik", "i,j->ij", "bij,b->bij",
])  # fmt: skip
def test_products_with_any_dimension_numbers(terms):
    first, second = terms.partition("->")[0].split(",")
    sizes = {"b": 2, "i": 3, "j": 4, "k": 5, "c": 2, "d": 2, "l": 3}
    a, b = (RANDOM.normal(size=[sizes[letter] for letter in part]).astype(np.float32) for part in (first, second))
    same(lambda x, y: jnp.einsum(terms, x, y), a, b)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "float16", "complex64", "bool"])
def test_products_of_other_types(dtype):
    a, b = (RANDOM.integers(0, 5, (3, 4)).astype(dtype) for _ in range(2))
    same(lambda x, y: (x @ y.T, jnp.einsum("ij,ij->i", x, y)), a, b)


def test_products_that_say_how():
    def fn(a, b, n):
        return (jnp.dot(a, b.T, precision="highest"),
                lax.dot_general(n, n, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32),
                jnp.dot(a.astype(jnp.float16), b.T.astype(jnp.float16), preferred_element_type=jnp.float32))  # fmt: skip

    same(fn, X, Y, N.astype(np.int8))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_product(data):
    """Random dimension numbers: contracted, batched and free axes in any order."""
    kinds = data.draw(st.lists(st.sampled_from("bcf"), min_size=1, max_size=3))
    others = data.draw(
        st.permutations([k for k in range(len(kinds)) if kinds[k] != "f"] + ["f"] * data.draw(st.integers(0, 2)))
    )
    sizes = [2 + k for k in range(len(kinds))]
    random = np.random.default_rng(0)
    a = random.normal(size=sizes).astype(np.float32)
    b = random.normal(size=[2 if k == "f" else sizes[k] for k in others]).astype(np.float32)
    pairs = {kind: [(k, others.index(k)) for k in range(len(kinds)) if kinds[k] == kind] for kind in "bc"}
    numbers = tuple(tuple(tuple(pair[side] for pair in pairs[kind]) for side in (0, 1)) for kind in "cb")
    same(lambda x, y: lax.dot_general(x, y, numbers), a, b)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_any_order_of_shape_operations(shape, data):
    steps = data.draw(
        st.lists(
            st.sampled_from(["flip", "turn", "flat", "wide", "cut", "pad", "sum", "last", "add"]),
            min_size=1,
            max_size=5,
        )
    )

    def fn(x):
        whole = x
        for step in steps:
            match step:
                case "flip":
                    x = jnp.flip(x, 0) if x.ndim else x
                case "turn":
                    x = x.T
                case "flat":
                    x = x.reshape(-1)
                case "wide":
                    x = jnp.broadcast_to(x[None], (2, *x.shape))
                case "cut":
                    x = x[:1] if x.ndim else x
                case "pad":
                    x = jnp.pad(x, 1)
                case "sum":
                    x = x.sum(0) if x.ndim else x
                case "last":
                    x = x[..., None]
                case "add":
                    x = x + whole.sum()
        return x

    same(fn, np.random.default_rng(0).normal(size=shape).astype(np.float32))
