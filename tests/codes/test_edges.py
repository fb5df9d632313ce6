"""Workers on the edges of a graph: the walk over its components against least squares."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.base.errors import BadInput
from anyk.codes import (
    EdgeCode,
)
from anyk.codes.edges import edge_weights
from code_oracles import dense, least_squares

pytestmark = pytest.mark.in_process


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
    decoded = edge_weights(edges, vertices) @ B
    best = np.linalg.lstsq(B.T, np.ones(vertices), rcond=None)[0] @ B if len(edges) else np.zeros(vertices)
    assert decoded == pytest.approx(best, abs=1e-9)


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
