"""Random codes and codes on graphs: their published errors, the sums that must be constant, and bounds nobody breaks."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

import anyk
from anyk.codes import (
    BernoulliCode,
    Code,
    EdgeCode,
    ExpanderCode,
    RandomBiregularCode,
    RegularisedBernoulliCode,
    StochasticBlockCode,
    worst_stragglers,
)
from anyk.codes.edges import edge_weights
from anyk.errors import BadInput
from anyk.graphs import adjacency, edges_of_regular, second_eigenvalue
from code_oracles import AnyMatrix, dense, least_squares, made, subsets

pytestmark = pytest.mark.in_process


def held_by_someone(code: Code) -> bool:
    return {j for held in code.assignment for j in held} == set(range(code.partitions))


def one_step_error(B: np.ndarray, replied: np.ndarray, rho: float) -> float:
    return float(((rho * B[replied].sum(axis=0) - 1.0) ** 2).sum())


def close(found: list[float], expected: float) -> bool:
    """Within four standard errors."""
    return abs(np.mean(found) - expected) < 4 * np.std(found, ddof=1) / len(found) ** 0.5


# ------------------------------------------------------------------------------------------- Bernoulli codes


def test_golden_errors_of_one_step_decoding() -> None:
    assert BernoulliCode(100, expected_load=10).drawn_error(70) == pytest.approx(12.857142857, rel=1e-9)
    assert StochasticBlockCode(100, block=10, inside=0.8, outside=0.02).drawn_error(70) == pytest.approx(
        7.472, abs=5e-4
    )
    frc = StochasticBlockCode(100, block=10, inside=1.0, outside=0.0)
    assert frc.drawn_error(70) == pytest.approx(3.896, abs=5e-4)


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 60), st.data())
def test_sbc_has_bernoulli_and_repetition_as_special_cases(n: int, data: st.DataObject) -> None:
    r, b = data.draw(st.integers(1, n)), data.draw(st.sampled_from([c for c in range(1, n + 1) if n % c == 0]))
    d = data.draw(st.integers(1, n))
    same = StochasticBlockCode(n, block=b, inside=d / n, outside=d / n)
    assert same.drawn_error(r) == pytest.approx(BernoulliCode(n, expected_load=d).drawn_error(r), rel=1e-9, abs=1e-9)
    frc = StochasticBlockCode(n, block=b, inside=1.0, outside=0.0)
    assert frc.drawn_error(r) == pytest.approx(n * (n - b) * (n - r) / (r * b * (n - 1)), rel=1e-9, abs=1e-9)
    own = anyk.codes.FractionalRepetition(n, load=b).expected_error(r, decoder="one-step")
    assert own == pytest.approx(frc.drawn_error(r), rel=1e-9, abs=1e-9)
    blocks = StochasticBlockCode(n, block=b, inside=1.0, outside=0.0)
    assert set(blocks.encoding.sum(axis=0).tolist()) == set(blocks.encoding.sum(axis=1).tolist()) == {b}
    assert len(set(blocks.assignment)) == n // b


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["bgc:load=10", "sbc:block=10,inside=0.8,outside=0.02", "sbc:block=10,inside=1,outside=0"]
)
def test_the_mean_error_over_draws_is_the_formula(spec: str) -> None:
    random = np.random.default_rng(3)
    found, formula = [], 0.0
    for seed in range(300):
        code = anyk.code(f"{spec},seed={seed}", workers=100)
        formula = code.drawn_error(70)  # type: ignore[attr-defined]
        rho = 100 / (70 * float(code.expected_load))  # type: ignore[attr-defined]
        found.append(one_step_error(dense(code), random.choice(100, 70, replace=False), rho))
    assert close(found, formula), (np.mean(found), formula)


def test_the_mean_load_over_draws_is_the_expected_one() -> None:
    for spec in ("bgc:load=6", "sbc:block=6,inside=0.5,outside=0.05"):
        codes = [anyk.code(f"{spec},seed={seed}", workers=60) for seed in range(100)]
        patched = 60 * (1 - 6 / 60) ** 60
        found = [code.encoding.nnz / 60 for code in codes]
        expected = float(codes[0].expected_load)  # type: ignore[attr-defined]
        assert abs(np.mean(found) - expected) < 4 * np.std(found) / 10 + patched / 60 + 0.03


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


# ------------------------------------------------------------------------------------------- biregular


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000), st.data())
def test_row_and_column_sums_are_constant(n: int, m: int, seed: int, data: st.DataObject) -> None:
    good = [w for w in range(1, m + 1) if n * w % m == 0 and n * w >= m]
    w = data.draw(st.sampled_from(good))
    code = RandomBiregularCode(n, load=w, partitions=m, seed=seed)
    B = dense(code)
    assert B.shape == (n, m) and set(B.ravel().tolist()) <= {0.0, 1.0}
    assert B.sum(axis=1).tolist() == [w] * n
    assert B.sum(axis=0).tolist() == [n * w // m] * m


def test_two_workers_share_as_much_as_in_a_design_on_average() -> None:
    shared = []
    for seed in range(40):
        B = dense(RandomBiregularCode(21, load=5, seed=seed))
        shared.append(float((B @ B.T)[np.triu_indices(21, 1)].mean()))
    assert np.mean(shared) == pytest.approx(21 * 10 / 210, rel=1e-12)  # each column's 5 holders make 10 pairs


def test_loads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BadInput, match="biregular:load=4 does not exist for 6 workers and 9 partitions"):
        RandomBiregularCode(6, load=4, partitions=9)
    assert RandomBiregularCode(6, load=3, partitions=9).load == 3


# ------------------------------------------------------------------------------------------- regular graphs


@settings(deadline=None, max_examples=150)
@given(st.integers(3, 40), st.integers(0, 1000), st.data())
def test_regular_graphs_are_simple_connected_and_regular(n: int, seed: int, data: st.DataObject) -> None:
    d = data.draw(st.sampled_from([d for d in range(2, n) if n * d % 2 == 0]))
    edges = edges_of_regular(n, d, seed=seed)
    assert len({tuple(edge) for edge in edges.tolist()}) == len(edges) == n * d // 2
    assert (edges[:, 0] < edges[:, 1]).all() and edges.min() >= 0 and edges.max() < n
    assert np.bincount(edges.ravel(), minlength=n).tolist() == [d] * n
    assert connected_components(adjacency(edges, n), directed=False)[0] == 1


@pytest.mark.parametrize(("n", "d"), [(5, 3), (6, 6), (6, 0), (4, 5)])
def test_graphs_that_cannot_be_are_refused(n: int, d: int) -> None:
    with pytest.raises(BadInput, match=rf"no graph on {n} vertices has {d} edges at each"):
        edges_of_regular(n, d)


@pytest.mark.parametrize(("n", "d"), [(10, 3), (12, 4), (30, 4), (57, 6), (100, 6), (100, 3), (500, 4)])
def test_expander_has_a_small_second_eigenvalue(n: int, d: int) -> None:
    code = ExpanderCode(n, load=d)
    A = dense(code) * d
    assert np.array_equal(A, A.T) and not np.diagonal(A).any() and set(A.ravel().tolist()) == {0.0, 1.0}
    assert A.sum(axis=0).tolist() == [d] * n
    values = np.linalg.eigvalsh(A)
    second = max(abs(values[0]), abs(values[-2]))
    assert values[-1] == pytest.approx(d) and second <= 2 * (d - 1) ** 0.5 + 0.5
    assert code.second_singular * d == pytest.approx(second, rel=1e-6)
    assert second_eigenvalue(code.encoding * d) == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize(("n", "load"), [(9, 3), (9, 9), (8, 1)])
def test_expanders_that_do_not_exist(n: int, load: int) -> None:
    with pytest.raises(BadInput, match=f"expander:load={load} does not exist for {n} workers"):
        ExpanderCode(n, load=load)
    with pytest.raises(BadInput, match="at least 3 workers, got 2; use frc"):
        ExpanderCode(2)


@pytest.mark.parametrize(
    "code",
    [
        ExpanderCode(30, load=4),
        ExpanderCode(100, load=6),
        RandomBiregularCode(30, load=5),
        RandomBiregularCode(20, load=6, partitions=15),
        RandomBiregularCode(57, load=8),
    ],
    ids=lambda code: f"{code.spec}-{code.workers}",
)
def test_nobody_breaks_the_bound_of_regular_codes(code: Code) -> None:
    random, n = np.random.default_rng(1), code.workers
    B = dense(code)
    second = np.linalg.svd(B, compute_uv=False)[1] / B.sum(axis=0)[0]
    for f in (0, 1, n // 10, n // 4, n // 2):
        bound, attained = code.worst_error(f)  # type: ignore[misc]
        assert bound == pytest.approx(min(second**2 * n * f / (n - f), code.partitions), rel=1e-6, abs=1e-12)
        assert attained == (f == 0)
        for decoder in ("own", "one-step"):
            greedy = worst_stragglers(code, f, decoder=decoder)[1] if n <= 57 and f <= 7 else None
            residuals = [greedy.residual] if greedy else []
            for _ in range(20):
                replied = random.choice(n, n - f, replace=False)
                residuals.append(code.decode(replied, decoder=decoder).residual)
            assert code.partitions * max(residuals) ** 2 <= bound + 1e-9


def test_greedy_stragglers_hurt_more_than_random_ones() -> None:
    code, random = made("biregular:load=4", 12), np.random.default_rng(2)
    for f in (1, 2, 3):
        lost, decoding = worst_stragglers(code, f)
        everyone = set(range(12))
        all_of_them = {
            tuple(chosen): code.decode(everyone - set(chosen)).residual for chosen in combinations(range(12), f)
        }
        assert len(lost) == f and decoding.residual == max(all_of_them.values())
        assert all_of_them[lost] == decoding.residual
    code = made("bgc:load=5", 40)
    lost, decoding = worst_stragglers(code, 8)
    drawn = [code.decode(random.choice(40, 32, replace=False)).residual for _ in range(50)]
    assert len(set(lost)) == 8 and decoding.residual > np.mean(drawn)


# ------------------------------------------------------------------------------------------- workers on edges


def test_golden_components() -> None:
    assert edge_weights(np.array([[0, 1], [0, 2], [1, 2]]), 3) == pytest.approx([0.5] * 3)
    path = edge_weights(np.array([[0, 1], [1, 2]]), 3)
    assert path == pytest.approx([2 / 3, 2 / 3])  # coefficients 2/3, 4/3, 2/3; error 1/3
    assert ((np.array([[1, 1, 0], [0, 1, 1]]).T @ path - 1) ** 2).sum() == pytest.approx(1 / 3)
    assert edge_weights(np.array([[0, 1]]), 2).tolist() == [1.0]
    assert edge_weights(np.array([[1, 3]]), 5).tolist() == [1.0]
    assert edge_weights(np.empty((0, 2), dtype=np.int64), 4).tolist() == []


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    vertices = draw(st.integers(2, 9))
    pairs = list(combinations(range(vertices), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14))
    return vertices, np.array(chosen, dtype=np.int64).reshape(-1, 2)


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(graphs())
def test_the_walk_over_any_graph_is_optimal(graph: tuple[int, np.ndarray]) -> None:
    vertices, edges = graph
    B = np.zeros((len(edges), vertices))
    B[np.arange(len(edges))[:, None], edges] = 1.0
    found = edge_weights(edges, vertices) @ B
    best = np.linalg.lstsq(B.T, np.ones(vertices), rcond=None)[0] @ B if len(edges) else np.zeros(vertices)
    assert found == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(("n", "d"), [(10, 4), (30, 4), (45, 3), (60, 6), (12, 2), (1, 1)])
def test_the_graph_code_decodes_as_well_as_least_squares(n: int, d: int) -> None:
    code, random = EdgeCode(n, degree=d), np.random.default_rng(d)
    B = dense(code)
    assert (
        code.partitions == 2 * n // d
        and B.sum(axis=1).tolist() == [2.0] * n
        and B.sum(axis=0).tolist() == [d] * code.partitions
    )
    for _ in range(40):
        replied = np.flatnonzero(random.random(n) < random.random())
        weights, residual, _ = code.decode(replied)
        expected, nearest = least_squares(code, replied.tolist())
        assert weights @ B == pytest.approx(expected @ B, abs=1e-9)
        assert residual == pytest.approx(nearest, abs=1e-9)
        assert not np.delete(weights, replied).any()


def test_graph_code_error_is_the_chance_of_isolated_vertices() -> None:
    """V = 256, d = 4, p = 0.2: p^d = 1.6e-3."""
    code, random = EdgeCode(512, degree=4), np.random.default_rng(4)
    errors = [code.decode(np.flatnonzero(random.random(512) >= 0.2)).residual ** 2 for _ in range(100)]
    assert 0.7 * 0.2**4 < np.mean(errors) < 1.3 * 0.2**4


@pytest.mark.parametrize(("n", "load"), [(10, 3), (10, 20)])
def test_graph_codes_that_do_not_exist(n: int, load: int) -> None:
    with pytest.raises(BadInput, match=f"graph:load={load} does not exist for {n} workers"):
        EdgeCode(n, degree=load)
    with pytest.raises(BadInput, match="no regular graph has 2 edges"):
        EdgeCode(2)


# ------------------------------------------------------------------------------------------- one-step decoding


@pytest.mark.parametrize(
    "code",
    [
        made("bgc:load=3", 9),
        made("rbgc:load=2", 9),
        made("sbc:load=3", 9),
        made("biregular:load=3", 9),
        made("expander:load=4", 9),
        made("graph:load=3", 9),
        made("frc:load=3", 9),
        made("mds:stragglers=2", 8),
        made("cyclic:stragglers=2", 8),
        made("bibd", 7),
        made("hetero:probability=0.2,load=3", 8),
        made("partial:stragglers=1,load=3", 4),
        made("bcc:batches=3", 9),
        made("uncoded", 1),
        AnyMatrix(4, ((1, 0, 2), (0, 3, 0), (1, 1, 1), (2, 0, -1))),
    ],
    ids=lambda code: code.spec,
)
def test_expected_one_step_error_is_the_mean_over_all_sets(code: Code) -> None:
    n, B = code.replies, dense(code)
    for r in range(1, n + 1):
        rho = code.partitions * n / (r * B.sum())
        errors = [one_step_error(B, np.array(replied), rho) for replied in subsets(range(n), r, r)]
        assert len(errors) == comb(n, r)
        expected = code.expected_error(r, decoder="one-step")
        assert expected == pytest.approx(np.mean(errors), rel=1e-9, abs=1e-9)
        weights, residual, _ = code.decode(range(r), decoder="one-step")
        assert weights[:r] == pytest.approx([rho] * r) and not weights[r:].any()
        assert code.partitions * residual**2 == pytest.approx(errors[0], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("replies", [0, 10, -1])
def test_counts_of_replies_out_of_range(replies: int) -> None:
    for spec in ("bgc:load=3", "frc:load=3"):
        with pytest.raises(BadInput, match=f"replies must be 1 to 9, got {replies}"):
            made(spec, 9).expected_error(replies)
    with pytest.raises(BadInput, match=f"replies must be 1 to 9, got {replies}"):
        BernoulliCode(9).drawn_error(replies)


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
