"""How the tests compare: what JAX compiles is the oracle for both targets."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from readjax import to_python

# shape-only and bookkeeping primitives, of which a text may have more or fewer
_FREE = {
    "jit", "broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy", "copy_p", "transpose", "iota",
    "slice", "rev", "stop_gradient", "expand_dims", "custom_jvp_call", "custom_vjp_call", "remat2", "add_any", "add",
    "select_n", "name", "sharding_constraint", "device_put", "optimization_barrier", "custom_linear_solve", "square", "pjit", "concatenate",
    "random_wrap", "random_unwrap", "split", "neg", "mul", "sub", "div", "integer_pow", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "max", "min", "clamp", "abs", "sign", "empty2", "sqrt",
    "reduce_or",
}  # fmt: skip


def heavy(jaxpr, found=None):
    """How often each primitive that computes something stands in a jaxpr, dead code aside."""
    from jax.interpreters import partial_eval

    found = {} if found is None else found
    jaxpr, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    for eqn in jaxpr.eqns:
        name = str(eqn.primitive)
        outer = name == "dot_general" and not eqn.params["dimension_numbers"][0][0]  # may be written as *
        nothing = name.startswith("reduce_") and all(
            eqn.invars[0].aval.shape[d] == 1 for d in eqn.params.get("axes", [0])
        )
        if name not in _FREE and not outer and not nothing:
            found[name] = found.get(name, 0) + 1
        if name == "custom_linear_solve":
            heavy(eqn.params["jaxprs"].solve.jaxpr, found)
            continue
        for value in eqn.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(one, "jaxpr", one)
                if hasattr(inner, "eqns"):
                    heavy(inner, found)
    return found


def is_key(x):
    return hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def plain(x):
    return np.asarray(jax.random.key_data(x)) if is_key(x) else np.asarray(x)


def close(made, wanted, tolerance):
    made, wanted = plain(made), plain(wanted)
    assert made.shape == wanted.shape
    assert made.dtype == wanted.dtype
    if wanted.dtype.kind in "fc" or wanted.dtype == jnp.bfloat16:
        if wanted.dtype == jnp.bfloat16:
            made, wanted = made.astype(np.float32), wanted.astype(np.float32)
        finite = np.abs(wanted[np.isfinite(wanted)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        np.testing.assert_allclose(made, wanted, rtol=tolerance, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(made, wanted)


def same(fn, *args, tolerance=None, targets=("numpy", "jax"), traced=True):
    """Both targets' functions give what ``jax.jit`` of the original gives, with its types; the texts, by target.

    The ``jax`` target is traced again: it must have the same result types, and as many of each primitive that does
    more than shuffle or add elements.
    """
    sources = {target: to_python(fn, *args, target=target) for target in targets}
    rewritten = sources["jax"].function() if "jax" in targets else None
    both = jax.jit(lambda *args: (fn(*args), rewritten(*args) if rewritten else None)).trace(*args)
    # one compilation for the original and the text, without the optimisations that take long
    wanted, again = both.lower().compile({"xla_backend_optimization_level": 0})(*args)
    leaves, tree = jax.tree_util.tree_flatten(wanted)
    if tolerance is None:
        kinds = {str(leaf.dtype) for leaf in leaves}
        tolerance = 2e-2 if kinds & {"bfloat16"} else 5e-3 if kinds & {"float16"} else 2e-5
    for target, source in sources.items():
        made = again if target == "jax" else source.function()(*jax.tree_util.tree_map(plain, args))
        found, structure = jax.tree_util.tree_flatten(made)
        assert len(found) == len(leaves), source.text
        if "namedtuple" not in source.text:
            assert structure == tree, source.text
        for one, other in zip(found, leaves, strict=True):
            assert target == "jax" or isinstance(one, np.ndarray | np.generic), type(one)
            try:
                close(one, other, tolerance)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{source.text}") from None
    if traced and rewritten:
        counts, wanted_counts = heavy(jax.make_jaxpr(rewritten)(*args).jaxpr), heavy(jax.make_jaxpr(fn)(*args).jaxpr)
        assert counts == wanted_counts, f"{counts}\n{wanted_counts}\n{sources['jax'].text}"
    return {target: source.text for target, source in sources.items()}


def formatted(texts):
    """Assert that ruff, as it comes, would leave the texts as they are."""
    for text in texts:
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", "-"],
            input=text,
            capture_output=True,
            text=True,
        )
        assert not done.stdout and not done.returncode, done.stdout + done.stderr
