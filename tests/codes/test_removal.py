"""Least squares without some replies, from one decomposition, against a solve of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.codes.decoders import Removal
from anyk.fleet import facts

pytestmark = pytest.mark.in_process

MATRICES = {
    "square": lambda random: random.standard_normal((12, 12)),
    "wide": lambda random: random.standard_normal((9, 15)),
    "tall": lambda random: random.standard_normal((15, 9)),
    "sparse": lambda random: (random.random((14, 12)) < 0.2).astype(float),
    "repeated": lambda random: np.repeat((random.random((5, 12)) < 0.4).astype(float), 3, axis=0),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_weights_and_residuals_are_those_of_a_solve(kind: str) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        matrix = MATRICES[kind](random)
        n, m = matrix.shape
        removal = Removal(matrix)
        lost = np.sort(random.choice(n, int(random.integers(0, n - 2)), replace=False))
        here = np.setdiff1d(np.arange(n), lost)
        weights = removal.weights(lost)
        assert weights is not None and not weights[lost].any()
        assert np.allclose(weights[here], np.linalg.lstsq(matrix[here].T, np.ones(m), rcond=1e-9)[0], atol=1e-8)
        for one, found in zip(here, removal.residuals(lost, here), strict=True):
            left = np.setdiff1d(here, [one])
            best = np.linalg.lstsq(matrix[left].T, np.ones(m), rcond=1e-9)[0] @ matrix[left]
            assert found == pytest.approx(np.linalg.norm(best - 1.0) / m**0.5, abs=1e-7)


def test_facts_of_large_codes_need_no_iterative_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 workers that was a minute."""

    def never(*_: Any) -> Any:
        raise AssertionError("an iterative solve")

    monkeypatch.setattr("anyk.codes.decoders.least_squares", never)
    found = facts(anyk.code("expander", workers=300))
    assert round(found.expected, 5) == 0.04721 and found.worst > 0.16  # as iterative solves found


def test_the_table_of_codes_tells_how_far_it_is() -> None:
    done = CliRunner().invoke(main, ["list", "codes", "--workers", "4", "--json", "-"])
    assert done.exit_code == 0
    assert done.stdout.startswith("[") and "looking at codes for 4 workers" in done.stderr
