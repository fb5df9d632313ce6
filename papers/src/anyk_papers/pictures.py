"""Panels of an item's picture as values: curves with bands, bars, and lines over a setting."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anyk.base import Floats
from anyk.views.style import COLOURS, picture
from anyk_papers.item_table import Case, Row, Table

_POINTS = 300  # of the grid on which curves of several seeds are compared
_STYLES = ("-", "--", "-.", ":")
_WIDTH = 62  # characters of a title above one panel
_ZERO = 1e-12  # relative to the largest value; smaller values are rounding


_Line = tuple[Floats, Floats, dict[str, Any]]  # x; mean, least and largest y, shape (3, points); its style


class Drawing(Protocol):
    """A pair of axes of a picture."""

    def draw(self, axes: Any, table: Table) -> None:
        """Draw the table."""
        ...


def _name(case: Case) -> str:
    return ", ".join(str(value) for value in case.values())


def band(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return a common grid of several curves, with their median, least and largest values on it.

    >>> x, middle, low, high = band([(np.array([0.0, 2.0]), np.array([0.0, 2.0])), (np.array([1.0, 2.0]), np.ones(2))])
    >>> x[[0, -1]].tolist(), middle[-1], low[-1], high[-1]
    ([1.0, 2.0], np.float64(1.5), np.float64(1.0), np.float64(2.0))
    """
    if len(curves) == 1:
        x, y = curves[0]
        return x, y, y, y
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(start, max(start, end), _POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in curves])
    return grid, np.median(values, axis=0), values.min(axis=0), values.max(axis=0)


