"""The data of workers are not changed by a gradient, and texts of errors harm nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyk
from anyk.clusters.read_only import ReadOnlyData
from anyk.problems.base import cut

torch = pytest.importorskip("torch")


class Rows:
    """Partitions of a least-squares problem; ``how`` they misbehave."""

    def __init__(self, X: Any, y: Any, ends: list[int], how: str) -> None:
        self.X = [X[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        self.by_name = {"y": [y[a:b] for a, b in zip(ends, ends[1:], strict=False)]}
        self.sizes = tuple(map(len, self.X))
        self.dimension, self.dtype, self.how = X.shape[1], X.dtype, how

    def load(self, partitions: Any) -> None:
        self.scratch = np.zeros(self.dimension)

    def support(self, partition: int) -> None:
        return None

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        X, y = self.X[partition], self.by_name["y"][partition]
        if self.how == "rows":
            X -= X.mean(axis=0)
        elif self.how == "targets":
            y[0] = 0.0
        elif self.how == "text":
            raise ValueError("no file '\udcff\udcfe'")
        self.scratch[:] = X.T @ (X @ w - y)
        return self.scratch


class Problem:
    metric, better, l2 = "mse", "lower", 0.0

    def __init__(self, how: str) -> None:
        random = np.random.default_rng(0)
        self.X, self.how = random.normal(size=(40, 4)), how
        self.y = self.X @ np.arange(4.0)
        self.samples, self.dimension, self.dtype = 40, 4, self.X.dtype

    def split(self, partitions: int, shares: Any = None) -> Rows:
        return Rows(self.X, self.y, cut(40, partitions, shares).tolist(), self.how)

    def initial(self) -> Any:
        return np.zeros(4)

    def loss(self, w: Any) -> float:
        return float(((self.X @ w - self.y) ** 2).mean())

    def metrics(self, w: Any) -> dict[str, float]:
        return {}

    def recipe(self) -> None:
        return None

    def smoothness(self) -> float:
        return 4.0


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["simulated", "processes"])
@pytest.mark.parametrize("how", ["rows", "targets"])
def test_a_gradient_that_changes_its_data_is_named(cluster: str, how: str) -> None:
    problem = Problem(how)
    before = problem.X.copy(), problem.y.copy()
    with pytest.raises(anyk.RunFailed, match="read-only.*must not change its data, which all workers share"):
        anyk.train(problem, "frc:load=2", cluster, workers=2, steps=3, evaluate=None)
    assert np.array_equal(problem.X, before[0]) and np.array_equal(problem.y, before[1])
    assert problem.X.flags.writeable and problem.y.flags.writeable


@pytest.mark.slow
def test_memory_to_compute_in_stays_writable() -> None:
    runs = [anyk.train(Problem(""), "uncoded", name, workers=2, steps=3) for name in ("simulated", "processes")]
    assert np.array_equal(runs[0].model, runs[1].model)
    for run in runs:
        run.close()


def test_views_of_protected_arrays_become_writable_again() -> None:
    class Views:
        def __init__(self) -> None:
            self.whole = np.zeros(9)
            self.views = (self.whole[:3], self.whole[2:].reshape(7, 1))

    views: Any = Views()
    with ReadOnlyData(views):
        assert not any(array.flags.writeable for array in (views.whole, *views.views))
    assert all(array.flags.writeable for array in (views.whole, *views.views))


class Tensors(Rows):
    """The rows as tensors; which of their own a gradient changes."""

    def __init__(self, X: Any, y: Any, ends: list[int], how: str) -> None:
        super().__init__(X, y, ends, how)
        self.X = [torch.utils.data.TensorDataset(torch.from_numpy(rows.copy())) for rows in self.X]
        self.layer = torch.nn.Linear(self.dimension, 1, bias=False, dtype=torch.float64)

    def load(self, partitions: Any) -> None:
        self.scratch = torch.zeros(self.dimension, dtype=torch.float64)

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        X, y = self.X[partition].tensors[0], torch.from_numpy(np.array(self.by_name["y"][partition]))
        if self.how == "rows" or (self.how == "once" and not self.scratch.any()):
            X -= X.mean(axis=0)
        with torch.no_grad():
            self.layer.weight.copy_(torch.from_numpy(w.copy())[None, :])
        torch.matmul(X.T, self.layer(X)[:, 0].detach() - y, out=self.scratch)
        return self.scratch.numpy()


class ProblemOfTensors(Problem):
    def split(self, partitions: int, shares: Any = None) -> Rows:
        return Tensors(self.X, self.y, cut(40, partitions, shares).tolist(), self.how)


@pytest.mark.parametrize("cluster", ["simulated", "processes"])
@pytest.mark.parametrize("how", ["rows", "once"])
def test_a_gradient_that_changes_tensors_is_named(cluster: str, how: str) -> None:
    with pytest.raises(anyk.RunFailed, match="a tensor of the partitions has changed; a gradient must not change its"):
        anyk.train(ProblemOfTensors(how), "uncoded", cluster, workers=2, steps=3, evaluate=None)


def test_tensors_to_compute_with_may_change() -> None:
    with anyk.train(Problem(""), "uncoded", "simulated", workers=2, steps=3) as plain:
        for cluster in ("simulated", "processes"):
            with anyk.train(ProblemOfTensors(""), "uncoded", cluster, workers=2, steps=3) as run:
                assert run.model == pytest.approx(plain.model, rel=1e-9)


@pytest.mark.parametrize("cluster", ["simulated", "processes"])
def test_an_error_text_that_no_encoding_has_is_kept(cluster: str) -> None:
    with pytest.raises(anyk.RunFailed, match=r"ValueError: no file '\\udcff\\udcfe'"):
        anyk.train(Problem("text"), "uncoded", cluster, workers=2, steps=3, evaluate=None)
