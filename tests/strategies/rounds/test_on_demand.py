"""Rounds with progress, fed by hand: who is asked for what and when, and what if it goes wrong. No cluster, no clock."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.protocol import (
    Alarm,
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
    SetAlarm,
    Stop,
)
from anyk.strategies import ProgressRounds, Waiting, strategy
from anyk.testing import check_strategy
from byhand import ByHand


@cache
def _built(spec: str, n: int) -> ProgressRounds:
    rounds = strategy(spec, workers=n)
    assert isinstance(rounds, ProgressRounds)
    return rounds


def fresh(spec: str, n: int) -> ByHand:
    """A fresh strategy; the code, which is immutable, is built once."""
    built = _built(spec, n)
    return ByHand(deepcopy(built, {id(built.code): built.code}))


def begun(spec: str, n: int, present: Sequence[int] | None = None) -> ByHand:
    running = fresh(spec, n)
    running.start(Fleet(n, tuple(range(n)) if present is None else tuple(present), 0.0))
    return running


def of(kind: type[Any], commands: Sequence[Command]) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def asked_for(commands: Sequence[Command]) -> dict[int, RequestMessage]:
    asks = of(RequestMessage, commands)
    ask_of = {ask.worker: ask for ask in asks}
    assert len(ask_of) == len(asks)  # one message each
    return ask_of


def answered(made: ByHand, asks: dict[int, RequestMessage], time: float) -> Combine:
    """The step that follows when all who were asked answer."""
    for number, ask in enumerate(asks.values(), 1):
        commands = made.on(Reply(time, ask.worker, ask.task, 0))
        assert bool(commands) == (number == len(asks))  # not before the last, and then
    (combine,) = of(Combine, commands)
    return combine


def reached(m: int, asks: dict[int, RequestMessage], combine: Combine) -> np.ndarray:
    """With which weight each partition counts."""
    by_task = {ask.task: ask for ask in asks.values()}
    total = np.zeros(m)
    for (task, _), weight in zip(combine.messages, combine.weights, strict=True):
        np.add.at(total, list(by_task[task].partitions), weight * np.array(by_task[task].coefficients))
    return total


class _Endless(Exception):
    """Raised into an endless loop."""


@contextmanager
def no_endless_loop() -> Iterator[None]:
    """An endless loop would take the machine's memory with it; this ends it."""

    def ring(*_: Any) -> None:
        raise _Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        yield
    except _Endless:
        ended = True
    else:
        ended = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    if ended:  # without the traceback, which would show all that the loop made
        pytest.fail("an endless loop", pytrace=False)


# ------------------------------------------------------------------------------------------- a round


@pytest.mark.slow
def test_the_commands_of_a_round() -> None:
    running = ByHand(strategy("nested:stragglers=1", workers=4))
    (dispatch,) = running.start(Fleet(4, (0, 1, 2, 3), 5.0))
    assert isinstance(dispatch, Dispatch)
    assert [task[0].partitions for task in dispatch.chunks] == [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert {task[0].send for task in dispatch.chunks} == {"request"}
    assert not running.on(Progress(5.1, 0, 0, 0, 1))
    assert not running.on(Progress(5.2, 0, 0, 0, 2))  # blocks {0, 1}: worker 0 has done it alone
    assert not running.on(Progress(5.3, 2, 2, 0, 1))
    commands = running.on(Progress(5.4, 2, 2, 0, 2))  # and {2, 3} worker 2
    assert sorted(of(Cancel, commands)[0].tasks) == [1, 3]  # who is not asked is cut off at once
    asks = asked_for(commands)
    assert {(a.worker, a.task, a.partitions, a.coefficients) for a in asks.values()} == {
        (0, 0, (0, 1), (1.0, 1.0)),
        (2, 2, (2, 3), (1.0, 1.0)),
    }
    assert not running.on(Progress(5.5, 1, 1, 0, 2))  # too late to matter
    combine = answered(running, asks, 5.6)
    assert combine == Combine("model", [(0, 0), (2, 0)], [1.0, 1.0], "all", 1.0, 0.0, 2.0)


def test_the_next_round_begins_with_the_step() -> None:
    running = begun("nested:stragglers=1", 2)
    asks = asked_for([*running.on(Progress(1.0, 0, 0, 0, 1)), *running.on(Progress(1.0, 1, 1, 0, 1))])
    running.on(Reply(1.0, 0, 0, 0))
    _, cancel, dispatch = running.on(Reply(1.0, 1, 1, 0))
    assert sorted(asks) == [0, 1] and running.version == 1
    assert isinstance(cancel, Cancel) and list(cancel.tasks) == [0, 1]
    assert isinstance(dispatch, Dispatch) and dispatch.task == 2
    assert not running.on(Progress(1.5, 0, 0, 0, 2))  # of the round before
    assert not running.on(Reply(1.5, 0, 0, 0))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 7), st.data())
