"""Figures and tables of papers, reproduced, with a verdict on each claim.

>>> from anyk.papers import items
>>> items()["erasurehead-theory"].clock
'simulated'
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from anyk.papers import items as _items
from anyk.papers.item import Claim, Criterion, Item, Order, Percentage, Ratio, Value, Verdict, overall
from anyk.papers.item_table import Row, Table
from anyk.papers.lab import Lab
from anyk.papers.reproducing import Reproduction, reproduce, reproduce_all


@cache
def items() -> dict[str, Item]:
    """Return all items by name, in the order of their names."""
    values = [import_module(f"{_items.__name__}.{module.name}").ITEM for module in iter_modules(_items.__path__)]
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
