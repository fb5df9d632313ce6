"""Requirements of every problem, and a small one whose gradients are easy to check."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from copy import copy
from typing import Any, Literal

import numpy as np

from anyk.base import BadInput, Vector, keyed_generator
from anyk.problems import Index, Partitions, Problem, ensure_problem, partition_abilities, penalty_of, some_rows

_SUMS = "partial gradients are of sums over samples, without the regulariser"


def check_problem(problem: Problem, *, partitions: int = 3, seed: int = 0) -> None:
    """Check all properties of a problem that driver and workers rely on.

    Partitions have the sizes and supports that they state; partial gradients are finite, repeat bit for bit, leave the
    model alone and, after pickling, are the same; rows add up to their partition; all partitions add up to the gradient
    of the loss, by central differences in random directions, however the data is cut; ``only`` gives the same
    gradients; if workers can evaluate, the losses of their partitions add up to the loss. The loss must be smooth, as
    differences across a kink are no gradient. Raises :class:`~anyk.BadInput` for an object that is no problem.

    >>> import anyk
    >>> check_problem(anyk.problems.from_data("synthetic:rows=60,features=4"))
    """
    import cloudpickle

    ensure_problem(problem)
    random = keyed_generator(seed, "check-problem", problem.dimension)
    start = np.asarray(problem.initial())
    assert start.shape == (problem.dimension,), f"initial() has shape {start.shape}, dimension is {problem.dimension}"
    _check_metrics(problem, start)
    w = (start + 0.1 * random.normal(size=problem.dimension)).astype(problem.dtype)
    w.flags.writeable = False
    pieces = pickle.loads(cloudpickle.dumps(problem.split(partitions)))
    _check_sizes(problem, pieces, partitions)
    pieces.load(range(partitions))
    total = np.zeros(problem.dimension)
    tolerance = float(np.finfo(problem.dtype).eps) ** 0.5
    for j in range(partitions):
        total += _checked_gradient(pieces, j, w, tolerance)
    gradient = total / problem.samples + penalty_of(problem) * w
    _check_losses(problem, pieces, w, tolerance)
    for _ in range(3):
        _check_slope(problem, w, gradient, random.normal(size=problem.dimension))
    single = problem.split(1)
    single.load([0])
    assert _near(_expanded(single, 0, w), total, tolerance), "the gradient depends on how the data is cut"


def _check_metrics(problem: Problem, w: Vector) -> None:
    assert problem.better in ("higher", "lower"), f"better must be 'higher' or 'lower', got {problem.better!r}"
    metrics = problem.metrics(w)
    assert not metrics or problem.metric in metrics, f"the metric '{problem.metric}' is not among {sorted(metrics)}"
    recipe = problem.recipe()
    assert recipe is None or isinstance(recipe, dict), f"recipe() must be a dictionary or None, got {recipe!r}"


def _check_sizes(problem: Problem, pieces: Partitions, partitions: int) -> None:
    sizes = pieces.sizes
    assert len(sizes) == partitions and min(sizes) > 0, f"split({partitions}) gave partitions of sizes {sizes}"
    assert sum(sizes) == problem.samples, f"sizes add up to {sum(sizes)}, the problem has {problem.samples} samples"
    for name in ("dimension", "dtype"):
        ours, theirs = getattr(problem, name), getattr(pieces, name)
        assert ours == theirs, f"{name} of the problem is {ours}, of its partitions {theirs}"


def _checked_support(pieces: Partitions, j: int) -> Index | None:
    support = pieces.support(j)
    if support is not None:
        inside = not len(support) or 0 <= support[0] <= support[-1] < pieces.dimension
        assert inside and (np.diff(support) > 0).all(), f"the support of partition {j} must be sorted coordinates"
    return support


def _checked_gradient(pieces: Partitions, j: int, w: Vector, tolerance: float) -> Vector:
    """Return the gradient of partition j, shape (dimension,), after checks of its form and of its rows."""
    support = _checked_support(pieces, j)
    try:
        gradient = np.array(pieces.partial_gradient(j, w))
    except ValueError as error:
        raise AssertionError(f"the gradient of partition {j} fails ({error}); models are read-only") from error
    length = pieces.dimension if support is None else len(support)
    assert gradient.shape == (length,), f"the gradient of partition {j} has shape {gradient.shape}, not ({length},)"
    assert gradient.dtype == pieces.dtype, f"the gradient of partition {j} is {gradient.dtype}, not {pieces.dtype}"
    assert np.isfinite(gradient).all(), f"the gradient of partition {j} is not finite"
    second = np.asarray(pieces.partial_gradient(j, w))
    assert np.array_equal(gradient, second), f"the gradient of partition {j} differs from call to call"
    size = pieces.sizes[j]
    if size > 1:
        rows = np.arange(size, dtype=np.intp)
        parts = [np.asarray(pieces.partial_gradient(j, w, selected)) for selected in (rows[::2], rows[1::2])]
        assert _near(parts[0] + parts[1], gradient, tolerance), f"the rows do not add up to partition {j}; {_SUMS}"
    only = partition_abilities(pieces).only
    if only:
        alone = only([j])
        alone.load([j])
        same = np.array_equal(alone.partial_gradient(j, w), gradient)
        assert same, f"only([{j}]) gives another gradient of partition {j}"
    return _expanded(pieces, j, w)


def _check_losses(problem: Problem, pieces: Partitions, w: Vector, tolerance: float) -> None:
    """Check that the losses of partitions, if workers can evaluate them, add up to the loss."""
    abilities = partition_abilities(pieces)
    try:
        abilities.check_partial_loss()
    except BadInput:
        return
    partial_loss: Any = abilities.partial_loss
    losses = [partial_loss(j, w) for j in range(len(pieces.sizes))]
    total = sum(losses) / problem.samples + 0.5 * float((penalty_of(problem) * w) @ w)
    expected = problem.loss(w)
    assert abs(total - expected) <= tolerance * (1.0 + abs(expected)), (
        f"the partitions' losses come to {total:.6g}, the loss is {expected:.6g}; partial_loss gives sums over samples"
    )
    for j, size in enumerate(pieces.sizes):
        rows = np.arange(size, dtype=np.intp)
        parts = sum(
            partial_loss(j, w, selected) for selected in (rows[: size // 2], rows[size // 2 :]) if len(selected)
        )
        assert abs(parts - losses[j]) <= tolerance * (1.0 + abs(losses[j])), (
            f"the losses of rows do not add up to that of partition {j}"
        )


def _expanded(pieces: Partitions, j: int, w: Vector) -> Vector:
    gradient: Vector = np.zeros(pieces.dimension)
    support = pieces.support(j)
    gradient[slice(None) if support is None else support] = pieces.partial_gradient(j, w)
    return gradient


def _near(value: Vector, expected: Vector, tolerance: float) -> bool:
    return float(np.linalg.norm(value - expected)) <= tolerance * (1.0 + float(np.linalg.norm(expected)))


def _check_slope(problem: Problem, w: Vector, gradient: Vector, direction: Vector) -> None:
    """Compare a gradient with the loss's central difference in a direction, whose error is of order ``eps^(2/3)``."""
    eps = float(np.finfo(problem.dtype).eps)
    step = eps ** (1 / 3) * direction / np.linalg.norm(direction)
    ahead, behind = ((w + sign * step).astype(problem.dtype) for sign in (1.0, -1.0))
    expected = float(gradient @ (ahead.astype(float) - behind))
    change = problem.loss(ahead) - problem.loss(behind)
    slack = eps ** (1 / 3) * (abs(expected) + float(np.linalg.norm(gradient) * np.linalg.norm(step)))
    slack += 8 * eps * max(1.0, abs(problem.loss(w)))
    assert abs(change - expected) <= slack, (
        f"by finite differences the loss changes by {change:.6g}, by the gradient it should be {expected:.6g}; {_SUMS}"
    )


