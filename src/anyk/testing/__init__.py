"""Conformance suites for everything that can be registered, built in or custom.

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
    from anyk.testing.compressors import check_compressor
    from anyk.testing.data_sources import check_data_source
    from anyk.testing.delays import check_delays
    from anyk.testing.optimizers import check_optimizer
    from anyk.testing.problems import Squares, check_problem
    from anyk.testing.strategies import check_strategy
    from anyk.testing.wait_rules import check_wait_rule

# imported on first use: a worker that loads a Squares would otherwise import every suite and the driver
_NAMES = {
    "ChaosResult": "chaos_outcome",
    "FaultPlan": "chaos_faults",
    "Squares": "problems",
    "chaos": "chaos_outcome",
    "check_cluster": "clusters",
    "check_code": "codes",
    "check_compressor": "compressors",
    "check_data_source": "data_sources",
    "check_delays": "delays",
    "check_optimizer": "optimizers",
    "check_problem": "problems",
    "check_strategy": "strategies",
    "check_wait_rule": "wait_rules",
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
    "check_compressor",
    "check_data_source",
    "check_delays",
    "check_optimizer",
    "check_problem",
    "check_strategy",
    "check_wait_rule",
]
