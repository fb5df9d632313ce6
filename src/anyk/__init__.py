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
        delays,
        fleet,
        graphs,
        optimizers,
        problems,
        runs,
        strategies,
        testing,
        torch,
        views,
    )
    from anyk.base.errors import BadInput, NotDecodable, RunFailed
    from anyk.callbacks import Callback, Checkpoint, EarlyStopping, StopRun
    from anyk.clusters import cluster
    from anyk.codes import code
    from anyk.fleet import check, explain, plan, resume_auto, scale, train_auto
    from anyk.runs import Evaluate, Race, Run, race, replay, resume, resume_race, rounds, train, train_many, verify
    from anyk.strategies import strategy
    from anyk.views import report

# names by the package that they come from; packages are imported on first use, so that importing anyk costs little
_NAMES = {
    "callbacks": "Callback Checkpoint EarlyStopping StopRun",
    "clusters": "cluster",
    "codes": "code",
    "base.errors": "BadInput NotDecodable RunFailed",
    "fleet": "check explain plan resume_auto scale train_auto",
    "runs": "Evaluate Race Run race replay resume resume_race rounds train train_many verify",
    "strategies": "strategy",
    "views": "report",
}


def __getattr__(name: str) -> Any:
    for package, names in _NAMES.items():
        if name in names.split():
            return getattr(import_module(f"anyk.{package}"), name)
    if name in __all__:
        return import_module(f"anyk.{name}")
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
    "delays",
    "explain",
    "fleet",
    "graphs",
    "optimizers",
    "plan",
    "problems",
    "race",
    "replay",
    "report",
    "resume",
    "resume_auto",
    "resume_race",
    "rounds",
    "runs",
    "scale",
    "strategies",
    "strategy",
    "testing",
    "torch",
    "train",
    "train_auto",
    "train_many",
    "verify",
    "views",
]
