"""Local work: steps that a worker takes on its own, on its own data. One definition for all clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from anyk.clusters.messages import Messages
from anyk.optimizers import optimizer
from anyk.problems.base import Vector
from anyk.protocol import Chunk

State = dict[str, Vector]
_COUNT = "steps"  # that a state has seen, kept in it


class Local(NamedTuple):
    """How workers take steps: an optimiser's spec, its learning rate's spec, and the regulariser."""

    optimizer: str
    rate: str
    l2: float


class LocalSteps:
    """Carries out chunks with ``steps``."""

    def __init__(self, messages: Messages, local: Local) -> None:
        self._messages, self._l2 = messages, local.l2
        self._penalty = getattr(messages.partitions, "penalty", local.l2)
        self._optimizer = optimizer(local.optimizer, lr=local.rate)

    def run(
        self,
        chunk: Chunk,
        start: Vector,
        state: State | None,
        between: Callable[[int], None] | None = None,
    ) -> tuple[Vector, State]:
        """The model that a chunk's steps lead to from ``start``, and the optimiser's state there.

        ``state``: the one to go on with, not changed; None: a fresh one. ``between(done)``, called before each step,
        stops it by raising. Optimisers count their own steps from the state's beginning, learning rates from the run's.
        """
        messages, rate = self._messages, self._optimizer.rate
        w, first = start, 0
        if state is None:
            state = self._optimizer.start(w)
        else:
            state = {name: vector.copy() for name, vector in state.items()}
            first = int(state.pop(_COUNT)[0])
        samples = sum(messages.partitions.sizes[j] for j in chunk.partitions)
        plain = chunk._replace(repeat=0)
        for done in range(chunk.steps):
            if between is not None:
                between(done)
            number = chunk.repeat + done
            gradient = np.zeros_like(w)
            for ids in messages.parts(chunk):
                part = messages.gradient(ids, w, plain, number)
                support = messages.support(ids)
                if support is None:
                    gradient += part
                else:
                    gradient[support] += part
            gradient /= samples
            if self._l2:
                gradient += self._penalty * w
            own = first + done
            scale = 1.0 if own == number else rate.at(number) / rate.at(own)
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found by fault()
                w = self._optimizer.step(w, gradient, state, own, scale)
        return w, state | {_COUNT: np.array([first + chunk.steps], dtype=np.float64)}


def mixed(chunk: Chunk, w: Vector, models: list[Vector]) -> Vector:
    """Where a chunk's local steps begin: ``share`` times the slot's version plus the weighted sum of the models."""
    if chunk.share == 1.0 and not chunk.mix:
        return w
    start = chunk.share * w if chunk.share else np.zeros_like(w)
    for (*_, weight), model in zip(chunk.mix, models, strict=True):
        start += weight * model
    return np.asarray(start, dtype=w.dtype)
