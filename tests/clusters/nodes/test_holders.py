"""Who holds a slice, on a driver without a network: answers, losses, lagging copies, and messages that count."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyk import RunFailed
from anyk.clusters.nodes import holders as module
from anyk.clusters.nodes.holders import MOST_BEHIND, Holders
from anyk.clusters.nodes.placement import Placement
from anyk.clusters.nodes.session import NOT_INTACT, Collect, CollectAlso, Done, Measure, Release
from anyk.clusters.nodes.sliced_messages import DRIVER, MessageSource
from anyk.clusters.nodes.wire import PIECE, Offered

pytestmark = pytest.mark.in_process

CUTS = [(0, PIECE), (PIECE, 2 * PIECE), (2 * PIECE, 2 * PIECE + 5)]
BYTE = np.dtype(np.uint8)
OFFERED = Offered(b"key", CUTS[-1][1], (b"a", b"b", b"c"))


class Cluster:
    """Three nodes that are told something, and what happens while the driver waits."""

    def __init__(self) -> None:
        self.run = 1
        self.told: list[tuple[int, Any]] = []
        self.over: list[tuple[int, str]] = []
        self.silences = dict.fromkeys(range(3), 0.1)
        self.dropped: list[tuple[int, int]] = []
        self.happens: list[Callable[[], None]] = []

    def tell_rank(self, rank: int, order: Any) -> None:
        self.told.append((rank, order))

    def silence(self, rank: int) -> float:
        return self.silences[rank]

    def can_hold(self, rank: int) -> bool:
        return self.silences[rank] < 3.0

    def collected(self, number: int, failure: str) -> None:
        self.over.append((number, failure))

    def drop_slice(self, rank: int, number: int) -> None:
        self.dropped.append((rank, number))

    def wait_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.happens.pop(0)()


def made(copies: int = 2) -> tuple[Cluster, Holders]:
    cluster = Cluster()
    return cluster, Holders(cluster, CUTS, BYTE, copies)  # type: ignore[arg-type]


def collect(holders: Holders, rank: int = 0) -> Any:
    return holders.messages.collect(
        BYTE, CUTS[-1][1], MessageSource(rank, rank, f"node{rank}:1", OFFERED), lambda: None
    )


def answers(cluster: Cluster, holders: Holders, *pairs: tuple[int, int], number: int = 1, **found: Any) -> None:
    for slice_number, rank in pairs:
        cluster.happens.append(lambda s=slice_number, r=rank: holders.on_done(r, Done(1, number, s, **found)))


def measure(run: int, number: int, of: int) -> Measure:
    return Measure(run, number, of, [])


def test_each_slice_is_held_by_its_node_and_the_next() -> None:
    _, holders = made()
    assert holders.placement.ranks == {0: [0, 1], 1: [1, 2], 2: [2, 0]}
    assert [list(holders.placement.at(rank)) for rank in range(3)] == [[0, 2], [1, 0], [2, 1]], (
        "first what others read there"
    )
    assert holders.placement.readable() == {0: [0, 1], 1: [1, 2], 2: [2, 0]}
    holders.placement.ranks[2] = [0, 2]  # node 2 was away
    assert holders.placement.readable()[2] == [2, 0]
    holders.placement.ranks[2] = [2, 0]
    assert made(copies=1)[1].placement.ranks == {0: [0], 1: [1], 2: [2]}


def test_slices_are_held_among_the_nodes_that_are_there() -> None:
    placement = Placement(CUTS, BYTE, copies=2, among=[1, 3, 4])
    assert placement.ranks == {0: [1, 3], 1: [3, 4], 2: [4, 1]}
    assert [sorted(placement.at(rank)) for rank in range(5)] == [[], [0, 2], [], [0, 1], [1, 2]]


def test_the_first_answer_counts_and_the_second_is_compared() -> None:
    cluster, holders = made()
    answers(cluster, holders, (1, 2), (0, 0), (2, 0), digest=7)
    late: list[tuple[int, int]] = []
    found = holders.questions.ask(measure, late=lambda slice_number, rank, done: late.append((slice_number, rank)))
    assert {number: rank for number, (rank, _) in found.items()} == {0: 0, 1: 2, 2: 0}
    holders.on_done(1, Done(1, 1, 1, digest=7))
    assert late == [(1, 1)]
    with pytest.raises(RunFailed, match="nodes 0 and 1 took the same step to different models"):
        holders.on_done(1, Done(1, 1, 0, digest=8))


def test_a_silent_copy_leaves_its_slices_to_the_other() -> None:
    cluster, holders = made()
    holders.look()
    assert holders.placement.ranks == {0: [0, 1], 1: [1, 2], 2: [2, 0]}
    cluster.silences[1] = 2.5
    noted: list[tuple[int, int]] = []
    holders.suspended = lambda slice_number, rank: noted.append((slice_number, rank))
    holders.look()
    assert holders.placement.ranks == {0: [0], 1: [2], 2: [2, 0]} and noted == [(0, 1), (1, 1)]
    assert cluster.told == [(1, Release(1, 0, 0)), (1, Release(1, 0, 1))]
    cluster.silences[2] = 9.0  # who holds it alone keeps it
    holders.look()
    assert holders.placement.ranks == {0: [0], 1: [2], 2: [0]}


def test_silence_of_all_is_the_drivers_own() -> None:
    cluster, holders = made()
    cluster.silences = dict.fromkeys(range(3), 9.0)
    holders.look()
    assert all(len(ranks) == 2 for ranks in holders.placement.ranks.values())


def test_a_question_goes_on_without_who_is_lost() -> None:
    cluster, holders = made()
    answers(cluster, holders, (0, 0), (2, 0))
    cluster.happens.append(lambda: assert_equal(holders.lose(1), []))
    answers(cluster, holders, (1, 2))
    assert set(holders.questions.ask(measure)) == {0, 1, 2}
    assert holders.lose(2) == [1], "nobody has slice 1 any more"


def assert_equal(found: Any, expected: Any) -> None:
    assert found == expected


def test_a_copy_that_could_not_is_suspended_and_the_last_ends() -> None:
    cluster, holders = made()
    answers(cluster, holders, (0, 0), (2, 0))
    answers(cluster, holders, (1, 1), failure=NOT_INTACT)
    answers(cluster, holders, (1, 2))
    holders.questions.ask(measure)
    assert holders.placement.ranks[1] == [2]
    answers(cluster, holders, (1, 2), number=2, failure=NOT_INTACT)
    with pytest.raises(RunFailed, match="^node 2: its bytes did not arrive intact$"):
        holders.questions.ask(measure)


def test_a_copy_that_lags_is_brought_back_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cluster, holders = made()
    number = 0
    for pause in (2.0, 4.0, 8.0):
        for _ in range(MOST_BEHIND):
            holders.suspend_who_lags()
            assert holders.placement.ranks[0] == [0, 1] or holders.placement.ranks[0] == [1, 0]
            number += 1
            answers(cluster, holders, (0, 0), (1, 1), (2, 2), (1, 2), (2, 0), number=number)
            holders.questions.ask(measure, late=lambda *answer: None)
            while cluster.happens:
                cluster.happens.pop(0)()
        holders.suspend_who_lags()
        assert holders.placement.ranks[0] == [0] and 1 in holders.placement.ranks[1]
        now[0] += pause - 0.1
        assert holders.returning() == []
        now[0] += 0.2
        assert holders.returning() == [(0, 1)]
        holders.resume(0, 1)


@given(
    have=st.sets(st.sampled_from([0, 1])), sources=st.sets(st.sampled_from([DRIVER, 0, 1, 2]), min_size=1),
    held=st.sets(st.sampled_from([0, 1]), min_size=1),
)  # fmt: skip
def test_a_message_counts_once_no_loss_can_take_it(have: set[int], sources: set[int], held: set[int]) -> None:
    """A slice that nodes 0 and 1 may hold: whoever is lost, another one has it, or can read it."""
    cluster, holders = made()
    first, *others = sorted(sources)
    message = collect(holders, first)
    message.sources += [MessageSource(rank, rank, f"node{rank}:1", OFFERED) for rank in others]
    for number in (1, 2):
        message.have[number] = set(holders.placement.ranks[number])
    holders.placement.ranks[0] = sorted(held)
    for rank in have & held:
        holders.on_done(rank, Done(1, message.number, 0))
    there = (have & held) | sources
    outlives = all(there - {lost} for lost in range(3))
    alone = len(held | sources) == 1  # nobody else could have it
    assert bool(cluster.over) == (bool(have & held) and (outlives or alone))


def test_a_further_source_is_told_to_those_who_lack_a_slice() -> None:
    cluster, holders = made()
    message = collect(holders, rank=1)
    assert [(rank, order.slice, order.first) for rank, order in cluster.told] == [
        (0, 0, 0), (1, 1, PIECE), (2, 2, 2 * PIECE), (1, 0, 0), (2, 1, PIECE), (0, 2, 2 * PIECE),
    ]  # fmt: skip
    assert all(isinstance(order, Collect) for _, order in cluster.told)
    cluster.told.clear()
    holders.on_done(2, Done(1, message.number, 1))
    announced: Any = SimpleNamespace(
        rank=2, address="node2:1", worker=5, offered=OFFERED._replace(key=b"other"), free=lambda: None
    )
    holders.messages.also(message.number, message, announced)
    assert [(rank, order.slice) for rank, order in cluster.told] == [(0, 0), (1, 1), (2, 2), (1, 0), (0, 2)]
    assert all(isinstance(order, CollectAlso) and order.address == "node2:1" for _, order in cluster.told)
    holders.on_done(0, Done(1, message.number, 0, key=b"other"))
    holders.on_done(1, Done(1, message.number, 0, key=b"key"))
    assert message.givers == {1: 1, 0: 5}, "the replica that was read first"


def test_who_holds_a_slice_again_reads_the_messages_in_use() -> None:
    cluster, holders = made()
    message, freed = collect(holders, rank=2), []
    message.frees.append(lambda: freed.append(1))
    holders.lose(1)
    cluster.told.clear()
    holders.resume(0, 1)
    assert [(rank, order.number, order.slice) for rank, order in cluster.told] == [(1, message.number, 0)]
    number = message.number
    del message
    assert sorted(cluster.dropped) == [(0, number), (1, number), (2, number)] and freed


def test_a_message_that_no_copy_can_read_has_failed() -> None:
    cluster, holders = made()
    message = collect(holders)
    holders.on_done(1, Done(1, message.number, 1, "not finite"))
    assert cluster.over == [(message.number, "not finite")]
    cluster.happens.append(lambda: holders.on_done(0, Done(1, 2, 0, NOT_INTACT)))
    with pytest.raises(RunFailed, match=NOT_INTACT):
        holders.messages.collect_now(BYTE, CUTS[-1][1], MessageSource(0, DRIVER, "driver:1", OFFERED), lambda: None)
