"""The programs of nodes in chaos runs: which of them may be killed or stopped at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anyk.testing import chaos_nodes
from anyk.testing.chaos_nodes import NodePrograms


class Program:
    """A program that runs until it is killed."""

    pid = 1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        self.status = -9

    def wait(self, within: float = 0.0) -> None: ...


@pytest.mark.in_process
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_two_nodes_are_away_at_once_unless_they_must_not(monkeypatch: pytest.MonkeyPatch, one_at_a_time: bool) -> None:
    now = [100.0]
    monkeypatch.setattr(chaos_nodes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    subprocess = SimpleNamespace(Popen=Program, DEVNULL=None)
    monkeypatch.setattr(chaos_nodes, "subprocess", subprocess)
    monkeypatch.setattr(chaos_nodes, "processes_below", lambda pid: [])
    programs = NodePrograms({}, one_at_a_time=one_at_a_time)
    programs.start()
    now[0] += 60.0
    assert programs.free() == [1, 2]
    programs.kill(1)
    assert programs.free() == ([] if one_at_a_time else [2])
    now[0] += 1.0
    programs.look()  # starts it again
    assert programs.free() == ([] if one_at_a_time else [1, 2])
    now[0] += 20.0
    programs.stop(2, 5.0)
    assert programs.free() == ([] if one_at_a_time else [1])
    now[0] += 6.0
    programs.look()
    assert programs.free() == ([] if one_at_a_time else [1, 2])
    now[0] += 20.0
    assert programs.free() == [1, 2]
