"""Random keys and bits: JAX's Threefry, in NumPy bit for bit."""

from __future__ import annotations

from readjax import expressions as ex
from readjax.equations import Equation
from readjax.errors import ReadJaxError
from readjax.expressions import Expr
from readjax.primitives.rules import copied_function, parameter, plain, row, unchanged
from readjax.writing import Rule, Writer


def _numpy(function: str, *parameters: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr | None:
        import jax

        partitionable = bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
        if not partitionable and function in ("random_bits", "random_split"):
            raise ReadJaxError(
                f"primitive '{eq.primitive}' is written for NumPy as JAX computes it by default, and "
                "jax_threefry_partitionable is False; set it to True, or decompile with target='jax'"
            )
        return copied_function(function, *parameters)(w, eq)

    return rule


def _bits(w: Writer, eq: Equation) -> Expr:
    dtype = w.dtype(f"uint{int(eq.params['bit_width'])}")
    return _of_key(w, eq, "bits", parameter(eq, "shape"), ex.raw(dtype))


def _of_key(w: Writer, eq: Equation, function: str, *extra: Expr) -> Expr:
    """Return a call of a function of ``jax.random``, mapped over arrays of keys or numbers."""
    ranks = [len(a.shape) for a in eq.inputs]
    name = f"jax.random.{function}"
    if not max(ranks):
        return w.call(eq, name, *extra)
    arguments = ", ".join(w.names.take(word) for word in ["key", "data"][: len(ranks)])
    mapped = f"lambda {arguments}: {name}({', '.join([arguments, *(expr.text for expr in extra)])})"
    alike = "" if min(ranks) else ", " + repr(tuple(0 if rank else None for rank in ranks))
    for _ in range(max(ranks)):
        mapped = f"jax.vmap({mapped}{alike if len(ranks) > 1 else ''})"
    return w.call(eq, mapped)


def _split(w: Writer, eq: Equation) -> Expr:
    shape = plain(eq.params["shape"])
    return _of_key(w, eq, "split", ex.literal(shape[0] if len(shape) == 1 else shape))


def _seed(w: Writer, eq: Equation) -> Expr:
    function = "jax.random.key"
    for _ in range(len(eq.inputs[0].shape)):
        function = f"jax.vmap({function})"
    return w.call(eq, function, **_implementation(eq))


def _implementation(eq: Equation) -> dict[str, str]:
    name = str(getattr(eq.params.get("impl"), "name", "threefry2x32"))
    return {} if name in ("threefry2x32", "fry") else {"impl": f'"{name}"'}


def _wrap(w: Writer, eq: Equation) -> Expr:
    return w.call(eq, "jax.random.wrap_key_data", **_implementation(eq))


row("random_bits", jax=_bits, numpy=_numpy("random_bits", "bit_width", "shape"))
row("random_split", jax=_split, numpy=_numpy("random_split", "shape"))
row("random_fold_in", jax=lambda w, eq: _of_key(w, eq, "fold_in"), numpy=_numpy("random_fold_in"))
row("random_seed", jax=_seed, numpy=_numpy("random_seed"))
row("random_wrap", jax=_wrap, numpy=unchanged)
row("random_unwrap", jax=lambda w, eq: w.call(eq, "jax.random.key_data"), numpy=unchanged)


def _hash_jax(w: Writer, eq: Equation) -> Expr:
    w.module.imports.add("from jax.extend.random import threefry2x32_p")
    return w.call(eq, "threefry2x32_p.bind")


row("threefry2x32", jax=_hash_jax, numpy=_numpy("threefry2x32"))


def _gamma(w: Writer, eq: Equation) -> Expr:
    word = "loggamma" if eq.params["log_space"] else "gamma"
    return w.call(eq, f"jax.random.{word}", dtype=w.dtype(eq.dtype))


row("random_gamma", jax=_gamma)
