"""Metrics of linear models; scikit-learn has them too, but importing it takes longer than many a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def auc(y: Floats, scores: Floats) -> float:
    """Area under the ROC curve of ``scores`` for labels ``y`` of two values, the larger one positive.

    The share of pairs of a positive and a negative that are in order, where equal scores count half (Mann and
    Whitney's U). NaN where there is one label only, or a score that is not finite.

    >>> auc(np.array([-1.0, -1.0, 1.0, 1.0]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    positive = y == y.max() if len(y) else np.zeros(0, dtype=bool)
    count = int(positive.sum())
    pairs = count * (len(y) - count)
    if not pairs or not np.isfinite(scores).all():
        return float("nan")
    _, place, equal = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(equal) - (equal - 1) / 2)[place]
    return float((rank[positive].sum() - count * (count + 1) / 2) / pairs)


def mean_squared_error(y: Floats, scores: Floats) -> float:
    """Mean of ``(scores - y)^2``; NaN or infinite where a score is."""
    return float(np.mean((scores - y) ** 2))


def accuracy(y: Floats, scores: Floats) -> float:
    """Share of rows whose largest score, shape (rows, classes), is that of the class ``y``; NaN where one is no number.

    >>> accuracy(np.array([0.0, 1.0]), np.array([[2.0, 1.0], [3.0, 0.0]]))
    0.5
    """
    return float("nan") if np.isnan(scores).any() else float(np.mean(scores.argmax(axis=1) == y))