def test_cyclic_levels_end_at_the_best_fixed_tolerance(n: int, data: st.DataObject) -> None:
    """min over s of the (n - s)-th time at which s + 1 partitions are done; the first such event, nothing later."""
    top = data.draw(st.integers(0, n - 1))
    seconds = np.array(data.draw(st.lists(st.integers(1, 1000), min_size=n * (top + 1), max_size=n * (top + 1))))
    ends = np.cumsum(seconds.reshape(n, top + 1) + np.random.default_rng(0).random((n, top + 1)), axis=1)
    best = min(np.sort(ends[:, s])[n - s - 1] for s in range(top + 1))
    running = begun(f"nested:stragglers={top},kind=cyclic", n)
    for time, worker, done in sorted((float(ends[i, q]), i, q + 1) for i in range(n) for q in range(top + 1)):
        commands = running.on(Progress(time, worker, worker, 0, done))
        if commands:
            break
    assert time == best
    asks = asked_for(commands)
    assert all(ask.partitions == running.code.orders[i][: len(ask.partitions)] for i, ask in asks.items())
    combine = answered(running, asks, time)
    assert reached(n, asks, combine) == pytest.approx(np.ones(n), abs=1e-6)
    assert combine.residual == 0.0


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["", ",placement=random"]), st.integers(1, 4), st.permutations(list(range(6)) * 4))
def test_each_chunk_is_taken_from_one_who_finished_it(placement: str, load: int, order: list[int]) -> None:
    running = begun(f"progress:load={load}{placement}", 6)
    done = [0] * 6
    commands: Sequence[Command] = ()
    for time, worker in enumerate(order):
        if done[worker] == load:
            continue
        covered = {j for i in range(6) for j in running.code.orders[i][: done[i]]}
        assert len(covered) < 6
        done[worker] += 1
        commands = running.on(Progress(float(time), worker, worker, 0, done[worker]))
        if commands:
            break
    asks = asked_for(commands)
    for worker, ask in asks.items():
        assert set(ask.partitions) <= set(running.code.orders[worker][: done[worker]])
    assert sorted(j for ask in asks.values() for j in ask.partitions) == list(range(6))
    assert reached(6, asks, answered(running, asks, 9.0)) == pytest.approx(np.ones(6), abs=0)


# ------------------------------------------------------------------------------------------- approximations


@pytest.mark.parametrize(
    "spec", ["nested:stragglers=2,kind=cyclic,wait=70%", "nested:stragglers=3,wait=71%", "progress:load=3,wait=60%"]
)
def test_an_approximation_says_what_it_is(spec: str) -> None:
    """The receipt's residual and gain are of the coefficients used, whose mean is 1."""
    approximate = 0
    for seed in range(20):
        running = begun(spec, 8)
        random = np.random.default_rng(seed)
        done = [0] * 8
        commands: Sequence[Command] = ()
        while not commands:
            worker = int(random.integers(8))
            done[worker] = min(done[worker] + 1, len(running.code.orders[worker]))
            commands = running.on(Progress(1.0, worker, worker, 0, done[worker]))
        asks = asked_for(commands)
        combine = answered(running, asks, 2.0)
        total = reached(8, asks, combine)
        assert combine.residual == pytest.approx(float(np.sqrt(((total - 1) ** 2).mean())), abs=1e-7)
        assert total.mean() == pytest.approx(1.0, abs=1e-9)
        weights = dict(zip((task for task, _ in combine.messages), combine.weights, strict=True))
        norms = {ask.task: np.linalg.norm(ask.coefficients) for ask in asks.values()}
        assert combine.gain == pytest.approx(sum((a * norms[t]) ** 2 for t, a in weights.items()) ** 0.5)
        approximate += combine.residual > 1e-6
    assert approximate > 5


