"""Quantities in words, and docstrings as plain text."""

from __future__ import annotations

import re
import textwrap


def plain(docstring: str, width: int = 100) -> str:
    """Return a docstring up to its first example, without marks and wrapped.

    >>> print(plain("Takes ``k`` of *all*.\\n\\n- a: waits"))
    Takes k of all.
    <BLANKLINE>
    - a: waits
    """
    docstring = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", docstring.split("\n>>>")[0]).replace("``", "")
    docstring = re.sub(r"(?<!\w)\*(\w[^*\n]*\w|\w)\*(?!\w)", r"\1", docstring)
    blocks = []
    for block in re.split(r"\n\s*\n", docstring.strip()):
        blocks.append("\n".join(_wrapped(item, width) for item in _items(block.splitlines())))
    return "\n\n".join(blocks)


def _items(lines: list[str]) -> list[str]:
    """Return the paragraph, or the points of a list, each in one line."""
    items = [""]
    for line in lines:
        if line.lstrip().startswith("- "):
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()
    return [item.strip() for item in items if item]


def _wrapped(item: str, width: int) -> str:
    indent = "  " if item.startswith("- ") else ""
    return textwrap.fill(item, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def duration(value: float) -> str:
    """Return seconds in words.

    >>> duration(0.0213), duration(3.14159), duration(4321.0)
    ('21.3 ms', '3.14 s', '4,321 s')
    """
    if value != 0.0 and abs(value) < 0.1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def count_steps(count: int) -> str:
    """Return a number of steps in words."""
    return f"{count:,} step{'s' * (count != 1)}"
