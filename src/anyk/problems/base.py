"""The parts of a problem: an objective, its data in partitions, and the partial gradients that workers compute.

The objective is ``(1/N) sum of sample losses + (l2/2) |w|^2``. Workers send sums over their samples, without the
regulariser; the driver divides by N and adds the regulariser once a step. So a learning rate means the same under
every strategy, and the replies of sparse data stay sparse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput

Array = NDArray[Any]
DType = np.dtype[Any]
Ends = NDArray[np.int64]  # where consecutive pieces of samples begin and the last one ends
Floats = NDArray[np.float64]
Index = NDArray[np.intp]  # the type with which NumPy scatters fastest
Vector = NDArray[np.floating[Any]]
NO_HELD_OUT = "metrics are computed on held-out samples, and there are none; give held_out=… as well"


class Partitions(Protocol):
    """The data in m disjoint pieces, as workers get it.

    It reaches them by pickle, arrays aside: an array in it exists once on a machine. ``sizes[j]`` is the number of
    samples in partition j, ``dimension`` the length d of the model, ``dtype`` that of model and gradients.

    Optional: ``only(partitions)``, the same without the data of all others, for workers that share no memory with the
    driver. Supports remain those of all. ``piece(first, last)``, these consecutive partitions as an object of one: so
    that workers which compute different shares of the data compute them at once, not one by one.
    ``compare_replicas()``, for gradients that a user's code computes: called on
    the driver before the partitions are sent, where several workers hold the same one and their gradients must agree;
    it may compute a small gradient twice, and have :meth:`load` compare with it what the worker computes. Both raise
    :class:`~anyk.errors.BadInput` where gradients differ by more than rounding. And it sets ``tolerance``, the relative
    difference up to which gradients of the same partition at the same model count as equal: now and then, where several
    workers compute one, the driver compares them. ``partial_loss(partition, w, rows=None)``, the sum of the
    partition's sample losses at ``w``, of these rows or all, as :meth:`Problem.loss` has them: what workers tell who
    are asked to evaluate (``Evaluate(where="workers")``); and ``check_partial_loss()``, which raises
    :class:`~anyk.errors.BadInput` where it does not exist for this problem.
    """

    dimension: int
    dtype: DType
    sizes: tuple[int, ...]

    def load(self, partitions: Sequence[int]) -> None:
        """Called once on a worker, before any work, with the partitions it holds."""
        ...

    def support(self, partition: int) -> Index | None:
        """Sorted coordinates that the partition's gradient can touch; None: all of them."""
        ...

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """Gradient at ``w`` (length d) of the sum of the partition's sample losses, on its support.

        ``rows``: of these samples only, sorted numbers within the partition; given for mini-batches alone.
        """
        ...


def stacked(parts: Sequence[Any]) -> Any:
    """Return the rows of several arrays, dense or sparse, as one array."""
    if not hasattr(parts[0], "indptr"):
        return np.concatenate(parts)
    from scipy import sparse

    return sparse.vstack(parts, format="csr")


