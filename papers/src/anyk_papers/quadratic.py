"""A quadratic objective with known constants, for claims that are stated in terms of these constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anyk.base import Floats, Vector
from anyk.problems.base import Index, cut


class Quadratic:
    """F(w) = (curvature / 2) |w|^2 - m.w, of samples z of mean m with gradients ``curvature w - z``.

    ``curvature`` is both its smoothness and its convexity. ``samples``: shape (rows, d), cut into consecutive
    partitions; ``start``: the first model, length d.
    ``visited[j]`` are the models at which gradients of partition j were requested: if every worker has its own
    partition and its own model, these are the worker's models, one per local step.
    """

    dtype: np.dtype[np.floating[Any]]
    l2: float = 0.0
    metric: str = "none"
    better: Literal["higher", "lower"] = "lower"

    def __init__(self, samples: Floats, start: Floats, *, curvature: float = 1.0) -> None:
        self.z, self.start, self.curvature = samples, start, curvature
        self.samples, self.dimension = samples.shape
        self.dtype = samples.dtype
        self.mean = samples.mean(axis=0)
        self.visited: dict[int, list[Vector]] = {}

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> _Partitions:
        """Cut the samples into consecutive partitions."""
        return _Partitions(self, cut(self.samples, partitions, shares).tolist())

    def initial(self) -> Vector:
        """Return the first model."""
        return self.start.copy()

    def loss(self, w: Vector) -> float:
        """Return F(w)."""
        return float(self.curvature / 2.0 * (w @ w) - self.mean @ w)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return nothing: there are no held-out samples."""
        del w
        return {}

    def recipe(self) -> dict[str, Any] | None:
        """Return None: it cannot be rebuilt from plain data."""
        return None


class _Partitions:
    def __init__(self, problem: Quadratic, ends: Sequence[int]) -> None:
        self._problem, self._ends = problem, ends
        self.dimension, self.dtype = problem.dimension, problem.dtype
        self.sizes: tuple[int, ...] = tuple(np.diff(ends).tolist())

    def load(self, partitions: Sequence[int]) -> None:
        del partitions

    def support(self, partition: int) -> Index | None:
        del partition
        return None

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        self._problem.visited.setdefault(partition, []).append(w.copy())
        z = self._problem.z[self._ends[partition] : self._ends[partition + 1]]
        z = z if rows is None else z[rows]
        gradient: Vector = len(z) * self._problem.curvature * w - z.sum(axis=0)
        return gradient


def noisy(workers: int, dimension: int, *, first: float, noise: float, seed: int) -> Quadratic:
    """Return a quadratic of curvature 1 with its least value, 0, at 0, whose workers all have the same samples.

    ``first``: the excess loss of the first model; ``noise``: the variance of a sample's gradient. Both are spread
    evenly over the coordinates, which are equivalent to independent runs in one dimension.
    """
    half = np.random.default_rng(seed).standard_normal((50, dimension))
    z = np.concatenate([half, -half])
    z *= (noise / (z**2).sum(axis=1).mean()) ** 0.5
    return Quadratic(np.tile(z, (workers, 1)), np.full(dimension, (2.0 * first / dimension) ** 0.5))


__all__ = ["Quadratic", "noisy"]
