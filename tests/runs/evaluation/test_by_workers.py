"""The training loss as workers tell it, each of the data that it holds: the same number, and nobody is waited for."""

import os
import time

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk import Evaluate
from anyk.cli import main
from anyk.clusters.contract import Report
from anyk.clusters.remote import losses
from anyk.clusters.remote.handles import Notice
from anyk.clusters.remote.worker import EVALUATED
from anyk.runs.folder.config import read_config
from anyk.testing import Squares


class Alone(Squares):
    """Its loss must not be asked for in the driver; on workers it does what is said there."""

    def __init__(self, workers, does=None):
        super().__init__(workers)
        self.does, self.driver = does, os.getpid()

    def loss(self, w):
        raise AssertionError("the driver has evaluated")

    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        return Pieces(pieces, self.does)


class Pieces:
    def __init__(self, of, does):
        self.of, self.does = of, does
        self.dimension, self.dtype, self.sizes = of.dimension, of.dtype, of.sizes

    def __getattr__(self, name):
        if name.startswith("__") or name == "of":
            raise AttributeError(name)
        return getattr(self.of, name)

    def partial_loss(self, partition, w, rows=None, /):
        if self.does is not None and os.environ["ANYK_WORKER"] == "1":
            self.does()
        return self.of.partial_loss(partition, w, rows)


def fails():
    raise ValueError("no such column")


def train(strategy, does=None, workers=4, **options):
    settings = {"optimizer": anyk.optimizers.GD(lr=0.5), "steps": 4, "evaluate": Evaluate(every=2, where="workers")}
    return anyk.train(Alone(workers, does), strategy, "processes", workers=workers, **settings | options)


def right(run):
    """Whether the last loss is that of the model."""
    return run.loss == pytest.approx(Squares(4).loss(run.model), rel=1e-12)


def test_a_target_that_workers_tell_ends_the_run():
    run = train("frc:stragglers=1", target=8.9, steps=None, evaluate="every=1,where=workers")
    assert run.time_to_target is not None and right(run) and run.loss <= 8.9


def test_a_sleeping_holder_of_replicas_is_not_waited_for():
    run = train("frc:stragglers=1", lambda: time.sleep(100.0))
    assert right(run) and np.isfinite(run.history["loss"]).tolist() == [True, False, True, False, True]


def unknown(run):
    """What the log says of losses that nobody could tell."""
    return [note["text"] for note in run.notes if note["kind"] == "not evaluated"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["frc:stragglers=1", "k-sync:k=3"])
def test_a_worker_that_dies_of_the_question_is_asked_twice(strategy):
    stop = anyk.callbacks.EarlyStopping(patience=100)
    run = train(strategy, lambda: os._exit(7), callbacks=[stop])
    assert run.steps == 4
    if strategy.startswith("frc"):
        assert right(run) and not unknown(run)
    else:
        assert run.loss is None and not np.isfinite(run.history["loss"]).any()
        assert unknown(run) == ["no worker can compute the loss of partition 1: worker 1 died twice while it was asked"]


def test_a_run_for_a_target_ends_where_a_lost_worker_held_data():
    fleet = anyk.clusters.Processes(4)
    fleet.patience = 1  # a worker that dies is given up
    lost = r"it is not known any more whether the target is reached: no worker can compute the loss of partition 1: worker 1 is"
    with pytest.raises(anyk.RunFailed, match=lost):
        anyk.train(
            Alone(4, lambda: os._exit(7)), "k-sync:k=2", fleet, optimizer=anyk.optimizers.GD(lr=0.5), target=0.1,
            evaluate="where=workers",
        )  # fmt: skip


@pytest.mark.slow
def test_after_the_run_those_who_say_nothing_are_given_up(monkeypatch):
    monkeypatch.setattr(losses, "_SILENCE", 3.0)
    run = train("k-sync:k=3", lambda: time.sleep(100.0))
    assert run.steps == 4 and run.loss is None
    assert unknown(run) == ["no worker can compute the loss of partition 1: worker 1 did not answer"]


class Handle:
    gone, question = False, None


class Nowhere:
    """Where models of questions lie."""

    def publish(self, slot, version, w):
        self.version = version

    def place(self, slot, version):
        return 0

    def release(self, slot, version):
        assert version == self.version


def asked(handles):
    return {i: handle.question[3] for i, handle in enumerate(handles) if handle.question is not None}


