"""Checks that all workers of a partition compute the same gradient: codes rely on it, and a user's code may not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np

from anyk import keyed
from anyk.errors import BadInput
from anyk.problems.base import Array, DType, Floats, Vector

ROWS = 8  # samples of the partition whose gradient is tried before a run
SINGLE = 1e-6  # relative difference of marks that is below the precision of float32
_SKETCH = 64  # sums that represent a gradient
_PART = 1 << 16  # numbers processed at a time
_ADVICE = (
    "a code takes replicas of a partition for equal; draw from the global generator of torch, NumPy or Python, which "
    "are seeded alike on all workers, not from one of your own or the clock, or use a strategy without replicas "
    "('uncoded')"
)


class Trial(NamedTuple):
    """The driver's sketch of one gradient, and the relative difference that kernels may cause."""

    sketch: Floats
    limit: float

    @classmethod
    def of(cls, compute: Callable[[], Vector], limit: float) -> Trial | None:
        """Compute a gradient twice; return None if it is not finite or fails, which the run itself will report.

        Raises :class:`~anyk.errors.BadInput` if the two differ.
        """
        try:
            trial, again = cls(sketch(compute()), limit), compute()
        except Exception:
            return None
        if not np.isfinite(trial.sketch).all():
            return None
        apart = trial.apart(again)
        if not apart <= limit:
            raise BadInput(
                f"the same samples at the same model gave two gradients that are {_percent(apart)} apart: {_ADVICE}"
            )
        return trial

    def apart(self, gradient: Vector) -> float:
        """Estimate the norm of the difference from a gradient, relative to the larger of the two norms."""
        own_sketch = sketch(gradient)
        norm = max(np.linalg.norm(own_sketch), np.linalg.norm(self.sketch))
        return float(np.linalg.norm(own_sketch - self.sketch) / norm) if norm else 0.0

    def check(self, gradient: Vector) -> None:
        """Raise :class:`~anyk.errors.BadInput` if this worker's gradient is not the driver's."""
        apart = self.apart(gradient)
        if not apart <= self.limit:
            raise BadInput(
                f"it computes a gradient that is {_percent(apart)} apart from the driver's, of the same samples at the "
                f"same model: {_ADVICE}"
            )


def sketch(gradient: Vector) -> Floats:
    """Return signed sums of a gradient; norms of sketches and of their differences estimate the norms for gradients."""
    random = keyed.generator(0, "sketch", gradient.size)
    sums = np.zeros(_SKETCH)
    for part in _parts(gradient):
        signs = 2 * random.integers(0, 2, part.size, dtype=np.int8) - 1
        padded = np.zeros(-(-part.size // _SKETCH) * _SKETCH)
        np.multiply(part, signs, out=padded[: part.size])
        sums += padded.reshape(-1, _SKETCH).sum(axis=0)
    return sums


def _parts(vector: Vector) -> Iterator[Vector]:
    for first in range(0, vector.size, _PART):
        yield vector[first : first + _PART]


def mark(gradient: Vector) -> int | None:
    """Return a number that represents a gradient: a signed sum and the norm, as two float32; None if not finite."""
    signed = squares = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _parts(gradient):
            wide = part.astype(np.float64, copy=False)
            signed += float(wide[::2].sum() - wide[1::2].sum())
            squares += float(wide @ wide)
        pair = np.array([signed, np.sqrt(squares)], dtype=np.float32)
    return int(pair.view(np.int64)[0]) if np.isfinite(pair).all() else None


def marks_apart(one: int, other: int) -> float:
    """Return the difference of two marks, relative to the larger; for equal gradients far below :data:`SINGLE`."""
    (first, norm), (second, size) = np.array([one, other]).view(np.float32).reshape(2, 2).astype(np.float64)
    larger = max(norm, size, abs(first), abs(second))
    return float(max(abs(first - second), abs(norm - size)) / larger) if larger else 0.0


def differing(one: int, other: int, partition: int, version: int, apart: float) -> str:
    """Return the sentence on two workers whose gradients of a partition differ."""
    return (
        f"at step {version} workers {one} and {other} computed gradients of partition {partition} that are "
        f"{_percent(apart)} apart: {_ADVICE}"
    )


def seed_of_draws(key: int, partition: int, rows: Array | None) -> int:
    """Return the seed, of 63 bits, of random numbers for a partition, or some of its rows.

    ``key``: that of the model version. All workers with the partition draw the same numbers.
    """
    rows_key = -1 if rows is None else crc32(np.asarray(rows, dtype=np.int64).tobytes())
    return int(keyed.generator(key, "module", partition, rows_key).integers(2**63))


def model_like(scales: Sequence[tuple[int, float, float]], dtype: DType) -> Vector:
    """Return normal random numbers with the (size, mean, standard deviation) of each parameter of the initial model.

    Workers use them in the place of that model, which is not sent before the run begins.
    """
    random = keyed.generator(0, "trial model")
    w = np.empty(sum(size for size, _, _ in scales), dtype=dtype)
    first = 0
    for size, mean, deviation in scales:
        for part in _parts(w[first : first + size]):
            part[:] = mean + deviation * random.standard_normal(part.size)
        first += size
    return w


def _percent(apart: float) -> str:
    percent = 100.0 * apart
    return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"
