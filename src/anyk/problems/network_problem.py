"""The common part of problems of PyTorch and JAX, with training samples and perhaps held-out samples."""

from __future__ import annotations

from copy import copy
from typing import Any, Literal, Self

import numpy as np

from anyk.errors import BadInput
from anyk.problems.base import DType, problem_text
from anyk.problems.data.samples import Samples


class NetworkProblem:
    """A problem on samples; ``_last``: intermediate results at the last model, None if there are none."""

    dimension: int
    dtype: DType
    samples: int
    l2: float
    metric: str
    better: Literal["higher", "lower"]
    endless: bool
    _data: Samples
    _held_out: Samples | None
    _last: Any

    def __repr__(self) -> str:
        return problem_text(self)

    @property
    def evaluated_on(self) -> Literal["train", "held_out"] | None:
        """The data that is evaluated by default; samples that are not in memory are not read for the loss."""
        if self._data.in_memory:
            return "train"
        return None if self._held_out is None else "held_out"

    def sampled(self, samples: int) -> Self:
        """Return the problem on a sample of its data; running statistics are computed from the sample, too."""
        sample = copy(self)
        sample._data = self._data.some(samples, "train")
        sample.samples, sample.endless = len(sample._data), False
        if self._held_out is not None:
            sample._held_out = self._held_out.some(samples, "held out")
        sample._last = None
        return sample

    def recipe(self) -> dict[str, Any] | None:
        """None: it is made in Python."""
        return None

    def _check_model(self, w: Any) -> None:
        if np.shape(w) != (self.dimension,):
            raise BadInput(f"a model is a vector of {self.dimension:,} numbers (run.model), got shape {np.shape(w)}")
