"""The seconds of a step on numbers of nodes, as a table, in sentences and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anyk.fleet import WAYS, ScaleResult, StepSeconds, Way, seconds_text
from anyk.views.columns import Columns
from anyk.views.style import COLOURS, LIGHT, name_ticks, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REASONS = 3  # numbers of nodes without the strategy of which the reason is told
_LOOKS: dict[Way, tuple[str, str]] = {"star": ("^", "--"), "slices": ("o", "-"), "all-reduce": ("s", "-.")}
SCALE_NOTE = (
    "star: rank 0 reads all sums and sends the model; slices: each node holds a part of the sums, the model and the "
    "optimiser's state; all-reduce: DistributedDataParallel, which computes everything once and waits for all; no "
    "network: computing and delays alone. Assumed are one worker on a node, links that share nothing, and programs "
    "that keep up with them ('anyk cluster check' measures that)"
)


def scale_table(scaling: ScaleResult) -> Columns:
    """Return a row for each number of nodes; cells without seconds have a dash, and a sentence says why."""
    rows = [
        [
            str(row.nodes),
            *(_cell(row.of(way)) for way in WAYS),
            row.best or "",
            _cell(row.waiting),
            _cell(row.waiting_for_all),
        ]
        for row in scaling.rows
    ]
    ways = [f"{way} s" for way in WAYS]
    return Columns(["nodes", *ways, "least", "no\nnetwork s", "no network,\nuncoded s"], rows)


def _cell(value: StepSeconds) -> str:
    if value.seconds is None:
        return "–"
    return seconds_text(value.seconds) + (f" ± {2 * value.error:.1g}" if value.error else "")


def scale_lines(scaling: ScaleResult) -> list[str]:
    """Return what was asked, which way takes least time with how many nodes, and what to bear in mind."""
    network = scaling.network
    latency = f", latency {1e3 * network.latency:g} ms" if network.latency else ""
    computing = f", {scaling.compute:g} s of computing at load 1" if scaling.compute else ""
    lines = [
        f"{scaling.strategy}: vectors of {scaling.size / 1e6:,.6g} MB ({scaling.parameters:g} parameters, "
        f"{scaling.dtype}), links that carry {network.bandwidth / 1e6:,.4g} MB/s each way{latency}, "
        f"delays {scaling.delays}{computing}"
    ]
    if scaling.copies > 1:
        lines.append("each slice at two nodes, which both read their parts of all sums for it")
    lines += _verdicts(scaling)
    if scaling.slow > 1:
        last = scaling.rows[-1].nodes
        costs = scaling.slow_node_costs(last)
        lines.append(
            f"one node computes and sends {scaling.slow:g} times slower. With {last} nodes, everybody waits "
            f"{seconds_text(costs['slices'])} s more in each step for the slice of the model that it holds, and "
            f"{seconds_text(costs['all-reduce'])} s more for the ring; its own sums may come from a replica, if there "
            "is one"
        )
    missing = [row for row in scaling.rows if row.reason]
    lines += [f"{row.nodes} nodes: {row.reason}" for row in missing[:_REASONS]]
    if len(missing) > _REASONS:
        lines.append(f"and so for {', '.join(str(row.nodes) for row in missing[_REASONS:])} nodes")
    if reasons := {row.slices.reason for row in scaling.rows if row.slices.reason and not row.reason}:
        lines.append(f"no slices with '{scaling.strategy}': {'; '.join(sorted(reasons))}")
    if not scaling.exact:
        lines.append(
            f"steps of '{scaling.strategy}' are not the exact sum of all gradients, as those of the all-reduce are: "
            "fewer seconds a step need not be fewer seconds to the same loss"
        )
    return lines


def _verdicts(scaling: ScaleResult) -> list[str]:
    """Return, for each way, with how many nodes it takes least time."""
    names: dict[Way, str] = {"star": "the star", "slices": "slices", "all-reduce": "the all-reduce"}
    lines, nowhere = [], []
    for way in WAYS:
        spans = [str(first) if first == last else f"{first} to {last}" for first, last in scaling.wins(way)]
        if spans:
            verb = "take" if way == "slices" else "takes"
            lines.append(f"{names[way]} {verb} least time with {', '.join(spans)} nodes")
        else:
            nowhere.append(names[way])
    if lines and nowhere:
        lines[-1] += f"; {' and '.join(nowhere)} with none of those tried"
    return lines


def draw_scale(scaling: ScaleResult, path: str | Path | None) -> Figure:
    """Draw the seconds of a step against the number of nodes, a line for each way, and what takes no network."""
    with picture(path, (8.6, 5.0)) as (figure, axes):
        for i, way in enumerate(WAYS):
            points = [(row.nodes, row.of(way).seconds) for row in scaling.rows if row.of(way).seconds is not None]
            if points:
                marker, dash = _LOOKS[way]
                label = f"{way}, uncoded" if way == "all-reduce" else f"{way}, {scaling.strategy}"
                axes.plot(*zip(*points, strict=True), color=COLOURS[i], marker=marker, ls=dash, label=label)
        waiting = [(row.nodes, row.waiting.seconds) for row in scaling.rows if row.waiting.seconds]
        if waiting:
            axes.plot(*zip(*waiting, strict=True), color=LIGHT["dim"], ls=":", label=f"no network, {scaling.strategy}")
        axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds a step")
        counts = [row.nodes for row in scaling.rows]
        name_ticks(axes.yaxis)
        axes.set_xticks(counts, labels=[str(count) for count in counts])
        axes.set_xticks([], minor=True)
        axes.set_title(
            f"{scaling.parameters:g} parameters, links of {scaling.network.bandwidth / 1e6:,.4g} MB/s, "
            f"delays {scaling.delays}"
        )
        figure.legend(loc="outside lower left", ncols=2)
    return figure
