"""The training rows of linear models in partitions, and their partial gradients."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Floats, Vector
from anyk.problems.base import Ends, Index, PartitionAbilities, stacked

_SPARSE = 0.5  # a partition that touches a smaller share of the columns is stored with these columns alone


class _Assigned(NamedTuple):
    """The rows of an assigned partition, with targets and weights; ``columns``: the columns in ``X``, None for all."""

    X: Any
    y: Vector
    weights: Vector | None
    columns: Index | None


class LinearPartitions(PartitionAbilities):
    """The training rows of a linear model in partitions; see :class:`~anyk.problems.base.Partitions`.

    A sparse partition stores only the columns that it touches, renumbered, so that products run in cache and messages
    have no other coordinates. ``weights``: the weights of the rows.
    """

    def __init__(
        self,
        kind: str,
        outputs: int,
        X: Any,
        y: Vector,
        ends: Ends,
        *,
        weights: Vector | None = None,
    ) -> None:
        self.kind, self.outputs = kind, outputs
        self.features = X.shape[1]
        self.dimension = self.features * outputs
        self.dtype = np.dtype(X.dtype)
        self.sizes = tuple(np.diff(ends).tolist())
        self._parts: list[_Assigned | None] = []
        for a, b in pairwise(ends):
            part_weights = None if weights is None else np.ascontiguousarray(weights[a:b], self.dtype)
            columns, rows = _drop_untouched_columns(X[a:b])
            self._parts.append(_Assigned(rows, np.ascontiguousarray(y[a:b], self.dtype), part_weights, columns))
        self._columns = [piece.columns for piece in self._parts if piece is not None]

    def only(self, partitions: Sequence[int]) -> LinearPartitions:
        """Return a copy with the rows of these partitions alone, and the supports of all."""
        smaller, assigned = copy(self), set(partitions)
        smaller._parts = [piece if j in assigned else None for j, piece in enumerate(self._parts)]
        return smaller

    def adopt(self, other: LinearPartitions) -> None:
        """Add the rows of the partitions that another copy has (:meth:`only`)."""
        self._parts = [present or added for present, added in zip(self._parts, other._parts, strict=True)]

    def piece(self, first: int, last: int) -> LinearPartitions:
        """Return the partitions ``first`` to ``last``, both included, as one partition."""
        parts = [piece for piece in self._parts[first : last + 1] if piece is not None]
        weights = [piece.weights for piece in parts if piece.weights is not None]
        y = np.concatenate([piece.y for piece in parts])
        return LinearPartitions(
            self.kind,
            self.outputs,
            stacked([_with_all_columns(piece, self.features) for piece in parts]),
            y,
            np.array([0, len(y)]),
            weights=np.concatenate(weights) if weights else None,
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
        """Return rows of a partition with their targets, weights and scores."""
        piece = self._parts[partition]
        assert piece is not None, f"partition {partition} is not loaded"
        X, y, weights, columns = piece
        if rows is not None:
            X, y = X[rows], y[rows]
            weights = None if weights is None else weights[rows]
        W = as_matrix(w, self.outputs)
        return X, y, weights, X @ (W if columns is None else W[columns])


def _drop_untouched_columns(X: Any) -> tuple[Index | None, Any]:
    """Return the columns that sparse rows touch, and the rows with these columns alone; None if all are kept."""
    from scipy import sparse

    if sparse.issparse(X):
        touched, new_numbers = np.unique(X.indices, return_inverse=True)
        if touched.size < _SPARSE * X.shape[1]:
            arrays = X.data, new_numbers.astype(np.int32).reshape(-1), X.indptr.astype(np.int32)
            return touched.astype(np.intp), sparse.csr_array(arrays, shape=(X.shape[0], touched.size))
    return None, X


def _with_all_columns(piece: _Assigned, features: int) -> object:
    """Return the rows of a partition with all ``features`` columns, also those that it does not touch."""
    from scipy import sparse

    X, columns = piece.X, piece.columns
    if columns is None:
        return X
    return sparse.csr_array((X.data, columns[X.indices], X.indptr), shape=(X.shape[0], features))


def as_matrix(w: Vector, outputs: int) -> Vector:
    """Return a flat model in the shape (columns, outputs), or unchanged if scores are single numbers."""
    return w if outputs == 1 else w.reshape(-1, outputs)


def losses_of(kind: str, scores: Vector, y: Vector) -> Floats:
    """Return the losses of rows, shape (rows,), from scores of shape (rows,) or (rows, classes)."""
    scores = scores.astype(float, copy=False)
    if kind == "logistic":
        return np.asarray(np.logaddexp(0.0, -y * scores))
    if kind == "least-squares":
        return np.asarray(0.5 * (scores - y) ** 2)
    top = scores.max(axis=1)
    log_sum = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return np.asarray(log_sum - scores[np.arange(len(y)), y.astype(np.intp)])


def slope_of(kind: str, scores: Vector, y: Vector) -> Vector:
    """Return the derivative of losses with respect to scores, in the shape of the scores."""
    if kind == "softmax":
        return softmax_slope(scores, y)
    if kind == "least-squares":
        return scores - y
    # the derivative of log(1 + exp(-y s)) is -y / (1 + exp(y s)); as a tanh it cannot overflow
    return np.asarray(0.5 * y * (np.tanh(0.5 * y * scores) - 1.0))


def softmax_slope(scores: Vector, y: Vector) -> Vector:
    """Return the derivative of the cross-entropy with respect to scores: probabilities minus one-hot labels."""
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(p)), y.astype(np.intp)] -= 1.0
    return np.asarray(p)
