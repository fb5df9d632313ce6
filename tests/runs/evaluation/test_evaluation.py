"""What is evaluated, how often and on which data; and that nobody reads data that nobody asked for."""

import os
import signal
import threading

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk import Evaluate
from anyk.cli import main
from anyk.clusters.processes import aside as aside_module
from anyk.problems.many import ManyProblems
from anyk.runs.evaluation.evaluate import evaluating
from anyk.runs.folder.config import read_config
from anyk.testing.problems import Squares


def linear(held_out=True):
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 4))
    y = np.where(X @ [1.0, -2.0, 0.5, 0.0] + random.normal(size=80) > 0, 1.0, -1.0)
    return anyk.problems.LogisticRegression(X, y, l2=0.01, **({"X_test": X[:30], "y_test": y[:30]} if held_out else {}))


def fleet():
    return anyk.clusters.Simulated(4, delays=anyk.delays.Exponential(mean=1.0), seed=1)


def evaluated(run, column="loss"):
    history = run.history
    return history["step"][~np.isnan(history[column])].tolist()


class Counting:
    """A data set of 16,000 items that counts how many of them are read where it lives."""

    def __init__(self, items=16_000):
        self.items, self.read = items, 0

    def __len__(self):
        return self.items

    def __getitem__(self, i):
        import torch

        self.read += 1
        return torch.tensor([i % 7 / 7, i % 3 / 3]), i % 2


COMPARED = (
    2 * 8
)  # items from which a start computes the gradients of a problem's copies, and of what they are copies of


def network(data, *, norm=False, held_out=None):
    import torch

    parts = [torch.nn.BatchNorm1d(2)] if norm else []
    module = torch.nn.Sequential(*parts, torch.nn.Linear(2, 2))
    return anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), data, held_out=held_out)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [False, True])
def test_the_driver_reads_no_training_items_unasked(norm):
    data, held_out = Counting(), Counting(50)
    problem = network(data, norm=norm, held_out=held_out)
    tried = data.read
    optimizer, workers = anyk.optimizers.GD(lr=0.1), 2 * 4 * 10  # read by them
    run = anyk.train(problem, "uncoded:batch=4", anyk.clusters.Simulated(2), optimizer=optimizer, steps=10)
    assert evaluated(run, "accuracy") == list(range(11)) and not evaluated(run)
    # running statistics for the metric that was asked for take 1,024 items each time
    assert tried < 150 and data.read - tried - workers - COMPARED == (1024 * 11 if norm else 0)
    assert held_out.read >= 50 * 11


def test_nothing_is_evaluated_where_there_are_only_items_to_read():
    data = Counting(200)
    problem = network(data)
    cluster = anyk.clusters.Simulated(2)
    run = anyk.train(problem, "uncoded:batch=4", cluster, optimizer=anyk.optimizers.GD(lr=0.1), steps=3)
    assert run.loss is None and not evaluated(run)
    before = data.read
    run = anyk.train(
        problem, "uncoded:batch=4", anyk.clusters.Simulated(2), optimizer=anyk.optimizers.GD(lr=0.1), steps=3,
        evaluate=Evaluate(samples=50),
    )  # fmt: skip
    assert run.loss is None and data.read - before == 2 * 4 * 3 + COMPARED  # samples alone do not ask for the loss
    before = data.read
    run = anyk.train(
        problem, "uncoded:batch=4", anyk.clusters.Simulated(2), optimizer=anyk.optimizers.GD(lr=0.1), steps=3,
        evaluate=Evaluate(samples=50, on="train"),
    )  # fmt: skip
    assert evaluated(run) == [0, 1, 2, 3] and data.read - before == 2 * 4 * 3 + 4 * 50 + COMPARED


class Watched(Squares):
    """Counts evaluations."""

    def __init__(self, *arguments, **keys):
        super().__init__(*arguments, **keys)
        self.asked = []

    def loss(self, w):
        self.asked.append("loss")
        return super().loss(w)

    def metrics(self, w):
        self.asked.append("metrics")
        return super().metrics(w)


@pytest.mark.parametrize("cluster", ["simulated", "processes"])
def test_none_evaluates_nothing_and_trains_the_same_model(cluster):
    problem = Watched(3)
    asked = {"workers": 3, "optimizer": anyk.optimizers.GD(lr=0.1), "steps": 12}
    run = anyk.train(problem, "uncoded", cluster, evaluate=None, **asked)
    assert problem.asked == [] and run.loss is None and run.steps == 12
    assert np.array_equal(run.model, anyk.train(Squares(3), "uncoded", cluster, **asked).model)
    assert "<Run uncoded" in repr(run) and run.report()["runs"][0]["loss"] is None