def test_an_alarm_when_workers_have_been_asked_asks_nobody_again() -> None:
    running = begun("progress:load=2,wait=0.5s", 4)
    running.on(Progress(0.1, 0, 0, 0, 1))
    asks = asked_for(running.on(Alarm(0.5, "wait 0")))
    assert sorted(asks) == [0]
    assert not running.on(Alarm(0.5, "wait 0"))
    commands = running.on(
        Lost(0.6, 0, "preempted")
    )  # the one that was asked: all over again, with a deadline of its own
    assert of(SetAlarm, commands) == [SetAlarm("wait 0", 1.1)]
    assert list(of(Dispatch, commands)[0].workers) == [1, 2, 3]


def test_a_message_that_was_not_requested_does_not_count() -> None:
    running = begun("nested:stragglers=1", 4)
    assert not running.on(Reply(0.1, 1, 1, 0))  # while nothing is requested
    for worker in (0, 2):
        running.on(Progress(0.2, worker, worker, 0, 1))
        commands = running.on(Progress(0.3, worker, worker, 0, 2))
    asks = asked_for(commands)
    assert set(asks) == {0, 2}
    assert not running.on(Reply(0.4, 3, 3, 0))  # of a worker whose task is cancelled
    combine = answered(running, asks, 0.5)
    assert combine.messages == [(0, 0), (2, 0)]


def test_nothing_done_by_the_deadline() -> None:
    running = begun("progress:load=2,wait=0.5s", 3)
    assert not running.on(Alarm(0.5, "wait 0"))
    assert sorted(asked_for(running.on(Progress(0.7, 2, 2, 0, 1)))) == [2]


@pytest.mark.parametrize("wait", ["3", "all", "2|0.5s", "0.75n", "5%|0.5n&0.5s"])
def test_a_number_of_replies_is_not_progress(wait: str) -> None:
    with pytest.raises(BadInput, match="waits for progress, not for a number of replies"):
        strategy(f"nested:stragglers=1,wait={wait}", workers=4)


def test_a_rule_of_python_sees_all_of_the_round() -> None:
    seen = []

    def half(waiting: Waiting) -> bool:
        seen.append((waiting.replied, waiting.arrivals, waiting.elapsed, waiting.decodable, tuple(waiting.recent)))
        return waiting.replies >= waiting.expected / 2

    code = _built("progress:load=2", 4).code
    running = ByHand(ProgressRounds(code, wait=half))
    running.start(Fleet(4, (0, 1, 2, 3), 0.0))
    assert not running.on(Progress(0.1, 2, 2, 0, 1))
    assert set(asked_for(running.on(Progress(0.3, 0, 0, 0, 1)))) == {0, 2}
    assert seen == [((2,), (0.1,), 0.1, False, ()), ((2, 0), (0.1, 0.3), 0.3, False, ())]


# ------------------------------------------------------------------------------------------- what goes wrong


def all_asked(made: ByHand) -> dict[int, RequestMessage]:
    commands: Sequence[Command] = ()
    for worker in range(made.workers):
        commands = made.on(Progress(1.0, worker, worker, 0, 1))
    return asked_for(commands)


def test_a_worker_that_was_asked_dies() -> None:
    running = begun("nested:stragglers=1", 4)
    assert sorted(all_asked(running)) == [0, 1, 2, 3]
    running.on(Reply(1.1, 1, 1, 0))
    cancel, dispatch = running.on(Lost(1.2, 2, "killed"))
    assert isinstance(cancel, Cancel) and list(cancel.tasks) == [0, 1, 2, 3]
    assert isinstance(dispatch, Dispatch) and (dispatch.task, list(dispatch.workers)) == (4, [0, 1, 3])
    assert not running.on(Reply(1.3, 0, 0, 0))  # late, of a cancelled task
    assert running.version == 0


