"""A small problem whose gradients are easy to check."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anyk.problems.base import Index, Vector


class _Pieces:
    def __init__(self, m: int, d: int, dtype: str, faults: dict[int, str]) -> None:
        self.dimension, self.dtype = d, np.dtype(dtype)
        self.sizes = (1,) * m
        self.faults = faults
        self.centres = np.arange(m * d, dtype=np.float64).reshape(m, d) % 7.0 - 3.0

    def load(self, partitions: Sequence[int]) -> None:
        del partitions

    def support(self, partition: int) -> Index | None:
        del partition
        return None

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        del rows  # a partition has one sample
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
        return gradient


class Squares:
    """``(1/m) sum_j |w - c_j|^2 / 2``: partition j has one sample, whose gradient is ``w - c_j``.

    ``faults`` maps a worker (processes only), or ``-1 - partition``, to what goes wrong once the model has moved:
    ``nan``, ``inf``, ``short``, ``raise``, ``exit`` or ``die``; ``fork``: it returns twice; ``forks``: without an end;
    ``stray``: it leaves a process in a group of its own.
    """

    metric = "loss"
    better: Literal["higher", "lower"] = "lower"
    l2 = 0.0

    def __init__(
        self, samples: int, d: int = 5, *, dtype: str = "float64", faults: dict[int, str] | None = None
    ) -> None:
        self.samples, self.dimension, self.dtype = samples, d, np.dtype(dtype)
        self.faults = faults or {}
        self.centres = _Pieces(samples, d, dtype, {}).centres

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> _Pieces:
        """See :class:`~anyk.problems.base.Problem`; one sample a partition, whatever the shares."""
        del shares
        self.samples = partitions
        pieces = _Pieces(partitions, self.dimension, self.dtype.str, self.faults)
        self.centres = pieces.centres
        return pieces

    def initial(self) -> Vector:
        """Zeros."""
        return np.zeros(self.dimension, dtype=self.dtype)

    def loss(self, w: Vector) -> float:
        """The objective."""
        return float(0.5 * ((w - self.centres) ** 2).sum() / len(self.centres))

    def smoothness(self) -> float:
        """1, the curvature of each square."""
        return 1.0

    def metrics(self, w: Vector) -> dict[str, float]:
        """None."""
        del w
        return {}

    def recipe(self) -> dict[str, Any] | None:
        """None: it is made in Python."""
        return None
