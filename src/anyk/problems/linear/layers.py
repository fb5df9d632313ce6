"""The layers of a two-layer network in a flat model, and the scores that they give."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyk.problems.base import Floats, Vector


def layers_of(w: Vector, features: int, hidden: int, outputs: int) -> tuple[Vector, Vector, Vector, Vector]:
    """Return views of a flat model: weights (features x hidden), bias, weights (hidden x outputs), bias."""
    a = features * hidden
    b = a + hidden
    c = b + hidden * outputs
    return w[:a].reshape(features, hidden), w[a:b], w[b:c].reshape(hidden, outputs), w[c:]


def scores_of(X: Any, w: Vector, *shape: int) -> Floats:
    """Return the scores of rows, shape (rows, outputs); ``shape``: numbers of features, hidden units and outputs."""
    first, bias, second, offset = layers_of(w, *shape)
    return np.asarray(np.tanh(X @ first + bias) @ second + offset, dtype=np.float64)
