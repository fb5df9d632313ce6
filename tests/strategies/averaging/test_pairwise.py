"""Pairwise averaging, fed by hand."""

import pytest

import anyk
from anyk.protocol import Command, Fleet, Lost, Mix, Reply
from byhand import ByHand

pytestmark = pytest.mark.in_process


def begun(spec: str, workers: int) -> tuple[ByHand, list[Command]]:
    running = ByHand(anyk.strategy(spec, workers=workers))
    return running, list(running.start(Fleet(workers, tuple(range(workers)))))


def test_the_last_node_of_pairwise_averaging_steps_alone() -> None:
    running, _ = begun("ad-psgd", 3)
    for worker in (1, 2):
        running.on(Lost(0.1, worker, "died", gone=True))
    mix = running.on(Reply(0.2, 0, 0, 0))[0]
    assert mix == Mix("node 0", ((0, 0),), (1.0,), share=1.0, relative=True)
