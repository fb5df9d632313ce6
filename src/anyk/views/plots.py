"""Pictures: the metric against seconds on the clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from anyk.base import BadInput, Floats
from anyk.runs import Run, Spread, compare, compare_seeds, grouped, spread
from anyk.runs.api import Recipe, finite_values
from anyk.strategies import strategy as build_strategy
from anyk.views.columns import shortened
from anyk.views.style import COLOURS, DARK, LIGHT, name_ticks, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDE = 4.0  # ratio of the longest to the shortest run from which on the axis is logarithmic
_WIDTH, _HEIGHT = 8.6, 5.0  # inches: of the picture, and without its labels
_ROW, _SUBTITLE = 16.0, 30.0  # points: heights of a label and of the subtitle
_SAMPLE = 24.0  # points: length of the sample of a line that begins its label
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
_MARKS = 12  # markers on a line, about
_LONG, _SHORTEST = 115, 12  # characters of a line of the subtitle, and of a spec in it at the least
_DIVERGED = 3.0  # a loss that exceeds the first one so many times runs out of the picture
_STILL = 0.03  # share of the visible range that a line moves before the picture begins


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

    There is one line for each run, with a large marker where it reached the target or ended, from which a thin line
    leads to its label above the axes: the strategy, its result and its speed-up, as in the table
    (:func:`~anyk.views.race_table`). With several seeds the line of a strategy is the median, in a band from the least
    to the largest value, and its label has medians; a run that has ended counts with its last value. Colours, dashes
    and markers differ. The axis of seconds is logarithmic if runs took very different times. The picture begins where
    lines begin to move. ``path`` saves it; its ending chooses the format. ``dark``: for a dark page.

    Raises :class:`~anyk.base.errors.MissingPackage` without matplotlib and :class:`NothingToDraw` if nothing was
    evaluated.
    """
    groups = grouped([runs] if isinstance(runs, Run) else runs)
    if not groups:
        raise BadInput("there is no run to draw")
    first = [group[0] for group in groups]
    name = _evaluated(groups) if of == "metric" else "loss"
    falls = name == "loss" or first[0].config.better == "lower"
    target = first[0].config.target if of == "metric" else None
    curves = _curves(groups, name, target)
    drawn = [(i, curve) for i, curve in enumerate(curves) if curve.times.size]
    if not drawn:
        raise NothingToDraw(f"no version has a {name}: there is no curve to draw; train with evaluation")
    wide = _is_wide(curves)
    look = DARK if dark else LIGHT
    with picture(path, (_WIDTH, _HEIGHT + _ROW * len(drawn) / 72.0), look=look) as (figure, axes):
        axes.set(xscale="log" if wide else "linear", yscale=_scale(curves, falls=falls))
        for k, (i, curve) in enumerate(drawn):
            _draw(axes, curve, look, i, k / len(drawn), wide=wide)
        _crop(axes, [curve for _, curve in drawn], target, falls=falls, wide=wide)
        _name_axes(axes, "virtual" if on_virtual_clock(first[0]) else "wall-clock", name, wide=wide)
        _write_titles(axes, _title(first, name, target), _subtitle(groups), look, above=_ROW * len(drawn) + 4.0)
        figure.draw_without_rendering()  # the labels need the places of the axes
        figure.set_layout_engine("none")
        if target is not None:
            _draw_target(axes, target, look)
        _draw_labels(figure, axes, drawn, look)
    return figure


def _evaluated(groups: Sequence[Sequence[Run]]) -> str:
    """Return the name of the metric that runs were evaluated by; the loss without held-out data."""
    return next((run.metric_name for group in groups for run in group if run.metric), "loss")


def _is_wide(curves: Sequence[_Curve]) -> bool:
    """Return whether runs took so different times that their axis is logarithmic."""
    ends = [curve.end for curve in curves if curve.end > 0.0]
    return len(ends) > 1 and max(ends) > _WIDE * min(ends)


def _name_axes(axes: Any, clock: str, name: str, *, wide: bool) -> None:
    """Write the names of the seconds and the values, and the ticks of logarithmic axes as plain numbers."""
    label = {"auc": "AUC on held-out rows", "accuracy": "accuracy on held-out rows"}.get(name, name)
    axes.set(xlabel=f"{clock} seconds" + ", logarithmic" * wide, ylabel=label)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            name_ticks(axis)


def _write_titles(axes: Any, title: str, subtitle: str, look: Mapping[str, str], *, above: float) -> None:
    """Write the title and the subtitle, which are ``above`` the axes by so many points."""
    axes.set_title(title, fontsize=13, fontweight="bold", pad=above + _SUBTITLE)
    below = axes.annotate(
        subtitle,
        (0.0, 1.0),
        (0.0, above),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9,
        color=look["dim"],
    )
    below.set_in_layout(False)  # the title leaves room for it; long names must not squeeze the curves


def _scale(curves: Sequence[_Curve], *, falls: bool) -> str:
    """Return the scale of the values: logarithmic for those that fall, if they are all above 0."""
    positive = all(curve.values.min(initial=np.inf) > 0.0 for curve in curves)
    return "log" if falls and positive else "linear"


