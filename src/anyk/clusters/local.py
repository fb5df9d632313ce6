"""Steps that a worker takes on its own, on its own data. One definition for all clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from anyk.clusters.messages import Messages
from anyk.optimizers import optimizer
from anyk.problems.base import Vector, partition_abilities
from anyk.protocol import Chunk

State = dict[str, Vector]
_COUNT = "steps"  # that a state has seen, kept in it


class Local(NamedTuple):
    """The local work of a run: an optimiser's spec, its learning rate's spec, and the regulariser."""

    optimizer: str
    rate: str
    l2: float


class LocalSteps:
    """Carries out chunks with ``steps``."""

    def __init__(self, messages: Messages, local: Local) -> None:
        self._messages, self._l2 = messages, local.l2
        penalty = partition_abilities(messages.partitions).penalty
        self._penalty = local.l2 if penalty is None else penalty
        self._optimizer = optimizer(local.optimizer, lr=local.rate)

    def run(
        self,
        task: int,
        chunk: Chunk,
        w: Vector,
        models: Sequence[Vector],
        states: dict[int, State],
        between: Callable[[int], None] | None = None,
    ) -> Vector:
        """Return the model that a chunk's steps lead to.

        They begin from ``share`` times the slot's version ``w`` plus the weighted sum of the ``models`` in its ``mix``.
        ``states``: of the worker's optimiser, by the task that left them; the one that the chunk continues from is not
        changed, and the new one is added, unless messages are compressed. ``between(done)``, called before each step,
        stops it by raising. Optimisers count their own steps from the state's beginning, learning rates from the run's.
        """
        if chunk.state in states:  # no task continues from an older one any more
            keep_state(states, chunk.state, chunk, states[chunk.state])
        state = None if chunk.compress else states.get(chunk.state)
        messages, rate = self._messages, self._optimizer.rate
        w, first = _mixed(chunk, w, models), 0
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
        if not chunk.compress:
            keep_state(states, task, chunk, state | {_COUNT: np.array([first + chunk.steps], dtype=np.float64)})
        return w


def keep_state(states: dict[int, State], task: int, chunk: Chunk, state: State) -> None:
    """Keep the states from which a worker may continue: this task's, and, if that is not used, the one before."""
    for earlier in states.keys() - {chunk.state}:
        del states[earlier]
    states[task] = state


def _mixed(chunk: Chunk, w: Vector, models: Sequence[Vector]) -> Vector:
    if chunk.share == 1.0 and not chunk.mix:
        return w
    start = chunk.share * w if chunk.share else np.zeros_like(w)
    for (*_, weight), model in zip(chunk.mix, models, strict=True):
        start += weight * model
    return np.asarray(start, dtype=w.dtype)
