"""The figures of a report, as Bokeh models; data travels as binary columns, and the page draws what is in sight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
from numpy.typing import NDArray

from anyk.runs.log.tasks import FATES, LATE, LOST, PHASES, Tasks
from anyk.runs.run import Run
from anyk.views.page.account import Heat, Share
from anyk.views.plots import lower_end

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5cc0", "#8c8c8c")
DASHES = ("solid", "dashed", "dotted", "dashdot", "solid", "dashed", "dotted", "dashdot")
MARKS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "plus", "x", "star")
PHASE_COLOURS = dict(zip(PHASES, ("#b9c6d8", "#0072b2", "#e3e3e3", "#e69f00"), strict=True))
FATE_COLOURS = ("#0072b2", "#56b4e9", "#cfcfcf", "#d55e00", "#7f1d1d", "#f2f2f2")
FATE_HATCHES = (" ", "dot", " ", "right_diagonal_line", "cross", "blank")
_POINTS = 4000  # of a curve; more are thinned evenly
_FIRST = 1500  # bars that the timeline shows at first
_MARKS = 8  # symbols along a curve


class Line(NamedTuple):
    """One curve of a figure: its values by seconds and by step, each with a band or None."""

    name: str
    by: dict[str, tuple[NDArray[Any], ...]]  # x, value, low, high


def _base(height: int, **given: Any) -> Any:
    made = figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location="above",
        background_fill_alpha=0.0,
        border_fill_alpha=0.0,
        outline_line_alpha=0.0,
        min_border_left=56,
        min_border_right=12,
        **given,
    )
    made.toolbar.logo = None
    made.toolbar.autohide = True
    for axis in made.axis:
        axis.formatter = _plain_numbers()
    return made


def _plain_numbers() -> CustomJSTickFormatter:
    """Ticks as 0.004 and 0.1, not as 4.000e-3 and a power of ten."""
    return CustomJSTickFormatter(code="return String(Number(tick.toPrecision(6)))")


def _draw(into: Any, glyph: Any, source: ColumnDataSource, **given: Any) -> Any:
    """Add a glyph to a figure, which looks the same when others are chosen.

    The figure's own methods make three more glyphs each, for looks that a report does not have: a third of a page's
    models.
    """
    made = GlyphRenderer(
        data_source=source, glyph=glyph, nonselection_glyph=None, selection_glyph=None, muted_glyph=None, **given
    )
    into.renderers.append(made)
    return made


def _tools(dimensions: Any = "both") -> list[Any]:
    return [
        BoxZoomTool(dimensions=dimensions),
        PanTool(dimensions=dimensions),
        WheelZoomTool(dimensions=dimensions, modifiers={"ctrl": True}),
        ResetTool(),
    ]


def _label(text: str) -> PlainText:
    return PlainText(text=text)  # not parsed for formulas


def _thinned(count: int) -> NDArray[np.int64]:
    every = -(-count // _POINTS)
    return np.unique(np.append(np.arange(0, count, max(every, 1)), max(count - 1, 0)))[:count]


def curves(
    lines: Sequence[Line], value: str, name: str, *, clock: str, target: float | None = None, rises: bool = False
) -> Any:
    """Values against seconds or steps: the page switches between them, and between scales.

    ``rises``: for a metric such as accuracy, of which the axis leaves out the steep beginning.
    """
    made = _base(340, name=name, tools=[], x_range=Range1d(0, 1), y_range=Range1d(0, 1))
    tools = _tools()
    made.add_tools(*tools)
    made.toolbar.active_drag = tools[0]
    for side in ("below", "left"):
        made.add_layout(LogAxis(visible=False, name="log", formatter=_plain_numbers()), side)
    made.xaxis[0].axis_label = made.xaxis[1].axis_label = _label(clock)
    made.yaxis[0].axis_label = made.yaxis[1].axis_label = _label(value)
    low = lower_end([(line.by["seconds"][0], line.by["seconds"][1]) for line in lines]) if rises else None
    made.tags = [clock, "" if target is None else target, "" if low is None else low]
    if target is not None:
        made.hspan(target, line_color="#888888", line_dash="dashed", line_width=1, name="target")
    for i, line in enumerate(lines):
        colour, look = COLOURS[i % len(COLOURS)], i % len(DASHES)
        for axis, (x, y, *band) in line.by.items():
            keep = _thinned(len(x))
            data = {"x": np.asarray(x, float)[keep], "y": np.asarray(y, float)[keep]}
            tags = [axis, i]
            if band:
                data |= {"low": band[0][keep], "high": band[1][keep]}
            source = ColumnDataSource(data, name=f"{axis} {i}")
            if band:
                area = VArea(x="x", y1="low", y2="high", fill_color=colour, fill_alpha=0.18)
                _draw(made, area, source, tags=tags)
            stroke = glyphs.Line(x="x", y="y", line_color=colour, line_width=2.2, line_dash=DASHES[look])
            drawn = _draw(made, stroke, source, name=line.name, tags=tags)
            few = ColumnDataSource({key: data[key][:: max(1, len(keep) // _MARKS)] for key in ("x", "y")})
            mark = Scatter(x="x", y="y", marker=MARKS[look], size=8, fill_color=colour, line_color=colour)
            _draw(made, mark, few, tags=tags)
            tips = [(value, "@y{0.00000}"), ("seconds" if axis == "seconds" else "step", "@x{0.[000]}")]
            tips = [("", "$name"), *tips] if len(lines) > 1 else tips
            tips += [("least to largest", "@low{0.0000} to @high{0.0000}")] if band else []
            made.add_tools(HoverTool(renderers=[drawn], tooltips=tips, mode="vline", line_policy="nearest"))
    return made


def _named(values: Sequence[str]) -> CustomJSHover:
    return CustomJSHover(code=f"return {list(values)!r}[value] ?? ''")


def _duration() -> CustomJSHover:
    return CustomJSHover(
        code="return Math.abs(value) < 0.1 ? (1e3 * value).toPrecision(3) + ' ms' : value.toPrecision(4) + ' s'"
    )


def timeline(run: Run, tasks: Tasks, steps: Mapping[str, NDArray[Any]], name: str) -> Any:
    """A bar for each phase of each task, thick where its message was used; the page finds receipts in these columns."""
    workers = run.config.workers
    end = float(max(tasks.end.max(initial=0.0), run.seconds, 1e-9))
    shown = float(np.sort(tasks.start)[_FIRST]) if len(tasks) > _FIRST else end
    made = _base(
        int(np.clip(15 * workers + 90, 180, 620)),
        name=f"{name} timeline",
        tools=[],
        x_range=Range1d(0.0, max(shown, end / 1e6), bounds=(0.0, end), reset_start=0.0, reset_end=end),
        y_range=Range1d(workers - 0.4, -0.6),
        lod_threshold=20_000,
    )
    tools = _tools("width")
    made.add_tools(*tools)
    made.toolbar.active_drag = tools[0]
    made.xaxis.axis_label, made.yaxis.axis_label = _label("seconds"), _label("worker")
    made.ygrid.visible = False
    made.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    tap = []
    for kind, (which, height) in kinds(tasks).items():
        if not which.any():
            continue
        source = ColumnDataSource(columns(tasks, which, kind), name=f"{name} {kind}")
        view = CDSView(filter=IndexFilter(indices=[0]), name=f"{name} {kind} view")  # the page sets what is in sight
        if kind == "cut":
            bar = HBar(
                y="worker",
                left="start",
                right=expr(Stack(fields=["start", "unknown"])),
                height=height,
                fill_color=None,
                line_color="#c2410c",
                line_width=1.0,
            )
            bars = [_draw(made, bar, source, view=view, name="cut")]
        else:
            bars, fields = [], ["start"]
            for phase, colour in PHASE_COLOURS.items():
                left = fields[0] if len(fields) == 1 else expr(Stack(fields=fields))
                fields = [*fields, phase]
                right = expr(Stack(fields=fields))
                bar = HBar(y="worker", left=left, right=right, height=height, fill_color=colour, line_color=None)
                bars.append(_draw(made, bar, source, view=view, name=phase))
        made.add_tools(_timeline_hover(bars, kind, several=len(tasks.slots) > 1))
        tap += bars
    lost = tasks.fate == LOST
    if lost.any():
        made.scatter(
            tasks.end[lost], tasks.worker[lost], marker="x", size=8, line_color="#b91c1c", line_width=2, name="lost"
        )
    made.vspan(
        "seconds",
        source=ColumnDataSource(dict(steps), name=f"{name} steps"),
        line_color="#1d2733",
        line_alpha=0.35,
        line_width=0.7,
        name="steps",
        visible=False,
    )
    made.add_tools(TapTool(renderers=tap, mode="replace"))
    return made


def kinds(tasks: Tasks) -> dict[str, tuple[NDArray[np.bool_], float]]:
    """Which tasks the timeline draws in which way, and the heights of their bars."""
    return {
        "used": (tasks.finished & (tasks.fate <= LATE), 0.82),
        "spare": (tasks.finished & (tasks.fate > LATE), 0.34),
        "cut": (~tasks.finished, 0.34),
    }


def columns(tasks: Tasks, which: NDArray[np.bool_], kind: str) -> dict[str, NDArray[Any]]:
    """What the timeline and receipts need to know of tasks that are drawn in one way, by the time they began."""
    narrow: dict[str, tuple[NDArray[Any], Any]] = {
        "worker": (tasks.worker, np.uint16),
        "task": (tasks.task, np.int32),
        "version": (tasks.version, np.int32),
        "step": (tasks.step, np.int32),
        "start": (tasks.start, np.float64),
    }
    if kind == "cut":
        narrow |= {"unknown": (tasks.unknown, np.float32), "late": (tasks.late, np.float32)}
    else:
        narrow |= {phase: (getattr(tasks, phase), np.float32) for phase in PHASES}
    if kind == "used":
        narrow |= {"weight": (tasks.weight, np.float32), "work": (tasks.work, np.int32)}
    else:
        narrow["fate"] = tasks.fate, np.uint8
    if kind == "spare" and np.isfinite(tasks.late[which]).any():
        narrow["late"] = tasks.late, np.float32
    if len(tasks.slots) > 1:
        narrow["slot"] = tasks.slot, np.uint8
    rows = np.flatnonzero(which)
    rows = rows[np.argsort(tasks.start[rows], kind="stable")]  # so that the page finds those in sight by halving
    return {name: column[rows].astype(kind) for name, (column, kind) in narrow.items()}


def _timeline_hover(bars: Sequence[Any], kind: str, *, several: bool) -> HoverTool:
    tips = [("worker", "@worker, task @task"), ("model", "version @version")]
    times: list[str]
    if kind == "cut":
        tips += [("fate", "@fate{custom}"), ("seconds until then", "@unknown{custom}"), ("due after", "@late{custom}")]
        times = ["unknown", "late"]
    else:
        tips += [("used", "in step @step, weight @weight{0.[000]}") if kind == "used" else ("fate", "@fate{custom}")]
        tips += [(phase, f"@{phase}{{custom}}") for phase in PHASES]
        times = list(PHASES)
    formatters: dict[str, Any] = {f"@{name}": _duration() for name in times}
    if kind == "cut":
        formatters["@late"] = CustomJSHover(
            code="return isNaN(value) ? 'not known' : 'another ' + value.toPrecision(3) + ' s'"
        )
    if kind != "used":
        formatters["@fate"] = _named(FATES)
    return HoverTool(renderers=list(bars), tooltips=tips, formatters=formatters, limit=3, point_policy="follow_mouse")


def heat_map(heat: Heat, name: str) -> Any:
    """Workers x steps, the lighter the longer."""
    workers, columns = heat.seconds.shape
    start, end = heat.first - 0.5, heat.first - 0.5 + columns * heat.each
    made = _base(
        int(np.clip(11 * workers + 80, 160, 460)),
        name=f"{name} heat",
        tools=[],
        x_range=Range1d(start, end),
        y_range=Range1d(workers - 0.5, -0.5),
    )
    tools = _tools()
    made.add_tools(*tools)
    made.toolbar.active_drag = tools[0]
    known = heat.seconds[np.isfinite(heat.seconds)]
    low, high = (float(np.quantile(known, q)) for q in (0.0, 0.99)) if known.size else (0.0, 1.0)
    colours = LinearColorMapper(Cividis256, low=low, high=max(high, low + 1e-9), nan_color="rgba(0,0,0,0)")
    source = ColumnDataSource(
        {
            "image": [heat.seconds],
            "cut": [heat.cut],
            "x": [start],
            "y": [-0.5],
            "dw": [end - start],
            "dh": [workers],
            "first": [heat.first],
            "each": [heat.each],
        }
    )
    drawn = made.image("image", "x", "y", "dw", "dh", source=source, color_mapper=colours)
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
    form = {
        "$y": CustomJSHover(code="return Math.round(value)"),
        "$x": CustomJSHover(args={"source": source}, code=column),
    }
    made.add_tools(HoverTool(renderers=[drawn], tooltips=tips, formatters=form))
    made.add_layout(ColorBar(color_mapper=colours, width=10, label_standoff=6, padding=4, title="s"), "right")
    made.xaxis.axis_label = _label("step" if heat.by_step else "task of the worker")
    made.yaxis.axis_label = _label("worker")
    made.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    made.grid.visible = False
    return made


def worker_bars(found: Sequence[Share], name: str) -> Any:
    """How each worker's tasks ended, as shares, one bar a worker."""
    fates = np.array([one.fates for one in found], dtype=float)
    total = np.maximum(fates.sum(axis=1), 1)
    made = _base(230, name=f"{name} workers", tools=[], x_range=Range1d(-0.6, len(found) - 0.4), y_range=Range1d(0, 1))
    tools = _tools("width")
    made.add_tools(*tools)
    made.toolbar.active_drag = tools[0]
    data: dict[str, Any] = {"worker": np.arange(len(found)), "total": total}
    bottom = np.zeros(len(found))
    for i in range(len(FATES)):
        if fates[:, i].any():
            top = bottom + fates[:, i] / total
            data |= {f"b{i}": bottom, f"t{i}": top, f"n{i}": fates[:, i]}
            bottom = top
    source = ColumnDataSource(data)
    for i, fate in enumerate(FATES):
        if f"n{i}" in data:
            shape = VBar(
                x="worker",
                bottom=f"b{i}",
                top=f"t{i}",
                width=0.84,
                fill_color=FATE_COLOURS[i],
                line_color="#555555",
                line_width=0.4,
                hatch_pattern=FATE_HATCHES[i],
                hatch_color="#ffffff",
                hatch_alpha=0.9,
                hatch_scale=7,
            )
            bar = _draw(made, shape, source, name=f"fate {i}")
            tips = [("worker", "@worker"), (fate, f"@n{i} of @total tasks")]
            made.add_tools(HoverTool(renderers=[bar], tooltips=tips))
    made.xaxis.axis_label, made.yaxis.axis_label = _label("worker"), _label("share of its tasks")
    made.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    made.xgrid.visible = False
    return made


