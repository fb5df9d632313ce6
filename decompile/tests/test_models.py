"""Gradients, Jacobians, Hessians, steps: of the models one trains."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from oracle import formatted, same

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)


def normal(*shape, scale=0.5):
    return (RANDOM.normal(size=shape) * scale).astype(np.float32)


X, Y, W = normal(16, 5), np.sign(normal(16)).astype(np.float32), normal(5)
LABELS = RANDOM.integers(0, 3, 16)


def logistic(w, x, y):
    return jnp.mean(jnp.log1p(jnp.exp(-y * (x @ w))))


def least_squares(w, x, y):
    return 0.5 * jnp.sum((x @ w - y) ** 2)


def poisson(w, x, y):
    rate = x @ w
    return jnp.sum(jnp.exp(rate) - jnp.abs(y) * rate)


def hinge(w, x, y):
    return jnp.mean(jax.nn.relu(1 - y * (x @ w))) + 0.01 * w @ w


def huber(w, x, y):
    return optax.losses.huber_loss(x @ w, y).mean()


def softmax(w, x, labels):
    scores = x @ w
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1))


LINEAR = [logistic, least_squares, poisson, hinge, huber]


@pytest.mark.parametrize("derive", [jax.grad, jax.value_and_grad, jax.hessian, jax.jacfwd], ids=lambda d: d.__name__)
@pytest.mark.parametrize("loss", LINEAR, ids=lambda fn: fn.__name__)
def test_linear_models(loss, derive):
    formatted(same(derive(loss), W, X, Y, tolerance=1e-4).values()) if derive is jax.grad else same(
        derive(loss), W, X, Y, tolerance=1e-4
    )


@pytest.mark.parametrize("derive", [jax.grad, jax.hessian], ids=lambda d: d.__name__)
def test_softmax_regression(derive):
    same(derive(softmax), normal(5, 3), X, LABELS)


def test_per_sample_gradients_and_products_with_the_hessian():
    same(jax.vmap(jax.grad(logistic), (None, 0, 0)), W, X, Y)
    same(lambda w, v: jax.jvp(jax.grad(lambda u: logistic(u, X, Y)), (w,), (v,))[1], W, W * 2)
    same(jax.jacrev(lambda w: jax.nn.sigmoid(X @ w)), W)


def mlp(params, x, y):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    h2 = jax.nn.relu(h @ params["w2"] + params["b2"])
    out = h2 @ params["w3"]
    return optax.losses.softmax_cross_entropy_with_integer_labels(out, y).mean()


PARAMS = {"w1": normal(5, 8), "b1": normal(8), "w2": normal(8, 6), "b2": normal(6), "w3": normal(6, 3)}


def test_multi_layer_network_keeps_the_users_names():
    texts = same(jax.value_and_grad(mlp), PARAMS, X, LABELS)
    for text in texts.values():
        for name in ("h = ", "h2 = ", "out = ", "d_w1", "d_b2", 'params["w1"]', "# f32[16,8]"):
            assert name in text
    formatted(texts.values())


def test_layers_in_lists_of_tuples():
    layers = [(normal(5, 8), normal(8)), (normal(8, 3), normal(3))]

    def fn(layers, x):
        for w, b in layers:
            x = jnp.tanh(x @ w + b)
        return x.sum()

    texts = same(jax.grad(fn), layers, X)
    assert "layers[1][0]" in texts["numpy"]


def test_convolutional_network():
    params = {"k1": normal(4, 1, 3, 3), "k2": normal(6, 4, 3, 3), "w": normal(6 * 4, 3)}
    images = normal(2, 1, 8, 8)

    def fn(params, images, labels):
        h = jax.nn.relu(lax.conv(images, params["k1"], (1, 1), "SAME"))
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        h = jax.nn.gelu(lax.conv(h, params["k2"], (2, 2), "SAME"))
        logits = h.reshape(h.shape[0], -1) @ params["w"]
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    formatted(same(jax.grad(fn), params, images, np.array([0, 2]), tolerance=1e-4).values())


def attention(params, x, heads=2):
    def split(a):
        return a.reshape(*a.shape[:-1], heads, -1)

    q, k, v = (split(x @ params[name]) for name in "qkv")
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / jnp.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    mixed = jnp.einsum("bhij,bjhd->bihd", weights, v).reshape(x.shape)
    y = x + mixed @ params["o"]
    return params["gain"] * (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)


def test_attention():
    params = {name: normal(4, 4) for name in "qkvo"} | {"gain": normal(4)}
    x = normal(2, 3, 4)
    same(attention, params, x)
    formatted(
        same(
            jax.grad(lambda p, x: (attention(p, x) ** 2).mean() + attention(p, x).sum() * 0.1),
            params,
            x,
            tolerance=1e-4,
        ).values()
    )


def test_recurrent_cells():
    params = {"w": normal(4, 12), "u": normal(4, 12), "b": normal(12)}

    def gru(params, xs):
        def step(h, x):
            r, z, n = jnp.split(x @ params["w"] + params["b"], 3)
            ur, uz, un = jnp.split(h @ params["u"], 3)
            r, z = jax.nn.sigmoid(r + ur), jax.nn.sigmoid(z + uz)
            h = (1 - z) * jnp.tanh(n + r * un) + z * h
            return h, h

        return lax.scan(step, jnp.zeros(4), xs)[1]

    xs = normal(5, 4)
    same(gru, params, xs)
    formatted(same(jax.grad(lambda p, xs: (gru(p, xs) ** 2).sum()), params, xs, tolerance=1e-4).values())


def test_an_implicit_layer():
    """A fixed point, and its derivative by the implicit function theorem."""

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def fixed_point(f, a, x):
        return lax.while_loop(
            lambda c: jnp.max(jnp.abs(c[0] - c[1])) > 1e-5, lambda c: (c[1], f(a, c[1])), (x, f(a, x))
        )[1]

    def forward(f, a, x):
        z = fixed_point(f, a, x)
        return z, (a, z)

    def backward(f, kept, g):
        a, z = kept
        _, pull_a = jax.vjp(lambda a: f(a, z), a)
        jacobian = jax.jacobian(lambda z: f(a, z))(z)
        return pull_a(jnp.linalg.solve(jnp.eye(len(z)) - jacobian.T, g))[0], jnp.zeros_like(z)

    fixed_point.defvjp(forward, backward)
    f = lambda a, z: jnp.tanh(0.3 * a @ z + 1.0)  # noqa: E731
    same(jax.grad(lambda a: (fixed_point(f, a, jnp.zeros(4)) ** 2).sum()), normal(4, 4), tolerance=1e-4)


def test_a_step_of_an_ordinary_differential_equation():
    def runge_kutta(w, y, dt):
        def slope(y):
            return jnp.sin(w @ y) - 0.1 * y

        k1 = slope(y)
        k2 = slope(y + dt / 2 * k1)
        k3 = slope(y + dt / 2 * k2)
        k4 = slope(y + dt * k3)
        return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    texts = same(runge_kutta, normal(3, 3), normal(3), 0.1)
    assert "k3 = " in texts["numpy"]
    same(jax.jacobian(lambda y: lax.fori_loop(0, 4, lambda _, v: runge_kutta(jnp.eye(3), v, 0.1), y)), normal(3))


@pytest.mark.parametrize(
    "make",
    [optax.adam, optax.adamw, optax.rmsprop, partial(optax.sgd, momentum=0.9)],
    ids=["adam", "adamw", "rmsprop", "sgd"],
)
def test_updates_of_optimisers(make):
    """State is named tuples within tuples; the text defines what it returns."""
    optimiser = make(0.01)
    params = {"w": normal(4, 3), "b": normal(3)}
    state = optimiser.init(params)

    def update(grads, state, params):
        changes, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, changes), state

    text = same(update, params, state, params)["numpy"]
    assert "namedtuple(" in text or make is not optax.adam


def test_a_training_step_all_in_one():
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 100)))

    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(mlp)(params, x, y)
        changes, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, changes), state, loss

    formatted(same(step, PARAMS, optimiser.init(PARAMS), X, LABELS, tolerance=1e-3).values())


def test_dropout_draws_the_same_units():
    def fn(w, x, key):
        kept = jax.random.bernoulli(key, 0.7, x.shape)
        return jnp.where(kept, x / 0.7, 0) @ w

    same(jax.grad(lambda w, x, key: fn(w, x, key).sum()), W, X, jax.random.key(5))


SQUARE = X[:5] @ X[:5].T + np.eye(5, dtype=np.float32)
WRITTEN = {
    "gradients of special functions": (jax.grad(lambda a: (jax.scipy.special.erfinv(jnp.tanh(a)) + jax.scipy.special.gammaln(a**2 + 1)
                                                           + jax.scipy.stats.norm.logcdf(a)).sum()), X * 0.5),
    "gradient of svd": (jax.grad(lambda a: jnp.linalg.svd(a, compute_uv=False).sum()), X[:3]),
    "gradient of qr": (jax.grad(lambda a: (jnp.linalg.qr(a)[1] ** 2).sum()), X[:6]),
    "gradient of cholesky": (jax.grad(lambda a: jnp.linalg.cholesky(a).sum()), SQUARE),
    "gradient of sorting": (jax.grad(lambda a: (jnp.sort(a, 1) * jnp.arange(5)).sum() + a.max(1).sum() + jnp.median(a)), X),
    "gradient of running sums": (jax.grad(lambda a: (jnp.cumsum(a, 1) ** 2).sum() + jnp.cumprod(a, 0).sum()), X),
    "segments": (lambda a, k: (jax.ops.segment_sum(a, k, 3), jax.ops.segment_max(a, k, 3), jax.nn.one_hot(k, 3)), X, LABELS),
    "division": (lambda a: (a // 0.3, a % 0.3, jnp.divmod(a, 0.7), jnp.hypot(a, 1.0), jnp.logaddexp(a, 2.0), jnp.frexp(a)), X),
    "conjugate gradients": (lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: a @ v, b)[0], SQUARE, W),
    "products of rows, twice mapped": (jax.vmap(jax.vmap(jnp.dot, (0, None)), (None, 0)), X, X),
    "systems, mapped": (jax.vmap(lambda a, b: jnp.linalg.solve(a, b)), np.stack([SQUARE, SQUARE * 2]), np.stack([W, W])),
    "mapped choices": (jax.vmap(lambda a: (jnp.argsort(a), lax.top_k(a, 2), jnp.argmax(a), jnp.cumsum(a))), X[:4]),
    "checkpoint with a policy": (jax.grad(lambda a: jax.checkpoint(lambda v: jnp.sin(v @ v.T).sum(),
                                                                   policy=jax.checkpoint_policies.dots_saveable)(a)), X[:3]),
    "unrolled": (lambda a: lax.scan(lambda c, r: (c * r, c), a[0], a, unroll=2), X),
    "a number": (lambda a: (a + 1, a**2, jnp.where(a > 0, a, -a), a[None], jnp.broadcast_to(a, (2,)), a.astype(int)), np.float32(0.5)),
    "Hessian of a network": (jax.hessian(lambda w: jnp.sum(jnp.tanh(jnp.tanh(X @ w) @ w.T) ** 2)), normal(5, 2)),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITTEN)
def test_what_else_people_write(what):
    fn, *args = WRITTEN[what]
    same(fn, *args, tolerance=1e-3 if "gradient" in what else 1e-4)


def test_x64_gradients(wide):
    w, x, y = (a.astype(np.float64) for a in (W, X, Y))
    same(jax.grad(logistic), w, x, y, tolerance=1e-13)
