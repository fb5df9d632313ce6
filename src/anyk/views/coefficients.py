"""The coefficients of a linear model as a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyk.problems import Coefficients
from anyk.views.columns import Columns

_ROWS = 100  # of a table, which shows the largest coefficients


def coefficients_table(coefficients: Coefficients) -> tuple[Columns, str]:
    """Return intercept and coefficients by column, and a sentence about omitted columns, which may be empty.

    >>> table, _ = coefficients_table(Coefficients(("size",), np.array([[2.0]]), np.array([0.5]), ("price",)))
    >>> table.rows
    [['intercept', '0.5'], ['size', '2']]
    """
    shown, note = np.arange(len(coefficients.names)), ""
    if len(shown) > _ROWS:
        shown = np.sort(np.argsort(-np.abs(coefficients.weights).max(axis=1), kind="stable")[:_ROWS])
        note = f"the {_ROWS} largest of {len(coefficients.names):,} columns; --json - writes all"
    rows = [["intercept", *_texts(coefficients.intercepts)]]
    rows += [[coefficients.names[i], *_texts(coefficients.weights[i])] for i in shown.tolist()]
    return Columns(["column", *coefficients.outputs], rows), note


def coefficients_report(coefficients: Coefficients) -> dict[str, Any]:
    """Return all coefficients as plain data, in the shape that ``--json`` writes."""
    return {
        "outputs": list(coefficients.outputs),
        "intercepts": coefficients.intercepts.tolist(),
        "coefficients": [
            {"column": name, "values": row}
            for name, row in zip(coefficients.names, coefficients.weights.tolist(), strict=True)
        ],
    }


def _texts(values: Any) -> list[str]:
    return [f"{value:.6g}" for value in values.tolist()]
