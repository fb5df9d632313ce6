"""Bernoulli codes and the stochastic block code: published errors, loads, and draws that only the seed decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk import codes
from anyk.base.errors import BadInput
from anyk.codes import (
    BernoulliCode,
    Code,
    RegularisedBernoulliCode,
    StochasticBlockCode,
)
from code_oracles import dense, least_squares, made

pytestmark = pytest.mark.in_process


def held_by_someone(code: Code) -> bool:
    return {j for partitions in code.assignment for j in partitions} == set(range(code.partitions))


def one_step_error(B: np.ndarray, replied: np.ndarray, rho: float) -> float:
    return float(((rho * B[replied].sum(axis=0) - 1.0) ** 2).sum())


def close(found: list[float], expected: float) -> bool:
    """Within four standard errors."""
    return abs(np.mean(found) - expected) < 4 * np.std(found, ddof=1) / len(found) ** 0.5


def test_golden_errors_of_one_step_decoding() -> None:
    assert BernoulliCode(100, expected_load=10).drawn_error(70) == pytest.approx(12.857142857, rel=1e-9)
    assert StochasticBlockCode(100, block=10, inside=0.8, outside=0.02).drawn_error(70) == pytest.approx(
        7.472, abs=5e-4
    )
    frc = StochasticBlockCode(100, block=10, inside=1.0, outside=0.0)
    assert frc.drawn_error(70) == pytest.approx(3.896, abs=5e-4)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.integers(2, 60), st.data())
def test_sbc_has_bernoulli_and_repetition_as_special_cases(n: int, data: st.DataObject) -> None:
    r, b = data.draw(st.integers(1, n)), data.draw(st.sampled_from([c for c in range(1, n + 1) if n % c == 0]))
    d = data.draw(st.integers(1, n))
    same = StochasticBlockCode(n, block=b, inside=d / n, outside=d / n)
    assert same.drawn_error(r) == pytest.approx(BernoulliCode(n, expected_load=d).drawn_error(r), rel=1e-9, abs=1e-9)
    frc = StochasticBlockCode(n, block=b, inside=1.0, outside=0.0)
    assert frc.drawn_error(r) == pytest.approx(n * (n - b) * (n - r) / (r * b * (n - 1)), rel=1e-9, abs=1e-9)
    repetition_error = anyk.codes.FractionalRepetition(n, load=b).expected_error(r, decoder="one-step")
    assert repetition_error == pytest.approx(frc.drawn_error(r), rel=1e-9, abs=1e-9)
    blocks = StochasticBlockCode(n, block=b, inside=1.0, outside=0.0)
    assert set(blocks.encoding.sum(axis=0).tolist()) == set(blocks.encoding.sum(axis=1).tolist()) == {b}
    assert len(set(blocks.assignment)) == n // b


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["bgc:load=10", "sbc:block=10,inside=0.8,outside=0.02", "sbc:block=10,inside=1,outside=0"]
)
def test_the_mean_error_over_draws_is_the_formula(spec: str) -> None:
    random = np.random.default_rng(3)
    errors, formula = [], 0.0
    for seed in range(300):
        code = anyk.code(f"{spec},seed={seed}", workers=100)
        formula = code.drawn_error(70)  # type: ignore[attr-defined]
        rho = 100 / (70 * float(code.expected_load))  # type: ignore[attr-defined]
        errors.append(one_step_error(dense(code), random.choice(100, 70, replace=False), rho))
    assert close(errors, formula), (np.mean(errors), formula)


@pytest.mark.slow
def test_the_mean_load_over_draws_is_the_expected_one() -> None:
    for spec in ("bgc:load=6", "sbc:block=6,inside=0.5,outside=0.05"):
        codes = [anyk.code(f"{spec},seed={seed}", workers=60) for seed in range(100)]
        patched = 60 * (1 - 6 / 60) ** 60
        loads = [code.encoding.nnz / 60 for code in codes]
        expected = float(codes[0].expected_load)  # type: ignore[attr-defined]
        assert abs(np.mean(loads) - expected) < 4 * np.std(loads) / 10 + patched / 60 + 0.03


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.integers(1, 50), st.integers(0, 10**6), st.data())
def test_every_partition_is_held_and_entries_are_zero_and_one(n: int, seed: int, data: st.DataObject) -> None:
    d = data.draw(st.integers(1, n))
    block, inside = data.draw(st.integers(1, n)), data.draw(st.floats(0.05, 1.0))
    drawn: list[Code] = [BernoulliCode(n, expected_load=d, seed=seed)]
    drawn.append(RegularisedBernoulliCode(n, expected_load=d, seed=seed))
    drawn.append(StochasticBlockCode(n, block=block, inside=inside, outside=inside / 4, seed=seed))
    for code in drawn:
        assert held_by_someone(code)
        assert set(code.encoding.toarray().ravel().tolist()) <= {0.0, 1.0}
        assert code.encoding.has_canonical_format
        assert (code.partitions, code.approximate, code.tolerates) == (n, True, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d"), [(100, 3), (100, 4), (60, 2), (40, 10), (20, 20)])
def test_nobody_holds_more_than_twice_the_expected_load(n: int, d: int) -> None:
    above = 0
    for seed in range(60):
        code = RegularisedBernoulliCode(n, expected_load=d, seed=seed)
        assert code.load <= 2 * d and held_by_someone(code)
        above += BernoulliCode(n, expected_load=d, seed=seed).load > 2 * d
    assert above > 30 or d >= 10  # the plain code does exceed it


def test_without_crowded_rows_the_regularised_code_thins_nothing() -> None:
    """Half of all entries: twice the expected load is everything."""
    for seed in range(20):
        code = RegularisedBernoulliCode(12, expected_load=6, seed=seed)
        assert code.load <= 12 and held_by_someone(code)
        assert abs(code.encoding.nnz - 72) < 4 * (144 / 4) ** 0.5


@pytest.mark.parametrize(
    "spec", ["bgc:load=4", "rbgc:load=4", "sbc:load=4", "biregular:load=4", "expander:load=4", "graph:load=4"]
)
def test_the_seed_alone_decides_the_draw(spec: str) -> None:
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    rows = [anyk.code(f"{spec},seed={seed}", workers=30).rows for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    code = anyk.code(f"{spec},seed=5", workers=30)
    assert anyk.code(code.spec, workers=30).rows == code.rows


def test_least_squares_beats_one_step_on_every_set() -> None:
    random = np.random.default_rng(0)
    for spec in ("bgc:load=5", "rbgc:load=5", "sbc:load=5", "biregular:load=5", "expander:load=6", "graph:load=4"):
        code = made(spec, 30)
        for r in (1, 5, 15, 25, 30):
            replied = random.choice(30, r, replace=False)
            best, one = code.decode(replied).residual, code.decode(replied, decoder="one-step").residual
            assert best == pytest.approx(least_squares(code, replied.tolist())[1], abs=1e-7)
            assert best <= one + 1e-9


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("bgc:load=0", "load of 'bgc' must be 1 to 12 partitions, got 0"),
        ("bgc:load=13", "load of 'bgc' must be 1 to 12 partitions, got 13"),
        ("sbc:load=0", "sbc:load=0 does not exist for 12 partitions; load must be above 0 and at most 12"),
        ("sbc:load=3,outside=0.1", "sbc takes load=… or outside=…, not both; one follows from the other"),
        ("sbc:block=13", "block of 'sbc' must be 1 to 12 workers, got 13"),
        ("sbc:inside=0", "inside must be a number above 0 and of at most 1, got 0"),
        ("sbc:inside=0.3,outside=0.5", "sbc:outside=0.5 must be between 0 and inside (0.3)"),
        ("biregular:load=0", "load of 'biregular' must be 1 to 12 partitions, got 0"),
        ("biregular:partitions=0", "partitions must be a whole number of at least 1, got 0"),
        ("expander:load=12", "expander:load=12 does not exist for 12 workers: load must be 3 to 11"),
    ],
)
def test_random_codes_that_do_not_exist(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        anyk.code(spec, workers=12)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("seed", range(60))
def test_a_regularised_code_never_holds_more_than_twice_the_load(seed: int) -> None:
    for n, load in ((3, 1), (50, 1), (20, 2)):
        code = RegularisedBernoulliCode(n, expected_load=load, seed=seed)
        assert code.load <= 2 * load and {j for partitions in code.assignment for j in partitions} == set(range(n))


def test_the_load_of_uneven_communities() -> None:
    code = StochasticBlockCode(10, block=6, inside=1.0, outside=0.0)
    assert code.encoding.nnz / 10 == pytest.approx(code.expected_load)
    errors = [10 * code.decode(range(10), decoder="one-step").residual ** 2]
    assert code.drawn_error(10) == pytest.approx(np.mean(errors))


def test_a_community_that_holds_more_than_the_load_is_refused() -> None:
    with pytest.raises(BadInput, match="sbc:load=2,block=3 does not exist: with inside=0.8 a worker holds 2.4"):
        codes.code("sbc:load=2,block=3", workers=6)
