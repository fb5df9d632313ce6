"""Schedules: their formulas, the ways to write one, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.errors import BadInput
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
    made = GD("exponential:start=1,decay=0.5")
    for t, scale in ((0, 1.0), (2, 1.0), (2, 4.0)):
        assert made.step(np.zeros(1), np.ones(1), {}, t, scale)[0] == -(0.5**t) * scale


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
