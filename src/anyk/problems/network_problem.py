"""The common part of problems of PyTorch and JAX, with training samples and perhaps held-out samples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, Literal, Protocol, Self, TypeGuard

import numpy as np

from anyk.base.arrays import Array, DType, Floats, Vector
from anyk.base.checks import check_unmasked, check_value
from anyk.base.errors import BadInput, describe_error
from anyk.base.plain import ByName
from anyk.problems.base import Better, ProblemAbilities, Recipe, problem_text
from anyk.problems.data.sample_batches import Samples
from anyk.problems.data.streams import NO_LOSS
from anyk.problems.given import GivenArrays
from anyk.problems.linear.scaling import row_weights
from anyk.problems.watch import DATA

NO_METRICS = "metrics must name at least one function, or be left out"
HELD_OUT_LOSS = "held_out_loss"  # the metric of a loss that determines no other
_LOWER = (HELD_OUT_LOSS, "loss", "mse")  # metrics of which a lower value is better


def number_array(values: object, name: str, dtype: DType) -> Array:
    """Return values as a NumPy array with a row for each sample; floating-point numbers are converted to ``dtype``."""
    check_unmasked(values, name)
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
    """Raise :class:`~anyk.BadInput` if arrays differ in their numbers of samples, or have none."""
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise BadInput(f"the arrays of {name} must have one entry for each sample, got {lengths} entries")
    if not lengths[0]:
        raise BadInput(f"{name} is empty")


class Collected(Protocol):
    """A metric that receives held-out batches one after the other, as those of torchmetrics do."""

    def update(self, *arguments: Any) -> Any:
        """Receive a batch."""
        ...

    def compute(self) -> Any:
        """Return the value over all batches: one number."""
        ...


def is_collected(metric: object) -> TypeGuard[Collected]:
    """Return whether a metric has ``update`` and ``compute``."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute"))


def fresh(metric: Collected) -> Any:
    """Return a copy of a metric that has received no batch yet: values of one evaluation do not reach the next."""
    copied = deepcopy(metric)
    reset = getattr(copied, "reset", None)
    if callable(reset):
        reset()
    return copied


def check_metrics(metrics: Any) -> ByName:
    """Return a user's metrics; raise :class:`~anyk.BadInput` if they are not functions or objects by name."""
    values = list(metrics.values()) if isinstance(metrics, Mapping) else [None]
    if not all(callable(metric) or is_collected(metric) for metric in values):
        raise BadInput(
            f"metrics must be functions by name, as in {{'name': function}}, got {metrics!r}; objects with update and "
            "compute are metrics, too"
        )
    if not metrics:
        raise BadInput(NO_METRICS)
    checked: ByName = {}
    for name, metric in metrics.items():
        checked[name] = metric
        if isinstance(metric, type):
            raise BadInput(f"metric '{name}' is a class; give an object of it, {metric.__name__}(…)")
        if is_collected(metric):
            try:
                checked[name] = fresh(metric)  # the user's own object may receive further batches
            except Exception as error:
                raise BadInput(
                    f"metric '{name}' has update and compute, but cannot be copied and reset for an evaluation: "
                    f"{describe_error(error)}"
                ) from None
    return checked


def metric_number(name: str, value: Any) -> float:
    """Return the value of a user's metric; raise :class:`~anyk.BadInput` if it is not one number."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    shape = getattr(value, "shape", None)
    got = f"shape {tuple(shape)}" if shape else type(value).__name__
    several = "; give each of its values a name of its own" if isinstance(value, Mapping) else ""
    raise BadInput(f"metric '{name}' must give one number, got {got}{several}")


def with_weights(function: Callable[..., Any], name: str, arguments: Sequence[Any], weights: Any) -> Any:
    """Call a user's metric with the samples' ``weights``, if there are any; raise if it does not take them."""
    if weights is None:
        return function(*arguments)
    try:
        takes = "weights" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes = False
    if not takes:
        raise BadInput(
            f"metric '{name}' does not take the weights of held-out samples; give it a parameter 'weights', or leave "
            "held_out_weights out"
        )
    return function(*arguments, weights=weights)


def sample_weights(weights: Any, samples: int, name: str) -> Floats | None:
    """Return weights of samples, divided by their mean, or None if all are equal.

    Raises :class:`~anyk.BadInput` unless they are finite numbers, one for each sample, of at least 0 and not
    all 0.

    >>> sample_weights([1, 3], 2, "weights").tolist(), sample_weights([7, 7], 2, "weights")
    ([0.5, 1.5], None)
    """
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu()
        weights = weights.double() if weights.is_floating_point() else weights  # NumPy lacks some types
    with np.errstate(over="ignore"):
        checked = row_weights(np.asarray(weights), samples, name)
    if not checked.any():
        raise BadInput(f"{name} are so large that their sum is not a finite number")
    return None if (checked == checked[0]).all() else checked


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

    def _set_weights(self, weights: Any, held_out_weights: Any, sampling: str) -> None:
        """Set the weights of the samples, if there are any, and how mini-batches are drawn."""
        check_value(sampling, Literal["uniform", "weights"], "sampling")
        if sampling == "weights" and weights is None:
            raise BadInput("sampling='weights' draws samples in proportion to their weights; give weights=…")
        if held_out_weights is not None and self._held_out is None:
            raise BadInput("held_out_weights are of held-out samples; give held_out, too")
        for data, values, name in (
            (self._data, weights, "weights"),
            (self._held_out, held_out_weights, "held_out_weights"),
        ):
            if data is None or values is None:
                continue
            if not data.takes_weights:
                raise BadInput(
                    f"{name} hold a number for each sample of arrays or a map-style data set, and shards or a stream "
                    "have none in memory; let the data contain the weights, and let a loss with reduction='sum' "
                    "multiply by them"
                )
            data.weights = sample_weights(values, len(data), name)
        self.by_weight = sampling == "weights" and self._data.weights is not None

    def _note_given(self, data: Any, held_out: Any, weights: Any, held_out_weights: Any) -> None:
        """Note which arrays the user gave for the samples, so that a later change of them is noticed."""
        self._given_arrays = GivenArrays()
        self._given_arrays.add(DATA, data, self._data.arrays)
        self._given_arrays.add("held_out", held_out, () if self._held_out is None else self._held_out.arrays)
        self._given_arrays.add(f"{DATA}'s weights", weights, ())
        self._given_arrays.add("held_out_weights", held_out_weights, ())

    def _set_better(self, better: Better | None, metric: object, *, own: bool) -> None:
        """Set whether higher or lower values of the metric are better: as the user or the metric states, or as usual.

        ``own``: whether the metric is the user's, so that the usual is an assumption.
        """
        stated = getattr(metric, "higher_is_better", None)
        if better is None and isinstance(stated, bool):
            better = "higher" if stated else "lower"
        self.better = better or ("lower" if self.metric in _LOWER else "higher")
        if better is None and own and self._held_out is not None:
            other = "lower" if self.better == "higher" else "higher"
            taken = f"{self.better} values of the metric '{self.metric}' are taken for better"
            self.data_remarks = (*self.data_remarks, f"{taken}; if not, give better='{other}'")

    @property
    def _weighted(self) -> bool:
        """Whether some samples have weights."""
        return any(data is not None and data.weights is not None for data in (self._data, self._held_out))

    def _weights(self) -> list[Array]:
        """Return the weights, and whether mini-batches are drawn by them, as parts of a digest."""
        data_sets = [data for data in (self._data, self._held_out) if data is not None]
        weights: list[Array] = [data.weights for data in data_sets if data.weights is not None]
        return [*weights, np.array([self.by_weight])] if weights else []

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