def test_a_worker_that_has_answered_may_die() -> None:
    """Its message is in; nothing more is wanted of it in this round."""
    running = begun("nested:stragglers=1", 4)
    all_asked(running)
    assert not running.on(Reply(1.1, 0, 0, 0))
    assert not running.on(Lost(1.2, 0, "killed"))
    assert not running.on(Reply(1.3, 1, 1, 0))
    assert not running.on(Reply(1.3, 2, 2, 0))
    combine, _, dispatch = running.on(Reply(1.3, 3, 3, 0))
    assert isinstance(combine, Combine) and combine.messages == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert isinstance(dispatch, Dispatch) and list(dispatch.workers) == [1, 2, 3]


def test_what_a_lost_worker_had_done_counts_no_more() -> None:
    running = begun("progress:load=2", 3)  # orders (0, 1), (1, 2), (2, 0)
    running.on(Progress(1.0, 0, 0, 0, 2))
    running.on(Lost(1.1, 0, "killed"))
    assert not running.on(Progress(1.2, 2, 2, 0, 1))
    asks = asked_for(running.on(Progress(1.3, 2, 2, 0, 2)) or running.on(Progress(1.4, 1, 1, 0, 1)))
    assert 0 not in asks and sorted(j for ask in asks.values() for j in ask.partitions) == [0, 1, 2]


def test_unusable_messages_set_a_worker_aside_after_three() -> None:
    running = begun("nested:stragglers=1", 2)
    first = 0
    for attempt in range(3):
        running.on(Progress(1.0, 0, first, 0, 1))
        assert sorted(asked_for(running.on(Progress(1.0, 1, first + 1, 0, 1)))) == [0, 1]
        commands = running.on(Failed(1.1, 1, first + 1, 0, "not finite (NaN)"))
        (dispatch,) = of(Dispatch, commands)
        assert list(dispatch.workers) == ([0, 1] if attempt < 2 else [0])
        first = dispatch.task
    running.on(Progress(1.2, 0, first, 0, 1))
    asks = asked_for(running.on(Progress(1.2, 0, first, 0, 2)))
    assert asks[0].partitions == (0, 1)
    assert list(of(Dispatch, running.on(Reply(1.3, 0, first, 0)))[0].workers) == [0, 1]  # a new step, a new chance


def test_more_are_given_up_than_it_tolerates() -> None:
    running = begun("nested:stragglers=1,kind=cyclic", 3)
    commands = [*running.on(Lost(0.1, 0, "dead", True)), *running.on(Lost(0.1, 1, "dead", True))]
    for done in (1, 2):
        commands += running.on(Progress(1.0, 2, 2, 0, done))
    (stop,) = of(Stop, commands)
    assert stop.failed and "what 1 of 3 workers can finish does not give the sum" in stop.reason


def test_progress_told_again_covers_nothing_twice() -> None:
    """A worker of a resumed run begins its task anew and tells again what it told before."""
    running = begun("progress:load=2", 3)
    commands: list[Command] = []
    with no_endless_loop():
        for worker, done in ((0, 2), (0, 1), (2, 1), (0, 2)):
            commands += running.on(Progress(1.0, worker, worker, 0, done))
    asks = asked_for(commands)
    assert sorted(j for ask in asks.values() for j in ask.partitions) == [0, 1, 2]


def test_progress_told_again_is_no_second_worker() -> None:
    running = begun("nested:stragglers=2,kind=cyclic", 5)
    for worker in (0, 1):
        for done in (1, 2, 3):
            assert not running.on(Progress(1.0, worker, worker, 0, done))
    for done in (1, 2, 3):
        assert not running.on(Progress(1.5, 0, 0, 0, done))
    commands: list[Command] = []
    for done in (1, 2, 3):
        commands += running.on(Progress(2.0, 2, 2, 0, done))
    asks = asked_for(commands)
    assert sorted(asks) == [0, 1, 2]
    assert reached(5, asks, answered(running, asks, 2.5)) == pytest.approx(np.ones(5), abs=1e-6)


# ------------------------------------------------------------------------------------------- any events at all

