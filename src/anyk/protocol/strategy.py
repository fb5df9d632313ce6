"""Strategies: the assignment of work, the commands that follow from events, and facts for planners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from anyk.base.arrays import Floats
from anyk.base.checks import check_range
from anyk.base.plain import ByName, from_plain, to_plain
from anyk.protocol.commands import Commands
from anyk.protocol.events import Event
from anyk.protocol.pace import DelayLaw, Pace

MOST_MODELS = 100_000


def slot_names(models: int) -> tuple[str, ...]:
    """Return the names of the slots of models that are trained simultaneously.

    >>> slot_names(1), slot_names(2)
    (('model',), ('model 0', 'model 1'))
    """
    check_range("models", models, 1, MOST_MODELS)
    return ("model",) if models == 1 else tuple(f"model {i}" for i in range(models))


@dataclass(frozen=True)
class Layout:
    """The fixed set-up of a strategy: workers, partitions and models.

    ``workers``: n. ``partitions``: m. ``assignment``: the partitions that each worker may be asked for. ``slots``: the
    names of the models; ``auxiliary`` models are not evaluated, nor are their steps counted. ``covers``: the
    partitions that each worker's longest message covers, by default those assigned to it. ``shares``: sizes of the
    partitions relative to each other (None: even). ``blocks``: each message is a fraction 1 / ``blocks`` of the vector.
    ``inner``: the spec of the optimiser of local steps, empty for the run's own (None: workers compute gradients).
    ``voting``: messages of the same partitions are compared, and a message that differs is outvoted. ``together``: each
    message is the plain sum of consecutive partitions, which are computed as if they were one (a mini-batch is sampled
    from all together). ``replicated``: whether several workers compute gradients of the same partition in a step (None:
    if it is assigned to several). ``losses``: the strategy evaluates the training loss. ``minibatches``: every chunk
    samples a mini-batch, so that the data may be an endless stream. ``spanning``: the number of different sums from
    which all further ones follow, by which these are checked (0: no check). ``epochs``: mini-batches are consecutive
    parts of a permutation of their partition, in the order of model versions. ``fewest``: the smallest number of
    workers with which a run starts and continues, if workers join and leave (0: all of them). ``stateful``: tasks
    continue the states of their worker's optimiser or compressor.

    >>> Layout(workers=2, partitions=2, assignment=((0,), (1,))).trained
    ('model',)
    """

    workers: int
    partitions: int
    assignment: Sequence[tuple[int, ...]]
    slots: tuple[str, ...] = ("model",)
    auxiliary: tuple[str, ...] = ()
    covers: Sequence[tuple[int, ...]] | None = None
    shares: Sequence[int] | None = None
    blocks: int = 1
    inner: str | None = None
    voting: bool = False
    together: bool = False
    replicated: bool | None = None
    losses: bool = False
    minibatches: bool = False
    spanning: int = 0
    epochs: bool = False
    fewest: int = 0
    stateful: bool = False

    @property
    def unit(self) -> float:
        """Share of an average worker's work in a partition if their number is not the workers', else 1."""
        return self.workers / self.partitions if self.together or self.fewest else 1.0

    @property
    def trained(self) -> tuple[str, ...]:
        """Slots that are not auxiliary."""
        return tuple(slot for slot in self.slots if slot not in self.auxiliary)

    @property
    def shares_assigned(self) -> list[float]:
        """Share of the data that each worker is assigned, shape (workers,)."""
        sizes = self.shares or (1,) * self.partitions
        total = sum(sizes)
        return [sum(sizes[j] for j in partitions) / total for partitions in self.assignment]


class Fleet(NamedTuple):
    """The workers at the start of a run: their largest number, and those present at ``time``.

    ``rounds``: total number of steps that an earlier run took, if this run continues from it.
    """

    workers: int
    present: tuple[int, ...]
    time: float = 0.0
    rounds: int = 0


class CompressorFacts(Protocol):
    """The properties of a compressor of messages on which a strategy may depend."""

    @property
    def spec(self) -> str:
        """The compressor's spec."""
        ...

    @property
    def promise(self) -> str:
        """The property of messages that can be relied on: linear, unbiased or contractive."""
        ...


