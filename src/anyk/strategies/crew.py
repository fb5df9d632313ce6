"""The crew of a run, and the base class of strategies that have one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from anyk.base.checks import typed
from anyk.base.errors import BadInput, suggest
from anyk.base.specs import show_spec
from anyk.protocol import (
    Alarm,
    Command,
    Commands,
    DriftMeasured,
    Event,
    Failed,
    Fleet,
    Joined,
    Leaving,
    LossEvaluated,
    Lost,
    MessageProjected,
    NoiseMeasured,
    Progress,
    Reply,
    Stop,
    Strategy,
)

RETRIES = 2  # times that a worker with an unusable message is asked again in a round


@typed
@dataclass(slots=True)
class Crew:
    """The workers of a run: present and given up, their unusable messages, and the number of the next task.

    ``size``: n. ``gone``: workers that have been given up. ``next``: number of the next task. ``failures``: tasks
    of this round with an unusable message, by worker.

    >>> crew = Crew.of(Fleet(3, (0, 1)))
    >>> crew.join(2), crew.join(2), crew.number(2), crew.number(1)
    (True, False, 0, 2)
    """

    size: int
    present: set[int]
    gone: set[int] = field(default_factory=set)
    next: int = 0
    failures: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet) -> Crew:
        """Return the crew at the start of a run."""
        return cls(fleet.workers, set(fleet.present))

    def join(self, worker: int) -> bool:
        """Add a worker, whose failures are forgotten; return whether it was absent, as events may be repeated."""
        if worker in self.present:
            return False
        self.present.add(worker)
        self.gone.discard(worker)
        self.failures.pop(worker, None)
        return True

    def lose(self, event: Lost) -> None:
        """Remove a worker, for good if it has been given up."""
        self.present.discard(event.worker)
        if event.gone:
            self.gone.add(event.worker)

    @property
    def hopeless(self) -> bool:
        """Whether every worker has been given up."""
        return len(self.gone) == self.size

    def stop_if_hopeless(self) -> list[Command]:
        """Return the command that ends the run if every worker has been given up, else none."""
        return [Stop("every worker has been given up", failed=True)] if self.hopeless else []

    @property
    def complete(self) -> bool:
        """Whether all workers that have not been given up are present."""
        return len(self.present) + len(self.gone) >= self.size

    def number(self, count: int) -> int:
        """Reserve ``count`` consecutive task numbers, and return the first."""
        first = self.next
        self.next = first + count
        return first

    def fail(self, worker: int, task: int) -> None:
        """Note an unusable message; several messages of one task are one failure."""
        tasks = self.failures.setdefault(worker, [])
        if task not in tasks:
            tasks.append(task)

    def able(self, worker: int) -> bool:
        """Return whether a worker is present and has not failed too often in this round."""
        return worker in self.present and len(self.failures.get(worker, ())) <= RETRIES


_METHODS = {
    Reply: "on_reply",
    Progress: "on_progress",
    Failed: "on_failed",
    Lost: "on_lost",
    Joined: "on_joined",
    Leaving: "on_leaving",
    Alarm: "on_alarm",
    MessageProjected: "on_projected",
    LossEvaluated: "on_loss",
    NoiseMeasured: "on_noise",
    DriftMeasured: "on_drift",
}


def spec_of(name: str, strategy: Any, first: Mapping[str, Any], omit: Collection[str] = ("workers",)) -> str:
    """Return the spec of a strategy: the keys ``first``, then its other fields that differ from their defaults."""
    others = [field for field in fields(strategy) if field.name not in omit and field.name not in first]
    values = {field.name: getattr(strategy, field.name) for field in others}
    return show_spec(name, {**first, **values}, {field.name: field.default for field in others})


class CrewState(Protocol):
    """The part of a state that a :class:`CrewStrategy` needs."""

    crew: Crew


S = TypeVar("S", bound=CrewState)


class CrewStrategy(Strategy, Generic[S]):
    """A strategy whose state has a ``crew`` and that handles each kind of event by a separate method.

    The methods are ``on_reply``, ``on_progress``, ``on_failed``, ``on_leaving``, ``on_alarm``, ``on_projected``,
    ``on_loss``, ``on_noise`` and ``on_drift``; each takes the state and the event and returns commands. Events without
    a method change nothing. The crew is updated before :meth:`worker_left` and :meth:`worker_returned` are called.
    Raises :class:`~anyk.BadInput` for a class with another method ``on_…``, which no event would call.
    """

    handlers: ClassVar[Mapping[type[Any], Callable[[Any, Any, Any], Commands]]]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in vars(cls):
            if name.startswith("on_") and name not in _METHODS.values():
                methods = f"the methods are {', '.join(_METHODS.values())}"
                raise BadInput(
                    f"no event calls {name}() of {cls.__name__}; {suggest(name, _METHODS.values(), methods)}"
                )
        cls.handlers = {event: getattr(cls, name, lambda *_: ()) for event, name in _METHODS.items()}

    def on(self, state: S, event: Event) -> Commands:
        return self.handlers[type(event)](self, state, event)

    def on_joined(self, state: S, event: Joined) -> Commands:
        """Add a worker to the crew, unless it is present already."""
        return self.worker_returned(state, event.worker) if state.crew.join(event.worker) else ()

    def on_lost(self, state: S, event: Lost) -> Commands:
        """Remove a worker from the crew."""
        state.crew.lose(event)
        return self.worker_left(state, event.worker)

    def cannot_step(self, state: Any, reason: str) -> list[Command]:
        """Return the command that ends a run in which step ``state.version`` cannot be taken."""
        hopeless: list[Command] = state.crew.stop_if_hopeless()
        return hopeless or [Stop(f"step {state.version} cannot be taken under '{self.spec}': {reason}", failed=True)]

    def worker_returned(self, state: S, worker: int) -> Commands:
        """Return the commands that follow when a worker has joined."""
        return ()

    def worker_left(self, state: S, worker: int) -> Commands:
        """Return the commands that follow when a worker has been lost."""
        return state.crew.stop_if_hopeless()
