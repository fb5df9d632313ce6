"""Callbacks: what they are told, in which order, and what becomes of a run that they end."""

import dataclasses
import os
import signal

import numpy as np
import pytest

import anyk
from anyk import Callback, StopRun
from anyk.runs.callbacks import Watching
from anyk.testing.problems import Squares

GD = anyk.optimizers.GD


def linear():
    return anyk.problems.from_data("synthetic:rows=60,features=4")


def fleet(workers=6, seed=1):
    return anyk.clusters.Simulated(workers, delays=anyk.delays.Exponential(mean=1.0), seed=seed)


class Recorder(Callback):
    """Writes everything down."""

    def __init__(self):
        self.told, self.models, self.receipts = [], [], []

    def on_begin(self, info):
        self.told.append(("begin", info.strategy, info.step, info.path))

    def on_step(self, info):
        self.told.append(("step", info))
        self.models.append(info.model.copy())
        self.receipts.append(info.receipt)

    def on_evaluation(self, info):
        self.told.append(("evaluation", info))

    def on_worker_lost(self, info):
        self.told.append(("lost", info))

    def on_end(self, info):
        self.told.append(("end", info))

    def of(self, kind):
        return [what[1] for what in self.told if what[0] == kind]


def same(one, other):
    """Two receipts."""
    plain = [dataclasses.asdict(receipt) for receipt in (one, other)]
    return all(np.array_equal(plain[0][key], plain[1][key]) if key == "weights" else plain[0][key] == plain[1][key]
               for key in plain[0])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["agc:load=2,wait=4", "async", "k-async:k=2", "pasgd:tau=2", "frc:load=3"])
def test_a_callback_is_told_what_history_and_receipts_say(strategy):
    recorder, other = Recorder(), Recorder()
    asked = {"steps": 8, "optimizer": GD(lr=0.1)}
    run = anyk.train(linear(), strategy, fleet(), callbacks=[recorder, other], **asked)
    kinds = [what[0] for what in recorder.told]
    assert kinds[0] == "begin" and kinds[-1] == "end" and [what[0] for what in other.told] == kinds
    steps, history = recorder.of("step"), run.history
    assert [info.step for info in steps] == list(range(1, 9)) == history["step"][1:].tolist()
    for column, name in {"seconds": "seconds", "residual": "residual", "gain": "gain", "staleness": "staleness",
                         "loss": "loss"}.items():  # fmt: skip
        assert [getattr(info, name) for info in steps] == history[column][1:].tolist(), column
    assert all(info.evaluated == info.step for info in steps)  # on a virtual clock at once
    # at the last step it was not known yet that the run's end would cut everybody off
    assert all(same(receipt, run.receipt(v)) for v, receipt in enumerate(recorder.receipts[:-1], 1))
    assert steps[3].cut_off == run.receipt(4).cut_off
    evaluations = recorder.of("evaluation")
    assert [info.loss for info in evaluations] == history["loss"].tolist()
    assert [linear().loss(info.model) for info in evaluations] == history["loss"].tolist()
    assert np.array_equal(recorder.models[-1], run.model)
    assert np.array_equal(recorder.models[0], evaluations[1].model)
    (end,) = recorder.of("end")
    assert (end.step, end.loss, end.run, end.error) == (8, run.loss, run, None)


def test_what_callbacks_are_told_cannot_be_changed():
    infos = []

    class Keep(Callback):
        def on_step(self, info):
            infos.append(info)
            with pytest.raises(dataclasses.FrozenInstanceError):
                info.loss = 0.0
            with pytest.raises(ValueError, match="read-only"):
                info.model[0] = 1.0

    run = anyk.train(linear(), "uncoded", fleet(), steps=3, callbacks=[Keep()])
    with pytest.raises(anyk.BadInput, match="the model of step 1 is gone; copy it in on_step"):
        _ = infos[0].model
    assert same(infos[0].receipt, run.receipt(1))  # asked for later, from the log


@pytest.mark.slow
def test_callbacks_do_not_change_a_run():
    runs = [anyk.train(linear(), "k-async:k=2", fleet(), steps=12, callbacks=some) for some in ([], [Recorder()])]
    assert np.array_equal(runs[0].model, runs[1].model) and runs[0].ledger == runs[1].ledger


