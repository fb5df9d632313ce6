"""The heterogeneous code: right on average, of least variance, and placed within budgets."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import anyk
from anyk.base.errors import BadInput
from anyk.codes import (
    HeterogeneousCode,
)
from code_oracles import dense

pytestmark = pytest.mark.in_process


@st.composite
def fleets(draw: st.DrawFn) -> HeterogeneousCode:
    n, m = draw(st.integers(1, 12)), draw(st.integers(1, 15))
    p = draw(st.lists(st.sampled_from([1e-4, 0.05, 0.1, 0.3, 0.5, 0.9, 1.0]), min_size=n, max_size=n))
    load = draw(st.lists(st.integers(0, m), min_size=n, max_size=n))
    assume(sum(b for b, q in zip(load, p, strict=True) if q < 1) >= m)
    return HeterogeneousCode(n, probability=tuple(p), load=tuple(load), partitions=m)


def drawn_error(code: HeterogeneousCode, B: np.ndarray, random: np.random.Generator) -> float:
    came = np.flatnonzero(random.random(code.workers) >= np.array(code.probabilities))
    return float(((code.decode(came).weights @ B - 1.0) ** 2).sum())


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(fleets())
def test_right_on_average_with_the_error_it_says(code: HeterogeneousCode) -> None:
    p, B = np.array(code.probabilities), dense(code)
    assert (1 - p) @ B == pytest.approx(np.ones(code.partitions), abs=1e-12)
    variance = float((p * (1 - p)) @ (B**2).sum(axis=1))
    assert code.expected_error() == pytest.approx(variance, rel=1e-9, abs=1e-12)
    assert code.unbiased and code.approximate


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(fleets())
def test_placement_keeps_budgets_and_spares_the_dead(code: HeterogeneousCode) -> None:
    assert len(code.allocation) == code.partitions
    for partitions in code.allocation:
        assert partitions and len(set(partitions)) == len(partitions)
        assert all(code.probabilities[i] < 1 for i in partitions)
    counts = np.bincount([i for partitions in code.allocation for i in partitions], minlength=code.workers)
    assert (counts <= code.budgets).all()
    useful = [b if p < 1 else 0 for b, p in zip(code.budgets, code.probabilities, strict=True)]
    assert counts.tolist() == useful  # no budget is left
    for i, held_partitions in enumerate(code.assignment):
        assert held_partitions == tuple(j for j, partitions in enumerate(code.allocation) if i in partitions)
        assert held_partitions or not useful[i]
    assert code.expected_error() >= code.least_error * (1 - 1e-9)


@settings(deadline=None, max_examples=50)
@given(fleets())
def test_the_load_is_the_most_partitions_of_any_worker(code: HeterogeneousCode) -> None:
    assert code.load == max(map(len, code.assignment))
    rebuilt = anyk.code(code.spec, workers=code.workers)
    assert rebuilt == code and rebuilt.budgets == code.budgets
    assert (code.load, code.budgets) == ((relearned := code.relearned([1] * code.workers, 2)).load, relearned.budgets)


def test_different_budgets_make_different_codes() -> None:
    uneven, even = (HeterogeneousCode(4, probability=0.2, load=load) for load in ((1, 1, 2, 3), 3))
    assert uneven != even and (uneven.load, even.load) == (3, 3)
    assert (uneven.spec, even.spec) == ("hetero:probability=0.2,load=1/1/2/3", "hetero:probability=0.2,load=3")
    anyk.testing.check_code(uneven)


def test_over_all_straggler_sets_mean_and_error_are_the_formula() -> None:
    code = HeterogeneousCode(7, probability=(0.1, 0.2, 0.3, 0.05, 0.5, 0.9, 1.0), load=4, partitions=6)
    p, B = np.array(code.probabilities), dense(code)
    mean, error = np.zeros(6), 0.0
    for came in product((0, 1), repeat=7):
        replies = np.array(came)
        chance = float(np.where(replies, 1 - p, p).prod())
        coefficients = code.decode(np.flatnonzero(replies)).weights @ B
        mean += chance * coefficients
        error += chance * ((coefficients - 1) ** 2).sum()
    assert mean == pytest.approx(np.ones(6), abs=1e-12)
    assert error == pytest.approx(code.expected_error(), rel=1e-12)


def test_the_expected_error_by_drawing_stragglers() -> None:
    random = np.random.default_rng(11)
    p = tuple(random.uniform(0.05, 0.6, size=12).tolist())
    code = HeterogeneousCode(12, probability=p, load=6, partitions=30)
    B = dense(code)
    errors = [drawn_error(code, B, random) for _ in range(3_000)]
    assert abs(np.mean(errors) - (code.expected_error() or 0)) < 4 * np.std(errors) / 3_000**0.5


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.floats(0.01, 0.95), st.data())
def test_equal_workers_have_the_error_of_a_plain_mean(n: int, p: float, data: st.DataObject) -> None:
    d = data.draw(st.integers(1, n))
    code = HeterogeneousCode(n, probability=p, load=d)
    assert code.expected_error() == pytest.approx(n * p / (d * (1 - p)), rel=1e-9)
    assert code.least_error == pytest.approx(n * p / (d * (1 - p)), rel=1e-9)
    assert {len(partitions) for partitions in code.allocation} == {d}
    assert dense(code)[dense(code) > 0] == pytest.approx(np.full(n * d, 1 / (d * (1 - p))))


@pytest.mark.parametrize("seed", range(3))
def test_no_other_unbiased_weights_have_less_variance(seed: int) -> None:
    random = np.random.default_rng(seed)
    p = random.uniform(0.1, 0.7, size=5)
    code = HeterogeneousCode(5, probability=tuple(p.tolist()), load=2, partitions=4)
    support, B = dense(code) > 0, dense(code)

    def weights(x: np.ndarray) -> np.ndarray:
        W = np.zeros((5, 4))
        W[support] = x
        return W

    optimum = minimize(
        lambda x: float((p * (1 - p)) @ (weights(x) ** 2).sum(axis=1)),
        random.uniform(0.2, 1.0, size=int(support.sum())),
        constraints={"type": "eq", "fun": lambda x: (1 - p) @ weights(x) - 1.0},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert optimum.success
    assert code.expected_error() == pytest.approx(optimum.fun, rel=1e-6)
    assert np.abs(B - weights(optimum.x)).max() < 1e-4


@settings(deadline=None, max_examples=60)
@given(st.integers(8, 24), st.integers(0, 10_000), st.data())
def test_within_a_quarter_of_the_least_error_for_mild_spread(n: int, seed: int, data: st.DataObject) -> None:
    p = np.random.default_rng(seed).uniform(0.1, 0.3, size=n)
    d = data.draw(st.integers(4, 6))
    code = HeterogeneousCode(n, probability=tuple(p.tolist()), load=d)
    assert code.least_error <= (code.expected_error() or 0) <= 1.25 * code.least_error


def test_the_placement_is_better_than_a_random_one() -> None:
    random = np.random.default_rng(2)
    p = random.uniform(0.05, 0.6, size=12)
    code = HeterogeneousCode(12, probability=tuple(p.tolist()), load=6, partitions=24)
    odds, drawn = (1 - p) / p, []
    for _ in range(100):
        total = np.zeros(24)
        for o in odds:
            total[random.choice(24, 6, replace=False)] += o
        drawn.append((1 / total[total > 0]).sum() + 10 * (total == 0).sum())
    assert (code.expected_error() or 0) < min(drawn)


def test_the_golden_error_of_equal_workers() -> None:
    assert HeterogeneousCode(12, probability=0.2, load=3).expected_error() == pytest.approx(1.0, rel=1e-12)


def test_a_worker_that_never_fails_is_nearly_all_that_counts() -> None:
    code = HeterogeneousCode(3, probability=(0.0, 0.4, 0.4), load=3)
    assert dense(code)[0] == pytest.approx(np.ones(3), abs=1e-5)
    assert np.abs(dense(code)[1:]).max() < 1e-5
    assert code.expected_error() == pytest.approx(0.0, abs=1e-5)


def test_decoding_adds_up_and_least_squares_can_do_better() -> None:
    code = HeterogeneousCode(10, probability=0.3, load=3)
    random, B = np.random.default_rng(0), dense(code)
    for _ in range(20):
        replied = np.flatnonzero(random.random(10) > 0.3)
        own_decoding, best = code.decode(replied), code.decode(replied, decoder="least-squares")
        assert own_decoding.weights[replied].tolist() == [1.0] * len(replied) and own_decoding.weights.sum() == len(
            replied
        )
        assert own_decoding.residual == pytest.approx(np.linalg.norm(B[replied].sum(axis=0) - 1) / 10**0.5)
        assert best.residual <= own_decoding.residual + 1e-9


# ------------------------------------------------------------------------------------------- learning


def test_relearned_probabilities_have_a_uniform_prior() -> None:
    code = HeterogeneousCode(6, probability=(0.1, 0.2, 0.3, 0.4, 0.5, 0.2), load=3)
    missed, steps = (0, 5, 20, 3, 10, 7), 20
    new = code.relearned(missed, steps)
    assert new.learned == tuple((1 + count) / (2 + steps) for count in missed)
    assert new.learned == pytest.approx([1 / 22, 6 / 22, 21 / 22, 4 / 22, 11 / 22, 8 / 22])
    assert (
        new.assignment == code.assignment and new.allocation == code.allocation and new.probability == code.probability
    )
    assert (1 - np.array(new.learned)) @ dense(new) == pytest.approx(np.ones(6), abs=1e-12)
    assert new.rows != code.rows
    assert new.relearned(missed, steps).learned == new.learned and new.relearned((0,) * 6, 0).learned == (0.5,) * 6


def test_relearning_forgets_the_past_and_lowers_the_error() -> None:
    truth, steps = np.array([0.05, 0.5, 0.1, 0.6, 0.2, 0.05]), 400
    missed = np.random.default_rng(1).binomial(steps, truth)
    guessed = HeterogeneousCode(6, probability=0.2, load=3)
    learned = guessed.relearned((9,) * 6, 10).relearned(missed.tolist(), steps)

    def mean_square(code: HeterogeneousCode) -> float:
        B = dense(code)
        bias = (1 - truth) @ B - 1
        return float((truth * (1 - truth)) @ (B**2).sum(axis=1) + bias @ bias)

    assert mean_square(learned) < mean_square(guessed) / 2


# ------------------------------------------------------------------------------------------- complaints


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("hetero:probability=1.5", "probability of 'hetero' must be 0 to 1, got 1.5"),
        ("hetero:probability=-0.1", "probability of 'hetero' must be 0 to 1, got -0.1"),
        ("hetero:probability=0.1/0.2", "probability of 'hetero' should be one number or 4, one for each worker; got 2"),
        ("hetero:load=1/2/3/4/4", "load of 'hetero' should be one number or 4, one for each worker; got 5"),
        ("hetero:load=5", "load of 'hetero' must be 0 to 4 partitions, got 5"),
        ("hetero:load=-1", "load of 'hetero' must be 0 to 4 partitions, got -1"),
        ("hetero:partitions=0", "partitions must be a whole number of at least 1, got 0"),
        ("hetero:relearn=-1", "relearn must be a whole number of at least 0, got -1"),
        ("hetero:load=1,partitions=5", "hetero: 5 partitions do not fit on workers that may hold 4 in all"),
        ("hetero:probability=1,load=4", "hetero: 4 partitions do not fit on workers that may hold 0 in all"),
        ("hetero:probability=1/0/1/1,load=3", "hetero: 4 partitions do not fit on workers that may hold 3 in all (those that "
         "never reply left out); allow more load or use fewer partitions"),
    ],
)  # fmt: skip
def test_heterogeneous_codes_that_do_not_exist(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        anyk.code(spec, workers=4)
    assert sentence in str(caught.value)


def test_the_spec_builds_the_same() -> None:
    for spec in ("hetero", "hetero:probability=0.1/0.2/0.3/1,load=4/3/2/1", "hetero:load=3,partitions=7,relearn=0"):
        code = anyk.code(spec, workers=4)
        rebuilt = anyk.code(code.spec, workers=4)
        assert rebuilt == code and rebuilt.rows == code.rows


def test_workers_that_never_straggle_give_the_exact_sum() -> None:
    assert HeterogeneousCode(6, probability=0.0).decode(range(6)).exact


def test_what_was_learned_is_part_of_what_a_code_is() -> None:
    code = HeterogeneousCode(3, load=2)
    assert code.relearned((5, 0, 0), 10) != code
    assert code.relearned((5, 0, 0), 10) == code.relearned((5, 0, 0), 10)
