"""Strategies: who works on what, and what follows from an event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from anyk.errors import BadInput
from anyk.plain import from_plain, to_plain
from anyk.protocol.commands import Command
from anyk.protocol.events import Event
from anyk.protocol.pace import DelayLaw, Pace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    of the same partition in a step (None: if it is assigned to several).

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

    @property
    def unit(self) -> float:
        """What a partition counts as where a partition is a worker's share: 1, but for pieces computed together."""
        return self.workers / self.partitions if self.together else 1.0

    @property
    def trained(self) -> tuple[str, ...]:
        """The slots that are trained for their own sake."""
        return tuple(slot for slot in self.slots if slot not in self.auxiliary)


def _assigned(layout: Layout) -> list[float]:
    """The share of the data that each worker is assigned."""
    sizes = layout.shares or (1,) * layout.partitions
    total = sum(sizes)
    return [sum(sizes[j] for j in held) / total for held in layout.assignment]


class Compressor(Protocol):
    """Facts of a compressor of messages that a strategy may depend on.

    ``promise``: linear, unbiased or contractive.
    """

    @property
    def spec(self) -> str:
        """The short form."""
        ...

    @property
    def promise(self) -> str:
        """The property of messages that can be relied on."""
        ...


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
        """The short form from which it can be built again."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Workers, partitions and who is assigned which, slots."""

    @abstractmethod
    def start(self, fleet: Fleet) -> tuple[Any, Sequence[Command]]:
        """Begin: the state of a new run, and the first commands."""

    @abstractmethod
    def on(self, state: Any, event: Event) -> Sequence[Command]:
        """React to one event."""

    def rebuild(self, state: Any) -> None:
        """Work out the derived fields of a state that has been read back; by default there are none."""
        del state

    def planned(self, steps: int | None) -> Strategy:
        """The strategy for a run of so many steps of each model (None: without an end); by default as it is."""
        del steps
        return self

    def check_further(self, state: Any, steps: int, begun: int = 0) -> None:
        """Raise :class:`~anyk.errors.BadInput` where a state cannot go on beyond the steps that it was planned for.

        Of the ``steps``, an earlier run has taken those ``begun``.
        """
        del state, steps, begun

    @property
    def exact(self) -> bool:
        """Whether every step is made of the exact sum; by default that is not known."""
        return False

    @property
    def summary(self) -> str:
        """A description in a few words; by default the first line of the class's documentation."""
        return (type(self).__doc__ or "").partition("\n")[0].replace("``", "")

    def for_jobs(self, jobs: int) -> Strategy:
        """The strategy for a run of so many steps of all models together; by default as it is."""
        del jobs
        return self

    def rounds_for(self, jobs: int) -> int:
        """The rounds that so many steps take; by default as many."""
        return jobs

    def waited(self, state: Any) -> tuple[Sequence[float], int] | None:
        """Seconds of each round so far, and in how many stragglers were waited for; None if it does not know."""
        del state
        return None

    @property
    def shares_computed(self) -> Sequence[float]:
        """The share of the data that each worker computes in a step; by default, all that it is assigned."""
        return _assigned(self.layout)

    @property
    def share_held(self) -> float:
        """The largest share of the data that a worker holds; by default, all that it is assigned."""
        return max(_assigned(self.layout))

    @property
    def vectors_sent(self) -> float | None:
        """Vectors as long as the model that workers are sent and send back in a step, at most; None: not known.

        By default, where steps are exact, every worker is sent the model and sends a message.
        """
        layout = self.layout
        return layout.workers * (1.0 + 1.0 / layout.blocks) if self.exact else None

    @property
    def models_trained(self) -> int:
        """The models that are trained at once."""
        return len(self.layout.trained)

    def durations(self, seconds: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Seconds of each round, if workers take so long for their tasks (shape rounds x workers); None: simulate."""
        del seconds
        return None

    def durations_by_parts(
        self, seconds: NDArray[np.float64], whole: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """As :meth:`durations`, for strategies that use parts of a task; by default they count when all is done.

        ``whole``: seconds for computing on the whole data (rounds x workers), of which each partition takes its share,
        one after another at the end of a task.
        """
        del whole
        return self.durations(seconds)

    def settled(self, seconds: NDArray[np.float64], slopes: NDArray[np.float64], load: float) -> Strategy:
        """The strategy as it runs once it has come to know a fleet, for one that adapts; by default as it is.

        ``seconds``: of tasks that cover the share ``load`` of the data, shape (rounds, workers); ``slopes``: seconds
        for the whole data, shape (workers,).
        """
        del seconds, slopes, load
        return self

    def pace(self, delays: DelayLaw) -> Pace:
        """Expected seconds of an update and mean staleness under a delay law; by default not known."""
        del delays
        return Pace(None, None, "no closed form; simulate")

    def check_compressor(self, by: Compressor) -> None:
        """Raise :class:`~anyk.errors.BadInput` where messages must not be compressed by this; by default always."""
        del by
        raise BadInput(
            f"'{self.spec}' does not compose with compressed messages; a strategy of your own allows them by "
            "overriding check_compressor"
        )

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

    on: Callable[[Event], Sequence[Command]]  #: React to one event.

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.state: Any = None

    def start(self, fleet: Fleet) -> Sequence[Command]:
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
