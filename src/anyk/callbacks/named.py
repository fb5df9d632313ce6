"""Callbacks named by texts: anyk's own by their specs, a user's by the function that makes them.

So the command line takes them, and a run's folder keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyk.errors import BadInput, told
from anyk.named import admit_place, function_named
from anyk.runs.callbacks import HOOKS, Callbacks, check_callbacks
from anyk.specs import Registry, absolute, parse, show, with_files

registry: Registry[Any] = Registry("callback")


def callback(spec: str) -> Any:
    """The callback of a spec, such as ``early-stopping:patience=5``, or that a function without arguments makes.

    A function is named as ``file.py:function`` or ``module:function``. Raises :class:`~anyk.errors.BadInput` where
    there is no such callback, or what the function makes is none.

    >>> callback("early-stopping:patience=3").patience
    3
    >>> callback("early-stoping")
    Traceback (most recent call last):
    anyk.errors.UnknownName: no callback 'early-stoping'; did you mean 'early-stopping'?
    """
    return _made(spec)[0]


def named_callbacks(specs: Sequence[str], others: Sequence[Any] = ()) -> Callbacks:
    """``others`` and the callbacks of specs, as those of a run whose folder keeps the specs."""
    made = [_made(spec) for spec in specs]
    found = check_callbacks([*others, *(one for one, _ in made)])
    found.specs = tuple(whole for _, whole in made)
    return found


def _made(spec: str) -> tuple[Any, str]:
    """The callback, and what it is called in any folder."""
    where, _, function = spec.rpartition(":")
    module = all(part.isidentifier() for part in where.split("."))
    if where not in registry and function.isidentifier() and (module or where.endswith(".py")):
        make, whole = function_named(spec, "callback")
        return _checked(make, spec), whole
    name, given = parse(spec)
    entry = registry.entry(name, also=("FILE.py:FUNCTION",))
    whole = with_files(spec, absolute, registry)
    first, marks = next(iter(entry.parameters()), ""), entry.marks()
    values = {key or first: value for key, value in parse(whole)[1].items()}
    if marks.keys() & values.keys():
        admit_place(whole, "callback")
    return registry.build(spec), show(name, values) if given else name


def _checked(make: Any, name: str) -> Any:
    try:
        made = make()
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"'{name}' failed: {told(error)}") from None
    if isinstance(made, type) or not any(callable(getattr(made, hook, None)) for hook in HOOKS):
        kind = f"the class {made.__name__}" if isinstance(made, type) else type(made).__name__
        raise BadInput(f"'{name}' gave {kind}, which is not a callback: an object with one of {', '.join(HOOKS)}")
    return made
