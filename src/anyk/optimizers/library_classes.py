"""Optimisers and schedulers of other packages by name, and the spec of objects without a name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anyk.base.errors import BadInput, as_bad_input, suggest
from anyk.base.named import admit, import_named

Argument = None | bool | int | float | tuple[float, ...] | str  # the types of values in a spec
MADE = "made in Python"  # in a spec: an object without a name


def refuse_made(method: object) -> None:
    """Raise :class:`~anyk.BadInput` for a method that the user must give again."""
    if method == MADE:
        raise BadInput("this optimiser was made in Python; give it again: optimizer=…, in resume or replay")


def label(method: object) -> str:
    """Return the name of a class or function, or a quoted name, for a sentence."""
    return f"'{method}'" if isinstance(method, str) else str(getattr(method, "__name__", method))


def resolve_class(method: str | type, home: str, kind: str) -> Any:
    """Return the class of a name: a subclass of ``kind`` in the module ``home``, or elsewhere if it has dots.

    Raises :class:`~anyk.BadInput` for an unknown name.
    """
    if not isinstance(method, str):
        return method
    module_name, _, name = method.rpartition(".")
    in_library = not module_name or module_name == home or module_name.startswith(f"{home}.")
    if not in_library:
        admit(module_name, method, "optimizer")
    with as_bad_input(f"'{method}' cannot be imported", Exception):
        module = (
            import_module(module_name or home) if in_library else import_named(module_name, in_current_folder=False)
        )
    method_class = getattr(module, name, None)
    base = getattr(import_module(home), kind)
    if isinstance(method_class, type) and issubclass(method_class, base) and method_class is not base:
        return method_class
    names = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
    others = ", ".join(sorted(set(names) - {kind}))
    hint = suggest(name, names, f"known: {others}" if others else f"it has no {home}.{kind}", cutoff=0.5)
    raise BadInput(f"no '{name}' in {module_name or home}; {hint}")


def name_of(method_class: type, home: str) -> str | None:
    """Return the name by which :func:`resolve_class` finds a class; None in the main program or inside a function."""
    if getattr(import_module(home), method_class.__name__, None) is method_class:
        return str(method_class.__name__)
    if method_class.__module__ == "__main__" or "." in method_class.__qualname__:
        return None
    return f"{method_class.__module__}.{method_class.__name__}"
