"""Work: what a worker is asked for, and when its message passed its stations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias


class Chunk(NamedTuple):
    """A piece of work: the partial gradients of ``partitions``, added up with ``coefficients``, at a slot's model.

    The model version is the slot's newest when the task is dispatched. ``send="done"``: the message is sent when the
    last partition is finished. ``send="request"``: finished partial gradients stay with the worker, which reports
    progress after each, until a :class:`RequestMessage` asks for one message made of them. ``batch``: that many
    samples of each partition, drawn by (seed, model version, partition, ``repeat``), stand for all of them, scaled up;
    0: all.

    With ``steps`` it is local work instead: so many steps of the run's optimiser on the partitions' mean gradient, and
    the message is the model they end at. They begin at ``share`` times the slot's version plus the weighted sum of
    the messages (worker, task, chunk, weight) in ``mix``, read where they lie, and are numbered from ``repeat`` on,
    which draws their mini-batches and sets their learning rates. ``state`` is the worker's task whose optimiser state
    they go on with (-1: a fresh one; so is that of a worker that has died since).

    ``compress``: the compressor's spec of a message that is sent compressed, of local work as the change from the
    slot's version. What its error feedback left out is part of ``state``.
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
        """The partitions whose coordinates the message has; of a model, which has all, none need be named."""
        return () if self.steps else self.partitions

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Chunk:
        """Read back what JSON made of one."""
        chunk = cls(*plain)
        mix = tuple((i, task, index, weight) for i, task, index, weight in chunk.mix)
        return chunk._replace(partitions=tuple(chunk.partitions), coefficients=tuple(chunk.coefficients), mix=mix)


Task: TypeAlias = tuple[Chunk, ...]  # what a worker is given: an ordered list of chunks


class Timing(NamedTuple):
    """When a message's life passed its stations, in seconds of the run's clock, stamped where it happened."""

    started: float  # the worker took the task
    computing: float  # the injected delay was over
    computed: float  # the last partial gradient of the message was done
    sent: float
    digest: int = 0  # of the message, or of its payload if it is compressed; 0 where there is none