WORKERS = 6
RULES = [
    "nested:stragglers=1",
    "nested:stragglers=2,kind=cyclic",
    "nested:stragglers=2,kind=cyclic,wait=60%",
    "progress:load=3",
    "progress:load=3,wait=0.5s",
    "progress:load=2,wait=50%,cancel=discard",
]
Actions = list[tuple[str, int, float]]
actions = st.lists(
    st.tuples(
        st.sampled_from(["go"] * 9 + ["lost", "joined", "fail", "gone", "alarm"]),
        st.integers(0, 99),
        st.sampled_from([0.0, 0.1, 0.3]),
    ),
    min_size=30,
    max_size=90,
)


class World:
    """A cluster on paper: who is on what, who has been asked."""

    def __init__(self, spec: str, present: list[int]) -> None:
        self.spec, self.strategy = spec, fresh(spec, WORKERS)
        self.orders = self.strategy.code.orders
        self.present, self.gone = set(present), set[int]()
        self.time, self.version = 0.0, 0
        self.tasks: dict[int, int] = {}  # task -> worker
        self.done: dict[int, int] = {}
        self.asks: dict[int, RequestMessage] = {}
        self.inside: dict[int, RequestMessage] = {}  # messages that are in
        self.alarms: dict[str, float] = {}
        self.stopped: Stop | None = None
        self.obey(self.strategy.start(Fleet(WORKERS, tuple(present), 0.0)))

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch(first, workers, chunks):
                    for task, (worker, work) in enumerate(zip(workers, chunks, strict=True), first):
                        assert worker in self.present and worker not in self.tasks.values()
                        assert work[0].partitions == self.orders[worker]
                        self.tasks[task], self.done[task] = worker, 0
                case Cancel(tasks, _):
                    for task in tasks:
                        for book in (self.tasks, self.done, self.asks, self.inside):
                            book.pop(task, None)
                case RequestMessage():
                    assert self.tasks[command.task] == command.worker and command.task not in self.asks
                    finished = self.orders[command.worker][: self.done[command.task]]
                    assert command.partitions and set(command.partitions) <= set(finished)
                    self.asks[command.task] = command
                case SetAlarm(name, time):
                    assert time is not None
                    self.alarms[name] = time
                case Combine():
                    self.step(command)
                case Stop():
                    self.stopped = command

    def step(self, command: Combine) -> None:
        total = np.zeros(WORKERS)
        norms = []
        for (task, _), weight in zip(command.messages, command.weights, strict=True):
            ask = self.inside[task]
            total[list(ask.partitions)] += weight * np.array(ask.coefficients)
            norms.append(weight * float(np.linalg.norm(ask.coefficients)))
        assert command.residual == pytest.approx(float(np.sqrt(((total - 1) ** 2).mean())), abs=1e-6)
        assert command.gain == pytest.approx(float(np.linalg.norm(norms)), rel=1e-9)
        if not self.strategy.enough.approximate:
            assert total == pytest.approx(np.ones(WORKERS), abs=1e-6)
        self.version += 1
        assert self.strategy.version == self.version

    def tell(self, event: Event) -> None:
        twin = fresh(self.spec, WORKERS)
        twin.restore(json.loads(json.dumps(self.strategy.save())))
        commands = self.strategy.on(event)
        assert list(twin.on(event)) == list(commands)
        assert twin.save() == self.strategy.save()
        self.obey(commands)
        if self.stopped is None:  # something can still happen
            waiting = any(task not in self.inside for task in self.asks)
            working = any(self.done[t] < len(self.orders[w]) for t, w in self.tasks.items())
            assert waiting or working or len(self.present) + len(self.gone) < WORKERS, "a deadlock"

    def do(self, kind: str, pick: int, later: float) -> None:
        self.time += later
        if kind == "alarm" and self.alarms:
            self.time = max(self.time, min(self.alarms.values()))
        while self.alarms and min(self.alarms.values()) <= self.time and self.stopped is None:
            name = min(self.alarms, key=lambda name: (self.alarms[name], name))
            del self.alarms[name]
            self.tell(Alarm(self.time, name))
        absent = sorted(set(range(WORKERS)) - self.present - self.gone)
        if self.stopped is not None or kind == "alarm":
            return
        if kind in ("lost", "gone") and self.present:
            worker = sorted(self.present)[pick % len(self.present)]
            self.present.discard(worker)
            self.gone |= {worker} if kind == "gone" else set()
            for task in [t for t, w in self.tasks.items() if w == worker]:
                del self.tasks[task], self.done[task]  # its message, if it is in, stays
                if task not in self.inside:
                    self.asks.pop(task, None)
            self.tell(Lost(self.time, worker, "preempted", kind == "gone"))
        elif kind == "joined" and absent:
            worker = absent[pick % len(absent)]
            self.present.add(worker)
            self.tell(Joined(self.time, worker))
        elif waiting := sorted(t for t in self.asks if t not in self.inside):
            ask = self.asks[waiting[pick % len(waiting)]]
            if kind == "fail":
                self.tasks.pop(ask.task)
                self.done.pop(ask.task)
                del self.asks[ask.task]
                self.tell(Failed(self.time, ask.worker, ask.task, 0, "not finite"))
            else:
                self.inside[ask.task] = ask
                self.tell(Reply(self.time, ask.worker, ask.task, 0))
        elif working := sorted(t for t, w in self.tasks.items() if self.done[t] < len(self.orders[w])):
            task = working[pick % len(working)]
            self.done[task] += 1
            self.tell(Progress(self.time, self.tasks[task], task, 0, self.done[task]))


