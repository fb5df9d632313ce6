"""Gather and scatter in all modes, dynamic slices; convolutions, windows, Fourier transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracle import same

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 4)).astype(np.float32)
N = RANDOM.integers(-9, 9, (3, 4)).astype(np.int32)
PLACES = np.array([0, 2, -1, 1, 7, -9])  # some of them nowhere


@pytest.mark.parametrize("x", [X, N, N.astype(np.uint8), X > 0, X.astype(np.complex64)], ids=lambda x: str(x.dtype))
@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_gathering(mode, x):
    places = PLACES[:4] if mode == "promise_in_bounds" else PLACES

    def fn(a, k):
        def at(*index):
            return a.at[index].get(mode=mode)

        return at(k), at(slice(None), k), at(k[:3], k[1:4]), at(k[0]), at(slice(1, 3), k[1]), at(k[:, None], k[None])

    same(fn, x, places)


def test_gathering_what_indexing_means():
    same(lambda a, k: (a[k], a[:, k], a[1, k], a[k[0]], a[k[0], k[1]], jnp.take(a, k, 1), a[..., k[1]]), X, PLACES)
    same(lambda a, k: a.at[:, k].get(mode="fill", fill_value=7), X, PLACES)
    same(lambda a, k: (jnp.take_along_axis(a, k, 1), jnp.take_along_axis(a, k[:1], 0)), X, np.abs(N) % 3)


def test_whole_rows_are_taken_in_few_words():
    texts = same(lambda table, words: table[words], X, np.array([[0, 2], [1, 1]]))
    assert "np.take(" in texts["numpy"] or "take(" in texts["numpy"]
    assert "window_indices" not in texts["numpy"]


@pytest.mark.parametrize("operation", ["set", "add", "subtract", "multiply", "min", "max", "apply"])
@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_scattering(operation, mode):
    places = np.array([0, 2, -1, 1]) if mode == "promise_in_bounds" else PLACES
    values = RANDOM.normal(size=(len(places), 4)).astype(np.float32)

    def fn(a, k, v):
        if operation == "apply":
            return a.at[1:2].apply(jnp.sin)
        change = getattr(a.at[k], operation)
        repeated = () if operation == "set" else (change(v, mode=mode),)  # which of several is kept is nobody's promise
        return (change(2.0, mode=mode), *repeated, getattr(a.at[:, k[:4]], operation)(v[:3, :1], mode=mode),
                getattr(a.at[k[0], k[1]], operation)(3.0, mode=mode), getattr(a.at[::2, 1], operation)(1.0, mode=mode))  # fmt: skip

    same(fn, X, places, values)


def test_scattering_integers():
    same(lambda a, k: (a.at[k].set(5), a.at[k].add(1), a.at[k].subtract(2), a.at[k].max(3)), N, PLACES)


def test_gathering_and_scattering_in_batches():
    def each(a, k):
        return (a[k], lax.dynamic_slice(a, (k[0],), (2,)), a.at[k].set(1.0), a.at[k].add(2.0), a.at[k].get(mode="fill"),
                lax.dynamic_update_slice(a, a[:2], (k[0],)))  # fmt: skip

    k = np.array([[1, 2], [0, 9], [3, 3]])
    same(jax.vmap(each), X, k)
    same(jax.vmap(each, in_axes=(None, 0)), X[0], k)
    same(
        jax.vmap(lambda a, k: a.at[k, k].add(1.0), in_axes=(1, None)),
        RANDOM.normal(size=(3, 2, 3)).astype(np.float32),
        k,
    )


def test_gradients_of_gathering():
    same(jax.grad(lambda t, k: (t[k] ** 2).sum()), X, np.array([1, 1, 2]))
    same(jax.grad(lambda t, k: (jnp.take_along_axis(t, k, 1) ** 2).sum()), X, np.abs(N) % 3)
    same(jax.grad(lambda t, k: (t.at[k].mul(3.0) ** 2).sum()), X, np.array([0, 2]))


@pytest.mark.parametrize("start", [-7, -1, 0, 1, 2, 9])
def test_dynamic_slices_are_moved_inside(start):
    def fn(a, k):
        return (lax.dynamic_slice(a, (k, 0), (2, 3)), lax.dynamic_slice(a, (k, k), (2, 2)), lax.dynamic_index_in_dim(a, k),
                lax.dynamic_update_slice(a, a[:2, :2] * 0, (k, 1)), a[k], lax.dynamic_slice_in_dim(a, k, 2, 1))  # fmt: skip

    same(fn, X, np.int32(start))


IMAGES = RANDOM.normal(size=(2, 3, 8, 9)).astype(np.float32)
KERNEL = RANDOM.normal(size=(4, 3, 3, 2)).astype(np.float32)
DEPTH = RANDOM.normal(size=(6, 1, 3, 3)).astype(np.float32)
CONVOLUTIONS = {
    "same": ({"window_strides": (1, 1), "padding": "SAME"}, KERNEL),
    "strides": ({"window_strides": (2, 3), "padding": ((1, 0), (2, 2))}, KERNEL),
    "kernel dilated": ({"window_strides": (1, 1), "padding": "VALID", "rhs_dilation": (2, 2)}, KERNEL),
    "image dilated, cut": ({"window_strides": (1, 1), "padding": ((2, -1), (1, 1)), "lhs_dilation": (2, 1)}, KERNEL),
    "depthwise": ({"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 3}, DEPTH),
    "batch groups": ({"window_strides": (1, 2), "padding": "VALID", "batch_group_count": 2}, KERNEL),
}


@pytest.mark.parametrize("what", CONVOLUTIONS)
def test_convolutions_and_their_gradients(what):
    how, kernel = CONVOLUTIONS[what]

    def fn(a, k):
        return (lax.conv_general_dilated(a, k, **how) ** 2).sum()

    same(jax.value_and_grad(fn, (0, 1)), IMAGES, kernel, tolerance=1e-4)


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NHWC"), ("HWNC", "IOHW", "CWNH")])
def test_layouts_of_convolutions(layout):
    image = np.transpose(IMAGES, ["NCHW".index(letter) for letter in layout[0]])
    kernel = np.transpose(KERNEL, ["OIHW".index(letter) for letter in layout[1]])
    same(lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "SAME", dimension_numbers=layout), image, kernel)


def test_convolutions_in_one_and_three_dimensions():
    same(lambda a, k: (jnp.convolve(a, k), jnp.convolve(a, k, "same")), X.ravel(), X[0])
    volume = RANDOM.normal(size=(1, 2, 4, 5, 3)).astype(np.float32)
    same(lambda a, k: lax.conv(a, k, (1, 2, 1), "SAME"), volume, RANDOM.normal(size=(3, 2, 2, 2, 2)).astype(np.float32))
    same(lambda a, k: lax.conv(a, k, (1,), "VALID"), N[None] % 5, N[None, :, :2] % 3)


def test_reductions_over_windows():
    def fn(a):
        return (lax.reduce_window(a, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
                lax.reduce_window(a, 0.0, lax.add, (1, 1, 3, 2), (1, 1, 1, 2), "SAME"),
                lax.reduce_window(a, np.inf, lax.min, (1, 1, 2, 2), (1, 1, 1, 1), "SAME", window_dilation=(1, 1, 2, 1)),
                lax.reduce_window(a, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 1, 1), "VALID", base_dilation=(1, 1, 2, 1)))  # fmt: skip

    same(fn, IMAGES)
    same(lambda a: lax.reduce_window(a, np.int32(0), lax.add, (2, 2), (1, 1), "SAME"), N)
    same(
        lambda a: lax.reduce_window(a, np.float32(1), lambda p, q: p * q + 0.5, (2, 2), (1, 1), "VALID"),
        X,
        traced=False,
    )


def test_derivatives_of_pooling():
    def largest(a):
        return lax.reduce_window(a, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "SAME")

    def mean(a):
        return lax.reduce_window(a, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "SAME")

    same(jax.grad(lambda a: (largest(a) ** 2).sum()), IMAGES)
    same(jax.grad(lambda a: (mean(a) ** 2).sum()), IMAGES)
    same(lambda a, t: jax.jvp(largest, (a,), (t,)), IMAGES, IMAGES * 2)


def test_fourier_transforms():
    def fn(a, z):
        return (jnp.fft.fft(z), jnp.fft.ifft(z), jnp.fft.rfft(a), jnp.fft.irfft(z), jnp.fft.irfft(z, 5), jnp.fft.fft2(z),
                jnp.fft.rfft2(a), jnp.fft.irfft2(z), jnp.fft.ifftn(z), jnp.fft.fftshift(z), jnp.fft.fft(z, axis=0))  # fmt: skip

    same(fn, X, (X + 1j * X[::-1]).astype(np.complex64))
    same(jax.grad(lambda a: jnp.abs(jnp.fft.rfft(a)).sum()), X[0])
