"""Workers on the edges of a graph: each holds its two ends, and optimal decoding is a walk over the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from anyk.checks import typed
from anyk.codes.base import Floats, Indices, MatrixCode, check_workers, usual_load
from anyk.codes.made import fixed_property
from anyk.errors import BadInput
from anyk.graphs import edges_of_regular

if TYPE_CHECKING:
    import scipy.sparse


@typed
@dataclass(frozen=True)
class EdgeCode(MatrixCode):
    """Graph code: partitions are the vertices of a random regular graph, workers its edges (Glasgow and Wootters 2021).

    A worker adds up the partial gradients of its two ends. Decoding is optimal and takes time linear in the graph:
    a component of surviving edges with an odd cycle gives all its vertices exactly; one without, with sides L and R,
    gives ``2 |R| / (|L| + |R|)`` on L, ``2 |L| / (|L| + |R|)`` on R, and error ``(|L| - |R|)^2 / (|L| + |R|)``. The
    weights found are not those of smallest norm. With random stragglers of probability p the error per partition is
    about ``p^degree``.

    ``degree`` (``load`` in a spec) is how many workers hold a partition, d: there are ``m = 2 n / d`` partitions and a
    worker's 2 of them are as much data as d of n. Left out it is the divisor of 2 n nearest to log n.

    >>> code = EdgeCode(30, degree=4)
    >>> code.partitions, code.load
    (15, 2)
    """

    workers: int
    degree: int | None = None
    seed: int = 0
    approximate = True

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        good = [d for d in range(1, n + 1) if 2 * n % d == 0 and 2 * n // d > d and (d > 1 or n == 1)]
        if not good:
            raise BadInput(f"graph does not exist for {n} workers: no regular graph has {n} edges")
        degree = self.degree
        if degree is None:
            degree = min(good, key=lambda d: abs(d - usual_load(n)))
        if degree not in good:
            raise BadInput(
                f"graph:load={degree} does not exist for {n} workers: a graph with {n} edges has 2 x {n} / load "
                "vertices, more than load of them"
            )
        object.__setattr__(self, "degree", degree)

    @property
    def spec(self) -> str:
        return f"graph:load={self.degree}" + (f",seed={self.seed}" if self.seed else "")

    @property
    def partitions(self) -> int:
        """The graph's vertices, 2 n / degree."""
        return 2 * self.workers // int(self.degree or 1)

    @fixed_property
    def edges(self) -> Indices:
        """The two partitions of each worker, shape (workers, 2)."""
        if self.degree == 1:
            return np.array([[0, 1]])
        return edges_of_regular(self.partitions, int(self.degree or 0), seed=self.seed)

    def _matrix(self) -> scipy.sparse.csr_array:
        from scipy.sparse import csr_array

        n = self.workers
        return csr_array((np.ones(2 * n), self.edges.ravel(), np.arange(n + 1) * 2), shape=(n, self.partitions))

    def _solve(self, replies: Indices) -> Floats:
        weights = np.zeros(self.workers)
        weights[replies] = edge_weights(self.edges[replies], self.partitions)
        return weights


def edge_weights(edges: Indices, vertices: int) -> Floats:
    """Weights for edges of a simple graph whose sums at the vertices are as near to 1 as possible; shape (edges,).

    The coefficients at the vertices are known (see :class:`EdgeCode`). A breadth-first tree is taken apart from its
    leaves: each vertex gives what it still needs to the edge to its parent. The root's need is met by itself in a
    component without an odd cycle; in one with, an edge between vertices of equal depth is given the weight that
    makes it so.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    count = len(edges)
    if not count:
        return np.zeros(0)
    u, v = edges[:, 0], edges[:, 1]
    ones = np.ones(count)
    graph = coo_array((ones, (u, v)), shape=(vertices, vertices)).tocsr()
    parts, component = connected_components(graph, directed=False)
    # one breadth-first walk over all components, from a new vertex that sees one vertex of each
    first = np.full(parts, vertices)
    np.minimum.at(first, component, np.arange(vertices))
    top = vertices
    rows, columns = np.concatenate([u, np.full(parts, top)]), np.concatenate([v, first])
    rooted = coo_array((np.ones(len(rows)), (rows, columns)), shape=(vertices + 1, vertices + 1)).tocsr()
    order, parent = breadth_first_order(rooted, top, directed=False)
    odd_list = [0] * (vertices + 1)
    order_list, parent_list = order.tolist(), parent.tolist()
    for vertex in order_list[1:]:
        above = parent_list[vertex]
        odd_list[vertex] = 0 if above == top else 1 - odd_list[above]
    odd = np.array(odd_list[:-1])
    level = odd[u] == odd[v]  # an edge between vertices of equal colour closes an odd cycle
    cyclic = np.zeros(parts, dtype=bool)
    cyclic[component[u[level]]] = True
    sizes = np.bincount(component, minlength=parts)
    right = np.bincount(component, weights=odd, minlength=parts)
    other = np.where(odd == 1, (sizes - right)[component], right[component])
    target = np.where(cyclic[component], 1.0, 2.0 * other / sizes[component])
    weights = np.zeros(count)
    # the closing edge: what is left at the root is the alternating sum of what the vertices need
    left = np.bincount(component, weights=target * (1.0 - 2.0 * odd), minlength=parts)
    closing = np.flatnonzero(level)
    closing = closing[np.unique(component[u[closing]], return_index=True)[1]]
    weights[closing] = left[component[u[closing]]] * (1.0 - 2.0 * odd[u[closing]]) / 2.0
    np.subtract.at(target, u[closing], weights[closing])
    np.subtract.at(target, v[closing], weights[closing])
    # which edge leads to the parent
    up = np.full(vertices + 1, -1)
    up[v[parent[v] == u]] = np.flatnonzero(parent[v] == u)
    up[u[parent[u] == v]] = np.flatnonzero(parent[u] == v)
    need, found, up_list = [*target.tolist(), 0.0], weights.tolist(), up.tolist()
    for vertex in reversed(order_list):
        edge = up_list[vertex]
        if edge >= 0:
            rest = need[vertex]
            found[edge] = rest
            need[parent_list[vertex]] -= rest
    return np.array(found)
