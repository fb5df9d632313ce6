"""Averaging among neighbours: named graphs, their mixing matrices, and the speed at which averages spread.

``W[i, j]`` is the weight of node i's model in node j's next model; rows and columns add up to 1, so that averaging
preserves the mean. ``zeta`` is ``||W - J||_2``, where J has all entries 1/n: 0 averages in one round, 1 never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from anyk.base.checks import AtLeastOne, PositiveShare, check_range, typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_uniforms
from anyk.base.registries import Registry, with_files
from anyk.base.specs import File, absolute
from anyk.graphs.random_regular import edges_of_regular
from anyk.tables import read_matrix, shown

Matrix = NDArray[np.float64]
Weights = Literal["metropolis", "best"]
_MOST_ROUNDS = 1_000  # matrices in a cycle
_SAME = 1e-9  # tolerance of norms and eigenvalues


@dataclass(frozen=True, eq=False)
class Mixing:
    """Mixing matrices of a graph, one or a cycle of several (``rounds``), each of shape (n, n).

    >>> ring = graph("ring", workers=8)
    >>> round(ring.zeta, 10), ring.neighbours(0, 0)
    (0.8047378541, (1, 7))
    """

    spec: str
    rounds: tuple[Matrix, ...]

    @property
    def workers(self) -> int:
        """Number of nodes, n."""
        return len(self.rounds[0])

    def at(self, k: int) -> Matrix:
        """Return the matrix of round ``k``, counted from 0; shape (n, n)."""
        return self.rounds[k % len(self.rounds)]

    def neighbours(self, node: int, k: int) -> tuple[int, ...]:
        """Return the nodes whose models a node reads after round ``k``."""
        return tuple(int(i) for i in np.flatnonzero(self.at(k)[:, node]) if i != node)

    @cached_property
    def zeta(self) -> float:
        """``||W - J||_2``; for a cycle of matrices the norm for their product, per round."""
        product = np.eye(self.workers)
        for matrix in self.rounds:
            product = product @ matrix
        norm = zeta(product)
        return norm ** (1.0 / len(self.rounds)) if norm > _SAME else 0.0

    @property
    def degree(self) -> float:
        """Largest number of neighbours of a node, on average over the rounds."""
        counts = [(np.count_nonzero(w, axis=0) - (w.diagonal() != 0)).max() for w in self.rounds]
        return float(np.mean(counts))


def zeta(matrix: Matrix) -> float:
    """Return ``||W - J||_2``; for a symmetric W the second largest absolute eigenvalue.

    >>> zeta(np.full((3, 3), 1 / 3)) < 1e-12
    True
    """
    return float(np.linalg.norm(np.asarray(matrix) - 1.0 / len(matrix), 2))


def laplacian(edges: Iterable[tuple[int, int]], vertices: int) -> Matrix:
    """Return the Laplacian: degrees on the diagonal, -1 for every edge; shape (vertices, vertices)."""
    matrix = np.zeros((vertices, vertices))
    for i, j in edges:
        matrix[i, j] -= 1.0
        matrix[j, i] -= 1.0
        matrix[i, i] += 1.0
        matrix[j, j] += 1.0
    return matrix


def metropolis(edges: Iterable[tuple[int, int]], vertices: int) -> Matrix:
    """Return ``1 / (1 + max(degree_i, degree_j))`` for each edge, with a diagonal that makes columns add up to 1."""
    pairs = list(edges)
    degrees = laplacian(pairs, vertices).diagonal()
    matrix = np.zeros((vertices, vertices))
    for i, j in pairs:
        matrix[i, j] = matrix[j, i] = 1.0 / (1.0 + max(degrees[i], degrees[j]))
    matrix[np.diag_indices(vertices)] = 1.0 - matrix.sum(axis=0)
    return matrix


def best_constant(edges: Iterable[tuple[int, int]], vertices: int) -> Matrix:
    """Return ``I - a L`` with the best a: 2 over the sum of L's second and largest eigenvalue (Xiao and Boyd 2004).

    Raises :class:`~anyk.BadInput` unless the graph is connected.
    """
    matrix = laplacian(edges, vertices)
    values = np.linalg.eigvalsh(matrix)
    if vertices == 1 or values[1] <= _SAME:
        raise BadInput("weights=best needs a connected graph")
    return np.asarray(np.eye(vertices) - 2.0 / (values[1] + values[-1]) * matrix)


def elastic(workers: int, alpha: float) -> Matrix:
    """Return the matrix of elastic averaging over n workers and the centre (last): ``[[(1-a) I, a], [a, 1 - n a]]``.

    Its eigenvalues are 1, 1 - a and 1 - (n + 1) a, so it averages for 0 < a < 2 / (n + 1), fastest for 2 / (n + 2).

    >>> np.round(np.linalg.eigvalsh(elastic(8, 0.1)), 6).tolist()
    [0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 1.0]
    """
    matrix = np.zeros((workers + 1, workers + 1))
    matrix[:-1, :-1] = (1.0 - alpha) * np.eye(workers)
    matrix[:-1, -1] = matrix[-1, :-1] = alpha
    matrix[-1, -1] = 1.0 - workers * alpha
    return matrix


# ---------------------------------------------------------------------------------------------------- by name

registry: Registry[Mixing] = Registry("graph", supplied=("workers",))
register = registry.register
GraphSpec = Annotated[str, registry]


def graph(spec: str, *, workers: int) -> Mixing:
    """Return a graph's mixing matrices by its spec; raise :class:`~anyk.BadInput` if it does not exist.

    >>> graph("one-peer", workers=4).zeta
    0.0
    """
    return Mixing(resolve_paths(spec), registry.build(spec, workers=workers).rounds)


def resolve_paths(spec: str) -> str:
    """Return a graph's spec that is valid in any folder: files have absolute paths."""
    return str(with_files(spec, absolute, registry))


