"""Commands: what is to be done, told by the strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from anyk.protocol.work import Task

CancelMode: TypeAlias = Literal["preempt", "discard"]


class Dispatch(NamedTuple):
    """Give ``workers[i]`` the task ``chunks[i]`` under the number ``task + i``.

    ``round``: the number by which delays that go by rounds are drawn, where that is not the model's version.
    """

    task: int
    workers: Sequence[int]
    chunks: Sequence[Task]
    round: int | None = None


class Cancel(NamedTuple):
    """End ``tasks``: messages not yet used, or kept, are dropped, work not finished is cut off.

    ``preempt``: the worker stops between two partitions or inside an injected delay. ``discard``: it finishes, and
    the result is dropped.
    """

    tasks: Sequence[int]
    mode: CancelMode = "preempt"


class RequestMessage(NamedTuple):
    """Ask for the message of a chunk that is sent on request: finished ``partitions`` with ``coefficients``.

    ``messages`` (task, chunk) that have arrived are added to it by the worker, with ``weights``: they go from worker to
    worker, and only their sum to the driver.
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
        """Read back what JSON made of one."""
        worker, task, chunk, partitions, coefficients, messages, weights = plain
        places = tuple((other, index) for other, index in messages)
        return cls(worker, task, chunk, tuple(partitions), tuple(coefficients), places, tuple(weights))


class ProjectMessage(NamedTuple):
    """Ask for the projection of a message that has arrived on the vector of ``key`` (normal draws with mean 1)."""

    worker: int
    task: int
    chunk: int
    key: int = 0


class Combine(NamedTuple):
    """Add up messages with weights, and let the optimiser take the slot to its next version with the sum.

    ``divisor``: ``all`` divides by the number of samples N (rounds that estimate the whole sum), ``counted`` by the
    samples that the messages cover. ``scale`` multiplies the learning rate. ``residual`` and ``gain`` of the decode
    are for the receipt. With ``all``, a residual that is not that of the coefficients dispatched ends the run, and
    None has it worked out. ``compensation``: a message g (a mean over its samples) that was computed on an older model
    counts as ``g + compensation * g * g * (w - w_old)``, elementwise. ``keep``: those of the messages that stay, and
    may be used again, until their tasks are cancelled.
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

    Messages are those of local work. ``relative``: instead of a model its change since the version it began from is
    added. ``others``: other slots' newest versions, with weights, that are added, too. ``by_samples``: weights are
    multiplied by the samples that a message covers, and add up to what they did before. ``outer``: an optimiser's spec
    and learning rate; it then steps by the difference, as if that were a gradient, to the point that it makes of it.
    ``keep``: as of :class:`Combine`.
    """

    slot: str
    messages: Sequence[tuple[int, int]]
    weights: Sequence[float]
    share: float = 0.0
    relative: bool = False
    others: tuple[tuple[str, float], ...] = ()
    by_samples: bool = False
    outer: tuple[str, float] | None = None
    number: int = 0  # local steps before it, by which learning rates go
    keep: Sequence[tuple[int, int]] = ()


class SetAlarm(NamedTuple):
    """Ring ``name`` at ``time``; an alarm already set under that name is moved, a time of None takes it back."""

    name: str
    time: float | None


class EvaluateLoss(NamedTuple):
    """Ask for the objective at a slot's newest version; without a problem the answer is NaN.

    ``number``: of the step whose learning rate is told with it, if that is not the version's.
    """

    slot: str
    number: int | None = None


class MeasureDrift(NamedTuple):
    """Ask for the squared distance between a slot's newest version and the one that a task's chunk was given."""

    worker: int
    task: int
    chunk: int


class MeasureNoise(NamedTuple):
    """Ask how far apart messages that have arrived are; asked before the combine that uses them up."""

    messages: Sequence[tuple[int, int]]


class Note(NamedTuple):
    """Something a reader of the log should know of what the strategy does."""

    text: str


class Stop(NamedTuple):
    """End the run; ``failed`` when it could not go on."""

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
