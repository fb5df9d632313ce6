"""The coefficients of a linear model as a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyk.problems import Coefficients
from anyk.views.columns import Columns

_ROWS = 100  # of a table; of more columns the largest are shown


def coefficients_table(found: Coefficients) -> tuple[Columns, str]:
    """Intercept and coefficients by column, and a sentence on what is not shown, which may be empty.

    >>> table, _ = coefficients_table(Coefficients(("size",), np.array([[2.0]]), np.array([0.5]), ("price",)))
    >>> table.rows
    [['intercept', '0.5'], ['size', '2']]
    """
    shown, note = np.arange(len(found.names)), ""
    if len(shown) > _ROWS:
        shown = np.sort(np.argsort(-np.abs(found.weights).max(axis=1), kind="stable")[:_ROWS])
        note = f"the {_ROWS} largest of {len(found.names):,} columns; --json - writes all"
    rows = [["intercept", *_texts(found.intercepts)]]
    rows += [[found.names[i], *_texts(found.weights[i])] for i in shown.tolist()]
    return Columns(["column", *found.outputs], rows), note


def coefficients_report(found: Coefficients) -> dict[str, Any]:
    """All of them as plain data, in the shape that ``--json`` writes."""
    return {
        "outputs": list(found.outputs),
        "intercepts": found.intercepts.tolist(),
        "coefficients": [
            {"column": name, "values": row} for name, row in zip(found.names, found.weights.tolist(), strict=True)
        ],
    }


def _texts(values: Any) -> list[str]:
    return [f"{value:.6g}" for value in values.tolist()]
