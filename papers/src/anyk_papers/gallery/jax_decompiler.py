"""Gradients of JAX functions as readable Python: equal values, and speed under jit."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from anyk.base import needing
from anyk_papers.item import Criterion, Item, Ratio, Value
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars

FUNCTIONS = ("example", "mlp", "softmax", "scan", "cond", "vmap", "convolution")


def function(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A scalar JAX function and its arguments."""
    import jax
    import jax.numpy as jnp

    x = np.linspace(-1.0, 1.0, 4096, dtype=np.float32).reshape(64, 64)
    w = np.cos(np.arange(64 * 16, dtype=np.float32)).reshape(64, 16) / 8
    functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "example": (lambda x, s: s * x**2 + (1 - s) * jnp.cos(x), (np.float32(4.0), np.float32(0.99))),
        "mlp": (lambda w, x: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w.T) ** 2), (w, x)),
        "softmax": (lambda w, x: -jnp.mean(jax.nn.log_softmax(x @ w)[:, 0]), (w, x)),
        "scan": (lambda w, x: jax.lax.scan(lambda c, r: (jnp.tanh(c + r), 0.0), jnp.sum(w, 1), x)[0].sum(), (w, x)),
        "cond": (lambda w, x: jax.lax.cond(x[0, 0] > 0, lambda w: w.sum(), lambda w: (w**2).sum(), w), (w, x)),
        "vmap": (lambda w, x: jax.vmap(lambda r: jnp.dot(r, r @ w @ w.T))(x).sum(), (w, x)),
        "convolution": (lambda w, x: jnp.convolve(x.ravel(), w.ravel()[:9], mode="same").sum() ** 2, (w, x)),
    }
    return functions[name]


def measure(lab: Lab, case: Case, seed: int) -> Results:
    import jax

    from readjax import to_python

    f, arguments = function(case["function"])
    gradient = jax.grad(f)
    decompiled = to_python(gradient, *arguments).function()
    ours, theirs = jax.jit(decompiled), jax.jit(gradient)
    expected = np.asarray(theirs(*arguments))
    error = float(np.abs(np.asarray(ours(*arguments)) - expected).max() / max(1e-12, float(np.abs(expected).max())))
    ratios = []
    for _ in range(lab.size(15, 5)):
        seconds = []
        for compiled in (ours, theirs):
            began = time.perf_counter()
            for _ in range(200):
                compiled(*arguments).block_until_ready()
            seconds.append(time.perf_counter() - began)
        ratios.append(seconds[0] / seconds[1])
    return {"relative error": error, "seconds, ratio": statistics.median(ratios)}


def table(lab: Lab) -> Table:
    with needing("jax", "jax", "jax-decompiler"):
        import jax  # noqa: F401
    with needing("readjax", "./decompile", "jax-decompiler"):
        import readjax  # noqa: F401
    return lab.measure(measure, [{"function": name} for name in FUNCTIONS], seeds=1)


def _example(t: Table) -> float:
    """Return the gradient of s x^2 + (1 - s) cos x at x = 4, s = 0.99."""
    import jax

    from readjax import to_python

    f, arguments = function("example")
    return float(to_python(jax.grad(f), *arguments).function()(*arguments))


def _equal(t: Table) -> tuple[bool, str]:
    worst = max(row.mean("relative error") for row in t)
    return worst < 1e-5, f"{len(t.rows)} functions, relative error {worst:.1g} at most"


ITEM = Item(
    name="jax-decompiler",
    title="Decompiled gradients of JAX functions: equal values, and time under jit over the original's",
    source="Pochelu 2023 (JaxDecompiler), abstract: editable code at the same speed",
    minutes=1.0,
    clock="none",
    table=table,
    claims=(
        Value("the README's example, the gradient of s x^2 + (1 - s) cos x at (4, 0.99)", 7.927568, _example),
        Criterion("values are those of the original", "equal", _equal),
        Ratio(
            "time under jit over the original's",
            1.0,
            lambda t: statistics.median(row.mean("seconds, ratio") for row in t),
            within=0.2,
            reason="the scatter of times taken side by side on a busy machine",
            says="same speed",
        ),
    ),
    panels=(Bars("seconds, ratio", "seconds over the original's", "speed under jit"),),
    columns=("function", "relative error", "seconds, ratio"),
    differs="functions are ours; jit removes whatever decompiling may have added",
)
