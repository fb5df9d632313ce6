"""The losses of partitions: together that of the problem, or it is said why workers cannot tell them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import anyk
from anyk.clusters.messages import Messages
from anyk.data import Stream
from anyk.problems import JaxProblem, TorchProblem
from anyk.problems.base import penalty_of
from anyk.testing import Squares, check_problem

random = np.random.default_rng(0)
X = random.normal(size=(70, 3)).astype(np.float32)
y = (X @ [1.0, -2.0, 0.5] > 0).astype(np.int64)


def module(*parts):
    torch.manual_seed(0)
    return torch.nn.Sequential(*parts, torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))


def jax_loss(params, batch, key, train):
    import jax

    hidden = batch["x"] @ params["w"]
    if train:
        hidden = hidden * jax.random.bernoulli(key, 0.5, hidden.shape)
    return jax.numpy.mean(hidden**2)


def of_jax(**options):
    return JaxProblem(jax_loss, {"w": X[:3]}, {"x": X}, rng=True, l2=0.1, **options)


class Items:
    """Pairs that a transform shifts by what it draws."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return torch.from_numpy(X[i]) + 0.01 * torch.randn(3), int(y[i])


def shards(folder):
    for number, rows in enumerate((slice(30), slice(30, None))):
        np.savetxt(folder / f"part-{number}.csv", np.column_stack([X[rows], y[rows]]), delimiter=",", fmt="%.17g")
    return anyk.data.Shards(str(folder / "part-*.csv"), header=False)


PROBLEMS = {
    "weighted": lambda _: anyk.problems.LogisticRegression(X, 2 * y - 1, l2=0.1, weights=1 + y, intercept=True),
    "sparse": lambda _: anyk.problems.from_data("synthetic:rows=70,features=40,density=0.1"),
    "softmax": lambda _: anyk.problems.from_data("digits"),
    "two-layer": lambda _: anyk.problems.from_data("digits", model="two-layer:hidden=3"),
    "shards": lambda folder: anyk.problems.LeastSquares(shards(folder), l2=0.1),
    "torch": lambda _: TorchProblem(module(), torch.nn.CrossEntropyLoss(reduction="sum"), (X, y), l2=0.1),
    "torch, items": lambda _: TorchProblem(module(), torch.nn.CrossEntropyLoss(), Items()),
    "torch, shards": lambda folder: TorchProblem(
        torch.nn.Linear(3, 1), lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).mean(), shards(folder)
    ),
    "jax": lambda _: of_jax(),
}


DRAWS = ("torch", "torch, items", "jax")  # so that gradients of rows do not add up


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_partitions_add_up_to_the_loss_of_all_and_of_a_sample(name, tmp_path):
    problem = PROBLEMS[name](tmp_path)
    w = (problem.initial() + 0.3).astype(problem.dtype)
    for samples in (None, 20):
        messages = Messages(problem.split(4))
        messages.partitions.load(range(4))
        gradient = messages.partial_gradient(0, w)
        loss = sum(messages.loss("model", j, w, samples) for j in range(4)) / (samples or problem.samples)
        expected = problem if samples is None else problem.sampled(samples)
        assert loss + 0.5 * float((penalty_of(problem) * w) @ w) == pytest.approx(expected.loss(w), rel=1e-5)
        assert np.array_equal(messages.partial_gradient(0, w), gradient)  # in training again
    if name not in DRAWS:
        check_problem(PROBLEMS[name](tmp_path))


@pytest.mark.parametrize("wrong", ["mean", "rows"])
def test_the_suite_for_problems_finds_a_wrong_loss(wrong):
    class Wrong(Squares):
        def split(self, partitions, shares=None):
            pieces = super().split(partitions, shares)
            right = pieces.partial_loss
            pieces.partial_loss = (
                (lambda j, w, rows=None: right(j, w) / 2) if wrong == "mean"
                else (lambda j, w, rows=None: right(j, w) * (1 if rows is None else 2))
            )  # fmt: skip
            return pieces

    sentence = "the partitions' losses come to" if wrong == "mean" else "rows do not add up to that of partition 0"
    with pytest.raises(AssertionError, match=sentence):
        check_problem(Wrong(3))


