"""The driver's store of a run's vectors: model versions, and messages that have arrived."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Floats, Vector, Vectors, read_only
from anyk.clusters.local import State
from anyk.clusters.messages import WHOLE, Messages
from anyk.clusters.steps import PartOfStep, Place, StepPlan, note_state, stepping_by
from anyk.optimizers import Optimizer
from anyk.protocol import Chunk, RequestMessage, Task

CARRIED = "carried"  # with a number, the slot name of pieces of the arrays that versions carry


class Carried(NamedTuple):
    """The values that a model version carries (:class:`~anyk.problems.values.Values`), as plain data.

    ``numbers``: all numbers. ``places``: the arrays that may differ from the initial ones, by their places among the
    leaves. ``content``: the number of these arrays' content, whose ``pieces`` are stored like models.
    """

    numbers: tuple[float, ...]
    places: tuple[int, ...] = ()
    content: int = -1
    pieces: int = 0

    @property
    def stored(self) -> list[tuple[str, int]]:
        """The keys of the pieces in the store."""
        return [(f"{CARRIED} {piece}", self.content) for piece in range(self.pieces)]


class Elsewhere:
    """A version whose numbers are not in this process."""


class Message(NamedTuple):
    """A message that has arrived."""

    ids: tuple[int, ...]  # the partitions whose gradients it contains
    vector: Vector
    worker: int
    buffer: Any = None  # the place where other workers can read it, if not in the driver's memory


def alike(one: Vector, other: Vector, tolerance: float) -> bool:
    """Return whether two messages have the same bits, or differ by at most ``tolerance`` of the larger norm."""
    word = "u8" if one.nbytes % 8 == 0 else f"u{one.itemsize}"  # bits, not numbers: 0.0 and -0.0 differ
    if np.array_equal(one.view(word), other.view(word)):
        return True
    if not tolerance:
        return False
    largest = max(np.linalg.norm(one), np.linalg.norm(other))
    return bool(np.linalg.norm(one - other) <= tolerance * largest)


class VectorStore:
    """Model versions by slot and version, messages by task and chunk, in the driver's memory.

    A message from which tasks start is kept until the last such task has ended.
    """

    def __init__(self, messages: Messages | None = None) -> None:
        self._messages = messages
        self._models: dict[tuple[str, int], Vector] = {}
        self.carried: dict[tuple[str, int], Carried] = {}  # by slot and version, of those that carry values
        self._optimizer_states: dict[str, Vectors] = {}  # by slot
        self.arrived: dict[Place, Message] = {}
        self.readers: dict[Place, int] = {}  # the number of tasks in flight that start from a message
        self.freed: set[Place] = set()  # messages that only tasks in flight still need
        self.requests: dict[Place, RequestMessage] = {}  # requests not yet answered
        # for each worker the states of optimiser and compressor, by the task that produced them; empty if not saved
        self.states: list[MutableMapping[int, State]] = []
        self.continued: dict[int, tuple[int, ...]] = {}  # tasks whose states a worker's next task may continue

    @property
    def messages(self) -> Messages:
        """The encoder of the run's messages."""
        assert self._messages is not None, "without a problem there are no vectors"
        return self._messages

    def blank(self, slot: str) -> Vector:
        """Return a buffer for a slot's next version, to be written and then published."""
        return np.empty(self.messages.partitions.dimension, dtype=self.messages.dtype)

    def publish(self, slot: str, version: int, w: Vector | Elsewhere) -> None:
        """Store a version; its memory is not written again."""
        assert not isinstance(w, Elsewhere)
        self._models[slot, version] = read_only(w)

    def model(self, slot: str, version: int) -> Vector:
        """Return a version that has been published."""
        return self._models[slot, version]

    def model_at(self, slot: str, version: int, coordinates: slice) -> Vector:
        """Return the numbers of a version at these coordinates."""
        return self.model(slot, version)[coordinates]

    def start_optimizer(self, slot: str, version: int, optimizer: Optimizer, states: Vectors | None = None) -> None:
        """Prepare steps of a slot from a version that has been published, by default with the state of a first step."""
        if states is None:
            w = self.model(slot, version)
            states = optimizer.start(w)
            for name, vector in states.items():
                if np.may_share_memory(vector, w):  # which is written again for another version
                    states[name] = vector.copy()
        self._optimizer_states[slot] = states

    def optimizer_states(self, slot: str) -> Vectors:
        """Return the state of a slot's optimiser, and of the outer one; callers may add what they observe."""
        return self._optimizer_states[slot]

    def apply(
        self, plan: StepPlan, optimizer: Optimizer, penalties: Vector | None = None
    ) -> tuple[Vector | Elsewhere, int]:
        """Take a step; return the slot's next version, to be published, and its digest.

        ``penalties``: the regulariser's factor of each coordinate, if it is not the plan's for all. Raises
        :class:`~anyk.RunFailed` if the next version is not finite.
        """
        w, states, out = self.model(plan.slot, plan.version), self._optimizer_states[plan.slot], self.blank(plan.slot)
        steps_by, state = stepping_by(plan, optimizer, states, w)
        step = PartOfStep(plan, self, w=w, out=out, penalties=penalties)
        digest = step.take(steps_by, state)
        if digest is None:
            assert steps_by is not None  # without one every part can be stepped by itself
            out, digest = step.take_at_once(steps_by, state)
        note_state(plan, states, state)
        return out, digest

    def release(self, slot: str, version: int) -> None:
        """Drop a version, and the content that no other version carries."""
        self._models.pop((slot, version), None)
        self._drop_carried(slot, version)

    def _drop_carried(self, slot: str, version: int) -> None:
        carried = self.carried.pop((slot, version), None)
        if carried is not None and all(other.content != carried.content for other in self.carried.values()):
            for key in carried.stored:
                self.release(*key)

    def restore_message(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """Store a message of a checkpoint as if it had just arrived."""
        self.arrived[task, chunk] = Message(ids, message, worker)

    def message(self, key: Place) -> Vector:
        """Return the numbers of a message that has arrived."""
        return self.arrived[key].vector

    def givers(self, key: Place) -> list[int]:
        """Return, of a message that has arrived in slices, the workers whose replicas gave each; empty for others."""
        return []

    def alike(self, one: Place, other: Place, tolerance: float) -> bool:
        """Return whether two messages have the same bits, or differ by at most ``tolerance`` of the larger norm."""
        return alike(self.message(one), self.message(other), tolerance)

    def combine(self, messages: Sequence[Place], weights: Sequence[Any], coordinates: slice = WHOLE) -> Floats:
        """Return the weighted sum of messages, added in order, at the coordinates in ``coordinates``, as a new array.

        Several threads may call it simultaneously, each for a different part.
        """
        arrived = self.arrived
        return self.messages.add_up(
            [(arrived[key].ids, self.message(key), weight) for key, weight in zip(messages, weights, strict=True)],
            coordinates,
        )

    def project(self, task: int, chunk: int, key: int) -> float | None:
        """Return the product of a message with the direction of a key; None if the message has been freed."""
        message = self.arrived.get((task, chunk))
        return None if message is None else self.messages.project(message.ids, self.message((task, chunk)), key)

    def covered(self, task: int, index: int, chunk: Chunk) -> tuple[int, ...]:
        """Return the partitions in a chunk's message."""
        request = self.requests.get((task, index))
        if request is None:
            return chunk.covers
        inside = [j for key in request.messages for j in self.arrived[key].ids]
        return tuple(dict.fromkeys([*request.partitions, *inside]))

    # ------------------------------------------------------------------------------------------- messages of tasks

    def begin_task(self, chunks: Task) -> None:
        """Count a new task as a reader of the messages that it starts from."""
        for chunk in chunks:
            for _, task, index, _ in chunk.mix:
                self.readers[task, index] = self.readers.get((task, index), 0) + 1

    def end_task(self, task: int, chunks: Task) -> None:
        """Drop the freed messages that only this ended task still needed, and its unanswered requests."""
        for chunk in chunks if self.readers else ():
            for _, other, index, _ in chunk.mix:
                key = other, index
                remaining = self.readers.pop(key, 0) - 1
                if remaining > 0:
                    self.readers[key] = remaining
                elif remaining == 0 and key in self.freed:
                    self.freed.discard(key)
                    self._drop(key)
        if self.requests:
            self.requests = {key: request for key, request in self.requests.items() if key[0] != task}

    def forget_requests(self, tasks: Collection[int]) -> None:
        """Drop the requests of tasks that have ended."""
        ended = set(tasks)
        self.requests = {key: request for key, request in self.requests.items() if key[0] not in ended}

    def free(self, task: int, chunk: int) -> None:
        """Drop a message, immediately or when the last task that starts from it has ended."""
        if (task, chunk) in self.readers:
            self.freed.add((task, chunk))
        else:
            self._drop((task, chunk))

    def _drop(self, key: Place) -> None:
        self.arrived.pop(key, None)

    # ------------------------------------------------------------------------------------------- checkpoints

    def vectors(self) -> dict[str, Vector]:
        """Return the vectors to save: freed messages that tasks in flight still need, and the workers' states."""
        freed = {f"read/{task}/{chunk}": self.message((task, chunk)) for task, chunk in sorted(self.freed)}
        return freed | {
            f"state/{worker}/{task}/{name}": vector
            for worker in range(len(self.states))
            for task, state in self.saved_states(worker).items()
            for name, vector in state.items()
        }

    def saved_states(self, worker: int) -> Mapping[int, State]:
        """Return the states of a worker that a later task may continue, by task."""
        return self.states[worker]

    def restore(self, vectors: Mapping[str, Vector], workers: Mapping[int, int]) -> None:
        """Restore the result of :meth:`vectors`; ``workers``: the worker of each task."""
        states: dict[Place, State] = {}
        for key, vector in vectors.items():
            kind, first, second, *name = key.split("/", 3)
            pair = int(first), int(second)  # task and chunk, or worker and task
            if kind == "read":
                self.restore_message(workers.get(pair[0], 0), *pair, (), vector)
                self.freed.add(pair)
            elif kind == "state" and self.states:
                states.setdefault(pair, {})[name[0]] = vector
        for (worker, task), state in states.items():
            self.states[worker][task] = state
            self.continued[worker] = (*self.continued.get(worker, ()), task)
