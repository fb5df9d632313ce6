"""The items: each module of this package defines one, as ``ITEM``."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from anyk_papers.item import Item


@cache
def items() -> dict[str, Item]:
    """Return all items by name, in the order of their names."""
    values = [import_module(f"{__name__}.{module.name}").ITEM for module in iter_modules(__path__)]
    return {item.name: item for item in sorted(values, key=lambda item: item.name)}
