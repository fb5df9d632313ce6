"""Callbacks: hooks into a run, and some that are ready to use.

``anyk.train(…, callbacks=[EarlyStopping(patience=5), TensorBoard("logs")])``; the same in ``rounds``, ``race``,
``resume`` and the estimators. Write your own as a :class:`Callback`. On the command line: ``--callback
early-stopping:patience=5``, or ``--callback file.py:function`` (:func:`callback`).
"""

from anyk.callbacks.checkpoint import Checkpoint, EarlyStopping
from anyk.callbacks.lookup import callback, named_callbacks, registry
from anyk.callbacks.mirror import Mirror
from anyk.callbacks.trackers import Logging, MLflow, TensorBoard
from anyk.runs.callbacks import Callback, EndInfo, EvaluationInfo, LostInfo, RunInfo, StepInfo, StopRun

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "EndInfo",
    "EvaluationInfo",
    "Logging",
    "LostInfo",
    "MLflow",
    "Mirror",
    "RunInfo",
    "StepInfo",
    "StopRun",
    "TensorBoard",
    "callback",
    "named_callbacks",
    "registry",
]
