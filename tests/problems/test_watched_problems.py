"""Changes that a loop makes to a problem of the user's own class, or to rows of a linear one, are noticed as well."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.problems.base import cut

random = np.random.default_rng(0)
X, Y = random.normal(size=(60, 4)), random.normal(size=60)
FACTOR = [1.0]


class Rows:
    """Partitions of the rows of a problem; they have copies of its settings."""

    def __init__(self, problem: Any, ends: list[int]) -> None:
        self.X, self.y = ([array[a:b] for a, b in pairwise(ends)] for array in (problem.X, problem.y))
        self.width, self.sizes, self.dimension, self.dtype = problem.width, [len(y) for y in self.y], 4, np.dtype(float)

    def load(self, partitions: Any) -> None:
        pass

    def support(self, partition: int) -> None:
        return None

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        chosen = slice(None) if rows is None else rows
        design, y = self.X[partition][chosen], self.y[partition][chosen]
        return FACTOR[0] * (design.T @ np.clip(design @ w - y, -self.width, self.width))


class Huber:
    metric, better, l2 = "mae", "lower", 0.0
    samples, dimension, dtype = 60, 4, np.dtype(float)

    def __init__(self) -> None:
        self.X, self.y, self.width = X.copy(), Y.copy(), 1.0
        self.evaluations, self.last_errors = 0, np.zeros(60)

    def split(self, partitions: int, shares: Any = None) -> Any:
        return Rows(self, cut(60, partitions, shares).tolist())

    def initial(self) -> Any:
        return np.zeros(4)

    def loss(self, w: Any) -> float:
        self.evaluations += 1
        self.last_errors = np.abs(self.X @ w - self.y)
        return float(self.last_errors.mean())

    def metrics(self, w: Any) -> dict[str, float]:
        return {"mae": self.loss(w)}

    def recipe(self) -> None:
        return None


class Loading(Huber):
    """Its gradient can be computed where a partition has been loaded, which the driver does not do."""

    def split(self, partitions: int, shares: Any = None) -> Any:
        class Later(Rows):
            def load(self, partitions: Any) -> None:
                self.there = True

            def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
                assert self.there
                return super().partial_gradient(partition, w, rows)

        return Later(self, cut(60, partitions, shares).tolist())


class Noisy(Huber):
    """Its gradients are random, so that nothing can be compared."""

    def split(self, partitions: int, shares: Any = None) -> Any:
        class Drawing(Rows):
            def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
                return super().partial_gradient(partition, w, rows) + np.random.default_rng().normal(size=4)

        return Drawing(self, cut(60, partitions, shares).tolist())


@pytest.fixture(autouse=True)
def _reset() -> Any:
    FACTOR[0] = 1.0
    yield
    FACTOR[0] = 1.0


def loop(problem: Any, change: Callable[[], None], cluster: Any = None) -> int:
    """Train by a loop that changes something after its fifth step; return the number of the last step."""
    number = -1
    for step in anyk.rounds(problem, "uncoded", cluster or anyk.clusters.Simulated(2), steps=12):
        step.model -= 1e-3 * step.gradient
        number = step.number
        if number == 4:
            change()
        problem.loss(step.model)
    return number


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [anyk.clusters.Simulated, anyk.clusters.Processes])
def test_an_attribute_that_partitions_have_a_copy_of_is_watched(cluster: Any) -> None:
    problem = Huber()
    named = "attribute 'width' of the problem was 1.0 when the run began and is 0.1 now; .* partitions that they got"
    with pytest.raises(BadInput, match=named):
        loop(problem, lambda: setattr(problem, "width", 0.1), cluster(2))


def test_rows_of_an_own_problem_that_change_in_place_are_watched() -> None:
    """Also the last ones, as all rows of few can be looked at."""
    problem = Huber()
    with pytest.raises(BadInput, match="attribute 'y' of the problem was an array"):
        loop(problem, lambda: problem.y.__setitem__(slice(-3, None), 50.0))


def test_a_module_variable_that_a_gradient_reads_is_watched() -> None:
    with pytest.raises(BadInput, match="variable 'FACTOR' of module .* was 1.0 when the run began and is 3.0 now"):
        loop(Huber(), lambda: FACTOR.__setitem__(0, 3.0))


def test_what_has_no_effect_on_gradients_may_change() -> None:
    """Such as a counter, a memory of the last evaluation, and what a callback leaves at the problem."""
    problem: Any = Huber()
    assert loop(problem, lambda: vars(problem).update(note="half of it", history=[1, 2])) == 11
    assert problem.evaluations >= 12 and problem.last_errors.any()


class Recording(Huber):
    """It keeps where its partitions end, and what was computed, so that a second computation would show in both."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[int] = []
        self.counts = np.zeros(60)
        self.random = np.random.default_rng(0)
        self.lock = threading.Lock()  # of which there is no copy

    def split(self, partitions: int, shares: Any = None) -> Any:
        self.ends = cut(60, partitions, shares).tolist()
        problem = self

        class Counting(Rows):
            def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
                problem.requests.append(partition)
                begin, end = problem.ends[partition : partition + 2]
                problem.counts[begin:end] += 1
                if problem.lock.locked():
                    raise RuntimeError
                return super().partial_gradient(partition, w, rows)

        return Counting(self, self.ends)


