"""The figures of a report about one run, registered here or by plug-ins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk.base import Registry
from anyk.codes import EXACT
from anyk.fleet import percent
from anyk.runs import Run, Tasks
from anyk.runs.api import FATES
from anyk.views.columns import Columns
from anyk.views.page.account import heat, shares
from anyk.views.result_tables import mean_staleness, number


class Panel(NamedTuple):
    """A part of a report: a heading, a note, below it a Bokeh figure, and a table that readers can open.

    ``legend``: pairs of a style class and a text. ``table``: title and contents. ``wide``: whether the panel is as wide
    as the page; otherwise two panels stand side by side.
    """

    title: str
    note: str = ""
    figure: Any = None
    legend: Sequence[tuple[str, str]] = ()
    table: tuple[str, Columns] | None = None
    wide: bool = False


report_figures: Registry[Panel | None] = Registry("report figure", supplied=("run", "tasks"))
register = report_figures.register


@register("heat")
def _heat(run: Run, tasks: Tasks) -> Panel | None:
    """A heat map of the seconds that each worker's task took in each step."""
    from anyk.views.page import figures

    times = heat(tasks, run.config.workers.most)
    if times is None:
        return None
    note = "A column is a step" if times.by_step else "A column is the n-th task of each worker"
    if times.width > 1:
        note = f"A column is the mean of {times.width} {'steps' if times.by_step else 'tasks of a worker'}"
    note += ", a row is a worker. Colours show seconds from dispatch to the end of the task; lighter is longer. "
    note += "A task that was cut off shows the seconds until that moment. Colours end at the 99 % quantile."
    return Panel("Seconds of each worker's tasks", note, figures.heat_map(times), wide=True)


@register("workers")
def _workers(run: Run, tasks: Tasks) -> Panel | None:
    """Bars of how each worker's tasks ended."""
    from anyk.views.page import figures

    if not len(tasks):
        return None
    bars = figures.worker_bars(shares(tasks, run.config.workers.most))
    legend = [(f"fate{i}", FATES[i]) for i in np.unique(tasks.fate).tolist()]
    return Panel(title="How each worker's tasks ended", note="", figure=bars, legend=legend, wide=True)


@register("lateness")
def _lateness(run: Run, tasks: Tasks) -> Panel | None:
    """How late the messages of cancelled tasks were or would have been, by worker."""
    from anyk.views.page import figures

    if not len(tasks):
        return None
    workers = shares(tasks, run.config.workers.most)
    fates = np.unique(tasks.fate).tolist()
    titles = ["worker", "tasks", "median\nseconds", *(FATES[i] for i in fates)]
    rows = [
        [str(i), str(w.tasks), number(w.seconds), *(str(w.fates[fate]) for fate in fates)]
        for i, w in enumerate(workers)
    ]
    figure, note = None, "No task was cut off."
    if np.isfinite(tasks.late).any():
        figure = figures.lateness(workers)
        note = (
            "Seconds from when a task was cut off to when its message would have come: the median (dot) and the "
            "largest (end of the line). A worker without a dot had no such task."
        )
        titles += ["median\nseconds late", "largest\nseconds late"]
        rows = [[*row, number(w.late, 3), number(w.latest, 3)] for row, w in zip(rows, workers, strict=True)]
    elif FATES.index("cut off") in fates:
        note = "It is not known how late the tasks that were cut off would have been: their workers were stopped."
    return Panel("", note, figure, table=("Numbers of each worker", Columns(titles, rows)), wide=True)


@register("residual")
def _residual(run: Run, tasks: Tasks) -> Panel:
    """The residual of each step."""
    from anyk.views.page import figures

    residual = run.history["residual"]
    finite = np.isfinite(residual)
    residual = residual[finite]
    if not residual.size:
        return Panel("Residual", "No step was taken.")
    largest = float(residual.max())
    if largest <= EXACT:
        zero = "" if largest == 0.0 else f", up to rounding ({largest:.1g})"
        return Panel("Residual", f"0 in every step{zero}: no partition counted too much or too little.")
    if largest - residual.min() <= EXACT:
        return Panel("Residual", f"{largest:.3g} in every step: the distance of its sum from that over all partitions.")
    note = f"Above 0 in {percent(float((residual > EXACT).mean()))} of the steps, {residual.mean():.3g} on average: "
    note += "the distance of a step's sum from the sum over all partitions."
    return Panel("Residual", note, figures.residuals(run.history["step"][finite], residual))


@register("staleness")
def _staleness(run: Run, tasks: Tasks) -> Panel:
    """The staleness of used messages, in versions."""
    from anyk.views.page import figures

    counts = run.staleness()
    mean = mean_staleness(counts)
    if mean is None:
        return Panel("Staleness", "No message was used.")
    if set(counts) == {0}:
        return Panel("Staleness", "0 in every step: each message was computed with the newest model.")
    note = f"{mean:.3g} on average: the number of steps taken since a message's model was made."
    return Panel("Staleness", note, figures.staleness(counts))
