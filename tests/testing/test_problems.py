"""The suite that defines what a problem is: what it accepts, and each thing it must find."""

from __future__ import annotations

import numpy as np
import pytest

import anyk
from anyk.problems.base import cut
from anyk.testing import check_problem


class Pieces:
    """Squares of residuals, with one thing wrong."""

    def __init__(self, X, y, ends, wrong):
        self.X, self.y = ([a[i:j] for i, j in zip(ends, ends[1:], strict=False)] for a in (X, y))
        self.dimension, self.dtype, self.wrong = X.shape[1], X.dtype, wrong
        self.sizes = tuple(map(len, self.y)) if wrong != "sizes" else (1,) * len(self.y)
        self.calls = 0

    def load(self, partitions):
        pass

    def support(self, partition):
        return np.array([2, 0]) if self.wrong == "support" else None

    def partial_gradient(self, partition, w, rows=None, /):
        X, y = self.X[partition], self.y[partition]
        if rows is not None and self.wrong != "rows":
            X, y = X[rows], y[rows]
        if self.wrong == "writes":
            w += 0.0
        gradient = X.T @ (X @ w - y)
        self.calls += 1
        return {
            "mean": gradient / len(y), "short": gradient[1:], "drifts": gradient + self.calls, "nan": gradient * np.nan,
            "regularised": gradient + 0.1 * w, "scaled": 2 * gradient,
            "cut": gradient * (1 + (len(self.sizes) == 1)), "dtype": gradient.astype("float32"),
        }.get(self.wrong, gradient)  # fmt: skip

    def only(self, partitions):
        other = Pieces.__new__(Pieces)
        other.__dict__ = dict(self.__dict__)
        if self.wrong == "only":
            other.X = [0 * X for X in self.X]
        return other


class Squared:
    metric, better, l2, samples, dimension, dtype = "mse", "lower", 0.1, 40, 3, np.dtype("float64")

    def __init__(self, wrong=None):
        random = np.random.default_rng(0)
        self.X, self.y, self.wrong = random.normal(size=(40, 3)), random.normal(size=40), wrong

    def split(self, partitions, shares=None):
        return Pieces(self.X, self.y, cut(self.samples, partitions, shares).tolist(), self.wrong)

    def initial(self):
        return np.zeros(4 if self.wrong == "initial" else 3)

    def loss(self, w):
        return float(((self.X @ w - self.y) ** 2).mean() / 2 + 0.05 * (w @ w))

    def metrics(self, w):
        return {"other" if self.wrong == "metric" else "mse": 1.0}

    def recipe(self):
        return None


FOUND = {
    "sizes": "sizes add up to",
    "support": "support of partition 0 must be sorted",
    "rows": "rows do not add up",
    "writes": "read-only",
    "mean": "sums over samples",
    "short": "has shape",
    "drifts": "differs from call to call",
    "nan": "not finite",
    "regularised": "without the regulariser",
    "dtype": "is float32",
    "only": r"only\(\[0\]\)",
    "initial": "initial",
    "scaled": "finite differences",
    "cut": "how the data is cut",
    "metric": "'mse' is not among",
}


@pytest.mark.parametrize("wrong", FOUND)
def test_each_thing_that_is_wrong_is_found(wrong):
    with pytest.raises(AssertionError, match=FOUND[wrong]):
        check_problem(Squared(wrong))


def test_what_is_right_passes():
    check_problem(Squared())
    for data in ("synthetic:rows=60,features=4", "digits"):
        check_problem(anyk.problems.from_data(data))
    check_problem(anyk.problems.from_data("digits", model="two-layer:hidden=3"))


def test_single_precision_is_judged_by_its_own_rounding():
    random = np.random.default_rng(1)
    X = random.normal(size=(50, 4)).astype("float32")
    check_problem(anyk.problems.LeastSquares(X, X @ np.arange(4, dtype="float32"), l2=0.5))


def test_what_is_no_problem_is_refused():
    with pytest.raises(anyk.BadInput, match="problem must be one of"):
        check_problem("digits")


def test_a_problem_with_a_part_missing_is_told_which(monkeypatch):
    monkeypatch.delattr(Squared, "recipe")
    with pytest.raises(anyk.BadInput, match="got a Squared, which has no recipe$"):
        anyk.train(Squared(), "uncoded", "simulated", workers=2, steps=1)
