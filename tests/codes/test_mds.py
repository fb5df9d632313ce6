"""Cyclic MDS: golden polynomials, its null space, every straggler set when small, and honesty where doubles give out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput, NotDecodable
from anyk.codes import (
    CyclicMDS,
)
from code_oracles import dense, least_squares, made, subsets

pytestmark = [pytest.mark.in_process, pytest.mark.slow]

SMALL = [(n, s) for n in range(1, 9) for s in range(n)]


def mds(n: int, s: int) -> CyclicMDS:
    code = made(f"mds:stragglers={s}", n)
    assert isinstance(code, CyclicMDS)
    return code


# ------------------------------------------------------------------------------------------- the polynomial


@pytest.mark.parametrize(
    ("n", "s", "row"),
    [
        (5, 2, [1, 1.6180340, 1, 0, 0]),
        (7, 4, [1, 2.2469796, 2.8019377, 2.2469796, 1, 0, 0]),
        (6, 1, [1, 1, 0, 0, 0, 0]),
        (4, 0, [1, 0, 0, 0]),
        (5, 4, [1, 1, 1, 1, 1]),
    ],
)
def test_golden_first_rows_and_all_their_shifts(n: int, s: int, row: list[float]) -> None:
    B = dense(mds(n, s))
    for shift in range(n):
        assert B[shift] == pytest.approx(np.roll(row, shift), abs=5e-8)


def test_the_negacyclic_code_of_three_workers_is_golden() -> None:
    B = dense(mds(3, 1))
    for row, golden in zip(B, np.array([[2, 1, 0], [0, 1, 2], [-2, 0, 2]]), strict=True):
        scale = row[golden != 0] / golden[golden != 0]
        assert np.ptp(scale) < 1e-12 * abs(scale[0]) and abs(scale[0]) > 0.1
        assert not row[golden == 0].any()


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 60), st.data())
def test_coefficients_are_palindromes_with_neighbouring_roots(n: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(1, min(n - 1, 12)))
    code = CyclicMDS(n, stragglers=s)
    g = code.polynomial
    assert g.shape == (s + 1,) and (g > 0).all()
    assert g == pytest.approx(g[::-1], rel=1e-9)
    assert g[0] == pytest.approx(1.0, rel=1e-9)
    assert code.negacyclic == ((n - s) % 2 == 0)
    roots = np.exp(1j * code.angles)
    assert roots**n == pytest.approx(np.full(s, -1.0 if code.negacyclic else 1.0), abs=1e-9)
    assert np.abs(np.polyval(g, roots)).max() < 1e-9 * g.sum()
    assert np.diff(code.angles) == pytest.approx(np.full(s - 1, 2 * np.pi / n), rel=1e-9)  # BCH: neighbours
    assert code.angles.sum() == pytest.approx(np.pi * s)  # symmetric about -1


@pytest.mark.parametrize(("n", "s"), [*SMALL, (12, 3), (30, 7), (31, 8)])
def test_rows_hold_neighbours_and_rank_is_n_less_s(n: int, s: int) -> None:
    code = mds(n, s)
    B = dense(code)
    for i, row in enumerate(B):
        assert sorted(np.flatnonzero(row)) == sorted((i + j) % n for j in range(s + 1))
    assert np.linalg.matrix_rank(B, tol=1e-9 * np.abs(B).max()) == n - s
    assert (code.load, code.tolerates, code.partitions, code.replication) == (s + 1, s, n, s + 1)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in SMALL if (n - s) % 2] + [(20, 5), (31, 6)])
def test_rows_and_columns_sum_to_the_polynomial_at_one(n: int, s: int) -> None:
    B, at_one = dense(mds(n, s)), mds(n, s).polynomial.sum()
    assert B.sum(axis=0) == pytest.approx(np.full(n, at_one), rel=1e-12)
    assert B.sum(axis=1) == pytest.approx(np.full(n, at_one), rel=1e-12)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in SMALL if s] + [(12, 6), (13, 6), (30, 9), (100, 9), (256, 16)])
def test_the_left_null_space_is_complete(n: int, s: int) -> None:
    null, B = mds(n, s)._null, dense(mds(n, s))
    assert null.shape == (n, s)
    assert np.abs(null.T @ B).max() < 1e-12 * n * np.abs(B).max()
    assert np.linalg.matrix_rank(null) == s


# ------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize(("n", "s"), SMALL)
def test_all_sets_of_replies_up_to_eight_workers(n: int, s: int) -> None:
    code = mds(n, s)
    B = dense(code)
    for replied in subsets(range(n)):
        decoder = code.decoder()
        for worker in replied:
            decoder.add(worker)
        weights, residual, gain = code.decode(replied)
        expected, nearest = least_squares(code, replied)
        assert decoder.decodable == (n - len(replied) <= s)
        assert code.decode(replied).exact == (nearest < 1e-7)  # at times with fewer replies, too: {0, 2} of (4, 1)
        assert not weights[np.setdiff1d(np.arange(n), replied)].any()
        assert gain == pytest.approx(float(np.linalg.norm(weights * np.linalg.norm(B, axis=1))), rel=1e-9)
        assert residual == pytest.approx(nearest, abs=1e-9)
        if n - len(replied) <= s:
            assert np.abs(weights @ B - 1).max() < 1e-10
            assert weights == pytest.approx(expected, abs=1e-9 * max(1.0, gain))
        elif nearest > 1e-7:
            with pytest.raises(NotDecodable, match=rf"{len(replied)} of {n} replies .*any {n - s} do"):
                code.decode_exactly(replied)
        assert decoder.residual == pytest.approx(residual, abs=1e-9)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in SMALL if n < 8])
def test_any_n_less_s_rows_are_independent(n: int, s: int) -> None:
    B = dense(mds(n, s))
    assert min(np.linalg.svd(B[list(rows)], compute_uv=False)[-1] for rows in combinations(range(n), n - s)) > 1e-3


@pytest.mark.parametrize(("n", "s"), [*SMALL, (20, 6), (21, 6), (64, 8), (65, 8)])
def test_weights_in_closed_form_when_all_reply_are_least_squares(n: int, s: int) -> None:
    weights, residual, _ = mds(n, s).decode(range(n))
    assert weights == pytest.approx(least_squares(mds(n, s), range(n))[0], rel=1e-8, abs=1e-12)
    assert residual < 1e-13
    if (n - s) % 2:
        assert weights == pytest.approx(np.full(n, 1.0 / mds(n, s).polynomial.sum()), rel=1e-12)


@pytest.mark.parametrize(("n", "s"), [(12, 3), (12, 6), (30, 7), (30, 14), (100, 9), (256, 5), (1000, 9)])
def test_random_stragglers_with_real_gradients(n: int, s: int) -> None:
    code, random = mds(n, s), np.random.default_rng(s)
    B, gradients = code.encoding, random.standard_normal((n, 3))
    for lost in {0, 1, s // 2, s}:
        for _ in range(5):
            replied = np.sort(random.choice(n, n - lost, replace=False))
            weights, _, gain = code.decode_exactly(replied)
            assert np.abs(weights @ (B @ gradients) - gradients.sum(axis=0)).max() < 1e-13 * gain * n + 1e-5
            assert np.abs(weights @ B - 1).max() < 1e-6


@pytest.mark.parametrize(("n", "s"), [(12, 6), (13, 6), (30, 7)])
def test_weights_are_the_least_norm_solution(n: int, s: int) -> None:
    code, random = mds(n, s), np.random.default_rng(1)
    for lost in range(s + 1):
        replied = np.sort(random.choice(n, n - lost, replace=False))
        weights, _, gain = code.decode(replied)
        assert weights == pytest.approx(least_squares(code, replied)[0], abs=1e-9 * gain)


def test_random_stragglers_gain_less_than_cyclic_repetition() -> None:
    for n, s in ((30, 3), (30, 7), (100, 5)):
        random = np.random.default_rng(0)
        sets = [random.choice(n, n - s, replace=False) for _ in range(20)]
        one, other = (np.median([made(spec, n).decode(replied).gain for replied in sets])
                      for spec in (f"mds:stragglers={s}", f"cyclic:stragglers={s}"))  # fmt: skip
        assert one < other / 3


# ------------------------------------------------------------------------------------------- where it gives out


def test_undecodable_neighbours_are_refused_with_their_number() -> None:
    code = mds(256, 15)
    for first in (0, 100, 250):
        replied = sorted((first + i) % 256 for i in range(15, 256))
        decoding = code.decode(replied)
        assert decoding.worst > 0.1 and not decoding.exact
        assert decoding.worst == pytest.approx(float(np.abs(decoding.weights @ code.encoding - 1).max()))
        with pytest.raises(NotDecodable) as caught:
            anyk.code("mds:stragglers=15", workers=256).decode_exactly(replied)
        sentence = str(caught.value)
        assert "241 of 256 replies do not give the exact sum under 'mds:stragglers=15'" in sentence
        assert f"residual {decoding.residual:.2g}" in sentence
        assert f"rounding is amplified {decoding.gain:.1g} times" in sentence


@pytest.mark.parametrize(("n", "s"), [(256, 15), (100, 9), (100, 20)])
def test_the_decoder_never_claims_what_the_decode_does_not_keep(n: int, s: int) -> None:
    code = mds(n, s)
    for first in range(0, n, n // 4):
        decoder = code.decoder()
        late = [(first + i) % n for i in range(s)]
        for worker in [*sorted(set(range(n)) - set(late)), *late]:
            said = decoder.add(worker)
            assert said == decoder.decodable
            if said:
                assert np.abs(decoder.decode().weights @ code.encoding - 1).max() <= 1e-6
        assert decoder.decodable


def test_huge_tolerances_are_refused_with_what_works() -> None:
    for s in (60, 100):
        with pytest.raises(BadInput) as caught:
            CyclicMDS(10_000, stragglers=s)
        sentence = str(caught.value)
        assert f"mds:stragglers={s} cannot be decoded in double precision for 10000 workers" in sentence
        assert sentence.endswith(f"use cyclic:stragglers={s} or frc:stragglers={s}")
    assert CyclicMDS(10_000, stragglers=2).tolerates == 2


@pytest.mark.parametrize("stragglers", [-1, 6, 60])
def test_stragglers_out_of_range(stragglers: int) -> None:
    with pytest.raises(BadInput, match=rf"at least 0 and below workers \(6\), got {stragglers}"):
        CyclicMDS(6, stragglers=stragglers)


def test_default_stragglers_are_a_tenth_and_in_the_spec() -> None:
    assert [CyclicMDS(n).tolerates for n in (1, 2, 9, 10, 19, 20, 100)] == [0, 1, 1, 1, 1, 2, 10]
    for n, s in ((5, 2), (6, 2)):
        rebuilt = anyk.code(mds(n, s).spec, workers=n)
        assert rebuilt == mds(n, s) and rebuilt.rows == mds(n, s).rows


@pytest.mark.parametrize(("n", "s"), [(8, 3), (9, 5), (20, 8)])
def test_finish_times_are_those_of_the_decoder(n: int, s: int) -> None:
    arrivals = np.random.default_rng(n).exponential(size=(20, n))
    expected = np.sort(arrivals, axis=1)[:, n - s - 1]
    assert mds(n, s).finish_times(arrivals) == pytest.approx(expected)
    arrivals[0, : s + 1] = np.inf
    assert mds(n, s).finish_times(arrivals)[0] == np.inf


@pytest.mark.parametrize(("n", "s"), [(1000, 5), (256, 6), (100, 6)])
def test_finish_times_of_mds_do_not_promise_what_rounding_breaks(n: int, s: int) -> None:
    code = CyclicMDS(n, stragglers=s)
    times = np.ones((1, n))
    times[0, :s] = np.inf
    assert np.isinf(code.finish_times(times)[0]) == (not code.decode(range(s, n)).exact)


def test_mds_decodes_random_sets_where_least_squares_do() -> None:
    code, random = CyclicMDS(256, stragglers=16), np.random.default_rng(16)
    for _ in range(20):
        code.decode_exactly(random.choice(256, 240, replace=False))