def lateness(found: Sequence[Share], name: str) -> Any | None:
    """How long after its cut-off a worker's message would have come: median, and a line up to the largest."""
    late = np.array([one.late for one in found])
    if not np.isfinite(late).any():
        return None
    latest = np.array([one.latest for one in found])
    made = _base(190, name=f"{name} lateness", tools=[], x_range=Range1d(-0.6, len(found) - 0.4))
    source = ColumnDataSource({"worker": np.arange(len(found)), "late": late, "latest": latest})
    made.segment("worker", "late", "worker", "latest", source=source, line_color="#d55e00", line_width=1.5)
    dots = made.scatter("worker", "late", source=source, size=7, fill_color="#d55e00", line_color="#d55e00")
    made.scatter("worker", "latest", source=source, size=8, marker="dash", line_color="#d55e00")
    tips = [("worker", "@worker"), ("median", "@late{0.0000} s"), ("largest", "@latest{0.0000} s")]
    made.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    made.xaxis.axis_label, made.yaxis.axis_label = _label("worker"), _label("seconds late")
    made.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    made.y_range.start = 0
    made.xgrid.visible = False
    return made


def residuals(run: Run, name: str) -> Any:
    """The residual of each step."""
    residual, step = run.history["residual"], run.history["step"]
    good = np.isfinite(residual)
    keep = _thinned(int(good.sum()))
    made = _base(230, name=f"{name} residual", tools=[])
    tools = _tools()
    made.add_tools(*tools)
    made.toolbar.active_drag = tools[0]
    source = ColumnDataSource({"step": step[good][keep], "residual": residual[good][keep]})
    made.line("step", "residual", source=source, line_color=COLOURS[0], line_alpha=0.5)
    dots = made.scatter("step", "residual", source=source, size=4, fill_color=COLOURS[0], line_color=COLOURS[0])
    made.add_tools(HoverTool(renderers=[dots], tooltips=[("step", "@step"), ("residual", "@residual{0.0000}")]))
    made.xaxis.axis_label, made.yaxis.axis_label = _label("step"), _label("residual")
    made.y_range.start = 0
    return made


def staleness(counts: dict[int, int], name: str) -> Any:
    """How many versions old the messages were that were used."""
    made = _base(230, name=f"{name} staleness", tools=[])
    values = np.array(list(counts))
    number = np.array(list(counts.values()))
    source = ColumnDataSource({"old": values, "count": number, "share": number / number.sum()})
    bars = made.vbar("old", top="share", width=0.86, source=source, fill_color=COLOURS[0], line_color=None)
    tips = [("versions old", "@old"), ("messages", "@count"), ("share", "@share{0.0 %}")]
    made.add_tools(HoverTool(renderers=[bars], tooltips=tips))
    made.xaxis.axis_label, made.yaxis.axis_label = _label("versions old"), _label("share of messages")
    made.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    made.y_range.start = 0
    return made