@pytest.mark.parametrize(
    ("evaluate", "steps"),
    [
        (Evaluate(every=5), [0, 5, 10, 12]),
        ("every=5", [0, 5, 10, 12]),
        (Evaluate(every=100), [0, 12]),
        (Evaluate(), list(range(13))),
        (None, []),
    ],
)
def test_every_so_many_steps_besides_the_first_and_the_last(evaluate, steps):
    assert evaluated(anyk.train(linear(), "uncoded", fleet(), steps=12, evaluate=evaluate)) == steps


def test_seconds_between_evaluations_are_of_the_runs_clock():
    run = anyk.train(linear(), "uncoded", fleet(), steps=40, evaluate=Evaluate(seconds=5.0))
    times = run.history["seconds"]
    expected = [0]
    for step in range(1, 41):
        if times[step] - times[expected[-1]] >= 5.0:
            expected.append(step)
    assert evaluated(run) == sorted({*expected, 40}) and 3 < len(expected) < 35


def test_held_out_evaluation_leaves_training_data_alone():
    problem = linear()
    run = anyk.train(problem, "uncoded", fleet(), steps=6, evaluate=Evaluate(on="held_out"))
    assert evaluated(run, "auc") == list(range(7)) and evaluated(run) == [] and run.loss is None
    uninterrupted = anyk.train(problem, "uncoded", fleet(), steps=6)
    assert uninterrupted.metric == run.metric and uninterrupted.loss == problem.loss(run.model)


def test_a_sample_is_evaluated_as_a_problem_of_its_rows():
    problem, w = linear(), np.array([0.3, -1.0, 0.2, 0.1])
    some = problem.sampled(20)
    rows = [np.flatnonzero((row == problem.X).all(axis=1))[0] for row in some.X]
    alone = anyk.problems.LogisticRegression(problem.X[rows], problem.y[rows], l2=0.01)
    assert len(set(rows)) == 20 and some.loss(w) == alone.loss(w) != problem.loss(w)
    assert problem.sampled(1000).loss(w) == problem.loss(w) and problem.sampled(1000).metrics(w) == problem.metrics(w)
    run = anyk.train(problem, "uncoded", fleet(), steps=3, evaluate=Evaluate(samples=20))
    assert run.loss == some.loss(run.model) and run.metric["value"] == some.metrics(run.model)["auc"]
    assert ManyProblems([problem, problem]).sampled(20).of("model 1").loss(w) == some.loss(w)


@pytest.mark.parametrize("items", [False, True])
def test_torch_samples_keep_the_numbers_of_their_items(items):
    torch = pytest.importorskip("torch")
    X, y = torch.randn(40, 2, dtype=torch.float64), torch.arange(40) % 2
    data = torch.utils.data.TensorDataset(X, y)
    training_data = [(X[i], int(y[i])) for i in range(40)] if items else data
    problem = anyk.problems.TorchProblem(
        torch.nn.Linear(2, 2).double(), torch.nn.CrossEntropyLoss(), training_data, held_out=data
    )
    w = problem.initial()
    some = problem.sampled(10)
    mean = np.mean([problem_of_one(problem, i, w) for i in some_rows_of(40, 10)])
    assert some.loss(w) == pytest.approx(mean, rel=1e-12) and some.samples == 10
    assert problem.sampled(40).metrics(w) == problem.metrics(w)


def problem_of_one(problem, i, w):
    network = problem._network_at(w)
    return network.loss_of(problem._data.batch(slice(i, i + 1))).item()


def some_rows_of(rows, samples):
    from anyk.problems.base import some_rows

    return some_rows(rows, samples, "train").tolist()


def test_jax_problems_are_sampled():
    jax = pytest.importorskip("jax")
    X = np.arange(24.0).reshape(12, 2)
    problem = anyk.problems.JaxProblem(
        lambda w, rows: jax.numpy.mean((rows["x"] @ w["a"] - rows["y"]) ** 2), {"a": np.ones(2)}, {"x": X, "y": X[:, 0]}
    )
    some, w = problem.sampled(5), np.array([0.5, 0.25])
    rows = some_rows_of(12, 5)
    assert some.loss(w) == pytest.approx(np.mean((X[rows] @ w - X[rows, 0]) ** 2), rel=1e-6)


@pytest.mark.parametrize("strategy", ["adacomm:tau=4,interval=5", "adasync:base=k-sync,interval=5"])
@pytest.mark.parametrize("evaluate", [None, Evaluate(on="held_out")])
def test_strategies_that_need_the_loss_say_so(strategy, evaluate):
    with pytest.raises(anyk.BadInput, match=r"adapts to the training loss, which is not evaluated; give evaluate=Eval"):
        anyk.train(linear(), strategy, fleet(), steps=5, evaluate=evaluate)
    with pytest.raises(anyk.BadInput, match="adapts to the training loss"):
        anyk.race(linear(), ["uncoded", strategy], workers=4, cluster="simulated", steps=5, evaluate=evaluate)


