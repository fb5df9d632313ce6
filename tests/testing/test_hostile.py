"""Hostile schedules: every strategy of anyk's own passes them, and what breaks a rule is caught and cut down.

More of them: scripts/soak strategies --seeds 1000
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import anyk
from anyk import codes, strategies
from anyk.base.errors import RunFailed
from anyk.clusters import Simulated
from anyk.protocol import (
    Alarm,
    Chunk,
    Combine,
    Dispatch,
    EvaluateLoss,
    Failed,
    Fleet,
    Joined,
    Lost,
    MessageProjected,
    Reply,
    SetAlarm,
    Stop,
)
from anyk.runs import Driver, session
from anyk.testing import check_strategy
from anyk.testing.hostile import _folded, hostile
from anyk.testing.world import Broken
from byhand import ByHand
from strategy_schedules import STRATEGIES

pytestmark = pytest.mark.in_process

SEEDS = {"few": range(2), "more": range(2, 12)}  # scripts/soak strategies: a thousand
EVENTS = 120

_file = Path(__file__).parents[2] / "examples" / "new_strategy.py"
_spec = importlib.util.spec_from_file_location("new_strategy", _file)
assert _spec is not None and _spec.loader is not None
_example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_example)
Turns = _example.Turns


def test_every_strategy_and_code_is_in_the_net():
    covered = {spec.partition(":")[0] for spec, _ in STRATEGIES}
    entries = [*strategies.registry, *codes.registry]
    named = {entry.name for entry in entries if entry.build.__module__.startswith("anyk.")}
    assert covered == named - {"matrix"} | {"agc"}  # a matrix needs its file: tests/codes/test_file_code.py


@pytest.mark.slow(always=True)
@pytest.mark.parametrize("seeds", ["few", pytest.param("more", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("spec", "workers"), STRATEGIES)
def test_hostile_schedules_break_no_rule(spec, workers, seeds):
    running = anyk.strategy(spec, workers=workers)
    for seed in SEEDS[seeds]:
        try:
            hostile(running, seed=seed, events=EVENTS)
        except Broken as error:
            pytest.fail(f"seed {seed}: {error}")


@pytest.mark.parametrize(("spec", "workers"), STRATEGIES)
def test_workers_joined_or_lost_twice_change_nothing(spec, workers):
    running = ByHand(anyk.strategy(spec, workers=workers))
    running.start(Fleet(workers, tuple(range(workers))))
    running.on(Lost(1.0, 1, "died"))
    before = json.dumps(running.save()).replace("2.0", "1.0")
    assert list(running.on(Joined(2.0, 0))) == []
    assert list(running.on(Lost(2.0, 1, "died"))) == []
    assert json.dumps(running.save()).replace("2.0", "1.0") == before


def asked_while_unusable(spec, workers):
    """How often worker 1 is given a task while all its messages are unusable and no other arrives; 10 for endlessly."""
    running = ByHand(anyk.strategy(spec, workers=workers))
    commands = running.start(Fleet(workers, tuple(range(workers))))
    for asked in range(10):
        tasks = {w: c.task + i for c in commands if isinstance(c, Dispatch) for i, w in enumerate(c.workers)}
        if 1 not in tasks or any(isinstance(command, Stop) for command in commands):
            return asked
        commands = list(running.on(Failed(0.1, 1, tasks[1], 0, "not finite")))
    return 10


@pytest.mark.parametrize(("spec", "workers"), STRATEGIES)
def test_an_irreplaceable_worker_is_asked_three_times(spec, workers):
    strategy = anyk.strategy(spec, workers=workers)
    kind = type(getattr(strategy, "of", strategy))
    alone = kind.__module__.startswith(("anyk.strategies.kfamily", "anyk.strategies.averaging"))  # the driver counts
    assert asked_while_unusable(spec, workers) == (10 if alone else 1 if kind is strategies.Rounds else 3)


@pytest.mark.parametrize(("spec", "workers"), STRATEGIES)
def test_a_returned_worker_is_asked_again_despite_failures(spec, workers):
    """It is another process, perhaps on another machine; nobody may wait for it while it waits for a task."""
    running = ByHand(anyk.strategy(spec, workers=workers))
    commands = list(running.start(Fleet(workers, tuple(range(workers)))))
    for worker in set(range(workers)) - {1}:
        commands += running.on(Lost(0.1, worker, "died"))
    for _ in range(3):
        tasks = {w: c.task + i for c in commands if isinstance(c, Dispatch) for i, w in enumerate(c.workers)}
        commands = list(running.on(Failed(0.2, 1, tasks[1], 0, "not finite"))) if 1 in tasks else []
    running.on(Lost(0.3, 1, "died"))
    commands = running.on(Joined(0.4, 1))
    assert [list(c.workers) for c in commands if isinstance(c, (Dispatch, Stop))] == [[1]], commands


def test_senders_of_infinite_values_are_remembered():
    n, spec = 7, "draco:byzantine=1,kind=cyclic"
    running, restored = ByHand(anyk.strategy(spec, workers=n)), ByHand(anyk.strategy(spec, workers=n))
    running.start(Fleet(n, tuple(range(n))))
    for worker in (1, 2, 3, 4):
        running.on(Reply(1.0, worker, worker, 0))
        running.on(MessageProjected(1.0, worker, worker, 0, 0.0))
    running.on(Lost(1.0, 5, "died"))
    running.on(Lost(1.0, 6, "died"))
    asked = running.on(Failed(1.0, 0, 0, 0, "not finite: 1 of 3 numbers"))
    assert isinstance(asked[0], Dispatch) and (asked[0].task, asked[0].workers) == (7, (0,))
    running.on(Reply(2.0, 0, 7, 0))
    running.on(MessageProjected(2.0, 0, 7, 0, 0.0))  # as if it had been honest all the time
    restored.restore(json.loads(json.dumps(running.save())))
    for event in (Joined(3.0, 5), Reply(4.0, 5, 8, 0), MessageProjected(4.0, 5, 8, 0, 0.0), Joined(5.0, 6)):
        assert running.on(event) == restored.on(event), event


# ------------------------------------------------------------------------------------------- what the net catches


class Reused(Turns):
    def next_turn(self, state):
        commands = super().next_turn(state)
        return [command._replace(task=command.task % 3) for command in commands]


class Hasty(Turns):
    """Gives a worker that joins a task though another is busy, and itself perhaps, too."""

    def on(self, state, event):
        if isinstance(event, Joined):
            state.busy = False
        return super().on(state, event)


class Gullible(Turns):
    """Steps with what comes late, too."""

    def on(self, state, event):
        if isinstance(event, Reply) and event.task != state.crew.next - 1:
            return [Combine("model", [(event.task, 0)], [1.0], divisor="counted")]
        return super().on(state, event)


class Forgetful(Turns):
    def rebuild(self, state):
        state.worker = -1


class Unplain(Turns):
    """Keeps what JSON cannot hold."""

    def start(self, fleet):
        state, commands = super().start(fleet)
        state.busy = object()
        return state, commands


class Keyed(Turns):
    """Keeps a table by pairs, whose keys JSON has no form for."""

    def start(self, fleet):
        state, commands = super().start(fleet)
        state.busy = {(0, 1): True}
        return state, commands


class Waiting(Turns):
    """Never tries again."""

    def on(self, state, event):
        return () if isinstance(event, Failed) else super().on(state, event)


class Boastful(Turns):
    def on(self, state, event):
        return [c._replace(residual=0.0) if isinstance(c, Combine) else c for c in super().on(state, event)]


class Hoarding(Turns):
    """Drops a message without a word."""

    def on(self, state, event):
        commands = super().on(state, event)
        if isinstance(event, Reply) and event.task == 3:
            return [command for command in commands if not isinstance(command, Combine)]
        return commands


class Fragile(Turns):
    def on(self, state, event):
        if isinstance(event, Lost) and event.gone:
            raise KeyError(event.worker)
        return super().on(state, event)


class Faint(Turns):
    def on(self, state, event):
        return [Stop("too many", failed=True)] if isinstance(event, Lost) else super().on(state, event)


class Worn(Turns):
    """Begins where the last run ended: it keeps state of its own."""

    def start(self, fleet):
        state, _ = super().start(fleet)
        state.crew.next, state.busy = 0, False
        state.worker = self.__dict__.get("last", -1)
        return state, self.next_turn(state)

    def on(self, state, event):
        self.__dict__["last"] = state.worker
        return super().on(state, event)


class Strange(Turns):
    """Asks workers for what they do not hold."""

    def next_turn(self, state):
        return [c._replace(chunks=((Chunk((0,), (1.0,)),),)) for c in super().next_turn(state)]


class Curious(Turns):
    """Asks for losses, which its layout does not state."""

    def start(self, fleet):
        state, commands = super().start(fleet)
        return state, [EvaluateLoss("model"), *commands]


class Complete(Turns):
    """Computes full batches, and states mini-batches."""

    @property
    def layout(self):
        return replace(super().layout, minibatches=True)


class Alarmed(Turns):
    def on(self, state, event):
        return [SetAlarm("now", float("nan")), *super().on(state, event)] if not isinstance(event, Alarm) else []


@pytest.mark.parametrize(
    ("bad", "why", "events"),
    [
        (Reused, r"^task 0 was dispatched twice", 3),
        (Hasty, r"^worker \d was given task \d+ while it is busy with task \d+", 4),
        (Gullible, r"^the message of task \d+, chunk 0, is used (though it was used before|though it was lost)", 3),
        (Forgetful, r"^saved and restored it decides otherwise", 3),
        (Unplain, r"^its state is not plain data that JSON can hold: .*object is not JSON serializable", 1),
        (Keyed, r"^its state is not plain data that JSON can hold: keys of a state must be integers or strings", 1),
        (Waiting, r"^deadlock at step \d+: every worker is idle", 2),
        (Boastful, r"^a step claims a residual of 0, and it is \d\.\d+", 1),
        (Hoarding, r"^task 3, chunk 0, which has arrived, is neither used nor cancelled", 4),
        (Fragile, r"^it raised KeyError: \d \(test_hostile\.py, line \d+, in on\)", 1),
        (Faint, r"^it stopped though no worker was given up and nothing failed: too many", 1),
        (Worn, r"^used before, it does not start as a fresh one does", 1),
        (Strange, r"^task \d+ asks worker \d for partitions that it does not hold", 1),
        (Curious, r"^it asks for the loss, and losses is not set in its layout", 1),
        (Complete, r"^task 0 computes full batches; the layout states mini-batches", 2),
        (Alarmed, r"^an alarm is set for nan", 1),
    ],
)
def test_what_breaks_a_rule_is_caught_and_the_schedule_cut_down(bad, why, events, monkeypatch):
    monkeypatch.setattr("anyk.testing.hostile._PATIENCE", 200)  # of three workers; each schedule tried waits so long
    hostile(Turns(3), seed=0)
    for seed in range(30):
        try:
            hostile(bad(3), seed=seed, events=60)
        except Broken as error:
            failure = str(error)
            break
    else:
        pytest.fail("not caught")
    with pytest.raises(Broken, match=why) as caught:
        hostile(bad(3), seed=seed, events=60)
    assert str(caught.value) == failure  # the same each time
    transcript = failure.partition("from here on all goes well")[0].splitlines()
    assert sum(line.startswith("  ") and line[2:3].isalpha() for line in transcript) <= 1 + events, failure


def test_whatever_fails_a_check_is_a_command():
    with pytest.raises(
        AssertionError, match=r"(?s)KeyError.*again: anyk strategies check 'turns' --workers 3 --steps 20"
    ):
        for seed in range(30):
            check_strategy(Fragile(3), seed=seed)


@dataclass(frozen=True, repr=False)
class Sampling(Turns):
    """Turns whose spec omits settings, or names another."""

    batch: int = 0
    factor: float = 1.0
    spec = "test-sampling"

    @property
    def layout(self):
        return replace(super().layout, minibatches=self.batch > 0)

    def on(self, state, event):
        commands = super().on(state, event)
        return [c._replace(scale=self.factor) if isinstance(c, Combine) else c for c in commands]

    def next_turn(self, state):
        commands = super().next_turn(state)
        return [c._replace(chunks=((c.chunks[0][0]._replace(batch=self.batch),),)) for c in commands]


def test_a_spec_that_omits_a_setting_is_caught(monkeypatch):
    monkeypatch.setattr(strategies.registry, "entries", dict(strategies.registry.entries))
    check_strategy(Sampling(3, factor=0.5))  # of no registered name: such a run is not resumed from its spec
    strategies.register("test-sampling")(Sampling)
    check_strategy(Sampling(3))
    with pytest.raises(AssertionError, match=r"^its spec 'test-sampling' builds .* with another layout: is every"):
        check_strategy(Sampling(3, batch=2))
    with pytest.raises(AssertionError, match=r"^its spec 'test-sampling' builds .* decides otherwise: is every"):
        check_strategy(Sampling(3, factor=0.5))
    monkeypatch.setattr(Sampling, "spec", "test-sampling:rows=2")
    with pytest.raises(AssertionError, match=r"^no strategy can be built from its spec .* has no key 'rows'"):
        check_strategy(Sampling(3))


def test_training_refuses_a_strategy_whose_spec_omits_a_setting(monkeypatch):
    """A resumed run would train with the default of that setting."""
    monkeypatch.setattr(strategies.registry, "entries", dict(strategies.registry.entries))
    problem = anyk.problems.from_data("synthetic:rows=30,features=2")
    assert anyk.train(problem, Sampling(3, factor=0.5), "simulated", workers=3, steps=2).steps == 2  # not registered
    strategies.register("test-sampling")(Sampling)
    assert anyk.train(problem, Sampling(3), "simulated", workers=3, steps=2).steps == 2
    sentence = r"^the spec 'test-sampling' of the strategy Sampling omits its setting factor = 0.5: a resumed run"
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.train(problem, Sampling(3, factor=0.5), "simulated", workers=3, steps=2)


def test_a_long_schedule_is_shown_without_its_middle():
    begin = ["start", [Stop("done")], "from here on all goes well"]
    lines = _folded([*begin, *map(str, range(100))])
    assert [line.strip() for line in lines[2:4] + lines[-7:-4]] == [begin[2], "0", "19", "(75 lines more)", "95"]
    assert len(_folded([*map(str, range(100)), *begin[2:]])) == 101  # all that made it fail is shown


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_example_holds_under_outages(workers):
    for seed in range(20):
        check_strategy(Turns(workers), outages=6, seed=seed)


def test_the_driver_refuses_a_task_number_that_was_used():
    with Simulated(2) as cluster, pytest.raises(RunFailed, match=r"^task 0 was dispatched twice: 'turns' must number"):
        driver = Driver(Reused(2), cluster, steps=10)
        with session(driver):
            driver.run()
