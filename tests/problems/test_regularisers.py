"""The regulariser of a problem is the same wherever steps are taken, and does not change while a run is going on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.local import Local, LocalStepper
from anyk.clusters.messages import Messages
from anyk.clusters.remote.shipping import parcels, single_parcels, unship
from anyk.problems.base import Partitions
from own_problem import Rows, Squares, X, Y

FACTORS = np.array([0.0, 0.5, 1.0, 4.0])
RATE = 0.05


class Regularised(Squares):
    metric = "none"

    def __init__(self, penalty: Any = None, l2: float = 0.0) -> None:
        self.penalty, self.l2 = penalty, l2

    def loss(self, w: Any) -> float:
        factors = self.l2 if self.penalty is None else np.asarray(self.penalty)
        return super().loss(w) + float((factors * w) @ w / 2)

    def metrics(self, w: Any) -> dict[str, float]:
        return {}


def by_hand(rows: list[slice], factors: Any, steps: int) -> Any:
    """Return the mean of the models that gradient descent on some rows each leads to."""
    models = []
    for mine in rows:
        w = np.ones(4)
        for _ in range(steps):
            w = w - RATE * (X[mine].T @ (X[mine] @ w - Y[mine]) / len(Y[mine]) + factors * w)
        models.append(w)
    return np.mean(models, axis=0)


@pytest.mark.parametrize("cluster", [anyk.clusters.Simulated, anyk.clusters.Processes])
@pytest.mark.parametrize(("strategy", "l2"), [("uncoded", 0.0), ("uncoded", 9.0), ("pasgd:tau=6", 0.0)])
def test_factors_of_coordinates_count_wherever_steps_are_taken(strategy: str, l2: float, cluster: Any) -> None:
    """Whatever ``l2`` is, which is for problems without such factors; partitions need not know of them."""
    local = strategy != "uncoded"
    steps = 1 if local else 6
    run = anyk.train(Regularised(FACTORS, l2), strategy, cluster(2), steps=steps, optimizer=anyk.optimizers.GD(lr=RATE))
    rows = [slice(0, 30), slice(30, 60)] if local else [slice(0, 60)]
    np.testing.assert_allclose(run.model, by_hand(rows, FACTORS, 6), rtol=1e-12)


@pytest.mark.parametrize("strategy", ["uncoded", "pasgd:tau=6"])
def test_factors_may_be_a_list(strategy: str) -> None:
    runs = [
        anyk.train(Regularised(factors), strategy, anyk.clusters.Simulated(2), steps=2, optimizer="gd:lr=0.05")
        for factors in (FACTORS, FACTORS.tolist())
    ]
    assert np.array_equal(runs[0].model, runs[1].model)


class Parted(Rows):
    """What each worker gets is made anew, without anything that was set on all partitions."""

    def only(self, partitions: Any) -> Any:
        return Parted(self.ends)

    def adopt(self, other: Any) -> None:
        self.padding = other.padding

    padding = np.ones(0)

    def __reduce__(self) -> Any:
        return _with_padding, (self.ends, np.ones(10_000), self.__dict__)


def _with_padding(ends: Any, padding: Any, attributes: Any) -> Parted:
    made = Parted(ends)
    made.__dict__.update(attributes, padding=padding)
    return made


def test_workers_with_partitions_of_their_own_have_factors() -> None:
    partitions: Any = Parted([0, 30, 60])
    partitions.penalty = FACTORS
    sent = [*parcels(partitions, [(0,), (1,)]), *single_parcels(partitions)]
    assert len(sent) == 4
    assert all(np.array_equal(unship(buffers).penalty, FACTORS) for buffers in sent)


def test_factors_that_did_not_arrive_are_not_taken_for_none() -> None:
    partitions: Partitions = Rows([0, 30, 60])  # type: ignore[assignment]
    with pytest.raises(RunFailed, match="factors of the regulariser are missing"):
        LocalStepper(Messages(partitions), Local(optimizer="gd", rate="0.1", penalty=None))


@pytest.mark.parametrize(
    "factors", [np.ma.masked_less(np.arange(4.0), 2), np.ones(3), np.ones((4, 1)), "1", [1.0, None, 1.0, 1.0]]
)
def test_unsuitable_factors_are_refused(factors: Any) -> None:
    with pytest.raises(BadInput, match=r"penalty must be a number or 4 numbers, one for each coordinate"):
        anyk.train(Regularised(factors), "uncoded", anyk.clusters.Simulated(2), steps=2, optimizer="gd:lr=0.05")


CHANGES = [
    (lambda: Regularised(None, 0.1), "l2", 5.0, "l2 of the problem was 0.1 when the run began and is 5.0 now"),
    (lambda: Regularised(FACTORS), "penalty", FACTORS + 1.0, "penalty of the problem has changed since the run began"),
    (lambda: Regularised(FACTORS), "penalty", None, "penalty of the problem has changed since the run began"),
    (lambda: Regularised(0.1), "penalty", 0.2, "penalty of the problem has changed since the run began"),
]


@pytest.mark.parametrize(("make", "name", "value", "sentence"), CHANGES)
def test_a_loop_cannot_change_the_regulariser(make: Any, name: str, value: Any, sentence: str) -> None:
    problem = make()
    with pytest.raises(BadInput, match=f"{sentence}; .* continue in a run of its own"):
        for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=12):
            step.model -= RATE * step.gradient
            if step.number == 4:
                setattr(problem, name, value)


def test_a_loop_cannot_change_factors_in_place() -> None:
    problem = Regularised(FACTORS.copy())
    with pytest.raises(BadInput, match="penalty of the problem has changed since the run began"):
        for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=12):
            step.model -= RATE * step.gradient
            problem.penalty[0] = 1.0


def test_a_callback_cannot_change_the_regulariser() -> None:
    problem = Regularised(None, 0.1)

    class Weaker(anyk.callbacks.Callback):
        def on_step(self, info: Any) -> None:
            problem.l2 /= 2

    with pytest.raises(RunFailed, match=r"l2 of the problem was 0\.1 when the run began and is 0\.05 now"):
        anyk.train(
            problem, "pasgd:tau=2", anyk.clusters.Simulated(2), steps=12, optimizer="gd:lr=0.05", callbacks=[Weaker()]
        )


def test_one_of_several_problems_is_watched_too() -> None:
    problems = [anyk.problems.LeastSquares(X.copy(), Y.copy()) for _ in range(2)]

    class Flip(anyk.callbacks.Callback):
        def on_step(self, info: Any) -> None:
            problems[1].y[:] = 0.0

    with pytest.raises(RunFailed, match="the data's y"):
        anyk.train_many(problems, "m-sgc:B=1,W=2,lambda=1", anyk.clusters.Simulated(4), steps=12, callbacks=[Flip()])


@pytest.mark.parametrize("name", ["l2", "penalty"])
def test_a_linear_problem_is_made_anew_for_another_regulariser(name: str) -> None:
    """Its scaling of columns depends on ``l2``, too."""
    problem = anyk.problems.LeastSquares(X, Y, l2=0.1)
    with pytest.raises(BadInput, match=f"{name} of a LeastSquares cannot be changed; make a new one with another l2"):
        setattr(problem, name, 5.0)
    assert problem.l2 == problem.penalty == 0.1


@pytest.mark.parametrize("strategy", ["uncoded", "pasgd:tau=2"])
def test_problems_for_several_models_need_a_strategy_for_as_many(strategy: str) -> None:
    problems = anyk.problems.ManyProblems([anyk.problems.LeastSquares(X, Y)] * 2)
    sentence = f"there are 2 problems, and '{strategy}' trains one model"
    with pytest.raises(BadInput, match=sentence):
        anyk.train(problems, strategy, anyk.clusters.Simulated(4), steps=2)
    with pytest.raises(BadInput, match=sentence):
        list(anyk.rounds(problems, strategy, anyk.clusters.Simulated(4), steps=2))
