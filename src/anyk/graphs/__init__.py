"""Graphs as arrays of edges, for codes whose workers sit on vertices or edges and for averaging among neighbours."""

from anyk.graphs.regular import adjacency, edges_of_regular, second_eigenvalue

__all__ = ["adjacency", "edges_of_regular", "second_eigenvalue"]
