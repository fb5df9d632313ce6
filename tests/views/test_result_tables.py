"""Notes below a table of runs."""

from __future__ import annotations

import numpy as np
import pytest

import anyk
from anyk.views.result_tables import falls_fast


@pytest.mark.parametrize("offset", [0.0, 2_000.0, 101_325.0])
def test_a_fall_is_fast_whatever_the_targets_offset(offset: float) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 6)) @ random.normal(size=(6, 6))
    y = X @ random.normal(size=6) + random.normal(size=400) + offset

    def fast(steps: int) -> bool:
        problem = anyk.problems.LeastSquares(
            X[:300], y[:300], X_test=X[300:], y_test=y[300:], intercept=True, standardize=True
        )
        with anyk.train(problem, "uncoded", "simulated", workers=2, steps=steps) as run:
            assert run.loss is not None
            return falls_fast(run)

    assert not fast(160)
    assert fast(30) == (offset > 0.0)  # the fall of the last steps is small compared with the first loss, and matters
