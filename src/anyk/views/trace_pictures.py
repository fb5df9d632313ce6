"""Delay traces and graphs of workers, in words and as pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anyk.base import BadInput, ByName, Flags, Floats
from anyk.delays import Fit, fit
from anyk.fleet import rounded, spans
from anyk.graphs import Mixing
from anyk.strategies import stragglers
from anyk.views.style import COLOURS, LIGHT, picture


def trace_facts(times: Floats, mu: float, censored: Flags | None = None) -> ByName:
    """Return facts about seconds (rounds x workers): spread, stragglers, their bursts, and delay models that fit."""
    late = stragglers(times, mu)
    bursts = [end - start for column in late.T for start, end in spans(column)]  # in which one worker straggles
    lengths, counts = np.unique(bursts, return_counts=True)
    centred = times - times.mean(axis=0)
    power = (centred**2).sum(axis=0)
    lag = (centred[1:] * centred[:-1]).sum(axis=0)[power > 0] / power[power > 0] if len(times) > 2 else np.empty(0)
    between = float(times.mean(axis=0).var() / times.var()) if times.var() else 0.0
    share = late.mean(axis=0)
    slow = np.argsort(-share, kind="stable")[:5]
    return {
        "rounds": len(times),
        "workers": times.shape[1],
        "mean": float(times.mean()),
        "median": float(np.median(times)),
        "longest": float(times.max()),
        "variation": float(times.std() / times.mean()) if times.mean() else 0.0,
        "autocorrelation": float(lag.mean()) if lag.size else 0.0,
        "between_workers": between,
        "stragglers": float(late.mean()),
        "bursts": dict(zip(lengths.tolist(), counts.tolist(), strict=True)),
        "slowest": [{"worker": int(i), "share": float(share[i])} for i in slow if share[i] > 0],
        "laws": [{"law": rounded(fitted.law, 4), "misfit": fitted.misfit} for fitted in _fits(times, censored)],
    }


def _fits(times: Floats, censored: Flags | None) -> list[Fit]:
    """Return the delay models that fit, the best first; none if the times allow no fit."""
    try:
        return fit(times, censored=censored)
    except BadInput:
        return []


def trace_text(facts: ByName, mu: float) -> str:
    """Return the facts about a trace as text."""
    bursts = ", ".join(f"{length} rounds: {count}" for length, count in list(facts["bursts"].items())[:8]) or "none"
    slow = (
        ", ".join(f"{worker['worker']} ({100 * worker['share']:.0f} %)" for worker in facts["slowest"]) or "no worker"
    )
    lines = [
        f"{facts['rounds']} rounds x {facts['workers']} workers, seconds: mean {facts['mean']:.4g}, median "
        f"{facts['median']:.4g}, longest {facts['longest']:.4g}, variation {facts['variation']:.3g}",
        f"from round to round: autocorrelation {facts['autocorrelation']:.3g}; between workers: "
        f"{100 * facts['between_workers']:.3g} % of the variance",
        f"stragglers (beyond {1 + mu:g} times the fastest of a round): {100 * facts['stragglers']:.3g} %; bursts of "
        + bursts,
        f"most often late: {slow}",
    ]
    lines += [f"law {fitted['law']:<44} misfit {fitted['misfit']:.3f}" for fitted in facts["laws"]]
    if facts["laws"] and facts["laws"][0]["misfit"] > 0.1:
        lines.append("no delay model fits well; plan by replaying the trace")
    return "\n".join(lines)


def draw_trace(times: Floats, path: str | Path, censored: Flags | None, title: str) -> None:
    """Draw a heat map of seconds by worker and round, and their distribution with the delay models that fit best."""
    with picture(path, (11.0, 4.6), columns=2) as (figure, (times_axes, tail_axes)):
        image = times_axes.imshow(
            times.T, aspect="auto", cmap="viridis", vmax=float(np.quantile(times, 0.995)), origin="lower"
        )
        times_axes.grid(False)
        times_axes.set(xlabel="round", ylabel="worker")
        figure.colorbar(image, ax=times_axes, label="seconds (colours end at 99.5 %)")
        values = np.sort(times, axis=None)
        tail_axes.plot(values, 1.0 - np.arange(values.size) / values.size, color=LIGHT["ink"], lw=2.2, label="measured")
        uniforms = np.linspace(0, 1 - 1 / values.size, 2000)
        smooth = [fitted for fitted in _fits(times, censored) if fitted.law.name != "bimodal"]
        for fitted in smooth[:3]:
            label = f"{fitted.law.name}, misfit {fitted.misfit:.2f}"
            tail_axes.plot(np.sort(fitted.law.seconds(uniforms, 0)), 1.0 - uniforms, lw=1.3, label=label)
        tail_axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel="share of tasks that take longer")
        tail_axes.set_ylim(bottom=0.5 / values.size)
        tail_axes.set_xlim(values[values > 0].min() * 0.8, values.max() * 1.3)
        tail_axes.legend()
        figure.suptitle(title)


_WIDE = 20  # workers up to which the matrix is printed


def graph_text(graph: Mixing) -> str:
    """Return the neighbours of each worker, the matrices and zeta as text."""
    n, rounds = graph.workers, len(graph.rounds)
    lines = [f"{graph.spec}: {n} nodes" + (f", {rounds} matrices in turn" if rounds > 1 else "")]
    lines.append(f"zeta {graph.zeta:.6g}  (spectral gap {1 - graph.zeta:.6g}; {graph.degree:.3g} neighbours a round)")
    for k, matrix in enumerate(graph.rounds):
        directed = not np.allclose(matrix, matrix.T)
        head = f"round {k}: " if rounds > 1 else ""
        edges = [f"{i} <- {' '.join(map(str, graph.neighbours(i, k))) or 'no node'}" for i in range(min(n, _WIDE))]
        lines.append(f"{head}{'directed' if directed else 'undirected'}; " + "; ".join(edges) + (" …" * (n > _WIDE)))
        if n <= _WIDE and rounds == 1:
            lines += [" ".join(f"{value:5.3f}" if value else "    ." for value in row) for row in matrix]
    return "\n".join(lines)


def draw_graph(graph: Mixing, path: str | Path) -> None:
    """Draw nodes on a circle with edges as wide as their weights, and the matrix beside it."""
    with picture(path, (9.6, 4.6), columns=2) as (figure, (circle, grid)):
        n = graph.workers
        angle = 2 * np.pi * np.arange(n) / n + np.pi / 2
        x, y = np.cos(angle), np.sin(angle)
        mean = np.mean(graph.rounds, axis=0)
        top = (mean - np.diag(mean.diagonal())).max() or 1.0
        for i, j in np.argwhere(mean):
            if i != j:
                circle.plot(
                    [x[i], x[j]], [y[i], y[j]], color=COLOURS[0], lw=2.2 * mean[i, j] / top, alpha=0.7, zorder=1
                )
        circle.scatter(x, y, s=210, color="white", edgecolor=COLOURS[0], zorder=2)
        for i in range(n):
            circle.text(x[i], y[i], str(i), ha="center", va="center", fontsize=8, zorder=3)
        circle.set_aspect("equal")
        circle.axis("off")
        figure.suptitle(f"{graph.spec}, n = {n}, zeta = {graph.zeta:.4g}")
        image = grid.imshow(mean, cmap="Blues", vmin=0)
        grid.grid(False)
        grid.set(xlabel="node that reads", ylabel="node that is read")
        label = "weight" + (", mean of the rounds" if len(graph.rounds) > 1 else "")
        figure.colorbar(image, ax=grid, shrink=0.8, label=label)
