"""Clipping: another optimiser's steps, on gradients of limited length."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from anyk.checks import PositiveNumber, value_class
from anyk.optimizers.steps import Optimizer, State, Vector, optimizer
from anyk.specs import bracketed, show

_PART = 1 << 16  # numbers squared together


@value_class
class Clip(Optimizer):
    """Steps of another optimiser (``of``) on gradients scaled down to a Euclidean ``norm`` (Pascanu et al. 2013).

    The gradient is the one of a whole step, combined, averaged and regularised; a longer one is multiplied by
    ``norm / (|g| + 1e-6)``, as ``torch.nn.utils.clip_grad_norm_`` does. ``of`` is an optimiser, whose learning rate
    holds, or a spec, which takes ``lr``.

    >>> import numpy as np
    >>> Clip(lr=1.0, of="gd", norm=5.0).step(np.zeros(2), np.array([30.0, 40.0]), {}, 0).round(5)
    array([-3., -4.])
    """

    of: str | Optimizer = "gd"
    norm: PositiveNumber = 1.0
    name = "clip"

    def __post_init__(self) -> None:
        if isinstance(self.of, str):
            object.__setattr__(self, "of", optimizer(self.of, lr=self.lr))
        object.__setattr__(self, "lr", self._inner.lr)
        object.__setattr__(self, "rate", self._inner.rate)

    @property
    def _inner(self) -> Optimizer:
        assert isinstance(self.of, Optimizer)
        return self.of

    @property
    def watches(self) -> Literal["higher", "lower"] | None:
        return self._inner.watches

    @property
    def uniform(self) -> bool:
        return self._inner.uniform

    @property
    def vectors(self) -> int:
        return self._inner.vectors

    def observe(self, state: State, value: float) -> None:
        self._inner.observe(state, value)

    @property
    def spec(self) -> str:
        return show(self.name, {"of": bracketed(self._inner.spec), "norm": self.norm})

    def fitted(self, problem: Any) -> Optimizer:
        return replace(self, of=self._inner.fitted(problem))

    def start(self, w: Vector) -> State:
        return self._inner.start(w)

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        squares = 0.0
        for first in range(0, gradient.size, _PART):
            part = gradient[first : first + _PART].astype(np.float64, copy=False)  # squares of float32 overflow soon
            squares += float(part @ part)
        norm = math.sqrt(squares)
        if norm > self.norm:
            gradient *= gradient.dtype.type(min(1.0, self.norm / (norm + 1e-6)))
        return self._inner.step(w, gradient, state, t, scale, out)
