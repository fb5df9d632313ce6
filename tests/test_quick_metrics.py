"""What tests evaluate with has the bits of scikit-learn's metrics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_squared_error, roc_auc_score

import quick_metrics
from quick_metrics import area_under_curve, squared_error

pytestmark = pytest.mark.in_process

SCORES = st.sampled_from([-1.0, -0.5, -0.0, 0.0, 5e-324, 0.1, 1.0]) | st.floats(-1e3, 1e3)


def asked(*values: object) -> float:
    pytest.fail("it is computed at once")


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), SCORES), min_size=2, max_size=60))
def test_bits_are_those_of_scikit_learn(pairs: list[tuple[bool, float]]) -> None:
    y = np.array([1.0 if label else -1.0 for label, _ in pairs])
    scores = np.array([score for _, score in pairs])
    assert squared_error(asked, y, scores) == mean_squared_error(y, scores)
    if len(set(y)) == 2:
        assert area_under_curve(asked, y, scores) == roc_auc_score(y, scores)


@pytest.mark.parametrize(
    ("y", "scores"),
    [([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]), ([0.0, 1.0], [0.0, np.inf]), ([0.0, 1.0], [0.0, np.nan]), ([0, 1], [0, 1])],
)
def test_what_is_not_plain_is_left_to_scikit_learn(y: list[float], scores: list[float]) -> None:
    assert area_under_curve(lambda *values: 7.0, np.array(y), np.array(scores)) == 7.0


def test_anyk_evaluates_with_the_quick_ones() -> None:
    import sklearn.metrics

    assert (
        quick_metrics._own == [roc_auc_score, mean_squared_error] and sklearn.metrics.roc_auc_score is not roc_auc_score
    )
    assert sklearn.metrics.roc_auc_score([0, 1, 1], [1.0, 2.0, 0.5], sample_weight=[1, 2, 2]) == 0.5