def test_any_object_with_a_hook_is_a_callback():
    class Mine:
        steps = 0

        def on_step(self, info):
            self.steps += 1

    mine = Mine()
    anyk.train(linear(), "uncoded", fleet(), steps=3, callbacks=[mine])
    assert mine.steps == 3
    for wrong, sentence in (
        ([3], "a callback needs one of the methods on_begin, .*; 3 has none of them"),
        ([Recorder], r"callbacks must be objects, got the class Recorder; write Recorder\(…\)"),
        (mine, "callbacks must be a list of callbacks, as in callbacks="),
        ("early-stopping", "callbacks must be a list of callbacks"),
    ):
        with pytest.raises(anyk.BadInput, match=sentence):
            anyk.train(linear(), "uncoded", fleet(), steps=3, callbacks=wrong)


@pytest.mark.slow
def test_stop_run_ends_a_run_as_a_limit_does(tmp_path):
    class Stop(Callback):
        def on_step(self, info):
            if info.step == 4:
                raise StopRun("enough")

    recorder = Recorder()
    run = anyk.train(linear(), "async", fleet(), steps=50, callbacks=[Stop(), recorder], out=tmp_path / "run")
    assert run.steps == 4 and run.summary["stopped"] == "enough" and recorder.of("end")[0].error is None
    assert [(note["kind"], note["text"]) for note in run.notes] == [("stopped", "enough")]
    assert recorder.of("step")[-1].step == 4  # others hear of the step, too
    run.close()
    uninterrupted = anyk.train(linear(), "async", fleet(), steps=50)
    further = anyk.resume(tmp_path / "run", steps=50)
    assert np.array_equal(further.model, uninterrupted.model)


class Faulty(Callback):
    """Raises in one of the hooks."""

    def __init__(self, hook):
        setattr(self, hook, self._fail)

    def _fail(self, info):
        if getattr(info, "step", 5) >= 5:
            raise ZeroDivisionError("of the callback's own")


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_step", "on_evaluation"])
def test_a_callback_that_raises_leaves_a_folder_to_resume(tmp_path, hook):
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError, match="of the callback's own") as caught:
        anyk.train(linear(), "k-async:k=2", fleet(), steps=12, callbacks=[Faulty(hook), recorder], out=tmp_path / "run")
    raised, saved = caught.value.__notes__
    assert raised == f"raised by {hook} of the callback Faulty"
    assert saved == f"the run was saved at step 5 in '{tmp_path / 'run'}', and can be resumed"
    (end,) = recorder.of("end")
    assert end.error is caught.value and end.step == 5
    with anyk.Run.open(tmp_path / "run") as run:
        (note,) = run.notes
        assert (
            note["kind"] == "failed"
            and "ZeroDivisionError: of the callback's own (test_callbacks.py, line " in note["text"]
        )
        assert run.loss == run.history["loss"][5]
    assert anyk.verify(tmp_path / "run").whole
    uninterrupted = anyk.train(linear(), "k-async:k=2", fleet(), steps=12)
    assert np.array_equal(anyk.resume(tmp_path / "run").model, uninterrupted.model)


def test_errors_at_the_beginning_and_at_the_end_are_raised(tmp_path):
    with pytest.raises(ZeroDivisionError):
        anyk.train(linear(), "uncoded", fleet(), steps=6, callbacks=[Faulty("on_end")], out=tmp_path / "end")
    with anyk.Run.open(tmp_path / "end") as run:
        assert run.steps == 6 and run.loss is not None

    class Begin(Callback):
        def on_begin(self, info):
            raise ZeroDivisionError

    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        anyk.train(linear(), "uncoded", fleet(), steps=3, callbacks=[recorder, Begin()], out=tmp_path / "begin")
    assert [what[0] for what in recorder.told] == ["begin", "end"]
    assert anyk.resume(tmp_path / "begin").steps == 3


def test_an_interrupted_run_and_one_that_fails_tell_their_error():
    for strategy, error in (("uncoded", KeyboardInterrupt), ("uncoded", anyk.RunFailed)):
        recorder = Recorder()
        interrupt = Watching(lambda driver, _: driver.interrupt() if driver.step == 2 else None)
        ways = [recorder, interrupt] if error is KeyboardInterrupt else [recorder]
        rate = 0.1 if error is KeyboardInterrupt else 1e200
        with pytest.raises(error):
            anyk.train(Squares(3), strategy, fleet(3), steps=50, optimizer=GD(lr=rate), callbacks=ways)
        assert isinstance(recorder.of("end")[0].error, error) and recorder.of("end")[0].run is None


