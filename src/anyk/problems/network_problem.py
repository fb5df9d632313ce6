"""The common part of problems of PyTorch and JAX, with training samples and perhaps held-out samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from anyk.arrays import Array, DType, Vector
from anyk.errors import BadInput
from anyk.plain import ByName
from anyk.problems.base import Better, ProblemAbilities, Recipe, problem_text
from anyk.problems.data.sample_batches import Samples
from anyk.problems.data.streams import NO_LOSS

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