class Drawing(Recording):
    """Its gradients come from its own generator, which every gradient of the run advances."""

    def split(self, partitions: int, shares: Any = None) -> Any:
        problem, made = self, super().split(partitions, shares)

        class Shaken(type(made)):  # type: ignore[misc]
            def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
                return super().partial_gradient(partition, w, rows) * problem.random.uniform(0.5, 1.5)

        made.__class__ = Shaken
        return made


@pytest.mark.parametrize("kind", [Recording, Drawing])
def test_looking_leaves_the_problem_itself_alone(kind: Any) -> None:
    """The gradients that a watch compares are of a copy: a problem may record what is asked of it."""
    problem = kind()
    assert loop(problem, lambda: None) == 11
    assert problem.requests == [0, 1] * 12 and problem.ends == [0, 30, 60]
    assert (problem.counts == 12).all()


def test_a_problem_that_records_is_watched_all_the_same() -> None:
    problem = Recording()
    with pytest.raises(BadInput, match="attribute 'X' of the problem was an array"):
        loop(problem, lambda: problem.X.__setitem__(0, 9.0))


def test_large_arrays_are_compared_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyk.problems.separate_copy._COPIED", 1)
    problem = Huber()
    with pytest.raises(BadInput, match="attribute 'y' of the problem was an array"):
        loop(problem, lambda: problem.y.__setitem__(slice(-3, None), 50.0))
    assert problem.X.flags.writeable


@pytest.mark.parametrize("kind", [Loading, Noisy])
def test_a_problem_without_comparable_gradients_is_not_watched(kind: Any) -> None:
    problem = kind()
    assert loop(problem, lambda: setattr(problem, "evaluations", 0)) == 11


def test_the_loops_own_random_numbers_stay_as_they_were() -> None:
    """A gradient that draws from the global generator is computed with a seed of its own."""

    class Masked(Huber):
        def split(self, partitions: int, shares: Any = None) -> Any:
            class Drawing(Rows):
                def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
                    return super().partial_gradient(partition, w, rows) * (np.random.random(4) < 0.5)  # noqa: NPY002

            return Drawing(self, cut(60, partitions, shares).tolist())

    np.random.seed(7)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    assert anyk.problems.watch.watch_of(Masked()) is not None
    assert np.random.random() == expected  # noqa: NPY002


LINEAR: list[tuple[str, Any, Callable[[Any], None]]] = [
    ("y", X, lambda problem: problem.y.__setitem__(slice(0, 30), 9.0)),
    ("X", X, lambda problem: problem.X.__setitem__(slice(0, 30), 9.0)),
    ("X", sparse.csr_array(X), lambda problem: problem.X.data.__setitem__(slice(0, 30), 9.0)),
    ("weights", X, lambda problem: problem.weights.__setitem__(slice(0, 30), 9.0)),
]


@pytest.mark.parametrize(("name", "design", "change"), LINEAR, ids=["y", "dense X", "sparse X", "weights"])
def test_rows_of_a_linear_problem_are_watched(name: str, design: Any, change: Callable[[Any], None]) -> None:
    problem = anyk.problems.LeastSquares(design.copy(), Y.copy(), weights=np.ones(60))
    with pytest.raises(BadInput, match=f"the data's {name}.* samples that they got then"):
        loop(problem, lambda: change(problem))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("X", "the data's X was an array"), ("y", "the data's y was an array"), ("weights", "the problem would compute")],
)
def test_rows_that_are_assigned_anew_are_noticed(name: str, sentence: str) -> None:
    problem = anyk.problems.LeastSquares(X.copy(), Y.copy())
    with pytest.raises(BadInput, match=f"{sentence}.*; workers compute with the (partitions|samples)"):
        loop(problem, lambda: setattr(problem, name, X - 1.0 if name == "X" else np.arange(60.0)))


def test_a_callback_that_changes_rows_ends_the_run() -> None:
    problem = anyk.problems.LeastSquares(X.copy(), Y.copy())

    class Flip(anyk.callbacks.Callback):
        def on_step(self, info: Any) -> None:
            if info.step == 3:
                problem.y *= -1

    with pytest.raises(RunFailed, match="the data's y"):
        anyk.train(problem, "uncoded", anyk.clusters.Simulated(2), steps=12, callbacks=[Flip()])
