"""From a function and example arguments to a jaxpr and its text, with trees of arguments and results."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from readjax import expressions as ex
from readjax.errors import ReadJaxError
from readjax.expressions import Expr
from readjax.jaxpr_reader import Reader
from readjax.literals import short
from readjax.primitives import rule
from readjax.variable_names import Names, Origins
from readjax.writing import MainFunction, Module, fixed_names

_TARGETS = {"jax": "JAX", "numpy": "NumPy"}


def decompile(fn: Any, examples: Sequence[Any], *, target: str, names: Sequence[str] | None) -> str:
    """Return the text of :func:`readjax.to_python`."""
    try:
        import jax
    except ImportError:
        raise ReadJaxError(
            "decompiling a function needs JAX, which is not installed; run: pip install 'jax>=0.6'"
        ) from None
    if target not in _TARGETS:
        raise ReadJaxError(f"target must be jax or numpy, got {target!r}")
    if hasattr(fn, "jaxpr") and hasattr(fn, "consts"):
        if examples:
            raise ReadJaxError("a jaxpr knows its arguments: give no example arguments with it")
        closed = fn
        called = _identifier(str(getattr(fn.jaxpr.debug_info, "func_src_info", "") or "").partition(" at ")[0])
        arguments = [v.aval for v in closed.jaxpr.invars]
        result: Any = tuple(v.aval for v in closed.jaxpr.outvars)
        result = result[0] if len(result) == 1 else result
        argument_names = getattr(fn.jaxpr.debug_info, "arg_names", None) or ()
        parameters = [_identifier(str(name), f"x{k}") for k, name in enumerate(argument_names)]
        if len(set(parameters)) != len(arguments):
            parameters = [f"x{place}" for place in range(len(arguments))]
    else:
        if not callable(fn):
            raise ReadJaxError(f"fn must be a function or a closed jaxpr, got {type(fn).__name__}")
        arguments = list(examples)
        _check(arguments)
        called = _identifier(getattr(_unwrapped(fn), "__name__", ""))
        try:
            closed, result = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        except ReadJaxError:
            raise
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise ReadJaxError(
                f"JAX cannot trace '{called}' with these arguments: {type(error).__name__}: {reason}"
            ) from error
        parameters = _parameters(fn, len(arguments))
    if names is not None:
        if len(names) != len(arguments) or len(set(names)) != len(names) or not all(n.isidentifier() for n in names):
            raise ReadJaxError(
                f"names must be {len(arguments)} different Python names, one per argument, got {list(names)}"
            )
        parameters = list(names)
        hidden = sorted(fixed_names().intersection(parameters))
        if hidden:
            raise ReadJaxError(f"names must not be names that the text itself uses: {', '.join(hidden)}")
    return _write(closed, arguments, result, parameters, called, target)


def _write(closed: Any, arguments: Sequence[Any], result: Any, parameters: list[str], called: str, target: str) -> str:
    import jax

    hidden = fixed_names() | _tuples(result)
    free = Names({*hidden, *parameters})
    parameters = [free.take(name) if name in hidden else name for name in parameters]
    inputs = _leaves(arguments, parameters)
    reader, origins = Reader(target), Origins()
    block = reader.read(closed, [called for called, _ in inputs])
    if len(block.inputs) != len(inputs):
        raise ReadJaxError("the jaxpr has other inputs than the arguments have numbers and arrays")
    types: dict[str, tuple[str, ...]] = {}

    def build_result(outputs: list[Expr]) -> Expr | list[Expr]:
        remaining = iter(outputs)
        expr = _tree(result, remaining, types)
        if isinstance(result, tuple) and not hasattr(result, "_fields") and len(expr.items) > 1:
            return list(expr.items)
        return expr

    notes = list(reader.notes)
    kinds = [short(v.dtype, v.shape) for v in block.inputs]
    if target == "jax" and any(kind.startswith(("f64", "i64", "u64", "c128")) for kind in kinds):
        notes.append("Needs 64-bit types: jax.config.update('jax_enable_x64', True).")
    title = f"{called}, as {_TARGETS[target]}: decompiled by readjax from JAX {jax.__version__}."
    sentences = [_sentence(note) for note in notes]
    module = Module(target, reader, origins, rule)
    module.write(block, MainFunction(called, parameters, inputs, build_result))
    return module.text(title, sentences, types)


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:].rstrip(".") + "."


def _check(arguments: Sequence[Any]) -> None:
    import jax

    for place, argument in enumerate(arguments):
        for leaf in jax.tree_util.tree_leaves(argument):
            if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) and not isinstance(leaf, int | float | complex):
                raise ReadJaxError(
                    f"argument {place + 1} holds a {type(leaf).__name__}; arguments are arrays, numbers and trees with "
                    "these as leaves: bind other arguments with functools.partial"
                )


def _unwrapped(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _identifier(text: str, otherwise: str = "function") -> str:
    return Names().take(text) if text.isidentifier() else otherwise


def _parameters(fn: Callable[..., Any], count: int) -> list[str]:
    """Return the function's names of its arguments."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind == parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{place}" for place in range(count - len(names))]
    names = names[:count]
    free = Names()
    return [free.take(name) for name in [*names, *(f"x{place}" for place in range(len(names), count))]]