_DRIVER = """
import json, sys
import anyk
from anyk.data import Shards
opened = []
sys.addaudithook(lambda event, args: event == "open" and "part-" in str(args[0]) and opened.append(str(args[0])))
problem = anyk.problems.LogisticRegression(Shards(sys.argv[1], header=False), l2=0.1)
run = anyk.train(problem, "frc:stragglers=1", "processes", workers=2, steps=5, evaluate="where=workers")
asked = anyk.train(problem, "uncoded", "processes", workers=2, steps=5, evaluate="where=workers,samples=25")
print(json.dumps([opened, run.model.tolist(), run.loss, asked.loss]))
"""


@pytest.mark.slow
def test_the_loss_of_shards_is_known_to_a_driver_that_opens_none(tmp_path):
    shards(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _DRIVER, str(tmp_path / "part-*.csv")],
        capture_output=True, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    opened, model, loss, asked = json.loads(done.stdout)
    assert opened == []
    problem = anyk.problems.LogisticRegression(X, 2 * y - 1, l2=0.1)
    assert loss == pytest.approx(problem.loss(np.array(model)), rel=1e-6)
    assert asked == pytest.approx(problem.sampled(25).loss(np.array(model)), rel=1e-6)


class Pieces:
    """Partitions of somebody's own, without losses."""

    def __init__(self, of):
        self.of, self.dimension, self.dtype, self.sizes = of, of.dimension, of.dtype, of.sizes
        self.support, self.partial_gradient, self.load = of.support, of.partial_gradient, of.load


class Bare(Squares):
    def __init__(self):
        super().__init__(4)

    def split(self, partitions, shares=None):
        return Pieces(super().split(partitions, shares))


def stream(partition, seed):
    while True:
        seed += 1
        yield torch.full((3,), float(seed)), torch.tensor(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "asked", "sentence"),
    [
        (Bare, {}, r"workers cannot evaluate Pieces, which has no partial_loss\(partition, w, rows\); give it one"),
        (
            lambda: TorchProblem(module(torch.nn.BatchNorm1d(3)), torch.nn.CrossEntropyLoss(), (X, y)),
            {},
            "workers cannot evaluate a module with batch norm",
        ),
        (
            lambda: TorchProblem(module(), torch.nn.CrossEntropyLoss(), Stream(stream)),
            {"strategy": "uncoded:batch=2", "evaluate": "where=workers,samples=9"},
            "the training data is a stream, whose samples for evaluation one process generates",
        ),
        (
            lambda: JaxProblem(lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean(), {"w": X[0]}, {"x": X},
                               workers="numpy"),
            {},
            r"workers without JAX \(workers='numpy'\) compute gradients alone",
        ),
        (
            lambda: TorchProblem(module(), torch.nn.CrossEntropyLoss(), (X, y), split="dirichlet:alpha=0.3"),
            {"evaluate": "where=workers,samples=9"},
            "workers would pick others than the driver; omit samples or split",
        ),
        (lambda: Squares(4), {"evaluate": "where=workers,on=held_out"}, "workers hold the training data, and held-out"),
        (
            lambda: anyk.problems.from_data("synthetic:rows=60,features=3"),
            {"strategy": "adasync:base=k-sync,interval=2"},
            "adapts to the training loss and needs it immediately",
        ),
        (
            lambda: TorchProblem(module(), torch.nn.CrossEntropyLoss(), (X, y)),
            {
                "optimizer": anyk.optimizers.TorchOptimizer("SGD", lr=0.5, schedule="ReduceLROnPlateau"),
                "evaluate": "where=workers,every=2",
            },
            "needs them before the next step, and workers evaluate beside their tasks",
        ),
    ],
)  # fmt: skip
def test_what_workers_cannot_tell_is_refused(make, asked, sentence):
    options = {"strategy": "uncoded", "evaluate": "where=workers", "optimizer": anyk.optimizers.GD(lr=0.1)} | asked
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.train(make(), cluster="processes", workers=4, steps=1, **options)
