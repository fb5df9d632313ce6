"""Whether all who hold a partition compute the same gradient: codes rely on it, and a user's code may break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput
from anyk.problems.base import Vector

ROWS = 8  # samples of the partition that is tried
SINGLE = 1e-6  # relative difference that marks of gradients may have that differ by less than float32 shows
_SKETCH = 64  # sums that stand for a gradient
_ADVICE = (
    "a code takes replicas of a partition for equal; draw from the global generator of torch, NumPy or Python, which "
    "are seeded alike on all workers, not from one of your own or the clock, or use a strategy without replicas "
    "('uncoded')"
)


class Trial(NamedTuple):
    """What the driver computed: a sketch of one gradient, and the relative difference that kernels may cause."""

    sketch: NDArray[np.float64]
    limit: float

    @classmethod
    def of(cls, compute: Callable[[], Vector], limit: float) -> Trial | None:
        """Compute a gradient twice; None where it is not finite or fails, which the run itself will report.

        Raises :class:`~anyk.errors.BadInput` where the two differ.
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
        """The norm of the difference from a gradient, relative to the larger of the two norms; estimated."""
        found = sketch(gradient)
        norm = max(np.linalg.norm(found), np.linalg.norm(self.sketch))
        return float(np.linalg.norm(found - self.sketch) / norm) if norm else 0.0

    def check(self, gradient: Vector) -> None:
        """Raise :class:`~anyk.errors.BadInput` where this worker's gradient is not the driver's."""
        apart = self.apart(gradient)
        if not apart <= self.limit:
            raise BadInput(
                f"it computes a gradient that is {_percent(apart)} apart from the driver's, of the same samples at the "
                f"same model: {_ADVICE}"
            )


def sketch(gradient: Vector) -> NDArray[np.float64]:
    """Signed sums whose norm is, on average, that of the gradient, as the norm of differences is that of theirs."""
    signs = keyed.generator(0, "sketch", gradient.size).integers(0, 2, gradient.size, dtype=np.int8)
    padded = np.zeros(-(-gradient.size // _SKETCH) * _SKETCH)
    np.multiply(gradient, 2 * signs - 1, out=padded[: gradient.size])
    sums: NDArray[np.float64] = padded.reshape(-1, _SKETCH).sum(axis=0)
    return sums


def mark(gradient: Vector) -> int | None:
    """What stands for a gradient where only a number can be sent: a signed sum and the norm, as two float32.

    None where they are not finite.
    """
    wide = gradient.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        pair = np.array([wide[::2].sum() - wide[1::2].sum(), np.linalg.norm(wide)], dtype=np.float32)
    return int(pair.view(np.int64)[0]) if np.isfinite(pair).all() else None


def marks_apart(one: int, other: int) -> float:
    """The difference of two marks, relative to the larger; that of equal gradients is far below :data:`SINGLE`."""
    (first, norm), (second, size) = np.array([one, other]).view(np.float32).reshape(2, 2).astype(np.float64)
    larger = max(norm, size, abs(first), abs(second))
    return float(max(abs(first - second), abs(norm - size)) / larger) if larger else 0.0


def differing(one: int, other: int, partition: int, version: int, apart: float) -> str:
    """What is said of two workers whose gradients of a partition differ."""
    return (
        f"at step {version} workers {one} and {other} computed gradients of partition {partition} that are "
        f"{_percent(apart)} apart: {_ADVICE}"
    )


def model_like(scales: Sequence[tuple[int, float, float]], dtype: np.dtype[Any]) -> Vector:
    """Keyed normal draws with the (size, mean, standard deviation) of each parameter of the initial model.

    It stands for that model on workers, to which it is not sent before the run begins.
    """
    random = keyed.generator(0, "trial model")
    parts = [mean + deviation * random.standard_normal(size) for size, mean, deviation in scales]
    return np.concatenate(parts).astype(dtype)


def _percent(apart: float) -> str:
    percent = 100.0 * apart
    return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"
