"""Block designs: their axioms, the fields they are made over, the closed form; and products of two codes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import anyk
from anyk import codes
from anyk.base.errors import BadInput
from anyk.codes import BlockDesignCode, Code, KroneckerCode, RandomBiregularCode, designs_for, worst_stragglers
from anyk.codes.designs import field, prime_power
from code_oracles import dense, least_squares, made, subsets

pytestmark = [pytest.mark.in_process, pytest.mark.slow]

FAMILIES = [(n, design) for n in range(1, 151) for design in designs_for(n)]
SMALL = [(n, design) for n, design in FAMILIES if n <= 11]


def bibd(n: int, family: str) -> BlockDesignCode:
    code = made(f"bibd:family={family}", n)
    assert isinstance(code, BlockDesignCode)
    return code


# ------------------------------------------------------------------------------------------- finite fields


@pytest.mark.parametrize("q", [2, 3, 4, 5, 7, 8, 9, 16, 25, 27])
def test_tables_obey_the_axioms_of_a_field(q: int) -> None:
    F = field(q)
    plus, times, every = F.plus, F.times, np.arange(q)
    for table in (plus, times):
        assert table.shape == (q, q) and np.array_equal(table, table.T)
        assert table.min() == 0 and table.max() == q - 1
        assert np.array_equal(table[table], table[:, table])  # (a b) c = a (b c), for all three
    assert np.array_equal(plus[0], every) and np.array_equal(times[1], every) and not times[0].any()
    assert np.array_equal(times[:, plus], plus[times[:, :, None], times[:, None, :]])  # a (b + c) = a b + a c
    assert (np.sort(plus, axis=1) == every).all()  # everything has a negative
    assert (np.sort(times[1:, 1:], axis=1) == every[1:]).all()  # and everything but 0 an inverse
    p, e = prime_power(q) or (0, 0)
    assert p**e == q
    total = every.copy()
    for _ in range(p - 1):
        total = plus[total, every]
    assert not total.any()  # characteristic p
    assert len(F.squares) == (q - 1 if p == 2 else (q - 1) // 2) and 0 not in F.squares


def test_prime_powers_by_trial() -> None:
    primes = [p for p in range(2, 300) if all(p % d for d in range(2, p))]
    powers = {p**e: (p, e) for p in primes for e in range(1, 9) if p**e < 300}
    assert {q: prime_power(q) for q in range(-1, 300)} == {q: powers.get(q) for q in range(-1, 300)}
    with pytest.raises(ValueError, match="no field of order 12: it is no prime power"):
        field(12)


# ------------------------------------------------------------------------------------------- designs


@pytest.mark.parametrize(("n", "design"), FAMILIES, ids=lambda value: getattr(value, "family", value))
def test_any_two_workers_share_equally_many_partitions(n: int, design: codes.designs.BlockDesign) -> None:
    code = BlockDesignCode(n, family=design.family)
    B = dense(code)
    w, shared = design.load, design.shared
    assert B.shape == (n, design.partitions) == (design.workers, code.partitions)
    assert set(B.ravel().tolist()) == {0.0, 1.0}
    assert np.array_equal(B @ B.T, (w - shared) * np.eye(n) + shared * np.ones((n, n)))
    assert set(B.sum(axis=0).tolist()) == {n * w / design.partitions}
    assert (code.load, code.approximate, code.tolerates) == (w, True, 0)
    assert codes.code(code.spec, workers=n) == code


@pytest.mark.parametrize(("n", "load", "shared"), [(16, 6, 2), (25, 9, 3), (45, 12, 3), (56, 11, 2), (96, 20, 4)])
def test_symmetric_designs_of_the_handbook_are_built(n: int, load: int, shared: int) -> None:
    """Colbourn and Dinitz, Handbook of Combinatorial Designs, table of symmetric designs: (n, load, shared)."""
    B = dense(codes.code(f"bibd:load={load}", workers=n))
    for incidence in (B, B.T):  # any two workers share, and any two partitions are shared by, as many
        assert np.array_equal(incidence @ incidence.T, (load - shared) * np.eye(n) + shared)


def test_projective_planes_exist_for_known_numbers_of_workers() -> None:
    sizes = [n for n in range(1, 151) if any(d.family == "projective" for d in designs_for(n))]
    assert sizes == [7, 13, 21, 31, 57, 73, 91, 133]
    assert [n for n in range(1, 151) if any(d.family == "affine" for d in designs_for(n))] == [
        q * q for q in (2, 3, 4, 5, 7, 8, 9, 11)
    ]
    assert [n for n in range(1, 151) if any(d.family == "hadamard" for d in designs_for(n))] == [7, 15, 31, 63, 127]
    paley = [n for n in range(1, 90) if any(d.family == "paley" for d in designs_for(n))]
    assert paley == [7, 11, 19, 23, 27, 31, 43, 47, 59, 67, 71, 79, 83]


def test_designs_are_listed_by_load_and_the_least_is_taken() -> None:
    for n, _ in FAMILIES:
        loads = [design.load for design in designs_for(n)]
        assert loads == sorted(loads) and BlockDesignCode(n).load == loads[0]
    assert BlockDesignCode(31).family == "projective" and BlockDesignCode(31, load=15).family in ("paley", "hadamard")


def test_golden_errors_of_the_fano_plane() -> None:
    code = BlockDesignCode(7)
    for r, error in ((7, 0.0), (6, 0.25), (5, 4 / 7), (4, 1.0)):
        for replied in subsets(range(7), r, r):
            weights, residual, _ = code.decode(replied)
            assert 7 * residual**2 == pytest.approx(error, abs=1e-12)
            assert weights[list(replied)] == pytest.approx([3 / (2 + r)] * r)
        assert code.expected_error(r) == pytest.approx(error, abs=1e-12)
        assert code.worst_error(7 - r) == (pytest.approx(error, abs=1e-12), True)
    assert code.decode([0, 2, 3, 6]).weights[0] == 0.5


@pytest.mark.parametrize(("n", "design"), SMALL, ids=lambda value: getattr(value, "family", value))
def test_the_closed_form_is_least_squares_for_every_set(n: int, design: codes.designs.BlockDesign) -> None:
    code = bibd(n, design.family)
    for replied in subsets(range(n), 1):
        weights, residual, _ = code.decode(replied)
        expected, nearest = least_squares(code, replied)
        assert weights == pytest.approx(expected, abs=1e-10)
        assert residual == pytest.approx(nearest, abs=1e-9)
        assert code.partitions * residual**2 == pytest.approx(code.expected_error(len(replied)), abs=1e-9)


@pytest.mark.parametrize(
    ("n", "design"), [(n, d) for n, d in FAMILIES if 12 < n < 80], ids=lambda v: getattr(v, "family", v)
)
def test_the_error_depends_only_on_how_many_reply(n: int, design: codes.designs.BlockDesign) -> None:
    code, random = bibd(n, design.family), np.random.default_rng(n)
    for r in sorted({1, 2, n // 3, n // 2, n - 1, n}):
        for _ in range(2):
            replied = np.sort(random.choice(n, r, replace=False))
            error = code.partitions * code.decode(replied).residual ** 2
            assert error == pytest.approx(code.expected_error(r), abs=1e-8)
            assert error == pytest.approx(code.partitions * least_squares(code, replied.tolist())[1] ** 2, abs=1e-8)


def test_with_stragglers_the_decoder_claims_no_exact_sum() -> None:
    code = BlockDesignCode(13)
    decoder = code.decoder()
    said = [decoder.add(worker) for worker in (5, 3, 12, 0, 1, 2, 4, 6, 7, 8, 9, 10, 11)]
    assert said == [False] * 12 + [True]
    assert decoder.decode().residual < 1e-15
    with pytest.raises(anyk.NotDecodable, match=r"12 of 13 replies .*'bibd:family=projective'.*only an approximation"):
        code.decode_exactly(range(12))


def test_where_there_is_no_design_the_nearest_are_named() -> None:
    sizes = [n for n in range(1, 400) if designs_for(n)]
    for n in (1, 2, 3, 8, 10, 12, 14, 20, 22, 50, 100, 150, 200):
        less, more = [m for m in sizes if m < n], [m for m in sizes if m > n]
        near = f"{less[-1]} or {more[0]}" if less else f"{more[0]}"
        with pytest.raises(BadInput, match=f"^no block design is known for {n} workers; nearest: {near} workers$"):
            anyk.code("bibd", workers=n)


def test_a_missing_load_or_family_is_answered_with_what_exists() -> None:
    with pytest.raises(
        BadInput, match=r"bibd:load=5 does not exist for 7 workers; there is family=projective \(load=3\)"
    ):
        BlockDesignCode(7, load=5)
    with pytest.raises(BadInput, match=r"bibd:family=affine does not exist for 13 workers; .*projective \(load=4\)"):
        BlockDesignCode(13, family="affine")


@pytest.mark.parametrize("replies", [0, 8, -1])
def test_counts_of_replies_out_of_range(replies: int) -> None:
    with pytest.raises(BadInput, match=f"replies must be 1 to 7, got {replies}"):
        BlockDesignCode(7).expected_error(replies)
    assert BlockDesignCode(7).worst_error(7) is None


# ------------------------------------------------------------------------------------------- products


def whole_grid(code: KroneckerCode, rows: list[int], columns: list[int]) -> list[int]:
    return [i * code.right.replies + j for i in rows for j in columns]


def test_the_golden_product_of_two_planes() -> None:
    code = KroneckerCode(BlockDesignCode(7), BlockDesignCode(13))
    random = np.random.default_rng(0)
    for _ in range(10):
        rows, columns = (np.sort(random.choice(n, r, replace=False)).tolist() for n, r in ((7, 4), (13, 9)))
        replied = whole_grid(code, rows, columns)
        weights, residual, _ = code.decode(replied)
        assert 91 * residual**2 == pytest.approx(19.0, abs=1e-9)
        expected, nearest = least_squares(code, replied)
        assert 91 * nearest**2 == pytest.approx(19.0, abs=1e-9)
        assert weights == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("left", "n1", "right", "n2"),
    [("bibd", 7, "bibd:family=affine", 4), ("frc:load=2", 4, "bibd", 7), ("mds:stragglers=1", 4, "binary:stragglers=2", 5),
     ("biregular:load=3", 6, "cyclic:stragglers=2", 5), ("bgc:load=3", 5, "hetero:load=2", 4)],
)  # fmt: skip
def test_matrix_loads_and_decodes_of_products(left: str, n1: int, right: str, n2: int) -> None:
    one, other = made(left, n1), made(right, n2)
    code = KroneckerCode(one, other)
    assert dense(code) == pytest.approx(np.kron(dense(one), dense(other)))
    assert (code.workers, code.partitions) == (n1 * n2, one.partitions * other.partitions)
    assert code.load == one.load * other.load
    random = np.random.default_rng(7)
    for _ in range(15):
        rows, columns = (np.flatnonzero(random.random(n) < 0.7).tolist() for n in (n1, n2))
        replied = whole_grid(code, rows, columns)
        expected, nearest = least_squares(code, replied)
        weights, residual, _ = code.decode(replied)
        assert weights == pytest.approx(expected, abs=1e-7)
        errors = [c.partitions * least_squares(c, replies)[1] ** 2 for c, replies in ((one, rows), (other, columns))]
        m1, m2 = one.partitions, other.partitions
        error = m1 * m2 - (m1 - errors[0]) * (m2 - errors[1])
        assert code.partitions * residual**2 == pytest.approx(error, abs=1e-8)
        assert code.partitions * nearest**2 == pytest.approx(error, abs=1e-8)
        ragged = np.flatnonzero(random.random(n1 * n2) < 0.8).tolist()
        assert code.decode(ragged).residual == pytest.approx(least_squares(code, ragged)[1], abs=1e-8)


@pytest.mark.parametrize(
    ("left", "n1", "right", "n2"),
    [("frc:load=2", 4, "frc:load=3", 3), ("mds:stragglers=1", 3, "frc:load=2", 4), ("cyclic:stragglers=2", 4, "uncoded", 2),
     ("binary:stragglers=1", 3, "mds:stragglers=1", 3)],
)  # fmt: skip
def test_a_product_fails_at_a_spoiled_row_of_spoiled_rows(left: str, n1: int, right: str, n2: int) -> None:
    code = KroneckerCode(made(left, n1), made(right, n2))
    most = (made(left, n1).tolerates + 1) * (made(right, n2).tolerates + 1) - 1
    assert code.tolerates == most and not code.approximate
    everyone = set(range(n1 * n2))
    for lost in subsets(everyone, 0, most):
        if len(lost) == most or len(lost) <= 2:
            assert code.decode(everyone - set(lost)).exact, lost
    assert code.worst_error(most) == (0.0, True)
    corner = [i * n2 + j for i in _fatal(made(left, n1)) for j in _fatal(made(right, n2))]
    assert not code.decode(everyone - set(corner)).exact  # and not one more


def _fatal(code: Code) -> list[int]:
    """A smallest set of stragglers that the code does not survive."""
    everyone = set(range(code.workers))
    return next(
        list(lost) for lost in subsets(everyone, 1) if least_squares(code, sorted(everyone - set(lost)))[1] > 1e-6
    )


@pytest.mark.parametrize(
    "code",
    [
        KroneckerCode(BlockDesignCode(7), BlockDesignCode(7, family="paley")),
        KroneckerCode(BlockDesignCode(7), codes.code("frc:load=3", workers=3)),
        KroneckerCode(RandomBiregularCode(6, load=3), BlockDesignCode(4)),
    ],
    ids=lambda code: code.spec,
)
def test_nobody_breaks_the_bound_of_products(code: KroneckerCode) -> None:
    random, n, B = np.random.default_rng(1), code.workers, dense(code)
    first, second = np.linalg.svd(B, compute_uv=False)[:2]
    column = B.sum(axis=0)[0]
    assert first == pytest.approx((B.sum(axis=1)[0] * column) ** 0.5)
    for f in (0, 1, 4, n // 4, n // 2):
        bound, attained = code.worst_error(f)  # type: ignore[misc]
        expected = min((second / column) ** 2 * n * f / (n - f), code.partitions)
        assert bound == pytest.approx(expected, rel=1e-9, abs=1e-9) and attained == (f == 0)
        residuals = [code.decode(random.choice(n, n - f, replace=False)).residual for _ in range(15)]
        if f <= 4:
            residuals.append(worst_stragglers(code, f)[1].residual)
        assert code.partitions * max(residuals) ** 2 <= bound + 1e-9


def test_a_product_of_uneven_factors_claims_no_bound() -> None:
    assert KroneckerCode(made("bgc:load=3", 6), BlockDesignCode(7)).worst_error(3) is None


def test_products_by_spec() -> None:
    code = codes.code("kronecker:left=(frc:load=2),right=(bibd),split=4", workers=28)
    assert isinstance(code, KroneckerCode) and (code.left.workers, code.right.workers) == (4, 7)
    assert dense(codes.code(code.spec, workers=28)) == pytest.approx(dense(code))
    assert codes.code("kronecker:left=(frc:load=3),right=(frc:load=2)", workers=12).tolerates == 5
    with pytest.raises(BadInput, match="does not exist for 7 workers: no two numbers above 1 multiply to that"):
        codes.code("kronecker", workers=7)
    with pytest.raises(
        BadInput, match=r"right=\(bibd\) does not exist for 10 workers; split=.*no block design is known"
    ):
        codes.code("kronecker:right=(bibd)", workers=10)
    with pytest.raises(BadInput, match="does not exist for 12 workers: split=5 does not divide them"):
        codes.code("kronecker:split=5", workers=12)


def test_incidence_of_the_planes_is_that_of_geometry() -> None:
    """Two points on one line and two lines through one point; in the affine plane lines may be parallel."""
    for q in (2, 3, 4, 5):
        lines = dense(bibd(q * q + q + 1, "projective"))
        assert all(lines[:, i] @ lines[:, j] == 1 for i, j in product(range(len(lines)), repeat=2) if i != j)
        lines = dense(bibd(q * q, "affine"))
        meets = lines.T @ lines
        assert set(meets[~np.eye(len(meets), dtype=bool)].tolist()) == {0.0, 1.0}
        assert ((meets == 0).sum(axis=0) == q - 1).all()  # each line has q - 1 parallels


@pytest.mark.parametrize("factor", ["progress", "partial", "comm-efficient"])
def test_a_product_refuses_factors_without_one_whole_message(factor: str) -> None:
    with pytest.raises(BadInput, match="one whole message"):
        codes.code(f"kronecker:left=({factor}),right=(frc)", workers=12)