def test_strategies_that_adapt_use_the_sample():
    run = anyk.train(
        linear(), "adasync:base=k-sync,interval=2", fleet(), steps=20, optimizer=anyk.optimizers.GD(lr=0.5),
        evaluate=Evaluate(samples=20),
    )  # fmt: skip
    events = list(run.log.events(["LossEvaluated"]))
    assert events[0].loss == linear().sampled(20).loss(np.zeros(4)) and len(events) > 1


class Whole(Squares):
    @property
    def sampled(self):
        raise AttributeError("it has no such member")


@pytest.mark.parametrize(
    ("make", "asked", "sentence"),
    [
        (
            linear,
            {"evaluate": None, "target": 0.9},
            "a target of 0.9 needs evaluation, which evaluate=None switches off",
        ),
        (lambda: linear(held_out=False), {"evaluate": "on=held_out"}, r"evaluate on='held_out' needs held-out data \("),
        (
            lambda: Whole(3),
            {"evaluate": "samples=3"},
            r"Whole cannot be evaluated on a sample of its data; give it",
        ),
        (linear, {"evaluate": "sometimes"}, "evaluate must be 'none' or settings such as every=10"),
        (linear, {"evaluate": "every=2,samples=-1"}, "samples must be a whole number of at least 1 or None, got -1"),
        (linear, {"evaluate": "seconds=0"}, "seconds must be a number above 0 and of at most 1e.15 or None, got 0.0"),
        (linear, {"evaluate": "on=test"}, "on in 'evaluate:on=test' should be one of train, held_out, got 'test'"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_sentence(make, asked, sentence):
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.train(make(), "uncoded", fleet() if make is linear else "simulated", steps=3,
                   **({} if make is linear else {"workers": 3}) | asked)  # fmt: skip


def test_a_resumed_run_is_evaluated_as_before_or_as_asked(tmp_path):
    uninterrupted = anyk.train(linear(), "uncoded", fleet(), steps=12, evaluate="every=4,samples=20")
    anyk.train(linear(), "uncoded", fleet(), steps=6, evaluate="every=4,samples=20", out=tmp_path / "run").close()
    assert read_config(tmp_path / "run").evaluate == "every=4,samples=20"
    run = anyk.resume(tmp_path / "run", problem=linear(), steps=12)
    assert evaluated(run) == [0, 4, 6, 8, 12]
    steps = [0, 4, 8, 12]
    assert run.history["loss"][steps].tolist() == uninterrupted.history["loss"][steps].tolist()
    run.close()
    run = anyk.resume(tmp_path / "run", problem=linear(), steps=16, evaluate=None)
    assert evaluated(run) == [0, 4, 6, 8, 12] and read_config(tmp_path / "run").evaluate == "none"


def test_races_keep_how_they_are_evaluated(tmp_path):
    asked = {"workers": 4, "cluster": "simulated", "delays": "exp:mean=1", "steps": 4}
    race = anyk.race(linear(), ["uncoded"], evaluate="every=3", out=tmp_path / "race", **asked)
    assert evaluated(race.runs[0]) == [0, 3, 4]
    race.close()
    more = anyk.resume_race(tmp_path / "race", add=["frc:load=2"], problem=linear())
    assert [evaluated(run) for run in more.runs] == [[0, 3, 4]] * 2
    more.close()


def test_on_the_command_line(tmp_path):
    def command(*words):
        return CliRunner().invoke(main, list(map(str, words)))

    train = ["train", "--data", "synthetic:rows=90,features=4", "--workers", 3, "--cluster", "simulated", "--steps", 4]
    done = command(*train, "--evaluate", "none", "--out", tmp_path / "none")
    assert done.exit_code == 0, done.output
    with anyk.Run.open(tmp_path / "none") as run:
        assert run.loss is None and evaluated(run) == []
    assert "evaluate      none" in command("show", tmp_path / "none").output
    done = command("show", tmp_path / "none", "--picture", tmp_path / "x.png")
    assert done.exit_code == 2 and "no version has a loss: there is no curve to draw" in done.output
    race = ["race", *train[1:], "--strategy", "uncoded", "--evaluate", "none", "--out", tmp_path / "whole"]
    done = command(*race)
    assert done.exit_code == 0 and "no picture: no version has a loss" in done.output
    done = command("resume", tmp_path / "none", "--steps", 6, "--evaluate", "every=2")
    assert done.exit_code == 0, done.output
    with anyk.Run.open(tmp_path / "none") as run:
        assert evaluated(run)[-1] == 6
    done = command(*train, "--evaluate", "evry=3")
    assert done.exit_code == 2 and done.output.strip().endswith("no key 'evry'; did you mean 'every'?")
    race = ["race", *train[1:], "--strategy", "adasync", "--evaluate", "on=held_out", "--out", tmp_path / "race"]
    done = command(*race)
    assert done.exit_code == 2 and "adapts to the training loss" in done.output, done.output


# ----------------------------------------------------------------------------------------------- aside


class Mortal(Squares):
    """Its loss must not be asked for in the driver; elsewhere it kills the process as often as a file has letters."""

    def __init__(self, workers, left):
        super().__init__(workers)
        self.left, self.driver = left, os.getpid()

    def loss(self, w):
        assert os.getpid() != self.driver
        if left := self.left.read_bytes():
            self.left.write_bytes(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(w)


def test_aside_another_process_evaluates_and_the_run_is_the_same(tmp_path):
    (tmp_path / "left").touch()
    options = {"optimizer": anyk.optimizers.GD(lr=0.1), "evaluate": Evaluate(where="aside", every=1)}
    mortal, plain = (ManyProblems([problem, problem]) for problem in (Mortal(4, tmp_path / "left"), Squares(4)))
    aside = anyk.train(mortal, "uncoded:models=2", fleet(), steps=4, out=tmp_path / "run", **options)
    assert read_config(tmp_path / "run").evaluate == "every=1,where=aside"
    on_driver = anyk.train(plain, "uncoded:models=2", fleet(), steps=4, **options | {"evaluate": "every=1"})
    assert aside.history["loss"].tolist() == on_driver.history["loss"].tolist()
    assert np.array_equal(aside.model, on_driver.model)


def test_a_process_that_evaluates_is_replaced_once(tmp_path):
    left = tmp_path / "left"
    left.write_text("x")
    problem = Mortal(4, left)
    with evaluating(Evaluate(where="aside"), problem) as aside:
        assert aside.loss(problem.initial()) == Squares(4).loss(problem.initial())
        left.write_text("xx")
        with pytest.raises(anyk.RunFailed, match="was killed by SIGKILL, twice at the same model; it may lack memory"):
            aside.loss(problem.initial())


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "deaths", "known"), [("simulated", 2, 2), ("processes", 99, 0)])
def test_training_goes_on_where_the_process_that_evaluates_dies(tmp_path, cluster, deaths, known):
    left = tmp_path / "left"
    left.write_text("x" * deaths)
    run = anyk.train(
        Mortal(4, left), "uncoded", cluster, workers=4, steps=2, optimizer=anyk.optimizers.GD(lr=0.1),
        evaluate=Evaluate(where="aside", every=1),
    )  # fmt: skip
    plain = anyk.train(Squares(4), "uncoded", fleet(), steps=2, optimizer=anyk.optimizers.GD(lr=0.1))
    assert np.array_equal(run.model, plain.model) and len(evaluated(run)) == known
    (_, sentence, *further) = [note["text"] for note in run.notes if note["kind"] == "not evaluated"] + [""] * (
        known > 0
    )
    assert known or (sentence.startswith("the process that evaluates is not started again") and not further)
    assert len(left.read_bytes()) == max(0, deaths - 4)  # as a failure, two processes each at two models


def test_a_run_for_a_target_ends_where_nothing_can_be_evaluated(tmp_path):
    left = tmp_path / "left"
    left.write_text("x" * 99)
    with pytest.raises(anyk.RunFailed, match="it is not known any more whether the target is reached: the process"):
        anyk.train(
            Mortal(4, left), "uncoded", fleet(), optimizer=anyk.optimizers.GD(lr=0.1), target=1e-9,
            evaluate=Evaluate(where="aside", every=1),
        )  # fmt: skip


@pytest.mark.slow
def test_a_process_that_evaluates_and_is_frozen_is_replaced(monkeypatch):
    monkeypatch.setattr(aside_module, "_SILENCE", 8.0)
    problem = Squares(4)
    with evaluating(Evaluate(where="aside"), problem) as aside:
        first = aside.loss(problem.initial())
        frozen = aside.aside.pid
        os.kill(frozen, signal.SIGSTOP)
        assert aside.loss(problem.initial()) == first and aside.aside.pid != frozen


def test_problems_that_cannot_go_aside_get_a_sentence():
    problem = Squares(4)
    problem.lock = threading.Lock()
    with pytest.raises(anyk.BadInput, match=r"cannot be sent to the process that evaluates it \(cannot pickle"):
        anyk.train(problem, "uncoded", fleet(), steps=1, optimizer=anyk.optimizers.GD(lr=0.1), evaluate="where=aside")
