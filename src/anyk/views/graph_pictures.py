"""Graphs of neighbours, in words and as pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anyk.graphs import Mixing
from anyk.views.style import COLOURS, picture

_WIDE = 20  # workers up to which the matrix is printed


def graph_text(graph: Mixing) -> str:
    """Return the neighbours of each worker, the matrices and zeta as text."""
    n, rounds = graph.workers, len(graph.rounds)
    lines = [f"{graph.spec}: {n} nodes" + (f", {rounds} matrices in turn" if rounds > 1 else "")]
    lines.append(f"zeta {graph.zeta:.6g}  (spectral gap {1 - graph.zeta:.6g}; {graph.degree:.3g} neighbours a round)")
    for k, matrix in enumerate(graph.rounds):
        directed = not np.allclose(matrix, matrix.T)
        head = f"round {k}: " if rounds > 1 else ""
        shown = [f"{i} <- {' '.join(map(str, graph.neighbours(i, k))) or 'no node'}" for i in range(min(n, _WIDE))]
        lines.append(f"{head}{'directed' if directed else 'undirected'}; " + "; ".join(shown) + (" …" * (n > _WIDE)))
        if n <= _WIDE and rounds == 1:
            lines += [" ".join(f"{value:5.3f}" if value else "    ." for value in row) for row in matrix]
    return "\n".join(lines)


def draw_graph(graph: Mixing, path: str | Path) -> None:
    """Draw nodes on a circle with edges as wide as their weights, and the matrix beside it."""
    with picture(path, (9.6, 4.6), "drawing a graph", columns=2) as (figure, (circle, grid)):
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
        grid.set_xlabel("node that reads")
        grid.set_ylabel("node that is read")
        label = "weight" + (", mean of the rounds" if len(graph.rounds) > 1 else "")
        figure.colorbar(image, ax=grid, shrink=0.8, label=label)
