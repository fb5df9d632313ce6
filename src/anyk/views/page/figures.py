"""The figures of a report, as Bokeh models with binary columns of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from bokeh.core.properties import expr
from bokeh.models import (
    BasicTicker,
    BoxZoomTool,
    CDSView,
    ColorBar,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    GlyphRenderer,
    HBar,
    HoverTool,
    IndexFilter,
    LinearColorMapper,
    LogAxis,
    PanTool,
    PlainText,
    Range1d,
    ResetTool,
    Scatter,
    Stack,
    TapTool,
    VArea,
    VBar,
    WheelZoomTool,
    glyphs,
)
from bokeh.palettes import Cividis256
from bokeh.plotting import figure

from anyk.base import Array, ByName, Flags, Floats, Indices, values_of
from anyk.runs import Run, Tasks, absences
from anyk.runs.api import FATES, LATE, LOST, PHASES
from anyk.views.page.account import Heat, Share
from anyk.views.plots import lower_end
from anyk.views.style import COLOURS, LIGHT

_DASHES = ("solid", "dashed", "dotted", "dashdot")  # these, and the symbols, are also in the template's legend
_MARKS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "plus", "x", "star")
_PHASE_COLOURS = (LIGHT["waiting"], COLOURS[0], LIGHT["idle"], LIGHT["sending"])
_FATE_COLOURS = (COLOURS[0], COLOURS[5], LIGHT["spare"], COLOURS[1], LIGHT["lost"], LIGHT["open"])
_FATE_HATCHES = (" ", "dot", " ", "right_diagonal_line", "cross", "blank")
_POINTS = 4000  # of a curve; more are thinned evenly
_SECONDS_IN_WORDS = "return Math.abs(value) < 0.1 ? (1e3 * value).toPrecision(3) + ' ms' : value.toPrecision(4) + ' s'"
_LATENESS_IN_WORDS = "return isNaN(value) ? 'unknown' : 'another ' + value.toPrecision(3) + ' s'"
_FIRST = 1500  # bars that the timeline shows at first
_SYMBOLS = 8  # along a curve


class Line(NamedTuple):
    """A curve of a figure: its values by seconds and by step, each with a band or None."""

    name: str
    by: dict[str, tuple[Array, ...]]  # x, value, low, high


def new_figure(
    x_label: str,
    y_label: str,
    height: int,
    *,
    drag: object = "both",
    integers: Literal["", "x", "y"] = "",
    **settings: Any,
) -> Any:
    """Return an empty figure in the style of the page; lines and areas in colours of :data:`LIGHT` also get a dark one.

    ``drag``: along which dimensions one can zoom (None: not at all). ``integers``: an axis of whole numbers.
    """
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location="above",
        tools=[],
        background_fill_alpha=0.0,
        border_fill_alpha=0.0,
        outline_line_alpha=0.0,
        min_border_left=56,
        min_border_right=12,
        **settings,
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    if drag is not None:
        box = BoxZoomTool(dimensions=drag)
        wheel = WheelZoomTool(dimensions=drag, modifiers={"ctrl": True})
        plot.add_tools(box, PanTool(dimensions=drag), wheel, ResetTool())
        plot.toolbar.active_drag = box
    for side, axis, grid, label in (("x", plot.xaxis, plot.xgrid, x_label), ("y", plot.yaxis, plot.ygrid, y_label)):
        axis.formatter = _plain_numbers()
        axis.axis_label = PlainText(text=label)  # not parsed for formulas
        if side == integers:
            axis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
            grid.visible = False
    return plot


def _plain_numbers() -> CustomJSTickFormatter:
    """Return a formatter of ticks as 0.004 and 0.1, not as 4.000e-3 and a power of ten."""
    return CustomJSTickFormatter(code="return String(Number(tick.toPrecision(6)))")


def _draw(into: Any, glyph: Any, source: ColumnDataSource, **settings: Any) -> Any:
    """Add a glyph to a figure, and return its renderer.

    The figure's own methods make three more glyphs each, for styles that a report does not use: a third of a page's
    models.
    """
    renderer = GlyphRenderer(
        data_source=source, glyph=glyph, nonselection_glyph=None, selection_glyph=None, muted_glyph=None, **settings
    )
    into.renderers.append(renderer)
    return renderer


def _add_tips(plot: Any, renderer: Any, *tips: tuple[str, str], **settings: Any) -> None:
    plot.add_tools(HoverTool(renderers=[renderer], tooltips=list(tips), **settings))


def _thinned(count: int) -> Indices:
    """Return which of ``count`` points are drawn: evenly spread, and always the last."""
    if not count:
        return np.arange(0)
    every = -(-count // _POINTS)
    return np.union1d(np.arange(0, count, every), [count - 1])


def curves(lines: Sequence[Line], value: str, name: str, *, clock: str, target: float | None) -> Any:
    """Return the figure of values against seconds or steps; the page switches between them, and between scales.

    The axis of a metric that rises, such as accuracy, omits the steep beginning.
    """
    plot = new_figure(clock, value, 340, name=name, x_range=Range1d(0, 1), y_range=Range1d(0, 1))
    for side, label in (("below", clock), ("left", value)):
        axis = LogAxis(visible=False, name="log", formatter=_plain_numbers(), axis_label=PlainText(text=label))
        plot.add_layout(axis, side)
    falls = value in ("loss", "mse", "held_out_loss")
    low = None if falls else lower_end([(line.by["seconds"][0], line.by["seconds"][1]) for line in lines])
    plot.tags = [clock, "" if target is None else target, "" if low is None else low]
    if target is not None:
        plot.hspan(target, line_color=LIGHT["dim"], line_dash="dashed", line_width=1, name="target")
    for i, line in enumerate(lines):
        for axis, values in line.by.items():
            _draw_line(plot, i, line, axis, values, value=value, named=len(lines) > 1)
    return plot


def _draw_line(plot: Any, i: int, line: Line, axis: str, values: Sequence[Array], *, value: str, named: bool) -> None:
    """Draw the ``i``-th line along an axis, with its band, a few symbols and tips, ``named`` among other lines."""
    colour, dash, symbol = (looks[i % len(looks)] for looks in (COLOURS, _DASHES, _MARKS))
    keep = _thinned(len(values[0]))
    columns = zip(("x", "y", "low", "high"), values, strict=False)  # without a band there are two
    data = {key: np.asarray(column, float)[keep] for key, column in columns}
    tags, band = [axis, i], "low" in data
    source = ColumnDataSource(data, name=f"{axis} {i}")
    if band:
        area = VArea(x="x", y1="low", y2="high", fill_color=colour, fill_alpha=0.18)
        _draw(plot, area, source, tags=tags)
    stroke = glyphs.Line(x="x", y="y", line_color=colour, line_width=2.2, line_dash=dash)
    renderer = _draw(plot, stroke, source, name=line.name, tags=tags)
    few = ColumnDataSource({key: data[key][:: max(1, len(keep) // _SYMBOLS)] for key in ("x", "y")})
    mark = Scatter(x="x", y="y", marker=symbol, size=8, fill_color=colour, line_color=colour)
    _draw(plot, mark, few, tags=tags)
    tips = [("", "$name")] if named else []
    tips += [(value, "@y{0.00000}"), ("seconds" if axis == "seconds" else "step", "@x{0.[000]}")]
    tips += [("least to largest", "@low{0.0000} to @high{0.0000}")] if band else []
    _add_tips(plot, renderer, *tips, mode="vline", line_policy="nearest")


def timeline(run: Run, tasks: Tasks, steps: Mapping[str, Array], name: str) -> Any:
    """Return the timeline: a bar for each phase of each task, thick if its message was used.

    The page finds receipts in its columns.
    """
    workers = run.config.workers.most
    end = float(max(tasks.end.max(initial=0.0), run.seconds, 1e-9))
    visible_end = float(np.sort(tasks.start)[_FIRST]) if len(tasks) > _FIRST else end
    plot = new_figure(
        "seconds",
        "worker",
        int(np.clip(15 * workers + 90, 180, 620)),
        drag="width",
        integers="y",
        name=f"{name} timeline",
        x_range=Range1d(0.0, max(visible_end, end / 1e6), bounds=(0.0, end), reset_start=0.0, reset_end=end),
        y_range=Range1d(workers - 0.4, -0.6),
        lod_threshold=20_000,
    )
    all_bars = []
    coloured_phases: dict[str, dict[str, str | None]] = {
        kind: dict(zip(PHASES, _PHASE_COLOURS, strict=True)) for kind in ("used", "spare")
    }
    coloured_phases["cut"] = {"unknown": None}  # an outline
    for kind, (which, height) in kinds(tasks).items():
        if not which.any():
            continue
        source = ColumnDataSource(columns(tasks, which, kind), name=f"{name} {kind}")
        view = CDSView(filter=IndexFilter(indices=[0]), name=f"{name} {kind} view")  # the page sets the visible range
        bars, fields = [], ["start"]
        for phase, colour in coloured_phases[kind].items():
            bar = HBar(
                y="worker",
                left=expr(Stack(fields=fields)),
                right=expr(Stack(fields=[*fields, phase])),
                height=height,
                fill_color=colour,
                line_color=None if colour else COLOURS[1],
            )
            fields = [*fields, phase]
            bars.append(_draw(plot, bar, source, view=view, name=phase))
        plot.add_tools(_timeline_hover(bars, kind))
        all_bars += bars
    _draw_absences(plot, run, end)
    lost = tasks.fate == LOST
    if lost.any():
        plot.scatter(
            tasks.end[lost],
            tasks.worker[lost],
            marker="x",
            size=8,
            line_color=LIGHT["lost"],
            line_width=2,
            name="lost",
        )
    plot.vspan(
        "seconds",
        source=ColumnDataSource(dict(steps), name=f"{name} steps"),
        line_color=LIGHT["ink"],
        line_alpha=0.35,
        line_width=0.7,
        name="steps",
        visible=False,
    )
    plot.add_tools(TapTool(renderers=all_bars, mode="replace"))
    return plot


def _draw_absences(plot: Any, run: Run, end: float) -> None:
    absent = absences(run.log, run.config.workers.most)
    if not absent:
        return
    source = ColumnDataSource(
        {
            "worker": [absence.worker for absence in absent],
            "left": [absence.start for absence in absent],
            "back": [min(absence.end, end) for absence in absent],
            "notice": [absence.notice for absence in absent],
        }
    )
    looks = {"fill_color": LIGHT["open"], "line_color": LIGHT["line"]}
    bar = HBar(y="worker", left="left", right="back", height=0.9, **looks)
    tips = [("", "absent"), ("from", "@left s"), ("to", "@back s"), ("notice", "@notice s")]
    _add_tips(plot, _draw(plot, bar, source, name="absent"), *tips)


def kinds(tasks: Tasks) -> dict[str, tuple[Flags, float]]:
    """Return which tasks the timeline draws as which kind, and the heights of their bars."""
    return {
        "used": (tasks.finished & (tasks.fate <= LATE), 0.82),
        "spare": (tasks.finished & (tasks.fate > LATE), 0.34),
        "cut": (~tasks.finished, 0.34),
    }


_TYPES = {"worker": np.uint16, "start": np.float64, "fate": np.uint8, "slot": np.uint8}  # of the columns, else float32
_TYPES |= dict.fromkeys(("task", "version", "step", "work"), np.int32)


def columns(tasks: Tasks, which: Flags, kind: str) -> dict[str, Array]:
    """Return columns for the timeline and receipts of tasks of one kind, ordered by start."""
    names = ["worker", "task", "version", "step", "start", *(["unknown", "late"] if kind == "cut" else PHASES)]
    names += ["weight", "work"] if kind == "used" else ["fate"]
    if kind == "spare" and np.isfinite(tasks.late[which]).any():
        names.append("late")
    if len(tasks.slots) > 1:
        names.append("slot")
    rows = np.flatnonzero(which)
    rows = rows[np.argsort(tasks.start[rows], kind="stable")]  # so that the page finds the visible tasks by bisection
    return {
        name: column[rows].astype(_TYPES.get(name, np.float32)) for name, column in values_of(tasks, *names).items()
    }


def _timeline_hover(bars: Sequence[Any], kind: str) -> HoverTool:
    tips = [("worker", "@worker, task @task"), ("model", "version @version")]
    formatters: ByName = {}
    if kind == "used":
        tips.append(("used", "in step @step, weight @weight{0.[000]}"))
    else:
        tips.append(("fate", "@fate{custom}"))
        formatters["@fate"] = CustomJSHover(code=f"return {list(FATES)!r}[value] ?? ''")
    times = {"seconds until then": "unknown"} if kind == "cut" else {phase: phase for phase in PHASES}
    for title, column in times.items():
        tips.append((title, f"@{column}{{custom}}"))
        formatters[f"@{column}"] = CustomJSHover(code=_SECONDS_IN_WORDS)
    if kind == "cut":
        tips.append(("due after", "@late{custom}"))
        formatters["@late"] = CustomJSHover(code=_LATENESS_IN_WORDS)
    return HoverTool(renderers=list(bars), tooltips=tips, formatters=formatters, limit=3, point_policy="follow_mouse")


def heat_map(heat: Heat) -> Any:
    """Return the heat map of workers x steps, the lighter the longer."""
    workers, columns = heat.seconds.shape
    start, end = heat.first - 0.5, heat.first - 0.5 + columns * heat.width
    plot = new_figure(
        "step" if heat.by_step else "task of the worker",
        "worker",
        int(np.clip(11 * workers + 80, 160, 460)),
        integers="y",
        x_range=Range1d(start, end),
        y_range=Range1d(workers - 0.5, -0.5),
    )
    plot.xgrid.visible = False
    finite = heat.seconds[np.isfinite(heat.seconds)]
    low, high = (float(np.quantile(finite, q)) for q in (0.0, 0.99)) if finite.size else (0.0, 1.0)
    colours = LinearColorMapper(Cividis256, low=low, high=max(high, low + 1e-9), nan_color="rgba(0,0,0,0)")
    geometry = {"x": start, "y": -0.5, "dw": end - start, "dh": workers, "first": heat.first, "each": heat.width}
    source = ColumnDataSource(
        {"image": [heat.seconds], "cut": [heat.cut], **{name: [value] for name, value in geometry.items()}}
    )
    image = plot.image("image", "x", "y", "dw", "dh", source=source, color_mapper=colours)
    column = """
        const first = source.data.first[0], each = source.data.each[0];
        const column = Math.floor((value - first + 0.5) / each) * each + first;
        return each > 1 ? `${column} to ${column + each - 1}` : column"""
    tips = [
        ("worker", "$y{custom}"),
        ("step" if heat.by_step else "task", "$x{custom}"),
        ("seconds", "@image{0.0000}"),
        ("cut off", "@cut{0 %}"),
    ]
    formatters = {
        "$y": CustomJSHover(code="return Math.round(value)"),
        "$x": CustomJSHover(args={"source": source}, code=column),
    }
    _add_tips(plot, image, *tips, formatters=formatters)
    plot.add_layout(ColorBar(color_mapper=colours, width=10, label_standoff=6, padding=4, title="s"), "right")
    return plot


def worker_bars(rows: Sequence[Share]) -> object:
    """Return the figure of the endings of tasks, as shares, with a bar for each worker."""
    fates = np.array([row.fates for row in rows], dtype=float)
    total = np.maximum(fates.sum(axis=1), 1)
    workers = Range1d(-0.6, len(rows) - 0.4)
    plot = new_figure(
        "worker", "share of its tasks", 230, drag="width", integers="x", x_range=workers, y_range=Range1d(0, 1)
    )
    top = np.cumsum(fates, axis=1) / total[:, None]
    data: ByName = {"worker": np.arange(len(rows)), "total": total}
    occurring = np.flatnonzero(fates.any(axis=0)).tolist()
    for i in occurring:
        data |= {f"b{i}": top[:, i] - fates[:, i] / total, f"t{i}": top[:, i], f"n{i}": fates[:, i]}
    source = ColumnDataSource(data)
    for i in occurring:
        shape = VBar(
            x="worker",
            bottom=f"b{i}",
            top=f"t{i}",
            width=0.84,
            fill_color=_FATE_COLOURS[i],
            line_color=LIGHT["dim"],
            line_width=0.4,
            hatch_pattern=_FATE_HATCHES[i],
            hatch_color=LIGHT["paper"],
            hatch_alpha=0.9,
            hatch_scale=7,
        )
        bar = _draw(plot, shape, source, name=f"fate {i}")
        _add_tips(plot, bar, ("worker", "@worker"), (FATES[i], f"@n{i} of @total tasks"))
    return plot


def lateness(rows: Sequence[Share]) -> Any:
    """Return the figure of the seconds after which cancelled messages would have come: median and largest."""
    plot = new_figure("worker", "seconds late", 190, drag=None, integers="x", x_range=Range1d(-0.6, len(rows) - 0.4))
    late, latest = [row.late for row in rows], [row.latest for row in rows]
    source = ColumnDataSource({"worker": np.arange(len(rows)), "late": late, "latest": latest})
    look: ByName = {"source": source, "line_color": COLOURS[1]}
    plot.segment("worker", "late", "worker", "latest", line_width=1.5, **look)
    dots = plot.scatter("worker", "late", size=7, fill_color=COLOURS[1], **look)
    plot.scatter("worker", "latest", size=8, marker="dash", **look)
    _add_tips(plot, dots, ("worker", "@worker"), ("median", "@late{0.0000} s"), ("largest", "@latest{0.0000} s"))
    plot.y_range.start = 0
    return plot


def residuals(step: Floats, residual: Floats) -> Any:
    """Return the figure of the residual of each step."""
    keep = _thinned(len(step))
    plot = new_figure("step", "residual", 230)
    source = ColumnDataSource({"step": step[keep], "residual": residual[keep]})
    plot.line("step", "residual", source=source, line_color=COLOURS[0], line_alpha=0.5)
    dots = plot.scatter("step", "residual", source=source, size=4, fill_color=COLOURS[0], line_color=COLOURS[0])
    _add_tips(plot, dots, ("step", "@step"), ("residual", "@residual{0.0000}"))
    plot.y_range.start = 0
    return plot


def staleness(counts: Mapping[int, int]) -> Any:
    """Return the figure of the staleness of used messages, in versions."""
    plot = new_figure("versions old", "share of messages", 230, drag=None, integers="x")
    number = np.array(list(counts.values()))
    source = ColumnDataSource({"old": list(counts), "count": number, "share": number / number.sum()})
    bars = plot.vbar("old", top="share", width=0.86, source=source, fill_color=COLOURS[0], line_color=None)
    _add_tips(plot, bars, ("versions old", "@old"), ("messages", "@count"), ("share", "@share{0.0 %}"))
    plot.y_range.start = 0
    return plot
