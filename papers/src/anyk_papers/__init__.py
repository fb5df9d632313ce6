"""Figures and tables of papers, reproduced, with a verdict on each claim.

>>> from anyk_papers import items
>>> items()["erasurehead-theory"].clock
'simulated'
"""

from __future__ import annotations

from anyk_papers.gallery import items
from anyk_papers.item import Claim, Criterion, Item, Order, Percentage, Ratio, Value, Verdict, overall
from anyk_papers.item_table import Row, Table
from anyk_papers.lab import Lab
from anyk_papers.reproducing import Reproduction, reproduce, reproduce_all

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
