"""Work: the tasks of workers, and the times of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec


class Chunk(NamedTuple):
    """A piece of work: the partial gradients of ``partitions``, added up with ``coefficients``, at a slot's model.

    The model version is the slot's newest when the task is dispatched. ``send="done"``: the message is sent when the
    last partition is finished. ``send="request"``: the worker stores finished partial gradients and reports progress
    after each, until a :class:`RequestMessage` requests one message made from these. ``batch``: the number of samples
    of each partition, sampled by (seed, model version, partition, ``repeat``), whose gradient is scaled up to all
    samples; 0: all samples.

    With ``steps`` it is local work instead: this number of steps of the run's optimiser on the partitions' mean
    gradient; the message is the final model. The initial model is ``share`` times the slot's version plus the weighted
    sum of the messages (worker, task, chunk, weight) in ``mix``, read from their workers. Steps are numbered from
    ``repeat``, which determines their mini-batches and learning rates. ``state`` is the worker's task whose optimiser
    state they continue (-1: a new state, as after the worker's death).

    ``compress``: the spec of the compressor of the message; local work is compressed as the change from the slot's
    version. The part that error feedback has omitted belongs to ``state``.
    """

    partitions: tuple[int, ...]
    coefficients: tuple[float, ...]
    slot: str = "model"
    send: Literal["done", "request"] = "done"
    batch: int = 0
    repeat: int = 0
    steps: int = 0
    mix: tuple[tuple[int, int, int, float], ...] = ()
    share: float = 1.0
    state: int = -1
    compress: str = ""

    @property
    def covers(self) -> tuple[int, ...]:
        """Partitions whose coordinates the message contains; none for a model, which has all coordinates."""
        return () if self.steps else self.partitions

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Chunk:
        """Return the chunk read from JSON."""
        return msgspec.convert(plain, cls)


Task: TypeAlias = tuple[Chunk, ...]  # the chunks that a worker computes in order


class Timing(NamedTuple):
    """Times of the stages of a message, in seconds of the run's clock, taken by the worker."""

    started: float  # the worker took the task
    computing: float  # the injected delay was over
    computed: float  # the last partial gradient of the message was done
    sent: float
    digest: int = 0  # of the message, or of its payload if it is compressed; 0 if there is none