def edges_of(spec: str, *, workers: int) -> list[tuple[int, int]]:
    """Return the edges of a graph; raise :class:`~anyk.BadInput` unless it has one symmetric matrix."""
    rounds = registry.build(spec, workers=workers).rounds
    if len(rounds) != 1 or not np.allclose(rounds[0], rounds[0].T):
        raise BadInput(f"'{spec}' has arrows or changes from round to round; an undirected graph is needed here")
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(rounds[0], 1))]


def _of_edges(name: str, edges: Iterable[tuple[int, int]], workers: int, weights: Weights) -> Mixing:
    pairs = sorted({(min(i, j), max(i, j)) for i, j in edges if i != j})
    matrix = metropolis(pairs, workers) if weights == "metropolis" else best_constant(pairs, workers)
    return Mixing(name, (matrix,))


@register("ring")
def _ring(workers: int, *, weights: Weights = "metropolis") -> Mixing:
    """Each node and its two neighbours on a circle."""
    return _of_edges("ring", ((i, (i + 1) % workers) for i in range(workers)), workers, weights)


@register("torus")
@typed
def _torus(workers: int, *, rows: AtLeastOne | None = None, weights: Weights = "metropolis") -> Mixing:
    """A grid whose opposite sides are joined: four neighbours; rows x columns as square as possible."""
    rows = rows or max(a for a in range(1, int(workers**0.5) + 1) if workers % a == 0)
    if workers % rows:
        raise BadInput(f"a torus of {rows} rows needs a multiple of them, got {workers} workers")
    columns = workers // rows
    right = ((r * columns + c, r * columns + (c + 1) % columns) for r in range(rows) for c in range(columns))
    down = ((r * columns + c, (r + 1) % rows * columns + c) for r in range(rows) for c in range(columns))
    return _of_edges("torus", [*right, *down], workers, weights)


@register("complete")
def _complete(workers: int) -> Mixing:
    """Every node with all others: the exact average in each round."""
    return Mixing("complete", (np.full((workers, workers), 1.0 / workers),))


@register("star")
def _star(workers: int, *, weights: Weights = "metropolis") -> Mixing:
    """Every node with node 0."""
    return _of_edges("star", ((0, i) for i in range(1, workers)), workers, weights)


@register("none")
def _none(workers: int) -> Mixing:
    """No edges: independent runs."""
    return Mixing("none", (np.eye(workers),))


@register("regular")
def _regular(workers: int, *, degree: int = 4, seed: int = 0, weights: Weights = "metropolis") -> Mixing:
    """A random graph in which every node has the same number of neighbours."""
    pairs = edges_of_regular(workers, degree, seed=seed).tolist()
    return _of_edges("regular", [(i, j) for i, j in pairs], workers, weights)


@register("exp")
def _exponential(workers: int) -> Mixing:
    """Each node reads the nodes 1, 2, 4, … places before it: log2 n neighbours, fast averaging (directed)."""
    hops = _hops(workers)
    matrix = sum((_shift(workers, hop) for hop in hops), np.eye(workers)) / (1 + len(hops))
    return Mixing("exp", (matrix,))


@register("one-peer")
def _one_peer(workers: int) -> Mixing:
    """A cycle of rounds with one neighbour each, 1, 2, 4, … places before; exact every log2 n rounds if n is 2^k.

    (Assran, Loizou, Ballas and Rabbat 2019; Ying, Yuan, Chen, Hu, Pan and Yin 2021.)
    """
    rounds = tuple(0.5 * (np.eye(workers) + _shift(workers, hop)) for hop in _hops(workers))
    return Mixing("one-peer", rounds or (np.eye(workers),))


