"""Steps by the clock: who has finished how much by the deadline, and what the step makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters import Outage, Simulated
from anyk.delays import Constant
from anyk.optimizers import GD
from anyk.protocol import (
    Alarm,
    Cancel,
    Combine,
    Dispatch,
    Failed,
    Fleet,
    Joined,
    Lost,
    Note,
    Progress,
    Reply,
    SetAlarm,
    Stop,
)
from anyk.protocol import RequestMessage as Request
from anyk.strategies import Anytime
from anyk.testing import Squares
from byhand import ByHand


class Staggered(Constant):
    """Worker i takes i + 1 times the value."""

    def seconds(self, uniforms, worker):
        return np.full_like(uniforms, self.value * (worker + 1))


def done_in(run, step):
    """The partitions that made a step, by worker."""
    workers, partitions = run.config.workers.most, np.flatnonzero(run.receipt(step).weights)
    parts = run.config.partitions // workers
    return [set(partitions[partitions // parts == i].tolist()) for i in range(workers)]


@pytest.mark.parametrize(("deadline", "counts"), [(0.35, [3, 1, 1]), (0.65, [4, 3, 2]), (0.15, [1, 0, 0])])
def test_a_step_is_the_mean_over_what_was_finished(deadline, counts):
    n, parts, steps, lr = 3, 4, 5, 0.5
    problem = Squares(n * parts)
    cluster = Simulated(n, delays=Staggered(value=0.1, per="load"))
    run = anyk.train(problem, Anytime(n, deadline=deadline, parts=parts), cluster, optimizer=GD(lr=lr), steps=steps)
    assert run.seconds == pytest.approx(steps * deadline)
    w, seen = np.zeros(problem.dimension), set()
    for step in range(1, steps + 1):
        done = done_in(run, step)
        assert [len(parts_done) for parts_done in done] == counts
        every = sorted(set().union(*done))
        w = w - lr * np.mean([w - problem.centres[j] for j in every], axis=0)
        seen.add(tuple(every))
        assert run.receipt(step).residual == pytest.approx(math.sqrt(n * parts / sum(counts) - 1))
    assert np.allclose(run.model, w, rtol=1e-12)
    assert len(seen) > 1  # each step in another order
    assert run.ledger["counted"] == steps * sum(count > 0 for count in counts)


@pytest.mark.slow
def test_with_alike_workers_it_is_mini_batch_sgd():
    """All finish everything: the sum over n x parts mini-batches, as uncoded rounds of so many workers draw them."""
    n, parts = 3, 4
    problem = anyk.problems.from_data("synthetic:rows=240,features=6")
    cluster = Simulated(n, delays="constant:value=0.1,per=load", seed=5)
    clock = anyk.train(problem, f"anytime:deadline=0.45,parts={parts},batch=7", cluster, optimizer=GD(lr=0.3), steps=9)
    plain = anyk.train(problem, "uncoded:batch=7", Simulated(n * parts, seed=5), optimizer=GD(lr=0.3), steps=9)
    assert np.allclose(clock.model, plain.model, rtol=1e-12)
    assert clock.seconds == pytest.approx(9 * 0.4)  # nobody waits for the deadline when all are done
    full = anyk.train(problem, "anytime", cluster, optimizer=GD(lr=0.3), steps=9)
    descent = anyk.train(problem, "uncoded", Simulated(n), optimizer=GD(lr=0.3), steps=9)
    assert np.allclose(full.model, descent.model, rtol=1e-12)


@pytest.mark.slow
def test_samples_under_exponential_times_are_the_closed_form():
    """A worker whose parts take X each, X exponential, finishes k of them with probability F(deadline / k)."""
    n, parts, steps, deadline, mean = 20, 6, 50, 1.0, 0.4
    cluster = Simulated(n, delays=f"exp:mean={mean},per=load", seed=3)
    run = anyk.train(Squares(n * parts), f"anytime:deadline={deadline},parts={parts}", cluster, steps=steps)
    counts = [len(parts_done) for step in range(1, steps + 1) for parts_done in done_in(run, step)]
    at_least = [1 - math.exp(-deadline / (k * mean)) for k in range(1, parts + 1)]
    expected = sum(at_least)
    variance = sum((2 * k - 1) * p for k, p in enumerate(at_least, 1)) - expected**2
    assert abs(np.mean(counts) - expected) < 4 * math.sqrt(variance / len(counts))
    assert run.seconds == pytest.approx(steps * deadline)


@pytest.mark.slow
def test_every_part_is_as_likely_as_the_others_to_count():
    """So that a slow worker's data is not left out from some part on."""
    parts, steps = 5, 400
    cluster = Simulated(1, delays="constant:value=0.1,per=load")
    run = anyk.train(Squares(parts), f"anytime:deadline=0.25,parts={parts}", cluster, steps=steps)
    counts = sum((run.receipt(step).weights > 0).astype(int) for step in range(1, steps + 1))
    assert counts.sum() == 2 * steps
    p = 2 / parts
    assert (abs(counts - p * steps) < 4 * math.sqrt(steps * p * (1 - p))).all()


