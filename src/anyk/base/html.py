"""Tables and small pictures for notebooks, in plain HTML and SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_COLOURS = ("#2f8fd0", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # on light and dark backgrounds
_DASHES = ("", "7 4", "2 3", "8 3 2 3")
_WIDE, _HIGH = 320, 120  # pixels
_MOST = 64  # rows or columns of a matrix in a picture


def html_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table with a line of headings; a cell of None is empty.

    >>> html_table(["a"], [[1], [None]])
    '<table><tr><th>a</th></tr><tr><td>1</td></tr><tr><td></td></tr></table>'
    """
    top = "".join(f"<th>{escape(word)}</th>" for word in head)
    lines = ("".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def html_text(words: str) -> str:
    """Return a paragraph.

    >>> html_text("a < b")
    '<div>a &lt; b</div>'
    """
    return f"<div>{escape(words)}</div>"


def html_curves(series: Mapping[str, tuple[Any, Any]], label: str) -> str:
    """Return lines over a common range, each with its name; points that are not finite are omitted."""
    finite = {
        name: [(float(x), float(y)) for x, y in zip(*xy, strict=True) if abs(float(y)) < float("inf")]
        for name, xy in series.items()
    }
    points = [point for line in finite.values() for point in line]
    if not points:
        return ""
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    lines, names = [], []
    for i, (name, line) in enumerate(finite.items()):
        coordinates = " ".join(
            f"{_WIDE * x / right:.1f},{_HIGH * (1.0 - (y - low) / ((high - low) or 1.0)):.1f}" for x, y in line
        )
        colour, dash = _COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)]
        look = f'stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"'
        lines.append(f'<polyline points="{coordinates}" fill="none" {look}><title>{escape(name)}</title></polyline>')
        names.append(
            f'<svg width="30" height="8"><line x1="1" y1="4" x2="29" y2="4" {look}/></svg> {escape(name)}&emsp;'
        )
    box = f'viewBox="-4 -4 {_WIDE + 8} {_HIGH + 8}" width="{_WIDE + 8}" height="{_HIGH + 8}"'
    axes = f'<path d="M0 0V{_HIGH}H{_WIDE}" fill="none" stroke="#888888"/>'
    words = f"{escape(label)}, {low:.4g} to {high:.4g}, over {right:.4g} s"
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{axes}{"".join(lines)}</svg><div>{words}</div>'
    return picture + (f"<div>{''.join(names)}</div>" if len(names) > 1 else "")


def html_bar(share: float) -> str:
    """Return a bar that shows progress, a share from 0 to 1."""
    wide = _WIDE * min(max(share, 0.0), 1.0)
    return (
        f'<svg width="{_WIDE}" height="8"><rect width="{_WIDE}" height="8" fill="#888888" opacity="0.3"/>'
        f'<rect width="{wide:.1f}" height="8" fill="{_COLOURS[0]}"/></svg>'
    )


def html_matrix(rows: Sequence[tuple[Sequence[int], Sequence[float]]], columns: int) -> str:
    """Return a picture of the entries of a sparse matrix; empty if it is too large."""
    if max(len(rows), columns) > _MOST:
        return ""
    side = max(3, min(16, _WIDE // columns))
    cells = (
        f'<rect x="{j * side}" y="{i * side}" width="{side - 1}" height="{side - 1}"><title>{value:.4g}</title></rect>'
        for i, (places, values) in enumerate(rows)
        for j, value in zip(places, values, strict=False)
    )
    size = f'width="{columns * side}" height="{len(rows) * side}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="{_COLOURS[0]}">{"".join(cells)}</svg>'
