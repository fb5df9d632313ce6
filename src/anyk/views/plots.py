"""Pictures: the metric against seconds on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from anyk.arrays import Floats
from anyk.errors import BadInput
from anyk.runs import Run, Spread, compare, compare_seeds, grouped, spread
from anyk.runs.folder.config import Recipe
from anyk.runs.races.speedups import finite_values
from anyk.strategies import strategy as build_strategy
from anyk.views.columns import shortened
from anyk.views.style import COLOURS, DARK, LIGHT, name_ticks, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDE = 4.0  # ratio of the longest to the shortest run from which on the axis is logarithmic
_ROW, _HEIGHT = 0.23, 4.6  # heights in inches: a line of the legend, the rest of the picture
_DASHES = ("-", "--", ":", "-.")  # for curves that share a colour
_LONG = 115  # characters of the subtitle's first line
_FEW = 40  # versions that are shown as points


class NothingToDraw(BadInput):
    """No version of the runs has been evaluated."""


def plot(
    runs: Run | Sequence[Run],
    path: str | Path | None = None,
    *,
    of: Literal["metric", "loss"] = "metric",
    dark: bool = False,
) -> Figure:
    """Draw the metric (or the loss, on request or without held-out data) against the seconds of each version.

    There is one line for each run, with a ring where it reached the target or ended; the legend has its result. With
    several seeds there is one line for each strategy, the median, in a band from the least to the largest value; a run
    that has ended counts with its last value. The axis of seconds is logarithmic if runs took very different times.
    ``path`` saves the picture; its ending chooses the format. ``dark``: for a dark page.

    Raises :class:`~anyk.errors.MissingPackage` without matplotlib and :class:`NothingToDraw` if nothing was evaluated.
    """
    groups = grouped([runs] if isinstance(runs, Run) else runs)
    if not groups:
        raise BadInput("there is no run to draw")
    first = [group[0] for group in groups]
    metric = next((run.metric_name for group in groups for run in group if run.metric), None)
    name = metric if metric and of == "metric" else "loss"
    falls = name == "loss" or first[0].config.better == "lower"
    curves = [_curve(group, name, of) for group in groups]
    if not any(curve.times.size for curve in curves):
        raise NothingToDraw(f"no version has a {name}: there is no curve to draw; train with evaluation")
    ends = [curve.end for curve in curves if curve.end > 0.0]
    wide = len(ends) > 1 and max(ends) > _WIDE * min(ends)
    target = first[0].config.target if of == "metric" else None
    look = DARK if dark else LIGHT
    with picture(path, (8.6, _HEIGHT + _ROW * len(groups)), look=look) as (figure, axes):
        faster = _faster(groups)
        for i, curve in enumerate(curves):
            shown = curve.times > 0.0 if wide else curve.times >= 0.0
            dash, place = divmod(i, len(COLOURS))
            colour, dashes = look[f"curve-{place}"], _DASHES[dash % len(_DASHES)]
            times, mark = curve.times[shown], "o" if shown.sum() < _FEW else None
            spec = shortened(first[i].config.strategy, _LONG // 2)
            label = f"{spec}   {_result(groups[i], curve, name, target)}{faster[i]}" if shown.any() else None
            axes.plot(times, curve.values[shown], color=colour, lw=2.0, ls=dashes, marker=mark, ms=3, label=label)
            axes.plot(curve.end, curve.height, "o", ms=8, mfc=look["paper"], mec=colour, mew=2, zorder=4, clip_on=False)
            if curve.band is not None:
                low, high = curve.band
                axes.fill_between(times, low[shown], high[shown], color=colour, alpha=0.18, lw=0)
        lowest = None if falls else lower_end([(curve.times, curve.values) for curve in curves])
        if lowest is not None:
            axes.set_ylim(bottom=lowest)
        axes.set(xscale="log" if wide else "linear", yscale="log" if falls else "linear")
        if not wide:
            axes.set_xlim(left=0)
        if target is not None:
            axes.axhline(target, color=look["dim"], lw=0.9, ls="--", zorder=0, label=f"target {target:g}")
        figure.legend(loc="outside lower left")
        clock = "virtual seconds" if on_virtual_clock(first[0]) else "wall-clock seconds"
        label = {"auc": "AUC on held-out rows", "accuracy": "accuracy on held-out rows"}.get(name, name)
        axes.set(xlabel=clock + ", logarithmic" * wide, ylabel=label)
        for axis, logarithmic in ((axes.xaxis, wide), (axes.yaxis, falls)):
            if logarithmic:
                name_ticks(axis)
        axes.set_title(_title(first, name, target) + "\n" * 2, fontsize=13, fontweight="bold")
        below = axes.text(0.0, 1.015, _subtitle(groups), transform=axes.transAxes, fontsize=9, color=look["dim"])
        below.set_in_layout(False)  # the title leaves room for it; long names must not squeeze the curves
    return figure


def on_virtual_clock(run: Run) -> bool:
    """Return whether a run's seconds are virtual."""
    return run.config.cluster.startswith("simulated")


class _Curve(NamedTuple):
    """Times and values of evaluated versions, and the point to label: the target reached, or the last.

    With several seeds: medians at all their times, and the ``band`` from least to largest.
    """

    times: Floats
    values: Floats
    end: float
    height: float
    reached: Spread | None = None
    band: tuple[Floats, Floats] | None = None


