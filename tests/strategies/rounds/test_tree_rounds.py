"""Rounds in trees, fed by hand: who adds up whom, when the step is taken, and what if it goes wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from anyk.base.errors import BadInput
from anyk.codes.tree_code import ROOT
from anyk.protocol import (
    Cancel,
    Combine,
    Command,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Joined,
    Lost,
    Progress,
    Reply,
    RequestMessage,
    Stop,
)
from anyk.strategies import TreeRounds, strategy
from anyk.testing import check_strategy
from byhand import ByHand

pytestmark = pytest.mark.in_process


def of(kind: type[Any], commands: Sequence[Command]) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


@cache
def _built(spec: str, n: int) -> TreeRounds:
    rounds = strategy(spec, workers=n)
    assert isinstance(rounds, TreeRounds)
    return rounds


class World:
    """A cluster on paper that knows what each message is made of."""

    def __init__(self, spec: str, n: int, present: Sequence[int] | None = None) -> None:
        self.spec, self.n = spec, n
        self.strategy = self.fresh()
        self.code = self.strategy.code
        self.present = set(range(n) if present is None else present)
        self.gone: set[int] = set()
        self.tasks: dict[int, int] = {}
        self.finished: set[int] = set()
        self.asks: dict[int, RequestMessage] = {}
        self.inside: dict[int, np.ndarray] = {}  # task -> coefficients of its message
        self.steps: list[Combine] = []
        self.stopped: Stop | None = None
        self.obey(self.strategy.start(Fleet(n, tuple(sorted(self.present)), 0.0)))

    def fresh(self) -> ByHand:
        built = _built(self.spec, self.n)
        return ByHand(deepcopy(built, {id(built.code): built.code}))

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch(first, workers, chunks):
                    for task, (worker, work) in enumerate(zip(workers, chunks, strict=True), first):
                        assert worker in self.present and worker not in self.tasks.values()
                        share = self.code.shares[worker]
                        assert (work[0].partitions, work[0].coefficients) == (share.partitions, share.coefficients)
                        assert work[0].send == ("request" if share.children else "done")
                        self.tasks[task] = worker
                case Cancel(tasks, _):
                    for task in tasks:
                        self.tasks.pop(task, None)
                        self.finished.discard(task)
                        self.asks.pop(task, None)
                        self.inside.pop(task, None)
                case RequestMessage():
                    assert self.tasks[command.task] == command.worker
                    assert command.task in self.finished and command.task not in self.asks
                    assert all(task in self.inside for task, _ in command.messages)
                    self.asks[command.task] = command
                case Combine():
                    total = sum(
                        weight * self.inside[task]
                        for (task, _), weight in zip(command.messages, command.weights, strict=True)
                    )
                    assert total == pytest.approx(np.ones(self.code.partitions), abs=1e-9)
                    self.steps.append(command)
                case Stop():
                    self.stopped = command

    def made_of(self, task: int) -> np.ndarray:
        share = self.code.shares[self.tasks[task]]
        total = np.zeros(self.code.partitions)
        np.add.at(total, list(share.partitions), share.coefficients)
        if task in self.asks:
            ask = self.asks[task]
            for (inside, _), weight in zip(ask.messages, ask.weights, strict=True):
                total += weight * self.inside[inside]
        return total

    def tell(self, event: Event) -> Sequence[Command]:
        twin = self.fresh()
        twin.restore(json.loads(json.dumps(self.strategy.save())))
        commands = self.strategy.on(event)
        assert list(twin.on(event)) == list(commands)
        assert twin.save() == self.strategy.save()
        self.obey(commands)
        if self.stopped is None:
            assert self.can() or len(self.present) + len(self.gone) < self.n, "a deadlock"
        return commands

    def can(self) -> list[tuple[str, int]]:
        """What may happen next: (progress or reply, task)."""
        events = []
        for task, worker in sorted(self.tasks.items()):
            if task in self.inside:
                continue
            if self.code.shares[worker].children and task not in self.finished:
                events.append(("progress", task))
            elif not self.code.shares[worker].children or task in self.asks:
                events.append(("reply", task))
        return events

    def go(self, kind: str, task: int) -> Sequence[Command]:
        worker = self.tasks[task]
        if kind == "progress":
            self.finished.add(task)
            return self.tell(Progress(1.0, worker, task, 0, len(self.code.shares[worker].partitions)))
        self.inside[task] = self.made_of(task)
        return self.tell(Reply(1.0, worker, task, 0))

    def lose(self, worker: int, gone: bool = False) -> Sequence[Command]:
        self.present.discard(worker)
        self.gone |= {worker} if gone else set()
        for task in [t for t, w in self.tasks.items() if w == worker]:
            if task not in self.inside:
                self.asks.pop(task, None)
            del self.tasks[task]
            self.finished.discard(task)
        return self.tell(Lost(1.0, worker, "killed", gone))

    def join(self, worker: int) -> Sequence[Command]:
        self.present.add(worker)
        return self.tell(Joined(1.0, worker))

    def fail(self, task: int) -> Sequence[Command]:
        worker = self.tasks.pop(task)
        self.finished.discard(task)
        self.asks.pop(task, None)
        return self.tell(Failed(1.0, worker, task, 0, "not finite (NaN)"))


# ------------------------------------------------------------------------------------------- a round


def test_the_commands_of_a_round() -> None:
    """Two layers of twos: workers 0 and 1 are the driver's, 2 and 3 are 0's, 4 and 5 are 1's; one of each pair is enough."""
    world = World("tree:children=2,stragglers=1", 6)
    assert not world.go("reply", 3)  # its parent is still busy with its own share
    (collect,) = world.go("progress", 0)
    share = world.code.shares[0]
    assert collect == RequestMessage(0, 0, 0, share.partitions, share.coefficients, ((3, 0),), (1.0,))
    assert not world.go("reply", 2)  # too late: the parent has been asked
    combine, cancel, dispatch = world.go("reply", 0)
    assert isinstance(combine, Combine) and (combine.messages, combine.weights) == ([(0, 0)], [1.0])
    assert isinstance(cancel, Cancel) and list(cancel.tasks) == list(range(6))
    assert isinstance(dispatch, Dispatch) and (dispatch.task, list(dispatch.workers)) == (6, list(range(6)))


