"""Codes as tables, text and pictures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anyk.base import BadInput, ByName
from anyk.codes import EXACT, Code
from anyk.fleet import ATTACKED, Curve, Facts, MissingCode, Threshold
from anyk.views.columns import Columns
from anyk.views.prose import plain
from anyk.views.style import COLOURS, LIGHT, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 40  # partitions up to which a matrix is shown in full


def codes_table(rows: Sequence[Facts | MissingCode]) -> Columns:
    """Return a table with a row for each code that exists."""
    cells = [
        [
            row.code.spec,
            str(row.code.load),
            str(row.code.partitions),
            f"{row.code.replication:.3g}",
            str(row.code.tolerates),
            ("" if row.expected_known else "~") + residual_text(row.expected),
            ("" if row.worst_known else "≥ ") + residual_text(row.worst),
            f"{row.gain:.3g}",
            f"{row.decode * 1e3:.2f}",
        ]
        for row in rows
        if not isinstance(row, MissingCode)
    ]
    return Columns(["code", "load", "of", "copies", "tolerates", "residual", "worst", "gain", "decode\nms"], cells)


def residual_text(value: float) -> str:
    """Return a residual for a table; 0 if it is rounding."""
    return "0" if value < 1e-7 else f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def code_facts(code: Code) -> list[tuple[str, str]]:
    """Return facts about a code as pairs of a word and a value."""
    promised = (
        f"any {code.tolerates} straggler{'s' * (code.tolerates > 1)}"
        if code.tolerates
        else "no fixed number of stragglers"
    )
    sends = "one vector" if code.blocks == 1 else f"one vector of 1/{code.blocks} of the length"
    if code.messages > 1:
        sends = f"{code.messages} messages"
    return [
        ("code", code.spec),
        ("workers", f"{code.workers}, each sends {sends}"),
        ("partitions", f"{code.partitions}, each stored by {code.replication:.3g} workers on average"),
        ("load", f"at most {code.load} partitions per worker, {code.load / code.partitions:.3g} of the data"),
        ("tolerates", promised + (" (meant to be approximate)" if code.approximate else "")),
    ]


def matrix_text(code: Code) -> str:
    """Return the encoding matrix as text, a row for each reply, with zeros as dots; "" if it is wide."""
    if code.partitions * code.blocks > _COLUMNS:
        return ""
    dense = code.encoding.toarray()
    integral = bool(np.all(dense == np.round(dense)))
    digits = 0 if integral else 2
    rows = [["." if value == 0 else f"{value:.{digits}f}" for value in row] for row in dense]
    width = 1 + max(len(cell) for row in rows for cell in row)
    lines = []
    for i, row in enumerate(rows):
        name = f"{i // code.messages}" + (f".{i % code.messages}" if code.messages > 1 else "")
        lines.append(f"{name:>5} " + "".join(cell.rjust(width) for cell in row))
    return "\n".join(lines)


def holders_text(code: Code) -> str:
    """Return the partitions of each worker as text."""
    return "\n".join(f"worker {i:>3}: {' '.join(map(str, partitions))}" for i, partitions in enumerate(code.assignment))


def theory_text(thing: object, width: int = 100) -> str:
    """Return the documentation of a code or strategy as plain text."""
    return plain(inspect.getdoc(type(thing)) or "", width)


def plot_code(code: Code, path: str | Path | None = None) -> Figure:
    """Draw the encoding matrix: a square for each partition that a worker stores, coloured by the coefficient."""
    with picture(path, (7.0, 6.0)) as (figure, axes):
        dense = code.encoding.toarray()
        most = float(np.abs(dense).max()) or 1.0
        nonzero = np.ma.masked_equal(dense, 0.0)
        alike = np.ptp(dense[dense != 0.0]) == 0.0
        colours = "Blues" if alike else "RdBu_r"
        edges = LIGHT["line"] if max(dense.shape) <= _COLUMNS else "none"
        image = axes.pcolormesh(
            *map(np.arange, dense.shape[::-1]), nonzero, cmap=colours, vmin=-most, vmax=most, edgecolors=edges, lw=0.6
        )
        axes.invert_yaxis()
        axes.grid(False)
        if alike:
            axes.text(1.0, 1.01, f"stored, coefficient {most:g}", transform=axes.transAxes, ha="right", fontsize=9)
        else:
            figure.colorbar(image, ax=axes, label="coefficient", shrink=0.8)
        axes.set(
            xlabel="partition" if code.blocks == 1 else "partition x block",
            ylabel="worker" if code.messages == 1 else "message (worker by worker)",
            title=f"{code.spec}, {code.workers} workers",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
    return figure


def plot_codes(curves: Sequence[Curve], path: str | Path | None = None) -> Figure:
    """Draw residual against stragglers: random sets on the left, an adversary's on the right, closed forms as lines."""
    if not curves:
        raise BadInput("there is no code to draw")
    with picture(path, (11.0, 4.8), columns=2) as (figure, (random, chosen)):
        for i, curve in enumerate(curves):
            colour = COLOURS[i % len(COLOURS)]
            uncovered = bool(curve.stragglers[0] == 0 and curve.random[0] > EXACT)
            name = curve.code.spec + " (some partitions on no worker)" * uncovered
            random.errorbar(curve.stragglers, curve.random, 2 * curve.spread, color=colour, fmt="o", ms=4, label=name)
            unknown = np.isnan(curve.expected).all()
            look: ByName = {"lw": 0.8, "alpha": 0.5, "ls": ":"} if unknown else {"lw": 1.6}
            random.plot(curve.stragglers, curve.random if unknown else curve.expected, color=colour, **look)
            chosen.plot(curve.stragglers, curve.adversarial, ":", color=colour, lw=0.8, label=name)
            for marked, fill in ((curve.exact, colour), (~curve.exact, "none")):
                chosen.plot(curve.stragglers[marked], curve.adversarial[marked], "o", color=colour, ms=4, mfc=fill)
            chosen.plot(curve.stragglers, curve.bound, color=colour, lw=1.2, ls="--")
        closed_forms = any(not np.isnan(curve.expected).all() for curve in curves)
        bounded = any(not np.isnan(curve.bound).all() for curve in curves)
        random.set_title("random stragglers" + "\n(points: 2 standard errors; lines: closed forms)" * closed_forms)
        hollow = "hollow: found by search, at least this"
        chosen.set_title(f"stragglers chosen to hurt\n({hollow}{'; dashed: bounds' * bounded})")
        top = max(1.02, max(float(np.nanmax(curve.adversarial)) for curve in curves) * 1.02)
        labelled = ((random, "residual (root mean square)"), (chosen, "residual (largest found)"))
        for axes, label in labelled:
            axes.set(xlabel=f"stragglers of {curves[0].code.workers} workers", ylabel=label, ylim=(-0.02, top))
            axes.legend(loc="upper left")
    return figure


