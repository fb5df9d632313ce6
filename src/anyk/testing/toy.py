"""A strategy made of functions, for tests of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyk.base import ByName
from anyk.protocol import Commands, Event, Fleet, Layout, Strategy


@dataclass(slots=True)
class Memory:
    """The memory of a :class:`Toy`."""

    values: ByName = field(default_factory=dict)


class Toy(Strategy):
    """A strategy made of functions, for the protocol's own tests.

    ``begin``: the first commands, or ``begin(toy)`` returns them; ``react(toy, event)`` returns those after an event,
    or is a table of such functions by the type of the event.
    ``toy.seen`` collects the events, and ``toy.memory`` is saved. ``partitions``: by default the number of workers.
    """

    State = Memory
    spec = "toy"
    layout: Any = None  # an attribute, which tests may change

    def __init__(
        self,
        workers: int,
        begin: Callable[[Toy], Commands] | Commands,
        react: Callable[[Toy, Event], Commands] | Mapping[type, Callable[[Toy, Any], Commands]],
        *,
        slots: tuple[str, ...] = ("model",),
        inner: str | None = None,
        partitions: int | None = None,
    ) -> None:
        everything = tuple(range(partitions or workers))
        self.layout = Layout(workers, len(everything), (everything,) * workers, slots, inner=inner)
        self.begin, self.react = begin, react
        self.seen: list[Event] = []
        self.memory: ByName = {}

    def start(self, fleet: Fleet) -> tuple[Memory, Commands]:
        self.present = fleet.present
        commands = self.begin(self) if callable(self.begin) else self.begin
        return Memory(self.memory), commands

    def rebuild(self, state: Memory) -> None:
        self.memory = state.values

    def on(self, state: Memory, event: Event) -> Commands:
        self.seen.append(event)
        react = self.react if callable(self.react) else self.react.get(type(event))
        return react(self, event) if react else ()
