"""A JAX function as Python source that can be read, edited, and run where NumPy is installed but JAX is not.

``jax.grad`` returns a gradient that cannot be read; :func:`to_python` writes it down. This module can be imported
without JAX: the receiver of a text compiles it with :func:`compile_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from readjax.errors import ReadJaxError
from readjax.literals import SHORT_TYPES
from readjax.source import Source, compile_source

Target = Literal["jax", "numpy"]


def to_python(
    fn: Callable[..., Any] | Any,
    *example_args: Any,
    target: Target = "jax",
    names: Sequence[str] | None = None,
) -> Source:
    """Return the source of a function that computes the same as a JAX function, for arguments of the same shapes.

    ``fn`` is anything that JAX can trace, derivatives (``jax.grad(loss)``) and compiled functions included, or a closed
    jaxpr, which needs no arguments. ``example_args`` are arrays, numbers, or trees with these as leaves; only their
    shapes and types count, so :class:`jax.ShapeDtypeStruct` is accepted, and the source is valid for these shapes only.
    ``target`` is ``"jax"``, whose source is traced to an equivalent jaxpr, or ``"numpy"``, whose source needs NumPy 2,
    and SciPy for special functions and factorisations; random keys are then ``uint32`` arrays with a further axis of
    length 2. ``names`` replace the function's own names of the arguments.

    Numbers keep JAX's types, also the narrow types of default JAX. The first lines of the source list its omissions
    (shardings, user-defined derivative rules, debug prints).

    Raises :class:`~readjax.ReadJaxError` without JAX, and when the function cannot be traced with the arguments,
    contains a constant of more than a million numbers, or uses a primitive that the target lacks; the message names
    the primitive and the user's line.

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
    from readjax.tracing import decompile

    return Source(decompile(fn, example_args, target=target, names=names))


__all__ = ["SHORT_TYPES", "ReadJaxError", "Source", "Target", "compile_source", "to_python"]