def _leaves(arguments: Sequence[Any], names: list[str]) -> list[tuple[str, str]]:
    """Return, for each array among the arguments, its name and the expression that reads it."""
    import jax

    keys = jax.tree_util
    leaves: list[tuple[list[str], str, str]] = []
    for argument, name in zip(arguments, names, strict=True):
        for path, _ in keys.tree_flatten_with_path(argument)[0]:
            access, words = name, []
            for key in path:
                match key:
                    case keys.DictKey():
                        access += f"[{ex.literal(key.key)}]"
                        words.append(str(key.key))
                    case keys.GetAttrKey():
                        access += f".{key.name}"
                        words.append(key.name)
                    case keys.SequenceKey():
                        access += f"[{key.idx}]"
                        words.append(str(key.idx))
                    case _:
                        raise ReadJaxError(
                            f"argument '{name}' is a tree of an unknown kind; pass tuples, lists or dicts"
                        )
            leaves.append((words, name, access))
    # the last word and its numbers are enough, unless another argument has the same
    brief = ["_".join(_tail(words)) or name for words, name, _ in leaves]
    long = ["_".join(words) or name for words, name, _ in leaves]
    named = []
    for place, (words, name, access) in enumerate(leaves):
        wish = brief[place] if brief.count(brief[place]) == 1 else long[place]
        if wish == long[place] and long.count(wish) > 1:
            wish = "_".join([name, *words])
        if not words:
            wish = name
        elif wish[0].isdigit():
            wish = f"{name}_{wish}"
        named.append((wish, access))
    return named


def _tail(words: list[str]) -> list[str]:
    place = next((k for k in reversed(range(len(words))) if not words[k].isdigit()), 0)
    lead = place
    while lead and words[lead - 1].isdigit():
        lead -= 1
    return [*words[place:], *words[lead:place]]


def _tuples(result: Any) -> set[str]:
    """Return the names of the named tuples in a result."""
    names = {type(result).__name__} if hasattr(result, "_fields") else set()
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else ()
    return names.union(*map(_tuples, parts))


def _tree(result: Any, outputs: Any, types: dict[str, tuple[str, ...]]) -> Expr:
    """Return the expression that builds a result; add the named tuples that must be defined to ``types``."""
    if hasattr(result, "shape") and hasattr(result, "dtype"):
        expr: Expr = next(outputs)
        return expr
    if result is None:
        return ex.raw("None")
    name = type(result).__name__
    match result:
        case tuple() if hasattr(result, "_fields"):
            if types.setdefault(name, tuple(result._fields)) != tuple(result._fields):
                raise ReadJaxError(f"the function returns two kinds of named tuples called {name}; rename one")
            return ex.call(name, *(_tree(part, outputs, types) for part in result))
        case tuple():
            return ex.sequence([_tree(part, outputs, types) for part in result], "()")
        case list():
            return ex.sequence([_tree(part, outputs, types) for part in result], "[]")
        case dict():
            # JAX flattens a plain dictionary in the order of its keys
            keys = list(result) if name == "OrderedDict" else sorted(result)
            return ex.mapping([(ex.literal(key).text, _tree(result[key], outputs, types)) for key in keys])
    raise ReadJaxError(
        f"the function returns a {name}; a result consists of arrays, tuples, lists, dictionaries and named tuples"
    )