def _style(look: Mapping[str, str], i: int) -> dict[str, Any]:
    """Return colour, dashes and marker of a line; neighbours differ in each."""
    turn, colour = divmod(i, len(COLOURS))
    return {
        "color": look[f"curve-{colour}"],
        "ls": _DASHES[(i + turn) % len(_DASHES)],
        "marker": _MARKERS[i % len(_MARKERS)],
        "mec": look[f"curve-{colour}"],
    }


def _draw(axes: Any, curve: _Curve, look: Mapping[str, str], i: int, offset: float, *, wide: bool) -> None:
    """Draw a line, and its band over several seeds; ``offset``: from 0 for the first line to below 1.

    Earlier lines are wider, and have their markers elsewhere, so that lines that coincide can all be seen.
    """
    visible = curve.times > 0.0 if wide else curve.times >= 0.0
    times, style = curve.times[visible], _style(look, i)
    every = max(1, len(times) // _MARKS)
    marks = (int(offset * every), every)
    axes.plot(times, curve.values[visible], lw=3.2 - 1.8 * offset, ms=4, markevery=marks, zorder=3, **style)
    if curve.band is not None:
        low, high = curve.band
        axes.fill_between(times, low[visible], high[visible], color=style["color"], alpha=0.18, lw=0)


def _crop(axes: Any, curves: Sequence[_Curve], target: float | None, *, falls: bool, wide: bool) -> None:
    """Limit the axes to where lines move: without a steep rise at the start, and without a diverged end."""
    every = np.concatenate([curve.values for curve in curves])
    if not falls:
        low = _lowest([curve.values for curve in curves])
        high = float(every.max())
        axes.set_ylim(low, high + 0.06 * (high - low) if high > low else None)
    top = _DIVERGED * max(float(curve.values[0]) for curve in curves)
    if falls and 0.0 < _DIVERGED * top < float(every.max()):
        axes.set_ylim(top=top)
    if target is not None:
        low, high = axes.get_ylim()
        edge = 0.0 if axes.get_yscale() == "log" else 0.06 * (high - low)
        axes.set_ylim(min(low, target - edge), max(high, target + edge))
    begins = [_first_move(axes, curve, wide=wide) for curve in curves]
    begin, end = min(begins), max(float(curve.times[-1]) for curve in curves)
    if wide:
        axes.set_xlim(left=begin / (end / begin) ** 0.03)
    else:
        axes.set_xlim(left=begin if begin > end / 3.0 else 0.0)


def _lowest(lines: Sequence[Floats]) -> float:
    """Return the lower end of the axis of a rising value, above a steep rise at the start."""
    lowest = lower_end([(line, line) for line in lines])
    if lowest is None and len(lines) == 1:  # a single line is shown but for the first tenth of its points
        tenth, top = float(np.quantile(lines[0], 0.1)), float(lines[0].max())
        lowest = tenth - 0.5 * (top - tenth)
    least, top = (float(end(np.concatenate(lines))) for end in (np.min, np.max))
    return least - 0.04 * (top - least) if lowest is None or lowest < least else lowest


def _first_move(axes: Any, curve: _Curve, *, wide: bool) -> float:
    """Return the last time before a line is visible and leaves its first value."""
    visible = curve.times > 0.0 if wide else curve.times >= 0.0
    times, values = curve.times[visible], curve.values[visible]
    if not times.size:
        return math.inf
    heights = axes.transAxes.inverted().transform(axes.transData.transform(np.column_stack([times, values])))[:, 1]
    moved = (heights > 0.0) & (np.abs(heights - heights[0]) > _STILL)
    return float(times[max(int(np.argmax(moved)) - 1, 0)])


def _draw_target(axes: Any, target: float, look: Mapping[str, str]) -> None:
    """Draw the target as a line with its name."""
    axes.axhline(target, color=look["dim"], lw=0.9, ls=(0, (1, 2)), zorder=1)
    axes.annotate(
        f"target {target:g}",
        (0.0, target),
        (4.0, 3.0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        fontsize=9,
        color=look["dim"],
    )


def _draw_labels(figure: Figure, axes: Any, curves: Sequence[tuple[int, _Curve]], look: Mapping[str, str]) -> None:
    """Draw the labels above the axes, the first to end at the top, each with a line to the end of its curve.

    Labels have a sample of their line. They begin above the end of the curve, or further left where they would leave
    the picture.
    """
    from matplotlib.transforms import blended_transform_factory

    points = figure.dpi / 72.0
    height = axes.bbox.height / points
    for row, (i, curve) in enumerate(sorted(curves, key=lambda numbered: -numbered[1].end)):
        style, level = _style(look, i), 1.0 + (_ROW * (row + 0.5)) / height
        end_x, end_y = axes.transData.transform((max(curve.end, axes.get_xlim()[0]), curve.height))
        x, y = axes.transAxes.inverted().transform((end_x, end_y))
        y = min(max(y, 0.0), 1.0)  # of a loss that runs out of the picture
        label = axes.text(0.0, level, curve.label, transform=axes.transAxes, fontsize=9, va="center", color=look["ink"])
        label.set_in_layout(False)
        label.set_bbox({"facecolor": look["paper"], "edgecolor": "none", "pad": 1.0})
        room = label.get_window_extent().width + (_SAMPLE + 8.0) * points
        left = max(min(end_x, figure.bbox.x1 - 4.0 * points - room), 4.0 * points)
        begin, end = axes.transAxes.inverted().transform([(left, 0.0), (left + _SAMPLE * points, 0.0)])[:, 0]
        label.set_x(end + 5.0 * points / axes.bbox.width)
        stalk = blended_transform_factory(axes.transAxes, axes.transAxes)
        axes.plot([x, x], [y, level], transform=stalk, color=style["color"], lw=0.8, zorder=2, clip_on=False)
        sample = [begin, (begin + end) / 2.0, end]
        axes.plot(
            sample,
            [level] * 3,
            transform=axes.transAxes,
            lw=1.8,
            ms=5,
            markevery=[1],
            mfc=look["paper"],
            clip_on=False,
            zorder=5,
            **style,
        )
        axes.plot(
            x,
            y,
            transform=axes.transAxes,
            ms=8,
            mfc=look["paper"],
            mew=1.8,
            zorder=6,
            clip_on=False,
            **style | {"ls": ""},
        )


def on_virtual_clock(run: Run) -> bool:
    """Return whether a run's seconds are virtual."""
    return run.config.cluster.startswith("simulated")


class _Curve(NamedTuple):
    """Times and values of evaluated versions, and the end, which is marked: the target reached, or the last version.

    With several seeds: medians at all their times, the ``band`` from least to largest, and the median of the ends.
    """

    times: Floats
    values: Floats
    end: float
    height: float
    label: str
    band: tuple[Floats, Floats] | None = None


def _curve(group: Sequence[Run], name: str, target: float | None, faster: str) -> _Curve:
    times, values, band = banded([finite_values(run, name) for run in group])
    if not times.size:
        return _Curve(times=times, values=values, end=0.0, height=float("nan"), label="")
    reached = spread(run.time_to_target for run in group) if target is not None else Spread(None, None, None)
    end = spread(run.seconds for run in group).median if reached.median is None else reached.median
    end = min(float(times[-1] if end is None else end), float(times[-1]))
    height = float(np.interp(end, times, values))
    spec = shortened(group[0].config.strategy, _LONG // 2)
    return _Curve(
        times=times,
        values=values,
        end=end,
        height=height,
        label=f"{spec}   {_result(group, name, reached)}{faster}",
        band=band,
    )


def _curves(groups: Sequence[Sequence[Run]], name: str, target: float | None) -> list[_Curve]:
    """Return the curve of each strategy, with its speed-up in its label."""
    return [_curve(group, name, target, faster) for group, faster in zip(groups, _faster(groups), strict=True)]


def banded(lines: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, tuple[Floats, Floats] | None]:
    """Return times, the medians of several lines (times and values) and the band from least to largest.

    The band is None for a single line; lines without points do not count.
    """
    lines = [line for line in lines if line[0].size] or [(np.empty(0), np.empty(0))]
    if len(lines) == 1:
        return *lines[0], None
    times = np.unique(np.concatenate([line_times for line_times, _ in lines]))
    values = np.array([np.interp(times, *line) for line in lines])  # after the end of a line: its last value
    return times, np.median(values, axis=0), (values.min(axis=0), values.max(axis=0))


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


def _result(group: Sequence[Run], name: str, reached: Spread) -> str:
    """Return the result of a strategy and its time as text; over several seeds the medians of the table."""
    with_seeds = ""
    if len(group) > 1 and reached.least is not None and reached.most is None:
        with_seeds = (
            f", target reached with {sum(run.time_to_target is not None for run in group)} of {len(group)} seeds"
        )
    if reached.median is not None:
        span = f" ({reached.least:.3g} to {reached.most:.3g})" if len(group) > 1 and reached.most is not None else ""
        return f"{reached.median:.3g} s{span}{with_seeds}"
    worst = -math.inf if group[0].config.better == "higher" and name != "loss" else math.inf
    last = spread((float(values[-1]) if values.size else None for _, values in _values(group, name)), missing=worst)
    seconds = spread(run.seconds for run in group).median
    result = "–" if last.median is None else f"{last.median:.3g}"
    return f"{name} {result} after {seconds:.3g} s{with_seeds}"


def _values(group: Sequence[Run], name: str) -> list[tuple[Floats, Floats]]:
    return [finite_values(run, name) for run in group]


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
    data = ", ".join(name for name in (recipe.data, Path(recipe.problem or "").name, recipe.model) if name)
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
    ending = f", {how}{'; ' * bool(bands)}{bands}"
    return f"{setting}\nspeed compared with {shortened(over, max(_LONG - len(ending) - 10, _SHORTEST))}{ending}"


def purpose(run: Run) -> str:
    """Return what a run's strategy does, in a few words; empty if its spec cannot be built."""
    try:
        return build_strategy(run.config.strategy, workers=run.config.workers).summary
    except BadInput:  # made in Python, or in a plug-in that is not loaded
        return ""
