"""Graphs: for codes whose workers sit on vertices or edges, and for averaging among neighbours."""

from anyk.graphs.mixing import (
    GraphSpec,
    Matcha,
    Mixing,
    best_constant,
    edges_of,
    elastic,
    graph,
    laplacian,
    matcha,
    matchings,
    metropolis,
    register,
    registry,
    resolve_paths,
    zeta,
)
from anyk.graphs.random_regular import adjacency, edges_of_regular, second_eigenvalue

__all__ = [
    "GraphSpec",
    "Matcha",
    "Mixing",
    "adjacency",
    "best_constant",
    "edges_of",
    "edges_of_regular",
    "elastic",
    "graph",
    "laplacian",
    "matcha",
    "matchings",
    "metropolis",
    "register",
    "registry",
    "resolve_paths",
    "second_eigenvalue",
    "zeta",
]
