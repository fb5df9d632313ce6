"""Figures and tables of papers, reproduced, with a verdict on each claim.

>>> from anyk_papers import items
>>> items()["erasurehead-theory"].clock
'simulated'
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from anyk_papers import gallery
from anyk_papers.item import Claim, Criterion, Item, Order, Percentage, Ratio, Value, Verdict, overall
from anyk_papers.item_table import Row, Table
from anyk_papers.lab import Lab
from anyk_papers.reproducing import Reproduction, reproduce, reproduce_all


@cache
def items() -> dict[str, Item]:
    """Return all items by name, in the order of their names."""
    values = [import_module(f"{gallery.__name__}.{module.name}").ITEM for module in iter_modules(gallery.__path__)]
    return {item.name: item for item in sorted(values, key=lambda item: item.name)}


__all__ = [
    "Claim",
    "Criterion",
    "Item",
    "Lab",
    "Order",
    "Percentage",
    "Ratio",
    "Reproduction",
    "Row",
    "Table",
    "Value",
    "Verdict",
    "items",
    "overall",
    "reproduce",
    "reproduce_all",
]
