"""Events that are rare, each with what it must change: replies that are not used, losses while replies are compared."""

from typing import Any

import pytest

import anyk
from anyk.protocol import Alarm, Combine, Command, Dispatch, Fleet, Joined, Lost, Mix, Reply
from byhand import ByHand

pytestmark = pytest.mark.in_process


def begun(spec: str, workers: int) -> tuple[ByHand, list[Command]]:
    made = ByHand(anyk.strategy(spec, workers=workers))
    return made, list(made.start(Fleet(workers, tuple(range(workers)))))


def states(commands: Any) -> dict[int, int]:
    """The tasks from which workers go on, by worker."""
    return {
        w: work[0].state
        for c in commands
        if isinstance(c, Dispatch)
        for w, work in zip(c.workers, c.chunks, strict=True)
    }


def kinds(commands: Any) -> list[type]:
    return [type(command) for command in commands]


def test_what_a_compressor_left_out_stays_with_the_used_message() -> None:
    made, commands = begun("compressed:of=(async:cutoff=2),by=sign", 3)
    assert states(commands) == dict.fromkeys(range(3), -1)
    assert states(made.on(Reply(0.1, 2, 2, 0))) == {2: 2}
    assert [states(made.on(Reply(0.2, 0, task, 0))) for task in (0, 4, 5)] == [{0: 0}, {0: 4}, {0: 5}]
    late = list(made.on(Reply(0.3, 2, 3, 0)))  # three steps old: it is not used
    assert Combine not in kinds(late) and states(late) == {2: 2}


def test_what_a_compressor_left_out_is_lost_with_its_worker() -> None:
    made, _ = begun("compressed:of=async,by=sign", 3)
    assert states(made.on(Reply(0.1, 0, 0, 0))) == {0: 0}
    made.on(Lost(0.2, 0, "died"))
    assert states(made.on(Joined(0.3, 0))) == {0: -1}
    made.on(Lost(0.4, 0, "died"))
    made.on(Reply(0.5, 0, 3, 0))  # of a task that was lost with it
    assert states(made.on(Joined(0.6, 0))) == {0: -1}


@pytest.mark.parametrize("event", [Lost(0.4, 3, "died"), Reply(0.4, 3, 3, 0)])
def test_a_comparing_round_ends_when_no_comparison_is_left(event: Any) -> None:
    made, _ = begun("frc:load=2,check=1", 4)
    for worker in (0, 1, 2):
        assert not made.on(Reply(0.1 * worker, worker, worker, 0))
    assert made.decoder.decodable
    assert kinds(made.on(event))[0] is Combine


def test_the_last_node_of_pairwise_averaging_steps_alone() -> None:
    made, _ = begun("ad-psgd", 3)
    for worker in (1, 2):
        made.on(Lost(0.1, worker, "died", gone=True))
    mix = made.on(Reply(0.2, 0, 0, 0))[0]
    assert mix == Mix("node 0", ((0, 0),), (1.0,), share=1.0, relative=True)


@pytest.mark.parametrize(
    ("spec", "first", "then"),
    [("uncoded:wait=0.5n&0.2s", [], 2), ("uncoded:wait=0.75n|9s", [3], None), ("frc:load=2,wait=0.26n&0.2s", [2], 1)],
)
def test_a_share_of_the_workers_joined_with_a_deadline(spec: str, first: list[int], then: int | None) -> None:
    """After which reply of 4 the step comes before the deadline; else with how many replies at the deadline."""
    made, _ = begun(spec, 4)
    order = [0, 2, 1, 3]
    steps = [n + 1 for n, w in enumerate(order[: then or 4]) if Combine in kinds(made.on(Reply(0.1, w, w, 0)))]
    assert steps[:1] == (first if then is None else [])
    if then is not None:
        assert Combine in kinds(made.on(Alarm(0.2, "wait 0")))