def test_a_step_without_a_finished_part_waits_with_one_note():
    cluster = Simulated(2, delays="constant:value=0.25,per=load")
    run = anyk.train(Squares(4), "anytime:deadline=0.1,parts=2", cluster, steps=3)
    assert run.seconds == pytest.approx(3 * 0.3)
    notes = [note for note in run.notes if "no worker had finished a part at the deadline of 0.1 s" in str(note)]
    assert len(notes) == 1


def test_the_deadline_adapts_to_the_workers():
    """Seven take 0.8 s for all their parts, one takes 6.4 s: once 30 times are known, the seven are waited for."""

    class OneSlow(Constant):
        def seconds(self, uniforms, worker):
            return np.full_like(uniforms, self.value * (8 if worker == 2 else 1))

    run = anyk.train(Squares(64), "anytime", Simulated(8, delays=OneSlow(value=0.1, per="load")), steps=8)
    ends = np.diff([0.0, *run.history["seconds"]]) if run.history["seconds"][0] else np.diff(run.history["seconds"])
    assert ends[:4] == pytest.approx([6.4] * 4)
    assert ends[4:] == pytest.approx([0.8] * len(ends[4:]))
    notes = [str(note) for note in run.notes if "deadline=3mad" in str(note)]
    assert len(notes) == 2 and "waits for all parts" in notes[0] and "adapts" in notes[1]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["anytime:deadline=0.4,parts=3,batch=4", "anytime:parts=2"])
def test_a_resumed_run_is_the_uninterrupted_one_and_replays(spec, tmp_path):
    problem = anyk.problems.from_data("synthetic:rows=120,features=4")

    def cluster():
        return Simulated(5, delays="exp:mean=0.2,per=load", seed=2, outages=[Outage(1.1, 3, 1.5), Outage(1.3, 0, 9.0)])

    uninterrupted = anyk.train(problem, spec, cluster(), steps=14)
    beginning = anyk.train(problem, spec, cluster(), steps=6, out=tmp_path / "run", checkpoint_every=1)
    beginning.close()
    resumed = anyk.resume(tmp_path / "run", problem=problem, steps=14)
    assert np.array_equal(resumed.model, uninterrupted.model) and resumed.seconds == uninterrupted.seconds
    replayed = anyk.replay(uninterrupted, problem=problem)
    assert replayed.decisions and replayed.model
    ledger = uninterrupted.ledger
    assert ledger["lost"] and ledger["dispatched"] == sum(
        ledger[name] for name in ("counted", "late_counted", "discarded", "cancelled", "lost")
    )


# ------------------------------------------------------------------------------------------- by hand


def begun(workers=3, **settings):
    running = ByHand(Anytime(workers, deadline=1.0, parts=2, **settings))
    running.start(Fleet(workers, tuple(range(workers))))
    return running


def kinds(commands):
    return [type(command) for command in commands]


def test_the_deadline_asks_those_who_have_finished_something():
    running = begun()
    running.on(Progress(0.5, 0, 0, 0, 1))
    running.on(Progress(0.9, 2, 2, 0, 1))
    cut, *asks, alarm = running.on(Alarm(1.0, "deadline"))
    assert cut == Cancel((1,)) and alarm == SetAlarm("deadline", 2.0)
    assert [(ask.worker, len(ask.partitions)) for ask in asks if isinstance(ask, Request)] == [(0, 1), (2, 1)]
    assert running.on(Progress(1.01, 0, 0, 0, 2)) == ()  # too late to count
    assert running.on(Reply(1.1, 0, 0, 0)) == ()
    combine, *others = running.on(Reply(1.2, 2, 2, 0))
    assert isinstance(combine, Combine) and combine.messages == [(0, 0), (2, 0)] and combine.divisor == "counted"
    assert kinds(others) == [Cancel, Dispatch, SetAlarm] and others[2].time == pytest.approx(2.2)


