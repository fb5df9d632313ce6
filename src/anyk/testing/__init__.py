"""Conformance suites: what a code, a problem, a strategy and a cluster must hold, for anyk's own and for users'.

Each raises :class:`AssertionError` with a sentence when something does not hold.
"""

from anyk.testing.clusters import check_cluster
from anyk.testing.codes import check_code
from anyk.testing.problems import Squares, check_problem
from anyk.testing.strategies import check_strategy

__all__ = ["Squares", "check_cluster", "check_code", "check_problem", "check_strategy"]