def test_a_parent_waits_for_its_own_last_partition() -> None:
    world = World("tree:children=2,stragglers=1", 6)
    world.go("reply", 2)
    for done in range(1, len(world.code.shares[0].partitions)):
        assert not world.strategy.on(Progress(1.0, 0, 0, 0, done))
    assert of(RequestMessage, world.go("progress", 0))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(
        [
            ("tree:children=3,stragglers=1", 12),
            ("tree:children=2,stragglers=1", 14),
            ("tree:children=4,stragglers=2", 20),
            ("tree:children=3,stragglers=0", 12),
        ]
    ),
    st.data(),
)
def test_any_s_dead_children_of_each_parent_leave_the_exact_sum(tree: tuple[str, int], data: st.DataObject) -> None:
    """Whoever is missing below each parent and in whatever order the others come (World checks every step's sum)."""
    spec, n = tree
    world = World(spec, n)
    s = world.code.stragglers
    for parent in range(ROOT, n):
        below = list(world.code.children_of(parent))
        for worker in data.draw(st.permutations(below))[: data.draw(st.integers(0, s))] if below else ():
            world.lose(worker, gone=data.draw(st.booleans()))
    for _ in range(4 * n):
        if len(world.steps) == 2 or world.stopped is not None:
            break
        world.go(*data.draw(st.sampled_from(world.can())))
    assert world.stopped is None and len(world.steps) == 2


def test_a_tree_of_one_layer_is_its_code() -> None:
    plain = ByHand(strategy("frc:stragglers=1", workers=4))
    plain.start(Fleet(4, (0, 1, 2, 3), 0.0))
    world = World("tree:children=4,stragglers=1", 4)
    for worker in (1, 0):
        assert not plain.on(Reply(1.0, worker, worker, 0)) and not world.go("reply", worker)
    (combine,) = of(Combine, world.go("reply", 3))
    (expected,) = of(Combine, plain.on(Reply(1.0, 3, 3, 0)))
    assert (combine.messages, combine.weights) == (expected.messages, expected.weights)
    assert (combine.residual, combine.gain) == (expected.residual, expected.gain)


@pytest.mark.parametrize(("spec", "n"), [("tree:children=2,stragglers=1", 6), ("tree:children=3,stragglers=1", 12)])
def test_the_gain_is_that_of_all_messages(spec: str, n: int) -> None:
    """The rounding of what is added up below counts, too: at least the gain of the code's own decode."""
    world = World(spec, n)
    asks: dict[int, RequestMessage] = {}
    while not world.steps:
        for command in world.go(*world.can()[0]):
            if isinstance(command, RequestMessage):
                asks[command.task] = command
    (combine,) = world.steps
    total = dict(zip(combine.messages, combine.weights, strict=True))
    weights = np.zeros(n)
    while total:
        (task, _), weight = total.popitem()
        weights[task] = weight  # tasks of the first round are numbered like their workers
        if task in asks:
            for message, share in zip(asks[task].messages, asks[task].weights, strict=True):
                total[message] = weight * share
    judged = world.code.judge(weights)
    assert judged.exact
    assert combine.gain >= judged.gain - 1e-9


