"""Asynchronous SGD, fed by hand: one task a worker at all times, a step a reply, and staleness that is conserved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk import codes
from anyk.errors import BadInput
from anyk.protocol import Combine, Command, Dispatch, Event, Failed, Fleet, Joined, Lost, Reply, Stop
from anyk.strategies import Asynchronous, strategy


def begun(workers: int, present: Sequence[int] | None = None, step: float = 1.0) -> Asynchronous:
    made = Asynchronous(workers, step=step)
    made.start(Fleet(workers, tuple(range(workers) if present is None else present), 0.0))
    return made


def test_the_commands() -> None:
    made = Asynchronous(3, step=0.25)
    (first,) = made.start(Fleet(3, (0, 1, 2), 0.0))
    assert isinstance(first, Dispatch) and (first.task, list(first.workers)) == (0, [0, 1, 2])
    assert [task[0].partitions for task in first.chunks] == [(0,), (1,), (2,)]
    combine, dispatch = made.on(Reply(0.1, 1, 1, 0))
    assert isinstance(combine, Combine) and isinstance(dispatch, Dispatch)  # first apply, then dispatch
    assert list(combine.messages) == [(1, 0)] and list(combine.weights) == [1.0]
    assert (combine.slot, combine.divisor, combine.scale) == ("model", "counted", 0.25)
    assert (dispatch.task, list(dispatch.workers), dispatch.chunks[0][0].partitions) == (3, [1], (1,))
    assert made.version == 1


def test_the_residual_is_that_of_one_reply_of_an_uncoded_sum() -> None:
    for n in (1, 2, 7):
        combine = begun(n).on(Reply(0.1, n - 1, n - 1, 0))[0]
        assert isinstance(combine, Combine)
        assert combine.residual == pytest.approx(codes.Uncoded(n).decode([n - 1]).residual, abs=1e-12)


def test_each_worker_holds_its_own_partition() -> None:
    made = Asynchronous(4)
    assert (made.workers, made.partitions, made.slots) == (4, 4, ("model",))
    assert list(made.holdings) == [(0,), (1,), (2,), (3,)]


def test_who_fails_or_joins_is_given_the_newest_version() -> None:
    made = begun(3, present=(0, 2))
    for event, task in ((Failed(0.1, 0, 0, 0, "not finite"), 2), (Joined(0.2, 1), 3)):
        (dispatch,) = made.on(event)
        assert isinstance(dispatch, Dispatch)
        assert (dispatch.task, list(dispatch.workers)) == (task, [event.worker]) and made.version == 0


def test_losing_workers_ends_the_run_only_when_none_can_come_back() -> None:
    made = begun(2)
    assert not made.on(Lost(0.1, 0, "preempted"))
    assert not made.on(Lost(0.1, 1, "preempted"))
    assert list(made.on(Joined(0.2, 1))[0].workers) == [1]  # type: ignore[union-attr]
    assert not made.on(Lost(0.3, 0, "could not be started", gone=True))
    (stop,) = made.on(Lost(0.4, 1, "died", gone=True))
    assert stop == Stop("every worker has been given up", failed=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": 3, "step": 0.0}, r"step \(a factor on the learning rate\) must be above 0, got 0"),
        ({"workers": 3, "step": -1.0}, r"step \(a factor on the learning rate\) must be above 0, got -1"),
        ({"workers": 3, "step": float("nan")}, r"step .* must be above 0, got nan"),
        ({"workers": 3, "step": float("inf")}, r"step .* must be above 0, got inf"),
    ],
)
def test_parameters_out_of_range(options: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Asynchronous(**options)


def test_its_spec() -> None:
    assert strategy("async", workers=3).spec == "async"
    assert strategy("async:step=0.25", workers=3).spec == strategy("async:0.25", workers=3).spec == "async:step=0.25"


# ------------------------------------------------------------------------------------------- any events at all


class World:
    """Which worker has which task, and since which version."""

    def __init__(self, workers: int, present: Sequence[int]) -> None:
        self.strategy = Asynchronous(workers, step=0.5)
        self.workers, self.present, self.gone = workers, set(present), set[int]()
        self.given: dict[int, tuple[int, int]] = {}  # worker -> (task, version)
        self.next = self.version = 0
        self.staleness: list[int] = []
        self.stopped = False
        self.obey(self.strategy.start(Fleet(workers, tuple(sorted(present)), 0.0)))

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                assert list(command.workers) == sorted(command.workers) and command.task == self.next
                for worker, chunks in zip(command.workers, command.chunks, strict=True):
                    assert worker in self.present and worker not in self.given
                    assert [chunk.partitions for chunk in chunks] == [(worker,)]
                    self.given[worker] = (self.next, self.version)
                    self.next += 1
            elif isinstance(command, Combine):
                self.version += 1
            else:
                assert isinstance(command, Stop) and command.failed and len(self.gone) == self.workers
                self.stopped = True

    def tell(self, event: Event) -> None:
        twin = Asynchronous(self.workers, step=0.5)
        twin.restore(json.loads(json.dumps(self.strategy.state())))
        commands = self.strategy.on(event)
        assert list(twin.on(event)) == list(commands)
        assert twin.state() == self.strategy.state()
        if isinstance(event, Reply):
            assert isinstance(commands[0], Combine) and list(commands[0].messages) == [(event.task, 0)]
        self.obey(commands)
        assert self.stopped == (len(self.gone) == self.workers)
        if not self.stopped:
            assert set(self.given) == self.present  # all have work, always
            assert self.strategy.version == self.version

    def do(self, kind: str, pick: int) -> None:
        time = float(self.next)
        absent = sorted(set(range(self.workers)) - self.present - self.gone)
        here = sorted(self.present)
        if kind in ("lost", "gone") and here:
            worker = here[pick % len(here)]
            self.present.discard(worker)
            self.given.pop(worker)
            self.gone |= {worker} if kind == "gone" else set()
            self.tell(Lost(time, worker, "preempted", kind == "gone"))
        elif kind == "joined" and absent:
            self.present.add(absent[pick % len(absent)])
            self.tell(Joined(time, absent[pick % len(absent)]))
        elif here:
            worker = here[pick % len(here)]
            task, version = self.given.pop(worker)
            if kind == "fail":
                self.tell(Failed(time, worker, task, 0, "not finite"))
            else:
                self.staleness.append(self.version - version)
                self.tell(Reply(time, worker, task, 0))


KINDS = ["reply"] * 7 + ["fail", "lost", "joined", "joined", "gone"]


@settings(deadline=None, max_examples=100)
@given(
    st.sets(st.integers(0, 3), min_size=1),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11)), max_size=40),
)
def test_under_any_events_all_who_are_there_work_and_its_state_is_all_there_is(
    present: set[int], actions: list[tuple[str, int]]
) -> None:
    world = World(4, sorted(present))
    for action in actions:
        if not world.stopped:
            world.do(*action)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 9), st.lists(st.integers(0, 1000), min_size=1, max_size=80))
def test_staleness_is_conserved(workers: int, picks: list[int]) -> None:
    """At each step the P - 1 unfinished tasks grow one version older: whatever the order, sums of ages are T (P - 1)."""
    world = World(workers, range(workers))
    for pick in picks:
        world.do("reply", pick)
    unfinished = [world.version - version for _, version in world.given.values()]
    assert sum(world.staleness) + sum(unfinished) == len(picks) * (workers - 1)


def test_round_robin_is_stale_by_all_the_others() -> None:
    """0, 1, …, P - 1 while warming up, P - 1 from then on."""
    world = World(4, range(4))
    for turn in range(20):
        world.do("reply", turn % 4)
    assert world.staleness == [0, 1, 2] + [3] * 17
