"""Values of a problem: their form, their schedules, and how they are carried as bytes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anyk
from anyk.base.errors import BadInput
from anyk.problems.values import Leaves, Values, taken_by

NESTED = {
    "beta": 0.5,
    "epoch": 3,
    "teacher": {"weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
    "pair": (np.zeros(2), [True, 1]),
}


def test_values_are_rebuilt_in_the_form_in_which_they_were_given() -> None:
    values = Values(NESTED)
    built = values.build(values.initial)
    assert (built["beta"], built["epoch"], built["pair"][1]) == (0.5, 3, [True, 1])
    assert isinstance(built["pair"], tuple) and torch.equal(built["teacher"]["weight"], NESTED["teacher"]["weight"])
    assert built["teacher"]["half"].dtype == torch.bfloat16


@pytest.mark.slow
@given(st.data())
def test_carried_bytes_give_the_same_arrays(data: st.DataObject) -> None:
    kinds = st.sampled_from(["float64", "float32", "int64", "uint8", "bool", "int16"])
    shapes = st.lists(st.integers(0, 4), max_size=3)
    arrays = [
        np.random.default_rng(index).integers(0, 2, data.draw(shapes)).astype(data.draw(kinds))
        for index in range(data.draw(st.integers(1, 5)))
    ]
    values = Values({}, {f"array {index}": np.zeros_like(array) for index, array in enumerate(arrays)})
    places = sorted(data.draw(st.sets(st.integers(0, len(arrays) - 1))))
    carried = np.concatenate([np.empty(0, np.uint8), *(arrays[index].reshape(-1).view(np.uint8) for index in places)])
    padded = np.zeros(-(-carried.size // 24) * 24, np.uint8)
    padded[: carried.size] = carried
    worker = pickle.loads(pickle.dumps(values))
    for reader in (values, worker):
        decoded = reader.decode((), places, list(padded.view(np.float64).reshape(-1, 3)))
        for index in places:
            np.testing.assert_array_equal(decoded.arrays[index], arrays[index])
            assert decoded.arrays[index].dtype == arrays[index].dtype


def test_a_worker_needs_neither_schedules_nor_kept_arrays() -> None:
    values = Values({"beta": lambda step: step}, {"kept": np.zeros(100_000)})
    assert len(pickle.dumps(values)) < 2_000


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"beta": 1.0}, "the problem has the values beta, epoch"),
        (NESTED | {"alpha": 1.0}, "name all of them in values="),
        (NESTED | {"beta": float("nan")}, "'beta' must be a finite number"),
        (NESTED | {"beta": torch.ones(3)}, "differ|must stay a number"),
        (NESTED | {"epoch": 2**70}, "'epoch' must be a finite number"),
        (NESTED | {"pair": (np.zeros(3), [True, 1])}, r"must stay an array of float64 \(2,\)"),
        (NESTED | {"teacher": {"weight": NESTED["teacher"]["weight"]}}, "teacher"),
    ],
)
def test_values_of_another_form_are_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Values(NESTED).read(changed)


@pytest.mark.parametrize(
    "given_values", [{"a b": 1}, {"beta": "text"}, {"beta": None}, {"net": nn.Linear(2, 2)}, [1.0]]
)
def test_values_that_cannot_travel_are_refused(given_values: object) -> None:
    with pytest.raises(BadInput, match="values must be"):
        Values(given_values)  # type: ignore[arg-type]


def test_a_schedule_that_fails_is_named() -> None:
    with pytest.raises(BadInput, match="the schedule of 'beta' fails at step 0: ZeroDivisionError"):
        Values({"beta": lambda step: 1 / step})


def test_a_schedule_changes_its_value_alone() -> None:
    values = Values({"beta": lambda step: 0.5 * step, "alpha": 1.0}, {"kept": np.zeros(2)})
    leaves = Leaves((0.0, 7.0), (np.ones(2),))
    at_four = values.at(leaves, 4)
    assert values.build(at_four) == {"beta": 2.0, "alpha": 7.0} and at_four.arrays[0].sum() == 2.0


def test_parameters_of_functions_show_what_they_take() -> None:
    class Loss(nn.Module):
        def forward(self, outputs: object, targets: object, beta: float) -> None: ...

    assert taken_by(Loss(), ["beta", "alpha"]) == ("beta",)
    assert taken_by(lambda outputs, targets, values: 0.0, ["beta"]) == ("values",)
    assert taken_by(nn.MSELoss(), ["beta"]) == ()


def test_values_that_nothing_takes_are_refused() -> None:
    with pytest.raises(BadInput, match="nothing takes the values beta: give the loss a parameter"):
        anyk.problems.TorchProblem(
            nn.Linear(2, 1), nn.MSELoss(), (torch.ones(4, 2), torch.ones(4, 1)), values={"beta": 1.0}
        )


def test_problems_trained_together_cannot_have_values() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor, beta: float) -> torch.Tensor:
        return beta * nn.functional.mse_loss(outputs, targets)

    problem = anyk.problems.TorchProblem(
        nn.Linear(2, 1), loss, (torch.ones(4, 2), torch.ones(4, 1)), values={"beta": 1.0}
    )
    with pytest.raises(BadInput, match="cannot have values, got beta"):
        anyk.problems.ManyProblems([problem, problem])
