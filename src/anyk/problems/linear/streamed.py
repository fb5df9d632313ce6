"""Linear models on streams, and partial gradients of rows that are read or drawn when they are needed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from anyk.errors import BadInput, RunFailed, describe_error
from anyk.problems.base import Array, Ends, Vector
from anyk.problems.batches import Batches
from anyk.problems.data.sample_batches import Arrays, PartitionSamples
from anyk.problems.data.streams import Stream, StreamSamples
from anyk.problems.linear.row_partitions import losses_of, slope_of
from anyk.problems.linear.scaling import Scaling, with_intercept
from anyk.problems.linear.sharded import ShardRows


class StreamRows(StreamSamples):
    """The rows of a linear model's stream, used in the place of ``X`` and ``y``.

    Samples are pairs (x, y): numbers of shape (columns,), and one number. ``classes``: the labels, None for values.
    """

    def __init__(
        self, stream: Stream, kind: str, classes: Array | None, *, intercept: bool, scaling: Scaling | None
    ) -> None:
        super().__init__(stream, lambda samples: Arrays(_stacked(samples), tuple))
        X, y = self.head.arrays
        self.dtype, self.features = np.dtype(X.dtype), int(X.shape[1])
        if scaling is not None and len(scaling.scale) != self.features:
            raise BadInput(f"scaling is of {len(scaling.scale)} columns, the stream's samples have {self.features}")
        self.shape = len(self), self.features + intercept
        _targets(kind, classes, y)
        self._form = partial(self._rows, kind, classes, intercept, scaling)

    def _rows(
        self, kind: str, classes: Array | None, intercept: bool, scaling: Scaling | None, samples: list[Any]
    ) -> Arrays:
        """Return samples in the columns of the model."""
        X, y = _stacked(samples)
        if X.shape[1] != self.features:
            raise RunFailed(f"samples of the stream have {X.shape[1]} columns, the first ones {self.features}")
        X = X.astype(self.dtype, copy=False)
        if scaling is not None:
            X = scaling.apply(X)
        y = _targets(kind, classes, y).astype(self.dtype, copy=False)
        return Arrays([with_intercept(X) if intercept else X, y], tuple)


class LinearBatches(Batches):
    """A linear model's shards or stream in partitions; see :class:`~anyk.problems.base.Partitions`.

    Only the blocks read last are in memory. Supports are all coordinates.
    """

    def __init__(
        self,
        kind: str,
        outputs: int,
        data: ShardRows | StreamRows,
        ends: Ends,
        *,
        penalty: float | Vector = 0.0,
    ) -> None:
        super().__init__(data, ends, dimension=data.shape[1] * outputs, dtype=data.dtype)
        self.kind, self.outputs, self.penalty = kind, outputs, penalty

    def gradient_sum(self, w: Vector, chosen: PartitionSamples) -> Vector:
        """Return the gradient of the sum of losses, added up block by block."""
        W = w if self.outputs == 1 else w.reshape(-1, self.outputs)
        total = np.zeros_like(W)
        for part in chosen.parts(self.most):
            X, y = part.batch
            total += X.T @ slope_of(self.kind, X @ W, y)
        return total.reshape(-1)

    def loss_sum(self, w: Vector, chosen: PartitionSamples) -> float:
        """Return the sum of losses, added up block by block."""
        W = w if self.outputs == 1 else w.reshape(-1, self.outputs)
        batches = (part.batch for part in chosen.parts(self.most))
        return float(sum(losses_of(self.kind, X @ W, y).sum() for X, y in batches))


def _targets(kind: str, classes: Array | None, y: Array) -> Vector:
    """Return a stream's targets as the model needs them; raise :class:`~anyk.errors.BadInput` for unknown labels."""
    values = y.astype(float)
    if not np.isfinite(values).all():
        raise BadInput("the stream's targets must be finite numbers")
    if classes is None:
        return values
    unknown = np.setdiff1d(values, classes)
    if unknown.size:
        raise BadInput(f"the stream has labels that are not in classes: {unknown.tolist()}")
    return np.where(values == classes[1], 1.0, -1.0) if kind == "logistic" else values


def _stacked(samples: list[Any]) -> list[Array]:
    """Return samples as rows and targets; raise :class:`~anyk.errors.BadInput` if they are no such pairs."""
    must = "samples of a linear model's stream must be pairs (x, y), equally many numbers and a target"
    try:
        xs, ys = zip(*samples, strict=True)
        X, y = np.stack([np.asarray(x) for x in xs]), np.stack([np.asarray(target) for target in ys])
    except (TypeError, ValueError) as error:
        raise BadInput(f"{must}: {describe_error(error)}") from None
    if X.ndim != 2 or y.ndim != 1 or X.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        raise BadInput(f"{must}, got x of shape {X.shape[1:]} ({X.dtype}) and y of shape {y.shape[1:]} ({y.dtype})")
    if not np.isfinite(X).all():
        raise BadInput("samples of the stream have values that are NaN or infinite; drop or fill those")
    return [X if X.dtype == np.float32 else X.astype(float, copy=False), y]