@register("groups")
@typed
def _groups(workers: int, *, groups: int = 2, every: Annotated[int, Meta(ge=1, le=_MOST_ROUNDS)] = 4) -> Mixing:
    """Groups of consecutive nodes that average among themselves, and in every ``every``-th round with all nodes."""
    check_range("groups", groups, 1, workers, " nodes")
    inside = np.zeros((workers, workers))
    for members in np.array_split(np.arange(workers), groups):
        inside[np.ix_(members, members)] = 1.0 / len(members)
    return Mixing("groups", (inside,) * (every - 1) + (np.full((workers, workers), 1.0 / workers),))


@register("file")
def _file(workers: int, *, file: File) -> Mixing:
    """A mixing matrix from a .csv, .npy or .npz file, n x n; W[i, j] is the weight of i in j's next model."""
    raw, path = read_matrix(file), Path(file).expanduser()
    if raw.shape != (workers, workers):
        raise BadInput(f"the matrix in '{shown(path)}' must be {workers} x {workers}, got shape {raw.shape}")
    matrix = raw if isinstance(raw, np.ndarray) else raw.toarray()
    for axis, what in ((0, "columns"), (1, "rows")):
        off = float(np.abs(matrix.sum(axis=axis) - 1.0).max())
        if not off <= 1e-6:
            raise BadInput(f"the {what} of the matrix in '{shown(path)}' must add up to 1, they miss it by {off:.3g}")
    return Mixing("file", (matrix,))


def _hops(workers: int) -> list[int]:
    return [1 << t for t in range((workers - 1).bit_length())]


def _shift(workers: int, hop: int) -> Matrix:
    """Return the permutation of node i to node i + hop."""
    return np.roll(np.eye(workers), hop, axis=1)


# ---------------------------------------------------------------------------------------------------- matchings


def matchings(edges: Iterable[tuple[int, int]], vertices: int) -> list[list[tuple[int, int]]]:
    """Return edges in groups that share no node; the number of groups is the largest degree or one more.

    Edges are coloured one by one. If no colour is free at both ends, two colours change places along a path (which
    always works in bipartite graphs, König 1916), else along a fan (Misra and Gries 1992, with one more colour).

    >>> matchings([(0, 1), (1, 2), (2, 3), (0, 3)], 4)
    [[(0, 1), (2, 3)], [(0, 3), (1, 2)]]
    """
    pairs = sorted((min(i, j), max(i, j)) for i, j in edges)
    degree = int(np.bincount(np.array(pairs, dtype=int).reshape(-1), minlength=1).max(initial=0))
    colouring = _Colouring(vertices, degree)
    if not all(colouring.join(u, v) for u, v in pairs):
        colouring = _Colouring(vertices, degree + 1)
        for u, v in pairs:
            colouring.fan(u, v)
    groups: dict[int, list[tuple[int, int]]] = {}
    for edge, c in sorted(colouring.colour.items()):
        groups.setdefault(c, []).append(edge)
    return sorted(groups.values())


class _Colouring:
    """Colours of edges, different at each vertex."""

    def __init__(self, vertices: int, colours: int) -> None:
        self.colours = range(colours)
        self.colour: dict[tuple[int, int], int] = {}
        self.at: list[dict[int, int]] = [{} for _ in range(vertices)]  # colour -> the neighbour it leads to

    def paint(self, edges: list[tuple[int, int, int]]) -> None:
        """Give edges (a, b, colour) new colours simultaneously."""
        for a, b, _ in edges:
            old = self.colour.pop((min(a, b), max(a, b)), None)
            if old is not None:
                del self.at[a][old], self.at[b][old]
        for a, b, c in edges:
            self.colour[min(a, b), max(a, b)] = c
            self.at[a][c], self.at[b][c] = b, a

    def swapped(self, start: int, c: int, d: int) -> list[tuple[int, int, int]]:
        """Return the edges of two colours along the path from ``start`` that begins with d, colours exchanged."""
        changed, node, want = [], start, d
        while want in self.at[node]:
            other = self.at[node][want]
            want = c if want == d else d
            changed.append((node, other, want))
            node = other
        return changed

    def join(self, u: int, v: int) -> bool:
        """Colour an edge, if necessary by a path; return whether that works."""
        free_u = [c for c in self.colours if c not in self.at[u]]
        free_v = [c for c in self.colours if c not in self.at[v]]
        for c in free_u:
            if c in free_v:
                self.paint([(u, v, c)])
                return True
        for c in free_u:
            for d in free_v:
                path = self.swapped(v, d, c)
                if path[-1][1] != u:
                    self.paint(path)
                    self.paint([(u, v, c)])
                    return True
        return False

    def fan(self, u: int, v: int) -> None:
        """Colour an edge by a fan of u's neighbours, each joined in a colour that is free at its predecessor."""
        fan = [v]
        while True:
            steps = sorted(self.at[u].items())
            more = next((y for c, y in steps if y not in fan and c not in self.at[fan[-1]]), None)
            if more is None:
                break
            fan.append(more)
        c = next(x for x in self.colours if x not in self.at[u])
        d = next(x for x in self.colours if x not in self.at[fan[-1]])
        if c != d:
            self.paint(self.swapped(u, c, d))
        for end in range(len(fan)):
            colours = [self.colour[min(u, y), max(u, y)] for y in fan[1 : end + 1]]
            if d not in self.at[fan[end]] and all(x not in self.at[y] for x, y in zip(colours, fan, strict=False)):
                self.paint([(u, y, x) for x, y in zip([*colours, d], fan[: end + 1], strict=True)])
                return


