"""Pictures: the metric against seconds on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyk.errors import BadInput, MissingPackage
from anyk.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#3b6fb6", "#d1603d", "#3f9b6c", "#8a5fb0", "#b08a2e", "#4aa3b5", "#b0487a", "#6b6b6b")


def new_figure(size: tuple[float, float], what: str, *, columns: int = 1) -> tuple[Figure, Any]:
    """An empty figure and its axes; without matplotlib, one sentence that says what it is needed for."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage("matplotlib", "plot", what) from None
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns)


def save(figure: Figure, path: str | Path | None) -> None:
    """Write a picture; its ending chooses the kind."""
    if path is None:
        return
    try:
        figure.savefig(path, dpi=140)
    except (OSError, ValueError) as error:
        raise BadInput(f"the picture '{path}' cannot be written ({error})") from None


def plot(
    runs: Run | Sequence[Run], path: str | Path | None = None, *, of: Literal["metric", "loss"] = "metric"
) -> Figure:
    """Draw metric (or loss: asked for, or without held-out data) against the seconds at which each version was made.

    One line a run. ``path`` saves the picture; its ending chooses the kind. Raises
    :class:`~anyk.errors.MissingPackage` without matplotlib.
    """
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    if not chosen:
        raise BadInput("there is no run to draw")
    figure, axes = new_figure((8.6, 5.0), "drawing a picture")
    config = chosen[0].config
    name = chosen[0].metric_name if chosen[0].metric and of == "metric" else "loss"
    for i, run in enumerate(chosen):
        history = run.history
        good = ~np.isnan(history[name])
        times, values = history["seconds"][good], history[name][good]
        colour = COLOURS[i % len(COLOURS)]
        label = f"{run.config['strategy']}  ({run.steps} steps, {run.seconds:.1f} s)"
        axes.plot(times, values, color=colour, lw=1.8, label=label, marker="o" if len(times) < 40 else None, ms=3)
        if run.time_to_target is not None and of == "metric":
            reached = values[np.searchsorted(times, run.time_to_target)]
            axes.plot(run.time_to_target, reached, marker="o", ms=9, mfc="none", mec=colour, mew=2)
    target = config.get("target")
    if target is not None and of == "metric":
        axes.axhline(target, color="0.5", lw=0.9, ls="--")
        axes.annotate(
            f"target {target:g}", (1.0, target), xycoords=("axes fraction", "data"), xytext=(-4, 3),
            textcoords="offset points", ha="right", va="bottom", color="0.4", fontsize=9,
        )  # fmt: skip
    made = config.get("problem") or {}
    data = ", ".join(part for part in (made.get("data", "data"), made.get("model")) if part)
    clock = "virtual seconds" if str(config.get("cluster", "")).startswith("simulated") else "wall-clock seconds"
    axes.set_xlabel(clock)
    axes.set_ylabel({"auc": "AUC on held-out rows", "accuracy": "accuracy on held-out rows"}.get(name, name))
    axes.set_xlim(left=0)
    if name in ("mse", "loss"):
        axes.set_yscale("log")
    delays = config.get("delays")
    axes.set_title(
        f"{data}: n = {config.get('workers')} workers, delays {delays}, seed {config.get('seed')}",
        fontsize=11,
        loc="left",
    )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right" if name in ("mse", "loss") else "lower right", fontsize=9)
    save(figure, path)
    return figure
