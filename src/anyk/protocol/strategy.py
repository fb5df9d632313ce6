"""Strategies: who works on what, and what follows from an event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from anyk.protocol.commands import Command
from anyk.protocol.events import Event


def slot_names(models: int) -> tuple[str, ...]:
    """The slots of so many models trained at once.

    >>> slot_names(1), slot_names(2)
    (('model',), ('model 0', 'model 1'))
    """
    return ("model",) if models == 1 else tuple(f"model {i}" for i in range(models))


@dataclass(frozen=True)
class Layout:
    """What a strategy needs laid out before it starts, and what does not change while it runs.

    ``workers``: n. ``partitions``: m. ``assignment``: the partitions each worker may be asked for. ``slots``: the
    models it trains, by name; those of them that are ``auxiliary`` are neither counted as steps nor evaluated.
    ``covers``: the partitions that each worker's longest message covers, if not those assigned to it. ``shares``: sizes
    of the partitions relative to each other (None: even). ``blocks``: each message is one of so many parts of the
    vector. ``inner``: that workers take local steps, with this optimiser's spec, or with the run's own where it is
    empty (None: they compute gradients).

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

    @property
    def trained(self) -> tuple[str, ...]:
        """The slots that are trained for their own sake."""
        return tuple(slot for slot in self.slots if slot not in self.auxiliary)


class Fleet(NamedTuple):
    """What a strategy is told at the start: how many workers there can be, and who is present at which time.

    ``rounds``: steps that its models have had before, all together, where the run goes on from another.
    """

    workers: int
    present: tuple[int, ...]
    time: float = 0.0
    rounds: int = 0


class Strategy(Protocol):
    """When is there enough, what is combined, what happens to the rest, who gets what next.

    A worker is given a task only while it is present and has none that is open: a task ends with the last of its
    messages, with its cancellation or with its worker. Events may come late or twice: a message of a task that was
    cancelled or whose worker was lost, a present worker that joins, an absent one that is lost; they change nothing
    but who has been given up. ``start`` begins afresh, also on a strategy that has been used
    (:func:`anyk.testing.check_strategy` checks all this).

    ``state`` is plain data (what JSON can hold) from which ``restore`` goes on exactly.
    """

    @property
    def spec(self) -> str:
        """The short form from which it can be built again."""
        ...

    @property
    def layout(self) -> Layout:
        """Workers, partitions and who is assigned which, slots."""
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

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.on = strategy.on

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """Begin anew; the first commands."""
        return self.strategy.start(fleet)

    def save(self) -> dict[str, Any]:
        """The state as plain data, which JSON can hold."""
        return self.strategy.state()

    def restore(self, plain: dict[str, Any]) -> None:
        """Go on from what :meth:`save` returned, in place of :meth:`start`."""
        self.strategy.restore(plain)


def strategy_text(strategy: Strategy) -> str:
    """What ``repr`` shows of a strategy."""
    return f"<{type(strategy).__name__} {strategy.spec}, {strategy.layout.workers} workers>"
