"""Results as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from anyk.planning import Candidate
from anyk.training.checking import ClusterSpeed
from anyk.training.floor import SHOWN_FROM
from anyk.training.run import Run


def number(value: float | None, digits: int = 4) -> str:
    """A number for a table; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """Seconds for a table."""
    return "–" if value is None else f"{value:.3f}" if value < 10 else f"{value:.2f}"


def ratio_to_floor(run: Run) -> float | None:
    """Seconds over floor seconds; None where the floor is too small to say anything."""
    floor = run.floor_seconds
    taken = run.steps - run.begun
    if not floor or not taken or floor / taken < SHOWN_FROM:
        return None
    return run.seconds / floor


def speed_ups(runs: Sequence[Run]) -> list[float | None]:
    """How many times sooner than the slowest: to the target where one was set, else for one step."""
    wanted = any(run.config.get("target") is not None for run in runs)
    taken = [run.steps - run.begun for run in runs]
    times = [
        run.time_to_target if wanted else (run.seconds / steps if steps else None)
        for run, steps in zip(runs, taken, strict=True)
    ]
    known = [time for time in times if time]
    return [max(known) / time if time else None for time in times]


def race_table(runs: Sequence[Run]) -> Table:
    """One row a strategy."""
    target = next((run.config["target"] for run in runs if run.config.get("target") is not None), None)
    name = runs[0].metric_name
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("strategy", no_wrap=True)
    for title in ("steps", "seconds", "floor s", "ratio", "loss", name):
        table.add_column(title, justify="right", no_wrap=True)
    if target is not None:
        table.add_column(f"s to {target:g}", justify="right", no_wrap=True)
    table.add_column("speed-up" if target is not None else "speed-up a step", justify="right")
    for run, speed_up in zip(runs, speed_ups(runs), strict=True):
        metric: dict[str, Any] = run.metric or {}
        ratio = ratio_to_floor(run)
        cells = [
            str(run.config["strategy"]),
            str(run.steps),
            seconds(run.seconds),
            seconds(run.floor_seconds),
            "–" if ratio is None else f"{ratio:.3f}",
            number(run.loss),
            number(metric.get("value")),
        ]
        if target is not None:
            cells.append(seconds(run.time_to_target))
        table.add_row(*cells, "–" if speed_up is None else f"{speed_up:.1f}x")
    return table


def speed_table(speed: ClusterSpeed) -> Table:
    """One row a size."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("message", "round trip ms", "MB/s", "step ms", "floor ms", "step / floor"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in speed.speeds:
        rate = speed.bandwidth(each)
        table.add_row(
            f"{each.size / 1e6:g} MB",
            f"{1e3 * each.trip:.2f}",
            "–" if rate is None else f"{rate / 1e6:,.0f}",
            f"{1e3 * each.step:.2f}",
            f"{1e3 * each.floor:.2f}",
            f"{each.ratio:.2f}",
        )
    return table


def candidates_text(candidates: Sequence[Candidate]) -> str:
    """Schemes with the seconds predicted for them, the best first and marked."""
    lines = [f"{'':2}{'scheme':<42}{'seconds':>9}{'a job':>9}{'load':>10}{'T':>4}{'waits':>7}"]
    for i, one in enumerate(candidates):
        numbers = f"{one.seconds:>9.4g}{one.seconds / one.jobs:>9.4g}{one.load:>10.4g}{one.T:>4}{one.waits:>7}"
        lines.append(f"{'  ' if i else '> '}{one.spec:<42}{numbers}")
    if candidates[0].spec == "uncoded":
        lines.append("no coding is best here: what a code computes twice costs more than the stragglers do")
    return "\n".join(lines)