@pytest.mark.slow
def test_lost_workers_are_told_and_stops_are_in_receipts():
    recorder = Recorder()
    cluster = anyk.clusters.Processes(4, delays=anyk.delays.Constant(0.02))
    killed = []

    def kill(driver, _):
        if driver.step == 3 and not killed:
            killed.append(os.kill(cluster.pids[2], signal.SIGKILL))
        if driver.step > 5 and recorder.of("lost"):
            driver.end()

    run = anyk.train(
        Squares(4), "frc:stragglers=1", cluster, optimizer=GD(lr=0.1), steps=2000, callbacks=[recorder, Watching(kill)]
    )
    lost = recorder.of("lost")[0]
    assert lost.worker == 2 and not lost.gone and lost.step >= 3 and lost.reason
    assert any(note["kind"] == "lost" for note in run.notes)
    for version, early in enumerate(recorder.receipts, 1):
        late = run.receipt(version)
        assert early.used == late.used and np.array_equal(early.weights, late.weights)
        # at the time it was known who, and at least how long; what workers said since adds to that
        assert {cut.worker for cut in late.cut_off} <= {cut.worker for cut in early.cut_off} | set(early.spare)


@pytest.mark.slow
def test_callbacks_of_a_race_are_told_each_run(tmp_path):
    recorder = Recorder()
    titles = []

    class Titles(Callback):
        def on_begin(self, info):
            titles.append((info.title, info.settings["strategy"], info.step))

    asked = {"workers": 4, "cluster": "simulated", "delays": "exp:mean=1", "steps": 3}
    anyk.race(linear(), ["uncoded", "frc:load=2"], callbacks=[recorder, Titles()], **asked)
    assert [what[0] for what in recorder.told].count("begin") == 2 == len(recorder.of("end"))
    assert titles == [("uncoded", "uncoded", 0), ("frc-load=2", "frc:load=2", 0)]
    anyk.race(linear(), ["uncoded"], out=tmp_path / "race", callbacks=[Titles()], **asked).close()
    anyk.resume_race(tmp_path / "race", steps=5, callbacks=[Titles()]).close()
    assert titles[2:] == [("uncoded", "uncoded", 0), ("uncoded", "uncoded", 3)]


@pytest.mark.slow
def test_states_of_callbacks_are_part_of_checkpoints(tmp_path):
    class Mean(Callback):
        def __init__(self):
            self.sum, self.count = np.zeros(4), {}

        def on_step(self, info):
            self.sum += info.model
            self.count[info.step] = (info.seconds, [None, True, "x"])

        def state_dict(self):
            return {"sum": self.sum, "count": self.count}

        def load_state_dict(self, state):
            self.sum, self.count = state["sum"], state["count"]

    mean, parts = Mean(), (Mean(), Mean())
    anyk.train(linear(), "async", fleet(), steps=10, callbacks=[mean])
    anyk.train(linear(), "async", fleet(), steps=4, callbacks=[parts[0]], out=tmp_path / "run").close()
    anyk.resume(tmp_path / "run", steps=10, callbacks=[parts[1]]).close()
    assert np.array_equal(parts[1].sum, mean.sum) and parts[1].count == mean.count
    anyk.resume(tmp_path / "run", steps=12).close()  # without it
    assert anyk.verify(tmp_path / "run").whole


def test_estimators_take_callbacks():
    from anyk.sklearn import AnykRegressor

    recorder = Recorder()
    X = np.arange(12.0)[:, None]
    model = AnykRegressor(callbacks=[recorder], max_iter=500).fit(X, 3 * X[:, 0] + 1)
    assert len(recorder.of("step")) == model.n_iter_ and "steps in a row" in model.run_.summary["stopped"]


# ------------------------------------------------------------------------------------------- a loop of one's own


@pytest.mark.parametrize("strategy", ["agc:load=2,wait=4", "k-async:k=2"])
def test_a_loop_has_receipts_callbacks_and_evaluation_of_its_own(strategy):
    recorder, receipts = Recorder(), []
    loop = anyk.rounds(linear(), strategy, fleet(), steps=6, callbacks=[recorder], evaluate="every=3")
    for step in loop:
        receipts.append(step.receipt)
        step.model -= 0.1 * step.gradient
    assert [info.step for info in recorder.of("step")] == [1, 2, 3, 4, 5, 6]
    assert [info.step for info in recorder.of("evaluation")] == [0, 3, 6]
    for version, early in enumerate(receipts, 1):
        late = loop.run.receipt(version)
        assert early.used == late.used and np.array_equal(early.weights, late.weights)
        assert (early.version, early.residual, early.gain) == (version, late.residual, late.gain)
        assert early.samples == late.samples and sum(early.samples) > 0
        if version < 6:  # after which the run's end cuts everybody off
            assert [cut.worker for cut in early.cut_off] == [cut.worker for cut in late.cut_off]
            assert (early.spare, early.rest) == (late.spare, late.rest)
    assert np.array_equal(recorder.models[-1], loop.run.model)


