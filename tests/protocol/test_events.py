"""The view of a round that wait rules, strategies and callbacks have: times and staleness of replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.clusters import Outage, Simulated
from anyk.delays import TableDelays
from anyk.protocol import Chunk, Combine, Dispatch, Event, Fleet, Reply
from anyk.runs import Driver, session
from anyk.strategies import Wait
from anyk.testing import Squares, check_strategy
from anyk.testing.toy import Toy

pytestmark = pytest.mark.in_process

SLOW = anyk.optimizers.GD(lr=0.05)  # so that stale gradients do not make it diverge


@dataclass(frozen=True)
class Watching(Wait):
    """Ends a round at the number of replies, and keeps what it saw."""

    number: int
    seen: list[Any] = field(default_factory=list, compare=False)

    def enough(self, waiting: Any) -> bool:
        self.seen.append((waiting.replied, waiting.arrivals, waiting.elapsed))
        return bool(waiting.replies >= self.number)

    def deadlines(self, waiting: Any) -> tuple[float, ...]:
        assert waiting.arrivals == ()  # of this round
        return (0.25,)

    def __str__(self) -> str:
        return f"watching:{self.number}"


def watched(code: str, rule: Wait, delays: list[list[float]], **cluster: Any) -> None:
    workers = len(delays[0])
    built = anyk.strategies.rounds(anyk.codes.code(code, workers=workers), wait=rule)
    driver = Driver(
        built, Simulated(workers, delays=TableDelays(np.array(delays), by="round"), **cluster), steps=len(delays)
    )
    with session(driver):
        driver.run()


def test_a_rule_sees_when_each_reply_of_its_round_arrived() -> None:
    rule = Watching(3)
    watched("uncoded", rule, [[0.3, 0.1, 0.2, 9.0], [0.1, 9.0, 0.4, 0.2]])
    assert [(replied, arrivals) for replied, arrivals, _ in rule.seen] == [
        ((1,), (0.1,)),
        ((1, 2), (0.1, 0.2)),
        ((1, 2), (0.1, 0.2)),  # at its deadline
        ((1, 2, 0), (0.1, 0.2, 0.3)),
        ((0,), pytest.approx((0.1,))),
        ((0, 3), pytest.approx((0.1, 0.2))),
        ((0, 3), pytest.approx((0.1, 0.2))),
        ((0, 3, 2), pytest.approx((0.1, 0.2, 0.4))),
    ]
    assert all(arrivals[-1] <= elapsed + 1e-9 for _, arrivals, elapsed in rule.seen if arrivals)


def test_a_returned_worker_has_the_time_of_its_reply() -> None:
    rule = Watching(3)
    watched("uncoded", rule, [[1.0, 0.1, 0.2, 9.0]], outages=[Outage(0.5, 0, 0.7)])
    replied, arrivals, _ = rule.seen[-1]
    assert replied == (1, 2, 0) and arrivals == pytest.approx((0.1, 0.2, 1.7))


def test_rounds_by_progress_show_first_finished_partitions() -> None:
    rule = Watching(4)
    watched("nested:stragglers=1,kind=binary", rule, [[0.3, 0.6, 1.2, 0.9]])
    assert [(replied, arrivals) for replied, arrivals, _ in rule.seen] == [
        ((), ()),
        *[((0,), (0.3,))] * 2,
        *[((0, 1), (0.3, 0.6))] * 2,
        *[((0, 1, 3), (0.3, 0.6, 0.9))] * 2,
    ]


def test_arrivals_are_the_same_after_a_restore() -> None:
    """A state that is saved within a round has them; the twin of a hostile schedule must decide alike."""

    @anyk.strategies.register_wait("test-gap")
    @dataclass(frozen=True)
    class Gap(Wait):
        """Ends a round with two replies or more, the last of them so much later than the first."""

        seconds: float = 0.2

        def enough(self, waiting: Any) -> bool:
            times = waiting.arrivals
            return len(times) >= 2 and times[-1] - times[0] > self.seconds

    try:
        for spec in ("uncoded:wait=test-gap:seconds=0.1", "frc:load=2,wait=test-gap:seconds=0.3"):
            for seed in range(3):
                check_strategy(anyk.strategy(spec, workers=4), steps=8, seed=seed)
    finally:
        del anyk.strategies.wait_rules.entries["test-gap"]


# ------------------------------------------------------------------------------------------- staleness


def test_a_reply_has_its_staleness() -> None:
    """Workers 0 and 1 answer every 0.1 and 0.25 s, and each reply makes a step; versions are counted by hand."""
    everything = Chunk((0, 1), (1.0, 1.0))
    task = iter(range(2, 100))

    def react(toy: Toy, event: Event) -> Any:
        assert isinstance(event, Reply)
        step = Combine("model", [(event.task, 0)], [1.0], divisor="counted")
        return [step, Dispatch(next(task), (event.worker,), ((everything,),))]

    toy = Toy(2, [Dispatch(0, (0, 1), ((everything,),) * 2)], {Reply: react})
    driver = Driver(toy, Simulated(2, delays=TableDelays(np.array([[0.1, 0.25]]), by="round")), steps=5)
    with session(driver):
        driver.run()
    seen = [(event.worker, event.staleness) for event in toy.seen if isinstance(event, Reply)]
    assert seen == [(0, 0), (0, 0), (1, 2), (0, 1), (0, 0)]


@pytest.mark.parametrize("spec", ["async", "k-async:k=2", "fedbuff:tau=2,k=2", "frc:load=2"])
def test_the_staleness_of_a_reply_is_what_its_receipt_says(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the reply is used at once, or before the next step, as these do."""
    seen: dict[int, int] = {}
    built = anyk.strategy(spec, workers=4)
    of = type(built).on

    def noting(self: Any, state: Any, event: Event) -> Any:
        if isinstance(event, Reply):
            seen[event.task] = event.staleness
        return of(self, state, event)

    monkeypatch.setattr(type(built), "on", noting)
    run = anyk.train(
        Squares(4), built, Simulated(4, delays=anyk.delays.Exponential(1.0), seed=3), steps=20, optimizer=SLOW
    )
    used = [message for step in range(1, run.steps + 1) for message in run.receipt(step).used]
    assert used and all(seen[message.task] == message.staleness for message in used)
    assert (max(seen.values()) > 0) == (spec != "frc:load=2")


