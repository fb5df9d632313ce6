"""A network with one hidden layer, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Floats, Vector
from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.problems.base import Ends, Recipe, cut
from anyk.problems.batches import Batches
from anyk.problems.data.dataset import Dirichlet
from anyk.problems.data.sample_batches import Arrays, PartitionSamples
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.streams import Stream
from anyk.problems.linear.regression import SoftmaxRegression, ordered_rows
from anyk.problems.linear.row_partitions import losses_of, softmax_slope
from anyk.problems.predicting import Predictor, layers_of, scores_of


class TwoLayerPartitions(Batches):
    """A network's training rows in partitions; see :class:`~anyk.problems.base.Partitions`."""

    def __init__(self, X: Any, y: Vector, ends: Ends, hidden: int, outputs: int) -> None:
        dtype = np.dtype(X.dtype)
        self._shape = X.shape[1], hidden, outputs
        data = Arrays([X, np.ascontiguousarray(y, dtype=dtype)], tuple)
        super().__init__(data, ends, dimension=dimension(*self._shape), dtype=dtype)

    def gradient_sum(self, w: Vector, chosen: PartitionSamples) -> Vector:
        """Return the gradient of the sum of losses, by backpropagation."""
        X, y = next(chosen.parts(None)).batch
        gradient = np.empty_like(w)
        first, bias, second, offset = layers_of(w, *self._shape)
        first_out, bias_out, second_out, offset_out = layers_of(gradient, *self._shape)
        active = np.tanh(X @ first + bias)
        slope = softmax_slope(active @ second + offset, y)
        np.matmul(active.T, slope, out=second_out)
        slope.sum(axis=0, out=offset_out)
        back = slope @ second.T
        back *= 1.0 - active * active
        first_out[:] = X.T @ back
        back.sum(axis=0, out=bias_out)
        return gradient

    def loss_sum(self, w: Vector, chosen: PartitionSamples) -> float:
        """Return the sum of losses."""
        X, y = next(chosen.parts(None)).batch
        return float(losses_of("two-layer", scores_of(X, w, *self._shape), y).sum())


def dimension(features: int, hidden: int, outputs: int) -> int:
    """Return the number of weights and biases."""
    return (features + 1) * hidden + (hidden + 1) * outputs


@typed
class TwoLayerNetwork(SoftmaxRegression):
    """Classification by a network with one hidden layer: ``softmax(tanh(X A + a) B + b)``, cross-entropy; not convex.

    ``hidden`` is the number of hidden units; the initial weights are normal random numbers (by ``seed``) with standard
    deviation 1/sqrt(inputs of the layer), biases are zero. The model is A, a, B, b, row by row, as one flat vector.
    Raises :class:`~anyk.BadInput` for the same input as softmax regression.

    >>> import numpy as np
    >>> problem = TwoLayerNetwork(np.eye(4), [0, 1, 2, 1], hidden=3)
    >>> problem.dimension, round(problem.loss(np.zeros(problem.dimension)), 6)
    (27, 1.098612)
    """

    kind = "two-layer"

    def __init__(
        self,
        X: Any,
        y: ArrayLike,
        *,
        hidden: AtLeastOne = 32,
        seed: int = 0,
        l2: float = 0.0,
        X_test: Any = None,
        y_test: ArrayLike | None = None,
        recipe: Recipe | None = None,
        split: Dirichlet | str | None = None,
    ) -> None:
        if isinstance(X, Shards | Stream):
            raise BadInput(
                "a two-layer network is for data in memory; use a linear model or TorchProblem with shards and streams"
            )
        super().__init__(X, y, l2=l2, X_test=X_test, y_test=y_test, recipe=recipe, split=split)
        self.hidden, self.seed = hidden, seed
        self.dimension = dimension(*self._shape)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return int(self.X.shape[1]), self.hidden, self.outputs

    def split(  # type: ignore[override]
        self, partitions: int, shares: Sequence[int] | None = None
    ) -> TwoLayerPartitions:
        """Divide the rows into partitions; raise :class:`~anyk.BadInput` for fewer rows than partitions."""
        ends = cut(self.samples, partitions, shares)
        return TwoLayerPartitions(*ordered_rows(self, ends)[:2], ends, self.hidden, self.outputs)

    def predictor(self) -> Predictor:
        return replace(super().predictor(), hidden=self.hidden)

    def initial(self) -> Vector:
        """Return small random weights, determined by the seed; zeros would make all hidden units alike."""
        w = np.zeros(self.dimension, dtype=self.dtype)
        random = keyed_generator(self.seed, "two-layer")
        first, _, second, _ = layers_of(w, *self._shape)
        first[:] = random.standard_normal(first.shape) / max(1, first.shape[0]) ** 0.5
        second[:] = random.standard_normal(second.shape) / second.shape[0] ** 0.5
        return w

    def smoothness(self, *, tol: float = 1e-3) -> float:
        """Return an estimate of the curvature, based on the linear problem's: the objective's has no useful bound.

        Softmax regression on the hidden layer, whose activations are at most 1, is bounded by ``(hidden + 1) / 2``; the
        first layer adds the curvature of the data.
        """
        return 0.5 * (self.hidden + 1) + super().smoothness(tol=tol)

    def _scores(self, X: object, w: Vector) -> Floats:
        return scores_of(X, w, *self._shape)
