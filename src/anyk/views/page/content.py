"""The contents of a report, as values for its template: texts, tables, figures."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import bokeh
import numpy as np

import anyk
from anyk.base import BadInput, ByName, explaining
from anyk.runs import Run, Tasks, absences, grouped, tasks_of
from anyk.runs.api import FATES, LOST, finite_values, log_columns
from anyk.views.columns import Columns
from anyk.views.page import figures, texts
from anyk.views.page.account import account
from anyk.views.page.panels import Panel, report_figures
from anyk.views.plots import banded, on_virtual_clock, purpose
from anyk.views.result_tables import race_notes, race_table, ratio_to_floor
from anyk.views.style import DARK, LIGHT

_MANY = 24  # most strategies with a section of their own on one page
_REUSES = 20_000  # most reused messages that are listed
_WORKS = 100_000  # most partitions, over all kinds of work, whose weights are in receipts
_WIDE = 8.0  # if runs differ in length by a larger factor, seconds are logarithmic at first


def content(runs: Sequence[Run], waiting: Sequence[str]) -> ByName:
    """Return values for the page's template: ``figures`` are named, ``about`` is for the page's script."""
    groups = grouped(runs)
    figures_by_name: ByName = {}
    sections = [_section(group[0], f"run{i}", figures_by_name) for i, group in enumerate(groups[:_MANY])]
    several = len(runs) > 1
    about = {
        "fates": FATES,
        "dark": dict(zip(LIGHT.values(), DARK.values(), strict=True)),
        "roots": {},
        "curves": _curves(groups, figures_by_name),
        "runs": [section.pop("about") for section in sections],
    }
    ends = [group[0].seconds for group in groups if group[0].seconds > 0.0]
    return {
        "title": f"Race of {len(groups)} strategies" if len(groups) > 1 else sections[0]["title"],
        "verdict": texts.race_verdict(runs) if several else sections[0]["verdict"],
        "comparison": _as_table(race_table(runs)) if several else None,
        "remarks": race_notes(runs) if several else [],
        "legend": [": ".join(filter(None, (run.config.strategy, purpose(run)))) for run, *_ in groups],
        "several_seeds": any(len(group) > 1 for group in groups),
        "log_seconds": len(ends) > 1 and max(ends) > _WIDE * min(ends),
        "waiting": waiting,
        "runs": sections,
        "figures": figures_by_name,
        "packages": [f"{package.__name__} {package.__version__}" for package in (anyk, bokeh, np)],
        "about": about,
    }


def _as_table(columns: Columns) -> ByName:
    return {"titles": [title.strip() for title in columns.titles], "rows": columns.rows, "dim": columns.dim}


def _curves(groups: Sequence[Sequence[Run]], drawn: ByName) -> list[str]:
    """Draw metrics and loss of all runs; return the names of the figures."""
    runs = [run for group in groups for run in group]
    clock = "virtual seconds" if all(map(on_virtual_clock, runs)) else "seconds"
    metrics = dict.fromkeys(run.metric_name for run in runs if run.metric)
    targets = {run.config.target for run in runs}
    target = targets.pop() if len(targets) == 1 and len(metrics) == 1 else None
    names: list[str] = []
    for column in [*metrics, "loss"]:
        lines = [_line(group, column) for group in groups]
        if any(len(line.by["seconds"][0]) for line in lines):
            name = f"curve {len(names)}"
            goal = target if column != "loss" else None
            drawn[name] = figures.curves(lines, column, name, clock=clock, target=goal)
            names.append(name)
    return names


def _line(group: Sequence[Run], column: str) -> figures.Line:
    by: dict[str, tuple[Any, ...]] = {}
    for axis, key in (("seconds", "seconds"), ("steps", "step")):
        times, values, band = banded([finite_values(run, column, key) for run in group])
        by[axis] = (times, values) if band is None else (times, values, *band)
    return figures.Line(group[0].config.strategy, by)


# ------------------------------------------------------------------------------------------------ one run


def _section(run: Run, name: str, drawn: ByName) -> ByName:
    tasks = tasks_of(run)
    spent = account(run, tasks)
    about = {"name": name, "slots": list(tasks.slots), "partitions": run.config.partitions}
    about["fleet"] = [(note["time"], note["text"]) for note in run.notes if note["kind"] == "fleet"]
    section: ByName = {
        "name": name,
        "run": run,
        "title": run.config.strategy,
        "verdict": texts.run_verdict(run, tasks, spent),
        "ratio": ratio_to_floor(run),
        "virtual": on_virtual_clock(run),
        "chunks": len(tasks),
        "tasks": len(tasks.first),
        "lost": (tasks.fate == LOST).any(),
        "absent": len(tasks) and absences(run.log, run.config.workers.most),
        "idle": (tasks.idle > 0.0).any(),
        "slots": tasks.slots,
        "about": about,
        "panels": _panels(run, tasks, name, drawn),
        "spent": spent,
        "promised": texts.compare_with_plan(run),
        "settings": _settings(run),
    }
    if len(tasks):
        about |= _for_receipts(run, tasks)
        drawn[f"{name} timeline"] = figures.timeline(run, tasks, _steps(run, tasks), name)
    section["explained"], section["sentences"] = texts.explain_run(run, tasks)
    return section


def _panels(run: Run, tasks: Tasks, name: str, drawn: ByName) -> list[ByName]:
    """Return the registered figures, as the template shows them."""
    panels = []
    for entry in report_figures:
        with contextlib.nullcontext() if entry.own else explaining(f"the report figure '{entry.name}' failed"):
            panel = entry.build(run, tasks)
        if panel is None:
            continue
        if not isinstance(panel, Panel):
            raise BadInput(
                f"report figure '{entry.name}' returned {type(panel).__name__}, not an anyk.views.Panel or None"
            )
        figure = f"{name} {entry.name}"
        if panel.figure is not None:
            panel.figure.name, drawn[figure] = figure, panel.figure
        table = panel.table and {"title": panel.table[0], **_as_table(panel.table[1])}
        panels.append(panel._asdict() | {"figure": figure, "table": table})
    return panels


def _steps(run: Run, tasks: Tasks) -> ByName:
    """Return the steps that were taken, for lines in the timeline and for receipts."""
    log = log_columns(run.log, "steps")
    trained = np.isin(log["slot"].astype(str), tasks.slots) & np.isfinite(log["replies"])
    return {
        "slot": np.searchsorted(tasks.slots, log["slot"][trained].astype(str)).astype(np.uint8),
        "step": log["step"][trained].astype(np.int32),
        "seconds": log["seconds"][trained],
        "residual": log["residual"][trained].astype(np.float32),
        "gain": log["gain"][trained].astype(np.float32),
    }


def _for_receipts(run: Run, tasks: Tasks) -> ByName:
    """Return data of receipts that the timeline lacks: kinds of work, which ``tasks.work`` then indexes, and reuses."""
    data: ByName = {}
    works = log_columns(run.log, "works")
    texts = [f"[{lists[0]}, {lists[1]}]" for lists in zip(works["partitions"], works["coefficients"], strict=True)]
    kinds, kind_of = np.unique(texts, return_inverse=True)
    plain = [json.loads(kind) for kind in kinds]
    fits = all(len(partitions) == len(coefficients) for partitions, coefficients in plain)
    if fits and sum(len(partitions) for partitions, _ in plain) <= _WORKS:
        data["works"] = plain
        tasks.work[:] = kind_of[np.searchsorted(works["work"], tasks.work)]
    reused = log_columns(run.log, "reuses")
    if 0 < len(reused["task"]) <= _REUSES:
        chunk = {pair: i for i, pair in enumerate(zip(tasks.task.tolist(), tasks.chunk.tolist(), strict=True))}
        which = [chunk[pair] for pair in zip(reused["task"].tolist(), reused["chunk"].tolist(), strict=True)]
        slots = np.searchsorted(tasks.slots, reused["slot"].astype(str)).tolist()
        data["reuses"] = [
            [slot, int(step), int(tasks.worker[i]), int(tasks.task[i]), int(tasks.version[i]), float(weight)]
            for slot, step, i, weight in zip(slots, reused["step"], which, reused["weight"], strict=True)
        ]
    elif len(reused["task"]):
        data["omitted"] = "Messages of earlier steps that were used again are not listed; anyk show --step lists them."
        data.pop("works", None)
    return data


def _settings(run: Run) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in run.config.plain().items():
        if key == "format" or value in ([], {}):
            continue
        if isinstance(value, dict):
            flat += [(f"{key}.{inner}", str(item)) for inner, item in value.items() if item not in (None, [], {})]
        else:
            flat.append((key, str(value)))
    ended = {name: count for name, count in run.ledger.items() if count}
    if ended:
        flat.append(("tasks by ending", ", ".join(f"{name} {count:,}" for name, count in ended.items())))
    if run.comparison:
        flat.append(("messages", run.comparison))
    return [("folder", str(run.path))] * (run.path is not None) + flat
