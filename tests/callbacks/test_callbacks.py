"""Callbacks that come with anyk: when they stop, what they keep, and what other tools read of what they wrote."""

import logging
import time

import numpy as np
import pytest

import anyk
from anyk.callbacks import Callback, Checkpoint, EarlyStopping, Logging, TensorBoard
from anyk.runs.callbacks import Watching

GD = anyk.optimizers.GD


def linear():
    return anyk.problems.from_data("synthetic:rows=60,features=4,seed=3")


def fleet():
    return anyk.clusters.Simulated(4, delays=anyk.delays.Exponential(mean=1.0), seed=1)


class Scripted:
    """A problem whose losses and metrics are those of a list, by the number of the version."""

    def __init__(self, losses, metrics=None, better="lower"):
        self._problem, self.losses, self.values, self.better = linear(), losses, metrics, better
        self.metric = "score"

    def __getattr__(self, name):
        return getattr(self._problem, name)

    def initial(self):
        return np.zeros(4)

    def recipe(self):
        return None

    def digest(self):
        return None

    def loss(self, w):
        return self.losses[min(self._number(w), len(self.losses) - 1)]

    def metrics(self, w):
        return {"score": self.values[min(self._number(w), len(self.values) - 1)]} if self.values else {}

    def _number(self, w):
        return round(float(w[0]))


class Counting(anyk.optimizers.Optimizer):
    """Steps by one."""

    name = "count"

    def __init__(self):
        super().__init__(lr=1.0)

    @property
    def spec(self):
        return self.name

    def step(self, w, gradient, state, t, scale=1.0, out=None):
        out = np.empty_like(w) if out is None else out
        out[:] = t + 1
        return out


def scripted(*callbacks, losses=(0.0,), metrics=None, better="lower", steps=20, **rest):
    problem = Scripted(list(losses), metrics, better)
    return anyk.train(problem, "uncoded", fleet(), optimizer=Counting(), steps=steps, callbacks=callbacks, **rest)


@pytest.mark.parametrize(
    ("patience", "delta", "losses", "steps"),
    [
        (2, 0.0, [5, 4, 3, 3, 3, 1], 4),  # as good is not better
        (2, 0.0, [5, 4, 3, 3.5, 2, 2.5, 2.5, 1], 6),  # a better one begins anew
        (1, 0.5, [5, 4, 3.6, 3.4], 2),  # 0.4 is too little
        (3, 0.0, [5, float("nan"), float("nan"), 4, 3, 2, 1, 0], 20 + 0),  # NaN is not better; 1 and 2 only
        (2, 0.0, [5, float("nan"), 6, 4], 2),
    ],
)
def test_early_stopping_waits_for_patience_evaluations(patience, delta, losses, steps):
    losses = [*losses, *np.linspace(losses[-1] - 1, losses[-1] - 50, 30)] if steps == 20 else losses
    run = scripted(EarlyStopping(patience, min_delta=delta), losses=losses)
    assert run.steps == steps
    assert (run.summary["stopped"] is None) == (steps == 20)


def test_early_stopping_goes_by_the_metric_and_by_what_is_better():
    rising, worse = [0.1, 0.2, 0.3, 0.3, 0.2, 0.9], list(range(9))
    stop = EarlyStopping(2, of="metric")
    run = scripted(stop, losses=worse, metrics=rising, better="higher")
    assert run.steps == 4 and stop.best == 0.3
    assert run.summary["stopped"] == "metric has not got better for 2 evaluations (step 4, best 0.3)"
    assert scripted(EarlyStopping(2, of="metric"), losses=worse, metrics=rising, better="lower").steps == 2


def test_early_stopping_goes_on_where_a_resumed_run_stood(tmp_path):
    losses = [5, 4, 4.5, 4.5, 4.5, 4.5, 4.5, 1]
    stop = EarlyStopping(4)
    uninterrupted = scripted(stop, losses=losses)
    scripted(EarlyStopping(4), losses=losses, steps=3, out=tmp_path / "run").close()
    resumed = EarlyStopping(4)
    run = anyk.resume(tmp_path / "run", problem=Scripted(losses), optimizer=Counting(), steps=20, callbacks=[resumed])
    assert run.steps == uninterrupted.steps == 5 and resumed.best == stop.best == 4


@pytest.mark.slow
def test_early_stopping_judges_each_run_of_a_race_by_itself():
    stop = EarlyStopping(1)
    race = anyk.race(
        Scripted([5, 4, 6]), ["uncoded", "frc:load=2"], workers=4, cluster="simulated", optimizer=Counting(), steps=9,
        callbacks=[stop],
    )  # fmt: skip
    assert [run.steps for run in race.runs] == [2, 2]
    run = anyk.train(
        Scripted([5.0]), "uncoded", "processes", workers=2, delays="constant:0.005", optimizer=Counting(),
        seconds=60.0, callbacks=[EarlyStopping(1)],
    )  # fmt: skip
    assert run.summary["stopped"].startswith("loss has not got better for 1 evaluations")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EarlyStopping(0), "patience must be a whole number of at least 1, got 0"),
        (lambda: EarlyStopping(min_delta=-1.0), "min_delta must be a finite number of at least 0, got -1"),
        (lambda: EarlyStopping(of="accuracy"), "of must be loss or metric, got 'accuracy'"),
        (lambda: Checkpoint("x"), "a Checkpoint stores models at regular steps or the best model; give every=100"),
        (lambda: Checkpoint("x", every=0), "every must be a whole number of at least 1 or None, got 0"),
        (lambda: Logging(0), "every must be a whole number of at least 1, got 0"),
    ],
)
def test_what_they_cannot_do_is_said_in_one_sentence(make, sentence):
    with pytest.raises(anyk.BadInput, match=sentence):
        make()


