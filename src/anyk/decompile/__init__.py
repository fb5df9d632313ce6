"""A JAX function as Python source that can be read, edited, and run where there is NumPy but no JAX.

``jax.grad`` gives a gradient nobody can see; :func:`to_python` writes it down. This module is importable without JAX:
whoever receives a text makes a function of it with :func:`compile_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from anyk.decompile.source import Source, compile_source

Target = Literal["jax", "numpy"]


def to_python(
    fn: Callable[..., Any] | Any,
    *example_args: Any,
    target: Target = "jax",
    names: Sequence[str] | None = None,
) -> Source:
    """Source of a function that computes what a JAX function computes for arguments like the given ones.

    ``fn`` is anything that JAX can trace, derivatives (``jax.grad(loss)``) and compiled functions included, or a closed
    jaxpr, which needs no arguments. ``example_args`` are arrays, numbers, or trees of them; only their shapes and types
    count, so :class:`jax.ShapeDtypeStruct` will do. The source is for these shapes. ``target`` is ``"jax"``, which is
    traced to an equivalent jaxpr, or ``"numpy"``, which needs NumPy 2, and SciPy for special functions and
    factorisations; random keys are then ``uint32`` arrays with an axis of length 2 more. ``names`` are what to call the
    arguments, in place of the function's own names.

    Numbers keep JAX's types, also the narrow ones of default JAX. What the source leaves out of what JAX knows
    (shardings, rules of derivatives of user-defined functions, debug prints) is said in its first lines.

    Raises :class:`~anyk.errors.MissingPackage` without JAX, and :class:`~anyk.errors.BadInput` when the function cannot
    be traced with the arguments, holds a constant of more than a million numbers, or uses a primitive that the target
    lacks; the sentence names the primitive and the line it comes from.

    The idea is JaxDecompiler's (Pochelu 2023).

    >>> import jax.numpy as jnp
    >>> source = to_python(lambda x: jnp.tanh(x) * 2.0, np.ones(3, np.float32), target="numpy")
    >>> print(source.text[source.text.index("@") :])
    @np.errstate(all="ignore")
    def function(x):
        x = np.asarray(x, np.float32)  # f32[3]
        return np.tanh(x) * 2.0
    <BLANKLINE>
    >>> source.function()([0.0, 1.0, 2.0]).round(2)
    array([0.  , 1.52, 1.93], dtype=float32)
    """
    from anyk.decompile.tracing import decompile

    return Source(decompile(fn, example_args, target=target, names=names))


__all__ = ["Source", "Target", "compile_source", "to_python"]