@dataclass(frozen=True, eq=False)
class Matcha:
    """MATCHA (Wang, Sahu, Yang, Joshi and Kar 2019): matchings of a graph, each active with its own chance.

    ``chances`` maximise the second eigenvalue of the mean Laplacian with at most ``budget`` of the matchings active on
    average; ``step`` a minimises ``||E[W^2] - J||_2`` of ``W = I - a sum of active Laplacians``, to ``rho``.

    >>> plan = matcha("ring", workers=4, budget=0.5)
    >>> round(plan.step, 6), round(plan.rho, 6)
    (0.5, 0.5)
    """

    groups: tuple[tuple[tuple[int, int], ...], ...]
    workers: int
    chances: tuple[float, ...]
    step: float
    rho: float

    def at(self, k: int, seed: int) -> Matrix:
        """Return the matrix of round ``k``, shape (n, n); it is the same at all nodes."""
        draws = keyed_uniforms(seed, "matcha", start=k * len(self.groups), count=len(self.groups))
        active = [edge for group, u, p in zip(self.groups, draws, self.chances, strict=True) if u < p for edge in group]
        return np.eye(self.workers) - self.step * laplacian(active, self.workers)


@typed
def matcha(spec: str, *, workers: int, budget: PositiveShare) -> Matcha:
    """Return matchings, chances and step for a graph; ``budget``: mean share of active matchings, above 0, at most 1.

    Raises :class:`~anyk.BadInput` for another budget and for a graph that is not connected.
    """
    from scipy.optimize import minimize, minimize_scalar

    groups = matchings(edges_of(spec, workers=workers), workers)
    if not groups:
        raise BadInput(f"'{spec}' has no edges; MATCHA needs a connected graph")
    parts = np.array([laplacian(group, workers) for group in groups])
    q = len(groups)

    def slowness(p: Matrix) -> tuple[float, Matrix]:
        values, vectors = np.linalg.eigh(np.tensordot(p, parts, axes=1))
        v = vectors[:, 1]
        return -float(values[1]), -np.einsum("i,qij,j->q", v, parts, v)

    chances = np.full(q, budget)
    if budget < 1.0:
        limit = {"type": "ineq", "fun": lambda p: budget * q - p.sum(), "jac": lambda p: -np.ones(q)}
        solution = minimize(slowness, chances, jac=True, bounds=[(0.0, 1.0)] * q, constraints=[limit], method="SLSQP")
        # concave, but not smooth where eigenvalues meet: the solution may be worse than equal chances
        if solution.success and solution.fun < slowness(chances)[0] - 1e-9:
            chances = np.clip(solution.x, 0.0, 1.0)
    mean = np.tensordot(chances, parts, axes=1)
    spread = np.tensordot(chances * (1.0 - chances), parts, axes=1)
    if np.linalg.eigvalsh(mean)[min(1, workers - 1)] <= _SAME:
        raise BadInput(f"'{spec}' with budget={budget:g} does not connect all {workers} workers")
    j = np.full((workers, workers), 1.0 / workers)

    def norm(a: float) -> float:  # E[W^2], with L_j^2 = 2 L_j for a matching
        squared = np.eye(workers) - 2.0 * a * mean + a * a * (mean @ mean + 2.0 * spread)
        return float(np.linalg.norm(squared - j, 2))

    best = minimize_scalar(norm, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-12})
    return Matcha(tuple(map(tuple, groups)), workers, tuple(chances.tolist()), float(best.x), float(best.fun))