def cut(samples: int, partitions: int, shares: Sequence[int] | None = None) -> Ends:
    """Return where pieces of the samples begin and the last piece ends, shape (partitions + 1,); none is empty.

    Even pieces, the larger ones first, or as near as can be to ``shares``. Raises :class:`~anyk.errors.BadInput` where
    there are too few samples.

    >>> cut(7, 3).tolist(), cut(8, 3, [2, 1, 1]).tolist()
    ([0, 3, 5, 7], [0, 4, 6, 8])
    """
    if partitions < 1 or samples < partitions:
        raise BadInput(
            f"{samples} rows cannot be cut into {partitions} partitions of at least one row; use at most {samples}"
        )
    if shares is None:
        sizes = np.full(partitions, samples // partitions)
        sizes[: samples % partitions] += 1
        return np.concatenate(([0], np.cumsum(sizes)))
    whole = np.asarray(shares, dtype=np.float64)
    ends = np.concatenate(([0], np.round(np.cumsum(whole) / whole.sum() * samples).astype(np.int64)))
    ends = np.maximum.accumulate(np.maximum(ends - np.arange(partitions + 1), 0)) + np.arange(partitions + 1)
    return np.minimum(ends, samples - np.arange(partitions, -1, -1))


def even_ends(size: int, most: int) -> list[int]:
    """Return the ends of even batches of at most ``most`` samples: batch norm could not use a last batch of one."""
    if size <= most:
        return [0, size]
    ends: list[int] = cut(size, -(-size // most)).tolist()
    return ends


def some_rows(rows: int, samples: int, of: str) -> Index | slice:
    """Return ``samples`` sorted row numbers, all if there are no more; ``of``: the purpose, which keys the choice.

    >>> len(some_rows(1000, 10, "held out")), some_rows(4, 10, "held out")
    (10, slice(None, None, None))
    """
    if samples >= rows:
        return slice(None)
    rows_sampled: Index = np.sort(keyed.generator(0, "evaluate", of, rows).choice(rows, samples, replace=False))
    return rows_sampled


def rows_within(sizes: Sequence[int], partition: int, samples: int) -> Index | None:
    """Return the rows of a partition that :func:`some_rows` picks from all training rows; None: all of them.

    >>> [len(rows_within((500, 500), j, 10)) for j in range(2)], rows_within((2, 2), 0, 4)
    ([3, 7], None)
    """
    sampled_rows = some_rows(sum(sizes), samples, "train")
    if isinstance(sampled_rows, slice):
        return None
    first = sum(sizes[:partition])
    a, b = np.searchsorted(sampled_rows, (first, first + sizes[partition]))
    return sampled_rows[a:b] - first


_PARTS = ("dimension", "dtype", "samples", "l2", "metric", "better", "split", "initial", "loss", "metrics", "recipe")


def missing_parts(problem: Any) -> list[str]:
    """Return the members of a problem that an object lacks."""
    return [part for part in _PARTS if not hasattr(problem, part)]


def ensure_problem(problem: Any) -> None:
    """Raise :class:`~anyk.errors.BadInput` if this is not a problem."""
    missing = missing_parts(problem)
    if isinstance(problem, type) or missing:
        which = f", which has no {missing[0]}" if missing else ""
        plain = isinstance(problem, str | int | float | None)
        text = repr(problem) if plain else f"a {type(problem).__name__}{which}"
        if missing and hasattr(problem, "shape"):
            text = (
                f"data ({type(problem).__name__} of shape {tuple(problem.shape)}); make a problem of it and its targets"
            )
        raise BadInput(f"problem must be one of anyk.problems, as in LogisticRegression(X, y), got {text}")


def penalty_of(problem: Any) -> float | Vector:
    """Return the regulariser's factor of each coordinate, shape (d,), or of all coordinates."""
    penalty: float | Vector = getattr(problem, "penalty", problem.l2)
    return penalty


def endless(problem: Any) -> bool:
    """Return whether a problem's training data is a stream."""
    return bool(getattr(problem, "endless", False))


def rows_of(problem: Problem) -> str:
    """Return the amount of training data in words."""
    return "a stream" if endless(problem) else f"{problem.samples:,} rows"


def problem_text(problem: Any) -> str:
    """Return the text that ``repr`` shows: the problem's kind and sizes."""
    name = type(problem).__name__
    return f"<{name}: {rows_of(problem)}, {problem.dimension:,} parameters, metric {problem.metric}>"


class Problem(Protocol):
    """An objective with its data, on the driver.

    Optional: ``penalty``, the regulariser's factor of each coordinate, shape (d,), where that is not ``l2`` for all;
    partitions have it, too, if strategies with local steps are to be used. ``digest()``, a text that tells its data
    from others, or None; left out it is made of the arrays among the problem's attributes. A run that is resumed or
    replayed with other data is refused by it. ``sampled(samples)``, the same problem with so many of its training
    samples and of its held-out ones (:func:`some_rows`), of which loss and metrics are then asked
    (:class:`anyk.Evaluate`). ``evaluated_on``, what is evaluated if the user does not say: ``"train"`` (default),
    ``"held_out"`` where computing the loss would read training data that is not in memory, None where there is no
    held-out data either. ``endless``, True where the training data is a stream (:class:`~anyk.data.Stream`): only
    mini-batches are asked for, and the loss of a sample at most; ``samples`` is then a large number that partitions
    divide evenly.
    """

    dimension: int
    dtype: DType
    samples: int
    l2: float
    metric: str

    @property
    def better(self) -> Literal["higher", "lower"]:
        """Whether larger or smaller values of the metric are better."""
        ...

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> Partitions:
        """The training data in ``partitions`` pieces, as even as possible or in proportion to ``shares``."""
        ...

    def initial(self) -> Vector:
        """The model to begin with, length d."""
        ...

    def loss(self, w: Vector) -> float:
        """The objective at ``w``."""
        ...

    def metrics(self, w: Vector) -> dict[str, float]:
        """Quality on held-out data, by name, ``metric`` first; empty without held-out data.

        With ``majority``, the share of the most frequent class, or ``r2`` a table has what to compare a metric with.
        """
        ...

    def recipe(self) -> dict[str, Any] | None:
        """Plain data from which :func:`anyk.problems.from_recipe` makes the problem again; None if it cannot."""
        ...