class Momentum:
    """An optimiser of the loop's own, with a state."""

    def __init__(self):
        self.velocity, self.steps = np.zeros(4), 0

    def step(self, step):
        self.steps += 1
        self.velocity = 0.5 * self.velocity - 0.1 * step.gradient
        step.model += self.velocity

    def state_dict(self):
        return {"velocity": self.velocity, "steps": self.steps}

    def load_state_dict(self, state):
        self.velocity, self.steps = state["velocity"], state["steps"]


def looped(steps, optimizer, stop=None, cluster=None, **rest):
    loop = anyk.rounds(linear(), "agc:load=2,wait=4", cluster or fleet(), steps=steps, **rest)
    for step in loop:
        optimizer.step(step)
        if step.number + 1 == stop:
            break
    return loop.run


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, 5])
def test_a_loop_resumes_with_the_state_of_its_optimiser(tmp_path, stop):
    uninterrupted = looped(12, Momentum())
    first = Momentum()
    looped(12 if stop else 5, first, stop=stop, out=tmp_path / "run", keep=first, go_on=True).close()
    restored = Momentum()
    run = looped(12, restored, out=tmp_path / "run", keep=[restored], go_on=True)
    assert (
        restored.steps == 12 and np.array_equal(run.model, uninterrupted.model) and run.ledger == uninterrupted.ledger
    )
    assert anyk.verify(tmp_path / "run").whole


@pytest.mark.slow
def test_a_failed_loop_is_resumed_before_its_last_step(tmp_path):
    optimizer = Momentum()
    with pytest.raises(ZeroDivisionError):
        loop = anyk.rounds(linear(), "agc:load=2,wait=4", fleet(), steps=12, out=tmp_path / "run", keep=optimizer)
        for step in loop:
            optimizer.step(step)
            if step.number == 6:
                raise ZeroDivisionError
    restored = Momentum()
    run = looped(12, restored, out=tmp_path / "run", keep=restored, go_on=True)
    assert np.array_equal(run.model, looped(12, Momentum()).model)


@pytest.mark.slow
def test_a_torch_loop_resumes_with_all_of_its_states(tmp_path):
    torch = pytest.importorskip("torch")
    X = torch.linspace(-1, 1, 24).reshape(12, 2)
    data = (X, (X[:, 0] > 0.2).long())

    def script(steps, **rest):
        torch.manual_seed(0)
        module = torch.nn.Linear(2, 2)
        problem = anyk.problems.TorchProblem(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), data)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        keep = [optimizer, scheduler] if rest else ()
        for _ in anyk.rounds(problem, "frc:load=2", fleet(4), steps=steps, into=module, keep=keep, **rest):
            optimizer.step()
            scheduler.step()
        return [parameter.detach().numpy().copy() for parameter in module.parameters()], scheduler.last_epoch

    uninterrupted = script(9)
    script(4, out=tmp_path / "run")
    resumed = script(9, out=tmp_path / "run", go_on=True)
    assert resumed[1] == uninterrupted[1] == 9 and all(map(np.array_equal, resumed[0], uninterrupted[0]))
    nothing = script(9, out=tmp_path / "run", go_on=True)  # nothing is left to do: the module is the run's
    assert all(map(np.array_equal, nothing[0], uninterrupted[0]))


def test_what_a_loop_cannot_resume_is_said_in_one_sentence(tmp_path):
    optimizer = Momentum()
    looped(3, optimizer, out=tmp_path / "run", keep=optimizer).close()
    for options, sentence in (
        ({}, "exists; choose another, or go on with it"),
        ({"go_on": True}, "the run stores the states of 1 objects, keep has 0; give the same"),
        ({"go_on": True, "keep": 3}, "keep must be objects with state_dict and load_state_dict"),
        ({"go_on": True, "cluster": fleet(8)}, "has the workers '6', the loop '8'; give the same, or another out"),
    ):
        with pytest.raises(anyk.BadInput, match=sentence):
            looped(6, Momentum(), out=tmp_path / "run", **options)
    with pytest.raises(anyk.BadInput, match="go_on resumes the run in a folder; give out="):
        looped(6, Momentum(), go_on=True)
