"""Random regular graphs: every vertex has the same number of neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator

if TYPE_CHECKING:
    import scipy.sparse

Edges = NDArray[np.int64]

_DENSE = 400  # vertices up to which eigenvalues are computed densely
_TRIES = 200


def edges_of_regular(vertices: int, degree: int, *, seed: int = 0, draw: int = 0) -> Edges:
    """Return the edges of a random connected simple graph with ``degree`` neighbours at each vertex, shape (edges, 2).

    Stubs are paired at random; loops and duplicate pairs are swapped with others until none remains (the pairing model
    of Bollobas 1980 with switchings). Sorted, with the smaller end first. Raises :class:`~anyk.BadInput` if
    ``vertices * degree`` is odd or ``degree`` is out of range.

    >>> edges_of_regular(4, 3).tolist()
    [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    from scipy.sparse.csgraph import connected_components

    if not 1 <= degree < vertices or vertices * degree % 2:
        near = [d for d in (degree - 1, degree + 1, vertices - 1) if 1 <= d < vertices and vertices * d % 2 == 0]
        hint = f"; nearest: {' or '.join(map(str, dict.fromkeys(near)))}" if near else ""
        raise BadInput(
            f"no graph on {vertices} vertices has {degree} edges at each: the degree must be 1 to {vertices - 1} and "
            f"vertices x degree even{hint}"
        )
    if degree == 1 and vertices > 2:
        raise BadInput(f"a graph on {vertices} vertices with one edge at each is not connected; use degree 2 or more")
    random = keyed_generator(seed, "regular-graph", vertices, degree, draw)
    for _ in range(_TRIES):
        if 2 * degree > vertices:  # for a dense graph the missing edges are sampled
            sparse = _paired(vertices, vertices - 1 - degree, random)
            missing = np.ones((vertices, vertices), dtype=bool)
            missing[sparse[:, 0], sparse[:, 1]] = missing[sparse[:, 1], sparse[:, 0]] = False
            edges = np.argwhere(np.triu(missing, 1)).astype(np.int64)
        else:
            edges = _paired(vertices, degree, random)
        if connected_components(adjacency(edges, vertices), directed=False)[0] == 1:
            return edges
    raise BadInput(f"no connected graph on {vertices} vertices with degree {degree} was found; use a larger degree")


def _paired(vertices: int, degree: int, random: np.random.Generator) -> Edges:
    pairs = random.permutation(np.repeat(np.arange(vertices), degree)).reshape(-1, 2)
    while True:
        pairs.sort(axis=1)
        key = pairs[:, 0] * vertices + pairs[:, 1]
        order = np.argsort(key, kind="stable")
        double = np.zeros(len(pairs), dtype=bool)
        double[order[1:]] = key[order[1:]] == key[order[:-1]]
        bad = np.flatnonzero(double | (pairs[:, 0] == pairs[:, 1]))
        if not len(bad):
            return np.asarray(pairs[order], dtype=np.int64)
        other = random.integers(len(pairs), size=len(bad))
        ends = random.integers(2, size=len(bad))
        for i, j, end in zip(bad.tolist(), other.tolist(), ends.tolist(), strict=True):
            pairs[i, 1], pairs[j, end] = pairs[j, end], pairs[i, 1]


def adjacency(edges: Edges, vertices: int) -> scipy.sparse.csr_array:
    """Return the symmetric adjacency matrix, sparse, shape (vertices, vertices)."""
    from scipy.sparse import csr_array

    both = np.concatenate([edges, edges[:, ::-1]])
    matrix = csr_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(vertices, vertices))
    matrix.sort_indices()
    return matrix


def second_eigenvalue(matrix: scipy.sparse.csr_array, *, seed: int = 0) -> float:
    """Return the second largest absolute eigenvalue of a regular graph's adjacency matrix."""
    n = matrix.shape[0]
    if n <= _DENSE:
        values = np.sort(np.abs(np.linalg.eigvalsh(matrix.toarray())))
        return float(values[-2]) if n > 1 else 0.0
    from scipy.sparse.linalg import eigsh

    start = keyed_generator(seed, "eigenvalue", n).standard_normal(n)
    values = np.sort(np.abs(eigsh(matrix, k=2, which="LM", v0=start, return_eigenvectors=False, tol=1e-6)))
    return float(values[0])
