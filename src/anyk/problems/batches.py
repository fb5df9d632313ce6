"""Partitions of samples whose gradients are summed batch by batch, and the common part of problems of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Self

import numpy as np

from anyk.arrays import Array, DType, Vector
from anyk.errors import BadInput
from anyk.plain import ByName
from anyk.problems.base import Better, Ends, Index, PartitionAbilities, ProblemAbilities, Recipe, problem_text
from anyk.problems.data.sample_batches import PartitionSamples, Samples
from anyk.problems.data.streams import NO_LOSS, NO_PARTS


class Batches(PartitionAbilities):
    """Samples in partitions; see :class:`~anyk.problems.base.Partitions`.

    A model computes :meth:`gradient_sum` and :meth:`loss_sum` of some samples, at most ``most`` samples at a time.
    """

    custom_code = False  # whether a user's code computes gradients
    _stateful = ""  # a model whose running statistics are over all data, in words
    key = 0  # of random numbers in the next gradient; in a run, of the model's version and the local step

    def __init__(
        self,
        data: Samples,
        ends: Ends,
        *,
        dimension: int,
        dtype: DType,
        most: int | None = None,
    ) -> None:
        self.data, self.most, self.dimension, self.dtype = data, most, dimension, dtype
        self.sizes = tuple(np.diff(ends).tolist())
        self._bounds = list(pairwise(ends.tolist()))
        self._first = 0  # number of the first partition here among all partitions
        self._spanned = 1  # number of the strategy's partitions that each partition here joins
        self._placed: dict[int, Samples] = {}  # samples on the device that computes with them, by partition

    def __getstate__(self) -> ByName:
        return self.__dict__ | {"_placed": {}}

    def gradient_sum(self, w: Vector, chosen: PartitionSamples) -> Vector:
        """Return the gradient at ``w`` of the sum of the samples' losses, shape (dimension,)."""
        raise NotImplementedError

    def loss_sum(self, w: Vector, chosen: PartitionSamples) -> float:
        """Return the sum of the samples' losses at ``w``."""
        raise NotImplementedError

    def load(self, partitions: Sequence[int]) -> None:
        """Prepare these partitions; samples are read when they are needed."""

    def compare_replicas(self) -> None:
        """Have replicas of a gradient compared during the run, if a user's code computes them or draws the samples."""
        if self.custom_code or self.data.endless:
            self.tolerance = float(np.finfo(self.dtype).eps) ** 0.5

    def piece(self, first: int, last: int) -> Self:
        """Return consecutive partitions, ``first`` to ``last``, as one partition."""
        joined = copy(self)  # without what __getstate__ omits
        joined._bounds = [(self._bounds[first][0], self._bounds[last][1])]
        joined.sizes = (sum(self.sizes[first : last + 1]),)
        joined._first, joined._spanned = self._first + first, last - first + 1
        return joined

    def only(self, partitions: Sequence[int]) -> Self:
        """Return the part that computes these partitions; files and streams are opened where they are used."""
        part = copy(self)
        part.data = self.data.only([self._bounds[j] for j in sorted(partitions)])
        return part

    def adopt(self, other: Self) -> None:
        """Take over the samples of another part's partitions."""
        self.data.adopt(other.data)

    def support(self, partition: int) -> Index | None:
        """Return None: a gradient may touch all coordinates."""
        return None  # explicit, as mypy demands

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """Return the sum of the gradients of a partition, or of some of its rows.

        Random numbers are keyed by ``key``, the partition and the rows, so that replicas agree.
        """
        return self.gradient_sum(w, self._selected(partition, rows))

    def check_partial_loss(self) -> None:
        if self.data.endless:
            raise BadInput(NO_PARTS)
        if self._stateful:
            raise BadInput(
                f"workers cannot evaluate {self._stateful}, whose running statistics are over the data of all; "
                "evaluate where='driver' or 'aside'"
            )

    def partial_loss(self, partition: int, w: Vector, rows: Index | None = None, /) -> float:
        """Return the sum of the losses of a partition in evaluation mode."""
        return self.loss_sum(w, self._selected(partition, rows))

    def _selected(self, partition: int, rows: Index | None) -> PartitionSamples:
        number, (first, last) = self._first + partition, self._bounds[partition]
        if self.data.endless:
            samples = self.data.sample_batch(range(number, number + self._spanned), rows)
            return PartitionSamples(samples, number, 0, len(samples), None, rows)
        if partition in self._placed:
            return PartitionSamples(self._placed[partition], number, 0, last - first, rows, rows)
        return PartitionSamples(self.data, number, first, last, rows, rows)


NO_METRICS = "metrics must name at least one function, or be left out"


def number_array(values: object, name: str, dtype: DType) -> Array:
    """Return values as a NumPy array with a row for each sample; floating-point numbers are converted to ``dtype``."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # rows of different lengths, random keys
        array = np.array(None)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise BadInput(
            f"{name} must hold arrays of numbers with a row for each sample, got {array.dtype} {array.shape}"
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise BadInput(f"{name} must hold finite numbers")
        array = array.astype(dtype, copy=False)
    return np.ascontiguousarray(array)


def check_lengths(arrays: Sequence[Array], name: str) -> None:
    """Raise :class:`~anyk.errors.BadInput` if arrays differ in their numbers of samples, or have none."""
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise BadInput(f"the arrays of {name} must have one entry for each sample, got {lengths} entries")
    if not lengths[0]:
        raise BadInput(f"{name} is empty")


def check_metrics(metrics: Any) -> ByName:
    """Return a user's metrics; raise :class:`~anyk.errors.BadInput` if they are not functions by name."""
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise BadInput(f"metrics must be functions by name, as in {{'name': function}}, got {metrics!r}")
    if not metrics:
        raise BadInput(NO_METRICS)
    return dict(metrics)


class NetworkProblem(ProblemAbilities):
    """A problem of PyTorch or JAX: the sum of a model's losses over training samples."""

    dimension: int
    dtype: DType
    samples: int
    l2: float
    metric: str
    better: Better
    _data: Samples
    _held_out: Samples | None
    _last: Any  # intermediate results at the last model, None if there are none

    def _set_samples(self, data: Samples, held_out: Samples | None) -> None:
        """Set the training and held-out samples; by default the loss of samples outside of memory is not evaluated."""
        self._data, self._held_out = data, held_out
        self.samples, self.endless = len(data), data.endless
        self.evaluated_on = "train" if data.in_memory else None if held_out is None else "held_out"

    def __repr__(self) -> str:
        return problem_text(self)

    def loss(self, w: Vector) -> float:
        """Return the objective at ``w``, in evaluation: without dropout, with running statistics."""
        if self.endless:
            raise BadInput(NO_LOSS)
        return self._mean_loss(w) + 0.5 * self.l2 * float(w @ w)

    def _mean_loss(self, w: Vector) -> float:
        """Return the mean of the sample losses."""
        raise NotImplementedError

    def sampled(self, samples: int) -> Self:
        """Return the problem on a sample of its data; running statistics are computed from the sample, too."""
        sample = copy(self)
        held_out = None if self._held_out is None else self._held_out.some(samples, "held out")
        sample._set_samples(self._data.some(samples, "train"), held_out)
        sample._last = None
        return sample

    def recipe(self) -> Recipe | None:
        """Return None: the problem is made in Python."""
        return None

    def _check_model(self, w: Any) -> None:
        if np.shape(w) != (self.dimension,):
            raise BadInput(f"a model is a vector of {self.dimension:,} numbers (run.model), got shape {np.shape(w)}")