# ------------------------------------------------------------------------------------------- what goes wrong


def test_a_dead_parent_is_asked_again_with_its_children() -> None:
    world = World("tree:children=2,stragglers=0", 6)
    for worker in (2, 3):
        world.go("reply", worker)
    (first,) = of(RequestMessage, world.go("progress", 0))
    assert not of(Stop, world.lose(0))
    (dispatch,) = world.join(0)
    assert list(dispatch.workers) == [0]
    (second,) = of(RequestMessage, world.go("progress", dispatch.task))
    assert (second.messages, second.weights) == (first.messages, first.weights) and second.task == dispatch.task
    assert not world.strategy.on(Reply(1.0, 0, 0, 0))  # of the life before


def test_a_child_that_dies_after_answering_is_not_needed_again() -> None:
    world = World("tree:children=2,stragglers=0", 6)
    world.go("reply", 2)
    assert not world.lose(2)
    assert not world.join(2)
    world.go("reply", 3)
    (collect,) = of(RequestMessage, world.go("progress", 0))
    assert dict(zip(collect.messages, collect.weights, strict=True)) == {(2, 0): 1.0, (3, 0): 1.0}


def test_a_parent_with_three_unusable_messages_is_a_straggler() -> None:
    world = World("tree:children=2,stragglers=1", 6)
    world.go("reply", 2)
    world.go("reply", 4)
    task = 0
    for _ in range(3):
        world.go("progress", task)
        commands = of(Dispatch, world.fail(task))
        task = commands[0].task if commands else -1
    assert task == -1 and world.stopped is None
    world.go("progress", 1)
    (combine,) = of(Combine, world.go("reply", 1))
    assert combine.messages == [(1, 0)]


def test_more_are_given_up_than_a_parent_tolerates() -> None:
    world = World("tree:children=2,stragglers=1", 6)
    for worker in (2, 3, 4):
        assert not of(Stop, world.lose(worker, gone=True))  # 0 cannot be made any more, 1 can
    (stop,) = of(Stop, world.lose(5, gone=True))
    assert stop.failed and "more children of one parent are missing" in stop.reason


def test_a_node_given_up_after_its_answer_misses_the_next_round() -> None:
    """Their messages make this step possible, and nobody's the next: that is to be said, not waited for."""
    world = World("tree:children=3,stragglers=1", 3)
    world.go("reply", 0)
    assert not world.lose(0, gone=True)
    assert not world.lose(1, gone=True)
    commands = world.go("reply", 2)
    assert of(Combine, commands) and of(Stop, commands)


def test_a_number_to_wait_for_has_no_meaning_in_a_tree() -> None:
    with pytest.raises(BadInput, match="does not support 'wait'"):
        strategy("tree:children=2,stragglers=1,wait=3", workers=6)


TREES = [("tree:children=2,stragglers=1", 6), ("tree:children=3,stragglers=1,cancel=discard", 12)]
kinds = st.sampled_from(["go"] * 9 + ["lost", "joined", "joined", "fail", "gone"])


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "n"), TREES)
@settings(deadline=None, max_examples=40, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
@given(actions=st.lists(st.tuples(kinds, st.integers(0, 99)), min_size=20, max_size=80))
def test_under_any_events_it_keeps_its_word(spec: str, n: int, actions: list[tuple[str, int]]) -> None:
    world = World(spec, n)
    for kind, pick in actions:
        absent = sorted(set(range(n)) - world.present - world.gone)
        able = world.can()
        if kind in ("lost", "gone") and world.present:
            world.lose(sorted(world.present)[pick % len(world.present)], kind == "gone" and pick % 3 == 0)
        elif absent and (kind == "joined" or not able):
            world.join(absent[pick % len(absent)])
        elif able and kind == "fail" and able[pick % len(able)][0] == "reply":
            world.fail(able[pick % len(able)][1])
        elif able:
            world.go(*able[pick % len(able)])
        if world.stopped is not None:
            break


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "n"), [*TREES, ("tree:children=2,stragglers=1", 14)])
@pytest.mark.parametrize("seed", range(4))
def test_it_survives_outages(spec: str, n: int, seed: int) -> None:
    check_strategy(strategy(spec, workers=n), steps=10, outages=5, seed=seed)
