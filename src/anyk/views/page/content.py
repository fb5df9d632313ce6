"""The contents of a report, as values for its template: texts, tables, figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anyk.runs import Run, Tasks, grouped, tasks_of
from anyk.runs.log import queries
from anyk.runs.log.tasks import FATES, LOST
from anyk.views.columns import Columns
from anyk.views.page import facts, figures
from anyk.views.page.account import Account, account
from anyk.views.page.panels import report_figures
from anyk.views.plots import banded, on_virtual_clock, purpose
from anyk.views.prose import duration, percent
from anyk.views.result_tables import number, race_notes, race_table, ratio_to_floor
from anyk.views.style import DARK, LIGHT

_MANY = 24  # runs with an account of their own on one page
_NOTES = 60  # lines of what happened
_REUSES = 20_000  # messages used again that are written down
_WORKS = 100_000  # partitions of all kinds of work together, for the weights in receipts
_WIDE = 8.0  # times longer than the shortest run: beyond that seconds are logarithmic at first
_DASHES = {"solid": "", "dashed": "8 5", "dotted": "2 4", "dashdot": "8 4 2 4"}
_MARKS = {
    "circle": '<circle cx="22" cy="7" r="4"/>',
    "square": '<rect x="18" y="3" width="8" height="8"/>',
    "triangle": '<path d="M22 2l5 9h-10z"/>',
    "diamond": '<path d="M22 1l5 6-5 6-5-6z"/>',
    "inverted_triangle": '<path d="M22 12l5-9h-10z"/>',
    "plus": '<path d="M22 2v10M17 7h10" fill="none" stroke-width="2"/>',
    "x": '<path d="M18 3l8 8M26 3l-8 8" fill="none" stroke-width="2"/>',
    "star": '<path d="M22 1l2 4 4 .5-3 3 .8 4.5-3.800-2.200-3.800 2.200.8-4.500-3-3 4-.5z"/>',
}


def chosen(runs: Sequence[Run]) -> list[Run]:
    """The runs that have an account of their own: of each strategy that with the first seed."""
    return [group[0] for group in grouped(runs)][:_MANY]


def content(runs: Sequence[Run], waiting: Sequence[str]) -> dict[str, Any]:
    """Values for the page's template; ``figures`` by name, ``about`` for the page's script."""
    groups = grouped(runs)
    drawn: dict[str, Any] = {}
    sections = [_section(run, f"run{i}", drawn) for i, run in enumerate(chosen(runs))]
    several = len(runs) > 1
    filled = _curves(groups, drawn) if runs else {}
    title = f"Race of {len(groups)} strategies" if len(groups) > 1 else runs[0].config.strategy
    remarks = [*(race_notes(runs) if several else []), *_left_out(groups, len(sections), waiting)]
    return {
        "title": title,
        "verdict": facts.race_verdict(runs) if several else sections[0]["verdict"],
        "cards": [] if several else cards(runs[0]),
        "comparison": _as_table(race_table(runs)) if several else None,
        "remarks": remarks,
        "runs": sections,
        "figures": drawn,
        "made": _versions(),
        "about": {
            "fates": FATES,
            "dark": dict(zip(LIGHT.values(), DARK.values(), strict=True)),
            "roots": {},
            "curves": filled["curves"],
            "runs": [one.pop("about") for one in sections],
        },
        **filled,
    }


def _left_out(groups: Sequence[Sequence[Run]], shown: int, waiting: Sequence[str]) -> list[str]:
    lines = []
    if any(len(group) > 1 for group in groups):
        lines.append("each strategy's own account below is that of its run with the first seed")
    if len(groups) > shown:
        lines.append(f"only the first {shown} of {len(groups)} runs have an account of their own below")
    if waiting:
        lines.append(f"not begun yet: {', '.join(waiting)}")
    return lines


def _as_table(columns: Columns) -> dict[str, Any]:
    return {"titles": [title.strip() for title in columns.titles], "rows": columns.rows, "dim": columns.dim}


def cards(run: Run) -> list[tuple[str, str]]:
    """A few numbers on a run, each with its name."""
    made = [(f"{run.steps - run.begun:,}", "steps"), (duration(run.seconds), "in all")]
    ratio = ratio_to_floor(run)
    if ratio is not None:
        made.append((f"{ratio:.3f}", "times its floor"))
    if run.loss is not None:
        made.append((number(run.loss), "loss"))
    if run.metric and run.metric.get("value") is not None:
        made.append((number(run.metric["value"]), run.metric_name))
    if run.time_to_target is not None:
        made.append((duration(run.time_to_target), f"to {run.config.target:g}"))
    return made


# ------------------------------------------------------------------------------------------------ curves


def _curves(groups: Sequence[Sequence[Run]], drawn: dict[str, Any]) -> dict[str, Any]:
    """Metric and loss of all runs, and the legend."""
    runs = [run for group in groups for run in group]
    virtual = all(map(on_virtual_clock, runs))
    clock = "virtual seconds" if virtual else "seconds"
    names = dict.fromkeys(run.metric_name for run in runs if run.metric)
    targets = {run.config.target for run in runs}
    target = targets.pop() if len(targets) == 1 else None
    shown: list[str] = []  # names of figures
    for column in [*names, "loss"]:
        lines = [_line(group, column) for group in groups]
        if any(len(line.by["seconds"][0]) for line in lines):
            name = f"curve {len(shown)}"
            goal = target if column != "loss" and len(names) == 1 else None
            rises = column not in ("loss", "mse")
            drawn[name] = figures.curves(lines, column, name, clock=clock, target=goal, rises=rises)
            shown.append(name)
    ends = [group[0].seconds for group in groups if group[0].seconds > 0.0]
    legend = [
        {
            "name": f"{group[0].config.strategy}" + (f": {purpose(group[0])}" if purpose(group[0]) else ""),
            "dash": _DASHES[figures.DASHES[i % len(figures.DASHES)]],
            "mark": Markup(_MARKS[figures.MARKS[i % len(figures.MARKS)]]),
        }
        for i, group in enumerate(groups)
    ]
    note = ""
    if any(len(group) > 1 for group in groups):
        note = "Lines are medians over the seeds, bands reach from the least to the largest value; a run that has "
        note += "ended counts with its last value. "
    return {
        "curves": shown,
        "legend": legend,
        "log_seconds": bool(len(ends) > 1 and max(ends) > _WIDE * min(ends)),
        "curves_note": note,
    }


def _line(group: Sequence[Run], column: str) -> figures.Line:
    by: dict[str, tuple[Any, ...]] = {}
    for axis, key in (("seconds", "seconds"), ("steps", "step")):
        lines = []
        for run in group:
            values = run.history.get(column, np.empty(0))
            good = np.isfinite(values)
            if good.any():
                lines.append((run.history[key][good].astype(float), values[good]))
        empty = np.empty(0)
        times, values, band = banded(lines) if lines else (empty, empty, None)
        by[axis] = (times, values) if band is None else (times, values, *band)
    return figures.Line(group[0].config.strategy, by)


# ------------------------------------------------------------------------------------------------ one run


def _section(run: Run, name: str, drawn: dict[str, Any]) -> dict[str, Any]:
    tasks = tasks_of(run)
    spent = account(run, tasks)
    about = {"name": name, "slots": list(tasks.slots), "partitions": run.config.partitions}
    section: dict[str, Any] = {
        "name": name,
        "title": run.config.strategy,
        "verdict": facts.run_verdict(run, tasks, spent),
        "tasks": _count(tasks) if len(tasks) else "",
        "lost": bool((tasks.fate == LOST).any()),
        "idle": bool((tasks.idle > 0.0).any()),
        "slots": list(tasks.slots),
        "last": run.steps,
        "about": about,
        "panels": _panels(run, tasks, name, drawn),
        "promised": facts.promised(run),
        **_spent(run, spent),
    }
    if len(tasks):
        drawn[f"{name} timeline"] = figures.timeline(run, tasks, _steps(run, tasks), name)
        about |= _for_receipts(run, tasks)
    section["explained"], section["sentences"] = facts.explained(run, tasks)
    notes = run.notes
    section["notes"] = [
        {"at": duration(note["time"]), "kind": note["kind"], "text": note["text"]} for note in notes[:_NOTES]
    ]
    section["more_notes"] = f"{len(notes) - _NOTES:,} more: anyk show lists them" if len(notes) > _NOTES else ""
    section["settings"] = _settings(run)
    return section


def _panels(run: Run, tasks: Tasks, name: str, drawn: dict[str, Any]) -> list[dict[str, Any]]:
    """The registered figures, as the template shows them."""
    shown = []
    for entry in report_figures:
        panel = entry.build(run, tasks)
        if panel is None:
            continue
        figure = f"{name} {entry.name}"
        if panel.figure is not None:
            panel.figure.name, drawn[figure] = figure, panel.figure
        table = panel.table and {"title": panel.table[0], **_as_table(panel.table[1])}
        shown.append(panel._asdict() | {"figure": figure, "table": table})
    return shown


def _count(tasks: Tasks) -> str:
    """The number of bars of the timeline, in words."""
    chunks, whole = len(tasks), len(tasks.first)
    return f"{whole:,} tasks" if chunks == whole else f"{chunks:,} chunks of work in {whole:,} tasks"


def _steps(run: Run, tasks: Tasks) -> dict[str, Any]:
    """The steps that were taken, for lines in the timeline and for receipts."""
    log = queries.columns(run.log, "steps")
    known = np.isin(log["slot"].astype(str), tasks.slots) & np.isfinite(log["replies"])
    return {
        "slot": np.searchsorted(tasks.slots, log["slot"][known].astype(str)).astype(np.uint8),
        "step": log["step"][known].astype(np.int32),
        "seconds": log["seconds"][known],
        "residual": log["residual"][known].astype(np.float32),
        "gain": log["gain"][known].astype(np.float32),
    }


def _for_receipts(run: Run, tasks: Tasks) -> dict[str, Any]:
    """What receipts say besides the columns of the timeline: work by its number, messages that were used again."""
    found: dict[str, Any] = {}
    works = works_of(run)
    if works is not None:
        found["works"] = works.kinds
        tasks.work[:] = works.places[tasks.work]
    again = queries.columns(run.log, "reuses")
    if 0 < len(again["task"]) <= _REUSES:
        chunk = {pair: i for i, pair in enumerate(zip(tasks.task.tolist(), tasks.chunk.tolist(), strict=True))}
        which = [chunk[pair] for pair in zip(again["task"].tolist(), again["chunk"].tolist(), strict=True)]
        slots = np.searchsorted(tasks.slots, again["slot"].astype(str)).tolist()
        found["reuses"] = [
            [slot, int(step), int(tasks.worker[i]), int(tasks.task[i]), int(tasks.version[i]), float(weight)]
            for slot, step, i, weight in zip(slots, again["step"], which, again["weight"], strict=True)
        ]
    elif len(again["task"]):
        found["omitted"] = "Messages of earlier steps that were used again are not listed; anyk show --step lists them."
        found.pop("works", None)
    return found


class Works(NamedTuple):
    """The different partitions and coefficients of a run's messages, and the place of each work among them."""

    kinds: list[tuple[list[int], list[float]]]
    places: NDArray[np.int64]


