"""What strategies and clusters say to each other: events one way, commands the other.

A *strategy* is told what happened (events) and answers with what to do (commands). It holds no array, reads no clock
and draws no number of its own, so the same object runs on a virtual clock, on real machines and from a log.
A *cluster* carries commands out and reports events. The driver in :mod:`anyk.training` stands between them.

Events and commands are made by the million: they are named tuples of plain data, and a command speaks of many
workers at once. Tasks are numbered by the strategy, upwards from 0, and never reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

CancelMode: TypeAlias = Literal["preempt", "discard"]


class Chunk(NamedTuple):
    """One piece of work: the partial gradients of ``partitions``, added up with ``coefficients``, at a slot's model.

    The model version is the slot's newest when the task is dispatched. ``send="done"``: the message is sent when the
    last partition is finished. ``send="request"``: finished partial gradients stay with the worker, which reports
    progress after each, until a :class:`Collect` asks for one message made of them. ``batch``: that many samples of
    each partition, drawn by (seed, model version, partition, ``repeat``), stand for all of them, scaled up; 0: all.

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
    digest: int = 0  # of the message: the bits of its sum, of a payload's words; 0 where there is none


# ---------------------------------------------------------------------------------------------------- events


class Reply(NamedTuple):
    """A whole, finite message arrived: chunk ``chunk`` of ``task``."""

    time: float
    worker: int
    task: int
    chunk: int
    timing: Timing | None = None


class Progress(NamedTuple):
    """A worker finished ``done`` partitions of a chunk that is sent on request."""

    time: float
    worker: int
    task: int
    chunk: int
    done: int


class Failed(NamedTuple):
    """A chunk gave no usable message: it was not finite, had the wrong length, or raised; ``reason`` says which."""

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
    """A worker came (back); it has its partitions and is idle."""

    time: float
    worker: int


class Alarm(NamedTuple):
    """The alarm called ``name`` rang."""

    time: float
    name: str


class Measured(NamedTuple):
    """What a :class:`Measure` asked for: the projection of a message on the vector of a key."""

    time: float
    worker: int
    task: int
    chunk: int
    value: float


class Assessed(NamedTuple):
    """What an :class:`Assess` asked for: the objective at the slot's version, and the learning rate it has come to."""

    time: float
    slot: str
    version: int
    loss: float
    rate: float = 1.0


class Compared(NamedTuple):
    """What a :class:`Compare` asked for: a squared distance; 0 where there are no models."""

    time: float
    worker: int
    task: int
    chunk: int
    value: float


class Scattered(NamedTuple):
    """What a :class:`Scatter` asked for: of mean gradients, the mean squared norm and the squared norm of the mean."""

    time: float
    replies: int
    mean_square: float
    square_of_mean: float


Event: TypeAlias = Reply | Progress | Failed | Lost | Joined | Alarm | Measured | Assessed | Compared | Scattered


class Cut(NamedTuple):
    """What became of a cancelled chunk, where the cluster learns it: bookkeeping, not shown to strategies.

    ``done`` partitions were finished; the message would have been, or was, ready at ``due`` (None: unknown).
    """

    time: float
    worker: int
    task: int
    chunk: int
    done: int
    due: float | None


# ---------------------------------------------------------------------------------------------------- commands


class Dispatch(NamedTuple):
    """Give ``workers[i]`` the task ``chunks[i]`` under the number ``task + i``.

    ``round``: the number by which delays that go by rounds are drawn, where that is not the model's version.
    """

    task: int
    workers: Sequence[int]
    chunks: Sequence[Task]
    round: int | None = None


class Cancel(NamedTuple):
    """Have done with ``tasks``: messages not yet used are dropped, work not finished is cut off.

    ``preempt``: the worker stops between two partitions or inside an injected delay. ``discard``: it finishes, and
    the result is dropped.
    """

    tasks: Sequence[int]
    mode: CancelMode = "preempt"


class Collect(NamedTuple):
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


