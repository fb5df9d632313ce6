"""Callbacks by name, for the command line and run folders.

The built-in callbacks are named by their specs, custom ones by the function that builds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anyk.base.errors import BadInput, explaining
from anyk.base.named import admit_place, function_named
from anyk.base.registries import Registry, with_files
from anyk.base.specs import absolute, parse_spec, show_spec
from anyk.runs.callbacks import HOOKS, Callbacks, check_callbacks

registry: Registry[Any] = Registry("callback")


def callback(spec: str) -> Any:
    """Return the callback of a spec, such as ``early-stopping:patience=5``, or the result of a named function.

    The function has no arguments and is named as ``file.py:function`` or ``module:function``. Raises
    :class:`~anyk.BadInput` if there is no such callback, or the function returns something else.

    >>> callback("early-stopping:patience=3").patience
    3
    >>> callback("early-stoping")
    Traceback (most recent call last):
    anyk.base.errors.UnknownName: no callback 'early-stoping'; did you mean 'early-stopping'?
    """
    return _build_named(spec)[0]


def named_callbacks(specs: Sequence[str]) -> Callbacks:
    """Return the callbacks of specs, for a run whose folder stores the specs."""
    named = [_build_named(spec) for spec in specs]
    callbacks = check_callbacks([callback for callback, _ in named])
    callbacks.specs = tuple(name for _, name in named)
    return callbacks


def _build_named(spec: str) -> tuple[Any, str]:
    """Return the callback, and its name with absolute paths, which is valid in any folder."""
    source, _, function = spec.rpartition(":")
    module = all(word.isidentifier() for word in source.split("."))
    if function.isidentifier() and (module or source.endswith(".py")) and source not in registry:
        build, complete = function_named(spec, "callback")
        return _build_custom(build, spec), complete
    name, keys = parse_spec(spec)
    entry = registry.entry(name, also=("FILE.py:FUNCTION",))
    complete = with_files(spec, absolute, registry)
    first, marks = next(iter(entry.parameters()), ""), entry.marks()
    values = {key or first: value for key, value in parse_spec(complete)[1].items()}
    if marks.keys() & values.keys():
        admit_place(complete, "callback")
    return registry.build(spec), show_spec(name, values) if keys else name


def _build_custom(build: Callable[[], Any], name: str) -> object:
    with explaining(f"'{name}' failed"):
        callback = build()
    if isinstance(callback, type) or not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
        kind = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
        raise BadInput(f"'{name}' gave {kind}, which is not a callback: an object with one of {', '.join(HOOKS)}")
    return callback
