"""Explanations and plans as tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anyk.base import ByName
from anyk.fleet import (
    Advice,
    Checked,
    Choice,
    Explanation,
    Part,
    Plan,
    Record,
    gain_text,
    headline,
    interval_text,
    lower_median,
    pareto,
    seconds_text,
)
from anyk.runs.api import Estimate
from anyk.strategies import strategy
from anyk.views.columns import Columns
from anyk.views.style import COLOURS, LIGHT, name_ticks, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 10  # workers in the table
_BARS = 20  # workers in the picture
_WORTH = 0.01  # gain of a change of the fleet that is worth a word
_MARKERS = "osD^v"  # of strategies that share a colour
_HIGHEST = 2.0  # times today's seconds, beyond which a strategy is not drawn
PLAN_NOTE = (  # on the columns of the table
    "gain: how much less time it takes than today's; load: the largest share of the data that a worker computes in "
    "a step (in brackets: that it stores, if that is more)"
)


def explained_table(explanation: Explanation) -> Columns:
    """Return the costliest workers; workers that stand out are marked."""
    rows = [
        [
            f"{'> ' if worker.worker in explanation.named else '  '}{worker.worker}",
            seconds_text(worker.cost_seconds),
            f"{100 * worker.cost_seconds / explanation.seconds:.1f} %",
            "" if worker.saves_seconds is None else seconds_text(worker.saves_seconds),
            f"{worker.relative:.2f}",
            f"{worker.individual:.2f}",
            f"{100 * worker.straggles:.0f} %",
        ]
        for worker in explanation.workers[:_ROWS]
    ]
    return Columns(["  worker", "costs s", "of the run", "saves s", "relative", "own best", "straggles"], rows)


def explained_note(explanation: Explanation) -> str:
    """Return an explanation of the columns of the table."""
    hidden = len(explanation.workers) - _ROWS
    note = f"; {hidden} further workers are not shown" if hidden > 0 else ""
    return (
        "costs: share of the waiting beyond each round's median (adds up over workers); saves: seconds that "
        f"'{explanation.today}' would save with this worker at the others' median; relative: its median over the "
        f"fleet's; own best: its last quarter over its best{note}"
    )


def draw_explanation(record: Record, explanation: Explanation, path: str | Path) -> None:
    """Draw each time over its round's median, the costliest workers on top, and the cost of each."""
    with picture(path, (11.0, 4.8), columns=2) as (figure, (heat, bars)):
        names = [worker.worker for worker in explanation.workers]
        order = [record.workers.index(name) for name in names]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log2(record.seconds / lower_median(record.seconds)[:, None]).T[order]
        most = max(0.5, float(np.nanquantile(np.abs(ratio[np.isfinite(ratio)]), 0.995)))
        image = heat.imshow(ratio, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most)
        heat.grid(False)
        heat.set(xlabel="round", ylabel="workers, the costliest on top", yticks=[])
        bar = figure.colorbar(image, ax=heat, label="time over the round's median")
        ticks = [tick for tick in bar.get_ticks() if -most <= tick <= most]
        bar.set_ticks(ticks, labels=[f"{2.0**tick:.2g}" for tick in ticks])
        costliest = explanation.workers[:_BARS]
        colours = [COLOURS[1] if worker.worker in explanation.named else LIGHT["spare"] for worker in costliest]
        costs = [100 * worker.cost_seconds / explanation.seconds for worker in costliest]
        bars.barh([str(worker.worker) for worker in costliest], costs, color=colours)
        bars.invert_yaxis()
        bars.set(ylabel="worker", xlabel="cost in % of the run (coloured: more than chance)")
        bars.grid(axis="y", visible=False)
        figure.suptitle(
            f"{len(record.rounds)} rounds x {len(record.workers)} workers: slowdown {explanation.slowdown:.3g}; "
            f"{100 * explanation.apart:.0f} % of the time is waiting beyond the rounds' medians",
        )


def plan_table(choices: Sequence[Choice], today: Choice) -> Columns:
    """Return strategies with predicted seconds and gains in 90 % intervals; today's strategy is marked.

    With a target: seconds to the target, and the learning rate.
    """
    to_target = any(one.arrival is not None for one in choices)
    rows = []
    for one in choices:
        seconds = one.arrival or one.seconds_per_step
        more = "" if abs(one.memory - one.load) < 1e-9 else f" ({one.memory:.3g})"
        rows.append(
            [
                f"{'> ' if one.spec == today.spec else '  '}{one.spec}",
                interval_text(seconds),
                gain_text(one, today),
                f"{one.load:.3g}{more}",
            ]
        )
        if to_target:
            rate, steps = one.learning_rate, one.steps_to_target
            rows[-1] += ["schedule" if rate is None else f"{rate:.3g}", "" if steps is None else f"{steps:.0f}"]
    what = "seconds to\nthe target" if to_target else "seconds a step"
    heads = ["  strategy", f"{what}\n(90 % interval)", "gain\n(90 % interval)", "load\n(memory)"]
    return Columns([*heads, "learning\nrate", "steps"] if to_target else heads, rows)


def inexact_table(choices: Sequence[Choice]) -> Columns:
    """Return strategies whose steps are not the exact sum, with the composition of their steps."""
    rows = [
        [
            f"  {one.spec}",
            interval_text(one.seconds_per_step),
            *("" if value is None else f"{value:.3g}" for value in (one.residual, one.staleness, one.samples_per_step)),
        ]
        for one in choices
    ]
    return Columns(
        ["  strategy", "seconds a step\n(90 % interval)", "residual", "staleness", "share of the\ndata a step"], rows
    )


