"""Local steps, which a worker takes on its own data between two messages; the same code for all clusters."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import NamedTuple

import numpy as np

from anyk.base.arrays import NO_GRADIENT, Vector, read_only
from anyk.base.errors import RunFailed
from anyk.clusters.messages import Messages
from anyk.optimizers import optimizer
from anyk.problems.base import partition_abilities
from anyk.protocol import Chunk

State = dict[str, Vector]
_COUNT = "steps"  # the name under which a state stores its number of steps


class Local(NamedTuple):
    """The settings of local steps: the specs of optimiser and learning rate, and the regulariser.

    ``penalty``: its factor for all coordinates, or None if each has its own: the partitions' ``penalty``.
    """

    optimizer: str
    rate: str
    penalty: float | None


class LocalStepper:
    """Carries out chunks with ``steps``."""

    def __init__(self, messages: Messages, local: Local) -> None:
        self._messages = messages
        penalty = partition_abilities(messages.partitions).penalty if local.penalty is None else local.penalty
        if penalty is None:
            raise RunFailed("the factors of the regulariser are missing from the partitions that a worker received")
        self._penalty, self._is_regularised = penalty, bool(np.any(penalty))
        self._optimizer = optimizer(local.optimizer, lr=local.rate).fitted(messages.partitions)

    def run(
        self,
        task: int,
        chunk: Chunk,
        w: Vector,
        models: Sequence[Vector],
        states: MutableMapping[int, State],
        between: Callable[[int], None] | None = None,
    ) -> Vector:
        """Return the model after a chunk's steps.

        The steps start from ``share`` times the slot's version ``w`` plus the weighted sum of the ``models`` in the
        chunk's ``mix``. ``states``: the worker's optimiser states, by task. The state that the chunk continues is left
        unchanged, and the new one is added, unless messages are compressed. ``between(done)`` is called before each
        step and may raise to stop. Optimisers count steps from the start of their state, learning rates from the start
        of the run.
        """
        if chunk.state in states:  # no later task continues an older state
            drop_states(states, chunk)
        state = None if chunk.compress else states.get(chunk.state)
        messages, rate = self._messages, self._optimizer.rate
        w, first = read_only(_mixed(chunk, w, models)), 0
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
            gradient = np.full_like(w, NO_GRADIENT)
            for ids in messages.parts(chunk):
                partial = messages.gradient(ids, w, plain, number)
                support = messages.support(ids)
                if support is None:
                    gradient += partial
                else:
                    gradient[support] += partial
            gradient /= samples
            if self._is_regularised:
                gradient += self._penalty * w
            state_step = first + done
            scale = 1.0 if state_step == number else rate.at(number) / rate.at(state_step)
            with np.errstate(over="ignore", invalid="ignore"):  # inspect_message() detects numbers that are not finite
                w = read_only(self._optimizer.step(w, gradient, state, state_step, scale))
        if not chunk.compress:
            keep_state(states, task, chunk, state | {_COUNT: np.array([first + chunk.steps], dtype=np.float64)})
        return w


def keep_state(states: MutableMapping[int, State], task: int, chunk: Chunk, state: State) -> None:
    """Keep the states that a later task may continue: this task's, and the previous one, in case this one is unused."""
    drop_states(states, chunk)
    states[task] = state


def drop_states(states: MutableMapping[int, State], chunk: Chunk) -> None:
    """Drop the states that no later task may continue once a chunk has started."""
    for earlier in states.keys() - {chunk.state}:
        del states[earlier]


def _mixed(chunk: Chunk, w: Vector, models: Sequence[Vector]) -> Vector:
    if chunk.share == 1.0 and not chunk.mix:
        return w
    start = chunk.share * w if chunk.share else np.zeros_like(w)
    for (*_, weight), model in zip(chunk.mix, models, strict=True):
        start += weight * model
    return np.asarray(start, dtype=w.dtype)
