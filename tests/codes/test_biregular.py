"""Biregular codes and expanders: sums that must be constant, second eigenvalues, and a bound that nobody breaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.base.errors import BadInput
from anyk.codes import (
    Code,
    ExpanderCode,
    RandomBiregularCode,
    worst_stragglers,
)
from anyk.graphs import second_eigenvalue
from code_oracles import dense

pytestmark = pytest.mark.in_process


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_an_even_ring_is_no_expander() -> None:
    with pytest.raises(BadInput, match="expander:load=2 does not exist for 6 workers"):
        ExpanderCode(6, load=2)
    assert ExpanderCode(12).load == 3 and ExpanderCode(7, load=2).second_singular < 1.0
