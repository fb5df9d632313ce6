"""Conformance suites: what codes, delay laws, problems, strategies and clusters must hold, anyk's own and users'.

Each raises :class:`AssertionError` with a sentence when something does not hold.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyk.testing.clusters import check_cluster
    from anyk.testing.codes import check_code
    from anyk.testing.delays import check_delays
    from anyk.testing.problems import Squares, check_problem
    from anyk.testing.strategies import check_strategy

# imported when first asked for: a worker that loads a Squares would otherwise import every suite and the driver
_NAMES = {
    "Squares": "problems",
    "check_cluster": "clusters",
    "check_code": "codes",
    "check_delays": "delays",
    "check_problem": "problems",
    "check_strategy": "strategies",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"anyk.testing.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'anyk.testing' has no attribute '{name}'")


__all__ = ["Squares", "check_cluster", "check_code", "check_delays", "check_problem", "check_strategy"]
