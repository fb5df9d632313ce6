"""Fractional repetition, batched coupons and the uncoded sum: exact whenever they must be, and when not."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk import codes
from anyk.base.errors import BadInput
from anyk.codes import (
    BatchedCoupons,
    FractionalRepetition,
    Uncoded,
)
from code_oracles import dense, harmonic, least_squares, lost_chance, made, spans_ones, subsets

pytestmark = pytest.mark.in_process


def all_codes(n: int) -> list[FractionalRepetition | Uncoded]:
    """Every fractional repetition for n workers, by load and by stragglers, some with partitions of another number."""
    loads = [FractionalRepetition(n, load=c) for c in range(1, n + 1) if n % c == 0]
    stragglers = [FractionalRepetition(n, stragglers=s) for s in range(n)]
    other = [FractionalRepetition(n, stragglers=s, partitions=m) for s in (0, n // 2) for m in (1, n + 3)]
    other += [FractionalRepetition(n, load=2, partitions=2 * g) for g in range(1, n + 1)]
    return [Uncoded(n), *loads, *stragglers, *other]


def exact_sum(weights: np.ndarray, code: FractionalRepetition | Uncoded) -> list[Fraction]:
    """a B in rational arithmetic."""
    total = [Fraction(0)] * code.partitions
    for weight, (partitions, coefficients) in zip(weights, code.rows, strict=True):
        for j, coefficient in zip(partitions, coefficients, strict=True):
            total[j] += Fraction(float(weight)) * Fraction(coefficient)
    return total


# ------------------------------------------------------------------------------------------- golden rows


def test_the_matrix_of_six_workers_and_load_three() -> None:
    code = FractionalRepetition(6, load=3)
    assert dense(code).astype(int).tolist() == [[1, 1, 1, 0, 0, 0]] * 3 + [[0, 0, 0, 1, 1, 1]] * 3
    assert (code.load, code.tolerates, code.partitions, code.groups) == (3, 2, 6, 2)
    assert code.decode([2, 4]).weights.tolist() == [0, 0, 1, 0, 1, 0]
    assert code.decode([2, 4]).residual == 0.0
    assert code.decode([0, 1, 2]).residual ** 2 * 6 == pytest.approx(3.0, abs=1e-12)  # ||a B - 1||^2 = c


def test_the_lowest_numbered_reply_of_a_group_counts() -> None:
    code = FractionalRepetition(6, load=3)
    for order in permutations([1, 2, 3, 5]):
        decoder = code.decoder()
        for worker in order:
            decoder.add(worker)
        assert decoder.decode().weights.tolist() == [0, 1, 0, 1, 0, 0]
        assert decoder.select() == ([1, 3], [1.0, 1.0], 0.0, pytest.approx(6**0.5))


def test_the_uncoded_matrix_is_the_identity() -> None:
    code = Uncoded(5)
    assert np.array_equal(dense(code), np.eye(5))
    assert (code.load, code.tolerates, code.partitions) == (1, 0, 5)


def test_load_and_stragglers_are_two_names_where_one_divides() -> None:
    for n, s in ((6, 2), (12, 3), (30, 2), (30, 9)):
        by_load, by_stragglers = FractionalRepetition(n, load=s + 1), FractionalRepetition(n, stragglers=s)
        assert np.array_equal(dense(by_load), dense(by_stragglers))
        assert by_load.tolerates == by_stragglers.tolerates == s


# ------------------------------------------------------------------------------------------- every straggler set


@pytest.mark.slow
@pytest.mark.parametrize("n", range(1, 9))
def test_all_sets_of_replies_of_all_codes_up_to_eight_workers(n: int) -> None:
    """Exact without rounding up to the tolerance; decodable exactly when rational elimination says so; else nearest."""
    for code in all_codes(n):
        matrix = [tuple(row) for row in dense(code).astype(int).tolist()]
        worst = n  # the fewest stragglers that make the sum unrecoverable
        for replied in subsets(range(n)):
            possible = spans_ones(frozenset(matrix[i] for i in replied))
            decoder = code.decoder()
            for worker in reversed(replied):
                decoder.add(worker)
            assert decoder.decodable == possible, (code.spec, replied)
            decoding = code.decode(replied)
            if possible:
                assert exact_sum(decoding.weights, code) == [1] * code.partitions
                assert decoding.residual == 0.0 and decoding.exact
                assert decoding.gain == pytest.approx(code.partitions**0.5, rel=1e-12)
            else:
                worst = min(worst, n - len(replied))
                assert decoding.residual == pytest.approx(least_squares(code, replied)[1], abs=1e-12)
                assert not decoding.exact
            assert decoder.residual == pytest.approx(decoding.residual, abs=1e-15)
            assert not decoding.weights[np.setdiff1d(np.arange(n), replied)].any()
        assert code.tolerates == worst - 1, code.spec


@pytest.mark.parametrize("n", [12, 30, 100])
def test_sampled_sets_of_replies_of_larger_codes(n: int) -> None:
    random = np.random.default_rng(n)
    for s in sorted({0, 1, 2, n // 7, n // 3, n // 2 - 1, n - 2, n - 1}):
        code = made(f"frc:stragglers={s}", n)
        for _ in range(20):
            replied = random.choice(n, n - s, replace=False)
            weights, residual, gain = code.decode(replied)
            assert np.array_equal(weights @ dense(code), np.ones(n))
            assert residual == 0.0 and gain == pytest.approx(n**0.5)
        replied = random.choice(n, max(1, n // 8), replace=False)
        assert code.decode(replied).residual == pytest.approx(least_squares(code, replied)[1], abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.data())
def test_the_decoded_sum_is_the_sum_of_all_gradients(n: int, data: st.DataObject) -> None:
    """Whole-number gradients, so that equal means equal; scaling them scales the answer."""
    s = data.draw(st.integers(0, n - 1))
    code = FractionalRepetition(n, stragglers=s, partitions=data.draw(st.sampled_from([n, 1, n + 5, 2 * n])))
    stragglers = data.draw(st.sets(st.integers(0, n - 1), max_size=s))
    gradients = np.random.default_rng(n).integers(-1000, 1000, (code.partitions, 3))
    for scale in (1, -7, 2**40):
        replies = dense(code) @ (scale * gradients)
        weights = code.decode(set(range(n)) - stragglers).weights
        assert np.array_equal(weights @ replies, scale * gradients.sum(axis=0))


# ------------------------------------------------------------------------------------------- groups of any sizes


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.integers(1, 400), st.data())
def test_groups_for_any_workers_and_stragglers(n: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(0, n - 1))
    m = data.draw(st.none() | st.integers(1, 500))
    code = FractionalRepetition(n, stragglers=s, partitions=m)
    groups = min(n // (s + 1), code.partitions)
    assert code.groups == groups == len(code.members) == len(code.blocks_of)
    assert sorted(w for members in code.members for w in members) == list(range(n))
    assert sorted(j for block in code.blocks_of for j in block) == list(range(code.partitions))
    sizes, lengths = [len(members) for members in code.members], [len(block) for block in code.blocks_of]
    assert max(sizes) - min(sizes) <= 1 and max(lengths) - min(lengths) <= 1
    assert code.tolerates == min(sizes) - 1 >= s
    assert code.load == max(lengths) == -(-code.partitions // groups)
    for g, members in enumerate(code.members):
        for worker in members:
            assert code.assignment[worker] == code.blocks_of[g] and code.group_of[worker] == g


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 60), st.data())
def test_a_whole_group_of_stragglers_is_the_worst_case(n: int, data: st.DataObject) -> None:
    """f stragglers cost at most c floor(f / l) in ||a B - 1||^2 where all groups have l members and c partitions."""
    divisors = [c for c in range(1, n + 1) if n % c == 0]
    c = data.draw(st.sampled_from(divisors))
    code = FractionalRepetition(n, load=c)
    stragglers = data.draw(st.sets(st.integers(0, n - 1)))
    error = code.decode(set(range(n)) - stragglers).residual ** 2 * n
    assert error <= c * (len(stragglers) // c) + 1e-9
    members = set(code.members[data.draw(st.integers(0, code.groups - 1))])
    assert code.decode(set(range(n)) - members).residual ** 2 * n == pytest.approx(c)


# ------------------------------------------------------------------------------------------- by chance


def test_the_published_chances() -> None:
    """p = C(k-l, r) / C(k, r) at n = k = 30, c = 3; r = 15 and r = 11."""
    code = FractionalRepetition(30, load=3)
    for r, p in ((15, 0.112069), (11, 0.2386699507)):
        assert float(lost_chance(30, 3, r)) == pytest.approx(p, rel=1e-5)
        assert 1.0 - code.expected_coefficients(r) == pytest.approx([float(lost_chance(30, 3, r))] * 30, rel=1e-12)
    assert 10 * code.expected_coefficients(11)[0] == pytest.approx(7.6133004926, rel=1e-9)  # groups covered


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.integers(1, 50), st.data())
def test_expected_coefficients_in_rational_arithmetic(n: int, data: st.DataObject) -> None:
    code = FractionalRepetition(n, stragglers=data.draw(st.integers(0, n - 1)))
    r = data.draw(st.integers(1, n))
    for g, block in enumerate(code.blocks_of):
        expected = float(1 - lost_chance(n, len(code.members[g]), r))
        assert code.expected_coefficients(r)[list(block)] == pytest.approx([expected] * len(block), rel=1e-12)


@pytest.mark.parametrize("spec", ["frc:load=2", "frc:stragglers=2", "frc:stragglers=1,partitions=7", "uncoded"])
def test_expected_coefficients_are_the_mean_over_all_sets(spec: str) -> None:
    code = made(spec, 8)
    for r in range(1, 9):
        sums = [code.decode(replied).weights @ dense(code) for replied in subsets(range(8), r, r)]
        assert np.mean(sums, axis=0) == pytest.approx(code.expected_coefficients(r), rel=1e-12)


def test_the_default_load_is_at_most_3_and_divides() -> None:
    assert [codes.code("frc", workers=n).load for n in (1, 2, 3, 4, 5, 6, 7, 9, 10, 30)] == [
        1,
        2,
        3,
        2,
        1,
        3,
        1,
        3,
        2,
        3,
    ]


def test_without_load_a_code_exists_for_any_partitions() -> None:
    """Or is refused in a sentence: no number of partitions may end in another error."""
    for n in (1, 4, 6):
        for m in range(1, 25):
            try:
                code = FractionalRepetition(n, partitions=m)
            except BadInput:
                continue
            assert code.decode(range(n)).exact and code.partitions == m


def test_large_codes_stay_exact() -> None:
    for n in (1000, 10_000):
        code = FractionalRepetition(n, load=10)
        replied = [10 * g + g % 10 for g in range(n // 10)]  # one of each group
        weights, residual, gain = code.decode(replied)
        assert residual == 0.0 and gain == pytest.approx(n**0.5)
        assert np.flatnonzero(weights).tolist() == replied


def test_the_golden_number_of_replies_needed() -> None:
    assert BatchedCoupons(40, batches=10).expected_replies == pytest.approx(29.2896825)
    for b in (1, 2, 7):
        assert BatchedCoupons(40, batches=b).expected_replies == pytest.approx(float(b * harmonic(b)))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.integers(1, 60), st.integers(0, 10**6), st.data())
def test_picks_partition_the_workers_and_every_batch_is_covered(n: int, seed: int, data: st.DataObject) -> None:
    b = data.draw(st.integers(1, n))
    code = BatchedCoupons(n, batches=b, seed=seed)
    assert len(code.members) == b and all(code.members)
    assert sorted(i for members in code.members for i in members) == list(range(n))
    assert sorted(j for members in code.blocks_of for j in members) == list(range(n))
    assert code.load == -(-n // b) and code.tolerates == min(map(len, code.members)) - 1
    decoding = code.decode_exactly(members[-1] for members in code.members)
    assert decoding.residual == 0.0 and set(decoding.weights.tolist()) <= {0.0, 1.0}


@pytest.mark.slow
def test_the_mean_number_of_replies_needed_of_many_workers() -> None:
    """Picks are independent, so a fresh code for each round makes the order of arrival that of coupons."""
    for b in (4, 10):
        needed = []
        for seed in range(800):
            code = BatchedCoupons(400, batches=b, seed=seed)
            needed.append(float(code.finish_times(np.arange(1.0, 401.0))[0]))
        assert abs(np.mean(needed) - code.expected_replies) < 4 * np.std(needed) / 800**0.5


def test_picks_are_uniform_and_gaps_filled_as_counted() -> None:
    """P(some batch unassigned) is 0.1419 for n = 40, b = 10: then a group of one is made from the largest."""
    counts = np.zeros(10)
    for seed in range(400):
        counts += [len(members) for members in BatchedCoupons(40, batches=10, seed=seed).members]
    assert (np.abs(counts - 1600) < 5 * (16_000 * 0.09) ** 0.5).all()


def test_every_set_of_replies_of_a_small_coupon_code() -> None:
    for seed in range(5):
        code = BatchedCoupons(8, batches=3, seed=seed)
        matrix = [tuple(row) for row in dense(code).astype(int).tolist()]
        worst = np.zeros(9)
        for replied in subsets(range(8)):
            decoding = code.decode(replied)
            assert decoding.exact == spans_ones(frozenset(matrix[i] for i in replied))
            assert decoding.residual == pytest.approx(least_squares(code, replied)[1], abs=1e-9)
            worst[8 - len(replied)] = max(worst[8 - len(replied)], 8 * decoding.residual**2)
        for f in range(9):
            assert code.worst_error(f) == (pytest.approx(worst[f], abs=1e-9), True)


def test_missed_batches_cost_at_most_three_quarters_of_workers() -> None:
    for n in (1, 2, 10, 40, 100):
        b = BatchedCoupons(n).groups
        assert b == 1 or b * harmonic(b) <= 0.75 * n
        assert (b + 1) * harmonic(b + 1) > 0.75 * n
    for batches in (0, 9, -1):
        with pytest.raises(BadInput, match=f"batches of 'bcc' must be 1 to 8 workers, got {batches}"):
            BatchedCoupons(8, batches=batches)
