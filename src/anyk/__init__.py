"""anyk: training by gradient descent that never waits for the slow machine.

A step needs a sum of partial gradients; anyk gets it, exactly or closely enough, from any k of n workers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from anyk import (
        callbacks,
        clusters,
        codes,
        compression,
        data,
        decompile,
        delays,
        exporting,
        graphs,
        optimizers,
        planning,
        problems,
        recording,
        reports,
        strategies,
        testing,
        torch,
        training,
    )
    from anyk.callbacks import Callback, Checkpoint, EarlyStopping, StopRun
    from anyk.clusters import cluster
    from anyk.codes import code
    from anyk.errors import BadInput, NotDecodable, RunFailed
    from anyk.planning import check, explain, plan, resume_auto, train_auto
    from anyk.reports import report
    from anyk.strategies import strategy
    from anyk.training import Evaluate, Race, Run, race, replay, resume, resume_race, rounds, train, train_many, verify

# names and the room each comes from; a room is opened when first asked for, so that importing anyk costs little
_ROOMS = (
    "callbacks",
    "clusters",
    "codes",
    "compression",
    "data",
    "decompile",
    "delays",
    "exporting",
    "graphs",
    "optimizers",
    "planning",
    "problems",
    "recording",
    "reports",
    "strategies",
    "testing",
    "torch",
    "training",
)
_NAMES = {
    "Callback": "callbacks",
    "Checkpoint": "callbacks",
    "EarlyStopping": "callbacks",
    "StopRun": "callbacks",
    "cluster": "clusters",
    "check": "planning",
    "explain": "planning",
    "plan": "planning",
    "code": "codes",
    "BadInput": "errors",
    "Evaluate": "training",
    "NotDecodable": "errors",
    "RunFailed": "errors",
    "report": "reports",
    "strategy": "strategies",
    "Race": "training",
    "Run": "training",
    "race": "training",
    "replay": "training",
    "resume": "training",
    "resume_auto": "planning",
    "resume_race": "training",
    "rounds": "training",
    "train": "training",
    "train_many": "training",
    "train_auto": "planning",
    "verify": "training",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"anyk.{name}")
    if name in _NAMES:
        return getattr(import_module(f"anyk.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'anyk' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


__all__ = [
    "BadInput",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Evaluate",
    "NotDecodable",
    "Race",
    "Run",
    "RunFailed",
    "StopRun",
    "callbacks",
    "check",
    "cluster",
    "clusters",
    "code",
    "codes",
    "compression",
    "data",
    "decompile",
    "delays",
    "explain",
    "exporting",
    "graphs",
    "optimizers",
    "plan",
    "planning",
    "problems",
    "race",
    "recording",
    "replay",
    "report",
    "reports",
    "resume",
    "resume_auto",
    "resume_race",
    "rounds",
    "strategies",
    "strategy",
    "testing",
    "torch",
    "train",
    "train_auto",
    "train_many",
    "training",
    "verify",
]
