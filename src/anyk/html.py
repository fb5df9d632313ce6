"""What notebooks show of runs, races and codes: a table and a small picture, in plain HTML and SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDE, _HIGH = 320, 120  # pixels
_MOST = 64  # rows or columns of a matrix that are drawn


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a line of headings; None is left empty.

    >>> table(["a"], [[1], [None]])
    '<table><tr><th>a</th></tr><tr><td>1</td></tr><tr><td></td></tr></table>'
    """
    top = "".join(f"<th>{escape(word)}</th>" for word in head)
    lines = ("".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def curves(series: Mapping[str, tuple[Any, Any]], label: str) -> str:
    """Lines over a common range, each with its name; points that are not finite are left out."""
    kept = {
        name: [(float(x), float(y)) for x, y in zip(*xy, strict=True) if abs(float(y)) < float("inf")]
        for name, xy in series.items()
    }
    points = [point for line in kept.values() for point in line]
    if not points:
        return ""
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    drawn = []
    for (name, line), colour in zip(kept.items(), _COLOURS * len(kept), strict=False):
        place = " ".join(
            f"{_WIDE * x / right:.1f},{_HIGH * (1.0 - (y - low) / ((high - low) or 1.0)):.1f}" for x, y in line
        )
        drawn.append(
            f'<polyline points="{place}" fill="none" stroke="{colour}"><title>{escape(name)}</title></polyline>'
        )
    box = f'viewBox="-4 -4 {_WIDE + 8} {_HIGH + 8}" width="{_WIDE + 8}" height="{_HIGH + 8}"'
    words = f"{escape(label)}, {low:.4g} to {high:.4g}, over {right:.4g} s"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(drawn)}</svg><div>{words}</div>'


def matrix(rows: Sequence[tuple[Sequence[int], Sequence[float]]], columns: int) -> str:
    """The places of a sparse matrix that hold something; nothing where it is too large to draw."""
    if max(len(rows), columns) > _MOST:
        return ""
    side = max(3, min(16, _WIDE // columns))
    cells = (
        f'<rect x="{j * side}" y="{i * side}" width="{side - 1}" height="{side - 1}"><title>{value:.4g}</title></rect>'
        for i, (held, values) in enumerate(rows)
        for j, value in zip(held, values, strict=False)
    )
    size = f'width="{columns * side}" height="{len(rows) * side}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="{_COLOURS[0]}">{"".join(cells)}</svg>'