def plan_lines(plan: Plan) -> list[str]:
    """Return the verdict, its reason and its assumptions."""
    advice = headline(plan.verdict, plan.today)
    run = f"for a run of {plan.horizon} steps"
    if plan.target is not None:
        run = f"for a run to {plan.metric} {plan.target:g}, {plan.horizon} steps under '{plan.today.spec}'"
    driver = plan.fleet.driver
    besides = "the driver's own time is not in the record and not counted"
    if driver is not None:
        besides = f"{seconds_text(driver)} s of each step are the driver's own"
    lines = [f"{advice}: {plan.why}", f"{run}; evidence: {plan.evidence}; {besides}"]
    if plan.verdict == "change":
        lines.append(f"'{plan.best.spec}': {strategy(plan.best.spec, workers=plan.workers).summary}")
        if plan.best.load > 1.0 - 1e-12:
            lines.append("every worker computes all of the data: then one is enough; --max-load sets a limit")
    lines.append(_cause(plan))
    for assumption in plan.assumptions:
        lines.append(assumption if assumption.startswith("if ") else f"assumed: {assumption}")
    if plan.probe is not None:
        lines.append(plan.probe)
    for one in plan.advice:
        if max(one.today or 0.0, one.best or 0.0) >= _WORTH:
            lines.append(f"with {one.what}, {_gains(one, plan)}")
    return lines


def _cause(plan: Plan) -> str:
    """Return how much can be gained, and from which workers, as text."""
    share, named = plan.fleet.apart, plan.fleet.named
    who = "no worker is shown to cost more than chance explains"
    if named:
        names = ", ".join(map(str, named[:5])) + (" and others" if len(named) > 5 else "")
        who = (
            f"worker{'s' * (len(named) > 1)} {names} {'cost' if len(named) > 1 else 'costs'} more than chance explains"
        )
    least = "at least " if plan.record.censored else ""  # what was cut off may have taken far longer
    return f"where all are waited for, waiting for slow workers takes {least}{100 * share:.0f} % of the time; {who}"


def checked_lines(checked: Checked) -> list[str]:
    """Return whether a promise held and, if not, the parts of the difference."""
    lines = [checked.sentence]
    steps = checked.measured.steps
    if checked.parts is not None:
        parts = ", ".join(f"{name} {seconds / steps:+.3g}" for name, seconds in checked.parts.items())
        difference = (checked.measured.seconds - checked.promised.seconds) / steps
        lines.append(f"measured minus promised is {difference:+.3g} s a step: {parts}")
    if checked.added is not None:
        lines.append(f"by the log's own stamps, {checked.added / steps:.3g} s a step passed besides the workers' times")
    return [*lines, *checked.remarks]


def _gains(one: Advice, plan: Plan) -> str:
    """Return the savings by a change of the fleet, for today's and the best strategy, each compared with itself."""
    gains = {plan.today.spec: one.today, plan.best.spec: one.best}
    parts = [
        f"'{spec}' takes {100 * abs(gain):.0f} % {'less' if gain >= 0 else 'more'}"
        for spec, gain in gains.items()
        if gain is not None
    ]
    missing = "".join(f" ('{spec}' does not exist for that number)" for spec, gain in gains.items() if gain is None)
    return f"{' and '.join(parts)} than on the fleet as it is{missing}"


def parts_table(parts: Sequence[Part]) -> Columns:
    """Return the runs of a training that plans for itself, with their promises."""
    rows = []
    for stretch in parts:
        run, promised = stretch.run, stretch.promise and stretch.promise.seconds_per_step
        rows.append(
            [
                run.config.strategy,
                f"{run.begun} to {run.steps}",
                f"{run.seconds:.4g}",
                f"{run.seconds / max(1, run.jobs):.3g}",
                f"{promised.low:.3g} to {promised.high:.3g}" if promised else "measures",
            ]
        )
    return Columns(["strategy", "steps", "seconds", "a step", "promised"], rows)


def draw_plan(plan: Plan, path: str | Path | None) -> Figure:
    """Draw seconds of a step, or to the target, against load, with intervals; a line joins the Pareto front."""
    with picture(path, (8.6, 5.0)) as (figure, axes):
        front = pareto(plan.candidates)

        def of(one: Choice) -> Estimate:
            return one.arrival or one.seconds_per_step

        named = {one.spec: one for one in (plan.best, plan.today, *front)}  # the legend has these
        most = _HIGHEST * of(plan.today).median
        near = {one.spec: one for one in plan.candidates if of(one).median <= most or one.spec in named}
        for spec, one in (near | named).items():
            seconds = of(one)
            look: ByName = {"color": LIGHT["spare"], "fmt": "o"}
            if spec in named:
                turn, colour = divmod(list(named).index(spec), len(COLOURS))
                look = {"color": COLOURS[colour], "fmt": _MARKERS[turn % len(_MARKERS)], "zorder": 3}
                look["label"] = spec + " (today's)" * (spec == plan.today.spec)
            interval = [[seconds.median - seconds.low], [seconds.high - seconds.median]]
            axes.errorbar(one.load, seconds.median, interval, ms=6, **look)
        axes.plot([one.load for one in front], [of(one).median for one in front], color=LIGHT["dim"], lw=1.0)
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            name_ticks(axis)
        figure.legend(loc="outside lower left", ncols=2)
        what = "seconds a step" if plan.target is None else "seconds to the target"
        share = "load: share of the data that a worker computes in a step"
        axes.set(xlabel=share, ylabel=f"{what} (90 % prediction interval)")
        axes.set_title(plan_lines(plan)[0], fontsize=10)
    return figure
