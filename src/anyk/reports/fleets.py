"""What slow workers cost, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anyk.planning import Explanation
from anyk.planning.attribution import lower_median
from anyk.recording import Record
from anyk.reports.columns import Columns
from anyk.reports.plots import COLOURS, new_figure, save

_ROWS = 10  # workers in the table
_BARS = 20  # workers in the picture


def explained_table(found: Explanation) -> Columns:
    """The costliest workers; those that stand out are marked."""
    rows = [
        [
            f"{'> ' if one.worker in found.named else '  '}{one.worker}",
            _seconds(one.cost_seconds),
            f"{100 * one.cost_seconds / found.seconds:.1f} %",
            "" if one.saves_seconds is None else _seconds(one.saves_seconds),
            f"{one.relative:.2f}",
            f"{one.individual:.2f}",
            f"{100 * one.straggles:.0f} %",
        ]
        for one in found.workers[:_ROWS]
    ]
    return Columns(["  worker", "costs s", "of the run", "saves s", "relative", "own best", "straggles"], rows)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def explained_note(found: Explanation) -> str:
    """What the columns of the table mean."""
    left = len(found.workers) - _ROWS
    rest = f"; {left} further workers are not shown" if left > 0 else ""
    return (
        "costs: share of the waiting beyond each round's median (adds up over workers); saves: by how much "
        f"'{found.today}' would be sooner with this worker at the others' median; relative: its median over the "
        f"fleet's; own best: its last quarter over its best{rest}"
    )


def draw_explanation(record: Record, found: Explanation, path: str | Path) -> None:
    """Each time over its round's median, costliest workers on top, and what each of these costs."""
    figure, (left, right) = new_figure((11.0, 4.8), "drawing an explanation", columns=2)
    names = [one.worker for one in found.workers]
    order = [record.workers.index(name) for name in names]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log2(record.seconds / lower_median(record.seconds)[:, None]).T[order]
    most = max(0.5, float(np.nanquantile(np.abs(ratio[np.isfinite(ratio)]), 0.995)))
    image = left.imshow(ratio, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
    left.set_xlabel("round")
    left.set_ylabel("workers, the costliest on top")
    left.set_yticks([])
    bar = figure.colorbar(image, ax=left, label="time over the round's median")
    ticks = [tick for tick in bar.get_ticks() if -most <= tick <= most]
    bar.set_ticks(ticks, labels=[f"{2.0**tick:.2g}" for tick in ticks])
    shown = found.workers[:_BARS]
    colours = [COLOURS[1] if one.worker in found.named else "0.6" for one in shown]
    right.barh([str(one.worker) for one in shown], [100 * one.cost_seconds / found.seconds for one in shown],
               color=colours)  # fmt: skip
    right.invert_yaxis()
    right.set_ylabel("worker")
    right.set_xlabel("cost in % of the run (coloured: more than chance)")
    right.grid(axis="x", alpha=0.25)
    figure.suptitle(
        f"{len(record.rounds)} rounds x {len(record.workers)} workers: slowdown {found.slowdown:.3g}; "
        f"{100 * found.apart:.0f} % of the time is waiting beyond the rounds' medians", fontsize=11,
    )  # fmt: skip
    save(figure, path)
