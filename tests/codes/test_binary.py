"""The binary code: golden rows, classes that each hold the data once, every straggler set, and what lies beyond."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput, NotDecodable
from anyk.codes import BinaryCode, FractionalRepetition
from code_oracles import dense, least_squares, made, spans_ones, subsets

pytestmark = pytest.mark.in_process


def test_the_rows_of_seven_workers_and_two_stragglers() -> None:
    code = BinaryCode(7, stragglers=2)
    assert code.assignment == ((0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3), (3, 4), (4, 5, 6), (4, 5, 6), (5, 6))
    assert (code.load, code.tolerates, code.partitions, code.classes) == (4, 2, 7, 3)


def test_two_stragglers_of_seven_leave_binary_weights() -> None:
    code = BinaryCode(7, stragglers=2)
    for lost in combinations(range(7), 2):
        decoding = code.decode_exactly(sorted(set(range(7)) - set(lost)))
        assert set(decoding.weights.tolist()) == {0.0, 1.0}
        assert not decoding.weights[list(lost)].any()
        assert (decoding.weights @ dense(code)).tolist() == [1.0] * 7
        assert decoding.residual == 0.0
        assert decoding.gain == pytest.approx(7**0.5)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.integers(1, 200), st.data())
def test_every_class_holds_every_partition_once_in_even_blocks(n: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(0, n - 1))
    code = BinaryCode(n, stragglers=s)
    assert code.classes == s + 1
    assert set(code.encoding.data.tolist()) == {1.0}
    for c in range(s + 1):
        members = list(range(c, n, s + 1))
        assert np.asarray(code.encoding[members].sum(axis=0)).ravel().tolist() == [1.0] * n
        sizes = [len(code.assignment[i]) for i in members]
        assert max(sizes) - min(sizes) <= 1
        assert [j for i in members for j in code.assignment[i]] == list(range(n))  # contiguous, in order of workers
    assert code.load == -(-n // (n // (s + 1)))


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(st.integers(1, 60), st.data())
def test_the_sum_of_whole_numbers_is_the_sum_to_the_last_bit(n: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(0, n - 1))
    code = BinaryCode(n, stragglers=s)
    lost = data.draw(st.sets(st.integers(0, n - 1), max_size=s))
    gradients = np.random.default_rng(n).integers(-1000, 1000, (n, 3))
    weights = code.decode_exactly(set(range(n)) - lost).weights
    assert set(weights.tolist()) <= {0.0, 1.0}
    assert np.array_equal(weights @ (code.encoding @ gradients), gradients.sum(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "s"), [(n, s) for n in range(1, 9) for s in range(n)])
def test_all_sets_of_replies_up_to_eight_workers(n: int, s: int) -> None:
    """Exact for s stragglers; beyond, exactly where rational elimination says that it is possible; else nearest."""
    code = made(f"binary:stragglers={s}", n)
    matrix = [tuple(row) for row in dense(code).astype(int).tolist()]
    for replied in subsets(range(n)):
        possible = spans_ones(frozenset(matrix[i] for i in replied))
        assert possible or n - len(replied) > s
        decoding = code.decode(replied)
        assert decoding.exact == possible
        assert decoding.residual == pytest.approx(least_squares(code, replied)[1], abs=1e-9)
        for order in (replied, replied[::-1]):
            decoder = code.decoder()
            for worker in order:
                decoder.add(worker)
            assert decoder.decodable == possible
            assert decoder.residual == pytest.approx(decoding.residual, abs=1e-9)
            assert decoder.decode().weights == pytest.approx(decoding.weights, abs=1e-9)
        if not possible:
            with pytest.raises(NotDecodable, match=rf"{len(replied)} of {n} replies .*'binary:stragglers={s}'"):
                code.decode_exactly(replied)


@pytest.mark.parametrize(("n", "s"), [(4, 1), (6, 1), (6, 2), (8, 3), (12, 3), (9, 0), (7, 6), (30, 9)])
def test_where_it_divides_it_is_fractional_repetition(n: int, s: int) -> None:
    binary, frc = BinaryCode(n, stragglers=s), FractionalRepetition(n, stragglers=s)
    assert sorted(binary.rows) == sorted(frc.rows)
    random = np.random.default_rng(n)
    for r in range(n + 1):
        for _ in range(5):
            replied = random.choice(n, r, replace=False)
            one, other = binary.decode(replied), frc.decode(replied)
            assert one.weights.tolist() == other.weights.tolist()
            assert one.residual == other.residual


def test_beyond_the_tolerance_least_squares_find_most() -> None:
    """n = 30, s = 7, 14 stragglers: a class is complete in about 56 % of the sets, the sum recoverable in over 98 %."""
    code, random = BinaryCode(30, stragglers=7), np.random.default_rng(5)
    complete = recovered = 0
    for _ in range(400):
        replied = random.choice(30, 16, replace=False)
        workers = set(replied.tolist())
        complete += any(workers.issuperset(range(c, 30, 8)) for c in range(8))
        recovered += code.decode(replied).exact
    assert abs(complete / 400 - 0.56) < 4 * (0.56 * 0.44 / 400) ** 0.5
    assert recovered / 400 > 0.98


@pytest.mark.parametrize(("n", "s"), [(7, 2), (8, 2), (11, 3), (12, 3)])
def test_finish_times_are_those_of_rational_elimination(n: int, s: int) -> None:
    code = made(f"binary:stragglers={s}", n)
    matrix = [tuple(row) for row in dense(code).astype(int).tolist()]
    arrivals = np.random.default_rng(n).exponential(size=(20, n))
    for times, finish_time in zip(arrivals, code.finish_times(arrivals), strict=True):
        order = np.argsort(times)
        first = next(r for r in range(1, n + 1) if spans_ones(frozenset(matrix[i] for i in order[:r])))
        assert finish_time == times[order[first - 1]]


def test_large_codes_stay_exact() -> None:
    code, random = BinaryCode(2_001, stragglers=30), np.random.default_rng(0)
    for _ in range(5):
        decoding = code.decode_exactly(random.choice(2_001, 1_971, replace=False))
        assert decoding.residual == 0.0 and decoding.gain == pytest.approx(2_001**0.5)


@pytest.mark.parametrize("stragglers", [-1, 7, 20])
def test_stragglers_out_of_range(stragglers: int) -> None:
    with pytest.raises(BadInput, match=rf"at least 0 and below workers \(7\), got {stragglers}; .*wait="):
        BinaryCode(7, stragglers=stragglers)


def test_default_stragglers_are_a_tenth_and_in_the_spec() -> None:
    assert [BinaryCode(n).tolerates for n in (1, 2, 9, 10, 20, 100)] == [0, 1, 1, 1, 2, 10]
    assert anyk.code(BinaryCode(23).spec, workers=23) == BinaryCode(23, stragglers=2)