def test_a_callback_sees_the_staleness_of_each_message() -> None:
    stale: list[int] = []

    class Noting(anyk.Callback):
        def on_step(self, info: Any) -> None:
            stale.extend(message.staleness for message in info.receipt.used)
            assert info.stalest == max(message.staleness for message in info.receipt.used)

    cluster = Simulated(4, delays=anyk.delays.Exponential(1.0), seed=3)
    anyk.train(Squares(4), "async", cluster, steps=20, optimizer=SLOW, callbacks=[Noting()])
    assert len(stale) == 20 and max(stale) > 0


def test_a_replay_sees_the_same_staleness() -> None:
    """Of a strategy that decides by it: stale messages are left out."""

    @anyk.strategies.register("test-fresh")
    @dataclass(frozen=True, repr=False)
    class Fresh(anyk.strategies.CrewStrategy[Any]):
        State = _Simple

        workers: int
        spec = "test-fresh"

        @property
        def layout(self) -> Any:
            return anyk.protocol.Layout(self.workers, self.workers, tuple((i,) for i in range(self.workers)))

        def start(self, fleet: Fleet) -> Any:
            state = _Simple(anyk.strategies.Crew.of(fleet))
            return state, self.give(state, fleet.present)

        def on_reply(self, state: Any, event: Reply) -> Any:
            fresh = event.staleness <= 1
            step = [Combine("model", [(event.task, 0)], [1.0], divisor="counted")] if fresh else []
            return [*step, *self.give(state, (event.worker,))]

        def give(self, state: Any, workers: Any) -> Any:
            first = state.crew.number(len(workers))
            return [Dispatch(first, tuple(workers), [(Chunk((i,), (1.0,)),) for i in workers])]

    try:
        cluster = Simulated(3, delays=anyk.delays.Exponential(1.0), seed=1)
        run = anyk.train(Squares(3), "test-fresh", cluster, steps=15)
        assert run.ledger["discarded"] > 0 and set(run.staleness()) == {0, 1}
        assert anyk.runs.replay(run, problem=Squares(3)).decisions
    finally:
        del anyk.strategies.registry.entries["test-fresh"]


@dataclass(slots=True)
class _Simple:
    crew: anyk.strategies.Crew
