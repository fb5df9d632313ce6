"""The command that shows a JAX function as Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from anyk.base import BadInput, function_named, needing
from anyk.cli.group import main
from anyk.cli.options import json_option, writable
from anyk.cli.output import json_to_output, write_json

if TYPE_CHECKING:
    from readjax import Target

_ARGUMENT = re.compile(r"\s*(\w+)\[\s*((?:\d+\s*(?:,\s*\d+\s*)*)?)\]\s*(?:,|$)")


@main.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option(
    "--args",
    "arguments",
    metavar="TYPES",
    default="",
    show_default=False,
    help="Types of the arguments, as in f32[64,10],f32[].",
)
@click.option(
    "--target",
    type=click.Choice(["jax", "numpy"]),
    default="jax",
    help="Library that the source uses.",
)
@click.option(
    "--grad", is_flag=True, help="Write the gradient with respect to the first argument instead of the function."
)
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    callback=writable("file"),
    help="Write the source to a file.",
)
@json_option
def decompile(function: str, arguments: str, target: Target, grad: bool, out: str | None) -> None:
    """Write a JAX function as Python source that can be read and edited.

    FUNCTION is module:function, or file.py:function. The source is for arguments of the types given.
    """
    from anyk.problems import decompiling

    with needing("jax", "jax", "decompiling a function"):
        import jax  # first: the function's own file may import it, too
    with decompiling("anyk decompile"):
        from readjax import to_python

        (decompiled, _), examples = function_named(function, "function"), _examples(arguments)
        source = to_python(jax.grad(decompiled) if grad else decompiled, *examples, target=target)
        if out is not None:
            source.save(out)
    if out is not None:
        click.echo(f"source: {out}", err=True)
    elif not json_to_output():
        click.echo(source.text, nl=False)
    write_json({"function": function, "target": target, "digest": source.digest, "text": source.text})


def _examples(spec: str) -> list[Any]:
    """Return the shapes and types that ``--args`` specifies."""
    import jax

    from readjax import SHORT_TYPES

    types = {short: dtype for dtype, short in SHORT_TYPES.items()}
    examples, position = [], 0
    while position < len(spec):
        match = _ARGUMENT.match(spec, position)
        if match is None or match[1] not in types:
            raise BadInput(
                f"argument types should look like f32[64,10],i32[5],f32[], got '{spec}'; "
                f"known types: {', '.join(types)}"
            )
        dtype = types[match[1]]
        if dtype in ("int64", "uint64", "float64", "complex128"):
            jax.config.update("jax_enable_x64", True)
        shape = tuple(int(length) for length in match[2].split(",") if length.strip())
        examples.append(jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype)))
        position = match.end()
    return examples