def curves_table(curves: Sequence[Curve]) -> Columns:
    """Return residuals at up to 7 numbers of stragglers, random and chosen to hurt (≥: by search); counts of draws."""
    points = curves[0].stragglers
    columns_shown = np.unique(np.linspace(0, len(points) - 1, min(len(points), 7)).round().astype(int))
    rows = []
    several = any(curve.draws > 1 for curve in curves)
    for curve in curves:
        searched, certain = ~curve.exact, np.zeros(len(points), dtype=bool)
        lines = [(curve.code.spec, _draws(curve.draws), curve.random, certain)]
        lines += [("  standard error", "", curve.spread, certain)] * several
        lines += [("  chosen to hurt", _draws(min(curve.draws, ATTACKED)), curve.adversarial, searched)]
        for name, draws, values, least in lines:
            texts = ["≥ " * bool(least[i]) + residual_text(float(values[i])) for i in columns_shown]
            rows.append([name, *[draws] * several, *texts])
    titles = ["residual with\nstragglers:", *[""] * several, *(str(points[i]) for i in columns_shown)]
    return Columns(titles, rows, dim=[i for i, row in enumerate(rows) if row[0].startswith("  ")])


def _draws(count: int) -> str:
    return f"{count} draw{'s' * (count > 1)}"


def thresholds_table(thresholds: Mapping[str, Mapping[str, Threshold]]) -> Columns:
    """Return the numbers of stragglers that do harm, by code and the adversary's knowledge; upper bounds are marked."""
    titles = ["chosen by one\nwho knows:", *next(iter(thresholds.values()))]
    rows = [[spec, *(_threshold(threshold) for threshold in row.values())] for spec, row in thresholds.items()]
    return Columns(titles, rows)


def _threshold(threshold: Threshold) -> str:
    if threshold.stragglers is None:
        return "none do"
    return f"{'≤ ' * (threshold.found == 'search')}{threshold.stragglers}"
