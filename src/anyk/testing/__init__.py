"""Conformance suites: what codes, delay laws, problems, strategies and clusters must hold, anyk's own and users'.

Each raises :class:`AssertionError` with a sentence when something does not hold.
"""

from anyk.testing.clusters import check_cluster
from anyk.testing.codes import check_code
from anyk.testing.delays import check_delays
from anyk.testing.problems import Squares, check_problem
from anyk.testing.strategies import check_strategy

__all__ = ["Squares", "check_cluster", "check_code", "check_delays", "check_problem", "check_strategy"]
