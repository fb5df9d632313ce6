"""Training: the one driver loop, run log, receipts, checkpoints, resume, replay."""

from anyk.training.api import resume, train
from anyk.training.comparing import Comparison, SpeedUp, compare
from anyk.training.counts import Counts
from anyk.training.defaults import usual_optimizer, usual_rule
from anyk.training.driver import Driver
from anyk.training.evaluate import Evaluate
from anyk.training.evaluation import Evaluator
from anyk.training.floor import floor_seconds
from anyk.training.following import Following
from anyk.training.many import train_many
from anyk.training.predicting import predict_file
from anyk.training.promise import Promise
from anyk.training.racefolder import is_race
from anyk.training.racing import Race, race, resume_race
from anyk.training.receipts import CutOff, Receipt
from anyk.training.replaying import Replay, replay
from anyk.training.run import Run
from anyk.training.runlog import RunLog
from anyk.training.schema import Evaluation
from anyk.training.seeds import OverSeeds, SeedsComparison, Spread, compare_seeds, grouped, spread
from anyk.training.session import session
from anyk.training.stepping import Step, rounds
from anyk.training.tracing import save_trace
from anyk.training.verifying import Check, Verification, verify

__all__ = [
    "Counts",
    "Check",
    "Comparison",
    "CutOff",
    "Driver",
    "Evaluate",
    "Evaluation",
    "Evaluator",
    "Following",
    "OverSeeds",
    "Promise",
    "Race",
    "Receipt",
    "Replay",
    "Run",
    "RunLog",
    "SeedsComparison",
    "SpeedUp",
    "Spread",
    "Step",
    "Verification",
    "compare",
    "compare_seeds",
    "floor_seconds",
    "grouped",
    "is_race",
    "predict_file",
    "race",
    "replay",
    "resume",
    "resume_race",
    "rounds",
    "save_trace",
    "session",
    "spread",
    "train",
    "train_many",
    "usual_optimizer",
    "usual_rule",
    "verify",
]