@dataclass(frozen=True, kw_only=True)
class StrategyFacts:
    """Optional facts that make a strategy easier to plan.

    ``exact``: every step is the exact sum. ``compares_all``: every message is compared with another before a step uses
    it, unless no other is to come. ``models``: the number of models trained simultaneously, if the layout takes long to
    build. ``shares_computed``: the share of the data that each worker computes in a step (None: its partitions).
    ``share_stored``: the largest share that a worker stores (None: its partitions). ``vectors_sent``: the largest
    number of vectors of the model's length that workers receive and send in a step (None: unknown).

    ``pace(delays)``: seconds and staleness of an update under a delay model. ``durations(seconds, full_seconds)``:
    seconds of each round, shape (rounds,), if workers take ``seconds`` for their tasks and ``full_seconds`` for all of
    the data, both of shape (rounds, workers); a partition takes its share of ``full_seconds``, and partitions are
    computed in order at the end of a task. None: simulate. ``adapted(seconds, slopes, load)``: the strategy after it
    has adapted to workers that take ``seconds``, shape (rounds, workers), for the share ``load`` of the data, and
    ``slopes``, shape (workers,), for all of it.

    ``for_jobs(jobs)``: the strategy for a number of steps of all models together, which take ``extra_rounds`` more
    rounds. ``round_seconds(state)``: seconds of each round so far, and the number of rounds that waited for stragglers.
    ``check_further(state, steps, begun)`` raises :class:`~anyk.BadInput` if a state cannot continue beyond the
    planned ``steps``, including ``begun`` steps of an earlier run. ``check_compressor(by)`` raises it if messages must
    not be compressed by this compressor; without it no compressor is accepted.
    """

    exact: bool = False
    compares_all: bool = False
    models: int | None = None
    shares_computed: Sequence[float] | None = None
    share_stored: float | None = None
    vectors_sent: float | None = None
    pace: Callable[[DelayLaw], Pace] = lambda delays: Pace(None, None, "no closed form; simulate")
    durations: Callable[[Floats, Floats], Floats | None] = lambda seconds, full_seconds: None
    adapted: Callable[[Floats, Floats, float], Strategy] | None = None
    for_jobs: Callable[[int], Strategy] | None = None
    extra_rounds: int = 0
    round_seconds: Callable[[Any], tuple[Sequence[float], int]] | None = None
    check_further: Callable[[Any, int, int], None] | None = None
    check_compressor: Callable[[CompressorFacts], None] | None = None


class Strategy(ABC):
    """The decisions of a run: when to step, which messages to combine, what to cancel and what to dispatch next.

    A strategy is an immutable value that consists of its settings. The changing part of a run is a *state*, a dataclass
    (preferably with ``slots=True``) of the class :attr:`State`, which :meth:`start` returns and :meth:`on` changes in
    place. Checkpoints save states as plain data (:mod:`anyk.base.plain`): numbers, texts, lists, tuples, sets, dicts
    and dataclasses of these. A field that is :func:`~anyk.base.plain.derived` from the others is not saved, but
    computed again by :meth:`rebuild`.

    A worker is given a task only if it is present and has no open task: a task ends with its last message, its
    cancellation or its worker. Events may be late or repeated, such as a message of a cancelled task or of a lost
    worker, or a present worker that joins, or an absent worker that is lost. They change nothing except who has been
    given up (:func:`anyk.testing.check_strategy` checks all this).
    """

    State: ClassVar[type[Any]]
    duck_typed: ClassVar[bool] = True  # an argument may also be a spec, which is checked where it is used

    @property
    @abstractmethod
    def spec(self) -> str:
        """The strategy as text, from which it can be built again."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Workers, partitions, their assignment, and slots."""

    @abstractmethod
    def start(self, fleet: Fleet) -> tuple[Any, Commands]:
        """Return the state of a new run, and the first commands."""

    @abstractmethod
    def on(self, state: Any, event: Event) -> Commands:
        """Update the state by an event and return the commands that follow."""

    def rebuild(self, state: Any) -> None:
        """Compute the derived fields of a state that has been restored; by default there are none."""
        del state

    def planned(self, steps: int | None) -> Strategy:
        """Return the strategy for a run of ``steps`` steps of each model (None: no limit); by default itself."""
        return self

    @property
    def summary(self) -> str:
        """Short description; by default the first line of the class's documentation."""
        return (type(self).__doc__ or "").partition("\n")[0].replace("``", "")

    @property
    def facts(self) -> StrategyFacts:
        """Facts that planners and compressors need without running the strategy."""
        return StrategyFacts()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}, {self.layout.workers} workers>"


class Running:
    """A strategy with its state, which receives one event after another, and can be saved and restored.

    >>> import anyk
    >>> from anyk.protocol import Fleet, Reply
    >>> running = Running(anyk.strategy("async", workers=2))
    >>> [type(command).__name__ for command in running.start(Fleet(2, (0, 1)))]
    ['Dispatch']
    >>> [type(command).__name__ for command in running.on(Reply(0.5, 1, 1, 0))]
    ['Combine', 'Dispatch']
    """

    on: Callable[[Event], Commands]  #: Update the state by an event and return the commands that follow.

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.state: Any = None

    def start(self, fleet: Fleet) -> Commands:
        """Start a new run; return the first commands."""
        self.state, commands = self.strategy.start(fleet)
        self.on = partial(self.strategy.on, self.state)
        return commands

    def save(self) -> ByName:
        """Return the state as plain data for JSON."""
        return dict(to_plain(self.state))

    def restore(self, plain: ByName) -> None:
        """Restore a state that :meth:`save` returned, in place of :meth:`start`."""
        self.state = from_plain(self.strategy.State, plain, self.strategy)
        self.strategy.rebuild(self.state)
        self.on = partial(self.strategy.on, self.state)


def models_trained(strategy: Strategy) -> int:
    """Return the number of models that a strategy trains simultaneously."""
    return strategy.facts.models or len(strategy.layout.trained)


def shares_computed(strategy: Strategy) -> Sequence[float]:
    """Return the share of the data that each worker computes in a step."""
    return strategy.facts.shares_computed or strategy.layout.shares_assigned


def share_stored(strategy: Strategy) -> float:
    """Return the largest share of the data that a worker stores."""
    return strategy.facts.share_stored or max(strategy.layout.shares_assigned)
