"""Strategies: who works on what, and what follows from an event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from anyk.plain import from_plain, to_plain
from anyk.protocol.commands import Commands
from anyk.protocol.events import Event
from anyk.protocol.facts import StrategyFacts


def slot_names(models: int) -> tuple[str, ...]:
    """The slots of so many models trained at once.

    >>> slot_names(1), slot_names(2)
    (('model',), ('model 0', 'model 1'))
    """
    return ("model",) if models == 1 else tuple(f"model {i}" for i in range(models))


@dataclass(frozen=True)
class Layout:
    """The lasting set-up of a strategy: workers, partitions and models, which do not change while it runs.

    ``workers``: n. ``partitions``: m. ``assignment``: the partitions each worker may be asked for. ``slots``: the
    models it trains, by name; those of them that are ``auxiliary`` are neither counted as steps nor evaluated.
    ``covers``: the partitions that each worker's longest message covers, if not those assigned to it. ``shares``: sizes
    of the partitions relative to each other (None: even). ``blocks``: each message is one of so many parts of the
    vector. ``inner``: that workers take local steps, with this optimiser's spec, or with the run's own where it is
    empty (None: they compute gradients). ``voting``: messages of the same partitions are compared, and one that differs
    is outvoted. ``together``: each message is the plain sum of consecutive partitions, which are computed at once, as
    if they were one (a mini-batch is drawn from all of them). ``replicated``: whether several workers compute gradients
    of the same partition in a step (None: if it is assigned to several). ``losses``: the strategy asks for the training
    loss. ``minibatches``: every chunk draws a mini-batch, so that the data may be a stream without an end.
    ``spanning``: once so many different sums have arrived, the rows of all further ones are combinations of theirs, by
    which they are checked (0: never).

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

    @property
    def unit(self) -> float:
        """The share of a worker's work that a partition is: 1, but less for pieces computed together."""
        return self.workers / self.partitions if self.together else 1.0

    @property
    def trained(self) -> tuple[str, ...]:
        """The slots that are trained for their own sake."""
        return tuple(slot for slot in self.slots if slot not in self.auxiliary)

    @property
    def shares_assigned(self) -> list[float]:
        """The share of the data that each worker is assigned."""
        sizes = self.shares or (1,) * self.partitions
        total = sum(sizes)
        return [sum(sizes[j] for j in partitions) / total for partitions in self.assignment]


class Fleet(NamedTuple):
    """The workers at the start of a run: how many there can be, and who is present at which time.

    ``rounds``: steps that its models have had before, all together, where the run goes on from another.
    """

    workers: int
    present: tuple[int, ...]
    time: float = 0.0
    rounds: int = 0


class Strategy(ABC):
    """The decisions of a run: when to step, which messages to combine, what to cancel and what to dispatch next.

    A strategy is a value: its settings, which never change. What changes in a run is a *state*, a dataclass (best with
    ``slots=True``) of the class :attr:`State` that :meth:`start` makes and :meth:`on` changes in place. Of a state's
    fields only plain data is saved (:mod:`anyk.plain`): numbers, texts, lists, tuples, sets, dicts and dataclasses of
    such; a field that is :func:`~anyk.plain.derived` from the others is left out and made again by :meth:`rebuild`.

    A worker is given a task only while it is present and has none that is open: a task ends with the last of its
    messages, with its cancellation or with its worker. Events may come late or twice: a message of a task that was
    cancelled or whose worker was lost, a present worker that joins, an absent one that is lost; they change nothing
    but who has been given up (:func:`anyk.testing.check_strategy` checks all this).
    """

    State: ClassVar[type[Any]]
    duck_typed: ClassVar[bool] = True  # an argument may be a spec, too: it is looked at where it is used

    @property
    @abstractmethod
    def spec(self) -> str:
        """The strategy as text, from which it can be built again."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Workers, partitions and who is assigned which, slots."""

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
        """A description in a few words; by default the first line of the class's documentation."""
        return (type(self).__doc__ or "").partition("\n")[0].replace("``", "")

    @property
    def facts(self) -> StrategyFacts:
        """StrategyFacts that planners and compressors need without running the strategy."""
        return StrategyFacts()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}, {self.layout.workers} workers>"


class Running:
    """A strategy at work: told one event after another, saved and restored.

    >>> import anyk
    >>> from anyk.protocol import Fleet, Reply
    >>> running = Running(anyk.strategy("async", workers=2))
    >>> [type(command).__name__ for command in running.start(Fleet(2, (0, 1)))]
    ['Dispatch']
    >>> [type(command).__name__ for command in running.on(Reply(0.5, 1, 1, 0))]
    ['Combine', 'Dispatch']
    """

    on: Callable[[Event], Commands]  #: React to one event.

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.state: Any = None

    def start(self, fleet: Fleet) -> Commands:
        """Begin anew; the first commands."""
        self.state, commands = self.strategy.start(fleet)
        self.on = partial(self.strategy.on, self.state)
        return commands

    def save(self) -> dict[str, Any]:
        """The state as plain data, which JSON can hold."""
        plain: dict[str, Any] = to_plain(self.state)
        return plain

    def restore(self, plain: dict[str, Any]) -> None:
        """Go on from what :meth:`save` returned, in place of :meth:`start`."""
        self.state = from_plain(self.strategy.State, plain, self.strategy)
        self.strategy.rebuild(self.state)
        self.on = partial(self.strategy.on, self.state)
