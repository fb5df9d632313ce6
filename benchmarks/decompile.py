"""What decompiled source costs: under JAX against the original, in NumPy against what one would write by hand.

Two functions are timed in turn, in seconds of CPU on one thread, which others on the machine disturb least; a ratio is
the median of the ratios of neighbours. The hand-written gradients are what a careful person writes in NumPy, and are
checked to give the same.
"""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import statistics  # noqa: E402
import time  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

from readjax import to_python  # noqa: E402

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return (RANDOM.normal(size=shape) * 0.3).astype(np.float32)


def ratios(one, other, repetitions=60, least=0.01):
    """Times of one over times of the other, call by call; the other's median time."""
    other()
    began = time.process_time()
    other()
    calls = max(1, int(least / max(time.process_time() - began, 1e-6)))

    def timed(function):
        began = time.process_time()
        for _ in range(calls):
            function()
        return (time.process_time() - began) / calls

    found, times = [], []
    for turn in range(repetitions):
        pair = (timed(one), timed(other)) if turn % 2 else (timed(other), timed(one))[::-1]
        found.append(pair[0] / pair[1])
        times.append(pair[1])
    return found, statistics.median(times)


def show(what, found, seconds, goal):
    low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
    print(f"{what:<44} {middle:6.3f}  ({low:.3f} to {high:.3f})  of {seconds * 1e6:9.1f} us   {goal}", flush=True)


def logistic(w, x, y):
    return jnp.mean(jnp.log1p(jnp.exp(-y * (x @ w))))


def hand_logistic(w, x, y):
    return -(y / (1 + np.exp(y * (x @ w)))) @ x / np.float32(len(y))


def two_layer(params, x, y):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    scores = h @ params["w2"] + params["b2"]
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(scores) * y, 1))


def hand_two_layer(params, x, y):
    h = np.tanh(x @ params["w1"] + params["b1"])
    scores = h @ params["w2"] + params["b2"]
    p = np.exp(scores - scores.max(1, keepdims=True))
    d = (p / p.sum(1, keepdims=True) - y) / np.float32(len(y))
    back = (d @ params["w2"].T) * (1 - h * h)
    return {"b1": back.sum(0), "b2": d.sum(0), "w1": x.T @ back, "w2": h.T @ d}


def recurrent(w, xs):
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum()), jnp.zeros(w.shape[0]), xs)[1].sum()


def attention(w, x):
    q, k, v = (x @ one for one in w)
    return (jax.nn.softmax(jnp.einsum("bid,bjd->bij", q, k)) @ v).sum()


def convolution(k, x):
    return jax.nn.gelu(lax.conv(x, k, (1, 1), "SAME")).mean()


def main():
    w, x, y = normal(100), normal(2000, 100), np.sign(normal(2000)).astype(np.float32)
    params = {"w1": normal(100, 64), "b1": normal(64), "w2": normal(64, 10), "b2": normal(10)}
    labels = np.eye(10, dtype=np.float32)[RANDOM.integers(0, 10, 2000)]
    cases = {
        "logistic": (logistic, w, x, y),
        "two layers": (two_layer, params, x, labels),
        "recurrent cell": (recurrent, normal(64, 64), normal(100, 64)),
        "attention": (attention, normal(3, 32, 32), normal(8, 64, 32)),
        "convolution": (convolution, normal(16, 3, 3, 3), normal(8, 3, 32, 32)),
    }
    print("gradients, target jax under jit / the original under jit: median (quartiles) of pairs")
    medians = []
    for name, (fn, *args) in cases.items():
        args = jax.tree_util.tree_map(jnp.asarray, args)
        original = jax.jit(jax.grad(fn))
        written = jax.jit(to_python(jax.grad(fn), *args).function())
        jax.tree_util.tree_map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), original(*args), written(*args)
        )
        pair = [lambda f=f, a=args: jax.block_until_ready(f(*a)) for f in (written, original)]
        found, seconds = ratios(*pair)
        medians.append(statistics.median(found))
        show(name, found, seconds, "")
    print(f"{'median of the functions':<44} {statistics.median(medians):6.3f}  at most 1.03")

    print("\ngradients, target numpy / written by hand in NumPy, one thread")
    for name, hand in (("logistic", hand_logistic), ("two layers", hand_two_layer)):
        for rows in (200, 2000):
            fn, weights, *data = cases[name]
            data = [one[:rows] for one in data]
            written = to_python(jax.grad(fn), weights, *data, target="numpy").function()
            made, wanted = written(weights, *data), hand(weights, *data)
            jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), made, wanted)
            found, seconds = ratios(
                lambda f=written, a=weights, d=data: f(a, *d), lambda f=hand, a=weights, d=data: f(a, *d)
            )
            show(f"{name}, {rows} rows", found, seconds, "at most 2")

    print("\ndecompiling, seconds of CPU (the jaxpr is there already)")

    def steps(count):
        def fn(x, w):
            for _ in range(count):
                x = x + jnp.tanh(x @ w) * 1.5
            return x

        return jax.make_jaxpr(fn)(normal(3, 4), normal(4, 4))

    for target in ("jax", "numpy"):
        for count in (2_500, 10_000, 40_000):
            closed = steps(count // 4)
            times = []
            for _ in range(3):
                began = time.process_time()
                to_python(closed, target=target)
                times.append(time.process_time() - began)
            goal = "under 3" if count == 10_000 else ""
            each = statistics.median(times) / count * 1e6
            print(
                f"{target:<8} {count:>7,} equations {statistics.median(times):8.3f} s  {each:6.1f} us each   {goal}",
                flush=True,
            )


if __name__ == "__main__":
    main()
