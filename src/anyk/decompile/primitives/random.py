"""Random keys and bits: JAX's Threefry, in NumPy bit for bit."""

from __future__ import annotations

from anyk.decompile import expressions as ex
from anyk.decompile.equations import Equation
from anyk.decompile.expressions import Expr
from anyk.decompile.primitives.rules import plain, row
from anyk.decompile.writing import Rule, Writer
from anyk.errors import BadInput


def _numpy(function: str, *parameters: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        import jax

        partitionable = bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
        if not partitionable and function in ("random_bits", "random_split"):
            raise BadInput(
                f"primitive '{eq.primitive}' is written for NumPy as JAX computes it by default, and "
                "jax_threefry_partitionable is False; set it to True, or decompile with target='jax'"
            )
        extra = [ex.literal(plain(eq.params[name])) for name in parameters]
        return ex.call(w.copy(function), *(w.typed(a) for a in eq.inputs), *extra, shape=eq.shape)

    return rule


def _unchanged(w: Writer, eq: Equation) -> Expr:
    return w.typed(eq.inputs[0])


def _bits(w: Writer, eq: Equation) -> Expr:
    dtype = w.dtype(f"uint{int(eq.params['bit_width'])}")
    return _of_key(w, eq, "bits", ex.literal(plain(eq.params["shape"])), ex.raw(dtype))


def _of_key(w: Writer, eq: Equation, function: str, *extra: Expr) -> Expr:
    """Return a call of a function of ``jax.random``, mapped over arrays of keys or numbers."""
    operands = [w.typed(a) for a in eq.inputs]
    ranks = [len(a.shape) for a in eq.inputs]
    name = f"jax.random.{function}"
    if not max(ranks):
        return ex.call(name, *operands, *extra, shape=eq.shape)
    arguments = ", ".join(w.names.take(word) for word in ["key", "data"][: len(operands)])
    mapped = f"lambda {arguments}: {name}({', '.join([arguments, *(expr.text for expr in extra)])})"
    alike = "" if min(ranks) else ", " + repr(tuple(0 if rank else None for rank in ranks))
    for _ in range(max(ranks)):
        mapped = f"jax.vmap({mapped}{alike if len(ranks) > 1 else ''})"
    return ex.call(mapped, *operands, shape=eq.shape)


def _split(w: Writer, eq: Equation) -> Expr:
    shape = plain(eq.params["shape"])
    return _of_key(w, eq, "split", ex.literal(shape[0] if len(shape) == 1 else shape))


def _fold_in(w: Writer, eq: Equation) -> Expr:
    return _of_key(w, eq, "fold_in")


def _seed(w: Writer, eq: Equation) -> Expr:
    function = "jax.random.key"
    for _ in range(len(eq.inputs[0].shape)):
        function = f"jax.vmap({function})"
    return ex.call(function, w.typed(eq.inputs[0]), shape=eq.shape, **_implementation(eq))


def _implementation(eq: Equation) -> dict[str, str]:
    name = str(getattr(eq.params.get("impl"), "name", "threefry2x32"))
    return {} if name in ("threefry2x32", "fry") else {"impl": f'"{name}"'}


def _wrap(w: Writer, eq: Equation) -> Expr:
    return ex.call("jax.random.wrap_key_data", w.typed(eq.inputs[0]), shape=eq.shape, **_implementation(eq))


def _unwrap(w: Writer, eq: Equation) -> Expr:
    return ex.call("jax.random.key_data", w.typed(eq.inputs[0]), shape=eq.shape)


row("random_bits", jax=_bits, numpy=_numpy("random_bits", "bit_width", "shape"))
row("random_split", jax=_split, numpy=_numpy("random_split", "shape"))
row("random_fold_in", jax=_fold_in, numpy=_numpy("random_fold_in"))
row("random_seed", jax=_seed, numpy=_numpy("random_seed"))
row("random_wrap", jax=_wrap, numpy=_unchanged)
row("random_unwrap", jax=_unwrap, numpy=_unchanged)


def _hash_jax(w: Writer, eq: Equation) -> Expr:
    w.module.imports.add("from jax.extend.random import threefry2x32_p")
    return ex.call("threefry2x32_p.bind", *(w.typed(a) for a in eq.inputs))


row("threefry2x32", jax=_hash_jax, numpy=_numpy("threefry2x32"))


def _gamma(w: Writer, eq: Equation) -> Expr:
    key, a = (w.typed(atom) for atom in eq.inputs)
    dtype = w.dtype(eq.dtype)
    word = "loggamma" if eq.params["log_space"] else "gamma"
    return ex.call(f"jax.random.{word}", key, a, dtype=dtype, shape=eq.shape)


row("random_gamma", jax=_gamma)