def test_what_needs_evaluation_says_so_and_leaves_no_folder(tmp_path):
    for callback in (EarlyStopping(), Checkpoint(tmp_path / "models", best="loss")):
        with pytest.raises(anyk.BadInput, match="needs evaluation, which evaluate=None switches off"):
            scripted(callback, evaluate=None, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("of", "evaluate", "sentence"),
    [
        ("metric", "every=1", "goes by the metric, which is not evaluated; give held-out data"),
        ("loss", "on=held_out", r"goes by the loss, which is not evaluated; ask for that .*evaluate='on=train'"),
    ],
)
def test_what_is_gone_by_must_be_evaluated(of, evaluate, sentence, tmp_path):
    """Without it they would never stop, and never keep anything."""
    metrics = [1.0] if of == "loss" else None
    for callback in (EarlyStopping(of=of), Checkpoint(tmp_path, best=of)):
        with pytest.raises(anyk.BadInput, match=sentence):
            scripted(callback, metrics=metrics, evaluate=evaluate)


def test_a_hook_that_there_is_not_is_refused():
    class Keras(Callback):
        on_gpu = False

        def on_epoch_end(self, info):
            raise AssertionError

    class Inherited(Keras):
        on_epoch_end = None

    scripted(Inherited())
    with pytest.raises(anyk.BadInput, match="no run would call Keras.on_epoch_end; the hooks are on_begin, on_step"):
        scripted(Keras())


def test_checkpoint_keeps_every_so_many_and_the_best(tmp_path):
    losses = [5, 4, 2, 3, 3, 1.5, 9, 9, 9, 9, 9]
    keep = Checkpoint(tmp_path / "models", every=4, best="loss")
    run = scripted(keep, losses=losses, steps=10)
    files = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert files == ["best.npy", "step-00000004.npy", "step-00000008.npy"]
    assert np.load(tmp_path / "models" / "best.npy").tolist() == [5.0] * 4
    assert np.load(tmp_path / "models" / "step-00000008.npy").tolist() == [8.0] * 4 and run.model[0] == 10


def test_checkpoint_of_a_resumed_run_remembers_the_best(tmp_path):
    folder, metrics = tmp_path / "models", list(map(np.float64, (1, 5, 3, 4)))
    best = {"metrics": metrics, "better": "higher"}
    scripted(Checkpoint(folder, best="metric"), **best, steps=2, out=tmp_path / "run").close()
    problem, keep = Scripted([0.0], **best), Checkpoint(folder, best="metric")
    run = anyk.resume(tmp_path / "run", problem=problem, optimizer=Counting(), steps=6, callbacks=[keep])
    assert run.steps == 6 and np.load(folder / "best.npy").tolist() == [1.0] * 4  # 5, before the run was resumed
    assert keep.state_dict() == {"model": (5.0, 6)}


class Beginning(anyk.Callback):
    """Looks at the state of another callback as soon as a run has begun, before its first evaluation."""

    def __init__(self, of):
        self.of = of

    def on_begin(self, info):
        self.state = self.of.state_dict()


def test_checkpoint_has_its_state_before_the_first_evaluation(tmp_path):
    """A run that was resumed is saved after a second, and the next one continues from that."""
    losses = [5, 1, 4, 3, 2, 2, 2]
    scripted(Checkpoint(tmp_path / "models", best="loss"), losses=losses, steps=2, out=tmp_path / "run").close()
    keep = Checkpoint(tmp_path / "models", best="loss")
    begun = Beginning(keep)
    anyk.resume(
        tmp_path / "run", problem=Scripted(losses), optimizer=Counting(), steps=5, callbacks=[keep, begun]
    ).close()  # fmt: skip
    assert begun.state["model"] == keep.state_dict()["model"][:1] + (2,) == (1.0, 2)
    scripted(keep, begun, losses=[7.0], steps=1).close()
    assert begun.state == {}  # another run begins anew


def test_checkpoint_of_several_models_and_runs(tmp_path):
    problems = [linear(), linear()]
    run = anyk.train_many(
        problems, "uncoded", fleet(), steps=4, callbacks=[Checkpoint(tmp_path, best="metric", every=4)]
    )
    names = {"model 0-best.npy", "model 1-best.npy", "model 0-step-00000004.npy", "model 1-step-00000004.npy"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert np.array_equal(np.load(tmp_path / "model 1-step-00000004.npy"), run.models["model 1"])
    anyk.race(linear(), ["uncoded", "frc:load=2"], workers=4, cluster="simulated", steps=2,
              callbacks=[Checkpoint(tmp_path / "race", every=2)])  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "race").iterdir()) == ["frc-load=2", "uncoded"]


