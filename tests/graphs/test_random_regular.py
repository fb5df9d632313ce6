"""Random regular graphs: simple, connected and regular, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from anyk.base.errors import BadInput
from anyk.graphs import adjacency, edges_of_regular

pytestmark = pytest.mark.in_process


@pytest.mark.slow
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