def tells(made, handles, worker, partition):
    made.take_in(Notice(0.0, worker, 0, None, Report(EVALUATED, handles[worker].question[0], partition)))


def test_a_partition_is_asked_of_others_if_its_holder_is_late(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(losses.time, "monotonic", lambda: now[0])
    handles = [Handle() for _ in range(4)]
    asked_losses = losses.Losses(handles, Nowhere(), (1,) * 4, [(0, 1), (0, 1), (2, 3), (2, 3)], lambda worker: None)
    first = asked_losses.ask("model", np.zeros(1), None)
    asked_losses.go_on()
    assert asked(handles) == {0: [0], 1: [1], 2: [2], 3: [3]}
    now[0] = 1.0
    for worker in (0, 2, 3):
        tells(asked_losses, handles, worker, worker)
    assert asked(handles) == {1: [1]}
    now[0] = 3.9
    asked_losses.go_on()
    assert asked(handles) == {1: [1]}
    now[0] = 4.1  # three times as long as three of four took, and a fourth more
    asked_losses.go_on()
    assert asked(handles) == {0: [1], 1: [1]}
    tells(asked_losses, handles, 0, 1)
    assert first.done() and first.result() == 0.0 and asked(handles) == {}
    asked_of_one = []
    for _ in range(4):
        question = asked_losses.ask("model", np.zeros(1), None)
        asked_losses.go_on()
        asked_of_one.append(1 in asked(handles))
        if len(asked_of_one) == 1:
            asked_losses.died(1)
            assert asked(handles)[1] == [1]  # again, when it is back
            asked_losses.died(1)
            assert asked(handles) == {0: [0, 1], 2: [2], 3: [3]}
        for worker, partitions in asked(handles).items():
            for j in list(partitions):
                tells(asked_losses, handles, worker, j)
        assert question.done()
    assert asked_of_one == [True, False, True, True]  # left out of the next one


@pytest.mark.parametrize(("interrupted", "seconds"), [(False, 600.0), (True, 5.0)])
def test_workers_that_all_say_nothing_are_given_up(monkeypatch, interrupted, seconds):
    now = [0.0]
    monkeypatch.setattr(losses.time, "monotonic", lambda: now[0])
    asked_losses = losses.Losses([Handle(), Handle()], Nowhere(), (1, 1), [(0,), (1,)], lambda worker: None)
    question = asked_losses.ask("model", np.zeros(1), None)
    asked_losses.go_on()
    for now[0], over in ((0.9 * seconds, False), (1.1 * seconds, True)):
        asked_losses.exclude_silent(interrupted=interrupted)
        assert question.done() == over
    with pytest.raises(anyk.RunFailed, match="no worker can compute the loss of partition 0: worker 0 did not answer"):
        question.result()


def test_a_loss_that_fails_is_said_with_worker_and_partition():
    with pytest.raises(
        anyk.RunFailed, match=r"the loss of partition 1 fails on worker 1: ValueError: no such column \("
    ):
        train("uncoded", fails)


@pytest.mark.slow
def test_a_resumed_run_asks_workers_as_well(tmp_path):
    train("uncoded", out=tmp_path / "run").close()
    assert read_config(tmp_path / "run").evaluate == "every=2,where=workers"
    run = anyk.resume(tmp_path / "run", problem=Alone(4), steps=7)
    assert right(run) and np.flatnonzero(np.isfinite(run.history["loss"])).tolist() == [0, 2, 4, 6, 7]


def test_on_a_virtual_clock_the_driver_is_the_workers():
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    by_driver, by_workers = (
        anyk.train(problem, "uncoded", "simulated", workers=4, steps=6, evaluate=f"every=2,samples=20{option}")
        for option in ("", ",where=workers")
    )
    assert by_workers.loss == problem.sampled(20).loss(by_workers.model) == by_driver.loss


def test_the_command_line_asks_workers(tmp_path):
    done = CliRunner().invoke(
        main,
        [
            "train", "--data", "synthetic:rows=60,features=3", "--workers", "2", "--steps", "3", "--strategy", "uncoded",
            "--evaluate", "where=workers", "--out", str(tmp_path / "run"),
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "where=workers" in read_config(tmp_path / "run").evaluate
    with anyk.Run.open(tmp_path / "run") as run:
        assert run.loss == pytest.approx(anyk.problems.from_data("synthetic:rows=60,features=3").loss(run.model))