class _SquarePartitions:
    def __init__(self, m: int, d: int, dtype: str, faults: dict[int, str]) -> None:
        self.dimension, self.dtype = d, np.dtype(dtype)
        self.sizes = (1,) * m
        self.faults = faults
        self.centres = np.arange(m * d, dtype=float).reshape(m, d) % 7.0 - 3.0

    def load(self, partitions: Sequence[int]) -> None:
        pass

    def support(self, partition: int) -> Index | None:
        return None

    def partial_loss(self, partition: int, w: Vector, rows: Index | None = None, /) -> float:
        return float(0.5 * ((w - self.centres[partition]) ** 2).sum())

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        gradient: Vector = (w - self.centres[partition]).astype(self.dtype)
        worker = os.environ.get("ANYK_WORKER")
        if not w.any():
            return gradient  # also the trial at the start
        match (worker and self.faults.get(int(worker))) or self.faults.get(-1 - partition):
            case "nan":
                gradient[-1] = np.nan
            case "inf":
                gradient[0] = np.inf
            case "short":
                return gradient[:-1]
            case "raise":
                raise ValueError(f"partition {partition} is broken")
            case "exit":
                raise SystemExit("of its own accord")
            case "die" | "fork" | "forks" | "stray" as fault:
                _misbehave(fault)
        return gradient


def _misbehave(fault: str) -> None:
    """End this process, or leave further ones."""
    match fault:
        case "die":
            os._exit(7)
        case "fork":
            os.fork()
        case "forks":
            while os.fork():
                time.sleep(0.001)
            time.sleep(60.0)
        case "stray":
            if not os.fork():
                os.setpgid(0, 0)
                time.sleep(60.0)
                os._exit(0)


class Squares:
    """``(1/m) sum_j |w - c_j|^2 / 2``: partition j has one sample, whose gradient is ``w - c_j``.

    ``faults`` maps a worker (processes only), or ``-1 - partition``, to a fault once the model has moved: ``nan``,
    ``inf``, ``short``, ``raise``, ``exit`` or ``die``; ``fork``: it returns twice; ``forks``: endlessly; ``stray``: it
    leaves a process in another process group.
    """

    metric = "loss"
    better: Literal["higher", "lower"] = "lower"
    l2 = 0.0

    def __init__(
        self, samples: int, d: int = 5, *, dtype: str = "float64", faults: dict[int, str] | None = None
    ) -> None:
        self.samples, self.dimension, self.dtype = samples, d, np.dtype(dtype)
        self.faults = faults or {}
        self.centres = _SquarePartitions(samples, d, dtype, {}).centres

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> _SquarePartitions:
        # one sample for each partition, whatever the shares
        self.samples = partitions
        pieces = _SquarePartitions(partitions, self.dimension, self.dtype.str, self.faults)
        self.centres = pieces.centres
        return pieces

    def initial(self) -> Vector:
        """Zeros."""
        return np.zeros(self.dimension, dtype=self.dtype)

    def loss(self, w: Vector) -> float:
        """The objective."""
        return float(0.5 * ((w - self.centres) ** 2).sum() / len(self.centres))

    def sampled(self, samples: int) -> Squares:
        """Return the problem with a sample of its terms."""
        sample = copy(self)
        sample.centres = self.centres[some_rows(self.samples, samples, "train")]
        sample.samples = len(sample.centres)
        return sample

    def smoothness(self) -> float:
        """1, the curvature of each square."""
        return 1.0

    def metrics(self, w: Vector) -> dict[str, float]:
        """None."""
        return {}

    def recipe(self) -> dict[str, Any] | None:
        """None: the problem is made in Python."""
        return None
