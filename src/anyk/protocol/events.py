"""Events that the strategy receives."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from anyk.protocol.work import Timing


class Reply(NamedTuple):
    """A complete, finite message arrived, from chunk ``chunk`` of ``task``.

    ``staleness``: the number of versions by which its slot's newest is ahead of the one that the message is of.
    """

    time: float
    worker: int
    task: int
    chunk: int
    timing: Timing | None = None
    staleness: int = 0  # known to the driver: a cluster leaves it out


class Progress(NamedTuple):
    """A worker finished ``done`` partitions of a chunk that is sent on request."""

    time: float
    worker: int
    task: int
    chunk: int
    done: int


class Failed(NamedTuple):
    """A chunk gave no usable message: it was not finite, had the wrong length, or raised an error (``reason``).

    It may follow the :class:`Reply` of the same chunk if its message contradicts another; the message must then not be
    used. A strategy that has counted it for a step that is still to be taken drops it and asks again.
    """

    time: float
    worker: int
    task: int
    chunk: int
    reason: str


class Lost(NamedTuple):
    """A worker died; ``gone``: it has been given up and will not join again."""

    time: float
    worker: int
    reason: str
    gone: bool = False


class Joined(NamedTuple):
    """A worker joined, possibly again; it has its partitions and is idle."""

    time: float
    worker: int


class Leaving(NamedTuple):
    """A worker will be taken away, at ``deadline`` at the latest; its :class:`Lost` follows when its task has ended.

    A strategy may ignore this: a task that the worker is given meanwhile ends with it.
    """

    time: float
    worker: int
    deadline: float


class Alarm(NamedTuple):
    """The time of the alarm ``name`` has come."""

    time: float
    name: str


class MessageProjected(NamedTuple):
    """The answer to a :class:`ProjectMessage`: the projection of a message on the vector of a key."""

    time: float
    worker: int
    task: int
    chunk: int
    value: float


class LossEvaluated(NamedTuple):
    """The answer to an :class:`EvaluateLoss`: the objective at the slot's version, and its learning rate."""

    time: float
    slot: str
    version: int
    loss: float
    rate: float = 1.0


class DriftMeasured(NamedTuple):
    """The answer to a :class:`MeasureDrift`: a squared distance; 0 where there are no models."""

    time: float
    worker: int
    task: int
    chunk: int
    value: float


class NoiseMeasured(NamedTuple):
    """The answer to a :class:`MeasureNoise`: mean squared norm of mean gradients, and squared norm of their mean."""

    time: float
    replies: int
    mean_square: float
    square_of_mean: float


Event: TypeAlias = (
    Reply
    | Progress
    | Failed
    | Lost
    | Joined
    | Leaving
    | Alarm
    | MessageProjected
    | LossEvaluated
    | DriftMeasured
    | NoiseMeasured
)


class Cut(NamedTuple):
    """The end of a cancelled chunk as far as the cluster knows it, for the ledger; strategies do not receive it.

    ``done`` partitions were finished; the message would have been, or was, ready at ``due`` (None: unknown).
    """

    time: float
    worker: int
    task: int
    chunk: int
    done: int
    due: float | None
