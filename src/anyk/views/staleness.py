"""The staleness of the messages that a run used, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anyk.errors import BadInput
from anyk.runs import Run
from anyk.views.columns import Columns
from anyk.views.style import COLOURS, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 20  # of a table; more values share rows


def staleness_table(counts: Mapping[int, int]) -> Columns:
    """Return messages by staleness (:meth:`Run.staleness`), with their share and the cumulative share.

    >>> staleness_table({0: 30, 1: 10}).rows
    [['0', '30', '75.0 %', '75.0 %'], ['1', '10', '25.0 %', '100.0 %']]
    """
    total, upto = sum(counts.values()), 0
    width = max(counts, default=0) // _ROWS + 1
    rows = []
    for low in range(0, max(counts, default=-1) + 1, width):
        inside = sum(counts.get(value, 0) for value in range(low, low + width))
        upto += inside
        name = str(low) if width == 1 else f"{low} to {low + width - 1}"
        rows.append([name, str(inside), f"{100 * inside / total:.1f} %", f"{100 * upto / total:.1f} %"])
    return Columns(["staleness", "messages", "share", "up to here"], rows)


def mean_staleness(counts: Mapping[int, int]) -> float | None:
    """Return the mean staleness of the messages used; None without messages.

    >>> mean_staleness({0: 30, 1: 10})
    0.25
    """
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else None


def plot_staleness(run: Run, path: str | Path | None = None) -> Figure:
    """Draw the share of messages against their staleness, beside the geometric distribution with the same mean.

    With n workers whose delays are exponential, asynchronous SGD follows the distribution with mean n - 1,
    ``(1/n) (1 - 1/n)^s``: the next reply comes from each worker with equal probability. ``path`` saves the picture.
    Raises :class:`~anyk.errors.MissingPackage` without matplotlib.
    """
    counts = run.staleness()
    mean = mean_staleness(counts)
    if mean is None:
        raise BadInput("the run used no messages yet; there is no staleness to draw")
    with picture(path, (7.0, 4.2), "the picture of staleness") as (figure, axes):
        values = np.arange(max(counts) + 1)
        shares = np.array([counts.get(value, 0) for value in values.tolist()]) / sum(counts.values())
        axes.bar(values, shares, width=0.9, color=COLOURS[0], alpha=0.8, label="messages used")
        p = 1.0 / (1.0 + mean)
        axes.plot(
            values,
            p * (1.0 - p) ** values,
            color=COLOURS[1],
            lw=1.5,
            label=f"geometric distribution with mean {mean:.3g}",
        )
        axes.set_xlabel("staleness (versions)")
        axes.set_ylabel("share of the messages")
        axes.set_title(f"{run.config.strategy}: mean staleness {mean:.3g}")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    return figure
