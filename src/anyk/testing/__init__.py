"""Conformance suites for codes, delay models, problems, strategies and clusters, built in or custom.

Each raises :class:`AssertionError` with a sentence that states the violated property.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyk.testing.chaos_faults import FaultPlan
    from anyk.testing.chaos_outcome import ChaosResult, chaos
    from anyk.testing.clusters import check_cluster
    from anyk.testing.codes import check_code
    from anyk.testing.delays import check_delays
    from anyk.testing.problems import Squares, check_problem
    from anyk.testing.strategies import check_strategy

# imported on first use: a worker that loads a Squares would otherwise import every suite and the driver
_NAMES = {
    "ChaosResult": "chaos_outcome",
    "FaultPlan": "chaos_faults",
    "Squares": "problems",
    "chaos": "chaos_outcome",
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


__all__ = [
    "ChaosResult",
    "FaultPlan",
    "Squares",
    "chaos",
    "check_cluster",
    "check_code",
    "check_delays",
    "check_problem",
    "check_strategy",
]
