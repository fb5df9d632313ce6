"""A least-squares problem of a user's own class, with the members that are needed and no others."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyk.problems.base import cut

_random = np.random.default_rng(0)
X, Y = _random.normal(size=(60, 4)), _random.normal(size=60)


class Rows:
    """Consecutive partitions of the rows."""

    def __init__(self, ends: Any) -> None:
        self.ends, self.sizes, self.dimension, self.dtype = ends, np.diff(ends).tolist(), 4, np.dtype(float)

    def load(self, partitions: Any) -> None:
        pass

    def support(self, partition: int) -> Any:
        return None

    def rows_of(self, partition: int, rows: Any) -> tuple[Any, Any]:
        """Return the inputs and targets of some rows of a partition, or of all."""
        mine = slice(self.ends[partition], self.ends[partition + 1])
        chosen = slice(None) if rows is None else rows
        return X[mine][chosen], Y[mine][chosen]

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        design, y = self.rows_of(partition, rows)
        return design.T @ (design @ w - y)


class Squares:
    """The problem; ``kind`` is the class of its partitions."""

    metric, better, l2 = "mse", "lower", 0.0
    samples, dimension, dtype = 60, 4, np.dtype(float)
    kind: Any = Rows

    def split(self, partitions: int, shares: Any = None) -> Any:
        return self.kind(cut(self.samples, partitions, shares).tolist())

    def initial(self) -> Any:
        return np.ones(4)

    def loss(self, w: Any) -> float:
        return float(((X @ w - Y) ** 2).mean() / 2)

    def metrics(self, w: Any) -> dict[str, float]:
        return {"mse": 2 * self.loss(w)}

    def recipe(self) -> None:
        return None
