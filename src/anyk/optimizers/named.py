"""Optimisers and schedulers of other packages by name, and what stands in a spec for those that have none."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from anyk.errors import BadInput
from anyk.named import admit, imported

Argument = None | bool | int | float | tuple[float, ...] | str  # what a spec can say
MADE = "made in Python"  # what stands in a spec for what has none


def refuse_made(method: Any) -> None:
    """Raise :class:`~anyk.errors.BadInput` for what only the user can give again."""
    if method == MADE:
        raise BadInput("this optimiser was made in Python; give it again: optimizer=…, in resume or replay")


def said(what: Any) -> str:
    """A class, a function or its name, as a sentence has it."""
    return f"'{what}'" if isinstance(what, str) else str(getattr(what, "__name__", what))


def found_by(method: str | type, home: str, kind: str) -> Any:
    """The class that a name stands for: a subclass of ``kind`` in the module ``home``, or elsewhere if it has dots.

    Raises :class:`~anyk.errors.BadInput` for a name that is not there.
    """
    if not isinstance(method, str):
        return method
    where, _, name = method.rpartition(".")
    own = not where or where == home or where.startswith(f"{home}.")
    if not own:
        admit(where, method, "optimizer")
    try:
        module = import_module(where or home) if own else imported(where, here=False)
    except ImportError as error:
        raise BadInput(f"'{method}' cannot be imported: {error}") from None
    found = getattr(module, name, None)
    base = getattr(import_module(home), kind)
    if isinstance(found, type) and issubclass(found, base) and found is not base:
        return found
    known = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    others = ", ".join(sorted(set(known) - {kind}))
    hint = f"did you mean '{near[0]}'?" if near else f"known: {others}" if others else f"it has no {home}.{kind}"
    raise BadInput(f"no '{name}' in {where or home}; {hint}")


def name_of(found: type, home: str) -> str | None:
    """What :func:`found_by` finds a class by; None for one of the main program or inside a function."""
    if getattr(import_module(home), found.__name__, None) is found:
        return str(found.__name__)
    if found.__module__ == "__main__" or "." in found.__qualname__:
        return None
    return f"{found.__module__}.{found.__name__}"
