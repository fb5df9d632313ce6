"""The training rows of linear models in partitions, and their partial gradients."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np

from anyk.problems.base import Ends, Floats, Index, Vector, stacked

_LOCAL = 0.5  # a partition touching less than this share of the coordinates is kept, and answers, on those alone


class LinearPartitions:
    """A linear model's training rows in partitions; see :class:`~anyk.problems.base.Partitions`.

    A sparse partition keeps only the columns it touches, renumbered, so that products run in cache and a reply
    covers nothing else. ``penalty``: the regulariser's factor of each coordinate, for local steps; ``weights``: of the
    rows.
    """

    def __init__(
        self,
        kind: str,
        outputs: int,
        X: Any,
        y: Vector,
        ends: Ends,
        *,
        penalty: float | Vector = 0.0,
        weights: Vector | None = None,
    ) -> None:
        from scipy import sparse

        self.kind, self.outputs, self.penalty = kind, outputs, penalty
        self.features = X.shape[1]
        self.dimension = self.features * outputs
        self.dtype = np.dtype(X.dtype)
        self.sizes = tuple(np.diff(ends).tolist())
        self._y = [np.ascontiguousarray(y[a:b], dtype=self.dtype) for a, b in pairwise(ends)]
        self._weights: list[Vector] | None = None
        if weights is not None:
            self._weights = [np.ascontiguousarray(weights[a:b], dtype=self.dtype) for a, b in pairwise(ends)]
        self._X: list[Any] = []
        self._columns: list[Index | None] = []
        for a, b in pairwise(ends):
            rows: Any = X[a:b]
            columns: Index | None = None
            if hasattr(rows, "indptr"):
                touched, local = np.unique(rows.indices, return_inverse=True)
                if touched.size < _LOCAL * self.features:
                    columns = touched.astype(np.intp)
                    rows = sparse.csr_array(
                        (rows.data, local.astype(np.int32).reshape(-1), rows.indptr.astype(np.int32)),
                        shape=(rows.shape[0], touched.size),
                    )
            self._X.append(rows)
            self._columns.append(columns)

    def only(self, partitions: Sequence[int]) -> LinearPartitions:
        """Return the part that computes these partitions alone."""
        loaded = set(partitions)
        part = copy(self)
        part._X = [X if j in loaded else None for j, X in enumerate(self._X)]
        part._y = [y if j in loaded else np.empty(0, self.dtype) for j, y in enumerate(self._y)]
        if self._weights is not None:
            part._weights = [c if j in loaded else np.empty(0, self.dtype) for j, c in enumerate(self._weights)]
        return part

    def piece(self, first: int, last: int) -> LinearPartitions:
        """Return some consecutive partitions, from ``first`` to before ``last``."""
        from scipy import sparse

        span = slice(first, last + 1)
        parts = self._X[span]
        for place, columns in enumerate(self._columns[span]):
            if columns is not None:
                X = parts[place]
                given = X.data, columns[X.indices], X.indptr
                parts[place] = sparse.csr_array(given, shape=(X.shape[0], self.features))
        y = np.concatenate(self._y[span])
        return LinearPartitions(
            self.kind,
            self.outputs,
            stacked(parts),
            y,
            np.array([0, len(y)]),
            penalty=self.penalty,
            weights=None if self._weights is None else np.concatenate(self._weights[span]),
        )

    def load(self, partitions: Sequence[int]) -> None:
        """Do nothing: the arrays are in memory already."""

    def support(self, partition: int) -> Index | None:
        columns = self._columns[partition]
        if columns is None or self.outputs == 1:
            return columns
        return np.asarray(columns[:, None] * self.outputs + np.arange(self.outputs)).reshape(-1)

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        X, y, weights, scores = self._scored(partition, w, rows)
        slope = slope_of(self.kind, scores, y)
        if weights is not None:
            slope *= weights if self.outputs == 1 else weights[:, None]
        return np.asarray(X.T @ slope).reshape(-1)

    def partial_loss(self, partition: int, w: Vector, rows: Index | None = None, /) -> float:
        """Return the sum of the losses of a partition, or of some of its rows."""
        _, y, weights, scores = self._scored(partition, w, rows)
        losses = losses_of(self.kind, scores, y)
        return float(losses.sum() if weights is None else weights @ losses)

    def _scored(self, partition: int, w: Vector, rows: Index | None) -> tuple[Any, Vector, Vector | None, Vector]:
        """Rows of a partition with their targets, weights and scores."""
        X, y, columns = self._X[partition], self._y[partition], self._columns[partition]
        weights = None if self._weights is None else self._weights[partition]
        if rows is not None:
            X, y = X[rows], y[rows]
            weights = None if weights is None else weights[rows]
        W = w if self.outputs == 1 else w.reshape(self.features, self.outputs)
        return X, y, weights, X @ (W if columns is None else W[columns])


def losses_of(kind: str, scores: Vector, y: Vector) -> Floats:
    """A model's losses of rows, shape (rows,), from scores of shape (rows,) or (rows, classes)."""
    scores = scores.astype(np.float64, copy=False)
    if kind == "logistic":
        return np.asarray(np.logaddexp(0.0, -y * scores))
    if kind == "least-squares":
        return np.asarray(0.5 * (scores - y) ** 2)
    top = scores.max(axis=1)
    log_sum = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return np.asarray(log_sum - scores[np.arange(len(y)), y.astype(np.intp)])


def slope_of(kind: str, scores: Vector, y: Vector) -> Vector:
    """Derivative of a linear model's losses in the scores of rows: shape (rows,), of softmax (rows, classes)."""
    if kind == "softmax":
        return softmax_slope(scores, y)
    return logistic_slope(scores, y) if kind == "logistic" else scores - y


def logistic_slope(scores: Vector, y: Vector) -> Vector:
    """Derivative of ``log(1 + exp(-y s))`` in s: ``-y / (1 + exp(y s))``, by tanh so that nothing overflows."""
    return np.asarray(0.5 * y * (np.tanh(0.5 * y * scores) - 1.0))


def softmax_slope(scores: Vector, y: Vector) -> Vector:
    """Derivative of the cross-entropy in the scores (rows x classes): probabilities less the one-hot labels."""
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(p)), y.astype(np.intp)] -= 1.0
    return np.asarray(p)
