"""Training: the driver loop, run logs and receipts, checkpoints, resuming, replaying and races."""

from anyk.runs.defaults import usual_optimizer, usual_rule
from anyk.runs.engine.counts import Counts
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.evaluation.evaluate import Evaluate
from anyk.runs.evaluation.evaluator import Evaluator
from anyk.runs.evaluation.predict_file import predict_file
from anyk.runs.floor import absences, floor_seconds
from anyk.runs.folder.drains import drain
from anyk.runs.folder.promise import Promise
from anyk.runs.folder.verifying import Check, Verification, verify
from anyk.runs.log.delay_trace import save_trace
from anyk.runs.log.fates import Tasks, tasks_of
from anyk.runs.log.following import Following
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.receipts import CutOff, Receipt, UsedMessage
from anyk.runs.log.replaying import Replay, replay
from anyk.runs.log.runlog import RunLog
from anyk.runs.log.schema import Evaluation
from anyk.runs.races.race import Race, race, resume_race
from anyk.runs.races.race_folder import is_race
from anyk.runs.races.speedups import (
    Comparison,
    OverSeeds,
    SeedsComparison,
    SpeedUp,
    Spread,
    compare,
    compare_seeds,
    grouped,
    mean_over,
    spread,
)
from anyk.runs.run import Run
from anyk.runs.sliced_loop import SlicedRounds, optimizer_rounds
from anyk.runs.stepping import Step, rounds
from anyk.runs.training import resume, train, train_many

__all__ = [
    "Check",
    "Comparison",
    "Counts",
    "CutOff",
    "Driver",
    "Evaluate",
    "Evaluation",
    "Evaluator",
    "Following",
    "OverSeeds",
    "LogWriter",
    "Promise",
    "Race",
    "Receipt",
    "Replay",
    "Run",
    "RunLog",
    "SlicedRounds",
    "SeedsComparison",
    "SpeedUp",
    "Spread",
    "Step",
    "Tasks",
    "UsedMessage",
    "Verification",
    "absences",
    "compare",
    "compare_seeds",
    "drain",
    "floor_seconds",
    "grouped",
    "is_race",
    "mean_over",
    "optimizer_rounds",
    "predict_file",
    "race",
    "replay",
    "resume",
    "resume_race",
    "rounds",
    "save_trace",
    "session",
    "spread",
    "tasks_of",
    "train",
    "train_many",
    "usual_optimizer",
    "usual_rule",
    "verify",
]
