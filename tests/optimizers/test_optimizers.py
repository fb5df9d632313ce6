"""Schedules: their formulas, the ways to write one, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.optimizers import GD, ConstantRate, ExponentialRate, InverseTimeRate, learning_rate

pytestmark = pytest.mark.in_process


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-6, 1e3), st.floats(1e-3, 1.0), st.integers(0, 500))
def test_formulas(start: float, decay: float, t: int) -> None:
    assert ConstantRate(start).at(t) == start
    assert InverseTimeRate(start, decay).at(t) == pytest.approx(start / (1 + decay * t), rel=1e-12)
    exponential = ExponentialRate(start, decay)
    assert exponential.at(0) == start
    assert exponential.at(t + 1) == pytest.approx(exponential.at(t) * decay, rel=1e-12)


def test_ways_to_write_one() -> None:
    assert learning_rate(0.5) == learning_rate("0.5") == learning_rate("constant:start=0.5") == ConstantRate(0.5)
    assert learning_rate(2) == ConstantRate(2.0)
    assert learning_rate("exponential:start=0.1,decay=0.5") == ExponentialRate(0.1, 0.5)
    given_schedule = InverseTimeRate(0.1, 2.0)
    assert learning_rate(given_schedule) is given_schedule


def test_the_step_number_and_the_scale_reach_the_step() -> None:
    optimizer = GD("exponential:start=1,decay=0.5")
    for t, scale in ((0, 1.0), (2, 1.0), (2, 4.0)):
        assert optimizer.step(np.zeros(1), np.ones(1), {}, t, scale)[0] == -(0.5**t) * scale


def test_anything_with_a_rate_is_a_schedule() -> None:
    class Warm:
        spec = "warm"

        def at(self, step: int) -> float:
            return 0.1 * min(step + 1, 10)

    assert GD(Warm()).step(np.zeros(1), np.ones(1), {}, 4)[0] == pytest.approx(-0.5)


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.int64(1)])
def test_numpy_numbers_are_numbers(number: Any) -> None:
    """1 / problem.smoothness() and the like come as NumPy's own types."""
    assert learning_rate(number).at(3) == float(number)
    assert GD(lr=number).step(np.zeros(1), np.ones(1), {}, 0)[0] == -float(number)


@pytest.mark.parametrize(
    ("lr", "sentence"),
    [
        (0, "a learning rate must be a finite number above 0, got 0"),
        (-0.1, "a learning rate must be a finite number above 0, got -0.1"),
        (float("nan"), "lr must be a number, got nan"),
        (float("inf"), "a learning rate must be a finite number above 0, got inf"),
        ("inf", "lr must be a number or a schedule, not the text of a number, got 'inf'"),
        ("fast", "no learning-rate schedule 'fast'; known: constant, exponential, inverse"),
        ("exponential:start=0,decay=0.5", "a learning rate must be a finite number above 0, got 0"),
        (
            "exponential:start=1,decay=0",
            "decay must be a number above 0 and of at most 1, got 0.0",
        ),
        (
            "exponential:start=1,decay=1.5",
            "decay must be a number above 0 and of at most 1, got 1.5",
        ),
        (
            "exponential:start=1",
            "learning-rate schedule 'exponential' needs decay=…, as in exponential:start=…,decay=…",
        ),
        ("inverse:start=1,decay=-1", "decay must be a finite number of at least 0, got -1.0"),
        ("inverse:start=1,decay=inf", "decay must be a finite number of at least 0, got inf"),
    ],
)
def test_what_is_no_learning_rate(lr: Any, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        GD(lr)
    assert str(caught.value) == sentence


# ------------------------------------------------------------------------------------------- where a rate is given

PLACES = {
    "argument": {"optimizer": "adam", "lr": 0.25},
    "spec": {"optimizer": "adam:lr=0.25"},
    "spec of torch": {"optimizer": "torch:SGD,lr=0.25"},
    "inside clip": {"optimizer": "clip:of=(adam:beta1=0.8,lr=0.25),norm=1"},
    "around clip": {"optimizer": "clip:of=adam,norm=1,lr=0.25"},
    "without an optimiser": {"lr": 0.25},
    "object": {"lr": ConstantRate(0.25)},
}


def trained(**given: Any) -> anyk.Run:
    problem = anyk.problems.from_data("synthetic:rows=30,features=3")
    return anyk.train(problem, "uncoded", "simulated", **{"workers": 2, "steps": 2} | given)


@pytest.mark.parametrize("place", PLACES)
def test_a_rate_may_be_given_in_any_place(place: str) -> None:
    assert trained(**PLACES[place]).config.lr == "0.25"


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "adam:lr=0.1", "lr": 0.2},
        {"optimizer": "clip:of=(gd:lr=0.1),norm=1,lr=0.2"},
        {"optimizer": "clip:of=(gd:lr=0.1),norm=1", "lr": 0.2},
    ],
)
def test_two_rates_are_refused_with_both(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"given twice, as '.*lr=0\.1.*' and as lr=0\.2; keep one"):
        trained(**given)


def test_a_rate_beside_an_optimiser_object_is_refused() -> None:
    with pytest.raises(BadInput, match=r"the optimizer gd has its learning rate, 0\.1, and lr is given as well"):
        trained(optimizer=GD(0.1), lr=0.2)
    with pytest.raises(BadInput, match="given twice, as 0.3 and as 0.1"):
        anyk.optimizers.Clip(lr=0.3, of=GD(0.1))


@pytest.mark.parametrize("name", ["adam", "adamw", "torch:AdamW", "clip:of=adam,norm=1"])
def test_one_over_smoothness_is_for_descent_only(name: str) -> None:
    sentence = (
        rf"the optimizer '{re.escape(name)}' has no default learning rate .*lr=0\.001', lr=0\.001, or --lr 0\.001"
    )
    with pytest.raises(BadInput, match=sentence):
        trained(optimizer=name)
    assert trained(optimizer="clip:of=momentum,norm=1").config.lr == trained().config.lr


def test_another_word_for_the_rate_is_corrected() -> None:
    with pytest.raises(BadInput, match="is called lr, not learning_rate, as in adam:lr=0.1"):
        trained(optimizer="adam:learning-rate=0.1")


def test_a_run_goes_on_at_another_rate() -> None:
    first = trained(optimizer="adam:lr=0.1")
    further = trained(begin=first, lr=0.05, steps=4)
    assert (further.config.optimizer, further.config.lr) == (first.config.optimizer, "0.05")


def test_adam_has_no_rate_of_its_own() -> None:
    with pytest.raises(TypeError, match="lr"):
        anyk.optimizers.AdamW()  # type: ignore[call-arg]
    with pytest.raises(BadInput, match="needs a learning rate"):
        anyk.optimizers.Clip(of="adam")
