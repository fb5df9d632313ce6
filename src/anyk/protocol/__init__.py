"""The language of strategies and clusters: events one way, commands the other.

A *strategy* receives events and returns commands. It has no arrays, clock or random numbers of its own, so the same
object runs on a virtual clock, on real machines and from a log. A *cluster* carries out commands and reports events.
The driver in :mod:`anyk.runs` connects them.

Runs have millions of events and commands: they are named tuples of plain data, and a command concerns many workers
together. Tasks are numbered by the strategy, upwards from 0; numbers are never reused.
"""

from anyk.protocol.commands import (
    Cancel,
    CancelMode,
    Combine,
    Command,
    Commands,
    Dispatch,
    EvaluateLoss,
    MeasureDrift,
    MeasureNoise,
    Mix,
    Note,
    ProjectMessage,
    RequestMessage,
    SetAlarm,
    Stop,
)
from anyk.protocol.events import (
    Alarm,
    Cut,
    DriftMeasured,
    Event,
    Failed,
    Joined,
    Leaving,
    LossEvaluated,
    Lost,
    MessageProjected,
    NoiseMeasured,
    Progress,
    Reply,
)
from anyk.protocol.pace import DelayLaw, Pace
from anyk.protocol.strategy import (
    CompressorFacts,
    Fleet,
    Layout,
    Running,
    Strategy,
    StrategyFacts,
    models_trained,
    share_stored,
    shares_computed,
    slot_names,
)
from anyk.protocol.work import Chunk, Task, Timing
from anyk.protocol.workers import Workers

__all__ = [
    "Alarm",
    "Cancel",
    "CancelMode",
    "Chunk",
    "Combine",
    "Command",
    "Commands",
    "CompressorFacts",
    "Cut",
    "DelayLaw",
    "Dispatch",
    "DriftMeasured",
    "EvaluateLoss",
    "Event",
    "Failed",
    "Fleet",
    "Joined",
    "Layout",
    "Leaving",
    "LossEvaluated",
    "Lost",
    "MeasureDrift",
    "MeasureNoise",
    "MessageProjected",
    "Mix",
    "NoiseMeasured",
    "Note",
    "Pace",
    "Progress",
    "ProjectMessage",
    "Reply",
    "RequestMessage",
    "Running",
    "SetAlarm",
    "Stop",
    "Strategy",
    "StrategyFacts",
    "Task",
    "Timing",
    "Workers",
    "models_trained",
    "share_stored",
    "shares_computed",
    "slot_names",
]