def test_a_message_a_whole_deadline_late_is_left_out():
    running = begun()
    for worker in (0, 1):
        running.on(Progress(0.5, worker, worker, 0, 1))
    running.on(Alarm(1.0, "deadline"))
    assert kinds(running.on(Alarm(2.0, "deadline"))) == [SetAlarm]  # no message is in: there is nothing to step with
    running.on(Reply(2.5, 1, 1, 0))
    combine, cancel, dispatch, _ = running.on(Alarm(3.0, "deadline"))
    assert combine.messages == [(1, 0)] and 0 in cancel.tasks and dispatch.workers == (0, 1, 2)


def test_who_dies_counts_with_nothing_unless_the_message_is_in():
    running = begun()
    for worker in (0, 1):
        running.on(Progress(0.5, worker, worker, 0, 1))
    running.on(Lost(0.6, 1, "died"))
    assert kinds(running.on(Joined(0.7, 1))) == [Dispatch]
    asks = [command for command in running.on(Alarm(1.0, "deadline")) if isinstance(command, Request)]
    assert [ask.worker for ask in asks] == [0]
    commands = running.on(Lost(1.1, 0, "died"))  # nobody's message can come any more: the same step once more
    assert kinds(commands) == [Cancel, Dispatch, SetAlarm] and commands[1].workers == (1, 2)
    task = commands[1].task
    running.on(Progress(1.2, 1, task, 0, 2))
    assert kinds(running.on(Progress(1.3, 2, task + 1, 0, 2))) == [Request, Request, SetAlarm]  # all have done all
    running.on(Reply(1.4, 1, task, 0))
    running.on(Lost(1.5, 1, "died"))
    assert running.on(Reply(1.6, 2, task + 1, 0))[0].messages == [(task, 0), (task + 1, 0)]


def test_unusable_messages_are_set_aside_until_too_many():
    messages = begun(1)
    for attempt in range(3):
        assert attempt == 0 or kinds(commands) == [Dispatch]  # noqa: F821
        commands = messages.on(Failed(0.1, 0, attempt, 0, "raised"))
    assert kinds(commands) == [Stop] and "no usable messages in 3 attempts" in commands[0].reason
    problem = Squares(6, faults={-1: "nan", -2: "nan"})  # worker 0's partitions, once the model has moved
    run = anyk.train(problem, "anytime:deadline=1,parts=2", Simulated(3, delays="constant:value=0.1,per=load"), steps=4)
    assert [len(messages) for messages in done_in(run, 3)] == [0, 2, 2] and np.isfinite(run.model).all()
    with pytest.raises(RunFailed, match="every worker has been given up"):
        messages = Simulated(
            2, delays="constant:value=0.1,per=load", outages=[Outage(0.1, 0, None), Outage(0.2, 1, None)]
        )
        anyk.train(Squares(4), "anytime:deadline=1,parts=2", messages, steps=4)


def test_the_note_is_made_by_the_strategy_once():
    running = begun(1)
    assert kinds(running.on(Alarm(1.0, "deadline"))) == [Note, SetAlarm]
    assert kinds(running.on(Alarm(2.0, "deadline"))) == [SetAlarm]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("anytime:deadline=0", "deadline must be above 0 s, got 0"),
        ("anytime:deadline=nan", "deadline must be above 0 s, got nan"),
        (
            "anytime:deadline=soon",
            "deadline must be seconds, such as 0.5, or 3mad, which adapts to the workers; got 'soon'",
        ),
        ("anytime:deadline=5%", "deadline must be seconds"),
        ("anytime:parts=0", "parts must be a whole number of at least 1, got 0"),
        ("anytime:batch=-1", "batch must be a whole number of at least 0, got -1"),
        ("compressed:of=(anytime),by=qsgd", "does not compose with compressed messages"),
    ],
)
def test_what_cannot_be(spec, why):
    with pytest.raises(BadInput, match=why):
        anyk.strategy(spec, workers=4)


def test_its_spec_builds_it_again():
    strategy = Anytime(4, deadline=0.25, parts=3, batch=5, seed=7)
    assert strategy.spec == "anytime:deadline=0.25,parts=3,batch=5,seed=7"
    for spec in (strategy.spec, "anytime", "anytime:deadline=1mad"):
        assert anyk.strategy(spec, workers=4).spec == spec
    assert anyk.strategy("anytime:deadline=0.25s", workers=4) == Anytime(4, deadline="0.25s")