@pytest.mark.slow
@pytest.mark.parametrize("spec", RULES)
@settings(deadline=None, max_examples=30, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
@given(present=st.sets(st.integers(0, WORKERS - 1), min_size=1), actions=actions)
def test_under_any_events_it_keeps_its_word(spec: str, present: set[int], actions: Actions) -> None:
    world = World(spec, sorted(present))
    for action in actions:
        world.do(*action)
        if world.stopped is not None:
            break


@pytest.mark.slow
@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_it_survives_outages(spec: str, seed: int) -> None:
    check_strategy(strategy(spec, workers=WORKERS), steps=10, outages=5, seed=seed)


# ------------------------------------------------------------------------------------------- on the simulated cluster


def test_cancelled_tasks_that_finish_in_vain_are_forgotten() -> None:
    """With cancel=discard a task that is never asked for its message ends when its last partition is done."""
    delays = anyk.delays.Exponential(0.3, per="load")
    cluster = anyk.clusters.Simulated(8, delays=delays, seed=1)
    anyk.train(anyk.testing.Squares(8), "nested:stragglers=3,cancel=discard", cluster, steps=30)
    assert len(cluster._schedule.in_flight) <= 2 * 8
    assert len(cluster._schedule.unwanted) <= 8


@pytest.mark.parametrize("spec", ["nested:stragglers=3", "progress:load=4"])
def test_partitions_that_are_told_of_cost_what_others_cost(spec: str) -> None:
    """A simulated machine's cores compute for whoever reports progress, too."""
    costs = anyk.clusters.Compute(task=0.0, partition=0.25, step=0.0, cores=100)
    cluster = anyk.clusters.Simulated(8, compute=costs)
    run = anyk.train(anyk.testing.Squares(8), spec, cluster, steps=2)
    assert run.seconds >= 2 * 0.25


@pytest.mark.slow
def test_what_a_limit_ended_goes_on_bit_for_bit(tmp_path: Any) -> None:
    def trained(name: str, **limits: Any) -> Any:
        cluster = anyk.clusters.Simulated(8, delays=anyk.delays.Exponential(0.3, per="load"), seed=3)
        optimizer = anyk.optimizers.Nesterov(lr=0.1)
        return anyk.train(
            anyk.testing.Squares(8), "nested:stragglers=3", cluster, optimizer=optimizer, out=tmp_path / name, **limits
        )

    uninterrupted = trained("whole", steps=12)
    for partition in range(1, 8):
        run = trained(str(partition), seconds=partition * uninterrupted.seconds / 9)
        assert run.steps < 12
        resumed = anyk.resume(tmp_path / str(partition), problem=anyk.testing.Squares(8), steps=12)
        assert np.array_equal(resumed.model, uninterrupted.model)
        assert resumed.history["seconds"].tolist() == uninterrupted.history["seconds"].tolist()
