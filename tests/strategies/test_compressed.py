"""The remainder that a compressor left out: with which message it stays, and when it is lost."""

from typing import Any

import pytest

import anyk
from anyk.protocol import Combine, Command, Dispatch, Fleet, Joined, Lost, Reply
from byhand import ByHand

pytestmark = pytest.mark.in_process


def begun(spec: str, workers: int) -> tuple[ByHand, list[Command]]:
    running = ByHand(anyk.strategy(spec, workers=workers))
    return running, list(running.start(Fleet(workers, tuple(range(workers)))))


def states(commands: Any) -> dict[int, int]:
    """The tasks whose state workers go on from in the dispatched ones, by worker; -1: a new state."""
    return {
        w: work[0].state
        for c in commands
        if isinstance(c, Dispatch)
        for w, work in zip(c.workers, c.chunks, strict=True)
    }


def kinds(commands: Any) -> list[type]:
    return [type(command) for command in commands]


def test_what_a_compressor_left_out_stays_with_the_used_message() -> None:
    running, commands = begun("compressed:of=(async:cutoff=2),by=sign", 3)
    assert states(commands) == dict.fromkeys(range(3), -1)
    assert states(running.on(Reply(0.1, 2, 2, 0))) == {2: 2}
    # worker 2 has task 3 now; meanwhile worker 0 makes three steps, by tasks 0, 4 and 5
    assert [states(running.on(Reply(0.2, 0, task, 0))) for task in (0, 4, 5)] == [{0: 0}, {0: 4}, {0: 5}]
    late = list(running.on(Reply(0.3, 2, 3, 0)))  # three steps old: it is not used
    assert Combine not in kinds(late) and states(late) == {2: 2}


def test_what_a_compressor_left_out_is_lost_with_its_worker() -> None:
    running, _ = begun("compressed:of=async,by=sign", 3)
    assert states(running.on(Reply(0.1, 0, 0, 0))) == {0: 0}
    running.on(Lost(0.2, 0, "died"))
    assert states(running.on(Joined(0.3, 0))) == {0: -1}
    running.on(Lost(0.4, 0, "died"))
    running.on(Reply(0.5, 0, 3, 0))  # of a task that was lost with it
    assert states(running.on(Joined(0.6, 0))) == {0: -1}
