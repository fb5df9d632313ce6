"""Messages between driver and nodes over a network that loses some, on a clock that the tests move by hand."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.clusters.contract import Report
from anyk.clusters.nodes.session import (
    BEAT,
    QUIET,
    Collect,
    CollectAlso,
    Done,
    Drop,
    Give,
    Hold,
    Kill,
    Locate,
    Measure,
    MeasureStep,
    NodeBroken,
    NodeWatch,
    OfferedPart,
    Release,
    Session,
    Show,
    TakeStep,
    Told,
    WorkerEnded,
    from_driver,
    from_node,
)
from anyk.clusters.nodes.wire import Offered
from anyk.clusters.steps import MixPlan, ModelTerm, StaleMessage, StepPlan

pytestmark = pytest.mark.in_process


class Line:
    """Two sessions and the frames between them."""

    def __init__(self) -> None:
        self.time = 0.0
        self.ways: tuple[deque[bytes], deque[bytes]] = deque(), deque()
        self.taken: tuple[list[int], list[int]] = [], []
        self.sides = tuple(Session[Any](way.append, lambda: self.time) for way in self.ways)

    def tell(self, side: int, number: int) -> None:
        self.sides[side].tell(NodeBroken(number, ""))

    def move(self, side: int) -> None:
        """Deliver all that a side has sent."""
        way = self.ways[side]
        while way:
            body = self.sides[1 - side].take(way.popleft())
            if body is not None:
                self.taken[1 - side].append(from_node(body).run)

    def beat(self) -> None:
        self.time += BEAT
        for side in (0, 1):
            self.sides[side].beat()


def test_messages_arrive_once_and_in_order():
    line = Line()
    for number in range(5):
        line.tell(0, number)
    line.ways[0].extend(list(line.ways[0]))  # each twice
    line.move(0)
    assert line.taken[1] == [0, 1, 2, 3, 4]
    assert line.sides[0].acknowledged == 0
    line.sides[1].acknowledge()
    line.move(1)
    assert line.sides[0].acknowledged == 5


def test_lost_messages_are_sent_again():
    line = Line()
    line.tell(0, 0)
    line.move(0)
    line.tell(0, 1)
    line.ways[0].clear()  # the link is down
    line.tell(0, 2)
    line.move(0)
    assert line.taken[1] == [0], "a message after a gap waits"
    for _ in range(4):
        line.beat()
        line.move(1)
        line.move(0)
    assert line.taken[1] == [0, 1, 2]


def test_nothing_piles_up_while_the_other_side_is_frozen():
    line = Line()
    line.tell(0, 0)
    line.move(0)
    line.sides[1].acknowledge()
    line.move(1)
    line.tell(0, 1)
    sent = len(line.ways[0])
    for _ in range(50):
        line.time += BEAT
        line.sides[0].beat()
    assert len(line.ways[0]) == sent + 50, "signs of life only"


def test_the_first_message_is_repeated_until_somebody_answers():
    line = Line()
    line.tell(1, 7)
    line.ways[1].clear()
    for _ in range(4):
        line.beat()
    line.move(1)
    assert line.taken[0] == [7]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["tell", "move", "lose", "beat"])), max_size=40))
def test_whatever_is_lost_all_arrives_in_the_end(steps: list[tuple[int, str]]):
    line, told = Line(), ([], [])
    for number, (side, what) in enumerate(steps):
        if what == "tell":
            line.tell(side, number)
            told[side].append(number)
        elif what == "move":
            line.move(side)
        elif what == "lose":
            line.ways[side].clear()
        else:
            line.beat()
    for _ in range(8):
        line.beat()
        line.move(0)
        line.move(1)
    assert line.taken == (told[1], told[0])
    assert all(session.acknowledged == len(told[side]) for side, session in enumerate(line.sides))


@given(st.binary(max_size=60))
def test_garbage_is_no_frame(data: bytes):
    session = Session[Any](lambda sent: None, lambda: 0.0)
    try:
        body = session.take(data)
    except (msgspec.MsgspecError, ValueError):
        return
    assert body is None or isinstance(body, bytes)


def test_an_acknowledgement_of_what_was_never_told_is_refused():
    line = Line()
    line.tell(0, 0)
    line.move(0)
    line.sides[1].acknowledge()
    other = Session[Any](lambda sent: None, lambda: 0.0)
    with pytest.raises(ValueError, match="acknowledges message 1 of 0"):
        other.take(line.ways[1][0])


MESSAGES = [
    Told(1, 2, 3, Report(1, 5, text="a"), ("<f8", 3), Offered(b"k", 24, (b"d",))),
    WorkerEnded(1, 2, 3, "killed", 1),
    Done(1, 7, 0, digest=1 << 62, squares=[0.5, 2.0], offered=[("0.exp_avg", ("<f4", 2), Offered(b"k", 8, (b"d",)))]),
]
PART = OfferedPart(64, Offered(b"k", 8, (b"d",)), "host:1")
MIXED = StepPlan("model", 3, [(1, 0)], [0.5], mix=MixPlan((ModelTerm("other", 2, -0.25),), ("slowmo", 0.5)))
LATE = StepPlan("model", 3, [(1, 0)], [0.5, 2.0], 7.0, compensation=(StaleMessage((1, 0), 2, 0.1),))
ORDERS = [
    Locate(1, [(("model", 3), [PART, PART]), ((4, 0), [PART])]),
    Give(1, 2, b"orders", [("model", 3), (4, 0)]),
    Kill(1, 2),
    Drop(1, [("model", 1), (3, 0)], [b"k"], [5]),
    Hold(1, 2, 3, "model", b"pickled", [("0.step:number", ("<f4", 1), PART)], (("<f8", 2), PART)),
    Hold(1, 2, 3, "model", b"pickled", None, None),
    Collect(1, 2, 3, 1 << 19, PART.offered, "host:1"),
    CollectAlso(1, 2, 3, b"k", "host:2"),
    TakeStep(1, 2, 3, MIXED, [("model", 3), ("other", 2)]),
    TakeStep(1, 2, 3, LATE, [("model", 3)]),
    TakeStep(1, 2, 3, LATE, [("model", 3)], 0.5),
    MeasureStep(1, 2, 3, MIXED, [("model", 3)]),
    Measure(1, 2, 3, [(1, 1.0), (2, -1.0)]),
    Show(1, 2, 3, "model", 3),
    Release(1, 2, 3),
]


def test_messages_are_the_same_on_the_other_side():
    line = Line()
    for decode, messages in ((from_node, MESSAGES), (from_driver, ORDERS)):
        for message in messages:
            line.sides[0].tell(message)
            body = line.sides[1].take(line.ways[0].pop())
            assert body is not None and decode(body) == message


def test_neither_side_accepts_the_messages_of_the_other():
    pack = msgspec.msgpack.encode
    for decode, messages in ((from_driver, MESSAGES), (from_node, ORDERS)):
        for message in messages:
            with pytest.raises(msgspec.ValidationError):
                decode(pack(message))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_process_is_probed_only_while_it_is_silent():
    clock = Clock()
    watch = NodeWatch(clock)
    for _ in range(10):
        clock.now += BEAT
        watch.heard()
        assert not watch.due()
    clock.now += 3.5
    assert watch.due() and not watch.due()
    clock.now += 2.5
    assert watch.due()


@pytest.mark.parametrize(
    ("answer", "after", "dead"),
    [
        ("refused", 3.5, "its program has ended"),
        ("accepted", 1000.0, ""),
        ("none", QUIET - 1, ""),
        ("none", QUIET + 1, "it could not be reached for 31 s"),
    ],
)
def test_dead_stopped_and_unreachable_are_told_apart(answer: Any, after: float, dead: str):
    clock = Clock()
    watch = NodeWatch(clock)
    clock.now = after
    assert watch.due()
    watch.answered(answer)
    assert watch.dead == dead


def test_an_answer_that_comes_after_a_sign_of_life_is_ignored():
    clock = Clock()
    watch = NodeWatch(clock)
    clock.now = 4.0
    assert watch.due()
    watch.heard()
    watch.answered("refused")
    assert not watch.dead
