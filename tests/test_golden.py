"""Every strategy decides, and every code decodes, as the golden file says; see golden.py."""

import pytest

import golden

SEEDS = [f" seed={seed}" for seed in golden.SEEDS]


@pytest.mark.parametrize(
    "part", ["code ", SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])]
)
def test_decisions_are_as_before(part):
    problems, count, _ = golden.compare(part)
    assert count > 70
    assert not problems, "\n".join(problems)