def _curve(group: Sequence[Run], name: str, of: str) -> _Curve:
    times, values, band = banded([finite_values(run, name) for run in group])
    if not times.size:
        return _Curve(times, values, 0.0, float("nan"))
    at = len(times) - 1
    reached = spread(run.time_to_target for run in group)
    if of == "metric" and reached.median is not None:
        at = min(int(np.searchsorted(times, reached.median)), at)
    return _Curve(times, values, float(times[at]), float(values[at]), reached if of == "metric" else None, band)


def banded(lines: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, tuple[Floats, Floats] | None]:
    """Return times, the medians of several lines (times and values) and the band from least to largest.

    The band is None for a single line; lines without points do not count.
    """
    lines = [line for line in lines if line[0].size] or [(np.empty(0), np.empty(0))]
    if len(lines) == 1:
        return *lines[0], None
    times = np.unique(np.concatenate([own for own, _ in lines]))
    each = np.array([np.interp(times, *line) for line in lines])  # after the end of a line: its last value
    return times, np.median(each, axis=0), (each.min(axis=0), each.max(axis=0))


def lower_end(lines: Sequence[tuple[Floats, Floats]]) -> float | None:
    """Return the lower end of the axis of a rising value: half of the upper range below the least median of the lines.

    So a steep rise at the start is omitted, which would squeeze the lines into a small part of the figure. None for a
    single line, or if there is no such rise.
    """
    drawn_lines = [values for _, values in lines if len(values)]
    if len(drawn_lines) < 2:
        return None
    median = min(float(np.median(values)) for values in drawn_lines)
    every = np.concatenate(drawn_lines)
    top = float(every.max())
    start = median - 0.5 * (top - median)
    return start if median < top and start > every.min() else None


def _faster(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return the speed-up of each strategy for its label; over several seeds with the range."""
    comparison = compare_seeds([run for group in groups for run in group])
    texts = []
    for strategy in comparison.strategies:
        if strategy.strategy == comparison.over or strategy.speed_up is None or strategy.speed_up.median is None:
            texts.append("")
            continue
        middle, least, most = strategy.speed_up
        span = f" ({least:.1f} to {most:.1f})" if len(strategy.runs) > 1 and least is not None else ""
        bound = "more than " if strategy.at_least else ""
        texts.append(f", {bound}{middle:.1f} times as fast{span}{' a job' * (comparison.by == 'job')}")
    return texts


def _result(group: Sequence[Run], curve: _Curve, name: str, target: float | None) -> str:
    """Return the result of a strategy and its time as text."""
    seconds = curve.reached or Spread(None, None, None)
    if target is None or seconds.least is None:
        return f"{name} {curve.height:.3g} after {curve.end:.3g} s"
    if len(group) == 1:
        return f"{curve.end:.3g} s"
    if seconds.most is not None:
        return f"{seconds.median:.3g} s ({seconds.least:.3g} to {seconds.most:.3g})"
    with_seeds = f"target reached with {sum(run.time_to_target is not None for run in group)} of {len(group)} seeds"
    if seconds.median is None:
        return f"{name} {curve.height:.3g} after {curve.end:.3g} s, {with_seeds}"
    return f"{seconds.median:.3g} s, {with_seeds}"


def _title(runs: Sequence[Run], name: str, target: float | None) -> str:
    name = {"auc": "AUC", "mse": "MSE"}.get(name, name)
    what = f"seconds to {name} {target:g}" if target is not None else f"{name} against seconds"
    if len(runs) == 1:
        return f"{shortened(runs[0].config.strategy, _LONG // 2)}: {what}"
    return f"{what[0].upper()}{what[1:]}, with the same stragglers for all"


def _subtitle(groups: Sequence[Sequence[Run]]) -> str:
    config = groups[0][0].config
    seeds = sorted({run.config.seed for group in groups for run in group})
    recipe = config.problem or Recipe()
    data = ", ".join(part for part in (recipe.data, Path(recipe.problem or "").name, recipe.model) if part)
    delays = config.delays
    cause = "no injected delays" if delays == "none" else f"each task is held up by an injected delay, {delays}"
    cluster = config.cluster.partition(":")[0]
    parts = [data] * bool(data) + [
        f"{config.workers} workers ({cluster})",
        cause,
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}",
    ]
    setting = shortened("; ".join(parts), _LONG)
    bands = "lines: medians over the seeds, bands: least to largest" if len(seeds) > 1 else ""
    if len(groups) == 1:
        return f"{setting}\n{bands}"
    over, by, _ = compare([group[0] for group in groups])
    how = {"target": "to the target", "loss": "to the lowest loss that both reached", "job": "by seconds a job"}[by]
    return f"{setting}\nspeed compared with {over}, {how}{'; ' * bool(bands)}{bands}"


def purpose(run: Run) -> str:
    """Return what a run's strategy does, in a few words; empty if its spec cannot be built."""
    try:
        return build_strategy(run.config.strategy, workers=run.config.workers).summary
    except BadInput:  # made in Python, or in a plug-in that is not loaded
        return ""
