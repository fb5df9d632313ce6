"""Workers on the edges of a graph: each holds its two ends, and optimal decoding is a walk over the graph."""

from __future__ import annotations

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.codes.base import MatrixCode, check_workers, incidence, usual_load
from anyk.codes.made import LEFT_OUT, SparseMatrix, fixed_property
from anyk.graphs import edges_of_regular


@value_class
class EdgeCode(MatrixCode):
    """Graph code: partitions are the vertices of a random regular graph, workers its edges (Glasgow and Wootters 2021).

    A worker adds up the partial gradients of its two ends. Decoding is optimal and takes time linear in the graph:
    a component of surviving edges with an odd cycle gives all its vertices exactly; another, with sides L and R,
    gives ``2 |R| / (|L| + |R|)`` on L, ``2 |L| / (|L| + |R|)`` on R, and error ``(|L| - |R|)^2 / (|L| + |R|)``. The
    weights are not of smallest norm. With random stragglers of probability p the error per partition is about
    ``p^degree``.

    ``degree`` (``load`` in a spec) is the number of workers that hold a partition, d: there are ``m = 2 n / d``
    partitions, and a worker's 2 partitions are as much data as d of n. By default it is the divisor of 2 n nearest to
    log n. Raises :class:`~anyk.BadInput` if there is no such graph.

    >>> code = EdgeCode(30, degree=4)
    >>> code.partitions, code.load
    (15, 2)
    """

    workers: int
    degree: int = LEFT_OUT
    seed: int = 0
    approximate = True
    optimal = True

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        good = [d for d in range(1, n + 1) if 2 * n % d == 0 and 2 * n // d > d and (d > 1 or n == 1)]
        if not good:
            raise BadInput(f"graph does not exist for {n} workers: no regular graph has {n} edges")
        degree = self.degree
        if degree is LEFT_OUT:
            degree = min(good, key=lambda d: abs(d - usual_load(n)))
        if degree not in good:
            raise BadInput(
                f"graph:load={degree} does not exist for {n} workers: a graph with {n} edges has 2 x {n} / load "
                "vertices, more than load of them"
            )
        self._resolve(degree=degree)

    @property
    def spec(self) -> str:
        return f"graph:load={self.degree}" + (f",seed={self.seed}" if self.seed else "")

    @property
    def partitions(self) -> int:
        """Number of vertices of the graph, 2 n / degree."""
        return 2 * self.workers // self.degree

    @fixed_property
    def edges(self) -> Indices:
        """Partitions of each worker, shape (workers, 2)."""
        if self.degree == 1:
            return np.array([[0, 1]])
        return edges_of_regular(self.partitions, self.degree, seed=self.seed)

    def _matrix(self) -> SparseMatrix:
        return incidence(self.edges.tolist(), self.partitions)

    def _solve(self, replies: Indices) -> Floats:
        weights = np.zeros(self.workers)
        weights[replies] = edge_weights(self.edges[replies], self.partitions)
        return weights


def edge_weights(edges: Indices, vertices: int) -> Floats:
    """Return weights of edges whose sums at the vertices of a simple graph are nearest to 1, shape (edges,).

    ``edges``: shape (edges, 2). :class:`EdgeCode` states the best coefficients at the vertices. They are distributed
    from the leaves of a breadth-first tree: each vertex gives the coefficient that it lacks to the edge to its parent.
    The root then lacks nothing in a component without an odd cycle; in others, the weight of one edge between vertices
    of equal depth makes it so.
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
    # one breadth-first walk over all components, from a new vertex adjacent to one vertex of each
    first = np.full(parts, vertices)
    np.minimum.at(first, component, np.arange(vertices))
    top = vertices
    rows, columns = np.concatenate([u, np.full(parts, top)]), np.concatenate([v, first])
    rooted = coo_array((np.ones(len(rows)), (rows, columns)), shape=(vertices + 1, vertices + 1)).tocsr()
    order, parent = breadth_first_order(rooted, top, directed=False)
    depth_odd = [0] * vertices + [1]  # the root of each component is even
    order_list, parent_list = order.tolist(), parent.tolist()
    for vertex in order_list[1:]:
        depth_odd[vertex] = 1 - depth_odd[parent_list[vertex]]
    odd = np.array(depth_odd[:-1])
    level = odd[u] == odd[v]  # an edge between vertices of equal colour closes an odd cycle
    cyclic = np.zeros(parts, dtype=bool)
    cyclic[component[u[level]]] = True
    sizes = np.bincount(component, minlength=parts)
    right = np.bincount(component, weights=odd, minlength=parts)
    other = np.where(odd == 1, (sizes - right)[component], right[component])
    target = np.where(cyclic[component], 1.0, 2.0 * other / sizes[component])
    weights = np.zeros(count)
    # the closing edge: the root lacks the alternating sum of the coefficients
    lacking = np.bincount(component, weights=target * (1.0 - 2.0 * odd), minlength=parts)
    closing = np.flatnonzero(level)
    closing = closing[np.unique(component[u[closing]], return_index=True)[1]]
    weights[closing] = lacking[component[u[closing]]] * (1.0 - 2.0 * odd[u[closing]]) / 2.0
    np.subtract.at(target, u[closing], weights[closing])
    np.subtract.at(target, v[closing], weights[closing])
    # which edge leads to the parent
    up = np.full(vertices + 1, -1)
    up[v[parent[v] == u]] = np.flatnonzero(parent[v] == u)
    up[u[parent[u] == v]] = np.flatnonzero(parent[u] == v)
    needs, solution, up_list = [*target.tolist(), 0.0], weights.tolist(), up.tolist()
    for vertex in reversed(order_list):
        edge = up_list[vertex]
        if edge >= 0:
            solution[edge] = needs[vertex]
            needs[parent_list[vertex]] -= needs[vertex]
    return np.array(solution)
