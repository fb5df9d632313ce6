"""Linear models on streams: rows that workers draw, and partial gradients of mini-batches of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput, RunFailed, told
from anyk.problems.base import Index, Vector
from anyk.problems.data.streams import NO_PARTS, SAMPLES, Draws, Stream
from anyk.problems.linear.partitions import slope_of
from anyk.problems.linear.scaling import Scaling, with_intercept

Targets = Callable[[NDArray[Any]], Vector]  # from what samples hold to what the model learns


class StreamRows:
    """The rows of a linear model's stream, in the place of its ``X`` and ``y``.

    Samples are pairs (x, y): numbers of shape (columns,), and one number. ``targets``: how the model has y.
    """

    def __init__(self, stream: Stream, targets: Targets, *, intercept: bool, scaling: Scaling | None) -> None:
        self._draws, self._targets, self._intercept, self._scaling = Draws(stream), targets, intercept, scaling
        X, y = _stacked(self._draws.head)
        self.dtype = np.dtype(X.dtype)
        self.features = int(X.shape[1])
        if scaling is not None and len(scaling.scale) != self.features:
            raise BadInput(f"scaling is of {len(scaling.scale)} columns, the stream's samples have {self.features}")
        self.shape = SAMPLES, self.features + intercept
        targets(y)

    def drawn(self, partitions: range, rows: Index | None) -> tuple[Any, Vector]:
        """A mini-batch, in equal parts of these partitions."""
        return self._formed(self._draws.drawn(partitions, rows))

    def some(self, samples: int, of: str) -> tuple[Any, Vector]:
        """So many samples of partition 0."""
        return self._formed(self._draws.some(samples, of))

    @property
    def digest(self) -> str:
        """What tells the stream from others."""
        return self._draws.digest

    def _formed(self, samples: list[Any]) -> tuple[Any, Vector]:
        X, y = _stacked(samples)
        if X.shape[1] != self.features:
            raise RunFailed(f"samples of the stream have {X.shape[1]} columns, the first ones {self.features}")
        X = X.astype(self.dtype, copy=False)
        if self._scaling is not None:
            X = self._scaling.apply(X)
        return with_intercept(X) if self._intercept else X, self._targets(y).astype(self.dtype, copy=False)


class LinearStreamPartitions:
    """A linear model's stream in partitions; see :class:`~anyk.problems.base.Partitions`. Mini-batches only."""

    def __init__(
        self, kind: str, outputs: int, rows: StreamRows, sizes: Sequence[int], *, penalty: float | Vector = 0.0
    ) -> None:
        self.kind, self.outputs, self.penalty, self.sizes = kind, outputs, penalty, tuple(sizes)
        self.dtype, self.dimension = rows.dtype, rows.shape[1] * outputs
        self._rows = rows
        self._first, self._spanned = 0, 1  # the number of its first partition, and how many each of its own is
        self.tolerance = 0.0

    def piece(self, first: int, last: int) -> LinearStreamPartitions:
        """See :class:`~anyk.problems.base.Partitions`."""
        made = copy(self)
        made.sizes = (sum(self.sizes[first : last + 1]),)
        made._first, made._spanned = self._first + first, last - first + 1
        return made

    def load(self, partitions: Sequence[int]) -> None:
        """See :class:`~anyk.problems.base.Partitions`; samples are drawn when they are needed."""

    def compare_replicas(self) -> None:
        """See :class:`~anyk.problems.base.Partitions`; nothing is computed before the run."""
        self.tolerance = float(np.finfo(self.dtype).eps) ** 0.5

    def check_partial_loss(self) -> None:
        """See :class:`~anyk.problems.base.Partitions`."""
        raise BadInput(NO_PARTS)

    def support(self, partition: int) -> Index | None:
        """All coordinates."""
        del partition
        return None  # as opposed to an index of some

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """See :class:`~anyk.problems.base.Partitions`."""
        first = self._first + partition
        X, y = self._rows.drawn(range(first, first + self._spanned), rows)
        W = w if self.outputs == 1 else w.reshape(-1, self.outputs)
        return np.asarray(X.T @ slope_of(self.kind, X @ W, y)).reshape(-1)


def targets_of(kind: str, classes: NDArray[Any] | None, y: NDArray[Any]) -> Vector:
    """A stream's targets as the model has them; raises :class:`~anyk.errors.BadInput` for labels it does not know."""
    values = y.astype(np.float64)
    if not np.isfinite(values).all():
        raise BadInput("the stream's targets must be finite numbers")
    if classes is None:
        return values
    unknown = np.setdiff1d(values, classes)
    if unknown.size:
        raise BadInput(f"the stream has labels that are not in classes: {unknown.tolist()}")
    return np.where(values == classes[1], 1.0, -1.0) if kind == "logistic" else values


def _stacked(samples: list[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Samples as rows and targets; raises :class:`~anyk.errors.BadInput` where they are no pairs of such."""
    try:
        xs, ys = zip(*samples, strict=True)
        X, y = np.stack([np.asarray(x) for x in xs]), np.stack([np.asarray(one) for one in ys])
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"samples of a linear model's stream must be pairs (x, y), equally many numbers and a target: {told(error)}"
        ) from None
    if X.ndim != 2 or y.ndim != 1 or X.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        raise BadInput(
            "samples of a linear model's stream must be pairs (x, y), equally many numbers and a target, got x of "
            f"shape {X.shape[1:]} ({X.dtype}) and y of shape {y.shape[1:]} ({y.dtype})"
        )
    if not np.isfinite(X).all():
        raise BadInput("samples of the stream have values that are NaN or infinite; drop or fill those")
    return X if X.dtype == np.float32 else X.astype(np.float64, copy=False), y