class Measure(NamedTuple):
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
    counts as ``g + compensation * g * g * (w - w_old)``, elementwise.
    """

    slot: str
    messages: Sequence[tuple[int, int]]  # (task, chunk)
    weights: Sequence[Any]  # a number each, or a sequence of ``blocks`` numbers
    divisor: Literal["all", "counted"] = "all"
    scale: float = 1.0
    residual: float | None = None
    gain: float = 1.0
    compensation: float = 0.0


class Mix(NamedTuple):
    """Take a slot to its next version without a gradient: ``share`` times itself plus a weighted sum of models.

    Messages are those of local work. ``relative``: instead of a model its change since the version it began from is
    added. ``others``: other slots' newest versions, with weights, that are added, too. ``by_samples``: weights are
    multiplied by the samples that a message covers, and add up to what they did before. ``outer``: an optimiser's spec
    and learning rate; it then steps by the difference, as if that were a gradient, to the point that it makes of it.
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


class SetAlarm(NamedTuple):
    """Ring ``name`` at ``time``; an alarm already set under that name is moved, a time of None takes it back."""

    name: str
    time: float | None


class Assess(NamedTuple):
    """Ask for the objective at a slot's newest version; without a problem the answer is NaN.

    ``number``: of the step whose learning rate is told with it, if that is not the version's.
    """

    slot: str
    number: int | None = None


class Compare(NamedTuple):
    """Ask for the squared distance between a slot's newest version and the one that a task's chunk was given."""

    worker: int
    task: int
    chunk: int


class Scatter(NamedTuple):
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
    Assess | Compare | Dispatch | Cancel | Collect | Combine | Measure | Mix | Note | Scatter | SetAlarm | Stop
)


# ---------------------------------------------------------------------------------------------------- who speaks


def slot_names(models: int) -> tuple[str, ...]:
    """The slots of so many models trained at once.

    >>> slot_names(1), slot_names(2)
    (('model',), ('model 0', 'model 1'))
    """
    return ("model",) if models == 1 else tuple(f"model {i}" for i in range(models))


class Fleet(NamedTuple):
    """What a strategy is told at the start: how many workers there can be, and who is present at which time.

    ``rounds``: steps that its models have had before, all together, where the run goes on from another.
    """

    workers: int
    present: tuple[int, ...]
    time: float = 0.0
    rounds: int = 0


def strategy_text(strategy: Strategy) -> str:
    """What ``repr`` shows of a strategy."""
    return f"<{type(strategy).__name__} {strategy.spec}, {strategy.workers} workers>"


class Strategy(Protocol):
    """When is there enough, what is combined, what happens to the rest, who gets what next.

    A worker is given a task only while it is present and has none that is open: a task ends with the last of its
    messages, with its cancellation or with its worker. Events may come late or twice: a message of a task that was
    cancelled or whose worker was lost, a present worker that joins, an absent one that is lost; they change nothing
    but who has been given up. ``start`` begins afresh, also on a strategy that has been used
    (:func:`anyk.testing.check_strategy` checks all this).

    ``state`` is plain data (what JSON can hold) from which ``restore`` goes on exactly. Further attributes are
    optional: ``shares`` (default: even), the sizes of the partitions, relative to each other; ``blocks`` (default 1),
    the number of parts of the vector of which each message is one; ``covers`` (default ``holdings``), the partitions
    that each worker's longest message covers; ``auxiliary`` (default none), slots that are neither counted as steps nor
    evaluated; ``inner``, where it is there, says that workers take local steps: with that optimiser, or, where it is
    empty, with the run's.
    """

    @property
    def spec(self) -> str:
        """The short form from which it can be built again."""
        ...

    @property
    def workers(self) -> int:
        """n."""
        ...

    @property
    def partitions(self) -> int:
        """m."""
        ...

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the models it trains."""
        ...

    @property
    def holdings(self) -> Sequence[tuple[int, ...]]:
        """The partitions each worker may be asked for."""
        ...

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """Begin; the first commands."""
        ...

    def on(self, event: Event) -> Sequence[Command]:
        """React to one event."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that changes, as plain data."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        ...