def test_unwritable_checkpoint_ends_the_run_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(anyk.RunFailed, match=r"the model '.*step-00000002.npy' cannot be written \(Not a directory\)"):
        scripted(Checkpoint(tmp_path / "file" / "models", every=2))


def test_logging_tells_of_steps_evaluations_and_the_end(caplog):
    with caplog.at_level(logging.INFO, "anyk"):
        run = anyk.train(linear(), "uncoded", fleet(), steps=4, callbacks=[Logging(every=2)], evaluate="every=4")
        with pytest.raises(KeyboardInterrupt):
            anyk.train(linear(), "uncoded", fleet(), steps=4,
                       callbacks=[Logging(4), Watching(lambda driver, _: driver.interrupt())])  # fmt: skip
    lines = [record.getMessage() for record in caplog.records if record.name == "anyk.run"]
    assert lines[0] == "uncoded begins at step 0 (simulated, in memory)"
    assert [line.partition(" of")[0] for line in lines[1:5]] == ["step 0", "step 2", "step 4", "step 4"]
    assert lines[5] == f"ended at step 4, {run.seconds:.3f} s: loss {run.loss:.6g}, auc {run.metric['value']:.6g}"
    assert lines[-1].startswith("ended at step 1, ") and caplog.records[-1].levelname == "ERROR"


def events(folder):
    """By tag, (step, value) as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = read.Tags()
    scalars = {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in tags["scalars"]}
    texts = {tag: read.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
    return scalars, texts


def test_tensorboard_reads_what_was_written(tmp_path):
    run = anyk.train(linear(), "agc:load=2,wait=3", fleet(), steps=5, callbacks=[TensorBoard(tmp_path / "tb")])
    scalars, texts = events(tmp_path / "tb")
    history = run.history
    for tag, column in {
        "train/residual": "residual",
        "train/staleness": "staleness",
        "train/seconds": "seconds",
    }.items():
        expected = [(step, np.float32(history[column][step])) for step in range(1, 6)]
        assert scalars[tag] == expected, tag
    assert scalars["loss"] == [(step, np.float32(history["loss"][step])) for step in range(6)]
    assert [value for _, value in scalars["auc"]] == history["auc"].astype(np.float32).tolist()
    (logged,) = texts.values()
    assert "| strategy | agc:load=2,wait=3 |" in logged and "| workers | 4 |" in logged


def test_tensorboard_has_a_folder_for_each_run_of_a_race(tmp_path):
    class Faulty(Callback):
        def on_step(self, info):
            raise ZeroDivisionError

    asked = {"workers": 4, "cluster": "simulated", "steps": 2}
    anyk.race(linear(), ["uncoded", "frc:load=2"], callbacks=[TensorBoard(tmp_path / "race", every=2)], **asked)
    scalars, _ = events(tmp_path / "race" / "frc-load=2")
    assert [step for step, _ in scalars["train/workers"]] == [2]
    with pytest.raises(ZeroDivisionError):
        anyk.train(linear(), "uncoded", fleet(), steps=4, callbacks=[TensorBoard(tmp_path / "tb"), Faulty()])
    assert len(events(tmp_path / "tb")[0]["train/workers"]) == 1


@pytest.mark.slow
def test_a_mirror_is_whole_at_any_time_and_outlives_the_run(tmp_path):
    mirror = anyk.callbacks.Mirror(tmp_path / "far" / "copy", every=0.01)
    seen = []

    class Look(Callback):
        """Reads the copy as another machine would, while the log is written."""

        def on_step(self, info):
            if info.step % 20 == 0:
                with anyk.Run.open(mirror.folder) as copy:  # all seals are checked
                    seen.append(copy.steps)
                time.sleep(0.02)

    with anyk.train(
        linear(), "uncoded", fleet(), steps=100, out=tmp_path / "run", callbacks=[mirror, Look()]
    ) as run, anyk.Run.open(mirror.folder) as copy:  # fmt: skip
        assert copy.steps == 100 and copy.summary == run.summary and copy.receipt(7).used == run.receipt(7).used
        assert {file.name for file in mirror.folder.iterdir()} == {"run.toml", "log.sqlite"}
        assert len(seen) == 5 and sorted(seen) == seen
    with anyk.runs.Following(mirror.folder) as followed:
        assert followed.run().steps == 100 and followed.ended
    for folder, sentence in ((tmp_path / "run", "is the run's"), (tmp_path, "contains other files")):
        with pytest.raises(anyk.base.errors.BadInput, match=sentence):
            anyk.resume(tmp_path / "run", steps=201, callbacks=[anyk.callbacks.Mirror(folder)])
    with pytest.raises(anyk.base.errors.BadInput, match="give out='runs/NAME'"):
        anyk.train(linear(), "uncoded", fleet(), steps=1, callbacks=[mirror])