def works_of(run: Run) -> Works | None:
    """What the messages of a run add up; None where that is too much for a page, or not one weight a partition."""
    log = queries.columns(run.log, "works")
    kinds: dict[tuple[str, str], int] = {}
    same = {
        work: kinds.setdefault((partitions, coefficients), len(kinds))
        for work, partitions, coefficients in zip(
            log["work"].tolist(), log["partitions"], log["coefficients"], strict=True
        )
    }
    plain = [(json.loads(partitions), json.loads(coefficients)) for partitions, coefficients in kinds]
    fits = all(len(partitions) == len(coefficients) for partitions, coefficients in plain)
    if not fits or sum(len(partitions) for partitions, _ in plain) > _WORKS:
        return None
    places = np.zeros(max(same, default=0) + 1, dtype=np.int64)
    places[list(same)] = list(same.values())
    return Works(plain, places)


def _spent(run: Run, spent: Account) -> dict[str, Any]:
    total = spent.total
    if not total:
        return {"spent": None}
    words = {"waiting": "waiting for delays and orders", "driver": "the driver, deadlines and the rest"}
    if on_virtual_clock(run):  # where the driver takes no time
        words["driver"] = "until deadlines"
    parts = [
        {
            "name": name,
            "share": value / total,
            "percent": f"{100 * value / total:.3f}",
            "text": f"{words.get(name, name)}: {duration(value)} ({percent(value / total)})",
        }
        for name, value in spent._asdict().items()
    ]
    note = "What the run waited for at each moment, told from the last message that came before each step. "
    if run.config.communication != "none":
        note += "Injected communication is part of the waiting: workers are held up by it before they compute. "
    floor = run.floor_seconds
    if floor is not None:
        note += "With the injected delays alone, and nothing else taking time, it would have taken "
        note += f"{duration(floor)} (its floor) instead of {duration(run.seconds)}."
    return {"spent": parts, "spent_note": note}


def _settings(run: Run) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in run.config.plain().items():
        if key == "format" or value in ([], {}):
            continue
        if isinstance(value, dict):
            flat += [(f"{key}.{inner}", str(one)) for inner, one in value.items() if one not in (None, [], {})]
        else:
            flat.append((key, str(value)))
    ended = {name: count for name, count in run.ledger.items() if count}
    if ended:
        flat.append(("tasks by ending", ", ".join(f"{name} {count:,}" for name, count in ended.items())))
    return [("folder", str(run.path))] * (run.path is not None) + flat


def _versions() -> str:
    found = []
    for package in ("anyk", "bokeh", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"Made by anyk report ({', '.join(found)})."
