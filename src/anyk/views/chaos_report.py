"""The result of a chaos run, as a table and as a self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anyk import __version__
from anyk.base import as_bad_input, printable
from anyk.views.columns import Columns

if TYPE_CHECKING:
    from anyk.testing import ChaosResult

_BINS = 240  # most columns of the picture
_LEAST = 1.0  # least seconds of a column


def chaos_table(result: ChaosResult) -> Columns:
    """Return the table of the faults: how often each was to occur, and did."""
    rows = [
        [effect.kind, effect.amount, f"{effect.injected:,}", effect.observed or "nothing"] for effect in result.effects
    ]
    return Columns(["fault", "rate", "injected", "observed"], rows)


def chaos_page(result: ChaosResult, path: str | Path) -> Path:
    """Write a self-contained page about a chaos run, and return its path.

    It shows what was promised, injected and observed, and updates per second over time with the faults. Raises
    :class:`~anyk.BadInput` if the file cannot be written, and :class:`~anyk.base.errors.MissingPackage` without
    Jinja2 (``anyk[report]``).
    """
    from anyk.views.page import check_packages, render

    check_packages()
    times, updates = np.array(result.samples, dtype=float).T
    added = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(updates), 0.0))])
    end = max(float(times[-1]), _LEAST)
    edges = np.linspace(0.0, end, min(_BINS, max(1, int(end / _LEAST))) + 1)
    rates = np.diff(np.interp(edges, times, added)) / np.diff(edges)
    lanes = {
        kind: [round(1000 * moment / end, 1) for moment, marked in result.marks if marked == kind]
        for kind in result.faults.kinds
    }
    content = render(
        "chaos",
        result=result,
        version=__version__,
        rates=rates.tolist(),
        highest=max(float(rates.max()), 1e-9),
        mean=float(added[-1]) / end,
        end=end,
        lanes=lanes,
    )
    target = Path(path)
    with as_bad_input(f"the page '{path}' cannot be written"):
        target.write_text(printable(content), encoding="utf-8")
    return target