@dataclass(frozen=True)
class Curves:
    """A curve per case: the median over the seeds, and a band from the least to the largest."""

    curve: str
    x: str
    y: str
    title: str = ""
    log: str = ""  # x, y or xy
    label: Callable[[Case], str] = _name
    of: Mapping[str, Any] = field(default_factory=dict)  # only cases with these values
    lines: Sequence[float] = ()  # levels to mark
    steps: bool = False

    def draw(self, axes: Any, table: Table) -> None:
        for i, row in enumerate(table.where(**self.of)):
            if self.curve not in row.curves:
                continue
            x, middle, low, high = band(row.curves[self.curve])
            colour, style = COLOURS[i % len(COLOURS)], _STYLES[i // len(COLOURS) % len(_STYLES)]
            how = {"drawstyle": "steps-post"} if self.steps else {}
            axes.plot(x, middle, style, color=colour, lw=1.7, label=self.label(row.case), **how)
            if len(row.curves[self.curve]) > 1:
                axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
        for level in self.lines:
            axes.axhline(level, color="0.6", lw=0.8, ls="--")
        _finish(axes, self.x, self.y, self.title, self.log)


@dataclass(frozen=True)
class Bars:
    """A bar per case with the range over the seeds, and a second number, ``mark``, as a line across the bar.

    ``further``: numbers whose bars stand beside it, each in its own colour.
    """

    number: str
    y: str
    title: str = ""
    log: str = ""
    label: Callable[[Case], str] = _name
    mark: str | None = None
    of: Mapping[str, Any] = field(default_factory=dict)
    further: Sequence[str] = ()

    def draw(self, axes: Any, table: Table) -> None:
        numbers = (self.number, *self.further)
        rows = [row for row in table.where(**self.of) if self.number in row.numbers]
        step = 0.84 / len(numbers)
        for i, row in enumerate(rows):
            for j, number in enumerate(numbers):
                self._bar(
                    axes,
                    row,
                    number,
                    centre=i + (j - (len(numbers) - 1) / 2.0) * step,
                    width=0.84 * step,
                    colour=COLOURS[(j if self.further else i) % len(COLOURS)],
                    label="" if i or not self.further else number,
                )
            if self.mark is not None:
                axes.plot(
                    [i - 0.4, i + 0.4], [row.mean(self.mark)] * 2, color="black", lw=1.6, label=None if i else self.mark
                )
        axes.set_xticks(range(len(rows)), [self.label(row.case) for row in rows], rotation=30, ha="right", fontsize=8)
        axes.margins(y=0.12)
        _finish(axes, "", self.y, self.title, self.log, grid="y")

    @staticmethod
    def _bar(axes: Any, row: Row, number: str, *, centre: float, width: float, colour: str, label: str) -> None:
        mean, (low, high) = row.mean(number), row.spread(number)
        if not np.isfinite(mean):
            axes.annotate(
                "never",
                (centre, 0.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize=8,
                rotation=90 if width < 0.5 else 0,
            )
            return
        error = None if high - low < 1e-12 else [[mean - low], [high - mean]]
        axes.bar(centre, mean, color=colour, yerr=error, capsize=3, width=width, label=label or None)
        axes.annotate(
            f"{mean:.3g}",
            (centre, high),
            ha="center",
            va="bottom",
            fontsize=8 if width > 0.5 else 6,
            xytext=(0, 2),
            textcoords="offset points",
        )


@dataclass(frozen=True)
class Lines:
    """Numbers of cases over one of their settings, a line for each value of ``by`` and each number.

    A line that a later line covers is wider and paler. On a logarithmic y axis zeros are marked at the lower edge.
    """

    over: str
    numbers: Sequence[str]
    x: str
    y: str
    title: str = ""
    log: str = ""
    by: str | None = None
    marks: Sequence[tuple[float, str]] = ()  # vertical lines
    of: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, axes: Any, table: Table) -> None:
        groups: dict[Any, list[Row]] = {}
        for row in table.where(**self.of):
            groups.setdefault(row.case.get(self.by) if self.by else None, []).append(row)
        lines = self._lines(groups)
        zeros = "y" in self.log and _mark_zeros(axes, lines)
        for i, line in enumerate(lines):
            _draw_line(axes, line, later=lines[i + 1 :])
        if zeros:
            axes.plot([], [], "v", color="0.4", ms=5, label="zero")
        for x, name in self.marks:
            _draw_mark(axes, x, name)
        numbered = all(isinstance(group, (int, float)) for group in groups)
        _finish(axes, self.x, self.y, self.title, self.log, legend=self.by if numbered else None)

    def _lines(self, groups: Mapping[Any, Sequence[Row]]) -> list[_Line]:
        """Return a line for each group and each number that some of its rows have."""
        lines = []
        for i, (group, members) in enumerate(groups.items()):
            for j, number in enumerate(self.numbers):
                rows = [row for row in members if number in row.numbers]
                if not rows:
                    continue
                x = np.array([float(row.case[self.over]) for row in rows])
                y = np.array([[row.mean(number), *row.spread(number)] for row in rows]).T
                which = i if len(groups) > 1 else j
                style = {
                    "color": COLOURS[which % len(COLOURS)],
                    "ls": _STYLES[(j + which // len(COLOURS)) % len(_STYLES)],
                    "label": self._label(group, number) or None,
                }
                lines.append((x, y, style))
        return lines

    def _label(self, group: Any, number: str) -> str:
        """Return the name of a group, and of the number if there are several."""
        names = [] if group is None else [str(group)]
        return ", ".join(filter(None, names + [number] * (len(self.numbers) > 1)))


def _draw_line(axes: Any, line: _Line, *, later: Sequence[_Line]) -> None:
    """Draw a line and its band, the wider the more ``later`` lines cover it."""
    x, (mean, least, largest), style = line
    wider = 2.5 * sum(_covers(mean, y[0]) for _, y, _ in later)
    axes.plot(x, mean, marker="o", ms=3.5 + wider, lw=1.5 + wider, alpha=0.4 if wider else 1.0, **style)
    if (largest > least).any():
        axes.fill_between(x, least, largest, color=style["color"], alpha=0.15, lw=0)


def _draw_mark(axes: Any, x: float, name: str) -> None:
    """Draw a vertical line with a name."""
    axes.axvline(x, color="0.6", lw=0.8, ls="--")
    axes.annotate(
        name,
        (x, 0.97),
        xycoords=("data", "axes fraction"),
        fontsize=8,
        rotation=90,
        va="top",
        ha="right",
        color="0.4",
    )


def _covers(y: Floats, other: Floats) -> bool:
    """Return whether a line hides another one at more than half of its points."""
    return len(y) == len(other) and bool((np.abs(y - other) <= 0.01 * np.nanmax(np.abs(y))).mean() > 0.5)


def _mark_zeros(axes: Any, lines: Sequence[_Line]) -> bool:
    """Replace zeros (up to rounding), which a logarithmic axis cannot show, by marks; return whether there are any.

    The marks are at the lower edge, each line's a little above the previous line's.
    """
    largest = max((float(np.nanmax(y)) for _, y, _ in lines), default=0.0)
    positive = [value for _, y, _ in lines for value in y[0][y[0] > _ZERO * largest].tolist()]
    any_zero = False
    for i, (x, y, how) in enumerate(lines):
        zero = ~(y[0] > _ZERO * largest)
        if zero.any():
            axes.plot(
                x[zero],
                np.full(zero.sum(), 0.015 + 0.02 * i),
                "v",
                color=how["color"],
                ms=5,
                clip_on=False,
                transform=axes.get_xaxis_transform(),
            )
            y[:, zero], any_zero = np.nan, True
        y[1] = np.maximum(y[1], 0.3 * min(positive, default=1.0))
    return any_zero


def _finish(axes: Any, x: str, y: str, title: str, log: str, *, grid: str = "both", legend: str | None = None) -> None:
    if "x" in log:
        axes.set_xscale("log")
        _few_ticks(axes.xaxis, *axes.get_xlim())
    if "y" in log:
        axes.set_yscale("log")
        _few_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    if grid == "y":
        axes.grid(axis="x", visible=False)
    handles = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        axes.legend(
            handles.values(), handles, edgecolor="none", framealpha=0.7, fontsize=8, title=legend, title_fontsize=8
        )


def _few_ticks(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis of less than two decades at 1, 2 and 5 times powers of ten, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if not 0 < low < high < 100 * low:
        return
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def draw(title: str, panels: Sequence[Drawing], table: Table, file: Path) -> None:
    """Draw all panels side by side into a file."""
    columns = max(1, len(panels))
    with picture(file, (5.6 * columns, 4.2), columns=columns) as (figure, axes):
        for panel, ax in zip(panels, np.atleast_1d(axes), strict=True):
            panel.draw(ax, table)
        figure.suptitle(textwrap.fill(title, _WIDTH * columns), x=0.01, ha="left")
