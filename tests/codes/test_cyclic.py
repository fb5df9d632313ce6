"""Cyclic repetition: its structure, every set of stragglers when small, many when large, and the same draw each time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from anyk.base.errors import BadInput
from anyk.codes import CyclicRepetition
from anyk.codes.cyclic import _best_sample
from code_oracles import dense, least_squares, made, subsets

pytestmark = pytest.mark.in_process

SMALL = [(n, s) for n in range(1, 9) for s in range(n)]


def cyclic(n: int, s: int) -> CyclicRepetition:
    code = made(f"cyclic:stragglers={s}", n)
    assert isinstance(code, CyclicRepetition)
    return code


# ------------------------------------------------------------------------------------------- structure


@pytest.mark.slow
@pytest.mark.parametrize(("n", "s"), [*SMALL, (12, 3), (30, 7), (100, 9)])
def test_rows_are_cyclic_of_unit_norm_and_of_rank_n_minus_s(n: int, s: int) -> None:
    B = dense(cyclic(n, s))
    for i, row in enumerate(B):
        assert sorted(np.flatnonzero(row)) == sorted((i + j) % n for j in range(s + 1))
    assert np.linalg.norm(B, axis=1) == pytest.approx(np.ones(n), rel=1e-12)
    assert (B.sum(axis=1) >= -1e-12).all()
    singular = np.linalg.svd(B, compute_uv=False)
    assert singular[n - s - 1] > 1e-6 and (singular[n - s :] < 1e-12).all()  # rank n - s
    # H, the check matrix: what all rows are orthogonal to; all ones is, too, so it lies in the span of the rows
    check = np.linalg.svd(B)[2][n - s :]
    assert check.shape == (s, n)
    assert np.abs(check @ B.T).max(initial=0.0) < 1e-12
    assert np.abs(check @ np.ones(n)).max(initial=0.0) < 1e-7
    code = cyclic(n, s)
    assert (code.load, code.tolerates, code.partitions) == (s + 1, s, n)


def test_extreme_tolerances_give_identity_and_equal_rows() -> None:
    for n in (1, 4, 7):
        assert np.array_equal(dense(cyclic(n, 0)), np.eye(n))
        assert dense(cyclic(n, n - 1)) == pytest.approx(np.full((n, n), n**-0.5), rel=1e-9)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in SMALL if n < 8])
def test_any_n_less_s_rows_are_independent(n: int, s: int) -> None:
    B = dense(cyclic(n, s))
    assert min(np.linalg.svd(B[list(rows)], compute_uv=False)[-1] for rows in combinations(range(n), n - s)) > 1e-7


# ------------------------------------------------------------------------------------------- decoding


@pytest.mark.slow
@pytest.mark.parametrize(("n", "s"), SMALL)
def test_all_sets_of_replies_up_to_eight_workers(n: int, s: int) -> None:
    """Up to s stragglers: exact, the solution of smallest norm. More: not exact, and as near as least squares comes."""
    code = cyclic(n, s)
    B = dense(code)
    for replied in subsets(range(n)):
        decoder = code.decoder()
        for worker in replied:
            decoder.add(worker)
        weights, residual, gain = code.decode(replied)
        expected, nearest = least_squares(code, replied)
        assert decoder.decodable == (n - len(replied) <= s) == (nearest < 1e-7)
        assert not weights[np.setdiff1d(np.arange(n), replied)].any()
        assert residual == pytest.approx(float(np.sqrt(((weights @ B - 1) ** 2).mean())), abs=1e-12)
        assert gain == pytest.approx(float(np.linalg.norm(weights)), rel=1e-9)
        if decoder.decodable:
            assert np.abs(weights @ B - 1).max() < 1e-9
            assert weights == pytest.approx(expected, abs=1e-9 * max(1.0, gain**2))
        else:
            assert residual == pytest.approx(nearest, abs=1e-9)
        assert decoder.residual == pytest.approx(residual, abs=1e-9)


@pytest.mark.parametrize(("n", "s"), [(12, 3), (12, 6), (30, 3), (30, 14), (100, 9), (100, 20)])
def test_sampled_stragglers(n: int, s: int) -> None:
    code, random = cyclic(n, s), np.random.default_rng(s)
    B, gradients = dense(code), random.standard_normal((n, 5))
    for lost in {0, 1, s // 2, s}:
        for _ in range(10):
            replied = np.sort(random.choice(n, n - lost, replace=False))
            weights, residual, gain = code.decode(replied)
            assert np.abs(weights @ B - 1).max() < 1e-8 and residual < 1e-8
            error = np.abs(weights @ (B @ gradients) - gradients.sum(axis=0)).max()
            assert error < 1e-14 * gain * 100  # the gain says how much rounding is amplified


@pytest.mark.parametrize(("n", "s"), [(12, 6), (30, 7)])
def test_weights_are_the_least_norm_solution(n: int, s: int) -> None:
    code, random = cyclic(n, s), np.random.default_rng(1)
    for lost in range(s + 1):
        replied = np.sort(random.choice(n, n - lost, replace=False))
        weights, _, gain = code.decode(replied)
        assert weights == pytest.approx(least_squares(code, replied)[0], abs=1e-9 * gain)


@pytest.mark.parametrize(("n", "s"), [(30, 7), (100, 9), (100, 20), (256, 15)])
def test_neighbours_may_all_straggle(n: int, s: int) -> None:
    """s consecutive stragglers, as when a rack is late: where codes of Reed-Solomon's kind break down."""
    code = cyclic(n, s)
    B = dense(code)
    for first in range(0, n, 1 if n <= 100 else 16):
        replied = [(first + i) % n for i in range(s, n)]
        weights, residual, gain = code.decode(replied)
        assert np.abs(weights @ B - 1).max() < 1e-9 and residual < 1e-9
        assert gain < 1e6  # so replies of double precision keep nine digits


