"""Commands: the orders of a strategy to the driver and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from anyk.protocol.work import Task

CancelMode: TypeAlias = Literal["preempt", "discard"]


class Dispatch(NamedTuple):
    """Give ``workers[i]`` the task ``chunks[i]`` with the number ``task + i``.

    ``round``: the number by which delays per round are sampled, if that is not the model's version.
    """

    task: int
    workers: Sequence[int]
    chunks: Sequence[Task]
    round: int | None = None


class Cancel(NamedTuple):
    """End ``tasks``: unused and kept messages are dropped, unfinished work is cancelled.

    ``preempt``: the worker stops between two partitions or inside an injected delay. ``discard``: it finishes, and
    the result is dropped.
    """

    tasks: Sequence[int]
    mode: CancelMode = "preempt"


class RequestMessage(NamedTuple):
    """Request the message of a chunk that is sent on request: finished ``partitions`` with ``coefficients``.

    The worker adds ``messages`` (task, chunk) that have arrived, with ``weights``. They are sent from worker to worker,
    and only their sum to the driver.
    """

    worker: int
    task: int
    chunk: int
    partitions: tuple[int, ...]
    coefficients: tuple[float, ...]
    messages: tuple[tuple[int, int], ...] = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> RequestMessage:
        """Return the command read from JSON."""
        return msgspec.convert(plain, cls)


class ProjectMessage(NamedTuple):
    """Request the projection of a message that has arrived on the vector of ``key`` (normal draws with mean 1)."""

    worker: int
    task: int
    chunk: int
    key: int = 0


class Combine(NamedTuple):
    """Add up messages with weights, and step the slot's optimiser with the sum to its next version.

    ``divisor``: ``all`` divides by the number of samples N (for rounds that estimate the complete sum), ``counted`` by
    the samples that the messages cover. ``scale`` multiplies the learning rate. ``residual`` and ``gain`` of the
    decoding are stored in the receipt. With ``all``, the residual is also computed from the coefficients that were
    dispatched: a ``residual`` that differs from it ends the run, and None is replaced by it. ``compensation``: a
    message g (a mean over its samples) that was computed on an older model counts, elementwise, as
    ``g + compensation * g * g * (w - w_old)``. ``keep``: messages that are stored and may be used again until their
    tasks are cancelled.
    """

    slot: str
    messages: Sequence[tuple[int, int]]  # (task, chunk)
    weights: Sequence[Any]  # a number each, or a sequence of ``blocks`` numbers
    divisor: Literal["all", "counted"] = "all"
    scale: float = 1.0
    residual: float | None = None
    gain: float = 1.0
    compensation: float = 0.0
    keep: Sequence[tuple[int, int]] = ()


class Mix(NamedTuple):
    """Take a slot to its next version without a gradient: ``share`` times itself plus a weighted sum of models.

    Messages are models after local steps. ``relative``: the change from a model's initial version is added instead of
    the model. ``others``: slots whose newest versions are added with weights. ``by_samples``: weights are multiplied by
    the samples that a message covers, and then scaled to the same sum. ``outer``: the spec and learning rate of an
    optimiser that steps by the difference from the slot's version, as if that were a gradient. ``keep``: as in
    :class:`Combine`.
    """

    slot: str
    messages: Sequence[tuple[int, int]]
    weights: Sequence[float]
    share: float = 0.0
    relative: bool = False
    others: tuple[tuple[str, float], ...] = ()
    by_samples: bool = False
    outer: tuple[str, float] | None = None
    number: int = 0  # of local steps before it, which determines learning rates
    keep: Sequence[tuple[int, int]] = ()


class SetAlarm(NamedTuple):
    """Set the alarm ``name`` to ``time``, instead of any former time of that alarm; None cancels it."""

    name: str
    time: float | None


class EvaluateLoss(NamedTuple):
    """Request the objective at a slot's newest version; without a problem the answer is NaN.

    ``number``: the step whose learning rate is reported with it, by default the version.
    """

    slot: str
    number: int | None = None


class MeasureDrift(NamedTuple):
    """Request the squared distance between a slot's newest version and the version of a task's chunk."""

    worker: int
    task: int
    chunk: int


class MeasureNoise(NamedTuple):
    """Request the spread of messages that have arrived; precedes the ``Combine`` that uses them."""

    messages: Sequence[tuple[int, int]]


class Note(NamedTuple):
    """Write a text for readers into the log; receipts repeat the newest of kind ``fleet``, on who computes what."""

    text: str
    kind: Literal["strategy", "fleet"] = "strategy"


class Stop(NamedTuple):
    """End the run; ``failed``: it cannot continue."""

    reason: str
    failed: bool = False


Command: TypeAlias = (
    EvaluateLoss
    | MeasureDrift
    | Dispatch
    | Cancel
    | RequestMessage
    | Combine
    | ProjectMessage
    | Mix
    | Note
    | MeasureNoise
    | SetAlarm
    | Stop
)
Commands: TypeAlias = Sequence[Command]
