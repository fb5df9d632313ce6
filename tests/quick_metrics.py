"""scikit-learn's area under the curve and mean squared error, with the same bits in a tenth of the time.

Its checks of what it is given take longer than the simulated step that is evaluated, and tests evaluate a hundred thousand.
What is not plain is left to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_own: list[Callable[..., float]] = []


def _plain(y: Any, scores: Any) -> bool:
    """Whether both are finite floats in a row, of more than one sample."""
    return all(
        type(values) is np.ndarray and values.dtype == np.float64 and values.ndim == 1 and np.isfinite(values).all()
        for values in (y, scores)
    ) and bool(y.size == scores.size > 1)


def area_under_curve(roc_auc_score: Callable[..., float], y: Any, scores: Any) -> float:
    """As ``roc_auc_score`` computes it: the trapezoids of a curve without points on straight lines."""
    if not _plain(y, scores) or np.unique(y).size != 2:
        return roc_auc_score(y, scores)
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), y.size - 1)  # of the samples that share a score
    hits = np.cumsum(y[order] == y.max())[ends].astype(np.float64)
    misses = 1.0 + ends - hits
    if hits.size > 2:
        corners = np.concatenate(([True], (np.diff(misses, 2) != 0) | (np.diff(hits, 2) != 0), [True]))
        hits, misses = hits[corners], misses[corners]
    hits, misses = np.append(0.0, hits), np.append(0.0, misses)
    return float(np.trapezoid(hits / hits[-1], misses / misses[-1]))


def squared_error(mean_squared_error: Callable[..., float], y: Any, scores: Any) -> float:
    """As ``mean_squared_error`` computes it."""
    if not _plain(y, scores):
        return mean_squared_error(y, scores)
    return float(np.average((y - scores).reshape(-1, 1) ** 2, axis=0)[0])


def install() -> None:
    """Have whoever imports these functions from scikit-learn get the quick ones, once scikit-learn is imported."""
    metrics = sys.modules.get("sklearn.metrics")
    if _own or metrics is None or not hasattr(metrics, "mean_squared_error"):
        return
    area, error = metrics.roc_auc_score, metrics.mean_squared_error
    _own.extend((area, error))
    metrics.roc_auc_score = lambda y, scores, **more: (
        area(y, scores, **more) if more else area_under_curve(area, y, scores)
    )  # type: ignore[attr-defined]
    metrics.mean_squared_error = lambda y, scores, **more: (
        error(y, scores, **more) if more else squared_error(error, y, scores)
    )  # type: ignore[attr-defined]
