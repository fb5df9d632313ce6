"""From a function and example arguments to the jaxpr, and from trees of arguments and results to flat ones and back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from anyk.decompile import expressions as ex
from anyk.decompile.expressions import Expr
from anyk.decompile.literals import short
from anyk.decompile.naming import Names, Origins
from anyk.decompile.reading import Reader
from anyk.decompile.writing import fixed_names, module_of
from anyk.errors import BadInput, MissingPackage

_TARGETS = {"jax": "JAX", "numpy": "NumPy"}


def decompile(fn: Any, examples: Sequence[Any], *, target: str, names: Sequence[str] | None) -> str:
    """The text that :func:`anyk.decompile.to_python` returns."""
    try:
        import jax
    except ImportError:
        raise MissingPackage("jax", "jax", "decompiling a function") from None
    if target not in _TARGETS:
        raise BadInput(f"target must be jax or numpy, got {target!r}")
    if hasattr(fn, "jaxpr") and hasattr(fn, "consts"):
        if examples:
            raise BadInput("a jaxpr knows its arguments: give no example arguments with it")
        closed = fn
        called = _identifier(str(getattr(fn.jaxpr.debug_info, "func_src_info", "") or "").partition(" at ")[0])
        arguments = [v.aval for v in closed.jaxpr.invars]
        result: Any = tuple(v.aval for v in closed.jaxpr.outvars)
        result = result[0] if len(result) == 1 else result
        known = getattr(fn.jaxpr.debug_info, "arg_names", None) or ()
        own = [_identifier(str(one), f"x{k}") for k, one in enumerate(known)]
        if len(set(own)) != len(arguments):
            own = [f"x{place}" for place in range(len(arguments))]
    else:
        if not callable(fn):
            raise BadInput(f"what is decompiled must be a function or a closed jaxpr, got {type(fn).__name__}")
        arguments = list(examples)
        _check(arguments)
        called = _identifier(getattr(_unwrapped(fn), "__name__", ""))
        try:
            closed, result = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        except BadInput:
            raise
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise BadInput(
                f"JAX cannot trace '{called}' with these arguments: {type(error).__name__}: {reason}"
            ) from error
        own = _parameters(fn, len(arguments))
    if names is not None:
        if len(names) != len(arguments) or len(set(names)) != len(names) or not all(n.isidentifier() for n in names):
            raise BadInput(f"names must be {len(arguments)} different Python names, one an argument, got {list(names)}")
        own = list(names)
        hidden = sorted(fixed_names().intersection(own))
        if hidden:
            raise BadInput(f"names must not be what the text needs itself: {', '.join(hidden)}")
    return _write(closed, arguments, result, own, called, target)


def _write(closed: Any, arguments: Sequence[Any], result: Any, own: list[str], called: str, target: str) -> str:
    import jax

    hidden = fixed_names() | _tuples(result)
    free = Names({*hidden, *own})
    own = [free.take(name) if name in hidden else name for name in own]
    inputs = _leaves(arguments, own)
    reader, origins = Reader(target), Origins()
    block = reader.read(closed, [called for called, _ in inputs])
    if len(block.inputs) != len(inputs):
        raise BadInput("the jaxpr has other inputs than the arguments have numbers and arrays")
    types: dict[str, tuple[str, ...]] = {}

    def give_back(outputs: list[Expr]) -> Expr | list[Expr]:
        left = iter(outputs)
        made = _tree(result, left, types)
        if isinstance(result, tuple) and not hasattr(result, "_fields") and len(made.items) > 1:
            return list(made.items)
        return made

    notes = list(reader.notes)
    kinds = [short(v.dtype, v.shape) for v in block.inputs]
    if target == "jax" and any(kind.startswith(("f64", "i64", "u64", "c128")) for kind in kinds):
        notes.append("Needs 64-bit types: jax.config.update('jax_enable_x64', True).")
    title = f"{called}, as {_TARGETS[target]}: decompiled by anyk from JAX {jax.__version__}."
    sentences = [_sentence(note) for note in notes]
    return module_of(
        reader,
        block,
        origins,
        target=target,
        name=called,
        parameters=own,
        inputs=inputs,
        result=give_back,
        title=title,
        notes=sentences,
        types=types,
    )


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:].rstrip(".") + "."


def _check(arguments: Sequence[Any]) -> None:
    import jax

    for place, argument in enumerate(arguments):
        for leaf in jax.tree_util.tree_leaves(argument):
            if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) and not isinstance(leaf, int | float | complex):
                raise BadInput(
                    f"argument {place + 1} holds a {type(leaf).__name__}; arguments are arrays, numbers and trees of "
                    "them: bind the rest before, with functools.partial"
                )


def _unwrapped(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _identifier(text: str, otherwise: str = "function") -> str:
    return Names().take(text) if text.isidentifier() else otherwise


def _parameters(fn: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its arguments."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for one in parameters:
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
            names.append(one.name)
        elif one.kind == one.VAR_POSITIONAL:
            names += [f"{one.name}_{place}" for place in range(count - len(names))]
    names = names[:count]
    taken = Names()
    return [taken.take(name) for name in [*names, *(f"x{place}" for place in range(len(names), count))]]


def _leaves(arguments: Sequence[Any], own: list[str]) -> list[tuple[str, str]]:
    """For each array among the arguments what to call it, and how it is had from them."""
    import jax

    keys = jax.tree_util
    found: list[tuple[list[str], str, str]] = []
    for argument, name in zip(arguments, own, strict=True):
        for path, _ in keys.tree_flatten_with_path(argument)[0]:
            access, words = name, []
            for key in path:
                if isinstance(key, keys.DictKey):
                    access += f"[{ex.literal(key.key)}]"
                    words.append(str(key.key))
                elif isinstance(key, keys.GetAttrKey):
                    access += f".{key.name}"
                    words.append(key.name)
                elif isinstance(key, keys.SequenceKey):
                    access += f"[{key.idx}]"
                    words.append(str(key.idx))
                else:
                    raise BadInput(
                        f"argument '{name}' is a tree of a kind that is unknown; pass tuples, lists or dicts"
                    )
            found.append((words, name, access))
    # the last word and its numbers say enough, if no other argument has the same
    brief = ["_".join(_tail(words)) or name for words, name, _ in found]
    long = ["_".join(words) or name for words, name, _ in found]
    made = []
    for place, (words, name, access) in enumerate(found):
        wish = brief[place] if brief.count(brief[place]) == 1 else long[place]
        if wish == long[place] and long.count(wish) > 1:
            wish = "_".join([name, *words])
        if not words:
            wish = name
        elif wish[0].isdigit():
            wish = f"{name}_{wish}"
        made.append((wish, access))
    return made


def _tail(words: list[str]) -> list[str]:
    place = next((k for k in reversed(range(len(words))) if not words[k].isdigit()), 0)
    lead = place
    while lead and words[lead - 1].isdigit():
        lead -= 1
    return [*words[place:], *words[lead:place]]


def _tuples(result: Any) -> set[str]:
    """The named tuples of a result, by name."""
    found = {type(result).__name__} if hasattr(result, "_fields") else set()
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else ()
    return found.union(*map(_tuples, parts))


def _tree(result: Any, outputs: Any, types: dict[str, tuple[str, ...]]) -> Expr:
    """The expression that puts a result together; ``types`` collects named tuples that must be defined."""
    if hasattr(result, "shape") and hasattr(result, "dtype"):
        made: Expr = next(outputs)
        return made
    if result is None:
        return ex.raw("None")
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        if types.setdefault(type(result).__name__, tuple(result._fields)) != tuple(result._fields):
            raise BadInput(f"the function returns two kinds of named tuples called {type(result).__name__}; rename one")
        return ex.call(type(result).__name__, *(_tree(one, outputs, types) for one in result))
    if isinstance(result, tuple | list):
        return ex.sequence([_tree(one, outputs, types) for one in result], "()" if isinstance(result, tuple) else "[]")
    if isinstance(result, dict):
        # JAX flattens a plain dictionary in the order of its keys
        keys = list(result) if type(result).__name__ == "OrderedDict" else sorted(result)
        return ex.mapping([(ex.literal(key).text, _tree(result[key], outputs, types)) for key in keys])
    raise BadInput(
        f"the function returns a {type(result).__name__}; a result is made of arrays, tuples, lists, dictionaries and "
        "named tuples"
    )