def test_more_replies_than_needed_lower_the_gain() -> None:
    code, random = cyclic(30, 7), np.random.default_rng(3)
    order = random.permutation(30)
    gains = [code.decode(order[:r]).gain for r in range(23, 31)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in zip(gains, gains[1:], strict=False))


# ------------------------------------------------------------------------------------------- the draw


def test_the_seed_decides_the_code() -> None:
    rows = [CyclicRepetition(9, stragglers=3, seed=seed).rows for seed in (0, 0, 1)]
    assert rows[0] == rows[1] and rows[0] != rows[2]
    assert CyclicRepetition(9, stragglers=3).spec == "cyclic:stragglers=3"
    assert CyclicRepetition(9, stragglers=3, seed=1).spec == "cyclic:stragglers=3,seed=1"


def test_building_a_code_leaves_numpys_own_generator_alone() -> None:
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert CyclicRepetition(10, stragglers=3, seed=99).rows
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_default_stragglers_are_a_tenth() -> None:
    assert [CyclicRepetition(n).tolerates for n in (1, 2, 9, 10, 19, 20, 100)] == [0, 1, 1, 1, 1, 2, 10]


@pytest.fixture
def drawn_anew() -> Iterator[None]:
    """Nothing drawn before is taken, and nothing drawn here is left."""
    _best_sample.cache_clear()
    yield
    _best_sample.cache_clear()


@pytest.mark.usefixtures("drawn_anew")
def test_an_unstable_draw_is_refused_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyk.codes.cyclic._WORST_GAIN", 1.0)
    with pytest.raises(
        BadInput, match=r"cyclic:stragglers=3 cannot be built stably for 9 workers .*; use frc:stragglers=3, which"
    ):
        CyclicRepetition(9, stragglers=3, seed=1).rows  # noqa: B018


@pytest.mark.usefixtures("drawn_anew")
def test_where_the_quick_svd_gives_up_another_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it was seen not to converge on matrices that it does well a moment later."""
    expected, lost = CyclicRepetition(12, stragglers=3, seed=1), np.array([2, 3, 9])
    weights = expected._best.weights(lost)

    def gives_up(matrix: object) -> None:
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", gives_up)
    _best_sample.cache_clear()
    same_seed = CyclicRepetition(12, stragglers=3, seed=1)
    assert np.allclose(dense(same_seed), dense(expected), atol=1e-10)
    assert np.allclose(same_seed._best.weights(lost), weights, atol=1e-8)
