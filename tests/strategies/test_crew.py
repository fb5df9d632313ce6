"""The base class of strategies with a crew: which method an event reaches, and what it keeps up to date."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.protocol import Alarm, Fleet, Joined, Layout, Leaving, Lost, Reply, Running
from anyk.strategies import Crew, CrewStrategy

pytestmark = pytest.mark.in_process


@dataclass(slots=True)
class Seen:
    crew: Crew
    calls: list[str] = field(default_factory=list)


class Noting(CrewStrategy[Seen]):
    """Notes which of its methods are called."""

    State = Seen
    spec = "noting"
    layout = Layout(2, 2, ((0,), (1,)))

    def start(self, fleet: Fleet) -> Any:
        return Seen(Crew.of(fleet)), []

    def on_reply(self, state: Seen, event: Reply) -> Any:
        state.calls.append(f"reply {event.task}")
        return []

    def worker_returned(self, state: Seen, worker: int) -> Any:
        state.calls.append(f"returned {worker}, present {sorted(state.crew.present)}")
        return []

    def worker_left(self, state: Seen, worker: int) -> Any:
        state.calls.append(f"left {worker}, present {sorted(state.crew.present)}")
        return super().worker_left(state, worker)


def test_events_reach_their_methods_after_the_crew_is_updated() -> None:
    running = Running(Noting())
    running.start(Fleet(2, (0,)))
    for event in (Reply(0.1, 0, 7, 0), Joined(0.2, 1), Joined(0.3, 1), Lost(0.4, 0, "died")):
        assert list(running.on(event)) == []
    assert running.state.calls == ["reply 7", "returned 1, present [0, 1]", "left 0, present [1]"]


def test_events_without_a_method_change_nothing() -> None:
    running = Running(Noting())
    running.start(Fleet(2, (0, 1)))
    before = running.save()
    for event in (Alarm(0.1, "x"), Leaving(0.2, 0, 1.0)):
        assert list(running.on(event)) == []
    assert running.save() == before


def test_a_run_without_workers_stops() -> None:
    running = Running(Noting())
    running.start(Fleet(2, (0, 1)))
    running.on(Lost(0.1, 0, "died", gone=True))
    (stop,) = running.on(Lost(0.2, 1, "died", gone=True))
    assert stop.failed and "given up" in stop.reason


@pytest.mark.parametrize(("name", "meant"), [("on_replies", "on_reply"), ("on_joining", "on_joined")])
def test_a_misspelt_event_method_is_refused_by_name(name: str, meant: str) -> None:
    with pytest.raises(BadInput, match=rf"no event calls {name}\(\) of Wrong; did you mean '{meant}'\?"):
        type("Wrong", (Noting,), {name: lambda self, state, event: []})


def test_an_event_method_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(BadInput, match="the methods are on_reply, on_progress, on_failed"):
        type("Wrong", (Noting,), {"on_tuesday": lambda self, state, event: []})


def test_the_class_is_public() -> None:
    assert "CrewStrategy" in anyk.strategies.__all__
